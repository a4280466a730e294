//! Pairs of disks of `weir correlate` for a terminal: the table of a window, and the summary with
//! the evidence of each verdict.

use std::collections::BTreeSet;

use weir_model::{Nanos, Unit};
use weir_workload::HostedDisk;
use weir_workload::correlation::{
    CorrelatedMetric, CorrelationReport, CorrelationSummary, DiskPair, LoadEffect, PairSummary,
    PairVerdict,
};

use crate::number::scaled;
use crate::text::{aligned, shown};
use crate::time::{readable, time_of_day};

/// Below, a probability is printed as a bound.
const P_MIN: f64 = 1e-12;

/// The pairs of the latest windows, at most `top` of them.
pub fn window(report: &CorrelationReport, top: usize) -> String {
    let [from, until] = [report.begin_ns, report.end_ns].map(seconds);
    let metric = report.metric.as_str();
    let mut out = format!(
        "weir correlate  {from} to {until}  {metric}  {} of {} disks compared, {}",
        report.compared,
        report.disks,
        count(report.pairs.len() as u64 + report.pairs_omitted, "pair"),
    );
    if report.insignificant > 0 {
        out += &format!(", {} may be due to chance", report.insignificant);
    }
    out.push('\n');
    if !report.pairs.is_empty() {
        let header = ["R", "95 %", "DISK", "LAG", "OTHER DISK", "P", "VERDICT"];
        let rows = report.pairs.iter().take(top).map(cells);
        out += &table(&header, rows);
        out.push('\n');
    }
    out += &omitted(report.pairs.len(), top, report.pairs_omitted);
    out += &requests_omitted(report.requests_omitted);
    out
}

/// The pairs of all windows, at most `top` of them, each with its evidence.
pub fn summary(summary: &CorrelationSummary, top: usize) -> String {
    let summary = &with_hosts(summary);
    let mut out = heading(summary);
    if summary.windows == 0 {
        out += "no two disks had I/O for a whole window; a shorter --window needs less time\n";
    }
    if !summary.pairs.is_empty() {
        let pairs: Vec<&PairSummary> = summary.pairs.iter().take(top).collect();
        out.push('\n');
        out += &aligned(&rows(&pairs));
        for (number, pair) in (1..).zip(summary.pairs.iter().take(top)) {
            out += &format!(
                "\n#{number} {}",
                pair_evidence(summary.metric, &pair.strongest)
            );
        }
    }
    if summary.insignificant > 0 {
        out += &format!(
            "{} above the threshold in single windows may be due to chance\n",
            count(summary.insignificant, "pair")
        );
    }
    out += &omitted(summary.pairs.len(), top, summary.pairs_omitted);
    out += &requests_omitted(summary.requests_omitted);
    out
}

/// The same with the names of hosts only if there are several.
pub(super) fn with_hosts(summary: &CorrelationSummary) -> CorrelationSummary {
    let mut summary = summary.clone();
    let pairs = summary.pairs.iter().map(|pair| &pair.strongest);
    let hosts: BTreeSet<_> = pairs
        .flat_map(|pair| [pair.leader.host, pair.follower.host])
        .collect();
    if hosts.len() < 2 {
        for pair in summary.pairs.iter_mut().map(|pair| &mut pair.strongest) {
            (pair.leader.host, pair.follower.host) = (None, None);
        }
    }
    summary
}

/// The number of pairs and windows.
pub(super) fn heading(summary: &CorrelationSummary) -> String {
    let interval = summary.begin_ns.zip(summary.end_ns);
    let interval = interval.map_or(String::new(), |(begin, end)| {
        format!(", {} to {}", seconds(begin), seconds(end))
    });
    format!(
        "{} by {}{interval}, {}\n",
        count(summary.pairs.len() as u64, "pair"),
        summary.metric.as_str(),
        count(summary.windows, "window"),
    )
}

/// The pairs of a summary as cells, with a header.
pub(super) fn rows(pairs: &[&PairSummary]) -> Vec<Vec<String>> {
    let header = [
        "#",
        "R",
        "95 %",
        "DISK",
        "LAG",
        "OTHER DISK",
        "P",
        "VERDICT",
        "FROM",
        "TO",
        "WINDOWS",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend((1..).zip(pairs).map(|(number, pair): (usize, _)| {
        let mut row = vec![number.to_string()];
        row.extend(cells(&pair.strongest));
        row.extend([clock(pair.first_ns), clock(pair.last_ns)]);
        row.push(pair.windows.to_string());
        row
    }));
    rows
}

fn table(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let header = header.iter().map(|name| (*name).to_owned()).collect();
    aligned(&[header].into_iter().chain(rows).collect::<Vec<_>>())
}

fn cells(pair: &DiskPair) -> Vec<String> {
    let [low, high] = pair.coefficient_interval;
    vec![
        format!("{:.3}", pair.coefficient),
        format!("{low:.2} to {high:.2}"),
        name(&pair.leader),
        match pair.lag_ns {
            0 => "same time".to_owned(),
            lag_ns => format!("leads by {}", duration(lag_ns as f64)),
        },
        name(&pair.follower),
        probability(pair.p_value),
        verdict(pair),
    ]
}

pub(super) fn verdict(pair: &DiskPair) -> String {
    let (leader, follower) = (name(&pair.leader), name(&pair.follower));
    match pair.verdict {
        PairVerdict::LeaderSlowsFollower => format!("{leader} slows {follower}"),
        PairVerdict::FollowerSlowsLeader => format!("{follower} slows {leader}"),
        other => other.as_str().to_owned(),
    }
}

/// What the verdict is based on.
pub(super) fn pair_evidence(metric: CorrelatedMetric, pair: &DiskPair) -> String {
    let [low, high] = pair.coefficient_interval;
    let (leader, follower) = (name(&pair.leader), name(&pair.follower));
    let lag = match pair.lag_ns {
        0 => "at the same time".to_owned(),
        lag_ns => format!("{follower} {} after {leader}", duration(lag_ns as f64)),
    };
    let mut out = format!(
        "{leader} and {follower}: {}\n   r = {:.3} of {} ({low:.2} to {high:.2}), {lag}, {} to {}; \
         {:.0} independent values, p = {}\n",
        verdict(pair),
        pair.coefficient,
        metric.as_str(),
        clock(pair.begin_ns),
        clock(pair.end_ns),
        pair.effective_values,
        probability(pair.p_value),
    );
    out += &effect(&leader, &follower, &pair.leader_on_follower);
    if pair.lag_ns == 0 {
        out += &effect(&follower, &leader, &pair.follower_on_leader);
    }
    out
}

fn effect(cause: &str, victim: &str, effect: &LoadEffect) -> String {
    let number = |name: &str| {
        let found = effect.evidence.iter().find(|e| e.name == name);
        found.map(|e| e.value)
    };
    let mut out = String::new();
    let equal = [
        "equal_load_latency_ratio",
        "equal_load_z",
        "equal_load_intervals_more",
        "equal_load_intervals_less",
    ];
    if let [Some(ratio), Some(z), Some(more), Some(less)] = equal.map(number) {
        out += &format!(
            "   latency of {victim} with more load of {cause}, at equal own load: {ratio:.2} times \
             (z = {z:.1}; {more:.0} and {less:.0} steps)\n"
        );
    }
    let active = [
        "latency_with_ns",
        "latency_without_ns",
        "rank_sum_z",
        "intervals_with",
        "intervals_without",
    ];
    if let [Some(with), Some(without), Some(z), Some(active), Some(idle)] = active.map(number) {
        let [with, without] = [with, without].map(duration);
        out += &format!(
            "   latency of {victim} while {cause} is active: {with}, idle: {without} (z = {z:.1}; \
             {active:.0} and {idle:.0} steps)\n"
        );
    }
    if effect.slows.is_none() {
        out += &format!(
            "   effect of {cause} on the latency of {victim}: unknown; the load of {victim} changes \
             with that of {cause}, or too few steps have latencies\n"
        );
    } else if out.is_empty() {
        out += &format!("   latency of {victim}: not higher while {cause} is active\n");
    }
    out
}

fn omitted(pairs: usize, top: usize, more: u64) -> String {
    match pairs.saturating_sub(top) as u64 + more {
        0 => String::new(),
        omitted => format!("{omitted} further pairs are not shown\n"),
    }
}

fn requests_omitted(requests: u64) -> String {
    match requests {
        0 => String::new(),
        requests => format!("{requests} requests of further disks are not compared\n"),
    }
}

fn count(number: u64, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}

pub(super) fn name(subject: &HostedDisk) -> String {
    shown(&subject.to_string()).into_owned()
}

pub(super) fn duration(ns: f64) -> String {
    scaled(ns, Unit::Nanoseconds).expect("times are scaled")
}

fn probability(p: f64) -> String {
    match p < P_MIN {
        true => format!("<{P_MIN:.0e}"),
        false => format!("{p:.0e}"),
    }
}

/// An instant to seconds, if it is one.
fn seconds(at_ns: Nanos) -> String {
    without_zeros(readable(at_ns))
}

fn clock(at_ns: Nanos) -> String {
    without_zeros(time_of_day(at_ns))
}

fn without_zeros(text: String) -> String {
    match text.strip_suffix(".000000") {
        Some(whole) => whole.to_owned(),
        None => text,
    }
}
