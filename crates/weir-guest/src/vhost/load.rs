//! [`Load`]: what a client asks of a disk, chosen by a seed, and where each request goes.

use std::time::Duration;

use anyhow::{Result, bail};

use super::{Ask, Kind, Shape};
use crate::plan::scrambled;

/// A load: every queue makes its requests in a part of the disk of its own, so many at a time, the next
/// one when one is done. No two requests that are under way together touch the same block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Share of reads, as a weight; so the others.
    pub read: u32,
    /// Share of writes.
    pub write: u32,
    /// Share of flushes.
    pub flush: u32,
    /// Share of discards.
    pub discard: u32,
    /// Share of writes of zeroes, every second with the leave to unmap.
    pub write_zeroes: u32,
    /// The shortest request; requests begin at multiples of it, in their part of the disk.
    pub bytes_min: usize,
    /// The longest: a multiple of the shortest.
    pub bytes_max: usize,
    /// One after the other instead of at random.
    pub sequential: bool,
    /// Requests of each queue.
    pub requests: u64,
    /// The load ends after this time even if requests are left to make.
    pub time: Option<Duration>,
    /// Requests under way in each queue; 0: as many as the client can have.
    pub depth: usize,
    /// Chooses the places and the operations.
    pub seed: u64,
    /// The part of the disk in use, from its start; 0: all.
    pub span_sectors: u64,
    /// Each request is noted in the report.
    pub logged: bool,
    /// How long a queue looks at its ring before it sleeps.
    pub spin: Duration,
    /// When the back end goes away, connect anew for so long, and make again what was under way.
    pub reconnect: Option<Duration>,
    /// How long the back end may leave all requests of a queue unanswered.
    pub patience: Duration,
}

impl Default for Load {
    /// 1,000 reads of 4 KiB at random places, noted.
    fn default() -> Load {
        Load {
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
            patience: Duration::from_secs(30),
        }
    }
}

impl Load {
    pub(super) fn check(&self, shape: Shape) -> Result<()> {
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

/// Draws the requests of one queue.
pub(super) struct Draw<'a> {
    load: &'a Load,
    state: u64,
    total: u64,
    first_sector: u64,
    /// Places in the part of the disk, each of `bytes_min`.
    places: u64,
    next_place: u64,
}

impl<'a> Draw<'a> {
    /// The draw of a queue whose part of the disk is told.
    pub fn new(load: &'a Load, queue: usize, first_sector: u64, sectors: u64) -> Result<Draw<'a>> {
        let places = sectors * 512 / load.bytes_min as u64;
        if places < (load.bytes_max / load.bytes_min) as u64 {
            bail!("a part of {sectors} sectors is too small for a request");
        }
        Ok(Draw {
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
        // The high half of the product is as even as the number (Lemire 2019).
        ((u128::from(scrambled(self.state)) * u128::from(end)) >> 64) as u64
    }

    fn kind(&mut self) -> Kind {
        let mut draw = self.below(self.total);
        for (i, weight) in self.load.weights().into_iter().enumerate() {
            if draw < u64::from(weight) {
                let unmap = draw.is_multiple_of(2);
                let kinds = [Kind::Read, Kind::Write, Kind::Flush, Kind::Discard];
                return kinds.get(i).copied().unwrap_or(Kind::WriteZeroes { unmap });
            }
            draw -= u64::from(weight);
        }
        unreachable!("the draw is below the sum of the weights")
    }

    /// The next request.
    pub fn next(&mut self) -> Ask {
        let kind = self.kind();
        if kind == Kind::Flush {
            return Ask {
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
        Ask {
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
    fn requests_stay_in_their_part_and_have_the_mix() {
        let load = Load {
            read: 50,
            write: 30,
            flush: 5,
            discard: 5,
            write_zeroes: 10,
            bytes_min: 512,
            bytes_max: 8192,
            ..Load::default()
        };
        let mut draw = Draw::new(&load, 3, 2048, 100).unwrap();
        let asks: Vec<Ask> = (0..10_000).map(|_| draw.next()).collect();
        let share = |kind| asks.iter().filter(|ask| ask.kind == kind).count();
        assert!((4_700..5_300).contains(&share(Kind::Read)));
        assert!((2_700..3_300).contains(&share(Kind::Write)));
        assert!((300..700).contains(&share(Kind::WriteZeroes { unmap: true })));
        let with_place = asks.iter().filter(|ask| ask.kind != Kind::Flush);
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
    fn one_after_the_other_begins_anew_at_the_end() {
        let load = Load {
            sequential: true,
            ..Load::default()
        };
        let mut draw = Draw::new(&load, 0, 0, 24).unwrap();
        let sectors: Vec<u64> = (0..5).map(|_| draw.next().sector).collect();
        assert_eq!(sectors, [0, 8, 16, 0, 8]);
    }
}
