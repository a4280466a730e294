//! Reading a pipe yields the same result as a file with the same bytes, in every format.

mod traces;

use std::path::Path;
use std::thread;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use traces::{Scratch, collect, demands, read};
use weir_model::{Event, EventKind, IoBatch, IoEvent, Op, Symbol};
use weir_tap::format::{
    self, FORMATS, Header, Input, Trace, TraceInput, TraceOptions, for_writing,
};
use weir_testing::trace::trace;

/// Capacity of a pipe (pipe(7)): a writer of more waits for its reader.
const PIPE_BYTES: usize = 64 << 10;

/// Requests of a trace: in every format larger than the capacity of a pipe.
const REQUESTS: u64 = 4_500;

/// A trace in a format, with an extension of this format.
fn specimen(format: &str, scratch: &Scratch) -> (String, Vec<u8>) {
    let name = match format {
        "recording" => "disk.parquet",
        "blktrace" => "disk.blktrace.0",
        "iolog" => "disk.iolog",
        _ => "disk.trace",
    };
    let bytes = trace(format, REQUESTS).unwrap_or_else(|| {
        let path = scratch.path().join(name);
        write(&path, 1);
        std::fs::read(&path).unwrap()
    });
    (name.into(), bytes)
}

/// Requests with sectors and latencies that do not compress; different for each seed.
fn write(path: &Path, seed: u64) {
    let format = for_writing(path, None).unwrap();
    let mut writer = format.writer(path, &Header::default()).unwrap();
    let mut random = seed;
    let mut next = move || {
        // Knuth's linear congruential generator (MMIX).
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as i64
    };
    for i in 1..=REQUESTS as i64 {
        let issued = 1_700_000_000_000_000_000 + i * 1_000_000;
        let (kind, sector) = (EventKind::Request, next());
        let mut event = Event::new(issued, kind, Op::Write, i, Some(sector), 8);
        event.pdisk = Some(Symbol::new("8,0"));
        let request = IoEvent::new(event);
        let latency = 1_000 + next() % 900_000;
        let response = IoEvent {
            event: Event {
                ts: issued + latency,
                kind: EventKind::Response,
                ..event
            },
            wait_ns: Some(0),
            service_ns: Some(latency),
            latency_ns: Some(latency),
            issue_ts: Some(issued),
            ..request
        };
        let rows = IoBatch::new(None).build(&[request, response]);
        writer.write(&rows).unwrap();
    }
    writer.finish().unwrap();
}

/// A FIFO at `path`, into which a thread writes `bytes` once.
fn fifo(path: &Path, bytes: Vec<u8>) -> thread::JoinHandle<()> {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let path = path.to_path_buf();
    thread::spawn(move || std::fs::write(path, bytes).unwrap())
}

#[test]
fn a_fifo_gives_every_row_that_the_file_gives() {
    for format in FORMATS {
        let scratch = Scratch::new();
        let (name, bytes) = specimen(format.name, &scratch);
        assert!(bytes.len() > PIPE_BYTES, "{}", format.name);
        let folders = ["file", "sniffed", "named"].map(|folder| scratch.path().join(folder));
        folders.iter().for_each(|f| std::fs::create_dir(f).unwrap());
        let [file, sniffed, named] = folders.map(|folder| folder.join(&name));
        std::fs::write(&file, &bytes).unwrap();
        let of_file = read(&file);
        assert!(of_file.io.len() >= REQUESTS as usize, "{}", format.name);
        for (path, options) in [
            (&sniffed, TraceOptions::default()),
            (
                &named,
                TraceOptions {
                    format: Some(format.name.into()),
                    ..TraceOptions::default()
                },
            ),
        ] {
            let writer = fifo(path, bytes.clone());
            // Capabilities are determined first, from the same input that is then read.
            let input = Input::open(&TraceInput::file(path)).unwrap();
            let trace = Trace::open(input, &options).unwrap();
            let responses_assumed = trace.responses_assumed();
            let mut tap = trace.start(&demands()).unwrap();
            assert_eq!(tap.responses_assumed(), responses_assumed);
            let mut of_fifo = collect(tap.as_mut()).unwrap();
            writer.join().unwrap();
            if format.name == "recording" {
                let copied = of_fifo.messages.remove(0);
                assert!(copied.contains("copied to a temporary file"), "{copied}");
            }
            assert!(of_fifo == of_file, "{}", format.name);
        }
    }
}

#[test]
fn a_recording_of_more_bytes_than_may_be_copied_is_refused() {
    let scratch = Scratch::new();
    let (_, bytes) = specimen("recording", &scratch);
    let pipe = scratch.path().join("pipe");
    let options = TraceOptions {
        spool_bytes_max: bytes.len() as u64 - 1,
        ..TraceOptions::default()
    };
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let path = pipe.clone();
    // Its reader is dropped before the end.
    let writer = thread::spawn(move || drop(std::fs::write(path, bytes)));
    let input = Input::open(&TraceInput::file(&pipe)).unwrap();
    let refused = Trace::open(input, &options).err().unwrap().to_string();
    writer.join().unwrap();
    assert!(refused.contains("--spool-limit"), "{refused}");
}

#[test]
fn the_files_of_all_processors_are_read_once_whichever_is_opened() {
    let scratch = Scratch::new();
    let paths = ["x.blktrace.0", "x.blktrace.1"].map(|name| scratch.path().join(name));
    (1..).zip(&paths).for_each(|(seed, path)| write(path, seed));
    let rows = |path: &Path| read(path).io.len();
    assert_eq!(rows(&paths[0]), 2 * REQUESTS as usize);
    assert_eq!(rows(&paths[1]), 2 * REQUESTS as usize);
    assert_eq!(format::first_file(&paths[1]), paths[0]);
    assert_eq!(format::first_file(&scratch.path().join("x")), paths[0]);
}
