//! Disks with planted relations: what moves together, and what slows what.

use fastrand::Rng;
use weir_workload::SubjectName;
use weir_workload::correlation::{
    CorrelatedMetric, CorrelationOptions, CorrelationReport, DiskCorrelator, LoadEffect,
    PairVerdict, StepLoad,
};

use crate::brute::{normal, pearson};

const SECOND: i64 = 1_000_000_000;

fn disk(name: &'static str) -> SubjectName {
    SubjectName {
        vm: None,
        vdisk: None,
        pdisk: Some(name),
    }
}

fn correlator(metric: CorrelatedMetric) -> DiskCorrelator {
    let options = CorrelationOptions {
        window: 60,
        lag: 5,
        threshold: 0.7,
    };
    DiskCorrelator::new(metric, SECOND, options)
}

/// A load of requests of 4 KiB with this mean latency.
fn load(requests: f64, latency_us: f64) -> StepLoad {
    let requests = requests.max(1.0) as u64;
    StepLoad {
        requests,
        bytes: 4096 * requests,
        timed: requests,
        latency_sum_ns: (requests as f64 * latency_us * 1_000.0) as i64,
    }
}

/// 100 steps of loads.
fn run(
    metric: CorrelatedMetric,
    mut loads: impl FnMut(u64) -> Vec<(SubjectName, StepLoad)>,
) -> (DiskCorrelator, CorrelationReport) {
    let mut correlator = correlator(metric);
    for step in 0..100 {
        correlator.step((1_000 + step as i64) * SECOND, loads(step));
        if step % 10 == 0 {
            correlator.report();
        }
    }
    let report = correlator.report().expect("there were steps");
    (correlator, report)
}

#[test]
fn disks_driven_together_move_together_and_a_third_does_not() {
    let mut random = Rng::with_seed(21);
    let (correlator, report) = run(CorrelatedMetric::Iops, |_| {
        let common = 200.0 * random.f64();
        vec![
            (
                disk("/dev/sdb"),
                load(300.0 + common, 90.0 + 5.0 * normal(&mut random)),
            ),
            (
                disk("/dev/sda"),
                load(100.0 + common, 80.0 + 5.0 * normal(&mut random)),
            ),
            (disk("/dev/sdc"), load(100.0 + 200.0 * random.f64(), 80.0)),
        ]
    });
    let [pair] = &report.pairs[..] else {
        panic!("{report:?}");
    };
    assert_eq!(
        (pair.leader.name.pdisk, pair.follower.name.pdisk),
        (Some("/dev/sda"), Some("/dev/sdb"))
    );
    assert_eq!((pair.lag_ns, pair.verdict), (0, PairVerdict::MoveTogether));
    assert!(pair.coefficient > 0.99 && pair.p_value < 1e-9);
    assert_eq!(
        (report.disks, report.compared, report.comparisons),
        (3, 3, 3 + 5 * 6)
    );
    assert_eq!(pair.end_ns - pair.begin_ns, 60 * SECOND);
    let summary = correlator.summary();
    let [of_pair] = &summary.pairs[..] else {
        panic!("{summary:?}");
    };
    // Windows are complete from step 60 on: reports after 61, 71, 81, 91 and 100 steps.
    assert_eq!((of_pair.windows, summary.windows), (5, 5));
    assert_eq!(of_pair.first_ns, 1_000 * SECOND);
    assert_eq!(
        (of_pair.last_ns, summary.end_ns.unwrap()),
        (1_099 * SECOND, 1_099 * SECOND)
    );
}

#[test]
fn the_disk_that_slows_the_other_is_named_whatever_the_order_of_names() {
    for [noisy, victim] in [["/dev/sda", "/dev/sdb"], ["/dev/sdb", "/dev/sda"]] {
        let mut random = Rng::with_seed(22);
        // The victim has a constant number of requests in flight: slower requests are fewer.
        let (_, report) = run(CorrelatedMetric::Iops, |_| {
            let noise = f64::from(u8::from(random.bool())) * (300.0 + 50.0 * random.f64());
            let latency_us = 100.0 + noise + 5.0 * normal(&mut random);
            let mut loads = vec![(disk(victim), load(1e5 / latency_us, latency_us))];
            if noise > 0.0 {
                loads.push((disk(noisy), load(noise, 100.0 + 5.0 * normal(&mut random))));
            }
            loads
        });
        let [pair] = &report.pairs[..] else {
            panic!("{report:?}");
        };
        assert!(pair.coefficient < -0.9 && pair.lag_ns == 0, "{pair:?}");
        // The own load changes with that of the other: active and idle intervals are compared.
        let expected = match noisy < victim {
            true => PairVerdict::LeaderSlowsFollower,
            false => PairVerdict::FollowerSlowsLeader,
        };
        assert_eq!(pair.verdict, expected, "{pair:?}");
        let effects = [&pair.leader_on_follower, &pair.follower_on_leader];
        let is_by_activity = |e: &&&LoadEffect| {
            let mut names = e.evidence.iter().map(|e| e.name);
            e.slows == Some(true) && names.any(|name| name == "rank_sum_z")
        };
        assert_eq!(effects.iter().filter(is_by_activity).count(), 1, "{pair:?}");
    }
}

#[test]
fn latency_that_rises_with_the_others_load_at_equal_own_load_is_its_effect() {
    let mut random = Rng::with_seed(23);
    let mut past = [0.0; 4];
    // Both are driven by one client, the victim 3 steps later; its latency follows the load of the
    // leader, not its own.
    let (_, report) = run(CorrelatedMetric::Iops, |_| {
        past.rotate_right(1);
        past[0] = 400.0 * random.f64();
        let own = 500.0 + past[3] + 150.0 * normal(&mut random);
        let latency_us = 100.0 + past[3] + 5.0 * normal(&mut random);
        vec![
            (
                disk("/dev/sdb"),
                load(50.0 + past[0], 100.0 + 5.0 * normal(&mut random)),
            ),
            (disk("/dev/sda"), load(own, latency_us)),
        ]
    });
    let [pair] = &report.pairs[..] else {
        panic!("{report:?}");
    };
    assert_eq!(
        (pair.leader.name.pdisk, pair.lag_ns),
        (Some("/dev/sdb"), 3 * SECOND)
    );
    assert_eq!(pair.verdict, PairVerdict::LeaderSlowsFollower, "{pair:?}");
    let evidence = &pair.leader_on_follower.evidence;
    let number = |name: &str| evidence.iter().find(|e| e.name == name).unwrap().value;
    assert!(number("equal_load_latency_ratio") > 1.2 && number("equal_load_z") > 3.0);
    assert!((number("equal_load_own_ratio") - 1.0).abs() < 0.15);
}

#[test]
fn latency_that_follows_the_own_load_is_no_effect_of_the_other() {
    let mut random = Rng::with_seed(24);
    let (_, report) = run(CorrelatedMetric::Iops, |_| {
        let common = 400.0 * random.f64();
        let own = 100.0 + common + 40.0 * normal(&mut random);
        let latency_us = 100.0 + own.max(1.0) + 20.0 * normal(&mut random);
        vec![
            (disk("/dev/sda"), load(100.0 + common, 100.0)),
            (disk("/dev/sdb"), load(own, latency_us)),
        ]
    });
    assert_eq!(
        report.pairs[0].verdict,
        PairVerdict::MoveTogether,
        "{report:?}"
    );
}

#[test]
fn an_idle_disk_has_zeros_and_an_unknown_latency() {
    for metric in CorrelatedMetric::ALL {
        let mut random = Rng::with_seed(25);
        let mut steps: Vec<[f64; 2]> = Vec::new();
        let (_, report) = run(metric, |step| {
            let both = (80.0 * random.f64()).floor();
            let latency_us = 100.0 + (100.0 * random.f64()).floor();
            // A tenth of the steps are idle, also between reported steps.
            if step % 10 == 3 && step > 0 {
                steps.push([0.0, f64::NAN]);
                return Vec::new();
            }
            steps.push([both + 1.0, latency_us]);
            let load = load(both + 1.0, latency_us);
            vec![(disk("/dev/sda"), load), (disk("/dev/sdb"), load)]
        });
        assert_eq!(report.pairs.len(), 1, "{metric:?}");
        assert!(
            (report.pairs[0].coefficient - 1.0).abs() < 1e-9,
            "{metric:?}"
        );
        let rate: Vec<f64> = steps.iter().map(|step| step[0]).collect();
        assert_eq!(pearson(&rate, &rate).round(), 1.0);
    }
}

#[test]
fn a_disk_that_was_idle_for_long_is_removed_and_steps_without_rows_count() {
    let mut random = Rng::with_seed(26);
    let mut correlator = correlator(CorrelatedMetric::Iops);
    let mut now = 1_000 * SECOND;
    let mut step = |correlator: &mut DiskCorrelator, gap: i64, disks: &[&'static str]| {
        now += gap * SECOND;
        let requests = 50.0 + 50.0 * random.f64();
        correlator.step(
            now,
            disks.iter().map(|name| (disk(name), load(requests, 100.0))),
        );
        correlator.report().expect("there were steps")
    };
    for _ in 0..70 {
        step(&mut correlator, 1, &["/dev/sda", "/dev/sdb"]);
    }
    let before = step(&mut correlator, 1, &["/dev/sda", "/dev/sdb"]);
    assert_eq!((before.disks, before.pairs.len()), (2, 1));
    let after = step(&mut correlator, 1_000, &["/dev/sda"]);
    assert_eq!((after.disks, after.pairs.len()), (1, 0));
    assert_eq!(correlator.summary().pairs.len(), 1);
    for _ in 0..80 {
        step(&mut correlator, 1, &["/dev/sda", "/dev/sdb"]);
    }
    assert_eq!(
        step(&mut correlator, 1, &["/dev/sda", "/dev/sdb"])
            .pairs
            .len(),
        1
    );
}
