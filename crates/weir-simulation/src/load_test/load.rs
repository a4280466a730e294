//! [`Load`]: generated I/O events of a host with a few VMs, shared by all agents.
//!
//! An agent spreads a piece of the pool over the time since its last piece, and adds its host's
//! name and request numbers, as the conversion of a tap does.

use std::sync::Arc;

use fastrand::Rng;
use weir_model::event::{io_schema, iostream_schema};
use weir_model::{
    Batch, Event, EventBatch, EventKind, IoBatch, IoEvent, Nanos, Op, Schema, Symbol,
};

use weir_agent::RowConversion;

/// Events in the pool; those of an agent repeat after this number.
const POOL: usize = 4_096;

/// The streams that have events.
pub const STREAMS: [&str; 2] = ["IO", "IOstream"];

/// The pool: of each of [`STREAMS`], the events as columns.
#[derive(Debug)]
pub struct Load {
    pools: [(Batch, Schema); 2],
}

impl Load {
    /// Events of `vms` VMs with a disk each: four reads to a write, 4 to 64 KiB, latencies of 50 us
    /// to about 6 ms with a long tail. They are the same in each run.
    pub fn new(vms: usize) -> Arc<Load> {
        let name = |what: &str, n: usize| Symbol::try_new(&format!("{what}{n}"));
        let disk = Symbol::try_new("/dev/vda").ok();
        let mut random = Rng::with_seed(1);
        let mut events = Vec::with_capacity(POOL);
        for number in 0..POOL {
            let vm = number % vms.max(1);
            let op = if random.u64(..5) == 0 {
                Op::Write
            } else {
                Op::Read
            };
            let sectors = 8 << random.u64(..5);
            let sector = random.i64(0..1 << 30) * 8;
            let id = number as i64 + 1;
            let kind = EventKind::Response;
            let event = Event {
                vm: name("vm", vm).ok(),
                vdisk: disk,
                pdisk: name("/dev/loop", vm).ok(),
                ..Event::new(0, kind, op, id, Some(sector), sectors)
            };
            // The product of two numbers is small most of the time.
            let service = 50_000 + random.i64(0..2_500) * random.i64(0..2_500);
            let wait = random.i64(0..20_000);
            events.push(IoEvent {
                wait_ns: Some(wait),
                service_ns: Some(service),
                latency_ns: Some(wait + service),
                in_flight: Some(random.i64(1..=16)),
                seek_sectors: Some(random.i64(0..1 << 20)),
                interarrival_ns: Some(random.i64(0..1 << 24)),
                ..IoEvent::new(event)
            });
        }
        let plain: Vec<Event> = events.iter().map(|e| e.event).collect();
        Arc::new(Load {
            pools: [
                (IoBatch::new(None).build(&events), io_schema()),
                (EventBatch::new(None).build(&plain), iostream_schema()),
            ],
        })
    }

    /// The conversion of rows of one of [`STREAMS`] for an agent of that host.
    pub fn conversion(&self, stream: usize, host: Symbol) -> RowConversion {
        let schema = &self.pools[stream].1;
        let all: Vec<usize> = (0..schema.len()).collect();
        RowConversion::new(host, schema, &all)
    }

    /// Events of a stream, spread over the time after `from` up to `to`: `count`, at most the
    /// pool's, beginning with number `first` of the pool.
    pub fn piece(&self, stream: usize, first: u64, count: usize, from: Nanos, to: Nanos) -> Batch {
        let first = (first % POOL as u64) as usize;
        let count = count.min(POOL - first);
        let piece = self.pools[stream].0.slice(first, count);
        let each =
            |n: usize| from + ((to - from) as i128 * (n as i128 + 1) / count as i128) as Nanos;
        Batch {
            ts: (0..count).map(each).collect::<Vec<_>>().into(),
            ..piece
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_in_its_interval_and_has_its_host() {
        let load = Load::new(3);
        let host = Symbol::try_new("sim1").unwrap();
        for stream in 0..STREAMS.len() {
            let piece = load.piece(stream, 4_090, 10, 1_000, 2_000);
            assert_eq!((piece.len(), piece.ts[0], piece.ts[5]), (6, 1_166, 2_000));
            let rows = load.conversion(stream, host).rows(&piece, 0, |ts| ts);
            let shown = format!("{:?}", rows.row(5));
            assert!(
                shown.contains("sim1") || shown.contains(&host.id().to_string()),
                "{shown}"
            );
        }
    }
}
