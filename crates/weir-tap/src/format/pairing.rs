//! [`Pairing`]: converts the records of a trace, in timestamp order, to rows: a `Q` when a request
//! is issued, an `R` or `E` when it completes.
//!
//! There are two kinds of records. A format with one request per line yields a [`TraceRequest`],
//! possibly with its latency: its `R` is delayed until then. blktrace yields the block layer's
//! actions, which [`BlockLayer`] processes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use weir_model::{EventKind, IoEvent, Level, Nanos};

use super::Faults;
use super::block::{BlockLayer, Unpaired};
use super::disks::{DiskKey, Disks, Issued};
use super::fault::TABLE_FULL;
use super::record::{TraceRecord, TraceRequest, What};
use super::row_batches::RowBatches;
use super::table::REQUESTS_MAX;

/// Pairs requests with their completions.
#[derive(Debug, Default)]
pub struct Pairing {
    disks: Disks,
    blocks: BlockLayer,
    /// The ends of the requests in flight, the earliest first.
    ends: BinaryHeap<Reverse<End>>,
    /// These requests, at the positions that their ends have.
    in_flight: Vec<InFlight>,
    /// Positions without a request.
    free: Vec<u32>,
    req_id: i64,
}

/// When a request ends: its time, its number, and its position among the requests in flight. They
/// are one number, since the heap compares and moves ends many times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct End(u128);

/// A request that was issued.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    request: TraceRequest,
    ts: Nanos,
    issued: Issued,
}

impl Pairing {
    /// Adds the rows that result from `record`. Records are in timestamp order, and so are rows.
    pub fn take(&mut self, record: &TraceRecord, rows: &mut RowBatches, faults: &mut Faults) {
        self.end_until(record.ts, rows);
        match &record.what {
            What::Request(request) => self.ask(record.ts, request, rows, faults),
            What::Action(action) => {
                match self.blocks.follow(record.ts, action) {
                    Ok(Some(row)) => rows.push(row.event.ts, row.event.kind, || row),
                    Ok(None) => {}
                    Err(Unpaired) => faults.count("unpaired", "no_request", 1),
                }
                faults.count("unpaired", TABLE_FULL, self.blocks.take_forgotten());
            }
        }
    }

    /// Adds the pending rows after the last record.
    pub fn finish(&mut self, rows: &mut RowBatches) {
        self.end_until(Nanos::MAX, rows);
    }

    fn ask(
        &mut self,
        ts: Nanos,
        request: &TraceRequest,
        rows: &mut RowBatches,
        faults: &mut Faults,
    ) {
        self.req_id += 1;
        let req_id = self.req_id;
        let (sector, sectors) = (request.sector(), request.extent.sectors);
        let issued = self.disks.issue(disk(request), ts, sector, sectors);
        rows.push(ts, EventKind::Request, || {
            IoEvent::new(request.event(ts, req_id))
        });
        let request = InFlight {
            request: *request,
            ts,
            issued,
        };
        let end = ts.saturating_add(request.request.latency_ns.unwrap_or(0));
        if request.request.latency_ns.is_none() {
            self.disks.end(issued.disk);
            rows.push(end, EventKind::Response, || request.response(end, req_id));
        } else if self.ends.len() < REQUESTS_MAX {
            let position = self.keep(request);
            self.ends.push(Reverse(End::new(end, req_id, position)));
        } else {
            self.disks.end(issued.disk);
            faults.count("events_lost", TABLE_FULL, 1);
        }
    }

    /// Stores a request in flight, and returns its position.
    fn keep(&mut self, request: InFlight) -> u32 {
        match self.free.pop() {
            Some(position) => {
                self.in_flight[position as usize] = request;
                position
            }
            None => {
                self.in_flight.push(request);
                (self.in_flight.len() - 1) as u32
            }
        }
    }

    fn end_until(&mut self, until: Nanos, rows: &mut RowBatches) {
        while let Some(Reverse(end)) = self.ends.peek().copied()
            && end.ts() <= until
        {
            self.ends.pop();
            let request = &self.in_flight[end.position() as usize];
            self.disks.end(request.issued.disk);
            let (ts, req_id) = (end.ts(), end.req_id());
            rows.push(ts, EventKind::Response, || request.response(ts, req_id));
            self.free.push(end.position());
        }
    }
}

impl End {
    /// Bits of a position.
    const POSITION_BITS: u32 = 20;
    /// Bits of the number and the position of a request.
    const REQUEST_BITS: u32 = 64;
    /// Converts the order of signed numbers to that of unsigned ones.
    const SIGN: u64 = 1 << 63;

    fn new(ts: Nanos, req_id: i64, position: u32) -> End {
        let request = ((req_id as u64) << Self::POSITION_BITS) | u64::from(position);
        let ts = ts as u64 ^ Self::SIGN;
        End((u128::from(ts) << Self::REQUEST_BITS) | u128::from(request))
    }

    fn ts(self) -> Nanos {
        ((self.0 >> Self::REQUEST_BITS) as u64 ^ Self::SIGN) as Nanos
    }

    fn req_id(self) -> i64 {
        (self.0 as u64 >> Self::POSITION_BITS) as i64
    }

    fn position(self) -> u32 {
        self.0 as u32 & ((1 << Self::POSITION_BITS) - 1)
    }
}

const _: () = assert!(REQUESTS_MAX <= 1 << End::POSITION_BITS);

/// The names of a request's disk.
fn disk(request: &TraceRequest) -> DiskKey {
    match request.level {
        Level::Vdisk => [request.vm, request.disk, None],
        Level::Vfs | Level::Block | Level::Guest => [request.vm, None, request.disk],
    }
}

impl InFlight {
    /// The row of its response at `ts`.
    fn response(&self, ts: Nanos, req_id: i64) -> IoEvent {
        let request = &self.request;
        let mut response = request.event(self.ts, req_id);
        response.kind = EventKind::Response;
        response.ts = ts;
        IoEvent {
            wait_ns: request.without_wait.then_some(0),
            service_ns: request.latency_ns.filter(|_| request.without_wait),
            latency_ns: request.latency_ns,
            in_flight: request.latency_ns.and(self.issued.in_flight),
            seek_sectors: self.issued.seek_sectors,
            interarrival_ns: self.issued.interarrival_ns,
            issue_ts: Some(self.ts),
            ..IoEvent::new(response)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_in_order_of_their_times_and_numbers() {
        let of = |ts, req_id, position| End::new(ts, req_id, position);
        let ends = [
            of(Nanos::MIN, 9, 0),
            of(-1, 1, 7),
            of(-1, 2, 3),
            of(0, 1, 5),
            of(5, 1 << 40, REQUESTS_MAX as u32 - 1),
            of(Nanos::MAX, 1, 1),
        ];
        assert!(ends.is_sorted());
        let end = ends[4];
        let position = REQUESTS_MAX as u32 - 1;
        assert_eq!(
            (end.ts(), end.req_id(), end.position()),
            (5, 1 << 40, position)
        );
        assert_eq!((ends[0].ts(), ends[1].ts()), (Nanos::MIN, -1));
    }
}
