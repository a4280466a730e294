//! [`VhostLoad`]: the requests of a client, determined by a seed.

use std::time::Duration;

use anyhow::{Result, bail};

use super::{BlockRequest, ClientShape, RequestKind};
use crate::plan::scrambled;

/// A load: every queue submits its requests to a part of the disk of its own, `depth` at a time. No
/// two requests in flight access the same block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VhostLoad {
    /// Relative frequency of reads, as a weight.
    pub read: u32,
    /// Relative frequency of writes.
    pub write: u32,
    /// Relative frequency of flushes.
    pub flush: u32,
    /// Relative frequency of discards.
    pub discard: u32,
    /// Relative frequency of writes of zeroes, every second one with the unmap flag.
    pub write_zeroes: u32,
    /// The shortest request; requests start at multiples of it, in their part of the disk.
    pub bytes_min: usize,
    /// The longest: a multiple of the shortest.
    pub bytes_max: usize,
    /// Sequential instead of random.
    pub sequential: bool,
    /// Requests of each queue.
    pub requests: u64,
    /// The load ends after this time even if requests remain.
    pub time: Option<Duration>,
    /// Requests in flight in each queue; 0: the maximum of the client.
    pub depth: usize,
    /// The seed for offsets and operations.
    pub seed: u64,
    /// The used part of the disk, from its start; 0: all.
    pub span_sectors: u64,
    /// Each request is recorded in the report.
    pub logged: bool,
    /// How long a queue polls its ring before it sleeps.
    pub spin: Duration,
    /// When the back end disconnects, reconnect for at most this time, and repeat the requests in
    /// flight.
    pub reconnect: Option<Duration>,
    /// How long the back end may leave all requests of a queue unanswered.
    pub timeout: Duration,
}

impl Default for VhostLoad {
    /// 1,000 reads of 4 KiB at random offsets, recorded.
    fn default() -> VhostLoad {
        VhostLoad {
            read: 100,
            write: 0,
            flush: 0,
            discard: 0,
            write_zeroes: 0,
            bytes_min: 4096,
            bytes_max: 4096,
            sequential: false,
            requests: 1000,
            time: None,
            depth: 0,
            seed: 1,
            span_sectors: 0,
            logged: true,
            spin: Duration::ZERO,
            reconnect: None,
            timeout: Duration::from_secs(30),
        }
    }
}

impl VhostLoad {
    pub(super) fn check(&self, shape: ClientShape) -> Result<()> {
        if self.weights().iter().sum::<u32>() == 0 {
            bail!("a load needs a share of some operation");
        }
        let (min, max) = (self.bytes_min, self.bytes_max);
        if min == 0 || !min.is_multiple_of(512) || max < min || !max.is_multiple_of(min) {
            bail!("bytes_min is some sectors and bytes_max a multiple of it, not {min} and {max}");
        }
        if max > shape.bytes_max || self.depth > shape.depth {
            bail!(
                "the client was made for requests of {} bytes, {} at a time",
                shape.bytes_max,
                shape.depth
            );
        }
        Ok(())
    }

    fn weights(&self) -> [u32; 5] {
        [
            self.read,
            self.write,
            self.flush,
            self.discard,
            self.write_zeroes,
        ]
    }
}

/// Generates the requests of one queue.
pub(super) struct RequestGenerator<'a> {
    load: &'a VhostLoad,
    state: u64,
    total: u64,
    first_sector: u64,
    /// Offsets in the part of the disk, in units of `bytes_min`.
    places: u64,
    next_place: u64,
}

impl<'a> RequestGenerator<'a> {
    /// The generator of a queue for its part of the disk.
    pub fn new(
        load: &'a VhostLoad,
        queue: usize,
        first_sector: u64,
        sectors: u64,
    ) -> Result<RequestGenerator<'a>> {
        let places = sectors * 512 / load.bytes_min as u64;
        if places < (load.bytes_max / load.bytes_min) as u64 {
            bail!("a part of {sectors} sectors is too small for a request");
        }
        Ok(RequestGenerator {
            load,
            state: scrambled(load.seed ^ scrambled(queue as u64)),
            total: load.weights().iter().copied().map(u64::from).sum(),
            first_sector,
            places,
            next_place: 0,
        })
    }

    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        // The high half of the product is as uniform as the number (Lemire 2019).
        ((u128::from(scrambled(self.state)) * u128::from(end)) >> 64) as u64
    }

    fn kind(&mut self) -> RequestKind {
        let mut number = self.below(self.total);
        for (i, weight) in self.load.weights().into_iter().enumerate() {
            if number < u64::from(weight) {
                let unmap = number.is_multiple_of(2);
                let kinds = [
                    RequestKind::Read,
                    RequestKind::Write,
                    RequestKind::Flush,
                    RequestKind::Discard,
                ];
                return kinds
                    .get(i)
                    .copied()
                    .unwrap_or(RequestKind::WriteZeroes { unmap });
            }
            number -= u64::from(weight);
        }
        unreachable!("the number is below the sum of the weights")
    }

    /// The next request.
    pub fn next(&mut self) -> BlockRequest {
        let kind = self.kind();
        if kind == RequestKind::Flush {
            return BlockRequest {
                kind,
                sector: 0,
                bytes: 0,
            };
        }
        let units_max = (self.load.bytes_max / self.load.bytes_min) as u64;
        let units = 1 + if units_max > 1 {
            self.below(units_max)
        } else {
            0
        };
        let place = if self.load.sequential {
            let fits = self.next_place + units <= self.places;
            let place = if fits { self.next_place } else { 0 };
            self.next_place = place + units;
            place
        } else {
            self.below(self.places - units + 1)
        };
        let unit_sectors = self.load.bytes_min as u64 / 512;
        BlockRequest {
            kind,
            sector: self.first_sector + place * unit_sectors,
            bytes: units as usize * self.load.bytes_min,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_stay_in_their_part_with_the_requested_mix() {
        let load = VhostLoad {
            read: 50,
            write: 30,
            flush: 5,
            discard: 5,
            write_zeroes: 10,
            bytes_min: 512,
            bytes_max: 8192,
            ..VhostLoad::default()
        };
        let mut generator = RequestGenerator::new(&load, 3, 2048, 100).unwrap();
        let asks: Vec<BlockRequest> = (0..10_000).map(|_| generator.next()).collect();
        let share = |kind| asks.iter().filter(|ask| ask.kind == kind).count();
        assert!((4_700..5_300).contains(&share(RequestKind::Read)));
        assert!((2_700..3_300).contains(&share(RequestKind::Write)));
        assert!((300..700).contains(&share(RequestKind::WriteZeroes { unmap: true })));
        let with_place = asks.iter().filter(|ask| ask.kind != RequestKind::Flush);
        for ask in with_place {
            let end = ask.sector + (ask.bytes / 512) as u64;
            assert!(
                ask.bytes >= 512 && ask.sector >= 2048 && end <= 2148,
                "{ask:?}"
            );
        }
        assert!(asks.iter().any(|ask| ask.bytes == 8192));
    }

    #[test]
    fn sequential_requests_wrap_around() {
        let load = VhostLoad {
            sequential: true,
            ..VhostLoad::default()
        };
        let mut generator = RequestGenerator::new(&load, 0, 0, 24).unwrap();
        let sectors: Vec<u64> = (0..5).map(|_| generator.next().sector).collect();
        assert_eq!(sectors, [0, 8, 16, 0, 8]);
    }
}
