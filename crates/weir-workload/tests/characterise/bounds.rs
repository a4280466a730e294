//! With any input, memory is bounded and no unsupported statement is made.

use proptest::prelude::*;
use weir_model::{Op, Symbol};
use weir_workload::analysis::access::POINTS_MAX;
use weir_workload::analysis::timeline::INTERVALS_MAX;
use weir_workload::{
    Characteriser, IssuedRequest, Report, RequestEvent, Response, SUBJECTS_MAX, Subject,
};

fn any_event() -> impl Strategy<Value = RequestEvent> {
    let op = prop::sample::select(Op::ALL.to_vec());
    let ts = prop_oneof![0..10_000_000_000i64, any::<i64>()];
    let sector = prop::option::of(prop_oneof![0..1_000i64, any::<i64>()]);
    let sectors = prop_oneof![0..64i64, any::<i64>()];
    let times = prop::option::of(any::<i64>());
    let what = (ts, 0..20i64, op, sector, sectors, times, any::<bool>());
    what.prop_map(|(ts, id, op, sector, sectors, time, issued)| match issued {
        true => RequestEvent::Issued(IssuedRequest {
            ts,
            id,
            op,
            sector,
            sectors,
        }),
        false => RequestEvent::Finished(Response {
            ts,
            id,
            op,
            wait_ns: None,
            service_ns: time,
            latency_ns: None,
            failed: false,
        }),
    })
}

fn is_sound(report: &Report) {
    let share = |value: Option<f64>| value.is_none_or(|s| (0.0..=1.0).contains(&s));
    for profile in &report.profiles {
        assert!(profile.timeline.intervals.len() <= INTERVALS_MAX as usize);
        assert!(profile.access.points.len() <= POINTS_MAX);
        for order in [
            &profile.order.all,
            &profile.order.reads,
            &profile.order.writes,
        ] {
            assert!(
                share(order.sequential_share) && share(order.random_share),
                "{order:?}"
            );
            assert!(share(order.sequential_bytes_share), "{order:?}");
        }
        assert!(share(profile.mix.read_share) && share(profile.sizes.all.aligned_4k_share));
        for part in &profile.regions.concentration {
            assert!((0.0..=1.0 + 1e-9).contains(&part.access_share), "{part:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_events_give_a_consistent_report(mut events in prop::collection::vec(any_event(), 0..400)) {
        events.sort_by_key(RequestEvent::ts);
        let mut characteriser = Characteriser::default();
        let subject = Subject::default();
        events.iter().for_each(|event| characteriser.take(&subject, event));
        let report = characteriser.report();
        let issued = events.iter().filter(|e| matches!(e, RequestEvent::Issued(_))).count();
        prop_assert_eq!(report.requests, issued as u64);
        is_sound(&report);
    }
}

#[test]
fn impossible_lengths_do_not_overflow() {
    let mut characteriser = Characteriser::default();
    let issued = |ts| {
        RequestEvent::Issued(IssuedRequest {
            ts,
            id: 0,
            op: Op::Read,
            sector: Some(0),
            sectors: (1 << 54) - 1,
        })
    };
    for ts in [i64::MIN, 0, 1, 2, i64::MAX] {
        characteriser.take(&Subject::default(), &issued(ts));
    }
    let report = characteriser.report();
    assert_eq!(report.requests_impossible, 5);
    assert_eq!(report.profiles[0].mix.read_bytes, 0);
    assert!(report.span_ns < i64::MAX);
}

#[test]
fn subjects_beyond_the_limit_are_counted() {
    let mut characteriser = Characteriser::default();
    for i in 0..SUBJECTS_MAX as i64 + 10 {
        let subject = Subject {
            pdisk: Some(Symbol::new(&format!("/dev/disk{i}x"))),
            ..Subject::default()
        };
        characteriser.take(
            &subject,
            &RequestEvent::Issued(IssuedRequest {
                ts: i,
                id: i,
                op: Op::Read,
                sector: Some(0),
                sectors: 8,
            }),
        );
    }
    let report = characteriser.report();
    assert_eq!(report.profiles.len(), SUBJECTS_MAX);
    assert_eq!(report.requests_omitted, 10);
    assert_eq!(report.requests, SUBJECTS_MAX as u64 + 10);
}
