//! Counting in user space: hand-computed cases, and random events against a direct evaluation of
//! the rules.

use proptest::prelude::*;
use weir_model::Op;
use weir_workload::{
    Class, Counter, Distribution, Histograms, IN_FLIGHT_MAX, IssuedRequest, Metric, RequestEvent,
    Response,
};

fn issued(ts: i64, id: i64, op: Op, sector: Option<i64>, sectors: i64) -> RequestEvent {
    RequestEvent::Issued(IssuedRequest {
        ts,
        id,
        op,
        sector,
        sectors,
    })
}

fn read(ts: i64, id: i64, sector: i64) -> RequestEvent {
    issued(ts, id, Op::Read, Some(sector), 8)
}

fn write(ts: i64, id: i64, sector: i64) -> RequestEvent {
    issued(ts, id, Op::Write, Some(sector), 16)
}

/// The end of a request whose wait is a tenth of its latency.
fn finished(ts: i64, id: i64, op: Op, latency_ns: i64) -> RequestEvent {
    RequestEvent::Finished(Response {
        ts,
        id,
        op,
        wait_ns: Some(latency_ns / 10),
        service_ns: Some(latency_ns - latency_ns / 10),
        latency_ns: Some(latency_ns),
        failed: false,
    })
}

fn untimed(ts: i64, id: i64, op: Op) -> RequestEvent {
    RequestEvent::Finished(Response {
        ts,
        id,
        op,
        wait_ns: None,
        service_ns: None,
        latency_ns: None,
        failed: false,
    })
}

fn counted(events: &[RequestEvent]) -> Histograms {
    let mut counter = Counter::new(16);
    for event in events {
        counter.take(event);
    }
    counter.histograms().clone()
}

/// The values of a distribution in which each bin has a single value: (value in the bin, count).
fn log_values(distribution: &Distribution) -> Vec<(i64, u64)> {
    let bins = distribution.log.bins();
    bins.map(|(bin, count)| (weir_sketch::LogBins::span(bin).0, count))
        .collect()
}

#[test]
fn each_operation_has_its_own_predecessor() {
    let histograms = counted(&[
        read(1_000, 1, 100),  // sectors 100..=107
        write(2_000, 2, 500), // 500..=515
        read(4_000, 3, 108),
        write(7_000, 4, 492), // just before the earlier write
    ]);
    let seek = |class| log_values(histograms.of(Metric::Seek, class));
    assert_eq!(seek(Class::Of(Op::Read)), [(1, 1)]);
    assert_eq!(seek(Class::Of(Op::Write)), [(-23, 1)]);
    let all = histograms.of(Metric::Seek, Class::All);
    assert_eq!((all.count, all.min, all.max), (3, -407, 393));
    assert_eq!(all.sum, 393 - 407 + 377);
    let gap = |class| histograms.of(Metric::Interarrival, class).sum;
    assert_eq!(gap(Class::All), 6_000);
    assert_eq!(gap(Class::Of(Op::Read)), 3_000);
    assert_eq!(gap(Class::Of(Op::Write)), 5_000);
    let outstanding = histograms.of(Metric::Outstanding, Class::All);
    assert_eq!(log_values(outstanding), [(1, 1), (2, 1), (3, 1), (4, 1)]);
    assert_eq!(histograms.requests(), 4);
}

#[test]
fn ties_of_closest_distance_go_to_the_later_request() {
    let mut events = vec![read(0, 1, 100), read(1, 2, 86)]; // ends at 107 and 93
    events.push(read(2, 3, 100));
    let histograms = counted(&events);
    let closest = histograms.of(Metric::SeekClosest, Class::All);
    assert_eq!((closest.count, closest.min, closest.max), (2, -21, 7));
    assert_eq!(
        histograms
            .of(Metric::SeekClosest, Class::Of(Op::Read))
            .count,
        0
    );
}

#[test]
fn the_closest_distance_considers_the_last_n_requests() {
    // Seventeen interleaved streams: with 16 to compare with, the own stream is just out of range.
    let streams = |n: i64| -> Vec<RequestEvent> {
        let turns = 0..10 * n;
        turns
            .map(|i| read(i, i, i % n * 1_000_000 + i / n * 8))
            .collect()
    };
    let sequential = |n: i64| {
        let histograms = counted(&streams(n));
        let closest = histograms.of(Metric::SeekClosest, Class::All);
        closest.log.count(1) as i64
    };
    assert_eq!(sequential(16), 9 * 16);
    assert_eq!(sequential(17), 0);
}

#[test]
fn a_flush_has_neither_length_nor_seek() {
    let histograms = counted(&[
        read(0, 1, 100),
        issued(10, 2, Op::Flush, None, 0),
        read(20, 3, 108),
    ]);
    assert_eq!(histograms.of(Metric::Length, Class::All).count, 2);
    let seek = histograms.of(Metric::Seek, Class::All);
    assert_eq!((seek.count, seek.max), (1, 1), "the flush moved no head");
    assert_eq!(histograms.of(Metric::Interarrival, Class::All).count, 2);
    let outstanding = histograms.of(Metric::Outstanding, Class::Of(Op::Flush));
    assert_eq!((outstanding.count, outstanding.max), (1, 2));
}

#[test]
fn an_unknown_end_counts_its_latency_and_nothing_in_flight() {
    let histograms = counted(&[
        read(0, 1, 0),
        finished(5, 77, Op::Write, 1_000_000),
        read(10, 2, 8),
        finished(20, 1, Op::Read, 20),
        read(30, 3, 16),
    ]);
    let latency = histograms.of(Metric::Latency, Class::All);
    assert_eq!((latency.count, latency.sum), (2, 1_000_020));
    assert_eq!(histograms.of(Metric::Wait, Class::All).sum, 100_002);
    assert_eq!(histograms.of(Metric::Service, Class::All).sum, 900_018);
    let outstanding = histograms.of(Metric::Outstanding, Class::All);
    assert_eq!(log_values(outstanding), [(1, 1), (2, 2)]);
}

#[test]
fn without_end_times_requests_in_flight_are_not_reported() {
    let ends = |i| [read(i * 10, i, i * 8), untimed(i * 10, i, Op::Read)];
    let histograms = counted(&(0..9).flat_map(ends).collect::<Vec<_>>());
    let outstanding = histograms.of(Metric::Outstanding, Class::All);
    assert_eq!(outstanding, &Distribution::new(Metric::Outstanding));
    assert_eq!(histograms.of(Metric::Latency, Class::All).count, 0);
    assert_eq!(histograms.of(Metric::Length, Class::All).count, 9);
}

#[test]
fn a_reset_retains_the_previous_requests() {
    let mut counter = Counter::new(16);
    counter.take(&read(0, 1, 0));
    counter.reset();
    assert_eq!(counter.histograms(), &Histograms::default());
    counter.take(&read(500, 2, 8));
    let of = |metric| counter.histograms().of(metric, Class::All).clone();
    assert_eq!(of(Metric::Seek).max, 1);
    assert_eq!(of(Metric::SeekClosest).max, 1);
    assert_eq!(of(Metric::Interarrival).max, 500);
    assert_eq!(of(Metric::Outstanding).max, 2);
}

#[test]
fn requests_without_an_end_are_removed_and_counted() {
    let mut counter = Counter::new(16);
    let full = IN_FLIGHT_MAX as i64;
    for id in 0..full + 10 {
        counter.take(&read(0, id, id * 8));
    }
    assert_eq!(counter.forgotten(), 10);
    let depth = |counter: &Counter| counter.histograms().of(Metric::Outstanding, Class::All).max;
    assert_eq!(depth(&counter), full + 1);
    counter.reset();
    // An hour later they are expired.
    counter.take(&read(3_600_000_000_000, 0, 0));
    assert_eq!(depth(&counter), 1);
    assert_eq!(counter.forgotten(), 10 + full as u64);
}

/// The expected counts of `events`, computed from all earlier ones.
fn by_definition(events: &[RequestEvent], closest_of: usize) -> Vec<(Metric, Class, i64)> {
    let mut values = Vec::new();
    for (i, event) in events.iter().enumerate() {
        let before = &events[..i];
        match event {
            RequestEvent::Issued(request) => values.extend(at_issue(request, before, closest_of)),
            RequestEvent::Finished(end) => {
                for (metric, value) in [
                    (Metric::Wait, end.wait_ns),
                    (Metric::Service, end.service_ns),
                    (Metric::Latency, end.latency_ns),
                ] {
                    let classes = [Class::All, Class::Of(end.op)];
                    values.extend(classes.map(|class| (metric, class, value.unwrap())));
                }
            }
            RequestEvent::Lost { .. } => {}
        }
    }
    values
}

fn at_issue(
    request: &IssuedRequest,
    before: &[RequestEvent],
    n: usize,
) -> Vec<(Metric, Class, i64)> {
    let requests: Vec<&IssuedRequest> = before
        .iter()
        .filter_map(|event| match event {
            RequestEvent::Issued(request) => Some(request),
            RequestEvent::Finished(_) | RequestEvent::Lost { .. } => None,
        })
        .collect();
    let ended = |id| {
        before
            .iter()
            .any(|e| matches!(e, RequestEvent::Finished(r) if r.id == id))
    };
    let in_flight = requests.iter().filter(|r| !ended(r.id)).count() as i64 + 1;
    let mut values = Vec::new();
    for class in [Class::All, Class::Of(request.op)] {
        let same = |r: &&&IssuedRequest| class == Class::All || r.op == request.op;
        values.push((Metric::Outstanding, class, in_flight));
        let last = requests.iter().rev().find(same);
        values.extend(last.map(|r| (Metric::Interarrival, class, request.ts - r.ts)));
        let Some(first) = request.sector else {
            continue;
        };
        values.push((Metric::Length, class, request.sectors * 512));
        let mut placed = requests.iter().rev().filter(|r| r.sector.is_some());
        let distance = |r: &&IssuedRequest| first - (r.sector.unwrap() + r.sectors - 1);
        let seek = placed.clone().find(same).map(distance);
        values.extend(seek.map(|sectors| (Metric::Seek, class, sectors)));
        if class == Class::All {
            let mut least: Option<i64> = None;
            for sectors in placed.by_ref().take(n).map(distance) {
                if least.is_none_or(|l| sectors.abs() < l.abs()) {
                    least = Some(sectors);
                }
            }
            values.extend(least.map(|sectors| (Metric::SeekClosest, class, sectors)));
        }
    }
    values
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => Just(Op::Read),
        4 => Just(Op::Write),
        1 => Just(Op::Flush),
        1 => Just(Op::Discard),
        1 => Just(Op::WriteZeroes),
    ]
}

/// Requests and ends, some of them missing.
fn any_events() -> impl Strategy<Value = Vec<RequestEvent>> {
    let step = (
        any_op(),
        0i64..2_000,
        1i64..40,
        0i64..5_000,
        0u8..5,
        any::<prop::sample::Index>(),
    );
    prop::collection::vec(step, 0..120).prop_map(|steps| {
        let (mut ts, mut in_flight, mut events) = (0, Vec::new(), Vec::new());
        for (id, (op, sector, sectors, gap, kind, which)) in (0i64..).zip(steps) {
            ts += gap;
            if kind == 4 {
                events.push(finished(ts, 1_000 + id, op, gap));
            } else if kind >= 2 && !in_flight.is_empty() {
                let (id, op, since) = in_flight.swap_remove(which.index(in_flight.len()));
                events.push(finished(ts, id, op, ts - since));
            } else {
                let sector = (op != Op::Flush).then_some(sector);
                let sectors = if op == Op::Flush { 0 } else { sectors };
                in_flight.push((id, op, ts));
                events.push(issued(ts, id, op, sector, sectors));
            }
        }
        events
    })
}

proptest! {
    #[test]
    fn counts_match_a_direct_evaluation_of_the_rules(events in any_events(), closest_of in 0usize..20) {
        let mut counter = Counter::new(closest_of);
        events.iter().for_each(|event| { counter.take(event); });
        let mut expected = Histograms::default();
        for (metric, class, value) in by_definition(&events, closest_of) {
            expected.of_mut(metric, class).add(value);
        }
        prop_assert_eq!(counter.histograms(), &expected);
    }

    #[test]
    fn a_reset_anywhere_splits_the_counts(events in any_events(), at in any::<prop::sample::Index>()) {
        let mut counter = Counter::new(16);
        let at = at.index(events.len() + 1);
        events[..at].iter().for_each(|event| { counter.take(event); });
        let mut both = counter.histograms().clone();
        counter.reset();
        events[at..].iter().for_each(|event| { counter.take(event); });
        both.merge(counter.histograms());
        prop_assert_eq!(both, counted(&events));
    }

    #[test]
    fn removing_a_value_keeps_the_bins_of_the_others(
        values in prop::collection::vec(-2_000i64..2_000, 1..40),
        at in any::<prop::sample::Index>(),
    ) {
        let of = |values: &[i64]| {
            let mut distribution = Distribution::new(Metric::Seek);
            values.iter().for_each(|value| distribution.add(*value));
            distribution
        };
        let mut left = values.clone();
        let value = left.remove(at.index(values.len()));
        let mut distribution = of(&values);
        distribution.remove(value);
        let expected = of(&left);
        prop_assert_eq!(&distribution.bins, &expected.bins);
        prop_assert_eq!(&distribution.log, &expected.log);
        prop_assert_eq!((distribution.count, distribution.sum), (expected.count, expected.sum));
    }
}
