//! The input of `cargo xtask bench recordings`: random requests of two disks as a recording, as a
//! CSV trace and as a binary one, the same for the same number of requests.
//!
//! `cargo run --release -p weir-tap --example random_recording -- FOLDER REQUESTS` writes
//! `random.parquet`, `random.csv` (MSR Cambridge) and `random.vscsi` (version 2) there. It prints
//! the nanoseconds of processor time per request for writing the recording, and its bytes per
//! request.

#[path = "../tests/traces/random_requests.rs"]
mod random_requests;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use weir_model::event::IoBatch;
use weir_model::{Event, EventKind, IoEvent, Op, Symbol};
use weir_tap::format::recording::RecordingWriter;
use weir_tap::format::{Header, TraceWriter};
use weir_testing::cpu_time;

use random_requests::{Irregularity, Load, START_NS};

/// Rows of a batch, as live taps deliver them.
const BATCH_ROWS: usize = 4096;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: random_recording FOLDER REQUESTS";
    let folder = arguments.next().context(usage)?;
    let requests: u64 = arguments.next().context(usage)?.parse().context(usage)?;
    let mut traces = Traces::create(Path::new(&folder))?;
    let mut load = Load::new(17, Irregularity::default());
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
