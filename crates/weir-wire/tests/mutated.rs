//! Mutated valid messages and random bytes: the decoders of agent and monitor return a message or
//! an error, use no more memory than the largest message needs, and decoded rows are valid.
//!
//! `WEIR_BLESS=1` writes the valid messages into the corpus of the fuzz target `wire`.

mod support;

use std::path::Path;
use std::sync::Arc;

use arrow_flight::FlightData;
use prost::Message;
use prost::bytes::Bytes;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::random::Random;
use weir_model::{Batch, Column, Symbol, Tally, Type, Value};
use weir_wire::frame::texts::{ReceivedTexts, TextBudget, TextTable};
use weir_wire::frame::{self, COLUMNS_MAX, Compression, Decoded, ROWS_MAX, VALUES_MAX};
use weir_wire::message::{
    AgentBody, ColumnEncoding, ColumnKind, FRAME_BYTES_MAX, FromAgent, FromMonitor, Ping, Pong,
    RequestsLost, RowsHeader, encode_body,
};
use weir_wire::outbox::spool;
use weir_wire::{
    AgentMessage, ChannelCost, ChannelId, EarlierProcess, Hello, Intake, MonitorMessage, Note,
    Status, Welcome,
};

/// The memory of the largest message: its values, its bytes before and after decompression, and the
/// overhead of the allocator.
const MEMORY_BYTES: u64 = 160 << 20;

fn batch() -> Batch {
    let rows = 60i64;
    let texts: Vec<String> = (0..rows).map(|i| format!("vm{}", i % 7)).collect();
    let tally = |i: i64| {
        Value::Tally(Arc::new(Tally(vec![
            (Value::text("read"), i),
            (Value::Float(0.5), 1),
            (Value::Bytes(vec![1, 2].into()), -1),
            (Value::Tally(Arc::new(Tally(vec![(Value::Null, 2)]))), 1),
        ])))
    };
    let nullable = |i: i64, value| if i % 5 == 0 { Value::Null } else { value };
    let of = |ty, value: &dyn Fn(i64) -> Value| {
        Column::from_values(ty, (0..rows).map(|i| nullable(i, value(i))))
    };
    Batch::deltas(
        (0..rows)
            .map(|i| 1_700_000_000_000_000_000 + i * 1000)
            .collect::<Vec<_>>(),
        (0..rows).map(|i| 1 + i % 3).collect::<Vec<_>>(),
        vec![
            Column::texts(texts.iter().map(String::as_str)),
            Column::ints(vec![4096; rows as usize]),
            of(Type::Int, &|i| Value::Int(i * 70_000)),
            of(Type::Int, &|i| Value::Int(i64::MAX / (i + 1))),
            of(Type::Bool, &|i| Value::Bool(i % 2 == 0)),
            of(Type::Float, &|i| Value::Float(i as f64 / 3.0)),
            of(Type::Tally, &tally),
            of(Type::Partial, &|i| {
                Value::Bytes(vec![7; i as usize % 9].into())
            }),
            Column::Nulls(rows as usize),
        ],
    )
}

fn numbered(body: AgentBody) -> FlightData {
    let number = FromAgent {
        number: 1,
        body: None,
    };
    FlightData {
        app_metadata: [encode_body(body), number.encode_to_vec()].concat().into(),
        ..FlightData::default()
    }
}

/// Messages of agents, the texts of the rows first.
fn from_agents() -> Vec<FlightData> {
    let mut texts = TextTable::default();
    let frames = [Compression::None, Compression::Zstd].map(|compression| {
        let frame = frame::encode(ChannelId(1), &batch(), &mut texts, compression).unwrap();
        FlightData {
            data_header: frame.header,
            data_body: frame.body,
            ..numbered(AgentBody::Rows(frame.head))
        }
    });
    let hello = Hello {
        host: "web1".into(),
        instance: 7,
        program: "weir 0.1.0".into(),
        earlier: vec![EarlierProcess::default()],
        ..Hello::default()
    };
    let channel = ChannelId(1);
    let note = Note {
        at_ns: 5,
        place: "tap".into(),
        counter: "events_lost".into(),
        cause: Some("full".into()),
        device: None,
        value: 1,
        total: 2,
    };
    let cost = ChannelCost {
        channel: 1,
        rows_in: 4,
        rows_out: 3,
        bytes_out: 2,
    };
    let status = Status {
        kept_share: 1.0,
        channels: vec![cost],
        ..Status::default()
    };
    let words = [
        AgentMessage::Watermark(5),
        AgentMessage::started(channel, 5),
        AgentMessage::failed(channel, "overflow".into()),
        AgentMessage::Note(note),
    ];
    let lost = RequestsLost {
        channel: 1,
        requests: 3,
        cause: "spool_full".into(),
    };
    let status = AgentBody::try_from(AgentMessage::Status(status)).unwrap();
    let mut all = vec![
        FromAgent::data(AgentBody::Texts(texts.from(0))),
        FromAgent::hello(hello).unwrap(),
        FromAgent::data(AgentBody::Resume(1)),
        FromAgent::data(AgentBody::Ping(Ping { origin_ns: 5 })),
        FromAgent::data(status),
        numbered(AgentBody::Lost(lost)),
    ];
    all.extend(frames);
    all.extend(words.map(|word| numbered(AgentBody::try_from(word).unwrap())));
    all
}

/// Messages of monitors.
fn from_monitors() -> Vec<FlightData> {
    let channel = ChannelId(1);
    let welcome = Welcome {
        monitor: 1,
        acked: 4,
        channels: vec![channel.0, 300],
        heartbeat_interval_ns: 50_000_000,
        ..Welcome::default()
    };
    let pong = Pong {
        origin_ns: 1,
        receive_ns: 2,
        transmit_ns: 3,
    };
    let fragment = vec![7; 40];
    let words = [
        MonitorMessage::Pong(pong),
        MonitorMessage::start(channel, fragment),
        MonitorMessage::Stop(channel.0),
        MonitorMessage::Ack(9),
        MonitorMessage::HeartbeatInterval(5_000_000),
    ];
    let mut all = vec![FromMonitor::welcome(welcome)];
    all.extend(words.map(FromMonitor::data));
    all
}

/// Mutates bytes: replaces, removes, inserts, repeats or truncates.
fn mutate(bytes: &Bytes, numbers: &mut Random) -> Bytes {
    let mut bytes = bytes.to_vec();
    for _ in 0..1 + numbers.below(4) {
        let place = numbers.below(bytes.len() as u64 + 1) as usize;
        match numbers.below(6) {
            0 if place < bytes.len() => bytes[place] ^= 1 << numbers.below(8),
            1 if place < bytes.len() => {
                // Values at the limits of arithmetic.
                bytes[place] = [0, 1, 0x7f, 0x80, 0xff][numbers.below(5) as usize];
            }
            2 if place < bytes.len() => drop(bytes.remove(place)),
            3 => bytes.insert(place, numbers.next() as u8),
            4 => {
                let end = bytes.len().min(place + numbers.below(32) as usize);
                let part = bytes[place..end].to_vec();
                bytes.splice(place..place, part);
            }
            5 if numbers.below(4) == 0 => bytes.truncate(place),
            _ => {}
        }
    }
    bytes.into()
}

fn mutate_data(data: &FlightData, numbers: &mut Random) -> FlightData {
    let mut data = data.clone();
    match numbers.below(4) {
        0 => data.data_header = mutate(&data.data_header, numbers),
        1 => data.data_body = mutate(&data.data_body, numbers),
        _ => data.app_metadata = mutate(&data.app_metadata, numbers),
    }
    data
}

/// Changes the header of the same columns.
fn mutate_head(head: &RowsHeader, numbers: &mut Random) -> RowsHeader {
    let mut head = head.clone();
    let form = |numbers: &mut Random| ColumnEncoding {
        kind: numbers.below(9) as i32,
        width_bytes: [0, 1, 2, 4, 8, 3][numbers.below(6) as usize],
        shift: numbers.below(70) as u32,
        base: [0, -1, 1, i64::MIN, i64::MAX, 1 << 40][numbers.below(6) as usize],
    };
    for _ in 0..1 + numbers.below(3) {
        let column = numbers.below(head.columns.len() as u64 + 1) as usize;
        match numbers.below(6) {
            0 => head.rows = [0, 1, 61, 1 << 16, 1 << 17, u32::MAX][numbers.below(6) as usize],
            1 if column < head.columns.len() => head.columns[column] = form(numbers),
            2 => head.columns.insert(column, form(numbers)),
            3 if column < head.columns.len() => drop(head.columns.remove(column)),
            4 => head.ts = (numbers.below(3) > 0).then(|| form(numbers)),
            _ => head.weights = (numbers.below(3) > 0).then(|| form(numbers)),
        }
    }
    if numbers.below(50) == 0 {
        // Columns that take no space on the wire.
        let column = ColumnEncoding {
            kind: ColumnKind::Int.into(),
            ..ColumnEncoding::default()
        };
        head.columns = vec![column; numbers.below(2000) as usize];
        head.rows = ROWS_MAX as u32;
        (head.ts, head.weights) = (Some(column), None);
    }
    head
}

/// Decodes it as the monitor, on a connection that knows the texts.
fn receive(texts: &FlightData, data: &FlightData, budget: &Arc<TextBudget>) -> bool {
    // The error, or the host name.
    let _ = FromAgent::read_hello(data).map_err(|e| e.to_string());
    let welcome = Welcome {
        monitor: 1,
        acked: 0,
        channels: Vec::new(),
        heartbeat_interval_ns: 5_000_000,
        ..Welcome::default()
    };
    let mut intake = Intake::new(&welcome, budget.clone());
    intake.receive(texts, 1).expect("the texts are in order");
    match intake.receive(data, 2) {
        Ok(weir_wire::Incoming::Message(_, AgentMessage::Rows { batch, .. })) => {
            check(&batch);
            true
        }
        Ok(_) => true,
        Err(malformed) => {
            assert!(!malformed.to_string().is_empty());
            false
        }
    }
}

/// The properties of rows that engines assume.
fn check(batch: &Batch) {
    assert!(batch.len() <= ROWS_MAX && batch.columns.len() <= COLUMNS_MAX);
    assert!(batch.len() * batch.columns.len() <= VALUES_MAX);
    assert!(batch.ts.is_sorted());
    if let Some(weights) = &batch.weights {
        assert_eq!(weights.len(), batch.len());
        assert!(weights.iter().all(|weight| *weight != 0));
    }
    assert!(batch.columns.iter().all(|c| c.len() == batch.len()));
    for row in (0..batch.len()).step_by(7) {
        // Texts are looked up.
        assert!(!format!("{:?}", batch.row(row)).is_empty());
    }
}

/// Exceeding this aborts the process.
fn limit_memory() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let data = status.lines().find_map(|l| l.strip_prefix("VmData:"));
    let kib: u64 = data
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    let limit = Rlimit {
        current: Some(kib * 1024 + MEMORY_BYTES),
        maximum: getrlimit(Resource::Data).maximum,
    };
    setrlimit(Resource::Data, limit).unwrap();
}

#[test]
fn mutated_messages_decode_or_fail_within_memory() {
    bless();
    limit_memory();
    let mut numbers = Random::new(1);
    let budget = Arc::new(TextBudget::new(10_000, 1 << 20));
    let agents = from_agents();
    let texts = &agents[0];
    let mut understood = 0;
    for data in &agents[1..] {
        let is_hello = FromAgent::read_hello(data).is_ok();
        assert!(is_hello || receive(texts, data, &budget), "{data:?}");
        let head = match FromAgent::read(data).unwrap().message.body {
            Some(AgentBody::Rows(head)) => Some(head),
            _ => None,
        };
        for _ in 0..3_000 {
            let mut changed = mutate_data(data, &mut numbers);
            if let Some(head) = &head
                && numbers.below(2) == 0
            {
                let head = mutate_head(head, &mut numbers);
                changed.app_metadata = numbered(AgentBody::Rows(head)).app_metadata;
            }
            understood += u64::from(receive(texts, &changed, &budget));
        }
    }
    for data in &from_monitors() {
        assert!(FromMonitor::read(data).unwrap().message.body.is_some());
        for _ in 0..3_000 {
            let changed = mutate_data(data, &mut numbers);
            understood += u64::from(FromMonitor::read(&changed).is_ok());
        }
    }
    for _ in 0..20_000 {
        let length = numbers.below(200) as usize;
        let data = FlightData {
            app_metadata: numbers.bytes(length).into(),
            data_header: numbers.bytes(length).into(),
            data_body: numbers.bytes(length).into(),
            ..FlightData::default()
        };
        receive(texts, &data, &budget);
        let _ = FromMonitor::read(&data);
        let _ = spool::split(data.app_metadata.clone());
    }
    // Otherwise the mutations were too destructive to reach later stages.
    assert!(understood > 1_000, "{understood} were understood");
}

/// A few bytes cannot produce a message with many rows.
#[test]
fn a_small_message_decodes_to_few_rows() {
    let column = ColumnEncoding {
        kind: ColumnKind::Int.into(),
        ..ColumnEncoding::default()
    };
    let head = |rows: usize, columns: usize| RowsHeader {
        channel: 1,
        rows: rows as u32,
        ts: Some(column),
        weights: None,
        columns: vec![column; columns],
        requests: 0,
    };
    let texts = ReceivedTexts::new(Arc::new(TextBudget::new(0, 0)));
    let none = Bytes::new();
    let read = |head: &RowsHeader| frame::decode(head, &none, &none, &texts);
    let most = VALUES_MAX / ROWS_MAX;
    assert!(matches!(read(&head(ROWS_MAX, most)), Ok(Decoded::Rows(_))));
    let error = read(&head(ROWS_MAX, most + 1)).unwrap_err().to_string();
    assert!(error.starts_with("rows: values: "), "{error}");
    let long = Bytes::from(vec![0; FRAME_BYTES_MAX + 1]);
    let error = frame::decode(&head(1, 1), &none, &long, &texts).unwrap_err();
    assert!(error.to_string().starts_with("rows: bytes: "), "{error}");
    assert!(Symbol::get("a text that nobody has sent").is_none());
}

/// The input format of `weir_fuzz::wire`: the length of each part, then the parts.
fn bless() {
    if std::env::var_os("WEIR_BLESS").is_none() {
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/wire");
    std::fs::create_dir_all(&folder).unwrap();
    let agents = from_agents();
    let input = |messages: &[&FlightData]| {
        let mut bytes = Vec::new();
        for message in messages {
            let parts = [
                &message.app_metadata,
                &message.data_header,
                &message.data_body,
            ];
            for part in parts {
                bytes.extend_from_slice(&(part.len() as u16).to_le_bytes());
            }
            parts.iter().for_each(|part| bytes.extend_from_slice(part));
        }
        bytes
    };
    let write = |name: String, bytes: Vec<u8>| std::fs::write(folder.join(name), bytes).unwrap();
    for (i, message) in agents[1..].iter().enumerate() {
        write(format!("agent_{i}"), input(&[&agents[0], message]));
    }
    for (i, message) in from_monitors().iter().enumerate() {
        write(format!("monitor_{i}"), input(&[message]));
    }
}
