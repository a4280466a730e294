//! The monitor is killed and restarted at random times: standing queries continue without
//! differences.

use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::path::Path;

use weir_model::{Batch, Nanos, Shape};
use weir_query::engine::{Engine, EngineOptions, EngineOutput};
use weir_query::place::fleet::PlacementStrategy;
use weir_query::{CheckOptions, compile};
use weir_sink::{Sink, SinkError};
use weir_wire::EarlierProcess;

use super::super::{Monitor, MonitorOptions, Running};
use super::fleet::{Directory, Fleet, START, catalog, cut_of, options, publisher, rows};
use super::host::Host;

/// A sink that appends lines to a file: instant, weight, row.
struct Lines(File);

impl Sink for Lines {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        for row in 0..batch.len() {
            let (ts, weight) = (batch.ts[row], batch.weight(row));
            writeln!(self.0, "{ts} {weight} {:?}", batch.row(row)).unwrap();
        }
        Ok(())
    }
}

/// Net changes: instant and row, and their weight.
type Net = BTreeMap<(i64, String), i64>;

/// Standing queries by text and placement strategy.
type Queries = &'static [(&'static str, PlacementStrategy)];

/// A query without a window: after a restart time continues where results ended.
const ROWS: Queries = &[("SELECT host, a FROM S", PlacementStrategy::Rows)];

const QUERIES: Queries = &[
    (
        "Istream(SELECT host, a FROM S [Now])",
        PlacementStrategy::Rows,
    ),
    (
        "SELECT host, a FROM S [Range 60 ns] WHERE a > 3",
        PlacementStrategy::Rows,
    ),
    (
        "SELECT count(*), sum(a) FROM S [Range 90 ns]",
        PlacementStrategy::Rows,
    ),
    (
        "SELECT a, count(*), avg(a) FROM S [Range 60 ns Slide 20 ns] GROUP BY a",
        PlacementStrategy::Partials,
    ),
    (
        "SELECT host, count(*), sum(a) FROM S [Range 400 ns] GROUP BY host",
        PlacementStrategy::Rows,
    ),
    (
        "SELECT sum(n) FROM (SELECT host, count(*) AS n FROM S [Range 300 ns] GROUP BY host) c",
        PlacementStrategy::Rows,
    ),
    (
        "SELECT s.a, c.n FROM S [Range 30 ns] s, \
         (SELECT a, count(*) AS n FROM S [Range 200 ns] GROUP BY a, host) c WHERE s.a = c.a",
        PlacementStrategy::Rows,
    ),
    (
        "SELECT x.a FROM S [Range 30 ns] x, S [Range 50 ns] y WHERE x.a = y.a AND x.host <> y.host",
        PlacementStrategy::Rows,
    ),
];

/// Starts the standing queries, as the owner of their files does after a restart.
fn start(queries: Queries, numbers: Range<usize>, fleet: &mut Fleet, dir: &Path) {
    for number in numbers {
        let (text, strategy) = &queries[number];
        let name = format!("q{number}");
        let path = dir.join(&name);
        let bytes = match fleet.monitor.saved(&name) {
            Some(saved) => {
                let [position] = &saved.positions[..] else {
                    panic!("it has one file");
                };
                assert_eq!(position.path, path);
                position.bytes
            }
            None => 0,
        };
        let mut options = OpenOptions::new();
        let file = options.create(true).append(true).open(&path).unwrap();
        file.set_len(bytes).unwrap();
        let (cut, now) = (cut_of(text, *strategy), fleet.now);
        let relation = cut
            .fragments
            .iter()
            .any(|f| f.plan.shape == Shape::Relation);
        assert!(!relation, "what is sent of a stream is a stream: {text}");
        let publisher = publisher(&cut, Box::new(Lines(file)), path);
        fleet
            .monitor
            .start(&name, &cut, true, publisher, now)
            .unwrap();
    }
}

fn shown(dir: &Path, number: usize) -> Net {
    let text = std::fs::read_to_string(dir.join(format!("q{number}"))).unwrap();
    let mut net = Net::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ' ');
        let mut next = || parts.next().unwrap();
        let (ts, weight) = (next().parse().unwrap(), next().parse::<i64>().unwrap());
        *net.entry((ts, next().to_owned())).or_default() += weight;
    }
    net.retain(|_, weight| *weight != 0);
    net
}

/// The results of one engine that receives everything and is never killed, from the start of the
/// query after instant `from` up to `upto`.
fn expected(text: &str, produced: &mut [(i64, String, i64)], (from, upto): (Nanos, Nanos)) -> Net {
    produced.sort();
    let checked = compile(text, &catalog(), &CheckOptions::live()).unwrap();
    let mut engine = Engine::new(EngineOptions::default());
    engine.begin(START + 1);
    let before = produced.partition_point(|(ts, ..)| *ts <= from);
    let push = |engine: &mut Engine, produced: &[(i64, String, i64)]| {
        for (ts, host, a) in produced {
            engine.push("S", rows(host, &[(*ts, *a)]));
        }
    };
    push(&mut engine, &produced[..before]);
    engine.heartbeat("S", from);
    engine.step(&mut |_| unreachable!("no query runs yet"));
    engine.add(&checked.plan);
    push(&mut engine, &produced[before..]);
    engine.heartbeat("S", upto);
    let mut net = Net::new();
    engine.step(&mut |output| match output {
        EngineOutput::Rows { batch, .. } => {
            for row in 0..batch.len() {
                let key = (batch.ts[row], format!("{:?}", batch.row(row)));
                *net.entry(key).or_default() += batch.weight(row);
            }
        }
        EngineOutput::Failed { error, .. } => panic!("{error}"),
    });
    net.retain(|_, weight| *weight != 0);
    net
}

/// Steps after a kill in which another one is more likely: agents are still reconnecting.
const RECOVERING: u64 = 4;

/// A fleet of three whose monitor is killed.
struct Drill {
    random: Rng,
    options: MonitorOptions,
    queries: Queries,
    /// The number of them that were started.
    started: usize,
    /// The instant after which each of these receives rows.
    from: Vec<Nanos>,
    fleet: Fleet,
    /// Removed after the monitor, which writes there.
    dir: Directory,
    hosts: Vec<Host>,
    produced: Vec<(i64, String, i64)>,
    /// Values are unique, instead of few.
    unique: bool,
    kills: usize,
    /// The mean number of steps between kills, and the one within the first steps after a kill.
    kill_every: (u64, u64),
    killed_ago: u64,
}

impl Drill {
    fn new(queries: Queries, seed: u64, options: MonitorOptions) -> Drill {
        Drill::with_first(queries.len(), queries, seed, options)
    }

    /// With the first queries; the others start later.
    fn with_first(started: usize, queries: Queries, seed: u64, options: MonitorOptions) -> Drill {
        let dir = Directory::new();
        let mut fleet = Fleet::open(dir.path(), options.clone(), START);
        start(queries, 0..started, &mut fleet, dir.path());
        let mut hosts: Vec<Host> = (0..3).map(|n| Host::new(&format!("h{n}"), n + 1)).collect();
        for host in &mut hosts {
            host.live(None, START);
            host.join(&mut fleet);
            host.live(None, START + 1);
            host.deliver(1_000, &mut fleet);
        }
        fleet.tick(START + 2);
        Drill {
            random: Rng::with_seed(seed),
            options,
            queries,
            started,
            from: vec![START; started],
            dir,
            fleet,
            hosts,
            produced: Vec::new(),
            unique: false,
            kills: 0,
            kill_every: (40, 5),
            killed_ago: u64::MAX,
        }
    }

    /// Advances time at a host, with or without rows.
    fn live(&mut self, at_host: usize, now: Nanos) {
        let (random, host) = (&mut self.random, &mut self.hosts[at_host]);
        let count = random.u64(..4).saturating_sub(1);
        let mut batch: Vec<(i64, i64)> = (0..count)
            .map(|_| (now - random.u64(..3) as i64, random.u64(..6) as i64))
            .collect();
        batch.sort();
        if self.unique {
            let first = self.produced.len() as i64;
            batch
                .iter_mut()
                .zip(first..)
                .for_each(|(row, number)| row.1 = number);
        }
        let named = batch.iter().map(|(ts, a)| (*ts, host.name.clone(), *a));
        self.produced.extend(named);
        host.live((!batch.is_empty()).then(|| rows(&host.name, &batch)), now);
    }

    /// Kills the monitor. Pending writes reach the disk, or not.
    fn kill(&mut self, now: Nanos) {
        self.kills += 1;
        for host in &mut self.hosts {
            host.link = None;
        }
        // The old monitor is not shut down; its memory is lost.
        self.fleet.monitor = Monitor::new(0, self.options.clone(), now);
        self.fleet = Fleet::open(self.dir.path(), self.options.clone(), now);
        start(
            self.queries,
            0..self.started,
            &mut self.fleet,
            self.dir.path(),
        );
        self.note_starts();
        self.killed_ago = 0;
    }

    /// Compares the results of all queries with those of an engine that was never killed and
    /// started each at the same instant.
    fn check_results(&mut self, name: &str, seed: u64, upto: Nanos) {
        for (number, (text, _)) in self.queries[..self.started].iter().enumerate() {
            let from = self.from[number];
            let wanted = expected(text, &mut self.produced, (from, upto));
            assert!(!wanted.is_empty());
            let shown = shown(self.dir.path(), number);
            let differs = |other: &Net| {
                let other = other.clone();
                move |(key, weight): &(&(i64, String), &i64)| other.get(*key) != Some(*weight)
            };
            let absent: Vec<_> = wanted.iter().filter(differs(&shown)).collect();
            let others: Vec<_> = shown.iter().filter(differs(&wanted)).collect();
            assert!(
                absent.is_empty() && others.is_empty(),
                "{name}, seed {seed}, {text}, from {from}: {absent:?} are absent, {others:?} wrong"
            );
        }
    }

    /// Starts the next queries, up to number `count`.
    fn start_next(&mut self, count: usize) {
        start(
            self.queries,
            self.started..count,
            &mut self.fleet,
            self.dir.path(),
        );
        self.started = count;
        self.note_starts();
    }

    /// Notes from which instant on the results of each query are complete.
    fn note_starts(&mut self) {
        let queries = self.fleet.monitor.queries();
        for (number, (_, running)) in queries.enumerate() {
            match self.from.get_mut(number) {
                None => self.from.push(running.from),
                // Without a window no result depends on earlier rows.
                Some(from) if running.restarted_at.is_none() => *from = running.from,
                Some(_) => {}
            }
        }
    }

    /// Connects all hosts and delivers all messages.
    fn settle(&mut self, mut now: Nanos) {
        for _ in 0..20 {
            now += 20;
            for host in &mut self.hosts {
                if host.link.is_none() {
                    host.join(&mut self.fleet);
                }
                host.live(None, now);
                host.deliver(usize::MAX / 2, &mut self.fleet);
            }
            self.fleet.tick(now);
        }
    }

    /// Runs all hosts for a number of steps from `now` on; returns the end time.
    fn run(&mut self, steps: usize, mut now: Nanos) -> Nanos {
        for _ in 0..steps {
            now += 3 + self.random.u64(..8) as i64;
            for at in 0..self.hosts.len() {
                self.live(at, now);
                match self.random.u64(..12) {
                    0 => self.hosts[at].leave(&mut self.fleet),
                    1..4 if self.hosts[at].link.is_none() => {
                        self.hosts[at].join(&mut self.fleet);
                    }
                    _ => {}
                }
                let words = self.random.u64(..8) as usize;
                self.hosts[at].deliver(words, &mut self.fleet);
            }
            self.fleet.tick(now);
            if self.random.u64(..3) == 0 {
                self.fleet.monitor.await_checkpoint(now);
            }
            self.killed_ago = self.killed_ago.saturating_add(1);
            let (first, again) = self.kill_every;
            let recovers = self.killed_ago <= RECOVERING;
            if self.random.u64(..if recovers { again } else { first }) == 0 {
                self.kill(now);
            }
        }
        now
    }
}

/// Options in which every agent is waited for.
fn patient() -> MonitorOptions {
    MonitorOptions {
        exclude_after: 1_000_000,
        recovery: 1_000_000,
        ..options()
    }
}

#[test]
fn results_are_those_of_an_engine_that_was_never_killed() {
    let patient = patient();
    let mut kills = 0;
    for (name, queries) in [("exact", QUERIES), ("rows", ROWS)] {
        for seed in 0..8 {
            kills += runs_exactly(name, queries, seed, &patient);
        }
    }
    assert!(kills > 60, "{kills}");
}

/// Queries that read the same channel and start one after the other.
const ONE_CHANNEL: Queries = &[
    ("SELECT host, a FROM S", PlacementStrategy::Rows),
    (
        "SELECT host, a FROM S [Range 300 ns]",
        PlacementStrategy::Rows,
    ),
    (
        "SELECT host, count(*), sum(a) FROM S [Range 400 ns] GROUP BY host",
        PlacementStrategy::Rows,
    ),
    (
        "SELECT host, a FROM S [Range 60 ns Slide 20 ns]",
        PlacementStrategy::Rows,
    ),
];

#[test]
fn a_query_that_started_later_continues_with_its_own_rows() {
    let patient = patient();
    let mut kills = 0;
    for seed in 0..12 {
        let mut drill = Drill::with_first(1, ONE_CHANNEL, seed, patient.clone());
        let mut now = START + 10;
        for started in 2..=ONE_CHANNEL.len() {
            now = drill.run(15, now);
            drill.start_next(started);
        }
        now = drill.run(60, now);
        drill.settle(now);
        let upto = drill.fleet.monitor.watermark();
        drill.check_results("later", seed, upto);
        kills += drill.kills;
    }
    assert!(kills > 30, "{kills}");
}

/// Checks that results are exact, and that no row is counted as lost or late; returns the number of
/// kills.
fn runs_exactly(name: &str, queries: Queries, seed: u64, options: &MonitorOptions) -> usize {
    let mut drill = Drill::new(queries, seed, options.clone());
    let now = drill.run(150, START + 10);
    drill.settle(now);
    let upto = drill.fleet.monitor.watermark();
    let monitor = &drill.fleet.monitor;
    for (at, host) in drill.hosts.iter().enumerate() {
        let produced: u64 = host.tallies().tallies.iter().map(|t| t.produced).sum();
        let account = monitor.agents().nth(at).unwrap().account;
        assert_eq!(
            account.in_time, produced,
            "{name}, seed {seed}, {account:?}"
        );
        assert_eq!(account.late + account.lost, 0, "{name}, seed {seed}");
    }
    assert!(drill.from.iter().all(|from| *from == START));
    drill.check_results(name, seed, upto);
    let monitor = &drill.fleet.monitor;
    let goes_on = |q: &Running| q.restarted_at.is_none() || q.memory.is_none();
    assert!(monitor.queries().all(|(_, q)| goes_on(q)));
    drill.kills
}

/// Agents that are killed too, each with the count of rows that its processes produced.
struct Fates {
    hosts: u64,
    produced: Vec<u64>,
    earlier: Vec<Vec<EarlierProcess>>,
}

impl Fates {
    /// Kills an agent and drops its unsent messages; another process starts.
    fn kill(&mut self, at: usize, drill: &mut Drill, now: Nanos) {
        drill.hosts[at].leave(&mut drill.fleet);
        let tallies = drill.hosts[at].tallies();
        self.produced[at] += tallies.tallies.iter().map(|t| t.produced).sum::<u64>();
        self.earlier[at].push(tallies);
        self.hosts += 1;
        let name = drill.hosts[at].name.clone();
        drill.hosts[at] = Host::new(&name, 100 + self.hosts);
        drill.hosts[at].live(None, now);
        drill.hosts[at].earlier = self.earlier[at].clone();
    }
}

#[test]
fn delivered_plus_lost_equals_produced_after_any_kill() {
    let hasty = MonitorOptions {
        exclude_after: 60,
        recovery: 120,
        forget_after: Nanos::MAX,
        ..options()
    };
    let (mut late, mut lost) = (0, 0);
    for seed in 0..8 {
        let mut drill = Drill::new(QUERIES, seed, hasty.clone());
        drill.unique = true;
        let mut fates = Fates {
            hosts: 0,
            produced: vec![0; 3],
            earlier: vec![Vec::new(); 3],
        };
        let mut now = START + 10;
        for _ in 0..8 {
            now = drill.run(20, now);
            let at = drill.random.u64(..3) as usize;
            fates.kill(at, &mut drill, now);
        }
        drill.settle(now);
        for (at, host) in drill.hosts.iter().enumerate() {
            let tallies = host.tallies();
            fates.produced[at] += tallies.tallies.iter().map(|t| t.produced).sum::<u64>();
            let mut agents = drill.fleet.monitor.agents();
            let agent = agents.find(|a| a.host.as_str() == host.name).unwrap();
            let account = agent.account;
            assert_eq!(
                account.produced(),
                fates.produced[at],
                "seed {seed}, {account:?}"
            );
            (late, lost) = (late + account.late, lost + account.lost);
        }
        let rows = shown(drill.dir.path(), 0);
        assert!(!rows.is_empty());
        let mut seen = BTreeSet::new();
        for ((_, row), count) in &rows {
            assert_eq!(*count, 1, "seed {seed}: {row} came twice");
            assert!(seen.insert(row), "seed {seed}: {row} came at two instants");
        }
    }
    assert!(late > 0 && lost > 0, "{late} late, {lost} lost");
}

/// The same channel for a query without a window and, in the second case, also for one with a
/// window.
const COUNTED: [Queries; 2] = [
    ROWS,
    &[
        ("SELECT host, a FROM S", PlacementStrategy::Rows),
        (
            "SELECT host, a FROM S [Range 60 ns]",
            PlacementStrategy::Rows,
        ),
    ],
];

#[test]
fn rows_that_are_in_no_result_are_counted() {
    let mut lost = 0;
    for exclude_after in [40, 60, 200] {
        for seed in 0..8 {
            let options = MonitorOptions {
                exclude_after,
                recovery: 2 * exclude_after,
                forget_after: Nanos::MAX,
                ..options()
            };
            for (case, queries) in COUNTED.into_iter().enumerate() {
                let name = format!("counted-{case}-{exclude_after}");
                lost += counts_what_is_missing(&name, queries, seed, &options);
            }
        }
    }
    assert!(lost > 0, "nothing was given up");
}

/// Checks that every missing row is counted; returns the number counted as lost.
fn counts_what_is_missing(
    name: &str,
    queries: Queries,
    seed: u64,
    options: &MonitorOptions,
) -> u64 {
    let mut drill = Drill::new(queries, seed, options.clone());
    drill.unique = true;
    let now = drill.run(150, START + 10);
    drill.settle(now);
    let shown = shown(drill.dir.path(), 0);
    let mut lost = 0;
    for host in &drill.hosts {
        let [tally] = host.tallies().tallies[..] else {
            panic!("the queries share a channel");
        };
        let quoted = format!("\"{}\"", host.name);
        let rows = shown.keys().filter(|(_, row)| row.contains(&quoted));
        let delivered = rows.count() as u64;
        let mut agents = drill.fleet.monitor.agents();
        let agent = agents.find(|a| a.host.as_str() == host.name).unwrap();
        let account = agent.account;
        assert_eq!(account.produced(), tally.produced);
        // Rows that arrived in time once, but not after the restart, may be counted although they
        // are in results.
        assert!(
            delivered + account.late + account.lost >= tally.produced,
            "{name}, seed {seed}, {}: {delivered} rows are there, {account:?}",
            host.name
        );
        lost += account.lost;
    }
    lost
}
