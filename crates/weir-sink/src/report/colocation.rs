//! The advice of `weir advise` on the placement of disks, for a terminal.

use weir_model::Unit;
use weir_workload::colocation::{
    AdvisedDevice, AdvisedDisk, ColocationReport, DiskAffinity, DiskMove, LatencyEstimate,
    LatencyObjective, Neighbour, PlacementOutcome, SharedDevice,
};

use crate::number::scaled;
use crate::plot::thousands;
use crate::text::{aligned, shown};
use crate::time::readable;

/// A correlation of loads beyond this is named as a reason.
const CORRELATION_NAMED: f64 = 0.5;

/// A difference of shares beyond this is named as a reason.
const DIFFERENCE_NAMED: f64 = 0.3;

/// The whole report.
pub fn text(report: &ColocationReport) -> String {
    let mut out = format!("{}\n\n", heading(report));
    for line in conclusion(report) {
        out += &format!("{line}\n");
    }
    for change in &report.moves {
        out += &format!("\n{}\n", title(change));
        for reason in reasons(change) {
            out += &format!("   {reason}\n");
        }
    }
    for table in tables(report) {
        out.push('\n');
        out += &aligned(&table);
    }
    for remark in remarks(report) {
        out += &format!("\n{remark}\n");
    }
    out
}

/// What was read.
pub(super) fn heading(report: &ColocationReport) -> String {
    let from: String = readable(report.begin_ns).chars().take(19).collect();
    let until: String = readable(report.end_ns).chars().take(19).collect();
    format!(
        "{} requests of {} on {}, {from} to {until}",
        thousands(&report.requests.to_string()),
        count(report.disks.len(), "disk"),
        count(report.devices.len() + report.unmeasured.len(), "device"),
    )
}

/// The advice, and the prediction for all requests.
pub(super) fn conclusion(report: &ColocationReport) -> Vec<String> {
    let objective = objective(report.objective);
    let moves: Vec<String> = report.moves.iter().map(title).collect();
    let moves = moves.join(", ");
    let mut lines = vec![match &report.outcome {
        PlacementOutcome::Recommended => format!("recommended: {moves}"),
        PlacementOutcome::WithinError => format!(
            "no recommendation: the gain of the best change ({moves}) is below the error of the \
             model"
        ),
        PlacementOutcome::NoBetterPlacement => {
            "no recommendation: no move or exchange of disks is predicted to be better".to_owned()
        }
        PlacementOutcome::NotInSecondHalf => "no recommendation: the changes that improve the \
            first half of the recording do not improve the second one"
            .to_owned(),
        PlacementOutcome::UnmeasuredRequests(device) => format!(
            "no recommendation: the best change ({moves}) brings requests to {} that differ from \
             all with which it was measured; measure it by --calibration",
            shown(&device.to_string())
        ),
        PlacementOutcome::UnknownError(device) => format!(
            "no recommendation: {} had too few requests to determine the error of its model; a \
             longer recording or --calibration is needed",
            shown(&device.to_string())
        ),
        PlacementOutcome::OneDevice => "no recommendation: fewer than two devices had enough \
            requests to be measured; give the recordings of several hosts, or measure another \
            device by --calibration"
            .to_owned(),
        PlacementOutcome::NoRequests => {
            "no recommendation: no requests with a known latency".to_owned()
        }
    }];
    if let (Some(recorded), Some(predicted)) = (report.recorded_ns, &report.predicted)
        && !report.moves.is_empty()
    {
        let gain = 100.0 * (1.0 - predicted.value_ns / recorded);
        lines.push(format!(
            "predicted for the second half of the recording: {objective} of all requests {}, \
             recorded {} ({gain:.0} % less)",
            estimate(predicted),
            duration(recorded),
        ));
    }
    lines
}

pub(super) fn objective(objective: LatencyObjective) -> &'static str {
    match objective {
        LatencyObjective::Mean => "mean latency",
        LatencyObjective::P99 => "p99 latency",
    }
}

pub(super) fn title(change: &DiskMove) -> String {
    let texts = [
        change.disk.to_string(),
        change.from.to_string(),
        change.to.to_string(),
    ];
    let [disk, from, to] = texts.map(|text| shown(&text).into_owned());
    match change.from.host == change.to.host {
        true if disk.contains(&from) => format!("move {disk} to {to}"),
        _ => format!("move {disk} from {from} to {to}"),
    }
}

/// How the load of a disk that moves relates to its neighbours.
pub(super) fn reasons(change: &DiskMove) -> Vec<String> {
    let line = |verb: &str, neighbour: &Neighbour| {
        let disk = neighbour.disk.to_string();
        format!("{verb} {}: {}", shown(&disk), affinity(&neighbour.affinity))
    };
    let leaves = change.leaves.iter().map(|n| line("leaves", n));
    let joins = change.joins.iter().map(|n| line("joins", n));
    let mut lines: Vec<String> = leaves.chain(joins).collect();
    if change.joins.is_empty() {
        lines.push("has the device alone afterwards".to_owned());
    }
    lines
}

/// How two loads relate.
pub(super) fn affinity(affinity: &DiskAffinity) -> String {
    let mut parts = Vec::new();
    if let Some(r) = affinity.load_correlation {
        let meaning = match r {
            r if r > CORRELATION_NAMED => "busy at the same time",
            r if r < -CORRELATION_NAMED => "busy at different times",
            _ => "loads unrelated",
        };
        parts.push(format!("{meaning} (r = {r:.2})"));
    }
    parts.push(format!(
        "common peak {:.0} % of both peaks",
        100.0 * affinity.peak_overlap
    ));
    if affinity.sequential_difference > DIFFERENCE_NAMED {
        parts.push("sequential and random requests".to_owned());
    }
    if affinity.read_difference > DIFFERENCE_NAMED {
        parts.push("reads and writes".to_owned());
    }
    parts.join(", ")
}

/// Devices, disks and pairs, each with a header; empty ones are omitted.
pub(super) fn tables(report: &ColocationReport) -> Vec<Vec<Vec<String>>> {
    let header = |names: &[&str]| vec![names.iter().map(|n| (*n).to_owned()).collect()];
    let mut devices: Vec<Vec<String>> = header(&[
        "DEVICE",
        "MEASURED",
        "SERVES",
        "ERROR",
        "DISKS",
        "RECORDED",
        "MODEL",
        "PREDICTED",
        "USED",
    ]);
    let objective = report.objective;
    devices.extend(report.devices.iter().map(|d| device(d, objective)));
    let mut disks: Vec<Vec<String>> = header(&[
        "DISK",
        "REQUESTS",
        "RATE",
        "READS",
        "SEQUENTIAL",
        "ARRIVALS",
        "RECORDED",
        "MODEL",
        "PREDICTED",
    ]);
    disks.extend(report.disks.iter().map(disk));
    let mut pairs: Vec<Vec<String>> =
        header(&["TOGETHER", "AND", "SLOWER", "INTERVAL", "ADVICE", "LOADS"]);
    pairs.extend(report.sharing.iter().map(pair));
    let tables = [devices, disks, pairs].into_iter();
    tables.filter(|rows| rows.len() > 1).collect()
}

fn device(device: &AdvisedDevice, objective: LatencyObjective) -> Vec<String> {
    let [before, after] = [device.disks_before.len(), device.disks_after.len()];
    let share = |share: f64| format!("{:.0} %", 100.0 * share);
    let used = [device.utilisation, device.utilisation_predicted].map(|u| u.map(share));
    vec![
        shown(&device.device.to_string()).into_owned(),
        match device.calibrated {
            true => "calibration".to_owned(),
            false => "recording".to_owned(),
        },
        channels(device.channels),
        match device.accuracy {
            None => "-".to_owned(),
            Some(accuracy) => {
                let factor = match objective {
                    LatencyObjective::Mean => accuracy.mean_factor,
                    LatencyObjective::P99 => accuracy.p99_factor,
                };
                format!("{:.0} %", 100.0 * (factor - 1.0))
            }
        },
        changed(before.to_string(), after.to_string()),
        optional(device.recorded_ns),
        device
            .modelled
            .map_or("-".to_owned(), |e| duration(e.value_ns)),
        device.predicted.as_ref().map_or("-".to_owned(), estimate),
        match used {
            [Some(before), Some(after)] => changed(before, after),
            [Some(before), None] => before,
            [None, after] => after.unwrap_or_else(|| "-".to_owned()),
        },
    ]
}

fn changed(before: String, after: String) -> String {
    match before == after {
        true => before,
        false => format!("{before} > {after}"),
    }
}

/// The plausible numbers of channels.
pub(super) fn channels([least, most]: [Option<usize>; 2]) -> String {
    match (least, most) {
        (None, _) => "all at once".to_owned(),
        (Some(least), None) => format!("{least} or more"),
        (Some(least), Some(most)) if least == most => format!("{least} at once"),
        (Some(least), Some(most)) => format!("{least} to {most}"),
    }
}

fn disk(disk: &AdvisedDisk) -> Vec<String> {
    let shape = &disk.shape;
    vec![
        shown(&disk.disk.to_string()).into_owned(),
        thousands(&disk.requests.to_string()),
        format!("{:.1}/s", shape.rate_iops),
        format!("{:.0} %", 100.0 * shape.read_share),
        format!("{:.0} %", 100.0 * shape.sequential_share),
        match shape.closed_loop {
            true => format!("closed, {} in flight", shape.in_flight_max),
            false => "open".to_owned(),
        },
        optional(disk.recorded_ns),
        disk.modelled
            .map_or("-".to_owned(), |e| duration(e.value_ns)),
        disk.predicted.as_ref().map_or("-".to_owned(), estimate),
    ]
}

fn pair(pair: &SharedDevice) -> Vec<String> {
    let [a, b] = pair
        .disks
        .each_ref()
        .map(|disk| shown(&disk.to_string()).into_owned());
    let [low, high] = pair.slowdown_interval;
    vec![
        a,
        b,
        format!("{:.2} times", pair.slowdown),
        format!("{low:.2} to {high:.2}"),
        pair.advice.as_str().to_owned(),
        affinity(&pair.affinity),
    ]
}

/// What limits the report.
pub(super) fn remarks(report: &ColocationReport) -> Vec<String> {
    let mut lines = Vec::new();
    for device in &report.unmeasured {
        lines.push(format!(
            "{} had too few requests to be measured; its disks are not moved",
            shown(&device.to_string())
        ));
    }
    if report.requests_untimed > 0 {
        let count = thousands(&report.requests_untimed.to_string());
        lines.push(format!(
            "{count} requests without a known latency are not used"
        ));
    }
    if report.requests_omitted > 0 {
        let count = thousands(&report.requests_omitted.to_string());
        lines.push(format!("{count} requests beyond the limits are not used"));
    }
    lines
}

fn optional(ns: Option<f64>) -> String {
    ns.map_or("-".to_owned(), duration)
}

/// A value and its interval.
pub(super) fn estimate(estimate: &LatencyEstimate) -> String {
    let [low, high] = estimate.interval_ns.map(duration);
    format!("{} ({low} to {high})", duration(estimate.value_ns))
}

pub(super) fn duration(ns: f64) -> String {
    scaled(ns, Unit::Nanoseconds).expect("times are scaled")
}

fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}
