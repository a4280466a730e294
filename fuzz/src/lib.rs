//! The fuzz targets. `cargo test` runs them with every file under `corpus/`, on a stable toolchain.
//!
//! A target panics when an invariant is violated, and returns otherwise: untrusted input gives a
//! result, a diagnostic or a counted skip.

use std::fmt::Debug;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use weir_model::event::io_schema;
use weir_model::{Batch, Catalog, Column, Declaration, Demand, Op, Predicate, Shape, Type, Value};
use weir_query::plan::wire;
use weir_query::script::compile_script;
use weir_query::{
    CheckOptions, Diagnostic, Engine, EngineOptions, EngineOutput, compile, place, render, syntax,
};
use weir_sketch::{Bytes, ExactSum, LogLinear, Moments, SketchDecodeError};
use weir_tap::control::message::{self, Body};
use weir_tap::control::{Service, frame};
use weir_tap::format::{self, FORMATS, TraceInput, TraceOptions};
use weir_tap::tapdisk::words::Tapdisk;
use weir_tap::vdisk::guard::Guarding;
use weir_tap::{RECORDING, TapEvent};
use weir_tapdisk::engine::EngineOption;
use weir_tapdisk::nbd::{self, Export};
use weir_tapdisk::{DiskOptions, ServedDisk, StopEvent};
use weir_wire::frame::texts::TextBudget;
use weir_wire::message::{FlightData, FromAgent, FromMonitor};
use weir_wire::outbox::spool;
use weir_wire::{AgentMessage, Incoming, Intake, Welcome};
use weir_workload::{Characteriser, Class, IssuedRequest, Metric, RequestEvent, Response, Subject};

mod fleet;
mod virtqueue;
pub use fleet::{agent, monitor};
pub use virtqueue::virtqueue;

/// The longest request of the services that are read.
const CONTROL_BYTES_MAX: usize = 64 << 10;

/// A target: its name, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// Every target: its name, which is also its folder under `corpus/`, and its function.
pub static TARGETS: &[Target] = &[
    ("cql", cql),
    ("script", script),
    ("trace", trace),
    ("summary", summary),
    ("workload", workload),
    ("wire", wire),
    ("plan", plan),
    ("agent", agent),
    ("monitor", monitor),
    ("virtqueue", virtqueue),
    ("nbd", nbd),
    ("control", control),
];

/// A query, for live sources and as a script: it is parsed, printed, parsed again, and checked.
/// Diagnostics lie within the text.
pub fn cql(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let parsed = syntax::parse(&text);
    if parsed.diagnostics.is_empty() {
        let statements = parsed.tree.iter().map(|s| s.to_string());
        let printed = statements.collect::<Vec<_>>().join(";\n");
        let again = syntax::parse(&printed);
        assert!(
            again.diagnostics.is_empty(),
            "{printed}: {:?}",
            again.diagnostics
        );
        assert_eq!(
            parsed.tree, again.tree,
            "print then parse is identity: {printed}"
        );
    }
    for options in [CheckOptions::live(), CheckOptions::script()] {
        match compile(&text, &Catalog::thesis(), &options) {
            Ok(checked) => {
                assert!(!checked.plan.sources().is_empty(), "a plan reads something");
                look_at(&checked.warnings, &text);
            }
            Err(diagnostics) => {
                assert!(
                    diagnostics.iter().any(Diagnostic::is_error),
                    "a refusal has a reason"
                );
                look_at(&diagnostics, &text);
            }
        }
    }
}

/// A script in STREAM's format.
pub fn script(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match compile_script(&text) {
        Ok(script) => {
            assert!(!script.queries.is_empty(), "a script has a query");
            look_at(&script.warnings, &text);
        }
        Err(diagnostics) => {
            assert!(
                diagnostics.iter().any(Diagnostic::is_error),
                "a refusal has a reason"
            );
            look_at(&diagnostics, &text);
        }
    }
}

/// A trace: the name of a format or nothing, a line end, and then the file. It is read to its end,
/// as every stream at once.
pub fn trace(data: &[u8]) {
    let end = data.iter().position(|b| *b == b'\n').unwrap_or(data.len());
    let (name, file) = (&data[..end], data.get(end + 1..).unwrap_or(&[]));
    let format = FORMATS.iter().find(|f| f.name.as_bytes() == name);
    let source = TraceInput::bytes(file);
    let demands = ["IO", "IOstream", RECORDING].map(|stream| {
        let catalog = Catalog::builtin();
        let columns = catalog
            .find(stream)
            .map_or(io_schema().len(), |d| d.schema.len());
        Demand {
            stream: stream.into(),
            columns: (0..columns).collect(),
            predicate: Predicate::all(),
            fold: None,
        }
    });
    for strict in [false, true] {
        let options = TraceOptions {
            strict,
            format: format.map(|f| f.name.into()),
            ..TraceOptions::default()
        };
        let Ok(mut tap) = format::open_source(&source, &demands, &options) else {
            continue;
        };
        let mut reached = i64::MIN;
        loop {
            match tap.next(Duration::ZERO) {
                Ok(TapEvent::Rows { demand, batch }) => {
                    assert!(demand < demands.len(), "rows answer a demand");
                    assert!(batch.ts.is_sorted(), "rows are in time order");
                    assert!(batch.ts.iter().all(|ts| *ts > reached), "a heartbeat holds");
                }
                Ok(TapEvent::Heartbeat(ts)) => reached = reached.max(ts),
                Ok(TapEvent::Quiet) => {}
                Ok(TapEvent::Folded { .. }) => panic!("a file delivers rows"),
                Ok(TapEvent::End) | Err(_) => break,
            }
        }
        tap.counts();
    }
}

/// A summary from another host: its kind, and its bytes. The decoded summary is merged with itself
/// and encoded, and the encoding round-trips byte for byte.
pub fn summary(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else {
        return;
    };
    match kind % 4 {
        0 => kept(
            bytes,
            LogLinear::<i64>::decode,
            LogLinear::encode,
            LogLinear::merge,
        ),
        1 => kept(
            bytes,
            LogLinear::<f64>::decode,
            LogLinear::encode,
            LogLinear::merge,
        ),
        2 => kept(bytes, Moments::decode, Moments::encode, Moments::merge),
        _ => kept(bytes, ExactSum::decode, ExactSum::encode, ExactSum::merge),
    }
}

fn kept<T: Clone>(
    bytes: &[u8],
    decode: fn(&mut Bytes<'_>) -> Result<T, SketchDecodeError>,
    encode: fn(&T, &mut Vec<u8>),
    merge: fn(&mut T, &T),
) {
    let Ok(summary) = decode(&mut Bytes::new(bytes)) else {
        return;
    };
    let encoded = |summary: &T| {
        let mut out = Vec::new();
        encode(summary, &mut out);
        out
    };
    let written = encoded(&summary);
    let mut rest = Bytes::new(&written);
    let again = decode(&mut rest).expect("what was written is read");
    rest.end().expect("to its end");
    assert_eq!(encoded(&again), written, "and says the same");
    let mut twice = summary.clone();
    merge(&mut twice, &summary);
    encoded(&twice);
}

/// The bytes of an event of [`workload`].
const EVENT_BYTES: usize = 16;

/// Disk events: 16 bytes each, in timestamp order. The report counts every request, and the bins of
/// each histogram add up to its count.
pub fn workload(data: &[u8]) {
    let mut characteriser = Characteriser::default();
    let (mut ts, mut issued) = (0i64, 0);
    for bytes in data.chunks_exact(EVENT_BYTES) {
        let number = |at: usize| i64::from(i32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i])));
        // Small numbers, or with some bits set the largest ones.
        let far = |bit: u8| if bytes[1] & bit != 0 { 33 } else { 0 };
        ts = ts.saturating_add(number(4).abs() << far(1));
        let op = Op::ALL[usize::from(bytes[2]) % Op::ALL.len()];
        let (id, subject) = (
            i64::from(bytes[3] & 15),
            Subject {
                pid: Some(i64::from(bytes[3] >> 6)),
                ..Subject::default()
            },
        );
        let event = if bytes[0] & 1 == 0 {
            issued += 1;
            RequestEvent::Issued(IssuedRequest {
                ts,
                id,
                op,
                sector: (bytes[0] & 6 != 6).then(|| number(8) << far(2)),
                sectors: number(12) << far(4),
            })
        } else {
            let time = |at: usize, bit: u8| (bytes[0] & bit != 0).then(|| number(at) << far(8));
            RequestEvent::Finished(Response {
                ts,
                id,
                op,
                wait_ns: time(8, 2),
                service_ns: time(12, 4),
                latency_ns: time(10, 8),
                failed: bytes[0] & 16 != 0,
            })
        };
        characteriser.take(&subject, &event);
    }
    let report = characteriser.report();
    assert_eq!(report.requests, issued, "every request is counted");
    for profile in &report.profiles {
        for (metric, class) in Metric::ALL
            .into_iter()
            .flat_map(|m| Class::ALL.map(|c| (m, c)))
        {
            let distribution = profile.histograms.of(metric, class);
            let bins = distribution.bins.iter().sum::<u64>();
            let log = distribution.log.bins().map(|(_, count)| count).sum::<u64>();
            assert_eq!((bins, log), (distribution.count, distribution.count));
        }
    }
}

/// Messages of agents and monitors, each the lengths of its three parts (2 bytes, little-endian)
/// and the parts: a monitor reads them as one session, an agent each separately. Decoded rows are
/// valid.
pub fn wire(data: &[u8]) {
    let welcome = Welcome {
        monitor: 1,
        acked: 0,
        channels: Vec::new(),
        heartbeat_interval_ns: 1_000_000,
        ..Welcome::default()
    };
    let budget = Arc::new(TextBudget::new(100, 10_000));
    let mut intake = Intake::new(&welcome, budget);
    let mut rest = data;
    while let Some(message) = message(&mut rest) {
        let read = (FromAgent::read_hello(&message), FromMonitor::read(&message));
        match intake.receive(&message, 1) {
            Ok(Incoming::Message(_, AgentMessage::Rows { batch, .. })) => {
                assert!(batch.ts.is_sorted());
                assert!(batch.columns.iter().all(|c| c.len() == batch.len()));
            }
            Ok(_) => {}
            Err(malformed) => {
                assert!(!malformed.to_string().is_empty(), "{read:?}");
                break;
            }
        }
    }
    // A segment of a spool, if its checksum is correct.
    let _ = spool::split(data.to_vec().into());
}

/// The next message, if there are bytes left.
fn message(rest: &mut &[u8]) -> Option<FlightData> {
    let (lengths, parts) = rest.split_first_chunk::<6>()?;
    *rest = parts;
    let mut part = |i: usize| {
        let length = u16::from_le_bytes([lengths[i], lengths[i + 1]]);
        let (part, after) = rest.split_at(rest.len().min(length.into()));
        *rest = after;
        part.to_vec().into()
    };
    Some(FlightData {
        app_metadata: part(0),
        data_header: part(2),
        data_body: part(4),
        ..FlightData::default()
    })
}

/// A plan as sent by a monitor to an agent. A decoded plan round-trips, is placed and explained,
/// and runs over a few rows; only this step may fail.
pub fn plan(data: &[u8]) {
    let catalog = Catalog::builtin();
    let Ok(plan) = wire::decode(data, &catalog) else {
        return;
    };
    let again = wire::decode(&wire::encode(&plan), &catalog);
    assert_eq!(again.as_ref(), Ok(&plan), "what was written is read");
    let live = weir_tap::live::capabilities();
    place::place(&[&plan], &live);
    assert!(!place::explain(&plan, &live).to_string().is_empty());
    let mut engine = Engine::new(EngineOptions {
        query_bytes_max: PLAN_BYTES_MAX,
        span_rows_max: 64,
    });
    engine.add(&plan);
    for source in plan.sources() {
        engine.push(&source.name, few_rows(source, 0));
    }
    let mut emit = |output: EngineOutput| drop(output);
    engine.step(&mut emit);
    engine.finish(&mut emit);
}

/// Six rows of a source, later than `after`.
fn few_rows(source: &Declaration, after: i64) -> Batch {
    let value = |ty: Type, row: i64| match ty {
        _ if row == 3 => Value::Null,
        Type::Bool => Value::Bool(row % 2 == 0),
        Type::Int | Type::Time => Value::Int(row * 1_000_000_007),
        Type::Float => Value::Float(row as f64 / 3.0),
        Type::Text => Value::text(["Q", "R", "r"][row as usize % 3]),
        Type::Tally => Value::Null,
        Type::Partial => Value::Bytes([1, row as u8].as_slice().into()),
    };
    let fields = source.schema.fields.iter();
    let columns = fields.map(|f| Column::from_values(f.ty, (0..6).map(|row| value(f.ty, row))));
    let ts = [1, 1, 5, 700, 701, 2_000].map(|ts| after + ts).to_vec();
    match source.shape {
        Shape::Stream => Batch::stream(ts, columns.collect()),
        Shape::Relation => Batch::deltas(ts, vec![1; 6], columns.collect()),
    }
}

/// The memory limit of a running plan.
const PLAN_BYTES_MAX: usize = 1 << 22;

/// The size of the disk of [`nbd()`].
const DISK_BYTES: u64 = 1 << 20;

/// The bytes of an NBD client. The first byte selects what precedes the rest: nothing, or a
/// successful handshake, with structured replies or without. The server sends its greeting, ends
/// when the client does, and leaves no request open.
pub fn nbd(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else {
        return;
    };
    const FLAGS: &[u8] = &[0, 0, 0, 3];
    const STRUCTURED: &[u8] = b"IHAVEOPT\0\0\0\x08\0\0\0\0";
    const GO: &[u8] = b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0";
    let request = match kind % 3 {
        0 => rest.to_vec(),
        1 => [FLAGS, GO, rest].concat(),
        _ => [FLAGS, STRUCTURED, GO, rest].concat(),
    };
    let disk = nbd_disk();
    let exports = [Export::new("disk", disk.clone())];
    let (ours, theirs) = UnixStream::pair().expect("a socket");
    let stop = StopEvent::new().expect("an event");
    let answered = thread::scope(|scope| {
        let mut reader = theirs.try_clone().expect("a socket");
        let reading = scope.spawn(move || {
            let mut answers = Vec::new();
            // A rejected client may find the connection reset.
            let _ = reader.read_to_end(&mut answers);
            answers
        });
        scope.spawn(|| {
            // Clients are rejected only for invalid input.
            let _ = nbd::serve_client(ours.into(), &exports, &stop);
        });
        // It may be rejected before it has sent everything.
        let _ = (&theirs).write_all(&request);
        let _ = theirs.shutdown(Shutdown::Write);
        reading.join().expect("it only reads")
    });
    assert!(answered.starts_with(b"NBDMAGICIHAVEOPT\0\x03"), "it greets");
    assert_eq!(disk.counters().in_flight, 0, "nothing is left behind");
    assert_eq!(disk.size_bytes(), DISK_BYTES);
}

/// The bytes of a peer of the local control protocol, which arrive in pieces: frames are bounded,
/// and what is a request of a service is the same after it was sent again.
pub fn control(data: &[u8]) {
    let mut input = Vec::new();
    for piece in data.chunks(7) {
        input.extend_from_slice(piece);
        loop {
            match frame::take(&mut input, CONTROL_BYTES_MAX) {
                Ok(Some(frame)) => {
                    control_message::<Guarding>(&frame);
                    control_message::<Tapdisk>(&frame);
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
        assert!(input.len() <= CONTROL_BYTES_MAX + frame::LENGTH_BYTES + 7);
    }
}

fn control_message<S: Service<Request: Clone + Debug + PartialEq>>(frame: &[u8]) {
    // Any response is one, or an error.
    let _ = message::decode::<S, S::Response>(frame);
    if let Ok(Body::Request(request)) = message::decode::<S, S::Request>(frame) {
        let again = message::encode_request::<S>(&request).expect("it was as short before");
        let again = message::decode::<S, S::Request>(&again[frame::LENGTH_BYTES..]);
        assert_eq!(again, Ok(Body::Request(request)));
    }
}

/// A disk for all inputs; its content is irrelevant.
fn nbd_disk() -> Arc<ServedDisk> {
    static DISK: OnceLock<Arc<ServedDisk>> = OnceLock::new();
    let open = || {
        let path = std::env::temp_dir().join(format!("weir-fuzz-nbd-{}", std::process::id()));
        std::fs::write(&path, vec![0; DISK_BYTES as usize]).expect("room for a disk");
        let disk = ServedDisk::open(DiskOptions {
            engine: EngineOption::Sync,
            ..DiskOptions::new(&path)
        });
        // It stays open.
        let _ = std::fs::remove_file(&path);
        disk.expect("a plain file is a disk")
    };
    DISK.get_or_init(open).clone()
}

fn look_at(diagnostics: &[Diagnostic], text: &str) {
    for diagnostic in diagnostics {
        let span = diagnostic.span;
        assert!(
            span.start <= span.end && span.end <= text.len(),
            "{diagnostic:?} lies in the text"
        );
        assert!(!render(diagnostic, text, Some("a file")).is_empty());
    }
}
