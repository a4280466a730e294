//! The relation of a request to the others of its disk: its number, the number of requests in
//! flight, the distance from the previous request, and the time since it.
//!
//! [`Flows`] computes it from the records of all requests. Where only some requests have records,
//! the programs compute it (`flow.bpf.h`), with the same result; [`FlowTables`] are theirs.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::layout::{Record, UNKNOWN, kind};
use super::order;
use crate::shared::Shared;

/// Bytes of `struct flow`.
const FLOW_BYTES: usize = 64;

/// Bytes of `struct flow_past`.
const FLOW_PAST_BYTES: usize = 64;

/// The tables in which the programs keep the relations of requests.
#[derive(Debug)]
pub struct FlowTables {
    /// The state of each disk, by its row in the counters.
    flows: Shared,
}

impl FlowTables {
    /// The number of values of the table called `table` for this number of disks and processors;
    /// `None` if it is another one.
    pub fn values(table: &str, disks: u32, processors: u32) -> Option<u32> {
        match table {
            "flows" => Some(disks),
            "flow_pasts" => Some(disks * processors * 2),
            _ => None,
        }
    }

    /// Bytes of both tables.
    pub fn bytes(disks: u32, processors: u32) -> u64 {
        let of = |table, bytes: usize| {
            u64::from(FlowTables::values(table, disks, processors).unwrap_or(0)) * bytes as u64
        };
        of("flows", FLOW_BYTES) + of("flow_pasts", FLOW_PAST_BYTES)
    }

    /// The tables; `map` maps the table of that name, with values of that size in bytes and that
    /// number of values.
    ///
    /// # Errors
    /// The error of `map`.
    pub fn map<E>(
        map: &impl Fn(&str, usize, usize) -> Result<Shared, E>,
        disks: u32,
    ) -> Result<FlowTables, E> {
        let flows = map("flows", FLOW_BYTES, disks as usize)?;
        Ok(FlowTables { flows })
    }

    /// Removes a request of the disk with this row, whose entry was removed, from those in flight.
    pub fn forget(&self, row: usize) {
        order::forget(&self.flows.words()[row * FLOW_BYTES / 8]);
    }
}

/// Maximum number of requests in flight that are stored; beyond, in_flight, seek and interarrival
/// are unknown and a response does not get its request's number.
const FLYING_MAX: usize = 1 << 17;

/// The relation of one request to the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// The request's number, counted from 1 over all disks in order of issue; in order of
    /// completion if its issue was not reported. The thesis's queries pair by it alone, assume that
    /// the greatest is the latest, and that the next is greater by one.
    pub number: i64,
    /// Requests of its disk in flight when it was issued, including it.
    pub in_flight: Option<i64>,
    /// First sector minus last sector of the disk's previous request; sequential is 1.
    pub seek_sectors: Option<i64>,
    /// From the issue of the disk's previous request to its issue.
    pub interarrival_ns: Option<i64>,
}

#[derive(Debug, Default)]
struct Disk {
    in_flight: i64,
    last_sector: Option<i64>,
    last_ns: Option<u64>,
}

#[derive(Debug)]
struct Flying {
    disk: u32,
    since_ns: u64,
    flow: Flow,
}

/// The disks and their requests in flight.
#[derive(Debug, Default)]
pub struct Flows {
    numbers: i64,
    disks: HashMap<u32, Disk, RandomState>,
    flying: HashMap<u64, Flying, RandomState>,
}

impl Flows {
    /// The flow of `record`'s request, of whole disk `disk`; records are passed in timestamp order.
    pub fn see(&mut self, record: &Record, disk: u32) -> Flow {
        // If a request is found here when it is issued, its structure was reused: the response was
        // lost.
        let landed = self.land(record.request);
        let requested = record.kind == kind::REQUEST;
        if let (Some(landed), false) = (landed, requested) {
            return landed.flow;
        }
        self.numbers += 1;
        if !requested || self.flying.len() >= FLYING_MAX {
            return Flow {
                number: self.numbers,
                ..Flow::default()
            };
        }
        let known = self.disks.entry(disk).or_default();
        known.in_flight += 1;
        let mut flow = Flow {
            number: self.numbers,
            in_flight: Some(known.in_flight),
            seek_sectors: None,
            interarrival_ns: None,
        };
        let last_ns = known.last_ns.replace(record.ts_ns);
        flow.interarrival_ns = last_ns.map(|last| record.ts_ns.saturating_sub(last) as i64);
        if record.sector != UNKNOWN {
            let sector = record.sector as i64;
            flow.seek_sectors = known.last_sector.map(|last| sector - last);
            known.last_sector = Some(sector + i64::from(record.bytes >> 9) - 1);
        }
        let flying = Flying {
            disk,
            since_ns: record.ts_ns,
            flow,
        };
        self.flying.insert(record.request, flying);
        flow
    }

    /// Removes requests issued before `before_ns`; returns their number.
    pub fn sweep(&mut self, before_ns: u64) -> usize {
        let old = self.flying.iter().filter(|(_, f)| f.since_ns < before_ns);
        let old: Vec<u64> = old.map(|(request, _)| *request).collect();
        for request in &old {
            self.land(*request);
        }
        old.len()
    }

    /// Records were skipped: the requests in flight and the end of the last request are unknown.
    pub fn restart(&mut self) {
        self.disks.clear();
        self.flying.clear();
    }

    fn land(&mut self, request: u64) -> Option<Flying> {
        let flying = self.flying.remove(&request)?;
        if let Some(disk) = self.disks.get_mut(&flying.disk) {
            disk.in_flight -= 1;
        }
        Some(flying)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, request: u64, sector: u64, bytes: u32) -> Record {
        Record {
            kind,
            request,
            sector,
            bytes,
            ..Record::default()
        }
    }

    #[test]
    fn sequential_requests_are_one_sector_apart() {
        let mut flows = Flows::default();
        let first = flows.see(&record(kind::REQUEST, 1, 100, 4096), 8);
        let second = flows.see(&record(kind::REQUEST, 2, 108, 4096), 8);
        assert_eq!((first.in_flight, first.seek_sectors), (Some(1), None));
        assert_eq!((second.in_flight, second.seek_sectors), (Some(2), Some(1)));
        assert_eq!(flows.see(&record(kind::RESPONSE, 1, 100, 4096), 8), first);
        assert_eq!(
            flows.see(&record(kind::REQUEST, 3, 0, 512), 8).in_flight,
            Some(2)
        );
    }

    #[test]
    fn interarrival_times_are_those_of_a_disk_and_include_flushes() {
        let mut flows = Flows::default();
        let mut since = |request, ts_ns, sector, disk| {
            let issued = Record {
                ts_ns,
                ..record(kind::REQUEST, request, sector, 512)
            };
            flows.see(&issued, disk).interarrival_ns
        };
        assert_eq!(since(1, 100, 0, 8), None);
        assert_eq!(since(2, 130, 0, 16), None);
        assert_eq!(since(3, 150, UNKNOWN, 8), Some(50));
        assert_eq!(since(4, 151, 8, 8), Some(1));
        assert_eq!(since(5, 190, 8, 16), Some(60));
    }

    #[test]
    fn numbers_follow_the_issue_and_are_never_used_again() {
        let mut flows = Flows::default();
        let mut number =
            |kind, request, disk| flows.see(&record(kind, request, 0, 512), disk).number;
        assert_eq!(number(kind::REQUEST, 7, 8), 1);
        assert_eq!(number(kind::REQUEST, 9, 16), 2);
        assert_eq!(number(kind::RESPONSE, 9, 16), 2);
        // The kernel reuses the request; its number is not reused.
        assert_eq!(number(kind::REQUEST, 9, 16), 3);
        assert_eq!(number(kind::RESPONSE, 7, 8), 1);
        assert_eq!(number(kind::RESPONSE, 9, 16), 3);
        // Its issue was not reported.
        assert_eq!(number(kind::RESPONSE, 4, 8), 4);
    }

    #[test]
    fn a_flush_has_no_place_and_moves_no_head() {
        let mut flows = Flows::default();
        flows.see(&record(kind::REQUEST, 1, 0, 512), 8);
        let flush = flows.see(&record(kind::REQUEST, 2, UNKNOWN, 0), 8);
        assert_eq!((flush.in_flight, flush.seek_sectors), (Some(2), None));
        assert_eq!(
            flows.see(&record(kind::REQUEST, 3, 1, 512), 8).seek_sectors,
            Some(1)
        );
    }

    #[test]
    fn a_lost_response_does_not_count_for_ever() {
        let mut flows = Flows::default();
        flows.see(&record(kind::REQUEST, 1, 0, 512), 8);
        assert_eq!(
            flows.see(&record(kind::REQUEST, 1, 8, 512), 8).in_flight,
            Some(1)
        );
        assert_eq!(flows.sweep(1), 1);
        assert_eq!(
            flows.see(&record(kind::REQUEST, 2, 8, 512), 8).in_flight,
            Some(1)
        );
    }
}
