//! [`Pairing`]: converts the records of a trace, in timestamp order, to rows: a `Q` when a request
//! is issued, an `R` or `E` when it completes.
//!
//! There are two kinds of records. A format with one request per line yields a [`TraceRequest`],
//! possibly with its latency: its `R` is delayed until then. blktrace yields the block layer's
//! actions, which [`BlockLayer`] processes.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use weir_model::{IoEvent, Nanos};

use super::Faults;
use super::block::{BlockLayer, Unpaired};
use super::disks::Disks;
use super::fault::TABLE_FULL;
use super::record::{TraceRecord, TraceRequest, What};
use super::table::REQUESTS_MAX;

/// Pairs requests with their completions.
#[derive(Debug, Default)]
pub struct Pairing {
    disks: Disks,
    blocks: BlockLayer,
    outstanding: BinaryHeap<Ending>,
    req_id: i64,
}

/// A pending response. The earliest is the greatest, for the heap.
#[derive(Debug)]
struct Ending(IoEvent);

impl Pairing {
    /// Appends the rows that result from `record`. Records are in timestamp order, and so are rows.
    pub fn take(&mut self, record: &TraceRecord, rows: &mut Vec<IoEvent>, faults: &mut Faults) {
        self.end_until(record.ts, rows);
        match &record.what {
            What::Request(request) => self.ask(record.ts, request, rows, faults),
            What::Action(action) => match self.blocks.follow(record.ts, action) {
                Ok(row) => rows.extend(row),
                Err(Unpaired) => faults.count("unpaired", "no_request", 1),
            },
        }
        faults.count("unpaired", TABLE_FULL, self.blocks.take_forgotten());
    }

    /// Appends the pending rows after the last record.
    pub fn finish(&mut self, rows: &mut Vec<IoEvent>) {
        self.end_until(Nanos::MAX, rows);
    }

    fn ask(
        &mut self,
        ts: Nanos,
        request: &TraceRequest,
        rows: &mut Vec<IoEvent>,
        faults: &mut Faults,
    ) {
        self.req_id += 1;
        let mut event = request.event;
        event.ts = ts;
        event.req_id = self.req_id;
        let (in_flight, seek_sectors) = self.disks.issue(&event);
        rows.push(IoEvent::new(event));

        let mut response = event;
        response.kind = request.end;
        response.ts = ts.saturating_add(request.latency_ns.unwrap_or(0));
        let ending = IoEvent {
            wait_ns: request.wait_ns,
            service_ns: request.service_ns,
            latency_ns: request.latency_ns,
            in_flight: request.latency_ns.and(in_flight),
            seek_sectors,
            issue_ts: Some(ts),
            ..IoEvent::new(response)
        };
        if request.latency_ns.is_none() {
            self.disks.outstanding(&event, -1);
            rows.push(ending);
        } else if self.outstanding.len() < REQUESTS_MAX {
            self.outstanding.push(Ending(ending));
        } else {
            self.disks.outstanding(&event, -1);
            faults.count("events_lost", TABLE_FULL, 1);
        }
    }

    fn end_until(&mut self, ts: Nanos, rows: &mut Vec<IoEvent>) {
        while self.outstanding.peek().is_some_and(|e| e.0.event.ts <= ts)
            && let Some(Ending(row)) = self.outstanding.pop()
        {
            self.disks.outstanding(&row.event, -1);
            rows.push(row);
        }
    }
}

impl Ending {
    fn key(&self) -> (Nanos, i64) {
        (self.0.event.ts, self.0.event.req_id)
    }
}

impl Ord for Ending {
    fn cmp(&self, other: &Ending) -> Ordering {
        other.key().cmp(&self.key())
    }
}

impl PartialOrd for Ending {
    fn partial_cmp(&self, other: &Ending) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ending {
    fn eq(&self, other: &Ending) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Ending {}
