//! What must be true at the end of a run.

use std::collections::{BTreeMap, BTreeSet};

use weir_model::{Batch, Column, Nanos};
use weir_query::engine::{Engine, EngineOptions, EngineOutput};
use weir_wire::ChannelId;

use crate::host::{Host, Row};
use crate::queries::{Query, SOURCES, catalog};
use crate::server::Delivered;
use crate::world::{FaultCounts, World};
use crate::{FaultKind, SECOND, START, Scenario};

/// What a run was.
#[derive(Clone, Debug)]
pub struct SimulationReport {
    /// What happened.
    pub scenario: Scenario,
    /// How often.
    pub faults: FaultCounts,
    /// Rows that went into agents.
    pub rows: usize,
    /// Requests that are counted as lost or late, of the first query.
    pub missing: u64,
    /// Changes in the results of all queries.
    pub changes: usize,
    /// Queries that failed because a step of the monitor had too many rows.
    pub too_big: u64,
    /// The placement strategies of the queries.
    pub ways: BTreeSet<String>,
}

/// Net changes: instant and row, and how often.
type Net = BTreeMap<(Nanos, String), i64>;

/// Compares the results of the monitor with the expected results.
///
/// # Errors
/// A description of the first difference.
pub fn check(world: &World) -> Result<SimulationReport, String> {
    let kind = world.scenario.kind;
    let mut report = SimulationReport {
        scenario: world.scenario.clone(),
        faults: world.faults,
        rows: world.hosts.iter().map(|host| host.rows.len()).sum(),
        missing: 0,
        changes: 0,
        too_big: 0,
        ways: world
            .queries
            .iter()
            .map(|q| q.cut.strategy.to_string())
            .collect(),
    };
    let context = |error: String| format!("{kind:?}, {:?}: {error}", world.faults);
    report.missing = check_losses(world).map_err(context)?;
    if !kind.is_hasty() {
        for (number, query) in world.queries.iter().enumerate() {
            match check_result(world, number, query).map_err(context)? {
                Some(changes) => report.changes += changes,
                None => report.too_big += 1,
            }
        }
    }
    Ok(report)
}

/// The net of a result.
fn net_of(text: &str) -> Net {
    let mut net = Net::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ' ');
        let mut next = || parts.next().expect("a line has three parts");
        let ts = next().parse().expect("an instant");
        let weight: i64 = next().parse().expect("a weight");
        *net.entry((ts, next().to_owned())).or_default() += weight;
    }
    net.retain(|_, weight| *weight != 0);
    net
}

/// The result of a query is that of one engine that saw what was delivered. Gives how many changes
/// that are; `None` if a step of the monitor had too many rows for it.
fn check_result(world: &World, number: usize, query: &Query) -> Result<Option<usize>, String> {
    let monitor = &world.server().monitor;
    let name = format!("q{number}");
    let upto = monitor.watermark();
    let running = monitor.queries().find(|(_, running)| running.name == name);
    let completeness = running.and_then(|(_, running)| running.publisher.completeness());
    let failed_hosts = completeness.is_some_and(|results| results.hosts_failed > 0);
    let failure = world.server().failed.get(&name);
    let failure = failure.map_or("", |why| why.as_str());
    let expected = match (expected(world, number, query, upto), running.is_some()) {
        (Ok(expected), true) => expected,
        // Sums and products of numbers of requests overflow, at the monitor or at an agent.
        (Err(_), false) => return Ok(Some(0)),
        (Err(_), true) if failed_hosts => return Ok(Some(0)),
        // A step of the monitor has many instants, one of the engine below has a single one.
        (Ok(_), false) if failure.ends_with("of rows in one step") => return Ok(None),
        (Ok(_), false) => {
            return Err(format!("query {number} failed: {}: {failure}", query.text));
        }
        (Err(why), true) => return Err(format!("query {number} runs: {}: {why}", query.text)),
    };
    let shown = net_of(&world.result(number));
    if shown == expected {
        return Ok(Some(expected.len()));
    }
    let only = |a: &Net, b: &Net| {
        let rows = a
            .iter()
            .filter(|(key, weight)| b.get(*key) != Some(*weight));
        let rows = rows.take(8).map(|((ts, row), weight)| {
            format!("  {:.6} {weight:+} {row}", (ts - START) as f64 / 1e9)
        });
        rows.collect::<Vec<_>>().join("\n")
    };
    let strategy = query.cut.strategy;
    Err(format!(
        "query {number}, {strategy}: {}\nonly the fleet gives\n{}\nonly one engine gives\n{}",
        query.text,
        only(&shown, &expected),
        only(&expected, &shown)
    ))
}

/// What one engine gives that sees everything that was delivered.
///
/// # Errors
/// When the query fails.
fn expected(world: &World, number: usize, query: &Query, upto: Nanos) -> Result<Net, String> {
    let mut rows: Vec<&Row> = world.hosts.iter().flat_map(|h| &h.rows).collect();
    rows.retain(|row| is_delivered(world, number, query, row));
    rows.sort_by_key(|row| row.ts);
    let mut engine = Engine::new(EngineOptions::default());
    for declaration in &catalog().declarations {
        engine.declare(declaration);
    }
    engine.begin(START + 1);
    engine.add(&query.plan);
    rows.retain(|row| row.ts <= upto);
    let (mut net, mut failure) = (Net::new(), None);
    let mut step = |engine: &mut Engine, at| {
        for source in SOURCES {
            engine.heartbeat(source, at);
        }
        engine.step(&mut |output| match output {
            EngineOutput::Rows { batch, .. } => {
                for row in 0..batch.len() {
                    let key = (batch.ts[row], format!("{:?}", batch.row(row)));
                    *net.entry(key).or_default() += batch.weight(row);
                }
            }
            EngineOutput::Failed { error, .. } => failure = Some(error.to_string()),
        });
    };
    // A step for each instant: the memory of a step is limited.
    for instant in rows.chunk_by(|a, b| a.ts == b.ts) {
        for row in instant {
            engine.push(SOURCES[row.source], batch(row));
        }
        step(&mut engine, instant[0].ts);
    }
    step(&mut engine, upto);
    net.retain(|_, weight| *weight != 0);
    failure.map_or(Ok(net), Err)
}

fn batch(row: &Row) -> Batch {
    let schema = catalog().declarations[row.source].schema.clone();
    let values = row.values.iter().enumerate();
    let columns = values.map(|(at, v)| Column::from_values(schema[at].ty, [v.clone()]));
    Batch {
        ts: vec![row.ts].into(),
        weights: (row.source == 2).then(|| vec![row.weight].into()),
        columns: columns.collect(),
    }
}

/// True if a row is in what its process delivered for a query before it was killed.
fn is_delivered(world: &World, number: usize, query: &Query, row: &Row) -> bool {
    let server = world.server();
    let instance = row.process as u64 + 1;
    let runs = |host: &Host| {
        host.process
            .as_ref()
            .is_some_and(|(n, _)| *n == row.process)
    };
    // An agent that ends in order delivers everything first.
    if !world.scenario.kind.kills_agents() || world.hosts.iter().any(runs) {
        return true;
    }
    let nothing = Delivered::default();
    let delivered = server.delivered.get(&instance).unwrap_or(&nothing);
    let channels = channels(world, number).unwrap_or_default();
    let fragments = query.cut.fragments.iter().zip(channels);
    let mut reading = fragments.filter(|(f, _)| {
        f.plan
            .sources()
            .iter()
            .any(|d| d.name == SOURCES[row.source])
    });
    let Some((fragment, channel)) = reading.next() else {
        return true;
    };
    let last = delivered.rows.get(&channel).copied().unwrap_or(Nanos::MIN);
    fragment.plan.emitted_by(row.ts) <= last.max(delivered.watermark)
}

/// The channels of a query's fragments, in their order, while it runs: queries with equal fragments
/// share one.
fn channels(world: &World, number: usize) -> Option<Vec<ChannelId>> {
    let name = format!("q{number}");
    let mut queries = world.server().monitor.queries();
    let running = queries.find(|(_, running)| running.name == name);
    running.map(|(_, running)| running.channels().collect())
}

/// Each row of stream `s` is in the result of the first query or counted as missing, each once;
/// gives how many are missing.
fn check_losses(world: &World) -> Result<u64, String> {
    let kind = world.scenario.kind;
    let shown = net_of(&world.result(0));
    let mut seen = BTreeSet::new();
    for ((_, row), count) in &shown {
        if *count != 1 || !seen.insert(row) {
            return Err(format!("{row} came twice"));
        }
    }
    let of_s = |host: &Host| host.rows.iter().filter(|row| row.source == 0).count();
    let produced: u64 = world
        .hosts
        .iter()
        .map(|host| of_s(host) as u64 + host.missed)
        .sum();
    let mut missing = 0;
    let mut counted_by = vec![(0, shown.len() as u64)];
    // A query that starts again does not retract its earlier results.
    if kind != FaultKind::HastyMonitorRestarts {
        counted_by.push((1, requests_in_groups(&net_of(&world.result(1)))));
    }
    for (number, delivered) in counted_by {
        let name = format!("q{number}");
        let mut queries = world.server().monitor.queries();
        let (_, running) = queries.find(|(_, r)| r.name == name).expect("it runs");
        let completeness = running
            .publisher
            .completeness()
            .cloned()
            .unwrap_or_default();
        let counted = completeness.rows_lost + completeness.rows_late;
        let absent = produced.checked_sub(delivered);
        let is_right = match absent {
            None => false,
            // What was in a result before the monitor was killed may be counted too.
            Some(absent) if kind == FaultKind::HastyMonitorRestarts => counted >= absent,
            Some(absent) => counted == absent,
        };
        if !is_right {
            return Err(format!(
                "query {number}: {delivered} of {produced} requests were delivered, and \
                 {completeness:?}"
            ));
        }
        if completeness.rows_away > 0 {
            return Err(format!("all agents are there: {completeness:?}"));
        }
        if !kind.is_hasty() && completeness.rows_late > 0 {
            return Err(format!("everything is waited for: {completeness:?}"));
        }
        missing = counted;
    }
    Ok(missing)
}

/// Requests in the groups of the second query: a group is there from the end of its slide to that
/// of the next one, and one that is like it has no change of its own.
fn requests_in_groups(net: &Net) -> u64 {
    let mut content: BTreeMap<&str, i64> = BTreeMap::new();
    let mut changes = net.iter().peekable();
    let last = net.keys().last().map_or(START, |(ts, _)| *ts);
    let mut requests = 0;
    for slide in 0..=(last - START) / SECOND {
        let at = START + slide * SECOND;
        while let Some(((_, row), weight)) = changes.next_if(|((ts, _), _)| *ts <= at) {
            *content.entry(row).or_default() += weight;
        }
        let counts = content.iter().map(|(row, weight)| count_of(row) * weight);
        requests += counts.sum::<i64>();
    }
    u64::try_from(requests).expect("a count is not negative")
}

/// The count in a row of the second query: its last column.
fn count_of(row: &str) -> i64 {
    let digits = row
        .rsplit("Int(")
        .next()
        .and_then(|end| end.split(')').next());
    digits.and_then(|n| n.parse().ok()).expect("a count")
}
