//! Partial aggregates of an agent are computed in the kernel: only groups leave it, no rows, and
//! the monitor's merge of them equals its merge of the rows.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use weir_model::{Batch, Catalog, Folded};
use weir_query::place::fleet::{CutOptions, PlacementStrategy, cut};
use weir_query::{CheckOptions, Engine, EngineOptions, EngineOutput, Plan, compile, place};
use weir_tap::TapEvent;
use weir_tap::ebpf::{DeviceChoice, LiveOptions, TAP};
use weir_tap::live;

use crate::live::watched_disk;

/// An agent that runs a fragment over one source, and the monitor that merges what it sends.
struct Side {
    agent: Engine,
    source: String,
    monitor: Engine,
    /// Rows from the tap, and rows that the agent sent.
    rows_in: usize,
    groups_in: usize,
    rows_out: usize,
    answer: BTreeMap<(i64, String), i64>,
}

/// The name that the monitor gives to the input from agents.
const SENT: &str = "#0";

impl Side {
    fn new(fragment: &Plan, source: &str, monitor: &Plan) -> Side {
        let mut side = Side {
            agent: Engine::new(EngineOptions::default()),
            source: source.to_owned(),
            monitor: Engine::new(EngineOptions::default()),
            rows_in: 0,
            groups_in: 0,
            rows_out: 0,
            answer: BTreeMap::new(),
        };
        side.agent.add(fragment);
        side.monitor.add(monitor);
        side
    }

    fn rows(&mut self, batch: Batch) {
        self.rows_in += batch.len();
        self.agent.push(&self.source, batch);
    }

    fn groups(&mut self, folded: Folded) {
        self.groups_in += folded.kept.first().map_or(0, Vec::len);
        self.agent.push_folded(&self.source, folded);
    }

    fn reached(&mut self, at: i64) {
        self.agent.heartbeat(&self.source, at);
        let (monitor, rows_out) = (&mut self.monitor, &mut self.rows_out);
        self.agent.step(&mut |output| {
            let batch = rows_of(output);
            *rows_out += batch.len();
            monitor.push(SENT, batch);
        });
        self.monitor.heartbeat(SENT, at);
        let answer = &mut self.answer;
        self.monitor.step(&mut |output| {
            let batch = rows_of(output);
            for row in 0..batch.len() {
                let values = format!("{:?}", batch.row(row));
                *answer.entry((batch.ts[row], values)).or_default() += batch.weight(row);
            }
        });
    }
}

fn rows_of(output: EngineOutput) -> Batch {
    match output {
        EngineOutput::Rows { batch, .. } => batch,
        EngineOutput::Failed { error, .. } => panic!("{error}"),
    }
}

fn wall_clock_ns() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_nanos() as i64
}

#[test]
fn the_kernel_folds_an_agents_partials_and_only_groups_leave_it() {
    let test = "the_kernel_folds_an_agents_partials_and_only_groups_leave_it";
    let Some(disk) = watched_disk(test) else {
        return;
    };
    let query = "select op, count(*), count(service), sum(bytes), avg(latency), min(wait), \
        max(service), quantile(latency, 0.99), histogram(latency, 50 us, 200 us, 1 ms), \
        histogram(bytes) from IO [range 2 s slide 1 s] group by op";
    let checked = compile(query, &Catalog::builtin(), &CheckOptions::live()).unwrap();
    let options = CutOptions {
        hint: Some(PlacementStrategy::Partials),
        ..CutOptions::default()
    };
    let cut = cut(&checked.plan, &options).unwrap();
    let fragment = &cut.fragments[0].plan;
    let placement = place::place(&[fragment], &live::capabilities());
    assert!(
        matches!(&placement.demands[..], [demand] if demand.fold.is_some()),
        "{:?}",
        placement.demands
    );
    // The same requests again, row by row.
    let plain = place::demands(&[fragment], &live::capabilities());
    let demands = [placement.demands.clone(), plain.clone()].concat();
    let options = LiveOptions {
        devices: DeviceChoice::Named(vec![disk.path().to_owned()]),
        ..LiveOptions::default()
    };
    let mut tap = (TAP.open)(&demands, &options).unwrap();
    let monitor = cut.monitor_over(&[SENT.to_owned()]);
    let mut folded = Side::new(&placement.plans[0], &placement.sources[0], &monitor);
    let mut unfolded = Side::new(fragment, &plain[0].stream, &monitor);

    let mut fio = Command::new("fio");
    fio.args(["--name=mixed", "--filename", disk.path(), "--direct=1"])
        .args(["--rw=randrw", "--bsrange=4k-64k", "--ioengine=libaio"])
        .args(["--iodepth=8", "--numjobs=3", "--time_based", "--runtime=5"])
        .args(["--size=64m"]);
    let load = std::thread::spawn(move || fio.output());
    let (since, mut until) = (Instant::now(), i64::MAX);
    let mut reached = i64::MIN;
    while reached < until {
        assert!(since.elapsed() < Duration::from_secs(120), "time goes on");
        match tap.next(Duration::from_millis(50)).unwrap() {
            TapEvent::Rows { demand: 0, batch } => folded.rows(batch),
            TapEvent::Rows { batch, .. } => unfolded.rows(batch),
            TapEvent::Folded {
                demand,
                folded: groups,
            } => {
                assert_eq!(demand, 0);
                folded.groups(groups);
            }
            TapEvent::Heartbeat(at) => {
                reached = at;
                folded.reached(at);
                unfolded.reached(at);
            }
            TapEvent::Quiet => {}
            TapEvent::End => panic!("the host goes on"),
        }
        if until == i64::MAX && load.is_finished() {
            until = wall_clock_ns() + 2_000_000_000;
        }
    }
    assert!(load.join().unwrap().unwrap().status.success());
    assert!(unfolded.rows_in > 1_000, "{} requests", unfolded.rows_in);
    assert_eq!(unfolded.groups_in, 0);
    assert!(
        folded.groups_in >= 8,
        "two ops in several seconds: {}",
        folded.groups_in
    );
    // The kernel sends a request as a row only if it has no room for its group.
    assert!(
        folded.rows_in * 100 <= unfolded.rows_in,
        "{} of {} requests came as rows",
        folded.rows_in,
        unfolded.rows_in
    );
    assert_eq!(folded.rows_out, unfolded.rows_out);
    assert!(folded.rows_out >= 8 && folded.rows_out * 20 < unfolded.rows_in);
    assert_eq!(folded.answer, unfolded.answer);
    assert!(folded.answer.len() >= 8, "{:?}", folded.answer);
}
