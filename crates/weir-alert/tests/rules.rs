//! Rules over made-up rows: the shipped ones, missing data, restarts, and cuts of the input.

mod scenario;

use std::sync::atomic::{AtomicU64, Ordering};
use std::{iter, thread};

use proptest::prelude::*;
use weir_alert::shipped::{RULES, ShippedRule};
use weir_model::Value;

use scenario::{Row, Scenario, io, row};

/// The changes of state of a shipped rule.
fn of_shipped(name: &str, rows: Vec<Row>, end_s: f64) -> Vec<String> {
    let rule = ShippedRule::find(name).expect("a shipped rule");
    Scenario::new(rule.text).run(&rows, end_s).lines
}

/// Rows of requests of `/dev/sda`, `per_second` of them, from one second to another.
fn requests(from_s: u32, to_s: u32, per_second: u32, row: impl Fn(f64) -> Row) -> Vec<Row> {
    let count = (to_s - from_s) * per_second;
    let at = |n| f64::from(from_s) + (f64::from(n) + 0.5) / f64::from(per_second);
    (0..count).map(|n| row(at(n))).collect()
}

fn with_latency(ms: i64) -> impl Fn(f64) -> Row {
    move |at| io(at, &[("latency", Value::Int(ms * 1_000_000))])
}

#[test]
fn every_shipped_rule_is_named_as_its_file_and_described() {
    for rule in RULES {
        let scenario = Scenario::new(rule.text);
        let names: Vec<&str> = scenario.rules.iter().map(|r| r.name.as_str()).collect();
        assert_eq!(names, [rule.name]);
        assert!(rule.doc().ends_with('.'), "{}: {:?}", rule.name, rule.doc());
    }
}

#[test]
fn latency_over_baseline_fires_when_latency_triples() {
    let mut rows = requests(0, 700, 5, with_latency(1));
    rows.extend(requests(700, 780, 5, with_latency(10)));
    rows.extend(requests(780, 900, 5, with_latency(1)));
    let lines = of_shipped("latency_over_baseline", rows, 900.0);
    // The mean over 30 s is above 3 ms from the seventh second on.
    let expected = [
        "707.000 latency_over_baseline{pdisk=\"/dev/sda\", severity=\"warning\"} clear -> pending",
        "722.000 latency_over_baseline{pdisk=\"/dev/sda\", severity=\"warning\"} pending -> firing",
        "867.000 latency_over_baseline{pdisk=\"/dev/sda\", severity=\"warning\"} firing -> clear",
    ];
    assert_eq!(lines, expected);
    // A disk that is always slow is not above its baseline.
    assert!(
        of_shipped(
            "latency_over_baseline",
            requests(0, 900, 5, with_latency(10)),
            900.0
        )
        .is_empty()
    );
}

#[test]
fn queue_saturated_fires_when_requests_wait_longer_than_they_are_served() {
    let busy = |wait: i64, depth: i64| {
        move |at| {
            let of = |name, ns: i64| (name, Value::Int(ns));
            let times = [
                of("wait", wait),
                of("service", 3_000_000),
                of("in_flight", depth),
            ];
            io(at, &times)
        }
    };
    let mut rows = requests(0, 60, 10, busy(20_000_000, 32));
    rows.extend(requests(60, 120, 10, busy(100_000, 2)));
    let lines = of_shipped("queue_saturated", rows, 120.0);
    let states: Vec<&str> = lines.iter().map(|line| scenario::state(line)).collect();
    assert_eq!(states, ["pending", "firing", "clear"]);
    assert!(
        of_shipped(
            "queue_saturated",
            requests(0, 60, 10, busy(20_000_000, 4)),
            60.0
        )
        .is_empty()
    );
    assert!(
        of_shipped(
            "queue_saturated",
            requests(0, 60, 10, busy(4_000_000, 32)),
            60.0
        )
        .is_empty()
    );
}

#[test]
fn disk_errors_fire_at_once_and_clear_a_minute_after_the_last() {
    let mut rows = requests(0, 100, 1, with_latency(1));
    rows.push(io(10.2, &[("error", Value::Int(5))]));
    rows.push(io(20.2, &[("error", Value::Int(5))]));
    let lines = of_shipped("disk_errors", rows, 100.0);
    let expected = [
        "11.000 disk_errors{pdisk=\"/dev/sda\", severity=\"critical\"} clear -> firing",
        "81.000 disk_errors{pdisk=\"/dev/sda\", severity=\"critical\"} firing -> clear",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn stalled_disk_fires_when_requests_wait_and_none_completes() {
    let event = |at: f64, kind: &str| {
        let columns = [
            ("type", Value::text(kind)),
            ("pdisk", Value::text("/dev/sda")),
        ];
        row("IOstream", at, &columns)
    };
    // Every second a request that completes; then two that do not until 90 s.
    let mut rows: Vec<Row> = (0..30)
        .flat_map(|s| {
            [
                event(f64::from(s) + 0.1, "Q"),
                event(f64::from(s) + 0.2, "R"),
            ]
        })
        .collect();
    rows.extend([event(30.1, "Q"), event(30.2, "Q")]);
    rows.extend([event(90.1, "R"), event(90.2, "E")]);
    let lines = of_shipped("stalled_disk", rows, 120.0);
    let expected = [
        "40.000 stalled_disk{pdisk=\"/dev/sda\", severity=\"critical\"} clear -> pending",
        "50.000 stalled_disk{pdisk=\"/dev/sda\", severity=\"critical\"} pending -> firing",
        "91.000 stalled_disk{pdisk=\"/dev/sda\", severity=\"critical\"} firing -> clear",
    ];
    assert_eq!(lines, expected);
    // An idle disk is not stalled.
    let idle: Vec<Row> = vec![event(0.1, "Q"), event(0.2, "R")];
    assert!(of_shipped("stalled_disk", idle, 120.0).is_empty());
}

#[test]
fn noisy_neighbour_names_the_one_and_not_its_victim() {
    let of = |vm: &'static str, service: i64, latency: i64| {
        move |at| {
            let columns = [
                ("vm", Value::text(vm)),
                ("service", Value::Int(service)),
                ("latency", Value::Int(latency)),
            ];
            io(at, &columns)
        }
    };
    let mut rows = requests(0, 60, 100, of("loud", 5_000_000, 6_000_000));
    rows.extend(requests(0, 60, 5, of("victim", 5_000_000, 40_000_000)));
    let lines = of_shipped("noisy_neighbour", rows, 60.0);
    let labels = "noisy_neighbour{vm=\"loud\", pdisk=\"/dev/sda\", severity=\"warning\"}";
    assert!(
        !lines.is_empty() && lines.iter().all(|line| line.contains(labels)),
        "{lines:?}"
    );
    assert!(
        lines.iter().any(|line| scenario::state(line) == "firing"),
        "{lines:?}"
    );
    // Equal loads: no VM has 70 %.
    let mut rows = requests(0, 60, 50, of("one", 5_000_000, 40_000_000));
    rows.extend(requests(0, 60, 50, of("two", 5_000_000, 40_000_000)));
    assert!(of_shipped("noisy_neighbour", rows, 60.0).is_empty());
}

#[test]
fn storms_of_flushes_and_discards_fire() {
    let of_op = |op: &'static str| move |at| io(at, &[("op", Value::text(op))]);
    for (rule, op, per_second) in [("flush_storm", "f", 150), ("discard_storm", "d", 250)] {
        let fired = of_shipped(rule, requests(0, 60, per_second, of_op(op)), 60.0);
        let states: Vec<&str> = fired.iter().map(|line| scenario::state(line)).collect();
        assert_eq!(states, ["pending", "firing"], "{rule}");
        assert!(of_shipped(rule, requests(0, 60, 40, of_op(op)), 60.0).is_empty());
        assert!(of_shipped(rule, requests(0, 60, per_second, of_op("w")), 60.0).is_empty());
    }
}

#[test]
fn cache_too_small_fires_when_most_is_read_past_the_cache() {
    let cache = |hits: i64, misses: i64| {
        move |at| {
            let columns = [
                ("op", Value::text("r")),
                ("fs", Value::text("ext4")),
                ("hit_bytes", Value::Int(hits)),
                ("miss_bytes", Value::Int(misses)),
            ];
            row("PageCache", at, &columns)
        }
    };
    let lines = of_shipped(
        "cache_too_small",
        requests(0, 200, 1, cache(1 << 20, 1 << 30)),
        200.0,
    );
    assert!(
        lines.iter().any(|line| scenario::state(line) == "firing"),
        "{lines:?}"
    );
    assert!(
        of_shipped(
            "cache_too_small",
            requests(0, 200, 1, cache(1 << 30, 1 << 20)),
            200.0
        )
        .is_empty()
    );
}

#[test]
fn lost_completeness_fires_on_losses_and_is_not_unknown_for_them() {
    let count = |at: f64, counter: &str, lost: i64| {
        let columns = [
            ("counter", Value::text(counter)),
            ("cause", Value::text("ring_full")),
            ("value", Value::Int(lost)),
        ];
        row("weir", at, &columns)
    };
    let rows = vec![count(5.0, "events_in", 99), count(10.5, "events_lost", 7)];
    let mut scenario = Scenario::new(ShippedRule::find("lost_completeness").unwrap().text);
    scenario.missed.push((10.0, 7));
    let states: Vec<String> = scenario.run(&rows, 200.0).lines;
    let states: Vec<&str> = states.iter().map(|line| scenario::state(line)).collect();
    assert_eq!(states, ["firing", "clear"]);
}

#[test]
fn agent_gone_fires_for_an_agent_that_is_down_or_late() {
    let host = |at: f64, weight: i64, state: &str, lag: i64| {
        let columns = [
            ("host", Value::text("a")),
            ("state", Value::text(state)),
            ("lag_ns", Value::Int(lag)),
        ];
        row("hosts", at, &columns).with_weight(weight)
    };
    let rows = vec![
        host(1.0, 1, "up", 0),
        host(10.0, -1, "up", 0),
        host(10.0, 1, "down", 0),
        host(100.0, -1, "down", 0),
        host(100.0, 1, "up", 0),
    ];
    let lines = of_shipped("agent_gone", rows, 200.0);
    let expected = [
        "10.000 agent_gone{host=\"a\", severity=\"critical\"} clear -> pending",
        "40.000 agent_gone{host=\"a\", severity=\"critical\"} pending -> firing",
        "110.000 agent_gone{host=\"a\", severity=\"critical\"} firing -> clear",
    ];
    assert_eq!(lines, expected);
}

const BUSY: &str = "create alert busy as
    select pdisk, count(*) as n from IO [range 5 s slide 1 s] group by pdisk
    when n > 20 for 3 s until n < 10 for 2 s
    annotations '{n} requests' as summary;";

#[test]
fn missed_requests_make_an_alert_unknown_until_its_window_has_passed() {
    let rows = requests(0, 60, 10, with_latency(1));
    let mut scenario = Scenario::new(BUSY);
    scenario.missed.push((20.0, 3));
    let lines = scenario.run(&rows, 60.0).lines;
    let states: Vec<(&str, &str)> = lines
        .iter()
        .map(|line| (line.split(' ').next().unwrap(), scenario::state(line)))
        .collect();
    assert_eq!(states[..2], [("3.000", "pending"), ("6.000", "firing")]);
    assert_eq!(states[2].1, "unknown");
    assert_eq!(states[3].1, "firing");
    // The window of 5 s with its slide of 1 s, after the watermark at which the loss was known.
    let at = |n: usize| states[n].0.parse::<f64>().unwrap();
    assert!((19.0..=20.0).contains(&at(2)), "{states:?}");
    assert!((25.0..=27.0).contains(&at(3)), "{states:?}");
    assert_eq!(states.len(), 4, "{states:?}");
}

#[test]
fn an_alert_that_fires_does_not_fire_again_for_a_restart() {
    let rows = requests(0, 60, 10, with_latency(1));
    let first = Scenario::new(BUSY).run(&rows, 30.0);
    assert_eq!(scenario::state(first.lines.last().unwrap()), "firing");
    // Rows between 30 and 40 s were not observed.
    let later = requests(40, 60, 10, with_latency(1));
    let mut again = Scenario::new(BUSY);
    again.begin_s = 40.0;
    again.saved = first.saved;
    let second = again.run(&later, 60.0);
    let states: Vec<&str> = second
        .lines
        .iter()
        .map(|line| scenario::state(line))
        .collect();
    assert_eq!(states, ["unknown", "firing"], "{:?}", second.lines);
    assert_eq!(second.fired_at, first.fired_at);
    // With the clock set back it continues as well.
    let mut back = Scenario::new(BUSY);
    back.saved = Scenario::new(BUSY).run(&rows, 30.0).saved;
    let back = back.run(&requests(0, 20, 10, with_latency(1)), 20.0);
    let states: Vec<&str> = back
        .lines
        .iter()
        .map(|line| scenario::state(line))
        .collect();
    assert_eq!(states, ["unknown", "firing"], "{:?}", back.lines);
}

#[test]
fn an_instance_of_several_rows_fires_if_one_does_and_clears_if_all_do() {
    let text = "create alert slow as
        select pdisk, op, max(latency) as worst from IO [range 2 s slide 1 s] group by pdisk, op
        when worst > 10 ms until worst < 5 ms labels pdisk
        annotations '{op} {worst}' as summary;";
    let of = |at: f64, op: &str, ms: i64| {
        io(
            at,
            &[
                ("op", Value::text(op)),
                ("latency", Value::Int(ms * 1_000_000)),
            ],
        )
    };
    let mut rows = Vec::new();
    for s in 0..20 {
        let at = f64::from(s) + 0.5;
        rows.push(of(at, "r", 1));
        rows.push(of(
            at + 0.1,
            "w",
            if s == 5 {
                50
            } else if s < 12 {
                7
            } else {
                1
            },
        ));
    }
    let run = Scenario::new(text).run(&rows, 20.0);
    let expected = [
        "6.000 slow{pdisk=\"/dev/sda\"} clear -> firing",
        "14.000 slow{pdisk=\"/dev/sda\"} firing -> clear",
    ];
    assert_eq!(run.lines, expected);
    assert_eq!(run.summaries[0], "w 50.0 ms");
}

#[test]
fn the_instances_of_a_host_whose_agent_is_silent_are_unknown() {
    let text = "create alert busy as select host, count(*) as n from IO [range 5 s slide 1 s]
                group by host when n > 5 labels host";
    let mut rows = Vec::new();
    for s in 0..30 {
        for host in ["a", "b"] {
            // Agent b is silent from 10 s to 15 s.
            let is_silent = host == "b" && (10..15).contains(&s);
            let at = |i: u32| f64::from(s) + 0.1 + f64::from(i) / 10.0;
            let row = |i| io(at(i), &[("host", Value::text(host))]);
            rows.extend((0..if is_silent { 0 } else { 3 }).map(row));
        }
    }
    let mut scenario = Scenario::new(text);
    scenario.silent = vec![(11.0, &["b"]), (15.0, &[])];
    let run = scenario.run(&rows, 29.0);
    let expected = [
        "2.000 busy{host=\"a\"} clear -> firing",
        "2.000 busy{host=\"b\"} clear -> firing",
        "10.000 busy{host=\"b\"} firing -> unknown",
        "20.000 busy{host=\"b\"} unknown -> firing",
    ];
    let without_ns = |line: &String| {
        let (at, rest) = line.split_once(' ').unwrap();
        format!("{:.3} {rest}", at.parse::<f64>().unwrap().floor())
    };
    let lines: Vec<String> = run.lines.iter().map(without_ns).collect();
    assert_eq!(lines, expected);
}

#[test]
fn an_alert_without_a_label_host_is_unknown_while_any_agent_is_silent() {
    let text = "create alert busy as select count(*) as n from IO [range 5 s slide 1 s]
                when n > 5 labels 'x' as a";
    let rows = requests(0, 30, 10, with_latency(1));
    let mut scenario = Scenario::new(text);
    scenario.silent = vec![(11.0, &["b"]), (15.0, &[])];
    let lines = scenario.run(&rows, 29.0).lines;
    let states: Vec<&str> = lines.iter().map(|line| scenario::state(line)).collect();
    assert_eq!(states, ["firing", "unknown", "firing"]);
}

#[test]
fn a_rule_whose_query_fails_is_unknown_and_delays_no_other() {
    let rule = "create alert NAME as select count(*) as n from IO [range 5 s slide 1 s]
                when n > 5 labels 'x' as a;";
    let text = ["one", "two"]
        .map(|name| rule.replace("NAME", name))
        .concat();
    let rows = requests(0, 30, 10, with_latency(1));
    let mut scenario = Scenario::new(&text);
    scenario.failing = Some((11.0, 0));
    let lines = scenario.run(&rows, 40.0).lines;
    let of = |name: &str| -> Vec<String> {
        let own = lines.iter().filter(|line| line.contains(name));
        own.map(|line| scenario::state(line).to_owned()).collect()
    };
    assert_eq!(of("one"), ["firing", "unknown"], "{lines:?}");
    assert_eq!(of("two"), ["firing", "clear"], "{lines:?}");
}

/// The rules that judge a load by itself.
const LOAD_RULES: [&str; 5] = [
    "latency_over_baseline",
    "queue_saturated",
    "noisy_neighbour",
    "flush_storm",
    "disk_errors",
];

/// What the rules report of two VMs with equal loads on one disk and no disturbance: requests at
/// random times, 12 a second each, with latencies that are log-normal around 1 ms: one of a hundred
/// takes more than 10 ms.
fn false_alarms(seed: u64, seconds: f64) -> Vec<String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut rows = Vec::new();
    for vm in ["one", "two"] {
        let mut at = 0.0;
        while at < seconds {
            // Exponential intervals; Box and Muller 1958 for the normal distribution.
            at += -random.f64().max(1e-12).ln() / 12.0;
            let radius = (-2.0 * random.f64().max(1e-12).ln()).sqrt();
            let normal = radius * (std::f64::consts::TAU * random.f64()).cos();
            let service = (1e6 * normal.exp()) as i64;
            let wait = (service as f64 * random.f64() / 2.0) as i64;
            let op = if random.u8(..) < 8 { "f" } else { "r" };
            let columns = [
                ("vm", Value::text(vm)),
                ("op", Value::text(op)),
                ("wait", Value::Int(wait)),
                ("service", Value::Int(service)),
                ("latency", Value::Int(wait + service)),
                ("in_flight", Value::Int(random.i64(1..24))),
            ];
            rows.push(io(at, &columns));
        }
    }
    let rules = LOAD_RULES.map(|name| ShippedRule::find(name).expect("a shipped rule").text);
    let lines = Scenario::new(&rules.join("\n")).run(&rows, seconds).lines;
    let is_firing = |line: &String| scenario::state(line) == "firing";
    lines.into_iter().filter(is_firing).collect()
}

#[test]
fn two_equal_loads_without_a_disturbance_raise_no_alarm() {
    for seed in 0..6 {
        let alarms = false_alarms(seed, 1_200.0);
        assert!(alarms.is_empty(), "{seed}: {alarms:?}");
    }
}

/// `WEIR_SEEDS=1000 cargo test --workspace --test rules -- --ignored --nocapture hour`
#[test]
#[ignore = "takes minutes: an hour of load for each seed"]
fn an_hour_of_two_equal_loads_raises_no_alarm() {
    let seeds = std::env::var("WEIR_SEEDS").map_or(100, |seeds| seeds.parse().unwrap());
    let next = AtomicU64::new(0);
    let run = || {
        let seeds = iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)))
            .take_while(|seed| *seed < seeds);
        let hours = seeds.map(|seed| (seed, false_alarms(seed, 3_600.0)));
        hours.filter(|(_, alarms)| !alarms.is_empty()).collect()
    };
    let alarms: Vec<(u64, Vec<String>)> = thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        let found = threads.into_iter().map(|thread| thread.join().unwrap());
        found.collect::<Vec<Vec<_>>>().concat()
    });
    println!("{} of {seeds} hours had an alarm", alarms.len());
    assert!(alarms.is_empty(), "{alarms:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Where the input is cut into steps has no effect on the events.
    #[test]
    fn the_cuts_of_the_input_change_nothing(
        loads in proptest::collection::vec(0_u32..14, 30),
        cuts in proptest::collection::vec(1_u32..40_000, 0..60),
    ) {
        let mut rows = Vec::new();
        for (second, load) in loads.iter().enumerate() {
            let second = second as u32;
            rows.extend(requests(second, second + 1, (*load).max(1), with_latency(1)));
        }
        let whole = Scenario::new(BUSY).run(&rows, 40.0).lines;
        let mut scenario = Scenario::new(BUSY);
        scenario.cuts = cuts.into_iter().map(|ms| f64::from(ms) / 1000.0).collect();
        prop_assert_eq!(scenario.run(&rows, 40.0).lines, whole);
    }
}
