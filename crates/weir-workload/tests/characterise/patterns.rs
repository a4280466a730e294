//! The pattern of a workload: sequential, interleaved streams, reverse, strided, random,
//! log-structured.

use weir_model::Op;
use weir_workload::{Confidence, Pattern, Profile};

use crate::load::{Io, Random, profile, reads};

const DISK_SECTORS: i64 = 1 << 31;

fn pattern(profile: &Profile) -> Pattern {
    profile.verdict.as_ref().unwrap().pattern
}

fn streams(k: u32) -> Pattern {
    match k {
        1 => Pattern::Sequential,
        streams => Pattern::InterleavedStreams { streams },
    }
}

/// `k` interleaved streams of `count` requests: the order and the lengths come from `turn` and
/// `sectors`.
fn interleaved(
    k: i64,
    count: i64,
    mut turn: impl FnMut(i64) -> i64,
    mut sectors: impl FnMut(i64) -> i64,
) -> Vec<Io> {
    let mut next: Vec<i64> = (0..k).map(|s| s * (DISK_SECTORS / k) + 2_048).collect();
    let mut ios = reads((0..count).map(|_| 0));
    for (i, io) in ios.iter_mut().enumerate() {
        let stream = turn(i as i64) as usize;
        io.sectors = sectors(stream as i64);
        io.sector = next[stream];
        next[stream] += io.sectors;
    }
    ios
}

#[test]
fn one_to_eight_streams_interleaved_in_order_are_counted() {
    for k in 1..=8 {
        let ios = interleaved(k, 1_600, |i| i % k, |_| 8);
        assert_eq!(pattern(&profile(&ios)), streams(k as u32));
    }
}

#[test]
fn one_to_eight_streams_interleaved_at_random_are_counted() {
    for k in 1..=8 {
        let mut random = Random::new(7 + k as u64);
        let ios = interleaved(k, 1_600, |_| random.below(k), |_| 8);
        assert_eq!(pattern(&profile(&ios)), streams(k as u32));
    }
}

#[test]
fn streams_may_have_requests_of_different_sizes() {
    for k in 1..=8 {
        let (mut random, mut size) = (Random::new(k as u64), Random::new(99));
        let sectors = |_| [8, 16, 64, 256, 1_024][size.below(5) as usize];
        let ios = interleaved(k, 1_600, |_| random.below(k), sectors);
        assert_eq!(pattern(&profile(&ios)), streams(k as u32));
        let each = interleaved(k, 1_600, |i| i % k, |stream| 8 << stream);
        assert_eq!(pattern(&profile(&each)), streams(k as u32));
    }
}

#[test]
fn noise_does_not_hide_the_streams() {
    for k in 1..=8 {
        let mut random = Random::new(k as u64);
        let mut ios = interleaved(k, 3_200, |i| i % k, |_| 8);
        for io in &mut ios {
            io.ts *= 2;
        }
        // One request of six is at a random address.
        let noise = ios.iter().step_by(5).copied().map(|io| Io {
            ts: io.ts + 1_000_000,
            sector: random.below(DISK_SECTORS / 8) * 8,
            ..io
        });
        let mut all: Vec<Io> = noise.collect();
        all.extend(ios);
        all.sort_by_key(|io| io.ts);
        let profile = profile(&all);
        assert_eq!(pattern(&profile), streams(k as u32));
        let share = profile.order.all.sequential_share.unwrap();
        assert!((share - 5.0 / 6.0).abs() < 0.01, "{share}");
        let random = profile.order.all.random_share.unwrap();
        assert!((random - 1.0 / 6.0).abs() < 0.01, "{random}");
    }
}

#[test]
fn half_noise_gives_a_mixture_with_the_streams() {
    let mut random = Random::new(5);
    let ios = interleaved(4, 8_000, |i| i % 4, |_| 8);
    let with_noise = ios.iter().flat_map(|io| {
        let noise = Io {
            ts: io.ts + 500_000,
            sector: random.below(DISK_SECTORS / 8) * 8,
            ..*io
        };
        [*io, noise]
    });
    let profile = profile(&with_noise.collect::<Vec<Io>>());
    let verdict = profile.verdict.unwrap();
    assert_eq!(verdict.pattern, Pattern::Mixed);
    let parts: Vec<Pattern> = verdict.parts.iter().map(|p| p.pattern).collect();
    assert!(parts.contains(&streams(4)) && parts.contains(&Pattern::Random));
    assert!(
        verdict
            .label
            .contains("4 interleaved sequential streams (50 %)"),
        "{}",
        verdict.label
    );
}

#[test]
fn consecutive_runs_are_one_stream() {
    // A file in 40 fragments, read from start to end.
    let mut random = Random::new(3);
    let fragments: Vec<i64> = (0..40)
        .map(|_| random.below(DISK_SECTORS / 8) * 8)
        .collect();
    let sectors = fragments
        .iter()
        .flat_map(|at| (0..50).map(move |i| at + 8 * i));
    let profile = profile(&reads(sectors));
    assert_eq!(pattern(&profile), Pattern::Sequential);
    assert_eq!(profile.order.all.runs, 40);
    assert_eq!(profile.order.all.run_requests_mean, Some(50.0));
}

#[test]
fn a_rare_stream_next_to_a_busy_one_does_not_count() {
    let ios = interleaved(2, 4_000, |i| i64::from(i % 50 == 0), |_| 8);
    assert_eq!(pattern(&profile(&ios)), Pattern::Sequential);
}

#[test]
fn small_disorder_does_not_end_a_run() {
    let swapped = (0..4_000).map(|i| match i % 8 {
        3 => 8 * (i + 1),
        4 => 8 * (i - 1),
        _ => 8 * i,
    });
    let profile = profile(&reads(swapped));
    assert_eq!(pattern(&profile), Pattern::Sequential);
    assert!(profile.order.all.sequential_share.unwrap() > 0.99);
    assert_eq!(profile.order.all.runs, 1);
}

#[test]
fn random_requests_are_random_also_on_a_small_disk() {
    for disk_blocks in [2_000, 1 << 28] {
        let mut random = Random::new(11);
        let ios = reads((0..10_000).map(|_| random.below(disk_blocks) * 8));
        let profile = profile(&ios);
        assert_eq!(pattern(&profile), Pattern::Random);
        let share = profile.order.all.sequential_share.unwrap();
        assert!(share < 0.01, "{share}");
        assert_eq!(profile.verdict.unwrap().confidence, Confidence::High);
    }
}

#[test]
fn backward_scans_are_reverse() {
    let contiguous = reads((0..2_000).map(|i| 80_000 - 8 * i));
    assert_eq!(pattern(&profile(&contiguous)), Pattern::ReverseScan);
    let with_gaps = profile(&reads((0..2_000).map(|i| 800_000 - 64 * i)));
    assert_eq!(pattern(&with_gaps), Pattern::ReverseScan);
    assert_eq!(with_gaps.order.reads.stride_sectors, Some(-64));
}

#[test]
fn a_constant_distance_is_a_stride() {
    let profile = profile(&reads((0..2_000).map(|i| 256 * i)));
    assert_eq!(pattern(&profile), Pattern::Strided);
    assert_eq!(profile.order.all.stride_sectors, Some(256));
    assert_eq!(profile.order.all.seek_sequential_share, Some(0.0));
}

#[test]
fn sequential_writes_under_random_reads_are_a_log() {
    let mut random = Random::new(1);
    let mut end = 1 << 20;
    let ios: Vec<Io> = reads((0..6_000).map(|_| random.below(1 << 20) * 8))
        .into_iter()
        .enumerate()
        .map(|(i, io)| match i % 2 {
            0 => io,
            _ => {
                end += 128;
                // A new segment occasionally.
                end += if i % 200 == 1 { 1 << 16 } else { 0 };
                Io {
                    op: Op::Write,
                    sector: end - 128,
                    sectors: 128,
                    ..io
                }
            }
        })
        .collect();
    let profile = profile(&ios);
    assert_eq!(pattern(&profile), Pattern::LogStructured);
    let verdict = profile.verdict.unwrap();
    let named = |name| {
        verdict
            .evidence
            .iter()
            .find(|e| e.name == name)
            .unwrap()
            .value
    };
    assert!(named("write_sequential_share") > 0.95);
    assert!(named("read_random_share") > 0.95);
}

#[test]
fn few_requests_give_no_verdict_and_some_a_low_confidence() {
    let sequential = |count| profile(&reads((0..count).map(|i| 8 * i)));
    assert_eq!(sequential(99).verdict, None);
    let confidence = |count| sequential(count).verdict.unwrap().confidence;
    assert_eq!(confidence(500), Confidence::Low);
    assert_eq!(confidence(5_000), Confidence::Moderate);
    assert_eq!(confidence(20_000), Confidence::High);
}
