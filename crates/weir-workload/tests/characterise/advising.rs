//! Storage advice, and its absence with insufficient data.

use weir_model::{Nanos, Op};
use weir_workload::{Advice, Characteriser, Confidence, Profile, RequestEvent, Topic};

use crate::load::{Io, Random, disk, events, profile, reads};

fn advice(profile: &Profile, topic: Topic) -> Option<&Advice> {
    profile.advice.iter().find(|a| a.topic == topic)
}

fn missing(profile: &Profile, topic: Topic) -> bool {
    profile.missing.iter().any(|m| m.topic == topic)
}

/// `count` random requests of `sectors`, one each `gap`, with this latency.
fn scattered(count: usize, gap: Nanos, latency: Nanos, sectors: i64) -> Vec<Io> {
    let mut random = Random::new(31);
    let mut ios = reads((0..count).map(|_| random.below(1 << 20) * 8));
    for (i, io) in ios.iter_mut().enumerate() {
        io.ts = i as Nanos * gap;
        (io.latency, io.sectors) = (latency, sectors);
    }
    ios
}

#[test]
fn many_random_requests_need_flash_and_few_a_disk() {
    let many = profile(&scattered(30_000, 1_000_000, 500_000, 8));
    let flash = advice(&many, Topic::Medium).unwrap();
    assert!(
        flash
            .text
            .starts_with("flash: 1000 non-sequential requests"),
        "{}",
        flash.text
    );
    assert_eq!(flash.confidence, Confidence::High);
    let few = profile(&scattered(2_000, 20_000_000, 9_000_000, 8));
    let disk = advice(&few, Topic::Medium).unwrap();
    assert!(
        disk.text.starts_with("one hard disk suffices: 51 "),
        "{}",
        disk.text
    );
    let brief = profile(&scattered(1_200, 10_000_000, 9_000_000, 8));
    assert!(missing(&brief, Topic::Medium), "no second is the busiest");
    let mut flushed = scattered(2_000, 20_000_000, 9_000_000, 8);
    flushed[1_000..]
        .iter_mut()
        .for_each(|io| (io.op, io.sectors) = (Op::Flush, 0));
    let flushed = profile(&flushed);
    let disk = advice(&flushed, Topic::Medium).unwrap();
    assert!(
        disk.text.starts_with("one hard disk suffices: 25 "),
        "{}",
        disk.text
    );
    let between = profile(&scattered(3_000, 7_000_000, 1_000_000, 8));
    assert!(missing(&between, Topic::Medium), "{:?}", between.advice);
}

#[test]
fn random_writes_are_reported_as_flash_wear() {
    let mut ios = scattered(30_000, 1_000_000, 500_000, 8);
    ios.iter_mut().for_each(|io| io.op = Op::Write);
    let profile = profile(&ios);
    let flash = advice(&profile, Topic::Medium).unwrap();
    assert!(
        flash
            .text
            .contains("100 % of the requests are non-sequential writes"),
        "{}",
        flash.text
    );
}

#[test]
fn concurrent_requests_need_wide_stripes() {
    let deep = profile(&scattered(20_000, 1_000_000, 8_000_000, 32));
    let stripe = advice(&deep, Topic::StripeUnit).unwrap();
    assert!(
        stripe
            .text
            .starts_with("a stripe unit of 64 KiB or more: the mean queue depth is 8."),
        "{}",
        stripe.text
    );
    let mut trimmed = scattered(20_000, 1_000_000, 8_000_000, 32);
    for io in trimmed.iter_mut().step_by(10) {
        (io.op, io.sectors) = (Op::Discard, 1 << 20);
    }
    let trimmed = profile(&trimmed);
    let stripe = advice(&trimmed, Topic::StripeUnit).unwrap();
    assert!(
        stripe.text.starts_with("a stripe unit of 64 KiB or more"),
        "{}",
        stripe.text
    );
    let single = profile(
        &reads((0..2_000).map(|i| 1_024 * i))
            .iter()
            .map(|io| Io {
                sectors: 1_024,
                ..*io
            })
            .collect::<Vec<_>>(),
    );
    let stripe = advice(&single, Topic::StripeUnit).unwrap();
    assert!(
        stripe
            .text
            .contains("at most 512 KiB divided by the number of disks"),
        "{}",
        stripe.text
    );
    let small = profile(&scattered(2_000, 1_000_000, 200_000, 8));
    assert!(advice(&small, Topic::StripeUnit).is_none() && !missing(&small, Topic::StripeUnit));
}

#[test]
fn interleaved_streams_need_separate_disks() {
    let three = profile(&reads((0..6_000).map(|i| ((i % 3) << 24) + i / 3 * 8)));
    let apart = advice(&three, Topic::Separation).unwrap();
    assert!(
        apart.text.starts_with("3 sequential streams"),
        "{}",
        apart.text
    );
    let one = profile(&reads((0..6_000).map(|i| 8 * i)));
    assert_eq!(advice(&one, Topic::Separation), None);
}

#[test]
fn unaligned_writes_are_reported() {
    let mut ios = scattered(2_000, 1_000_000, 200_000, 8);
    ios.iter_mut().for_each(|io| io.op = Op::Write);
    assert_eq!(advice(&profile(&ios), Topic::Alignment), None);
    ios.iter_mut().for_each(|io| io.sector += 63);
    let profile = profile(&ios);
    let alignment = advice(&profile, Topic::Alignment).unwrap();
    assert!(
        alignment.text.starts_with("100 % of the writes"),
        "{}",
        alignment.text
    );
    assert_eq!(profile.sizes.writes.alignment_bytes, Some(512));
}

#[test]
fn insufficient_data_gives_no_advice() {
    let few = profile(&scattered(900, 20_000_000, 500_000, 8));
    assert_eq!(few.advice, []);
    for topic in [Topic::Medium, Topic::StripeUnit, Topic::Separation] {
        assert!(missing(&few, topic), "{topic:?}");
    }
    let short = profile(&scattered(5_000, 1_000_000, 500_000, 8));
    assert!(missing(&short, Topic::Medium), "five seconds tell no rate");
}

#[test]
fn a_cache_is_recommended_for_frequently_reused_blocks() {
    // Nine of ten reads go to 4 MiB, the others to random addresses.
    let mut random = Random::new(41);
    let ios = reads((0..60_000).map(|i| match i % 10 {
        0 => (1 << 24) + random.below(1 << 22) * 8,
        _ => random.below(1_024) * 8,
    }));
    let profile = profile(&ios);
    let cache = advice(&profile, Topic::CacheSize).unwrap();
    let evidence = |name| {
        cache
            .evidence
            .iter()
            .find(|e| e.name == name)
            .unwrap()
            .value
    };
    assert!(
        (0.75..0.95).contains(&evidence("hit_ratio")),
        "{}",
        cache.text
    );
    assert!(evidence("cache_bytes") <= 8e6, "{}", cache.text);
    assert!(evidence("working_set_bytes") > 20e6, "{}", cache.text);
}

#[test]
fn no_cache_is_recommended_without_reuse() {
    let profile = profile(&reads((0..20_000).map(|i| 8 * i)));
    let cache = advice(&profile, Topic::CacheSize).unwrap();
    assert!(
        cache.text.starts_with("a cache has no benefit: 0 %"),
        "{}",
        cache.text
    );
    // The plot of the curve marks the recommended size by this.
    assert!(cache.evidence.iter().all(|e| e.name != "cache_bytes"));
}

#[test]
fn a_loop_needs_a_cache_of_its_size() {
    let profile = profile(&reads((0..40_000).map(|i| i % 5_000 * 8)));
    let cache = advice(&profile, Topic::CacheSize).unwrap();
    assert!(
        cache
            .text
            .starts_with("the benefit of a cache grows with its size"),
        "{}",
        cache.text
    );
}

#[test]
fn lost_ends_suppress_conclusions_from_requests_in_flight() {
    // Every hundredth end is lost; the other requests take 1 ms of 2.
    let mut characteriser = Characteriser::default();
    let subject = disk("vm", "/dev/vda", "/dev/sda");
    for event in events(&scattered(4_000, 2_000_000, 1_000_000, 8)) {
        let lost = matches!(event, RequestEvent::Finished(response) if response.id % 100 == 0);
        if !lost {
            characteriser.take(&subject, &event);
        }
    }
    let profile = characteriser.report().profiles.remove(0);
    assert_eq!(profile.parallelism, None);
    assert!(missing(&profile, Topic::QueueDepth));
    assert_eq!(profile.arrivals.source, None);
    assert!(advice(&profile, Topic::StripeUnit).is_none());
    assert!(missing(&profile, Topic::StripeUnit));
}
