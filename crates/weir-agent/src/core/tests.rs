//! The properties of an agent's core, for every kind of fragment.

use weir_model::{
    Batch, Catalog, Column, Declaration, Field, Folded, Nanos, PartialState, Schema, Shape, Type,
};
use weir_query::engine::{Engine, EngineOptions, EngineOutput};
use weir_query::plan::Plan;
use weir_query::{CheckOptions, compile};
use weir_wire::{AgentMessage, ChannelId, ChannelTally};

use super::{AgentCore, IDLE_WATERMARK_NS};

fn plan(text: &str) -> Plan {
    let fields = vec![Field::new("ts", Type::Time), Field::new("x", Type::Int)];
    let catalog = Catalog {
        declarations: vec![Declaration::new("s", Shape::Stream, Schema::new(fields))],
        ..Catalog::default()
    };
    let checked = compile(text, &catalog, &CheckOptions::live()).expect("the query is sound");
    (*checked.plan).clone()
}

fn rows(ts: &[i64]) -> Batch {
    let xs = ts.iter().map(|t| t % 7).collect();
    let columns = vec![Column::ints(ts.to_vec()), Column::ints(xs)];
    Batch::stream(ts.to_vec(), columns)
}

fn core() -> AgentCore {
    AgentCore::new(EngineOptions::default())
}

/// The output of a step: rows as (channel, instant, weight, first value), and the other messages in
/// short form.
#[derive(Default, Debug, PartialEq)]
struct Received {
    rows: Vec<(u64, i64, i64, String)>,
    reached: Vec<Nanos>,
    started: Vec<(u64, Nanos)>,
    failed: Vec<u64>,
}

impl Received {
    fn step(&mut self, core: &mut AgentCore) {
        core.step(&mut |word| match word {
            AgentMessage::Rows { channel, batch } => {
                let over = self.reached.last().copied().unwrap_or(Nanos::MIN);
                assert!(batch.ts.iter().all(|ts| *ts > over), "not after {over}");
                self.take(channel, &batch);
            }
            AgentMessage::Watermark(at) => {
                assert!(self.reached.last().is_none_or(|before| at > *before));
                self.reached.push(at);
            }
            AgentMessage::Started(started) => self.started.push((started.channel, started.at_ns)),
            AgentMessage::Failed(failed) => self.failed.push(failed.channel),
            other => panic!("a core does not say {other:?}"),
        });
    }

    fn take(&mut self, channel: ChannelId, batch: &Batch) {
        for row in 0..batch.len() {
            let first = format!("{:?}", batch.columns[0].value(row));
            self.rows
                .push((channel.0, batch.ts[row], batch.weight(row), first));
        }
    }

    fn of(&self, channel: u64) -> Vec<(i64, i64, String)> {
        let own = self.rows.iter().filter(|(c, ..)| *c == channel);
        own.map(|(_, ts, weight, x)| (*ts, *weight, x.clone()))
            .collect()
    }
}

/// The results of a single engine for the same rows.
fn alone(plan: &Plan, batches: &[Batch], end: i64) -> Vec<(i64, i64, String)> {
    let mut engine = Engine::new(EngineOptions::default());
    engine.add(plan);
    let mut out = Vec::new();
    for batch in batches {
        engine.push("s", batch.clone());
    }
    engine.heartbeat("s", end);
    engine.step(&mut |output| {
        if let EngineOutput::Rows { batch, .. } = output {
            for row in 0..batch.len() {
                let first = format!("{:?}", batch.columns[0].value(row));
                out.push((batch.ts[row], batch.weight(row), first));
            }
        }
    });
    out
}

const GROUPED: &str = "select x, count(*) from s [range 10 ns slide 10 ns] group by x";
const NARROW: &str = "select x from s where x > 3";

#[test]
fn fragments_give_what_one_engine_gives_and_each_row_is_counted() {
    let batches: Vec<Batch> = (0..20)
        .map(|i| rows(&[3 * i + 1, 3 * i + 2, 3 * i + 2]))
        .collect();
    let mut core = core();
    core.start(ChannelId(1), &plan(GROUPED));
    core.start(ChannelId(9), &plan(NARROW));
    let mut received = Received::default();
    for batch in &batches {
        core.push("s", batch.clone());
        core.reached(batch.ts[0]);
        received.step(&mut core);
    }
    core.reached(70);
    received.step(&mut core);
    for (channel, text) in [(1, GROUPED), (9, NARROW)] {
        let mut expected = alone(&plan(text), &batches, 70);
        let mut found = received.of(channel);
        expected.sort();
        found.sort();
        assert!(!found.is_empty());
        assert_eq!(found, expected, "{text}");
        let tally = core.tallies().find(|t| t.channel == channel);
        let produced = found.len() as u64;
        let lost = 0;
        assert_eq!(
            tally,
            Some(ChannelTally {
                channel,
                produced,
                lost
            })
        );
    }
    assert_eq!(received.reached.last(), Some(&70));
    assert_eq!(core.costs(|_| 0)[0].rows_in, 60);
}

#[test]
fn a_fragment_receives_the_rows_after_its_start_message() {
    let mut core = core();
    let mut received = Received::default();
    core.start(ChannelId(1), &plan(NARROW));
    core.push("s", rows(&[4, 5]));
    core.reached(5);
    // Delivered, but after the watermark: not part of a fragment that starts here at time 5.
    core.push("s", rows(&[6]));
    received.step(&mut core);
    core.start(ChannelId(2), &plan(NARROW));
    core.push("s", rows(&[11, 12, 13]));
    core.reached(20);
    received.step(&mut core);
    let (channel, at) = received.started[1];
    assert_eq!(channel, 2);
    assert!(at >= 5);
    let later = |rows: Vec<(i64, i64, String)>| rows.into_iter().filter(|r| r.0 > at).collect();
    let first: Vec<_> = later(received.of(1));
    assert_eq!(received.of(2), first);
    assert_eq!(first.len(), 4 - usize::from(at >= 6));
}

#[test]
fn watermarks_are_rare_between_the_ends_of_slides() {
    let mut core = core();
    let mut received = Received::default();
    let slide = 4 * IDLE_WATERMARK_NS;
    core.reached(0);
    received.step(&mut core);
    let text = format!("select count(*) from s [range {slide} ns slide {slide} ns]");
    core.start(ChannelId(1), &plan(&text));
    let tenths = (1..=20).map(|n| n * slide / 10);
    for at in tenths {
        core.reached(at);
        received.step(&mut core);
    }
    // A quarter of a slide, rounded up to the next step; and each end, immediately.
    let expected = [0, 3, 6, 9, 10, 13, 16, 19, 20].map(|n| n * slide / 10);
    assert_eq!(received.reached, expected);
}

#[test]
fn watermarks_advance_without_rows_and_without_fragments() {
    let mut core = core();
    let mut received = Received::default();
    core.reached(3);
    received.step(&mut core);
    core.start(ChannelId(1), &plan(NARROW));
    core.reached(8);
    received.step(&mut core);
    core.stop(ChannelId(1));
    core.reached(9);
    received.step(&mut core);
    // Nothing runs, so the watermark may be delayed.
    core.reached(8 + IDLE_WATERMARK_NS);
    received.step(&mut core);
    received.step(&mut core);
    assert_eq!(received.reached, [3, 8, 8 + IDLE_WATERMARK_NS]);
    assert_eq!(received.started, [(1, 3)]);
}

#[test]
fn late_rows_are_counted_and_not_sent() {
    let mut core = core();
    let mut received = Received::default();
    core.reached(10);
    core.start(ChannelId(1), &plan(NARROW));
    core.push("s", rows(&[4, 5, 12, 13]));
    core.reached(20);
    received.step(&mut core);
    assert_eq!(received.of(1).len(), 2);
    assert_eq!(core.counts().sources[0].rows_late, 2);
}

#[test]
fn a_fragment_fails_alone_and_a_stopped_one_is_silent() {
    let mut core = AgentCore::new(EngineOptions {
        query_bytes_max: 4_096,
        ..EngineOptions::default()
    });
    let hoard = "select a.ts from s [range unbounded] as a, s [range unbounded] as b where a.x = b.x and a.ts < b.ts - 1000";
    let mut received = Received::default();
    core.start(ChannelId(1), &plan(hoard));
    core.start(ChannelId(2), &plan(NARROW));
    core.start(ChannelId(3), &plan(NARROW));
    for at in 1..400 {
        core.push("s", rows(&[at]));
        core.reached(at);
        received.step(&mut core);
        if at == 50 {
            core.stop(ChannelId(3));
        }
    }
    assert_eq!(received.failed, [1]);
    let passing = |upto: i64| (1..=upto).filter(|t| t % 7 > 3).count();
    assert_eq!(received.of(2).len(), passing(399));
    assert_eq!(received.of(3).len(), passing(50));
    let running: Vec<u64> = core.costs(|_| 0).iter().map(|c| c.channel).collect();
    assert_eq!(running, [2]);
    // The rows of a stopped fragment stay in its tally.
    let stopped = core.tallies().find(|t| t.channel == 3).unwrap();
    assert_eq!(stopped.produced, passing(50) as u64);
    core.lost(ChannelId(3), 2);
    assert_eq!(core.tallies().find(|t| t.channel == 3).unwrap().lost, 2);
}

#[test]
fn an_ending_agent_sends_the_state_of_open_slides_only() {
    let rare = "select x, count(*) from s [range 1000 ns slide 100 ns] group by x";
    let steady = "select count(*) from s [range 5 ns]";
    let texts = [
        (1, GROUPED, 40),
        (2, rare, 100),
        (3, NARROW, 33),
        (4, steady, 33),
    ];
    let batches = [rows(&[1, 2, 3]), rows(&[11, 12]), rows(&[25, 31, 32])];
    let (mut core, mut received) = (core(), Received::default());
    for (channel, text, _) in texts {
        core.start(ChannelId(channel), &plan(text));
    }
    for batch in &batches {
        core.push("s", batch.clone());
    }
    core.reached(28);
    received.step(&mut core);
    let mut last = Vec::new();
    core.end(33, &mut |word| last.push(word));
    for word in last {
        match word {
            AgentMessage::Rows { channel, batch } => received.take(channel, &batch),
            AgentMessage::Watermark(at) => received.reached.push(at),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(received.reached, [28, 33], "what lies ahead is not over");
    for (channel, text, end) in texts {
        let (mut expected, mut found) = (alone(&plan(text), &batches, end), received.of(channel));
        expected.sort();
        found.sort();
        assert_eq!(found, expected, "{text}");
        assert!(found.iter().any(|(ts, ..)| *ts > 28), "{text}");
        let tally = core.tallies().find(|t| t.channel == channel);
        assert_eq!(tally.map(|t| t.produced), Some(found.len() as u64));
    }
}

#[test]
fn rows_of_a_step_are_sent_in_one_message_up_to_a_bound() {
    let mut core = core();
    core.start(ChannelId(1), &plan(NARROW));
    core.start(ChannelId(2), &plan("select x from s"));
    let mut emitted = Vec::new();
    let mut step = |core: &mut AgentCore, upto| {
        core.reached(upto);
        core.step(&mut |word| match word {
            AgentMessage::Rows { channel, batch } => emitted.push((channel.0, batch.len())),
            AgentMessage::Started { .. } | AgentMessage::Watermark(_) => {}
            other => panic!("a core does not say {other:?}"),
        });
    };
    (0..10).for_each(|i| core.push("s", rows(&[7 * i + 4, 7 * i + 7])));
    step(&mut core, 100);
    // More than three fifths of a message, three times.
    for i in 0..3 {
        let ts: Vec<i64> = (0..2_500).map(|j| 1_000 + 2_500 * i + j).collect();
        core.push("s", rows(&ts));
    }
    step(&mut core, 10_000);
    let of = |channel: u64| -> Vec<usize> {
        let words = emitted.iter().filter(|(c, _)| *c == channel);
        words.map(|(_, rows)| *rows).collect()
    };
    assert_eq!(of(1)[0], 10);
    assert_eq!(of(2), [20, 5_000, 2_500]);
}

#[test]
fn requests_of_an_open_interval_are_in_the_tally_before_their_group_is() {
    let grouped = plan(GROUPED);
    let weir_query::plan::Node::Aggregate {
        input, keys, calls, ..
    } = &grouped_node(&grouped).node
    else {
        panic!("it groups");
    };
    let weir_query::plan::Node::Window { input, .. } = &input.node else {
        panic!("over a window");
    };
    let named = vec![Field::new("x", Type::Int)];
    let partial = Plan::partial(input.clone(), 10, keys.clone(), calls.clone(), named);
    let mut core = core();
    core.start(ChannelId(1), &partial);
    let tally = |core: &AgentCore| core.tallies().map(|t| (t.produced, t.lost)).next();
    // Five are of one group, which ends at 10; the sixth is of the next one.
    core.push("s", rows(&[1, 1, 1, 8, 8]));
    assert_eq!(tally(&core), Some((5, 0)), "they wait for their instant");
    core.reached(8);
    let mut received = Received::default();
    received.step(&mut core);
    assert_eq!(tally(&core), Some((5, 0)), "no group was given yet");
    assert!(received.rows.is_empty());
    core.push("s", rows(&[11]));
    core.reached(11);
    let mut emitted = Vec::new();
    core.step(&mut |word| emitted.push(word));
    let groups = emitted.iter().filter_map(|word| match word {
        AgentMessage::Rows { batch, .. } => Some(batch.requests(partial.requests_column())),
        _ => None,
    });
    assert_eq!(groups.sum::<u64>(), 5);
    assert_eq!(tally(&core), Some((6, 0)));
    // Others are in the kernel, and some were lost there.
    core.set_folding("s", 30);
    core.missed("s", 4, "unseen");
    core.missed("elsewhere", 100, "unseen");
    assert_eq!(tally(&core), Some((40, 4)));
    let mut lost = Vec::new();
    core.step(&mut |word| {
        if let AgentMessage::Lost(loss) = word {
            lost.push((loss.channel, loss.requests, loss.cause));
        }
    });
    assert_eq!(lost, [(1, 4, "unseen".to_owned())]);
}

#[test]
fn groups_of_a_source_that_was_silent_for_too_long_are_counted_as_lost() {
    let groups = |end, count| Folded {
        end,
        keys: vec![Column::ints(vec![1])],
        kept: vec![vec![PartialState::Moments {
            count,
            sum: 0,
            min: 0,
            max: 0,
        }]],
    };
    let mut core = core();
    core.start(ChannelId(1), &plan(GROUPED));
    core.reached(25);
    core.start(ChannelId(2), &plan(GROUPED));
    core.push_folded("s", groups(20, 3));
    core.push_folded("s", groups(40, 5));
    let mut lost = Vec::new();
    core.step(&mut |word| {
        if let AgentMessage::Lost(loss) = word {
            lost.push((loss.channel, loss.requests, loss.cause));
        }
    });
    // The second fragment has started after that interval.
    assert_eq!(lost, [(1, 3, "late".to_owned())]);
    let tallies: Vec<(u64, u64)> = core.tallies().map(|t| (t.produced, t.lost)).collect();
    assert_eq!(tallies, [(8, 3), (5, 0)]);
}

/// The aggregation of a plan, below its projections.
fn grouped_node(plan: &Plan) -> &Plan {
    match &plan.node {
        weir_query::plan::Node::Project { input, .. } => grouped_node(input),
        _ => plan,
    }
}
