//! `vhost_load SOCKET [KEY=VALUE..]`: a load on a disk behind a vhost-user socket, as one line of
//! JSON.
//!
//! ```text
//! vhost_load /tmp/disk.sock depth=16 seconds=3 read=70 write=30 checked=1
//! {"requests":512345,"failed":0,"iops":170781,"p50_ns":88064,"p99_ns":241664}
//! ```
//!
//! Keys: `queues`, `depth`, `bytes`, `seconds`, `requests` (of each queue), `read`, `write`,
//! `flush`, `discard`, `write_zeroes`, `sequential`, `seed`, `span_mib`, `spin_us`, `checked`
//! (contents), `reconnect_s`.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use weir_testing::vhost::{ClientShape, Contents, VhostClient, VhostLoad};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let Some(socket) = args.next() else {
        bail!("usage: vhost_load SOCKET [KEY=VALUE..]");
    };
    let mut shape = ClientShape::default();
    let mut load = VhostLoad {
        requests: u64::MAX,
        logged: false,
        ..VhostLoad::default()
    };
    let mut is_checked = false;
    for pair in args {
        let (key, value) = pair
            .split_once('=')
            .with_context(|| format!("`{pair}` is not KEY=VALUE"))?;
        let number: u64 = value.parse().with_context(|| pair.clone())?;
        let weight = u32::try_from(number).with_context(|| pair.clone());
        match key {
            "queues" => shape.queues = number as usize,
            "depth" => shape.depth = number as usize,
            "bytes" => (load.bytes_min, load.bytes_max) = (number as usize, number as usize),
            "seconds" => load.time = Some(Duration::from_secs(number)),
            "requests" => load.requests = number,
            "read" => load.read = weight?,
            "write" => load.write = weight?,
            "flush" => load.flush = weight?,
            "discard" => load.discard = weight?,
            "write_zeroes" => load.write_zeroes = weight?,
            "sequential" => load.sequential = number != 0,
            "seed" => load.seed = number,
            "span_mib" => load.span_sectors = number << 11,
            "spin_us" => load.spin = Duration::from_micros(number),
            "checked" => is_checked = number != 0,
            "reconnect_s" => load.reconnect = Some(Duration::from_secs(number)),
            _ => bail!("unknown key `{key}`"),
        }
    }
    if load.requests == u64::MAX && load.time.is_none() {
        bail!("a load ends: seconds= or requests= is missing");
    }
    shape.bytes_max = load.bytes_max;
    let mut client = VhostClient::connect(socket.as_ref(), shape)?;
    let block = client.disk().block_bytes as usize;
    let mut contents = is_checked.then(|| Contents::unknown(client.disk().sectors, block));
    let report = client.run(&load, contents.as_mut())?;
    println!(
        "{{\"requests\":{},\"failed\":{},\"unsupported\":{},\"iops\":{:.0},\"p50_ns\":{},\"p99_ns\":{},\"reconnects\":{}}}",
        report.requests,
        report.failed,
        report.unsupported,
        report.iops(),
        report.latency_ns(0.5),
        report.latency_ns(0.99),
        report.reconnects
    );
    Ok(())
}
