//! The pairs of disks of `weir correlate` as one HTML page: heat map, graph, table and evidence.

use std::collections::BTreeSet;

use weir_workload::HostedDisk;
use weir_workload::correlation::{CorrelationSummary, DiskPair, PairSummary, PairVerdict};

use super::colocation_html::table;
use super::correlation::{duration, heading, name, pair_evidence, rows, verdict, with_hosts};
use super::html::{figures, page, paragraph};
use crate::plot::svg::{coefficient_graph, coefficient_matrix};
use crate::plot::{CoefficientPair, CoefficientPlot};

/// The disks that are drawn, those of the strongest pairs.
const DISKS_MAX: usize = 40;

/// The page, with at most `top` pairs. Names come from guests and hosts, so all external text is
/// escaped.
pub fn html(summary: &CorrelationSummary, top: usize) -> String {
    let summary = &with_hosts(summary);
    let mut body = String::new();
    paragraph(&mut body, "verdict", heading(summary).trim_end());
    let pairs: Vec<&PairSummary> = summary.pairs.iter().take(top).collect();
    let (plot, omitted) = plot(summary, &pairs);
    if !plot.pairs.is_empty() {
        let graph = CoefficientPlot {
            title: "Which disk leads or slows which".to_owned(),
            ..plot.clone()
        };
        figures(
            &mut body,
            &[coefficient_matrix(&plot), coefficient_graph(&graph)],
        );
        if omitted > 0 {
            let text = format!("{omitted} pairs of further disks are not drawn");
            paragraph(&mut body, "faint", &text);
        }
        table(&mut body, &rows(&pairs));
    }
    for (number, pair) in (1..).zip(&pairs) {
        let evidence = pair_evidence(summary.metric, &pair.strongest);
        let evidence = format!("#{number} {evidence}");
        for (line, text) in evidence.lines().enumerate() {
            paragraph(&mut body, if line == 0 { "" } else { "faint" }, text.trim());
        }
    }
    page("Correlation of disks", &body)
}

/// The strongest pairs of at most [`DISKS_MAX`] disks, and the number of the others.
fn plot(summary: &CorrelationSummary, pairs: &[&PairSummary]) -> (CoefficientPlot, usize) {
    let mut disks: BTreeSet<&HostedDisk> = BTreeSet::new();
    let mut drawn: Vec<&DiskPair> = Vec::new();
    for pair in pairs.iter().map(|pair| &pair.strongest) {
        let mut with = disks.clone();
        with.extend([&pair.leader, &pair.follower]);
        if with.len() <= DISKS_MAX {
            disks = with;
            drawn.push(pair);
        }
    }
    let disks: Vec<&HostedDisk> = disks.into_iter().collect();
    let position = |disk: &HostedDisk| {
        let found = disks.iter().position(|of| *of == disk);
        found.expect("the disks of drawn pairs are drawn")
    };
    let of_pair = |pair: &&DiskPair| {
        let (mut from, mut to) = (position(&pair.leader), position(&pair.follower));
        if pair.verdict == PairVerdict::FollowerSlowsLeader {
            (from, to) = (to, from);
        }
        let slows = [
            PairVerdict::LeaderSlowsFollower,
            PairVerdict::FollowerSlowsLeader,
        ];
        let lag = match pair.lag_ns {
            0 => String::new(),
            lag_ns => format!(", {} later", duration(lag_ns as f64)),
        };
        CoefficientPair {
            from,
            to,
            coefficient: pair.coefficient,
            directed: pair.lag_ns > 0 || slows.contains(&pair.verdict),
            tooltip: format!(
                "{}, {}{lag}: r = {:.3}, {}",
                name(&pair.leader),
                name(&pair.follower),
                pair.coefficient,
                verdict(pair)
            ),
        }
    };
    let plot = CoefficientPlot {
        title: format!("Correlation by {}", summary.metric.as_str()),
        names: disks.iter().map(|disk| disk.to_string()).collect(),
        pairs: drawn.iter().map(of_pair).collect(),
    };
    (plot, pairs.len() - drawn.len())
}
