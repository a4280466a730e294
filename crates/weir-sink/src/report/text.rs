//! A report as text: a paragraph for each disk, a line for each analysis.

use std::fmt::Write as _;

use weir_model::{NANOS_PER_SECOND, Nanos, Unit};
use weir_workload::analysis::arrivals::{Process, Source};
use weir_workload::analysis::bursts::Scale;
use weir_workload::analysis::load::Latency;
use weir_workload::analysis::order::Sequence;
use weir_workload::analysis::sizes::Lengths;
use weir_workload::{Advice, Confidence, Evidence, Interference, Missing, Profile, Report};

use crate::number::scaled;
use crate::text::{shown, width};

/// The indentation of the text.
const INDENT: usize = 14;

/// The line width, except for single long words.
const COLUMNS: usize = 100;

/// The whole report.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    if report.profiles.is_empty() {
        out.push_str("no requests\n");
    }
    for profile in &report.profiles {
        paragraph(&mut out, profile);
        out.push('\n');
    }
    if report.requests_omitted > 0 {
        let (left, kept) = (report.requests_omitted, report.profiles.len());
        let _ = writeln!(
            out,
            "{left} requests of disks beyond the first {kept} are omitted\n"
        );
    }
    if report.requests_impossible > 0 {
        let _ = writeln!(out, "{}\n", impossible(report));
    }
    if report.profiles.len() > 1 {
        together(&mut out, report);
    }
    out
}

/// The remark on requests with an impossible address.
pub(super) fn impossible(report: &Report) -> String {
    format!(
        "{} requests have an impossible address or length; they are counted as requests without \
         address",
        report.requests_impossible
    )
}

/// The section on all disks together.
fn together(out: &mut String, report: &Report) {
    out.push_str("together\n");
    for found in &report.interference {
        line(out, "neighbours", &[disturbance(found)]);
    }
    if report.interference.is_empty() && report.pairs_tested > 0 {
        let words = format!(
            "no interference found among {} pairs that share a device",
            report.pairs_tested
        );
        line(out, "neighbours", &[words]);
    }
    conclusions(out, &[], &report.missing);
    out.push('\n');
}

fn paragraph(out: &mut String, profile: &Profile) {
    let name = profile.subject.to_string();
    let label = profile.verdict.as_ref().map(|v| v.label.as_str());
    let label = label.unwrap_or("too few requests for a verdict");
    let _ = writeln!(out, "{}: {label}", shown(&name));
    for (label, phrases) in facts(profile) {
        line(out, label, &phrases);
    }
    conclusions(out, &profile.advice, &profile.missing);
}

/// The section of a disk: phrases by topic. A topic without data has none.
pub(super) fn facts(profile: &Profile) -> [(&'static str, Vec<String>); 10] {
    let (sizes, sequences) = (&profile.sizes, &profile.order);
    [
        ("requests", requests(profile)),
        ("mix", mix(profile)),
        ("reads", lengths(&sizes.reads, &sequences.reads)),
        ("writes", lengths(&sizes.writes, &sequences.writes)),
        ("order", order(&sequences.all)),
        ("arrivals", arrivals(profile)),
        ("parallelism", parallelism(profile)),
        ("latency", latency(profile)),
        ("regions", regions(profile)),
        ("reuse", reuse(profile)),
    ]
}

/// A label and phrases, wrapped.
fn line(out: &mut String, label: &str, phrases: &[String]) {
    if phrases.is_empty() {
        return;
    }
    let mut column = INDENT;
    let _ = write!(out, "  {label:<12}");
    let text = phrases.join("; ");
    for (i, word) in shown(&text).split(' ').enumerate() {
        if i > 0 && column + 1 + width(word) > COLUMNS {
            let _ = write!(out, "\n{:INDENT$}", "");
            column = INDENT;
        } else if i > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += width(word);
    }
    out.push('\n');
}

fn requests(profile: &Profile) -> Vec<String> {
    let mut phrases = vec![format!(
        "{} in {}",
        profile.requests,
        time(profile.span_ns as f64)
    )];
    let rate = profile.arrivals.rate_mean_per_s;
    phrases.extend(rate.map(|rate| format!("{} per second", figure(rate))));
    let confidence = profile.verdict.as_ref().map(|v| v.confidence.as_str());
    phrases.extend(confidence.map(|word| format!("confidence {word}")));
    phrases
}

fn mix(profile: &Profile) -> Vec<String> {
    let mix = &profile.mix;
    let mut phrases = Vec::new();
    if let (Some(requests), Some(bytes)) = (mix.read_share, mix.read_bytes_share) {
        phrases.push(format!(
            "{} reads by requests, {} by bytes",
            percent(requests),
            percent(bytes)
        ));
    }
    for (count, one, several) in [
        (mix.reads, "read", "reads"),
        (mix.writes, "write", "writes"),
        (mix.flushes, "flush", "flushes"),
        (mix.discards, "discard", "discards"),
        (mix.write_zeroes, "write zeroes", "write zeroes"),
        (mix.failed, "failed", "failed"),
    ] {
        let what = if count == 1 { one } else { several };
        phrases.extend((count > 0).then(|| format!("{count} {what}")));
    }
    phrases
}

fn lengths(lengths: &Lengths, order: &Sequence) -> Vec<String> {
    let Some(mean) = lengths.mean_bytes else {
        return Vec::new();
    };
    let dominant = lengths.dominant.iter().take(4);
    let dominant = dominant.map(|d| format!("{} ({})", bytes(d.bytes as f64), percent(d.share)));
    let dominant: Vec<String> = dominant.collect();
    let mut phrases = vec![format!("mean {}", bytes(mean))];
    if !dominant.is_empty() {
        phrases.push(dominant.join(", "));
    }
    let alignment = lengths.alignment_bytes;
    phrases.extend(alignment.map(|a| format!("aligned to {}", bytes(a as f64))));
    phrases.extend(
        order
            .sequential_share
            .map(|s| format!("{} sequential", percent(s))),
    );
    if order.interleaved_streams > 1 && goes_on(order) {
        phrases.push(format!("{} streams", order.interleaved_streams));
    }
    phrases
}

/// Whether enough requests are sequential for the number of streams to matter. A few are sequential
/// by chance.
fn goes_on(order: &Sequence) -> bool {
    let shares = [
        order.sequential_share,
        order.reverse_share,
        order.strided_share,
    ];
    shares.into_iter().flatten().sum::<f64>() >= 0.1
}

fn order(order: &Sequence) -> Vec<String> {
    let share = |name: &str, share: Option<f64>| Some(format!("{} {name}", percent(share?)));
    let mut phrases: Vec<String> = [
        share("sequential", order.sequential_share),
        share("reverse", order.reverse_share),
        share("strided", order.strided_share),
        share("repeated", order.repeated_share),
        share("random", order.random_share),
    ]
    .into_iter()
    .flatten()
    .filter(|phrase| !phrase.starts_with("0 %"))
    .collect();
    if let Some(requests) = order.run_requests_mean {
        let runs = if order.runs == 1 { "run" } else { "runs" };
        let (count, requests) = (order.runs, figure(requests));
        phrases.push(format!("{count} {runs} of {requests} requests"));
    }
    if order.interleaved_streams > 0 && goes_on(order) {
        phrases.push(format!("{} at a time", order.interleaved_streams));
    }
    phrases
}

fn arrivals(profile: &Profile) -> Vec<String> {
    let arrivals = &profile.arrivals;
    let process = arrivals.process.map(|process| match process {
        Process::Regular => "regular",
        Process::Poisson => "random (Poisson)",
        Process::Bursty => "in bursts",
    });
    let source = arrivals.source.map(|source| match source {
        Source::Closed => "each after the completion of an earlier one (closed)",
        Source::Open => "independent of completions (open)",
    });
    let mut phrases: Vec<String> = process.into_iter().map(str::to_owned).collect();
    let cv = arrivals.interarrival_cv;
    phrases.extend(cv.map(|cv| {
        format!(
            "coefficient of variation of the inter-arrival times \
                                        {cv:.2}"
        )
    }));
    phrases.extend(source.map(str::to_owned));
    let bursts = &profile.bursts;
    let peak = bursts.peak_to_mean_1s;
    phrases.extend(peak.map(|p| format!("peak second {p:.1} times the mean")));
    let dispersion = |s: &Scale| {
        format!(
            "{:.1} at {}",
            s.index_of_dispersion,
            time(s.interval_ns as f64)
        )
    };
    if let (Some(first), Some(last)) = (bursts.scales.first(), bursts.scales.last()) {
        phrases.push(format!(
            "dispersion {}, {}",
            dispersion(first),
            dispersion(last)
        ));
    }
    let hurst = bursts.hurst_by_dispersion.as_ref();
    phrases.extend(hurst.map(|h| format!("Hurst parameter about {:.1}", h.estimate)));
    phrases
}

fn parallelism(profile: &Profile) -> Vec<String> {
    let Some(parallelism) = &profile.parallelism else {
        return Vec::new();
    };
    let mut phrases = vec![
        format!(
            "queue depth: mean {} at issue (including the request)",
            figure(parallelism.at_issue_mean)
        ),
        format!("at most {}", parallelism.at_issue_max),
        format!("time-weighted {}", figure(parallelism.in_flight_mean)),
        format!("busy {}", percent(parallelism.busy_share)),
    ];
    let little = parallelism.little_ratio;
    phrases.extend(little.map(|ratio| format!("Little's-law ratio {ratio:.2} (expected 1)")));
    phrases
}

fn latency(profile: &Profile) -> Vec<String> {
    let Some(load) = &profile.load else {
        return Vec::new();
    };
    let of = |latency: &Latency| {
        let [mean, p50, p99] = [
            latency.mean_ns,
            latency.p50_ns as f64,
            latency.p99_ns as f64,
        ]
        .map(time);
        format!(
            "mean {mean}, p50 {p50}, p99 {p99}, max {}",
            time(latency.max_ns as f64)
        )
    };
    let mut phrases = vec![of(&load.all)];
    phrases.extend(
        load.reads
            .as_ref()
            .map(|l| format!("reads {}", time(l.mean_ns))),
    );
    phrases.extend(
        load.writes
            .as_ref()
            .map(|l| format!("writes {}", time(l.mean_ns))),
    );
    if load.by_depth.len() > 1 {
        let depths = load.by_depth.iter().map(|depth| {
            let in_flight = match depth.in_flight_min == depth.in_flight_max {
                true => depth.in_flight_min.to_string(),
                false => format!("{}-{}", depth.in_flight_min, depth.in_flight_max),
            };
            format!("{in_flight}: {}", time(depth.latency.mean_ns))
        });
        phrases.push(format!(
            "by queue depth {}",
            depths.collect::<Vec<_>>().join(", ")
        ));
    }
    phrases
}

fn regions(profile: &Profile) -> Vec<String> {
    let regions = &profile.regions;
    let (touched, span) = (regions.touched_bytes as f64, regions.span_bytes as f64);
    if regions.touched_bytes == 0 {
        return Vec::new();
    }
    let mut phrases = vec![format!(
        "at most {} accessed within {}",
        bytes(touched),
        bytes(span)
    )];
    let tenth = regions.concentration.iter().find(|c| c.space_share == 0.1);
    phrases
        .extend(tenth.map(|c| format!("the hottest tenth receives {}", percent(c.access_share))));
    let hottest = regions.hottest.iter().take(3).map(|region| {
        let place = bytes(region.first_byte as f64);
        format!(
            "{} at {place} ({})",
            bytes(region.bytes as f64),
            percent(region.access_share)
        )
    });
    let hottest: Vec<String> = hottest.collect();
    phrases.extend((!hottest.is_empty()).then(|| format!("hot: {}", hottest.join(", "))));
    phrases
}

fn reuse(profile: &Profile) -> Vec<String> {
    let Some(reuse) = &profile.reuse else {
        return Vec::new();
    };
    let set = &reuse.working_set;
    let mut phrases = vec![
        format!(
            "working set {} (± {})",
            bytes(set.bytes),
            percent(2.0 * set.error_share)
        ),
        format!(
            "{} of the accesses are the first to their block",
            percent(reuse.first_share)
        ),
    ];
    // Eight points show the shape of the curve.
    let step = reuse.curve.len().div_ceil(8).max(1);
    let points = reuse.curve.iter().rev().step_by(step);
    let points: Vec<String> = points
        .map(|size| {
            format!(
                "{}: {}",
                bytes(size.cache_bytes as f64),
                percent(size.miss_ratio)
            )
        })
        .collect();
    let points = points.into_iter().rev().collect::<Vec<_>>().join(", ");
    phrases.push(format!("miss ratio of an LRU cache by size {points}"));
    if !reuse.exact {
        let error = reuse.curve.iter().map(|s| s.miss_ratio_error);
        let error = error.fold(0.0, f64::max);
        phrases.push(format!(
            "from a sample of {} of the blocks, with an error of at most {}",
            percent(reuse.sampling_rate),
            percent(error)
        ));
    }
    phrases
}

/// Advice, and topics without advice because of missing data, grouped by reason.
fn conclusions(out: &mut String, advice: &[Advice], missing: &[Missing]) {
    for advice in advice {
        let grounds = grounds(advice.confidence, &advice.evidence);
        let words = format!("{} ({grounds})", advice.text);
        line(out, advice.topic.as_str(), &[words]);
    }
    for words in missing_figures(missing) {
        line(out, "missing", &[words]);
    }
}

/// Topics that are not assessed: a sentence for all with the same reason.
pub(super) fn missing_figures(missing: &[Missing]) -> Vec<String> {
    let mut reported: Vec<&str> = Vec::new();
    let mut sentences = Vec::new();
    for Missing { text, .. } in missing {
        if reported.contains(&text.as_str()) {
            continue;
        }
        reported.push(text);
        let topics = missing.iter().filter(|m| m.text == *text);
        let topics: Vec<&str> = topics.map(|m| m.topic.as_str()).collect();
        sentences.push(format!("{}: {text}", topics.join(", ")));
    }
    sentences
}

/// The disturbances and their size.
pub(super) fn disturbance(found: &Interference) -> String {
    let (latency, rate) = (found.latency_ratio, found.throughput_ratio);
    let grounds = grounds(found.confidence, &found.evidence);
    format!(
        "{} is slowed down by {}: latency {latency:.1} times, requests per second {rate:.2} \
         times ({grounds})",
        found.victim, found.disturber
    )
}

pub(super) fn grounds(confidence: Confidence, evidence: &[Evidence]) -> String {
    let numbers = evidence
        .iter()
        .map(|e| format!("{} {}", e.name, figure(e.value)));
    let numbers: Vec<String> = numbers.collect();
    format!("confidence {}: {}", confidence.as_str(), numbers.join(", "))
}

pub(super) fn bytes(x: f64) -> String {
    scaled(x, Unit::Bytes).expect("bytes have greater units")
}

/// A duration: `12.3 s` up to a minute, then `2:00:00`.
pub(super) fn time(ns: f64) -> String {
    let minute = 60 * NANOS_PER_SECOND;
    if ns < minute as f64 {
        return scaled(ns, Unit::Nanoseconds).expect("times have greater units");
    }
    let seconds = ns as Nanos / NANOS_PER_SECOND;
    format!(
        "{}:{:02}:{:02}",
        seconds / 3_600,
        seconds / 60 % 60,
        seconds % 60
    )
}

pub(super) fn percent(share: f64) -> String {
    match 100.0 * share {
        small if small > 0.0 && small < 0.95 => format!("{small:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}

/// A number with a suitable precision.
fn figure(x: f64) -> String {
    match x.abs() {
        _ if x.fract() == 0.0 => format!("{x:.0}"),
        size if size >= 1_000.0 => format!("{x:.0}"),
        size if size >= 10.0 => format!("{x:.1}"),
        size if size >= 0.01 => format!("{x:.2}"),
        _ => format!("{x:.1e}"),
    }
}
