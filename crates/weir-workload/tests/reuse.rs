//! Reuse of blocks, working sets, and joint distributions: hand-computed cases, and bounds of
//! memory.

use weir_model::Op;
use weir_workload::analysis::addresses::AddressTally;
use weir_workload::analysis::pairs::{Pair, PairTally};
use weir_workload::analysis::reuse::{Reuse, ReuseTally};
use weir_workload::{Class, IssuedRequest, RequestEvent, Response, Step, Track};

const SECOND_NS: i64 = 1_000_000_000;

fn request(ts: i64, op: Op, sector: i64, sectors: i64) -> IssuedRequest {
    IssuedRequest {
        ts,
        id: ts,
        op,
        sector: (op != Op::Flush).then_some(sector),
        sectors,
    }
}

fn steps(events: impl IntoIterator<Item = RequestEvent>) -> Vec<Step> {
    let mut track = Track::new(16);
    events.into_iter().map(|event| track.take(&event)).collect()
}

fn issued(requests: impl IntoIterator<Item = IssuedRequest>) -> Vec<Step> {
    steps(requests.into_iter().map(RequestEvent::Issued))
}

fn reuse(requests: impl IntoIterator<Item = IssuedRequest>) -> Reuse {
    let mut tally = ReuseTally::default();
    issued(requests).iter().for_each(|step| tally.take(step));
    tally.result().unwrap()
}

/// The miss ratios of all touches and of reads in a cache of this many blocks.
fn misses(reuse: &Reuse, blocks: i64) -> (f64, Option<f64>) {
    let cache = reuse.curve.iter().find(|c| c.cache_bytes == blocks * 4096);
    let cache = cache.unwrap();
    (cache.miss_ratio, cache.read_miss_ratio)
}

#[test]
fn a_request_touches_the_blocks_it_overlaps() {
    // Sectors 7 and 8 are in different blocks of 4 KiB; a flush and a discard touch none.
    let reuse = reuse([
        request(0, Op::Write, 7, 2),
        request(1, Op::Read, 0, 8),
        request(2, Op::Flush, 0, 0),
        request(3, Op::Discard, 0, 800),
        request(4, Op::Read, 8, 1),
    ]);
    assert_eq!((reuse.touches, reuse.read_touches), (4, 2));
    assert_eq!((reuse.first_share, reuse.exact), (0.5, true));
    assert_eq!(
        misses(&reuse, 16),
        (0.5, Some(0.0)),
        "reads hit what was written"
    );
    let blocks = |bytes: f64| (bytes / 4096.0).round();
    let set = &reuse.working_set;
    assert_eq!(
        [set.bytes, set.read_bytes, set.written_bytes].map(blocks),
        [2.0, 2.0, 2.0]
    );
}

#[test]
fn a_cache_that_holds_the_loop_hits_it() {
    let round = |i: i64| request(i, Op::Read, i % 20 * 8, 8);
    let reuse = reuse((0..200).map(round));
    assert_eq!(misses(&reuse, 16), (1.0, Some(1.0)));
    assert_eq!(misses(&reuse, 20), (0.1, Some(0.1)));
    assert_eq!(
        reuse.curve.last().unwrap().cache_bytes,
        20 * 4096,
        "no larger one hits more"
    );
    assert!(
        reuse
            .curve
            .iter()
            .all(|cache| cache.miss_ratio_error == 0.0)
    );
}

#[test]
fn the_working_set_is_reported_over_time() {
    // A thousand blocks repeatedly for a minute, then another thousand.
    let block = |i: i64| i / 60_000 * 10_000 + i % 1_000;
    let requests = (0..120_000).map(|i| request(i * SECOND_NS / 1_000, Op::Write, block(i) * 8, 8));
    let set = reuse(requests).working_set;
    assert!(
        set.intervals.len() <= 64 && set.intervals.len() > 30,
        "{}",
        set.intervals.len()
    );
    let near =
        |bytes: f64, blocks: f64| (bytes / 4096.0 / blocks - 1.0).abs() < 4.0 * set.error_share;
    assert!(near(set.bytes, 2_000.0), "{}", set.bytes);
    assert!(set.read_bytes == 0.0 && near(set.written_bytes, 2_000.0));
    let (early, late) = (set.intervals[2], set.intervals.last().unwrap());
    assert!(near(early.bytes, 1_000.0) && near(early.bytes_so_far, 1_000.0));
    assert!(near(late.bytes_so_far, 2_000.0) && late.bytes < 1_200.0 * 4096.0);
}

#[test]
fn memory_stays_within_the_limit() {
    let mut tally = ReuseTally::new(4096, 1 << 20);
    let scattered = |i: i64| {
        request(
            i * 1_000_000,
            Op::Write,
            i.wrapping_mul(7_919_777) % (1 << 40),
            8,
        )
    };
    let mut most = 0;
    for step in issued((0..300_000).map(scattered)) {
        tally.take(&step);
        most = most.max(tally.bytes());
    }
    let working_set = 66 * 2048;
    assert!(most <= (1 << 20) + working_set, "{most}");
    assert!(most > 3 << 18, "{most}");
    let reuse = tally.result().unwrap();
    assert!(
        !reuse.exact && reuse.sampling_rate > 0.05,
        "{}",
        reuse.sampling_rate
    );
}

#[test]
fn a_request_of_any_length_is_handled() {
    let huge = [
        request(0, Op::Write, i64::MAX - 5, i64::MAX),
        request(1, Op::Read, i64::MIN, i64::MAX),
    ];
    assert_eq!(reuse(huge).touches, 1 + 65_536);
    let mut tally = AddressTally::default();
    issued(huge).iter().for_each(|step| tally.take(step));
    assert_eq!(tally.grid(Op::Write).unwrap().total(), 6);
}

fn finished(request: IssuedRequest, latency_ns: i64) -> RequestEvent {
    RequestEvent::Finished(Response {
        ts: request.ts + latency_ns,
        id: request.id,
        op: request.op,
        wait_ns: None,
        service_ns: None,
        latency_ns: Some(latency_ns),
        failed: false,
    })
}

#[test]
fn pairs_count_in_the_cell_of_both_values() {
    let (near, far) = (
        request(0, Op::Read, 0, 8),
        request(10_000_000, Op::Read, 100_000_000, 128),
    );
    let write = request(20_000_000, Op::Write, 100_000_128, 8);
    let mut tally = PairTally::default();
    for step in steps(
        [near, far, write]
            .into_iter()
            .flat_map(|r| [RequestEvent::Issued(r), finished(r, r.sectors * 50_000)]),
    ) {
        tally.take(&step);
    }
    let cell = |pair, class, value, latency_ns| {
        let grid = tally.grid(pair, class).unwrap();
        let (column, row) = (
            grid.x().cell(value).unwrap(),
            grid.y().cell(latency_ns).unwrap(),
        );
        grid.count(column, row)
    };
    let read = Class::Of(Op::Read);
    assert_eq!(cell(Pair::SeekLatency, read, 600_000, 6_400_000), 1);
    assert_eq!(
        cell(Pair::SeekLatency, Class::All, 1, 400_000),
        1,
        "the write follows the read"
    );
    assert_eq!(
        tally
            .grid(Pair::SeekLatency, Class::Of(Op::Write))
            .unwrap()
            .total(),
        0
    );
    assert_eq!(cell(Pair::LengthLatency, Class::All, 4_096, 400_000), 2);
    assert_eq!(cell(Pair::OutstandingLatency, Class::All, 1, 6_400_000), 1);
    assert!(
        tally
            .grid(Pair::SeekLatency, Class::Of(Op::Flush))
            .is_none()
    );
    assert!(tally.bytes() < 3 * 60_000, "{}", tally.bytes());
}

#[test]
fn sectors_are_counted_by_time_and_address() {
    let mut tally = AddressTally::default();
    let requests = (0..1_000).map(|i| request(i * SECOND_NS, Op::Read, i * 1_000, 500));
    let writes = [request(1_000 * SECOND_NS, Op::Write, 3_000, 40)];
    issued(requests.chain(writes))
        .iter()
        .for_each(|step| tally.take(step));
    let (reads, writes) = (
        tally.grid(Op::Read).unwrap(),
        tally.grid(Op::Write).unwrap(),
    );
    assert_eq!((reads.total(), writes.total()), (500_000, 40));
    assert_eq!(
        (reads.x(), reads.y()),
        (writes.x(), writes.y()),
        "one pair of axes for both"
    );
    assert!(tally.grid(Op::Discard).is_none());
    // A diagonal: later requests are at higher addresses.
    let rows: Vec<usize> = reads.cells().map(|(_, row, _)| row).collect();
    assert!(rows.is_sorted() && *rows.last().unwrap() >= 60, "{rows:?}");
    assert!(tally.bytes() < 300_000);
}

#[test]
fn a_profile_and_its_json_contain_them() {
    let mut characteriser = weir_workload::Characteriser::default();
    let subject = weir_workload::Subject::default();
    for i in 0..100 {
        let read = request(i * 1_000_000, Op::Read, i % 10 * 8, 8);
        characteriser.take(&subject, &RequestEvent::Issued(read));
        characteriser.take(&subject, &finished(read, 50_000));
    }
    let report = serde_json::to_value(characteriser.report()).unwrap();
    let profile = &report["profiles"][0];
    assert_eq!(profile["reuse"]["first_share"], 0.1);
    assert_eq!(profile["reuse"]["curve"][0]["miss_ratio"], 0.1);
    let lengths = &profile["pairs"][2];
    assert_eq!(
        (&lengths["measure"], &lengths["op"]),
        (&"ioLength".into(), &().into())
    );
    assert_eq!(lengths["cells"].as_array().unwrap().len(), 1);
    assert_eq!(profile["addresses"]["row_bytes"], 4096);
    let sectors = profile["addresses"]["ops"][0]["cells"]
        .as_array()
        .unwrap()
        .iter();
    assert_eq!(
        sectors.map(|cell| cell[2].as_u64().unwrap()).sum::<u64>(),
        800
    );
}
