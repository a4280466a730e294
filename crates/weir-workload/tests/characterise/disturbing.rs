//! Interference of two VMs on one disk, as in section 5.3 and figure 6 of Ahmad 2007.

use weir_model::{NANOS_PER_SECOND, Nanos};
use weir_workload::{Confidence, Interference, Report, Subject};

use crate::load::{Io, Random, disk, reads, report};

/// A request each 5 ms for a minute; while `slow` holds they take ten times as long and their rate
/// is halved.
fn victim(sequential: bool, slow: impl Fn(Nanos) -> bool) -> Vec<Io> {
    let mut random = Random::new(21);
    let mut now = 0;
    let mut ios = Vec::new();
    while now < 60 * NANOS_PER_SECOND {
        let disturbed = slow(now);
        let usual = 300_000 + random.below(200_000);
        let sector = match sequential {
            true => 8 * ios.len() as i64,
            false => random.below(1 << 20) * 8,
        };
        ios.push(Io {
            ts: now,
            sector,
            latency: if disturbed { 10 * usual } else { usual },
            ..reads([0])[0]
        });
        now += if disturbed { 10_000_000 } else { 5_000_000 };
    }
    ios
}

/// A request each 4 ms while `on` holds, each taking 3 ms.
fn other(on: impl Fn(Nanos) -> bool) -> Vec<Io> {
    let mut random = Random::new(22);
    let times = (0..15_000).map(|i| i * 4_000_000).filter(|ts| on(*ts));
    let io = |ts| Io {
        ts,
        sector: (1 << 30) + random.below(1 << 20) * 8,
        latency: 3_000_000,
        ..reads([0])[0]
    };
    times.map(io).collect()
}

/// The first 10 of each 20 seconds.
fn by_turns(ts: Nanos) -> bool {
    ts / (10 * NANOS_PER_SECOND) % 2 == 0
}

fn never(_: Nanos) -> bool {
    false
}

fn vm(name: &str, device: &str) -> Subject {
    disk(name, "/dev/vda", device)
}

fn between<'a>(report: &'a Report, victim: &str, disturber: &str) -> Option<&'a Interference> {
    let names =
        |i: &&Interference| i.victim.vm == Some(victim) && i.disturber.vm == Some(disturber);
    report.interference.iter().find(names)
}

#[test]
fn a_subject_slowed_by_another_is_disturbed() {
    let report = report(&[
        (vm("seq", "/dev/sdb1"), victim(true, by_turns)),
        (vm("rand", "/dev/sdb2"), other(by_turns)),
    ]);
    let found = between(&report, "seq", "rand").expect("found");
    assert!((found.latency_ratio - 10.0).abs() < 1.0, "{found:?}");
    assert!((found.throughput_ratio - 0.5).abs() < 0.1, "{found:?}");
    assert_eq!(found.confidence, Confidence::High);
    assert!(
        found
            .evidence
            .iter()
            .any(|e| e.name == "transitions" && e.value == 5.0)
    );
    assert_eq!(report.pairs_tested, 1, "the victim is always active");
}

#[test]
fn an_unaffected_subject_is_not_disturbed() {
    let report = report(&[
        (vm("a", "/dev/sdb"), victim(false, never)),
        (vm("b", "/dev/sdb"), other(by_turns)),
    ]);
    assert_eq!(report.interference, []);
    assert_eq!(report.pairs_tested, 1);
    assert_eq!(report.missing, []);
}

#[test]
fn subjects_on_different_disks_do_not_interfere() {
    let report = report(&[
        (vm("a", "/dev/sdb"), victim(true, by_turns)),
        (vm("b", "/dev/sdc"), other(by_turns)),
    ]);
    assert_eq!((report.interference.len(), report.pairs_tested), (0, 0));
    assert_eq!(report.missing[0].text, "no two disks share a device");
}

#[test]
fn the_interfering_subject_is_identified_among_two() {
    let innocent = |ts| (ts / (3 * NANOS_PER_SECOND)) % 2 == 0;
    let report = report(&[
        (vm("a", "/dev/sdb"), victim(true, by_turns)),
        (vm("guilty", "/dev/sdb"), other(by_turns)),
        (vm("innocent", "/dev/sdb"), other(innocent)),
    ]);
    assert!(between(&report, "a", "guilty").is_some());
    assert!(
        between(&report, "a", "innocent").is_none(),
        "{:?}",
        report.interference
    );
}

#[test]
fn one_transition_is_weak_evidence_and_constant_activity_none() {
    let late = |ts| ts > 30 * NANOS_PER_SECOND;
    let once = report(&[
        (vm("a", "/dev/sdb"), victim(true, late)),
        (vm("b", "/dev/sdb"), other(late)),
    ]);
    let found = between(&once, "a", "b").expect("found");
    assert!(found.confidence < Confidence::High, "{found:?}");
    let always = report(&[
        (vm("a", "/dev/sdb"), victim(true, never)),
        (vm("b", "/dev/sdb"), other(|_| true)),
    ]);
    assert_eq!(always.pairs_tested, 0);
    assert!(
        always.missing[0]
            .text
            .contains("with and without I/O of the other")
    );
}
