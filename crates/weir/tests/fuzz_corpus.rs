//! Replays the corpora of the fuzz targets through the same functions, without a nightly toolchain.
//! `WEIR_BLESS=1` first writes the plans and the messages with plans into the corpora.

#[path = "../../../fuzz/src/lib.rs"]
mod fuzz;

use std::fs;
use std::panic;
use std::path::Path;

use weir_model::{Batch, Catalog, Column};
use weir_query::place::fleet::{CutOptions, PlacementStrategy, cut};
use weir_query::plan::wire;
use weir_query::{CheckOptions, compile};
use weir_wire::frame::texts::TextTable;
use weir_wire::frame::{self, Compression};
use weir_wire::message::{AgentBody, FlightData, FromAgent, FromMonitor};
use weir_wire::outbox::EncodedMessage;
use weir_wire::{AgentMessage, ChannelId, Hello, MonitorMessage};

#[test]
fn no_input_of_the_corpora_breaks_a_promise() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    if std::env::var_os("WEIR_BLESS").is_some() {
        bless(&corpora);
    }
    let mut broken = Vec::new();
    for (name, target) in fuzz::TARGETS {
        let entries = fs::read_dir(corpora.join(name)).expect("every target has a corpus");
        let mut files: Vec<_> = entries.map(|e| e.expect("an entry").path()).collect();
        files.sort();
        assert!(!files.is_empty(), "the corpus of {name} has inputs");
        for file in files {
            let data = fs::read(&file).expect("an input can be read");
            // The whole file, and truncations anywhere in its first or its last half kilobyte.
            let ends = (0..data.len().min(512)).chain(data.len().saturating_sub(512)..=data.len());
            for end in ends {
                if panic::catch_unwind(|| target(&data[..end])).is_err() {
                    broken.push(format!("{}, first {end} bytes", file.display()));
                    break;
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Queries whose fragments are in the corpora, with their names there.
const QUERIES: [(&str, &str); 5] = [
    (
        "filter",
        "select ts, bytes from IO where op = 'r' and latency > 1 ms",
    ),
    (
        "functions",
        "select coalesce(vm, 'none') || op, case when bytes > 4 KiB then 1 else 2 end from IO",
    ),
    (
        "partials",
        "select op, count(*), avg(latency) from IO [range 5 s slide 1 s] group by op",
    ),
    (
        "relations",
        "select v.vm, d.vdisk from vms as v, disks as d where v.vm = d.vm",
    ),
    (
        "windows",
        "select max(latency) from IO [partition by vm rows 3]",
    ),
];

fn bless(corpora: &Path) {
    let write = |target: &str, name: &str, bytes: Vec<u8>| {
        fs::create_dir_all(corpora.join(target)).unwrap();
        fs::write(corpora.join(target).join(name), bytes).unwrap();
    };
    for (name, query) in QUERIES {
        let checked = compile(query, &Catalog::builtin(), &CheckOptions::live()).unwrap();
        let options = CutOptions {
            hint: (name == "partials").then_some(PlacementStrategy::Partials),
            ..CutOptions::default()
        };
        let plan = cut(&checked.plan, &options)
            .unwrap()
            .fragments
            .remove(0)
            .plan;
        let fragment = wire::encode(&plan);
        write("plan", name, fragment.clone());
        let again = MonitorMessage::start(ChannelId(2), fragment.clone());
        let start = MonitorMessage::start(ChannelId(1), fragment);
        let orders = [
            start,
            again,
            MonitorMessage::Stop(1),
            MonitorMessage::Ack(1),
        ];
        write("agent", name, framed(orders.map(FromMonitor::data).into()));
    }
    write("monitor", "session", framed(session()));
}

/// Messages of an agent that joins, starts all channels and sends rows.
fn session() -> Vec<FlightData> {
    let hello = Hello {
        host: "a".into(),
        instance: 1,
        ..Hello::default()
    };
    let mut texts = TextTable::default();
    let at = 1_700_000_000_100_000_000;
    let columns = vec![Column::ints(vec![4096, 512]), Column::ints(vec![1, 2])];
    let rows = Batch::stream(vec![at + 1, at + 2], columns);
    let channel = ChannelId(1);
    let rows = frame::encode(channel, &rows, &mut texts, Compression::None).unwrap();
    let message = |message| EncodedMessage::message(AgentBody::try_from(message).unwrap());
    let numbered = [1, 2, 3]
        .map(|channel| message(AgentMessage::started(ChannelId(channel), at)))
        .into_iter()
        .chain([EncodedMessage::rows(rows, 0)])
        .chain(
            [
                AgentMessage::Watermark(at + 2),
                AgentMessage::lost(channel, 3, "shed"),
            ]
            .map(message),
        );
    let numbered = numbered
        .zip(1..)
        .map(|(message, number)| message.data(number));
    let capabilities = weir_tap::live::capabilities().encode();
    [
        FromAgent::hello(hello).unwrap(),
        FromAgent::data(AgentBody::Resume(1)),
        FromAgent::data(AgentBody::Capabilities(capabilities[..200].to_vec())),
    ]
    .into_iter()
    .chain(numbered)
    .collect()
}

/// The input format of `fuzz::wire`: the length of each part of a message, then the parts.
fn framed(messages: Vec<FlightData>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for message in messages {
        let parts = [message.app_metadata, message.data_header, message.data_body];
        for part in &parts {
            bytes.extend_from_slice(&u16::try_from(part.len()).unwrap().to_le_bytes());
        }
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
    }
    bytes
}
