//! The disk that a tapdisk serves, and its load: that of a guest, or of a vhost-user client.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use weir_testing::vhost::{ClientShape, VhostClient, VhostLoad};
use weir_testing::{DiskLoad, Fleet, FleetProcess, Guest, Kit, VhostDisk};

use super::account::Balance;

/// The user of the disk.
enum DiskUser {
    Guest(Box<Guest>),
    Client(Box<VhostClient>),
}

/// A tapdisk, and a guest or client with a load.
pub struct VirtualDisk {
    // The user ends before the tapdisk.
    user: Option<DiskUser>,
    load: Option<JoinHandle<Result<(DiskUser, u64)>>>,
    tapdisk: Option<FleetProcess>,
    tap: String,
    weir: PathBuf,
    kind: &'static str,
    /// The tapdisk's own count when the load began.
    before: u64,
    completed: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

/// The size of the disk.
const DISK_BYTES: u64 = 64 << 20;

/// The load is given to the guest in pieces of this length.
const PIECE: Duration = Duration::from_secs(4);

/// The client submits its requests in bursts of this interval.
const BURST_EVERY: Duration = Duration::from_millis(250);

/// How long a paused tapdisk may leave a request unanswered.
const TIMEOUT: Duration = Duration::from_secs(120);

impl VirtualDisk {
    /// Starts the tapdisk, and the guest if there is a kit for it and `with_guest`.
    pub fn start(fleet: &Fleet, with_guest: bool) -> Result<VirtualDisk> {
        let (image, socket) = (fleet.file("disk.raw"), fleet.file("disk.sock"));
        File::create(&image)?.set_len(DISK_BYTES)?;
        let mut command = Command::new(fleet.weir());
        command.args(["tapdisk", "--image", &image, "--socket", &socket]);
        command.args(["--vm", "guest", "--vdisk", "/dev/vda"]);
        let mut tapdisk = fleet.start("tapdisk", command)?;
        let tap = tapdisk.wait_for_line("requests are reported socket=")?;
        let kit = with_guest.then(Kit::find).and_then(Result::ok);
        let (user, kind) = match kit {
            Some(kit) => (boot(&kit, &socket)?, "a guest"),
            None => {
                let client = VhostClient::connect(socket.as_ref(), ClientShape::default())?;
                (DiskUser::Client(Box::new(client)), "a vhost-user client")
            }
        };
        Ok(VirtualDisk {
            user: Some(user),
            load: None,
            tapdisk: Some(tapdisk),
            tap,
            weir: fleet.weir().to_owned(),
            kind,
            before: 0,
            completed: Arc::default(),
            stop: Arc::default(),
        })
    }

    /// The address of the tap.
    pub fn tap(&self) -> &str {
        &self.tap
    }

    /// The user of the disk, as text.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// The tapdisk's process.
    pub fn pid(&self) -> u32 {
        self.tapdisk.as_ref().expect("it runs").pid()
    }

    /// QEMU's process.
    pub fn guest_pid(&self) -> Option<u32> {
        match &self.user {
            Some(DiskUser::Guest(guest)) => Some(guest.pid()),
            _ => None,
        }
    }

    /// Completed requests of the load.
    pub fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }

    /// Starts the load with this number of requests per second.
    pub fn begin_load(&mut self, rate: u64) -> Result<()> {
        self.before = self.recorded()?;
        let user = self.user.take().expect("no load runs");
        let (stop, completed) = (self.stop.clone(), self.completed.clone());
        self.load = Some(std::thread::spawn(move || match user {
            DiskUser::Guest(guest) => load_of_guest(guest, rate, &stop, &completed),
            DiskUser::Client(client) => load_of_client(client, rate, &stop, &completed),
        }));
        Ok(())
    }

    /// Ends the load; returns the number of requests that the user of the disk has counted, and the
    /// source of that count.
    pub fn end_load(&mut self) -> Result<(u64, &'static str)> {
        self.stop.store(true, Ordering::Relaxed);
        let load = self.load.take().context("no load runs")?;
        let (user, requests) = load.join().expect("errors are returned")?;
        let source = match &user {
            DiskUser::Guest(_) => "/proc/diskstats of the guest",
            DiskUser::Client(_) => "the requests of the vhost-user client",
        };
        self.user = Some(user);
        Ok((requests, source))
    }

    /// The tapdisk's own count against that of the user of the disk.
    pub fn balance(&self, (expected, source): (u64, &str)) -> Result<Balance> {
        Ok(Balance {
            name: "tapdisk, `weir tapdisk status`".to_owned(),
            delivered: self.recorded()? - self.before,
            lost: 0,
            late: 0,
            expected,
            source: source.to_owned(),
        })
    }

    /// The number of requests that the tapdisk has completed.
    fn recorded(&self) -> Result<u64> {
        let mut command = Command::new(&self.weir);
        let output = command
            .args(["tapdisk", "status", "--json", &self.tap])
            .output()?;
        if !output.status.success() {
            bail!(
                "weir tapdisk status: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        let status: Value = serde_json::from_slice(&output.stdout)?;
        let disks = status["disks"].as_array().context("no disks")?.iter();
        let ops = disks.flat_map(|disk| disk["ops"].as_array().into_iter().flatten());
        Ok(ops.filter_map(|op| op["requests"].as_u64()).sum())
    }

    /// Ends the guest or client and the tapdisk.
    pub fn end(&mut self) -> Result<()> {
        if let Some(DiskUser::Guest(guest)) = self.user.take() {
            guest.quit()?;
        }
        match self.tapdisk.take() {
            Some(tapdisk) => tapdisk.stop(),
            None => Ok(()),
        }
    }
}

impl Drop for VirtualDisk {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(load) = self.load.take() {
            // The guest ends with the thread's result.
            let _ = load.join();
        }
    }
}

fn boot(kit: &Kit, socket: &str) -> Result<DiskUser> {
    let mut options = VhostDisk::shared_memory();
    options.extend(VhostDisk::new("disk0", socket).args());
    let mut guest = Guest::start(kit, "guest", &options)?;
    guest.ready()?;
    Ok(DiskUser::Guest(Box::new(guest)))
}

fn load_of_guest(
    mut guest: Box<Guest>,
    rate: u64,
    stop: &AtomicBool,
    completed: &AtomicU64,
) -> Result<(DiskUser, u64)> {
    const DISK: &str = "vda";
    let before = guest.disk_stats()?[DISK];
    for seed in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let load = DiskLoad {
            read: 70,
            write: 30,
            count: rate * PIECE.as_secs(),
            rate,
            seed,
            ..DiskLoad::on("/dev/vda")
        };
        guest.begin_load(std::slice::from_ref(&load))?;
        guest.finish_within(TIMEOUT)?;
        completed.fetch_add(load.count, Ordering::Relaxed);
    }
    let counted = guest.disk_stats()?[DISK].since(&before).requests();
    Ok((DiskUser::Guest(guest), u64::try_from(counted)?))
}

fn load_of_client(
    mut client: Box<VhostClient>,
    rate: u64,
    stop: &AtomicBool,
    completed: &AtomicU64,
) -> Result<(DiskUser, u64)> {
    let mut requests = 0;
    for seed in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let per_second = 1_000 / u64::try_from(BURST_EVERY.as_millis())?;
        let load = VhostLoad {
            read: 70,
            write: 30,
            requests: rate.div_ceil(per_second),
            depth: 4,
            seed,
            logged: false,
            timeout: TIMEOUT,
            ..VhostLoad::default()
        };
        requests += client.run(&load, None)?.requests;
        completed.store(requests, Ordering::Relaxed);
        std::thread::sleep(BURST_EVERY);
    }
    Ok((DiskUser::Client(client), requests))
}
