//! Histograms, reuse distances and working sets of traces from real systems, read in place: each
//! bucket is compared with what the authors published, with the results of others, or with a second
//! implementation.

mod traces;

use std::io::Read as _;
use std::path::Path;

use serde_json::Value as Json;
use traces::{CollectedEvents, read, sample};
use weir_model::{Op, Value};
use weir_sketch::{LogBins, ReuseHistogram, ReuseSampler};
use weir_workload::analysis::reuse::ReuseTally;
use weir_workload::{
    Class, Counter, Distribution, Histograms, IssuedRequest, Metric, RequestEvent, Response, Step,
};

/// The rows of a recording as events, all of one disk.
fn events(collected: &CollectedEvents) -> Vec<RequestEvent> {
    let columns = [
        "type", "op", "req_id", "sector", "sectors", "wait", "service", "latency", "error",
    ];
    let [kind, op, id, sector, sectors, wait, service, latency, error] =
        columns.map(|c| collected.recording.column(c));
    let int = |value: &Value| match value {
        Value::Int(x) => Some(*x),
        _ => None,
    };
    let event = |(i, &ts): (usize, &i64)| {
        let id = int(&id[i]).unwrap();
        let op = Op::ALL
            .into_iter()
            .find(|o| Value::text(o.as_str()) == op[i])
            .unwrap();
        if kind[i] == Value::text("Q") {
            return RequestEvent::Issued(IssuedRequest {
                ts,
                id,
                op,
                sector: int(&sector[i]),
                sectors: int(&sectors[i]).unwrap_or(0),
            });
        }
        RequestEvent::Finished(Response {
            ts,
            id,
            op,
            wait_ns: int(&wait[i]),
            service_ns: int(&service[i]),
            latency_ns: int(&latency[i]),
            failed: error[i] != Value::Null,
        })
    };
    collected
        .recording
        .ts
        .iter()
        .enumerate()
        .map(event)
        .collect()
}

fn steps(collected: &CollectedEvents) -> (Vec<Step>, Histograms) {
    let mut counter = Counter::new(16);
    let steps = events(collected)
        .iter()
        .map(|event| counter.take(event))
        .collect();
    (steps, counter.histograms().clone())
}

fn json(path: &Path) -> Json {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// A histogram as `{"<=512": 3, .., ">524288": 0}`, the limits ascending.
fn buckets(object: &Json) -> Vec<(i64, u64)> {
    let parsed = object.as_object().unwrap().iter().map(|(limit, count)| {
        let above = limit.starts_with('>');
        let limit: i64 = limit.trim_start_matches(['<', '=', '>']).parse().unwrap();
        ((limit, above), count.as_u64().unwrap())
    });
    let mut parsed: Vec<_> = parsed.collect();
    parsed.sort_unstable();
    parsed
        .into_iter()
        .map(|((limit, _), count)| (limit, count))
        .collect()
}

/// A distribution in the same form, times in µs; the last limit is repeated, as in vscsiStats' own
/// output.
fn buckets_of(distribution: &Distribution) -> Vec<(i64, u64)> {
    let unit = match distribution.metric.measure() {
        weir_workload::MetricUnit::Nanoseconds => 1_000,
        _ => 1,
    };
    let limits = distribution.metric.limits();
    let limits = limits.iter().chain(limits.last()).map(|limit| limit / unit);
    limits.zip(distribution.bins.iter().copied()).collect()
}

#[test]
fn histograms_are_those_that_others_computed() {
    let (all, read, write) = (Class::All, Class::Of(Op::Read), Class::Of(Op::Write));
    let known = [
        ("vscsi_len_all", Metric::Length, all),
        ("vscsi_len_read", Metric::Length, read),
        ("vscsi_len_write", Metric::Length, write),
        ("vscsi_seek_all", Metric::Seek, all),
        ("vscsi_seek_read", Metric::Seek, read),
        ("vscsi_seek_write", Metric::Seek, write),
        ("vscsi_interarrival_us_all", Metric::Interarrival, all),
        ("vscsi_latency_us_all", Metric::Latency, all),
        ("vscsi_latency_us_read", Metric::Latency, read),
        ("vscsi_latency_us_write", Metric::Latency, write),
    ];
    for (trace, stats, histograms) in [
        ("disksim/ascii.trace", "disksim/stats_ascii.json", 7),
        (
            "disksim/cheetah9LP.trace",
            "disksim/stats_cheetah9LP.json",
            10,
        ),
        (
            "disksim/hp_c2247a.trace",
            "disksim/stats_hp_c2247a.json",
            10,
        ),
        ("mqsim/tpcc-small.trace", "mqsim/stats_tpcc-small.json", 7),
        ("mqsim/wsrch-small.trace", "mqsim/stats_wsrch-small.json", 7),
        (
            "cloudphysics-cydonia/test_cp.csv",
            "cloudphysics-cydonia/stats.json",
            7,
        ),
    ] {
        let test = "histograms_are_those";
        let (Some(trace), Some(stats)) = (sample(test, trace), sample(test, stats)) else {
            continue;
        };
        let (_, counted) = steps(&traces::read(&trace));
        let stats = json(&stats);
        let mut compared = 0;
        for (name, metric, class) in known {
            let Some(expected) = stats.get(name) else {
                continue;
            };
            let found = buckets_of(counted.of(metric, class));
            assert_eq!(found, buckets(expected), "{name} of {}", trace.display());
            compared += 1;
        }
        assert_eq!(compared, histograms, "{}", trace.display());
        assert_eq!(Some(counted.requests()), stats["records"].as_u64());
    }
}

#[test]
fn disksim_agrees_with_its_published_distributions() {
    let test = "disksim_agrees";
    let trace = sample(test, "disksim/ascii.trace");
    let (Some(trace), Some(published)) = (trace, sample(test, "disksim/expected_ascii.json"))
    else {
        return;
    };
    let (steps, histograms) = steps(&read(&trace));
    let published = json(&published);

    // In blocks: 1, 2, 3, 4, up to 6, 8, 12, 16, 20, above. Each of these lengths has a bin of its
    // own.
    let limits = weir_sketch::BucketLimits::Explicit(vec![1, 2, 3, 4, 6, 8, 12, 16, 20]);
    for (name, class) in [
        ("all", Class::All),
        ("read", Class::Of(Op::Read)),
        ("write", Class::Of(Op::Write)),
    ] {
        let mut found = vec![0; 10];
        for (bin, count) in histograms.of(Metric::Length, class).log.bins() {
            found[limits.bucket(LogBins::span(bin).0 / 512) as usize] += count;
        }
        assert_eq!(
            Json::from(found),
            published["size_distribution_blocks"][name],
            "{name}"
        );
    }
    let lengths = histograms.of(Metric::Length, Class::All);
    let near = |found: f64, published: &Json| {
        let published = published.as_f64().unwrap();
        assert!(
            (found / published - 1.0).abs() < 1e-5,
            "{found} for {published}"
        );
    };
    near(
        lengths.mean().unwrap() / 512.0,
        &published["size_blocks_mean"],
    );
    assert_eq!(lengths.max, 64 * 512);

    // DiskSim counts the first arrival as a gap from 0, and its limits are exclusive upper bounds.
    let gap = |step: &Step| match step {
        Step::Issued(issue) => Some(issue.gap_ns.unwrap_or(issue.request.ts)),
        Step::Finished(_) | Step::Lost { .. } => None,
    };
    let gaps: Vec<i64> = steps.iter().filter_map(gap).collect();
    let expected_buckets = &published["interarrival_distribution_upper_limit_ms_exclusive"];
    let expected_buckets = buckets(expected_buckets);
    let limits = expected_buckets[..expected_buckets.len() - 1]
        .iter()
        .map(|(ms, _)| ms * 1_000_000 - 1);
    let limits = weir_sketch::BucketLimits::Explicit(limits.collect());
    let mut found = vec![0; expected_buckets.len()];
    gaps.iter()
        .for_each(|&gap| found[limits.bucket(gap) as usize] += 1);
    assert_eq!(
        found,
        expected_buckets
            .iter()
            .map(|(_, count)| *count)
            .collect::<Vec<_>>()
    );
    let mean = gaps.iter().sum::<i64>() as f64 / gaps.len() as f64;
    near(mean / 1e6, &published["interarrival_ms"]["mean"]);
    near(
        *gaps.iter().max().unwrap() as f64 / 1e6,
        &published["interarrival_ms"]["max"],
    );
}

/// A record of the trace, decoded separately: time in µs, first sector, length in bytes, whether it
/// is a read.
fn vscsi_records(path: &Path) -> Vec<(i64, i64, i64, bool)> {
    let bytes = std::fs::read(path).unwrap();
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, b| n << 8 | i64::from(*b));
    let record = |r: &[u8]| {
        (
            number(&r[24..32]),
            number(&r[16..24]),
            number(&r[4..8]),
            number(&r[12..14]) == 0x28,
        )
    };
    bytes.chunks_exact(32).map(record).collect()
}

/// The number of `values` below each limit, and above the last, by a linear search of the limits.
fn under(values: impl Iterator<Item = i64>, limits: &[i64]) -> Vec<u64> {
    let mut counts = vec![0; limits.len() + 1];
    for value in values {
        let mut bin = 0;
        while bin < limits.len() && value > limits[bin] {
            bin += 1;
        }
        counts[bin] += 1;
    }
    counts
}

#[test]
fn two_hours_of_a_vm_have_the_histograms_of_vscsistats() {
    let Some(path) = sample("two_hours", "cloudphysics/cloudPhysicsIO.vscsi") else {
        return;
    };
    let (_, histograms) = steps(&read(&path));
    let records = vscsi_records(&path);
    assert_eq!(histograms.requests(), 113_872);
    let bytes = |class| histograms.of(Metric::Length, class).sum;
    assert_eq!(bytes(Class::All), 4_205_978_112);
    assert_eq!(bytes(Class::Of(Op::Read)), 1_797_412_352);
    assert_eq!(bytes(Class::Of(Op::Write)), 2_408_565_760);
    let count = |op| histograms.of(Metric::Length, Class::Of(op)).count;
    assert_eq!((count(Op::Read), count(Op::Write)), (46_974, 66_898));

    type Keep = fn(&(i64, i64, i64, bool)) -> bool;
    let classes: [(Class, Keep); 3] = [
        (Class::All, |_| true),
        (Class::Of(Op::Read), |r| r.3),
        (Class::Of(Op::Write), |r| !r.3),
    ];
    for (class, keep) in classes {
        let kept: Vec<_> = records.iter().copied().filter(keep).collect();
        let bins = |metric| &histograms.of(metric, class).bins;
        let limits = |metric: Metric| metric.limits();
        let lengths = kept.iter().map(|r| r.2);
        assert_eq!(
            bins(Metric::Length),
            &under(lengths, limits(Metric::Length))
        );
        let seeks = kept
            .windows(2)
            .map(|w| w[1].1 - (w[0].1 + w[0].2 / 512 - 1));
        assert_eq!(bins(Metric::Seek), &under(seeks, limits(Metric::Seek)));
        let gaps = kept.windows(2).map(|w| (w[1].0 - w[0].0) * 1_000);
        assert_eq!(
            bins(Metric::Interarrival),
            &under(gaps, limits(Metric::Interarrival))
        );
        // The trace does not contain completion times.
        let unknown = [
            Metric::Outstanding,
            Metric::Latency,
            Metric::Wait,
            Metric::Service,
        ];
        assert!(
            unknown
                .iter()
                .all(|&metric| histograms.of(metric, class).count == 0)
        );
    }
    let closest = (1..records.len()).map(|i| {
        let last = |r: &(i64, i64, i64, bool)| records[i].1 - (r.1 + r.2 / 512 - 1);
        let distances = records[i.saturating_sub(16)..i].iter().rev().map(last);
        distances.min_by_key(|d| d.abs()).unwrap()
    });
    let found = histograms.of(Metric::SeekClosest, Class::All);
    assert_eq!(found.bins, under(closest, Metric::SeekClosest.limits()));
}

#[test]
fn blocks_of_a_vm_are_reused_as_in_a_list() {
    let Some(path) = sample("blocks_of_a_vm", "cloudphysics/cloudPhysicsIO.vscsi") else {
        return;
    };
    let (steps, _) = steps(&read(&path));
    let mut exact = ReuseTally::exact(4096, 1 << 26);
    let mut sketch = ReuseTally::new(4096, 1 << 20);
    for step in &steps {
        exact.take(step);
        sketch.take(step);
    }
    let all = exact.histogram();
    assert!(all.is_exact());
    assert_eq!((all.references(), all.distinct()), (1_141_869, 269_210.0));

    let reuse = sketch.result().unwrap();
    assert!(
        !reuse.exact && sketch.bytes() <= (1 << 20) + 66 * 2048,
        "{}",
        sketch.bytes()
    );
    assert_eq!(reuse.touches, 1_141_869);
    let mut beyond = 0;
    for cache in &reuse.curve {
        let truth = all.miss_ratio((cache.cache_bytes / 4096) as u64).ratio;
        let off = (cache.miss_ratio - truth).abs();
        assert!(
            off < 0.02,
            "{} for {truth} at {} bytes",
            cache.miss_ratio,
            cache.cache_bytes
        );
        beyond += usize::from(off > cache.miss_ratio_error);
        let truth = exact
            .reads()
            .miss_ratio((cache.cache_bytes / 4096) as u64)
            .ratio;
        let off = (cache.read_miss_ratio.unwrap() - truth).abs();
        assert!(
            off < 0.02,
            "reads: {off} from {truth} at {} bytes",
            cache.cache_bytes
        );
    }
    assert!(
        beyond * 10 <= reuse.curve.len(),
        "{beyond} of {}",
        reuse.curve.len()
    );
    let blocks = reuse.working_set.bytes / 4096.0;
    assert!(
        (blocks / 269_210.0 - 1.0).abs() < 4.0 * reuse.working_set.error_share,
        "{blocks}"
    );
}

/// The block numbers of a trace, one per line; `*` marks a breakpoint.
fn lirs_trace(path: &Path) -> Vec<u64> {
    let mut text = String::new();
    let file = std::fs::File::open(path).unwrap();
    flate2::read::GzDecoder::new(file)
        .read_to_string(&mut text)
        .unwrap();
    text.split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect()
}

#[test]
fn lirs_traces_have_their_lru_curves() {
    let mut compared = 0;
    for name in ["cs", "loop", "zigzag"] {
        let test = "lirs_traces";
        let trace = sample(test, &format!("reuse-lirs/{name}.trace.gz"));
        let stats = sample(test, &format!("reuse-lirs/{name}.stats.json"));
        let (Some(trace), Some(stats)) = (trace, stats) else {
            return;
        };
        let (keys, stats) = (lirs_trace(&trace), json(&stats));
        let curve = |mut sampler: ReuseSampler, bits| {
            let mut histogram = ReuseHistogram::new(bits);
            keys.iter()
                .for_each(|&key| histogram.add(sampler.touch(key)));
            histogram
        };
        let exact = curve(ReuseSampler::new(1 << 24), ReuseHistogram::EXACT_BITS);
        let sketch = curve(ReuseSampler::new(1 << 20), ReuseHistogram::SKETCH_BITS);
        let requests = stats["requests"].as_u64().unwrap();
        assert_eq!(
            (exact.references(), Some(exact.distinct())),
            (requests, stats["cold"].as_f64())
        );
        for (size, misses) in stats["lru_miss_count"].as_object().unwrap() {
            let size: u64 = size.parse().unwrap();
            let truth = misses.as_f64().unwrap() / requests as f64;
            assert!(
                (exact.miss_ratio(size).ratio - truth).abs() < 1e-12,
                "{name} at {size}"
            );
            assert!(
                (sketch.miss_ratio(size).ratio - truth).abs() < 0.02,
                "{name} at {size}"
            );
            compared += 1;
        }
        let expected_buckets = buckets(&stats["stack_distance_hist_pow2"]);
        let limits = weir_sketch::BucketLimits::Explicit(
            expected_buckets.iter().map(|(limit, _)| *limit).collect(),
        );
        let mut found = vec![0; expected_buckets.len() + 1];
        for (least, greatest, weight) in exact.distances() {
            assert_eq!(least, greatest, "exact distances are kept apart");
            found[limits.bucket(least as i64) as usize] += weight as u64;
        }
        assert_eq!(found.pop(), Some(0));
        assert_eq!(
            found,
            expected_buckets
                .iter()
                .map(|(_, count)| *count)
                .collect::<Vec<_>>(),
            "{name}"
        );
    }
    assert_eq!(compared, 23);
}
