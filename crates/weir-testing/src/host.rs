//! [`TestHost`]: a host of a fleet, as a network namespace: connected to this machine's network by
//! one virtual cable, whose bytes the kernel counts and which can be slow, lossy or disconnected.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! let host = weir_testing::TestHost::new()?;                        // needs root
//! let monitor = format!("{}:7733", host.gateway());           // this machine's address for the host
//! let mut agent = host.command("weir").args(["agent", &monitor]).spawn()?;
//! let before = host.traffic()?;
//! host.cut()?;                                                // packets are dropped without notice
//! host.mend()?;
//! println!("{} bytes sent", host.traffic()?.sent_bytes - before.sent_bytes);
//! # agent.kill()?;
//! # Ok(())
//! # }
//! ```
//!
//! Only the network is separate: processes, devices and probes are those of this machine.

use std::fs;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};

use crate::memory::report;
use crate::run::run;

/// A network namespace with a cable to the current one. It is removed when it is dropped; processes
/// in it keep running, without a cable.
#[derive(Debug)]
pub struct TestHost {
    /// The name of the namespace, and of this end of the cable.
    name: String,
    network: u32,
    undo: Vec<Vec<String>>,
}

/// The traffic on the cable, headers of Ethernet, IP and TCP included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// From the host to this machine.
    pub sent_bytes: u64,
    /// From this machine to the host.
    pub received_bytes: u64,
}

/// The limits of a cable, in each direction (tc-tbf(8)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cable {
    /// The rate in bytes per second.
    pub bytes_per_second: u64,
    /// The queue in bytes; further packets are dropped. A packet has up to 1,514.
    pub queue_bytes: u64,
}

/// Networks of four addresses in 198.18.0.0/15, which RFC 2544 reserves for measurements.
const NETWORKS: u32 = 1 << 15;

/// The first address.
const FIRST: u32 = u32::from_be_bytes([198, 18, 0, 0]);

/// The host's end of the cable, in its namespace.
const INSIDE: &str = "cable";

/// Maximum burst in bytes, at least a packet; the kernel splits larger bundles.
const BURST_BYTES: u64 = 4_096;

static MADE: AtomicU32 = AtomicU32::new(0);

impl TestHost {
    /// A host with an unlimited cable. Needs root and iproute2.
    pub fn new() -> Result<TestHost> {
        let wanted = std::process::id().wrapping_mul(16);
        for _ in 0..NETWORKS {
            let network = wanted.wrapping_add(MADE.fetch_add(1, Ordering::Relaxed)) % NETWORKS;
            let name = format!("weirnet{network}");
            let cable = ["link", "add", &name, "type", "veth", "peer", "name"];
            match run("ip", &[&cable[..], &[&format!("{name}p")]].concat()) {
                Ok(_) => return TestHost::build(name, network),
                // The kernel accepts a name only once, so the name also reserves the addresses.
                Err(error) if error.to_string().contains("exists") => {}
                Err(error) => return Err(error),
            }
        }
        bail!("all {NETWORKS} networks for hosts are in use; `ip link` lists their interfaces")
    }

    /// This end of the cable exists and nothing else.
    fn build(name: String, network: u32) -> Result<TestHost> {
        let (inside, peer) = (name.clone(), format!("{name}p"));
        let mut host = TestHost {
            name,
            network,
            undo: Vec::new(),
        };
        // From here on everything is removed on failure.
        host.undo_with(&["ip", "link", "del", &inside]);
        run("ip", &["netns", "add", &inside])?;
        host.undo_with(&["ip", "netns", "del", &inside]);
        run(
            "ip",
            &["link", "set", &peer, "netns", &inside, "name", INSIDE],
        )?;
        // IPv6 would add its own packets to the counts.
        run("ip", &["link", "set", &inside, "addrgenmode", "none"])?;
        host.ip(&["link", "set", INSIDE, "addrgenmode", "none"])?;
        let (ours, its) = (host.gateway(), host.address());
        run(
            "ip",
            &["addr", "add", &format!("{ours}/30"), "dev", &inside],
        )?;
        host.ip(&["addr", "add", &format!("{its}/30"), "dev", INSIDE])?;
        run("ip", &["link", "set", &inside, "up"])?;
        host.ip(&["link", "set", INSIDE, "up"])?;
        host.ip(&["link", "set", "lo", "up"])?;
        host.ip(&["route", "add", "default", "via", &ours.to_string()])?;
        Ok(host)
    }

    /// The name of its namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address.
    pub fn address(&self) -> Ipv4Addr {
        Ipv4Addr::from(FIRST + 4 * self.network + 2)
    }

    /// This machine's address on its cable. The host can reach it at the addresses of other cables
    /// too.
    pub fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::from(FIRST + 4 * self.network + 1)
    }

    /// A command for a program of this machine on the host. The started process is the program
    /// itself. Mounts are shared: `ip netns exec` would hide tracefs by another /sys.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name));
        command.args(["--", program]);
        command
    }

    /// The traffic on the cable since the host was created, as counted by the kernel.
    pub fn traffic(&self) -> Result<Traffic> {
        let count = |counter: &str| {
            let path = format!("/sys/class/net/{}/statistics/{counter}", self.name);
            let text = fs::read_to_string(&path).context(path)?;
            text.trim().parse().context("not a number of bytes")
        };
        // The bytes received here are those that it has sent.
        Ok(Traffic {
            sent_bytes: count("rx_bytes")?,
            received_bytes: count("tx_bytes")?,
        })
    }

    /// Limits the cable; it drops packets if its queue is short.
    pub fn shape(&self, cable: Cable) -> Result<()> {
        let rate = format!("{}bps", cable.bytes_per_second);
        self.filtered(&rate, cable.queue_bytes)
    }

    /// Drops all packets in both directions. Both ends still see a connected cable.
    pub fn cut(&self) -> Result<()> {
        // A queue too short for any packet.
        self.filtered("1kbps", 1)
    }

    /// Removes the limits.
    pub fn mend(&self) -> Result<()> {
        let bare = |device| ["qdisc", "del", "dev", device, "root"];
        run("tc", &bare(&self.name))?;
        self.tc(&bare(INSIDE))
    }

    /// Sets a token bucket at each end.
    fn filtered(&self, rate: &str, queue_bytes: u64) -> Result<()> {
        let (burst, limit) = (BURST_BYTES.to_string(), queue_bytes.to_string());
        let bucket = |device| {
            let of = ["qdisc", "replace", "dev", device, "root", "tbf"];
            let how = ["rate", rate, "burst", &burst, "limit", &limit];
            [&of[..], &how[..]].concat()
        };
        run("tc", &bucket(&self.name))?;
        self.tc(&bucket(INSIDE))
    }

    fn ip(&self, args: &[&str]) -> Result<()> {
        run("ip", &[&["-n", &self.name], args].concat()).map(drop)
    }

    fn tc(&self, args: &[&str]) -> Result<()> {
        run("tc", &[&["-n", &self.name], args].concat()).map(drop)
    }

    fn undo_with(&mut self, command: &[&str]) {
        let command = command.iter().map(|w| (*w).to_owned());
        self.undo.push(command.collect());
    }
}

impl Drop for TestHost {
    fn drop(&mut self) {
        // The cable first: the kernel removes that of a namespace asynchronously.
        for command in &self.undo {
            let args: Vec<&str> = command[1..].iter().map(String::as_str).collect();
            report(run(&command[0], &args));
        }
    }
}
