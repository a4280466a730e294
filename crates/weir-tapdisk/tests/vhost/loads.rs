//! Loads of many requests at a time on several queues: each block is read as it was written, and
//! the disk has counted each request.

use std::time::Duration;

use weir_model::Op;
use weir_tapdisk::engine::EngineOption;
use weir_testing::vhost::{ClientShape, Contents, VhostClient, VhostLoad};

use super::*;
use crate::server::Server;

const QUEUES: usize = 3;
const REQUESTS: u64 = 1500;

#[test]
fn concurrent_requests_of_many_queues_are_executed_and_counted() {
    let polls = [Duration::ZERO, Duration::from_micros(50)];
    let engines = [EngineOption::Auto, EngineOption::Sync];
    for (poll, engine) in polls.into_iter().flat_map(|p| engines.map(|e| (p, e))) {
        let server = Server::with(|disk| disk.engine = engine, |options| options.poll = poll);
        let shape = ClientShape {
            queues: QUEUES,
            segments: 3,
            skew_bytes: 1,
            ..ClientShape::default()
        };
        let load = VhostLoad {
            read: 50,
            write: 40,
            flush: 3,
            discard: if server.disk.discards() { 3 } else { 0 },
            write_zeroes: 4,
            bytes_min: 512,
            bytes_max: 16384,
            requests: REQUESTS,
            ..VhostLoad::default()
        };
        let mut client = VhostClient::connect(&server.path(), shape).unwrap();
        let mut contents = Contents::zeroes(SECTORS, 512);
        let report = client.run(&load, Some(&mut contents)).unwrap();
        assert_eq!(report.requests, REQUESTS * QUEUES as u64);
        assert_eq!((report.failed, report.unsupported), (0, 0));
        client.flush().unwrap();
        drop(client);
        server.wait_for_message("has left");
        contents.check_image(&server.folder.image()).unwrap();
        let counters = server.disk.counters();
        let counted: u64 = Op::ALL.iter().map(|op| counters.of(*op).requests).sum();
        assert_eq!(counted, report.requests + 1, "the last flush, too");
        assert_eq!(counters.in_flight, 0);
    }
}
