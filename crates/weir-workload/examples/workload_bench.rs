//! The cost of characterising a workload: ns per request for each part, over generated requests.
//!
//! 1,000,000 requests, of 4 KiB or of 64 KiB, three reads per write, at random addresses of 128
//! GiB, up to 32 in flight, each with its end. Generating them is not measured; times are processor
//! times of the thread.
//!
//! `cargo run --release -p weir-workload --example workload_bench`

use std::collections::VecDeque;
use std::hint::black_box;

use weir_model::Op;
use weir_testing::cpu_time;
use weir_workload::analysis::access::AccessTally;
use weir_workload::analysis::addresses::AddressTally;
use weir_workload::analysis::arrivals::ArrivalTally;
use weir_workload::analysis::bursts::BurstTally;
use weir_workload::analysis::load::LoadTally;
use weir_workload::analysis::mix::Mix;
use weir_workload::analysis::order::OrderTally;
use weir_workload::analysis::pairs::PairTally;
use weir_workload::analysis::parallelism::ParallelismTally;
use weir_workload::analysis::regions::RegionTally;
use weir_workload::analysis::reuse::ReuseTally;
use weir_workload::analysis::sizes::SizeTally;
use weir_workload::analysis::timeline::TimeTally;
use weir_workload::{
    Characteriser, Counter, Histograms, IssuedRequest, RequestEvent, Response, Step, Subject, Track,
};

const REQUESTS: i64 = 1_000_000;
const DISK_SECTORS: u64 = 1 << 28;
const IN_FLIGHT: usize = 32;

fn main() {
    println!("ns a request                            4 KiB    64 KiB");
    let lengths = [8, 128].map(|sectors| {
        let events = events(sectors);
        let mut track = Track::new(16);
        let steps: Vec<Step> = events.iter().map(|event| track.take(event)).collect();
        (events, steps)
    });
    let each = |run: fn(&[RequestEvent], &[Step])| {
        lengths.each_ref().map(|(events, steps)| {
            let before = cpu_time();
            run(events, steps);
            (cpu_time() - before).as_nanos() as f64 / REQUESTS as f64
        })
    };
    for (what, run) in PARTS {
        let [short, long] = each(run);
        println!("{what:<35} {short:>9.0} {long:>9.0}");
    }
}

type Run = fn(&[RequestEvent], &[Step]);

/// A part that processes steps.
macro_rules! part {
    ($what:literal, $tally:ty) => {
        ($what, |_, steps| {
            let mut tally = <$tally>::default();
            steps.iter().for_each(|step| tally.take(step));
            black_box(tally);
        })
    };
}

const PARTS: [(&str, Run); 17] = [
    ("context of a request", |events, _| {
        let mut track = Track::new(16);
        for event in events {
            black_box(track.take(event));
        }
    }),
    ("the eight histograms", |_, steps| {
        let mut histograms = Histograms::default();
        steps.iter().for_each(|step| histograms.count(step));
        black_box(histograms);
    }),
    ("both", |events, _| {
        let mut counter = Counter::new(16);
        for event in events {
            black_box(counter.take(event));
        }
        black_box(counter);
    }),
    part!("mix", Mix),
    part!("sizes", SizeTally),
    part!("order", OrderTally),
    part!("arrivals", ArrivalTally),
    part!("bursts", BurstTally),
    part!("parallelism", ParallelismTally),
    part!("load", LoadTally),
    part!("regions", RegionTally),
    part!("timeline", TimeTally),
    part!("access", AccessTally),
    part!("addresses", AddressTally),
    part!("pairs", PairTally),
    part!("reuse distances and working set", ReuseTally),
    ("a whole profile", |events, _| {
        let mut characteriser = Characteriser::default();
        for event in events {
            characteriser.take(&Subject::default(), event);
        }
        black_box(characteriser);
    }),
];

fn events(sectors: i64) -> Vec<RequestEvent> {
    let mut events = Vec::new();
    let mut in_flight = VecDeque::new();
    let mut random = 1u64;
    for id in 0..REQUESTS {
        // A linear congruential generator (Knuth, The Art of Computer Programming 2, section
        // 3.3.4).
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let block = (random >> 20) % (DISK_SECTORS / sectors as u64);
        let op = if random >> 62 == 0 {
            Op::Write
        } else {
            Op::Read
        };
        if in_flight.len() == IN_FLIGHT {
            events.extend(in_flight.pop_front());
        }
        let ts = id * 10_000;
        events.push(RequestEvent::Issued(IssuedRequest {
            ts,
            id,
            op,
            sector: Some(block as i64 * sectors),
            sectors,
        }));
        in_flight.push_back(RequestEvent::Finished(Response {
            ts: ts + 300_000,
            id,
            op,
            wait_ns: Some(1_000),
            service_ns: Some(299_000 + (random >> 50) as i64),
            latency_ns: Some(300_000 + (random >> 50) as i64),
            failed: false,
        }));
    }
    events
}
