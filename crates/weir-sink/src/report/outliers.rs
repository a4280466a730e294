//! The slowest requests for a terminal and as pictures: a table, and for each the requests around
//! it, with a timeline.

use std::cmp::Reverse;

use weir_model::{Nanos, Op, Unit};
use weir_workload::SubjectName;
use weir_workload::outliers::{Outlier, OutlierReport, RequestGroup, RequestSpan};

use crate::number::scaled;
use crate::plot::svg::{self, Picture};
use crate::plot::{TimelineBar, TimelinePlot, terminal};
use crate::text::{aligned, shown};
use crate::time::readable;

/// Requests around an outlier in a timeline for a terminal, and in a picture.
const SHOWN_MAX: usize = 10;
const DRAWN_MAX: usize = 40;

/// Groups of requests around an outlier that are printed.
const GROUPS_MAX: usize = 8;

/// Columns of a timeline, and of the labels beside it.
const COLUMNS: usize = 40;
const LABELS: usize = 76;

/// The report as text.
pub fn text(report: &OutlierReport) -> String {
    let mut out = heading(report);
    if report.outliers.is_empty() {
        return out;
    }
    out.push('\n');
    out += &table(&report.outliers);
    for (number, outlier) in (1..).zip(&report.outliers) {
        out.push('\n');
        out += &section(number, outlier);
    }
    out
}

/// A timeline for each outlier, one below the other.
pub fn picture(report: &OutlierReport) -> String {
    let pictures: Vec<Picture> = (1..)
        .zip(&report.outliers)
        .map(|(number, outlier)| {
            let title = format!("{number}. {}", described(&outlier.request));
            svg::timeline(&timeline(title, outlier, DRAWN_MAX))
        })
        .collect();
    Picture::side_by_side("outliers", &pictures, 1).standalone()
}

fn heading(report: &OutlierReport) -> String {
    let interval = report.interval_ns.map(|(first, last)| last - first);
    let interval = interval.map_or(String::new(), |ns| format!(" in {}", duration(ns)));
    let (finished, over, listed) = (report.finished, report.over, report.outliers.len());
    let mut out = match report.over_ns {
        0 => format!("{listed} slowest of {finished} requests{interval}\n"),
        ns => {
            let limit = duration(ns);
            let shown = match over > listed as u64 {
                true => format!("; the slowest {listed} are shown"),
                false => String::new(),
            };
            format!("{over} of {finished} requests{interval} took longer than {limit}{shown}\n")
        }
    };
    if report.without_latency > 0 {
        out += &format!(
            "{} requests have no known latency\n",
            report.without_latency
        );
    }
    out
}

fn table(outliers: &[Outlier]) -> String {
    let header = [
        "#", "LATENCY", "LEVEL", "WAIT", "SERVICE", "OP", "SIZE", "ORDER", "DEPTH", "AROUND",
        "FINISHED", "ORIGIN",
    ];
    let mut rows: Vec<Vec<String>> = vec![header.map(str::to_owned).to_vec()];
    for (number, outlier) in (1..).zip(outliers) {
        let request = &outlier.request;
        let time = |ns: Option<Nanos>| ns.map_or_else(|| "-".to_owned(), duration);
        let finished = request.finished_ns.map(readable);
        let depth = outlier.queue_depth.map(|depth| depth.to_string());
        rows.push(vec![
            number.to_string(),
            time(request.latency_ns),
            request.level.unwrap_or("-").to_owned(),
            time(request.wait_ns),
            time(request.service_ns),
            operation(request.op).to_owned(),
            size(request.bytes),
            order(request).to_owned(),
            depth.unwrap_or_else(|| "-".into()),
            count(outlier),
            finished.unwrap_or_else(|| "-".into()),
            origin(&request.subject, request.process),
        ]);
    }
    aligned(&rows)
}

fn section(number: usize, outlier: &Outlier) -> String {
    let mut out = format!("#{number} {}\n", described(&outlier.request));
    if outlier.overlapping == 0 {
        return out + "   no other request of the device overlaps it\n";
    }
    let plural = if outlier.overlapping == 1 {
        "request of the device overlaps"
    } else {
        "requests of the device overlap"
    };
    out += &format!("   {} other {plural} it:\n", count(outlier));
    let rows: Vec<Vec<String>> = outlier.around.iter().take(GROUPS_MAX).map(group).collect();
    out += &indented(&aligned(&rows), 5);
    if let Some(more @ 1..) = outlier.around.len().checked_sub(GROUPS_MAX) {
        out += &format!("     and {more} further origins\n");
    }
    let plot = timeline(String::new(), outlier, SHOWN_MAX);
    out += &indented(&terminal::timeline(&plot, COLUMNS, LABELS), 3);
    let more = outlier.overlapping as usize + 1 - plot.bars.len();
    if more > 0 {
        out += &format!("   and {more} further requests with a shorter overlap\n");
    }
    out
}

/// The number of requests around an outlier.
fn count(outlier: &Outlier) -> String {
    let at_least = if outlier.is_complete { "" } else { ">=" };
    format!("{at_least}{}", outlier.overlapping)
}

fn group(group: &RequestGroup) -> Vec<String> {
    vec![
        format!("{} {}", group.requests, operation(group.op)),
        size(Some(group.bytes)),
        format!("{} sequential", group.sequential),
        origin(&group.subject, group.process),
    ]
}

/// A request in a sentence.
fn described(request: &RequestSpan) -> String {
    let latency = request
        .latency_ns
        .map_or_else(|| "unknown".into(), duration);
    let total: Nanos = request.levels.iter().map(|(_, ns)| ns).sum();
    let parts = request.levels.iter();
    let parts: Vec<String> = parts
        .map(|(level, ns)| format!("{} {level}", duration(*ns)))
        .collect();
    let share = |(level, ns): &(&str, Nanos)| {
        let at_device = matches!(*level, "service" | "device");
        at_device.then(|| 100.0 * *ns as f64 / total.max(1) as f64)
    };
    let share = request.levels.iter().find_map(share);
    let share = share.map(|share| format!(" ({share:.0} % at the device)"));
    let parts = match parts.is_empty() {
        true => String::new(),
        false => format!(" = {}{}", parts.join(" + "), share.unwrap_or_default()),
    };
    let failed = if request.failed { ", failed" } else { "" };
    let sector = request
        .sector
        .map_or(String::new(), |at| format!(" at sector {at}"));
    format!("{}{sector}: {latency}{parts}{failed}", summary(request))
}

/// The operation, size, order and origin of a request.
fn summary(request: &RequestSpan) -> String {
    let parts = [operation(request.op), &size(request.bytes), order(request)];
    let known: Vec<&str> = parts.into_iter().filter(|part| *part != "-").collect();
    format!(
        "{} of {}",
        known.join(" "),
        origin(&request.subject, request.process)
    )
}

/// The outlier, and the requests that overlap it most, in order of issue.
fn timeline(title: String, outlier: &Outlier, neighbours_max: usize) -> TimelinePlot {
    let slow = &outlier.request;
    let begin_ns = slow.inserted_ns.unwrap_or(slow.issued_ns);
    let end_ns = slow.finished_ns.unwrap_or(begin_ns);
    let overlap_ns = |other: &RequestSpan| {
        other.finished_ns.unwrap_or(end_ns).min(end_ns) - other.issued_ns.max(begin_ns)
    };
    let mut most: Vec<(usize, &RequestSpan)> = outlier.neighbours.iter().enumerate().collect();
    most.sort_by_key(|(place, other)| (Reverse(overlap_ns(other)), *place));
    most.truncate(neighbours_max);
    most.sort_by_key(|(place, _)| *place);
    let bar = |request: &RequestSpan, label: String| TimelineBar {
        label,
        inserted_ns: request.inserted_ns,
        issued_ns: request.issued_ns,
        finished_ns: request.finished_ns,
    };
    let others = most.into_iter().map(|(_, other)| {
        let latency = other.latency_ns.map_or_else(|| "unknown".into(), duration);
        bar(other, format!("{latency} {}", summary(other)))
    });
    let own = bar(
        slow,
        format!("{} this request", duration(end_ns - begin_ns)),
    );
    TimelinePlot {
        title,
        begin_ns,
        end_ns,
        bars: std::iter::once(own).chain(others).collect(),
    }
}

fn origin(subject: &SubjectName, process: Option<&str>) -> String {
    let subject = subject.to_string();
    let text = match process {
        Some(process) => format!("{process} ({subject})"),
        None => subject,
    };
    shown(&text).into_owned()
}

fn operation(letter: &str) -> &'static str {
    Op::from_letter(letter).map_or("-", Op::name)
}

fn order(request: &RequestSpan) -> &'static str {
    match request.sequential {
        Some(true) => "sequential",
        Some(false) => "random",
        None => "-",
    }
}

fn duration(ns: Nanos) -> String {
    scaled(ns as f64, Unit::Nanoseconds).unwrap_or_default()
}

fn size(bytes: Option<i64>) -> String {
    let scaled = bytes.and_then(|bytes| scaled(bytes as f64, Unit::Bytes));
    scaled.unwrap_or_else(|| "-".into())
}

fn indented(text: &str, columns: usize) -> String {
    let line = |line: &str| format!("{:columns$}{line}\n", "");
    text.lines().map(line).collect()
}
