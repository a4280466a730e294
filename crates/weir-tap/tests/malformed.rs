//! For arbitrary bytes a reader ends with an error or counts what it skipped; it neither panics nor
//! allocates memory by lengths in the bytes.

mod traces;

use std::collections::HashMap;
use std::sync::OnceLock;

use proptest::prelude::*;
use traces::{CollectedEvents, Scratch, collect, demands, read_bytes};
use weir_model::{Event, EventKind, IoBatch, IoEvent, Op, Symbol};
use weir_tap::TapError;
use weir_tap::format::{self, FORMATS, Header, Input, TraceInput, TraceOptions, for_writing};
use weir_testing::trace::{trace, vscsi};

/// A small file in each format, created by the test. For writable formats it is created by weir's
/// writers.
fn specimen(format: &str) -> Vec<u8> {
    static MADE: OnceLock<HashMap<&str, Vec<u8>>> = OnceLock::new();
    let made = MADE.get_or_init(|| FORMATS.iter().map(|f| (f.name, make(f.name))).collect());
    made[format].clone()
}

fn make(format: &str) -> Vec<u8> {
    match format {
        "recording" => written("x.parquet"),
        "blktrace" => written("x.blktrace.0"),
        "iolog" => written("x.iolog"),
        other => trace(other, 20).unwrap_or_else(|| panic!("a specimen of {other}")),
    }
}

fn written(name: &str) -> Vec<u8> {
    let scratch = Scratch::new();
    let path = scratch.path().join(name);
    let mut writer = for_writing(&path, None)
        .unwrap()
        .writer(&path, &Header::default())
        .unwrap();
    let mut rows = Vec::new();
    for i in 1..=20 {
        let mut event = Event::new(
            i * 10_000,
            EventKind::Request,
            Op::Write,
            i,
            Some(i * 64),
            8,
        );
        event.pdisk = Some(Symbol::new("8,0"));
        event.comm = Some(Symbol::new("fio"));
        let row = IoEvent::new(event);
        let done = Event {
            ts: event.ts + 500,
            kind: EventKind::Response,
            ..event
        };
        rows.push(row);
        rows.push(IoEvent {
            event: done,
            wait_ns: Some(100),
            service_ns: Some(500),
            latency_ns: Some(600),
            ..row
        });
    }
    writer.write(&IoBatch::new(None).build(&rows)).unwrap();
    writer.finish().unwrap();
    std::fs::read(path).unwrap()
}

/// Reads bytes in a format; both errors and rows are accepted.
fn survive(format: &str, bytes: &[u8]) -> Option<CollectedEvents> {
    match read_bytes(format, bytes) {
        Ok(collected) => Some(collected),
        Err(TapError::Malformed { .. } | TapError::File { .. }) => None,
        Err(other) => panic!("{format}: {other}"),
    }
}

#[test]
fn each_specimen_is_sniffed_as_what_it_is_and_read_without_complaint() {
    for format in FORMATS {
        let bytes = specimen(format.name);
        let sniffed = format::sniff(&bytes).map(|f| f.name);
        assert_eq!(sniffed, Some(format.name));
        for other in FORMATS.iter().filter(|f| f.name != format.name) {
            assert_ne!(
                (other.sniff)(&bytes),
                Some(true),
                "{} is taken for {}",
                format.name,
                other.name
            );
        }
        let collected = survive(format.name, &bytes).unwrap();
        assert_eq!(collected.messages, Vec::<String>::new());
        assert_eq!(collected.io.len(), 20, "{}", format.name);
    }
    let collected = survive("vscsi", &vscsi(2, 20)).unwrap();
    assert_eq!(collected.io.ints("latency"), [250_000; 20]);
}

#[test]
fn every_truncation_is_survived() {
    for format in FORMATS {
        let bytes = specimen(format.name);
        let step = bytes.len().div_ceil(600);
        for length in (0..bytes.len()).step_by(step) {
            if let Some(collected) = survive(format.name, &bytes[..length]) {
                assert!(collected.io.len() <= 20, "{}", format.name);
            }
        }
    }
}

#[test]
fn a_cut_off_record_is_counted() {
    for (format, bytes) in [
        ("vscsi", vscsi(1, 20)),
        ("vscsi", vscsi(2, 20)),
        ("blktrace", specimen("blktrace")),
    ] {
        let collected = survive(format, &bytes[..bytes.len() - 1]).unwrap();
        assert_eq!(collected.total("bad_records"), 1, "{format}");
        assert!(
            collected.messages[0].contains("<bytes>: offset "),
            "{:?}",
            collected.messages
        );
    }
}

#[test]
fn a_bad_record_is_counted_and_the_rest_is_read() {
    for format in FORMATS.iter().filter(|f| f.name != "recording") {
        let mut bytes = specimen(format.name);
        let middle = bytes.len() / 2;
        let end = (middle + 3).min(bytes.len());
        bytes[middle..end].fill(0xff);
        let collected = survive(format.name, &bytes).unwrap();
        assert!(
            collected.io.len() >= 15,
            "{}: {} of 20",
            format.name,
            collected.io.len()
        );
    }
}

#[test]
fn a_strict_reader_stops_where_the_record_is_bad() {
    let mut bytes = specimen("msr");
    let line = bytes.split(|&b| b == b'\n').next().unwrap().len() + 1;
    bytes[line] = b'x';
    let options = TraceOptions {
        strict: true,
        format: Some("msr".into()),
        ..TraceOptions::default()
    };
    let mut tap = format::open_source(&TraceInput::bytes(bytes), &demands(), &options).unwrap();
    let error = collect(tap.as_mut()).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("<bytes>: offset {line}: the time `x")),
        "{error}"
    );
}

#[test]
fn blktrace_continues_after_invalid_bytes() {
    let mut bytes = specimen("blktrace");
    let rubbish = vec![0x5a; 600_000];
    bytes.splice(48 + 8..48 + 8, rubbish);
    let collected = survive("blktrace", &bytes).unwrap();
    assert_eq!(collected.io.len(), 20);
    assert_eq!(collected.total("bad_records"), 1);
}

#[test]
fn a_file_of_no_format_is_refused_with_the_formats_there_are() {
    let open = |bytes: &[u8]| {
        let tap = format::open_source(
            &TraceInput::bytes(bytes),
            &demands(),
            &TraceOptions::default(),
        );
        tap.err().unwrap().to_string()
    };
    assert!(open(b"").contains("the file is empty"));
    assert!(open(b"hello, world\n").contains("supported formats: recording, blktrace, iolog"));
    assert!(open(&[0; 4096]).contains("unknown trace format"));
    assert!(open(b"i,i,f\n1,2,3\n").contains("STREAM source file"));
    // Its rows could be those of a trace.
    assert!(open(b"i,i,i,i,i\n1,8,8,1,1\n2,8,8,1,1\n").contains("STREAM source file"));
    let options = TraceOptions {
        format: Some("bltrace".into()),
        ..TraceOptions::default()
    };
    let error = format::open_source(&TraceInput::bytes("x"), &demands(), &options)
        .err()
        .unwrap();
    assert!(
        error
            .to_string()
            .starts_with("bltrace: no such trace format; supported formats: ")
    );
    let missing = format::open(
        "/nonexistent/trace".as_ref(),
        &demands(),
        &TraceOptions::default(),
    );
    assert!(
        missing
            .err()
            .unwrap()
            .to_string()
            .starts_with("/nonexistent/trace: No such file")
    );
}

#[test]
fn numbers_at_the_edge_are_bad_records_and_nothing_else() {
    let max = u64::MAX;
    for (format, line) in [
        ("msr", format!("{max},usr,0,Read,0,4096,1\n")),
        (
            "msr",
            format!("128166372003061629,usr,0,Read,{max},4096,1\n"),
        ),
        ("msr", format!("128166372003061629,usr,0,Read,0,{max},1\n")),
        (
            "msr",
            format!("128166372003061629,usr,0,Read,0,4096,{max}\n"),
        ),
        ("alibaba", format!("1,W,0,4096,{max}\n")),
        ("tencent", format!("{},0,8,1,1\n", i64::MAX)),
        ("disksim", format!("{max}.0 1 0 8 1\n")),
        (
            "disksim-validation",
            format!("R Hit 0 4 {0}.0 {0}.0\n", i64::MAX / 1000),
        ),
        ("mqsim", format!("1 1 {max} {max} 1\n")),
        ("blkparse", format!("8,0 1 1 {max}.0 1 Q R 0 + 8 [x]\n")),
        ("blkparse", format!("8,0 1 1 0.0 1 Q R {max} + {max} [x]\n")),
    ] {
        let collected = survive(format, line.repeat(3).as_bytes()).unwrap();
        assert_eq!(
            (collected.total("bad_records"), collected.recording.len()),
            (3, 0),
            "{line}"
        );
        assert!(
            !collected.messages[0].contains("fields, expected"),
            "{:?}",
            collected.messages
        );
    }
}

#[test]
fn records_out_of_order_are_put_in_order() {
    let line = |i: i64| format!("{i},8,r,4096\n");
    let mut order: Vec<i64> = (0..40_000).collect();
    for pair in order.chunks_mut(1000) {
        pair.reverse();
    }
    let text: String = order.iter().map(|i| line(*i)).collect();
    let collected = survive("cydonia-csv", text.as_bytes()).unwrap();
    assert_eq!(
        collected.io.ts,
        (0..40_000).map(|i| i * 1000).collect::<Vec<_>>()
    );
    // A record displaced further than the size of the buffer is late.
    let text: String = (1..100_000).chain([0]).map(line).collect();
    let collected = survive("cydonia-csv", text.as_bytes()).unwrap();
    assert_eq!(
        (collected.io.len(), collected.total("events_lost late")),
        (99_999, 1)
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn flipped_bits_are_survived(
        format in 0..FORMATS.len(),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), 0..8u32), 1..12),
    ) {
        let name = FORMATS[format].name;
        let mut bytes = specimen(name);
        for (at, bit) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        survive(name, &bytes);
    }

    #[test]
    fn random_bytes_are_survived_by_every_reader(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        start in 0..FORMATS.len(),
    ) {
        for format in FORMATS {
            survive(format.name, &bytes);
            // The same after a valid beginning.
            let mut file = specimen(FORMATS[start].name);
            let half = file.len() / 2;
            file.truncate(half);
            file.extend(&bytes);
            survive(format.name, &file);
        }
    }

    #[test]
    fn lines_of_odd_words_are_survived(
        words in proptest::collection::vec("[-0-9a-zA-Z.+/\\[\\](),]{0,22}", 1..12),
        separator in 0..3usize,
    ) {
        let line = words.join([" ", ",", "\t"][separator]) + "\n";
        for format in FORMATS {
            let mut file = specimen(format.name);
            file.extend(line.repeat(3).as_bytes());
            survive(format.name, &file);
        }
        let schema = weir_model::event::iostream_schema();
        for shape in [weir_model::Shape::Stream, weir_model::Shape::Relation] {
            let input = Input::open(&TraceInput::bytes(line.repeat(2))).unwrap();
            let opened = format::stream_source::open(input, &schema, shape, false);
            if let Ok(mut source) = opened {
                while source.next_batch(16).unwrap().is_some() {}
            }
        }
    }
}
