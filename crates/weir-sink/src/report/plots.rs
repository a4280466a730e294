//! The plots of a report: distributions, joint distributions, changes over time, and miss-ratio
//! curves.

use weir_model::{Nanos, Op};
use weir_workload::analysis::pairs::Pair;
use weir_workload::analysis::timeline::{Interval, Timeline};
use weir_workload::{Class, Distribution, Interference, Metric, Profile, Report, Topic};

use crate::plot::svg::{self, Picture};
use crate::plot::{
    BinLayout, HeatMap, HistogramPlot, Lines, Mark, PlotAxis, PlotLine, Points, Quantity, phrase,
    thousands,
};

/// The largest number of disturbances that are drawn.
const DISTURBANCES_MAX: usize = 8;

/// All plots of a disk with data. Times are relative to `began_ns`.
pub fn of_profile(profile: &Profile, began_ns: Nanos) -> Vec<Picture> {
    let mut plots = vec![access(profile, began_ns)];
    plots.extend(Metric::ALL.map(|m| distribution(profile, m, BinLayout::Limits)));
    let finer = BinLayout::Log { per_power: 2 };
    plots.push(distribution(profile, Metric::Latency, finer));
    plots.extend(Pair::ALL.map(|pair| together(profile, pair)));
    plots.push(misses(profile));
    plots.push(working_set(profile, began_ns));
    plots.push(by_depth(profile));
    plots.push(by_rate(profile));
    plots.push(rate_over_time(profile, began_ns));
    plots.push(latency_over_time(profile, began_ns));
    plots.push(concentration(profile));
    plots.push(dispersion(profile));
    plots.into_iter().flatten().collect()
}

/// The disturbances of a report, each as figure 6 of Ahmad 2007: the latency of both disks over
/// time, and below it their rates.
pub fn of_disturbances(report: &Report) -> Vec<Picture> {
    let began_ns = report.began_ns.unwrap_or_default();
    let found = report.interference.iter().take(DISTURBANCES_MAX);
    found
        .filter_map(|found| disturbance(report, found, began_ns))
        .collect()
}

fn disturbance(report: &Report, found: &Interference, began_ns: Nanos) -> Option<Picture> {
    let of = |name: &_| report.profiles.iter().find(|p| p.subject == *name);
    let both = [of(&found.victim)?, of(&found.disturber)?];
    let line = |points: fn(&Timeline, Nanos) -> Vec<(f64, f64)>| {
        both.map(|profile| PlotLine {
            name: profile.subject.to_string(),
            points: points(&profile.timeline, began_ns),
            steps: false,
        })
    };
    let latency = over_time(
        format!("{} slowed down by {}", found.victim, found.disturber),
        PlotAxis::log("mean latency", Quantity::Nanoseconds),
        line(latencies).into(),
    );
    let rate = over_time(
        "their requests per second".into(),
        PlotAxis::new("requests per second", Quantity::Number),
        line(|timeline, began| rates(timeline, began, |i| i.reads + i.writes + i.others)).into(),
    );
    let pictures = [svg::lines(&latency), svg::lines(&rate)];
    Some(Picture::side_by_side(&latency.title, &pictures, 1))
}

/// A distribution, with reads and writes side by side if both are recorded and not empty.
fn distribution(profile: &Profile, metric: Metric, layout: BinLayout) -> Option<Picture> {
    let of = |class: Class| profile.histograms.of(metric, class);
    let classes = [
        ("reads", of(Class::Of(Op::Read))),
        ("writes", of(Class::Of(Op::Write))),
    ];
    let mut shown: Vec<(&str, &Distribution)> = Vec::new();
    if metric.is_of(Class::Of(Op::Read)) {
        shown.extend(classes.into_iter().filter(|(_, d)| d.count > 0));
    }
    let all = of(Class::All);
    // Reads and writes each have their own predecessor, so the combined series differs.
    if shown.is_empty() || metric == Metric::Seek && shown.len() > 1 {
        shown.push(("all", all));
    }
    if all.count == 0 {
        return None;
    }
    let title = match (&shown[..], layout) {
        ([(name, _)], BinLayout::Limits) => format!("{}: {name}", phrase(metric)),
        (_, BinLayout::Limits) => phrase(metric).to_owned(),
        (_, BinLayout::Log { .. }) => format!("{}, in finer bins", phrase(metric)),
    };
    Some(svg::histogram(&HistogramPlot::new(&title, &shown, layout)))
}

/// A measure against latency.
fn together(profile: &Profile, pair: Pair) -> Option<Picture> {
    let grid = profile.pairs.grid(pair, Class::All)?;
    let of = pair.metric();
    let title = format!("latency by {}", phrase(of));
    let x = (phrase(of), of.measure().into());
    let map = HeatMap::of_grid(&title, grid, x, ("latency", Quantity::Nanoseconds));
    (map.most() > 0).then(|| svg::heat_map(&map))
}

fn access(profile: &Profile, began_ns: Nanos) -> Option<Picture> {
    let access = &profile.access;
    let cloud = |write: bool| {
        let of_kind = access.points.iter().filter(|p| p.write == write);
        let place = |p: &weir_workload::analysis::access::Point| {
            ((p.ts_ns - began_ns) as f64, p.first_byte as f64)
        };
        of_kind.map(place).collect::<Vec<_>>()
    };
    let clouds = [("reads", cloud(false)), ("writes", cloud(true))];
    let clouds = clouds.into_iter().filter(|(_, points)| !points.is_empty());
    let clouds: Vec<_> = clouds
        .map(|(name, points)| (name.to_owned(), points))
        .collect();
    let sampled = access.requests > access.points.len() as u64;
    let plot = Points {
        title: match sampled {
            true => format!(
                "position on the disk: a sample of {} of {} requests",
                thousands(&access.points.len().to_string()),
                thousands(&access.requests.to_string())
            ),
            false => "position on the disk".into(),
        },
        x: PlotAxis::new("time", Quantity::Elapsed),
        y: PlotAxis::new("address", Quantity::Bytes),
        clouds,
    };
    (!access.points.is_empty()).then(|| svg::points(&plot))
}

/// The miss-ratio curve, with the cache size that was recommended.
fn misses(profile: &Profile) -> Option<Picture> {
    let curve = &profile.reuse.as_ref()?.curve;
    let all = curve.iter().map(|c| (c.cache_bytes as f64, c.miss_ratio));
    let reads = curve
        .iter()
        .filter_map(|c| Some((c.cache_bytes as f64, c.read_miss_ratio?)));
    let advice = profile.advice.iter().find(|a| a.topic == Topic::CacheSize);
    let size = advice.and_then(|a| a.evidence.iter().find(|e| e.name == "cache_bytes"));
    let mark = size.map(|size| Mark {
        x: size.value,
        text: format!("{} pays", Quantity::Bytes.short(size.value)),
    });
    let line = |name: &str, points: Vec<(f64, f64)>| PlotLine {
        name: name.to_owned(),
        points,
        steps: true,
    };
    let plot = Lines {
        title: "miss ratio of an LRU cache".into(),
        x: PlotAxis::log("cache size", Quantity::Bytes),
        y: PlotAxis::new("share of accesses that miss", Quantity::Share),
        lines: vec![line("all", all.collect()), line("reads", reads.collect())],
        marks: mark.into_iter().collect(),
    };
    drawn(plot)
}

fn working_set(profile: &Profile, began_ns: Nanos) -> Option<Picture> {
    let set = &profile.reuse.as_ref()?.working_set;
    let at = |ts_ns: Nanos| (ts_ns - began_ns) as f64;
    let line = |name: &str, value: fn(&weir_workload::analysis::reuse::InUse) -> f64| {
        let points = set.intervals.iter().map(|i| (at(i.ts_ns), value(i)));
        PlotLine {
            name: name.to_owned(),
            points: points.collect(),
            steps: true,
        }
    };
    let each = Quantity::Elapsed.short(set.interval_ns as f64);
    drawn(over_time(
        "working set".into(),
        PlotAxis::new("distinct blocks accessed", Quantity::Bytes),
        vec![
            line("since the start", |i| i.bytes_so_far),
            line(&format!("in each {each}"), |i| i.bytes),
        ],
    ))
}

fn by_depth(profile: &Profile) -> Option<Picture> {
    let depths = &profile.load.as_ref()?.by_depth;
    let line = |name: &str, value: fn(&weir_workload::analysis::load::Latency) -> f64| PlotLine {
        name: name.to_owned(),
        points: depths
            .iter()
            .map(|d| (d.in_flight_max as f64, value(&d.latency)))
            .collect(),
        steps: false,
    };
    drawn(Lines {
        title: "latency by queue depth".into(),
        x: PlotAxis::log("queue depth at the issue, up to", Quantity::Number),
        y: PlotAxis::log("latency", Quantity::Nanoseconds),
        lines: vec![
            line("median", |l| l.p50_ns as f64),
            line("mean", |l| l.mean_ns),
            line("99 %", |l| l.p99_ns as f64),
        ],
        marks: Vec::new(),
    })
}

fn by_rate(profile: &Profile) -> Option<Picture> {
    let rates = &profile.load.as_ref()?.by_rate;
    let point = |r: &weir_workload::analysis::load::ByRate| (r.rate_max_per_s, r.latency_mean_ns);
    drawn(Lines {
        title: "latency by load".into(),
        x: PlotAxis::log("requests per second, up to", Quantity::Number),
        y: PlotAxis::log("mean latency", Quantity::Nanoseconds),
        lines: vec![PlotLine {
            name: "mean".into(),
            points: rates.iter().map(point).collect(),
            steps: false,
        }],
        marks: Vec::new(),
    })
}

fn rate_over_time(profile: &Profile, began_ns: Nanos) -> Option<Picture> {
    let line = |name: &str, count: fn(&Interval) -> u64| PlotLine {
        name: name.to_owned(),
        points: rates(&profile.timeline, began_ns, count),
        steps: true,
    };
    drawn(over_time(
        "requests over time".into(),
        PlotAxis::new("requests per second", Quantity::Number),
        vec![line("reads", |i| i.reads), line("writes", |i| i.writes)],
    ))
}

fn latency_over_time(profile: &Profile, began_ns: Nanos) -> Option<Picture> {
    let line = |name: &str, points| PlotLine {
        name: name.to_owned(),
        points,
        steps: false,
    };
    let timeline = &profile.timeline;
    let timed = timeline.intervals.iter().filter(|i| i.timed > 0);
    let greatest = timed.map(|i| ((i.ts_ns - began_ns) as f64, i.latency_max_ns as f64));
    let greatest = with_gaps(greatest.collect(), timeline.interval_ns);
    drawn(over_time(
        "latency over time".into(),
        PlotAxis::log("latency", Quantity::Nanoseconds),
        vec![
            line("mean", latencies(timeline, began_ns)),
            line("greatest", greatest),
        ],
    ))
}

fn concentration(profile: &Profile) -> Option<Picture> {
    let parts = &profile.regions.concentration;
    let points = parts.iter().map(|c| (c.space_share, c.access_share));
    drawn(Lines {
        title: "concentration of accesses".into(),
        x: PlotAxis::new("share of the accessed space", Quantity::Share),
        y: PlotAxis::new("share of the I/O, by bytes", Quantity::Share),
        lines: vec![PlotLine {
            name: "I/O".into(),
            points: points.collect(),
            steps: false,
        }],
        marks: Vec::new(),
    })
}

fn dispersion(profile: &Profile) -> Option<Picture> {
    let scales = &profile.bursts.scales;
    let points = scales
        .iter()
        .map(|s| (s.interval_ns as f64, s.index_of_dispersion));
    drawn(Lines {
        title: "burstiness: index of dispersion by interval".into(),
        x: PlotAxis::log("interval", Quantity::Nanoseconds),
        y: PlotAxis::log(
            "variance over mean of the number of requests",
            Quantity::Number,
        ),
        lines: vec![PlotLine {
            name: "dispersion".into(),
            points: points.collect(),
            steps: false,
        }],
        marks: Vec::new(),
    })
}

fn over_time(title: String, y: PlotAxis, lines: Vec<PlotLine>) -> Lines {
    Lines {
        title,
        x: PlotAxis::new("time", Quantity::Elapsed),
        y,
        lines,
        marks: Vec::new(),
    }
}

/// A plot of the lines that have points; `None` if no line has two or more points.
fn drawn(mut plot: Lines) -> Option<Picture> {
    plot.lines.retain(|line| !line.points.is_empty());
    let is_plottable = plot.lines.iter().any(|line| line.points.len() > 1);
    is_plottable.then(|| svg::lines(&plot))
}

/// Mean latencies by time since the beginning.
fn latencies(timeline: &Timeline, began_ns: Nanos) -> Vec<(f64, f64)> {
    let timed = timeline.intervals.iter().filter(|i| i.timed > 0);
    let mean = |i: &Interval| i.latency_sum_ns as f64 / i.timed as f64;
    let points = timed.map(|i| ((i.ts_ns - began_ns) as f64, mean(i)));
    with_gaps(points.collect(), timeline.interval_ns)
}

/// A gap of more than a few intervals interrupts the line.
fn with_gaps(points: Vec<(f64, f64)>, interval_ns: Nanos) -> Vec<(f64, f64)> {
    let mut all = Vec::with_capacity(points.len());
    let mut last = f64::NEG_INFINITY;
    for point in points {
        if point.0 - last > 8.0 * interval_ns as f64 && !all.is_empty() {
            all.push((last, f64::NAN));
        }
        last = point.0;
        all.push(point);
    }
    all
}

/// The issue rate, by time since the start; 0 in missing intervals.
fn rates(timeline: &Timeline, began_ns: Nanos, count: fn(&Interval) -> u64) -> Vec<(f64, f64)> {
    let each = timeline.interval_ns;
    let mut points = Vec::new();
    let mut next = None;
    for interval in &timeline.intervals {
        if let Some(idle) = next.filter(|&idle| idle < interval.ts_ns) {
            points.push(((idle - began_ns) as f64, 0.0));
            points.push(((interval.ts_ns - 1 - began_ns) as f64, 0.0));
        }
        let rate = count(interval) as f64 * 1e9 / each as f64;
        points.push(((interval.ts_ns - began_ns) as f64, rate));
        next = Some(interval.ts_ns + each);
    }
    points
}
