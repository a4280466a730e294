//! A tapdisk and a consumer of different versions.

use std::sync::Arc;

use weir_tap::monotonic_ns;
use weir_tap::tapdisk::layout::{Layout, Record, VERSION};
use weir_tap::tapdisk::ring::{Memory, Readers};
use weir_tap::tapdisk::words::{Answer, Ask, Wanted};
use weir_tap::tapdisk::{TapdiskClient, TapdiskTap};

use super::simulated_queues::{Received, SimulatedQueue, TestTap, all, assert_same};

/// The records of a consumer that reads records up to this version.
struct Consumer {
    // The tapdisk writes while it is connected.
    _client: TapdiskClient,
    readers: Readers,
}

impl Consumer {
    fn connect(test_tap: &TestTap, latest: u32, expected: u32) -> Consumer {
        let mut client = TapdiskClient::connect(&test_tap.scratch.socket()).unwrap();
        let wanted = Wanted {
            layout: latest,
            ..Wanted::of(&all(), 64 << 20)
        };
        let answer = client.ask(Ask::Records(wanted)).unwrap();
        let Answer::Records(answer) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(answer.layout, expected);
        let layout = Layout::new(answer.ring_records).of_version(expected);
        let memory = Memory::open(client.passed().unwrap(), layout.unwrap()).unwrap();
        Consumer {
            _client: client,
            readers: Readers::new(Arc::new(memory), 0),
        }
    }

    fn records(&mut self) -> Vec<Record> {
        let mut read = Vec::new();
        self.readers.finish(monotonic_ns, &mut read).unwrap();
        assert_eq!(self.readers.malformed(), 0);
        read.into_iter().map(|read| read.record).collect()
    }
}

#[test]
fn each_consumer_receives_records_of_the_latest_version_that_it_reads() {
    let mut test_tap = TestTap::new(1);
    // One of version 1 does not state it. A later one may read more than this tapdisk writes.
    let mut consumers = [(0, 1), (1, 1), (VERSION, VERSION), (9, VERSION)]
        .map(|(latest, expected)| Consumer::connect(&test_tap, latest, expected));
    let mut tap: TapdiskTap = test_tap.open(&all(), 64 << 20);
    let recorded = SimulatedQueue::new(&test_tap.hub, 0, 0, 1).run(5_000);
    let [unstated, first, second, later] = consumers.each_mut().map(Consumer::records);
    assert_eq!(unstated.len(), recorded.len());
    assert_eq!(unstated, first);
    assert_eq!(second, later);
    assert!(second.iter().any(|record| record.interarrival_ns > Some(0)));
    let without = |record: &Record| Record {
        interarrival_ns: None,
        ..*record
    };
    assert_eq!(first, second.iter().map(without).collect::<Vec<Record>>());

    test_tap.end();
    let mut received = Received::default();
    received.receive_until(&mut tap, |_| false);
    assert_same(recorded, received.rows);
}
