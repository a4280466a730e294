//! The slowest requests and what overlaps them, compared with a recomputation over all requests of
//! random loads.

use fastrand::Rng;
use weir_model::{Op, Symbol};
use weir_workload::outliers::{OutlierFinder, OutlierReport, RequestSpan};
use weir_workload::{IssuedRequest, RequestEvent, Response, Subject};

/// A request of a load.
#[derive(Clone, Copy, Debug)]
struct Made {
    subject: Subject,
    id: i64,
    inserted: i64,
    issued: i64,
    finished: i64,
    sector: i64,
}

const DEVICES: [&str; 4] = ["/dev/sda", "/dev/sda1", "/dev/nvme0n1", "/dev/nvme0n1p2"];

/// The disk of each of [`DEVICES`].
const WHOLE: [&str; 4] = ["/dev/sda", "/dev/sda", "/dev/nvme0n1", "/dev/nvme0n1"];

fn load(random: &mut Rng, requests: i64) -> Vec<Made> {
    let mut now = 1_000;
    let made = |id| {
        now += random.i64(0..20);
        let issued = now + random.i64(0..30);
        let slow = if random.u8(..) < 8 { 500 } else { 40 };
        let subject = Subject {
            vm: Some(Symbol::new(["a", "b", "c"][random.usize(..3)])),
            pdisk: Some(Symbol::new(DEVICES[random.usize(..DEVICES.len())])),
            ..Subject::default()
        };
        Made {
            subject,
            id,
            inserted: now,
            issued,
            finished: issued + 1 + random.i64(0..slow),
            sector: 8 * random.i64(0..4),
        }
    };
    (0..requests).map(made).collect()
}

/// The events of a load in timestamp order, issues first.
fn events(load: &[Made]) -> Vec<(Subject, RequestEvent)> {
    let issued = load.iter().map(|made| {
        let request = IssuedRequest {
            ts: made.issued,
            id: made.id,
            op: Op::Read,
            sector: Some(made.sector),
            sectors: 8,
        };
        (made.subject, RequestEvent::Issued(request))
    });
    let finished = load.iter().map(|made| {
        let response = Response {
            ts: made.finished,
            id: made.id,
            op: Op::Read,
            wait_ns: Some(made.issued - made.inserted),
            service_ns: Some(made.finished - made.issued),
            latency_ns: Some(made.finished - made.inserted),
            failed: false,
        };
        (made.subject, RequestEvent::Finished(response))
    });
    let mut events: Vec<_> = issued.chain(finished).collect();
    events.sort_by_key(|(_, event)| event.ts());
    events
}

fn found(load: &[Made], limit: usize, over: i64, vm: Option<&str>) -> OutlierReport {
    let mut finder = OutlierFinder::new(limit, over);
    for (subject, event) in events(load) {
        let is_selected = vm.is_none_or(|vm| subject.vm == Some(Symbol::new(vm)));
        finder.take(subject, None, &event, is_selected);
    }
    finder.report()
}

fn whole(subject: Subject) -> &'static str {
    let device = subject.pdisk.map(Symbol::as_str);
    let at = DEVICES.iter().position(|name| Some(*name) == device);
    WHOLE[at.expect("one of the devices")]
}

/// The request of a span: it has a unique interval on its disk.
fn is(span: &RequestSpan, made: &Made) -> bool {
    (span.inserted_ns, span.issued_ns, span.finished_ns)
        == (Some(made.inserted), made.issued, Some(made.finished))
        && span.subject.pdisk == made.subject.pdisk.map(Symbol::as_str)
        && span.sector == Some(made.sector)
}

#[test]
fn the_slowest_requests_and_their_neighbours_equal_a_recomputation() {
    let mut random = Rng::with_seed(18);
    let mut overlapping = 0;
    for (limit, over, vm) in [(10, 0, None), (1_000, 100, None), (5, 50, Some("b"))] {
        let load = load(&mut random, 400);
        let report = found(&load, limit, over, vm);
        let of_vm = |made: &&Made| vm.is_none_or(|vm| made.subject.vm == Some(Symbol::new(vm)));
        let latency = |made: &Made| made.finished - made.inserted;
        let mut slow: Vec<&Made> = load.iter().filter(of_vm).collect();
        assert_eq!(report.finished, slow.len() as u64);
        slow.retain(|made| latency(made) > over);
        assert_eq!(report.over, slow.len() as u64);
        let latencies = |of: &[&Made]| -> Vec<i64> {
            let mut all: Vec<i64> = of.iter().map(|made| latency(made)).collect();
            all.sort_unstable_by(|a, b| b.cmp(a));
            all.truncate(limit);
            all
        };
        let reported = report.outliers.iter().map(|o| o.request.latency_ns);
        let reported: Vec<i64> = reported.map(|ns| ns.expect("a latency")).collect();
        assert_eq!(reported, latencies(&slow));
        for outlier in &report.outliers {
            let same = |made: &&Made| is(&outlier.request, made);
            let own = load.iter().find(same).expect("it is of the load");
            let is_around = |made: &&Made| {
                made.id != own.id
                    && whole(made.subject) == whole(own.subject)
                    && made.issued < own.finished
                    && made.finished > own.inserted
            };
            let around: Vec<&Made> = load.iter().filter(is_around).collect();
            overlapping += around.len();
            assert!(outlier.is_complete);
            assert_eq!(outlier.overlapping, around.len() as u64, "{own:?}");
            assert_eq!(outlier.neighbours.len(), around.len());
            for made in &around {
                let listed = outlier.neighbours.iter().filter(|span| is(span, made));
                assert_eq!(listed.count(), 1, "{made:?} around {own:?}");
            }
            let by_vm = |vm: &str| {
                let of = around
                    .iter()
                    .filter(|made| made.subject.vm == Some(Symbol::new(vm)));
                of.count() as u64
            };
            for vm in ["a", "b", "c"] {
                let groups = outlier
                    .around
                    .iter()
                    .filter(|group| group.subject.vm == Some(vm));
                assert_eq!(groups.map(|group| group.requests).sum::<u64>(), by_vm(vm));
            }
        }
    }
    assert!(overlapping > 100, "{overlapping} overlaps were compared");
}

#[test]
fn the_level_is_that_of_the_longest_time() {
    let mut random = Rng::with_seed(19);
    let load = load(&mut random, 300);
    let report = found(&load, 1_000, 0, None);
    let mut waits = 0;
    for outlier in &report.outliers {
        let span = &outlier.request;
        let made = load.iter().find(|made| is(span, made));
        let made = made.expect("a request of the load");
        let (wait, service) = (made.issued - made.inserted, made.finished - made.issued);
        let level = if service > wait { "service" } else { "wait" };
        assert_eq!(span.level, Some(level));
        assert_eq!(span.levels, [("wait", wait), ("service", service)]);
        waits += usize::from(level == "wait");
    }
    assert!(waits > 50 && waits + 50 < report.outliers.len(), "{waits}");
}

#[test]
fn a_request_is_sequential_if_it_begins_where_the_one_before_on_its_disk_ended() {
    let subject = Subject {
        pdisk: Some(Symbol::new("/dev/sda")),
        ..Subject::default()
    };
    let made = |id: i64, sector: i64| Made {
        subject,
        id,
        inserted: 10 * id,
        issued: 10 * id,
        finished: 10 * id + 5,
        sector,
    };
    let load = [made(1, 0), made(2, 8), made(3, 8), made(4, 16)];
    let report = found(&load, 10, 0, None);
    let mut order: Vec<_> = report.outliers.iter().map(|o| &o.request).collect();
    order.sort_by_key(|request| request.issued_ns);
    let order: Vec<_> = order.iter().map(|request| request.sequential).collect();
    assert_eq!(order, [Some(false), Some(true), Some(false), Some(true)]);
}

#[test]
fn the_completions_that_were_not_received_and_the_history_are_bounded() {
    let subject = Subject {
        pdisk: Some(Symbol::new("/dev/sda")),
        ..Subject::default()
    };
    let made = |id: i64, issued: i64, finished: i64| Made {
        subject,
        id,
        inserted: issued,
        issued,
        finished,
        sector: 0,
    };
    // One request lasts as long as all the others, of which only the last are kept.
    let count = 40_000;
    let mut load: Vec<Made> = (1..=count)
        .map(|id| made(id, 10 * id, 10 * id + 5))
        .collect();
    load.push(made(0, 1, 10 * count + 9));
    let report = found(&load, 1, 1_000, None);
    let slow = &report.outliers[0];
    assert!(!slow.is_complete);
    assert!(slow.overlapping < count as u64 && slow.overlapping > 10_000);
    // A lost request is around those that finish before its loss is known, without an end.
    let mut finder = OutlierFinder::new(10, 0);
    let load = [made(1, 10, 20), made(2, 12, 99), made(3, 30, 40)];
    for (subject, event) in events(&load) {
        match event {
            RequestEvent::Finished(response) if response.id == 2 => {}
            event => finder.take(subject, None, &event, true),
        }
        if event.ts() == 20 {
            finder.take(subject, None, &RequestEvent::Lost { ts: 25, id: 2 }, true);
        }
    }
    let report = finder.report();
    let around = |issued: i64| {
        let of = report
            .outliers
            .iter()
            .find(|o| o.request.issued_ns == issued);
        &of.expect("it finished").neighbours
    };
    assert_eq!(around(10).len(), 1);
    assert_eq!(around(10)[0].finished_ns, None);
    assert!(around(30).is_empty());
}
