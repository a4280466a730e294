//! The input of `cargo xtask bench recordings`: random requests of two disks as a recording, as a
//! CSV trace and as a binary one, the same for the same number of requests.
//!
//! `cargo run --release -p weir-tap --example random_recording -- FOLDER REQUESTS` writes
//! `random.parquet`, `random.csv` (MSR Cambridge) and `random.vscsi` (version 2) there. It prints
//! the nanoseconds of processor time per request for writing the recording, and its bytes per
//! request.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use fastrand::Rng;
use weir_model::event::IoBatch;
use weir_model::{Event, EventKind, IoEvent, Nanos, Op, Symbol};
use weir_tap::format::recording::RecordingWriter;
use weir_tap::format::{Header, TraceWriter};
use weir_testing::cpu_time;

/// In November 2026.
const START_NS: Nanos = 1_795_000_000_000_000_000;

/// Mean time between two requests: 300,000 per second.
const GAP_NS: f64 = 3_333.0;

/// Sectors of a disk: 128 GiB.
const DISK_SECTORS: i64 = 1 << 28;

/// Requests of a disk in flight at most.
const IN_FLIGHT_MAX: i64 = 32;

/// Rows of a batch, as live taps deliver them.
const BATCH_ROWS: usize = 4096;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: random_recording FOLDER REQUESTS";
    let folder = arguments.next().context(usage)?;
    let requests: u64 = arguments.next().context(usage)?.parse().context(usage)?;
    let mut traces = Traces::create(Path::new(&folder))?;
    let mut load = Load::new();
    let mut events = Vec::new();
    for _ in 0..requests {
        load.request(&mut events);
        if events.len() >= BATCH_ROWS {
            traces.write(&events)?;
            events.clear();
        }
    }
    load.finish(&mut events);
    traces.write(&events)?;
    let (time, bytes) = traces.finish()?;
    let per_request = |total: f64| total / requests as f64;
    println!("written_ns {:.0}", per_request(time.as_nanos() as f64));
    println!("recording_bytes {:.2}", per_request(bytes as f64));
    Ok(())
}

/// A response that is due.
struct Pending(IoEvent);

/// Random requests of two disks, whose times in the device vary.
struct Load {
    rng: Rng,
    now: Nanos,
    number: i64,
    pending: BinaryHeap<Reverse<(Nanos, i64)>>,
    responses: std::collections::HashMap<i64, Pending>,
    in_flight: [i64; 2],
    last_sector: [Option<i64>; 2],
    devices: [Symbol; 2],
    processes: [(i64, Symbol, Symbol); 4],
}

impl Load {
    fn new() -> Load {
        let process = |n: i64, name: &str| {
            let group = Symbol::new(&format!("/machine.slice/{name}.scope"));
            (2000 + n, Symbol::new(name), group)
        };
        Load {
            rng: Rng::with_seed(17),
            now: START_NS,
            number: 0,
            pending: BinaryHeap::new(),
            responses: std::collections::HashMap::new(),
            in_flight: [0; 2],
            last_sector: [None; 2],
            devices: ["/dev/sda", "/dev/sdb"].map(Symbol::new),
            processes: [
                process(1, "postgres"),
                process(2, "mysqld"),
                process(3, "fio"),
                process(4, "qemu"),
            ],
        }
    }

    /// A time with an exponential distribution.
    fn time(&mut self, mean_ns: f64) -> Nanos {
        (-mean_ns * (1.0 - self.rng.f64()).ln()) as Nanos
    }

    /// Appends the next request, and the responses until then.
    fn request(&mut self, events: &mut Vec<IoEvent>) {
        self.now += self.time(GAP_NS).max(1);
        self.respond_until(self.now, events);
        let disk = self.rng.usize(0..2);
        while self.in_flight[disk] >= IN_FLIGHT_MAX {
            let Reverse((due, _)) = *self.pending.peek().expect("requests are in flight");
            self.now = self.now.max(due);
            self.respond_until(self.now, events);
        }
        let event = self.issued(disk);
        self.in_flight[disk] += 1;
        let first = event.sector.expect("it has an extent");
        let last = self.last_sector[disk].replace(first + event.sectors - 1);
        let wait_ns = 200 + self.time(400.0);
        let service_ns = 20_000 + self.time(60_000.0);
        let mut response = event;
        response.ts = self.now + service_ns;
        response.kind = EventKind::Response;
        let response = IoEvent {
            wait_ns: Some(wait_ns),
            service_ns: Some(service_ns),
            latency_ns: Some(wait_ns + service_ns),
            in_flight: Some(self.in_flight[disk]),
            seek_sectors: last.map(|last| first - last),
            issue_ts: Some(self.now),
            ..IoEvent::new(response)
        };
        self.pending.push(Reverse((response.event.ts, self.number)));
        self.responses.insert(self.number, Pending(response));
        events.push(IoEvent::new(event));
    }

    fn issued(&mut self, disk: usize) -> Event {
        self.number += 1;
        let op = [Op::Read, Op::Read, Op::Read, Op::Write][self.rng.usize(0..4)];
        let sectors = [8, 8, 8, 8, 8, 8, 8, 16, 32, 128][self.rng.usize(0..10)];
        let sector = self.rng.i64(0..DISK_SECTORS / 8) * 8;
        let number = self.number;
        let mut event = Event::new(
            self.now,
            EventKind::Request,
            op,
            number,
            Some(sector),
            sectors,
        );
        let (pid, comm, cgroup) = self.processes[self.rng.usize(0..4)];
        event.pdisk = Some(self.devices[disk]);
        event.pid = Some(pid);
        event.comm = Some(comm);
        event.cgroup = Some(cgroup);
        event.cpu = Some(self.rng.i64(0..2));
        event.merges = Some(0);
        event.agent_ts = Some(self.now / 20_000_000 * 20_000_000 + 20_000_000);
        event
    }

    fn respond_until(&mut self, ts: Nanos, events: &mut Vec<IoEvent>) {
        while let Some(&Reverse((due, number))) = self.pending.peek()
            && due <= ts
        {
            self.pending.pop();
            let Pending(mut response) = self.responses.remove(&number).expect("it is pending");
            let disk = usize::from(response.event.pdisk == Some(self.devices[1]));
            self.in_flight[disk] -= 1;
            response.event.agent_ts = Some(due / 20_000_000 * 20_000_000 + 20_000_000);
            events.push(response);
        }
    }

    fn finish(&mut self, events: &mut Vec<IoEvent>) {
        self.respond_until(Nanos::MAX, events);
    }
}

/// The three files.
struct Traces {
    recording: RecordingWriter,
    path: std::path::PathBuf,
    time: Duration,
    csv: BufWriter<File>,
    vscsi: BufWriter<File>,
}

impl Traces {
    fn create(folder: &Path) -> Result<Traces> {
        let header = Header {
            source: "random requests".into(),
            paired: true,
            ..Header::default()
        };
        let path = folder.join("random.parquet");
        let file =
            |name: &str| Ok::<_, std::io::Error>(BufWriter::new(File::create(folder.join(name))?));
        Ok(Traces {
            recording: RecordingWriter::create(&path, &header)?,
            path,
            time: Duration::ZERO,
            csv: file("random.csv")?,
            vscsi: file("random.vscsi")?,
        })
    }

    fn write(&mut self, events: &[IoEvent]) -> Result<()> {
        let batch = IoBatch::new(None).build(events);
        let begin = cpu_time();
        self.recording.write(&batch)?;
        self.time += cpu_time() - begin;
        let requests = events.iter().filter(|e| e.event.kind == EventKind::Request);
        for request in requests {
            let event = &request.event;
            let sector = event.sector.expect("it has an extent");
            self.csv.write_all(msr(event, sector).as_bytes())?;
            self.vscsi.write_all(&vscsi(event, sector))?;
        }
        Ok(())
    }

    /// The processor time of writing the recording, and its size.
    fn finish(mut self) -> Result<(Duration, u64)> {
        self.csv.flush()?;
        self.vscsi.flush()?;
        let begin = cpu_time();
        Box::new(self.recording).finish()?;
        self.time += cpu_time() - begin;
        Ok((self.time, std::fs::metadata(&self.path)?.len()))
    }
}

/// A line of the MSR Cambridge traces.
fn msr(event: &Event, sector: i64) -> String {
    let ticks = event.ts / 100 + 116_444_736_000_000_000;
    let kind = if event.op == Op::Read {
        "Read"
    } else {
        "Write"
    };
    let disk = i64::from(event.pdisk == Some(Symbol::new("/dev/sdb")));
    let (offset, bytes) = (sector * 512, event.sectors * 512);
    let response = 800 + event.req_id % 700;
    format!("{ticks},usr,{disk},{kind},{offset},{bytes},{response}\n")
}

/// A record of vscsiStats' binary trace, version 2.
fn vscsi(event: &Event, sector: i64) -> Vec<u8> {
    let opcode: u16 = if event.op == Op::Read { 0x28 } else { 0x2a };
    [
        &opcode.to_le_bytes()[..],
        &(2u16 << 8).to_le_bytes(),
        &(event.req_id as u32).to_le_bytes(),
        &((event.sectors * 512) as u32).to_le_bytes(),
        &1u32.to_le_bytes(),
        &sector.to_le_bytes(),
        &((event.ts - START_NS) / 1000).to_le_bytes(),
        &(80 + event.req_id % 70).to_le_bytes(),
    ]
    .concat()
}
