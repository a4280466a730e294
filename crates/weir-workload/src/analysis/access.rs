//! [`Access`]: a sample of the requests as points, address over time, as figures 8 and 9 of
//! Ouarnoughi 2014 show them.

use serde::Serialize;
use weir_model::{Nanos, Op, SECTOR_BYTES};

use crate::track::Step;

/// The largest number of points.
pub const POINTS_MAX: usize = 4_096;

/// A sample of the reads and writes: each is in it with the same probability.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Access {
    /// The number of reads and writes that were sampled; up to 4,096 all are included.
    pub requests: u64,
    /// The points in timestamp order.
    pub points: Vec<Point>,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Point {
    /// When it was issued.
    pub ts_ns: Nanos,
    /// Its first byte.
    pub first_byte: i64,
    /// Its length.
    pub bytes: i64,
    /// Whether it is a write.
    pub write: bool,
}

/// Samples the requests of a subject.
#[derive(Clone, Debug, Default)]
pub struct AccessTally(Reservoir<POINTS_MAX>);

impl AccessTally {
    /// Adds a step.
    pub fn take(&mut self, step: &Step) {
        let Step::Issued(issue) = step else { return };
        let request = &issue.request;
        let (Some(first), Op::Read | Op::Write) = (request.sector, request.op) else {
            return;
        };
        self.0.add(Point {
            ts_ns: request.ts,
            first_byte: first.saturating_mul(SECTOR_BYTES),
            bytes: request.sectors.saturating_mul(SECTOR_BYTES),
            write: request.op == Op::Write,
        });
    }

    /// The result.
    pub fn result(&self) -> Access {
        self.0.result()
    }
}

/// A sample of at most `MAX` points, with Vitter 1985, "Random sampling with a reservoir",
/// algorithm R.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reservoir<const MAX: usize> {
    requests: u64,
    points: Vec<Point>,
    random: u64,
}

impl<const MAX: usize> Reservoir<MAX> {
    /// Adds a point.
    pub(crate) fn add(&mut self, point: Point) {
        self.requests += 1;
        if self.points.len() < MAX {
            self.points.push(point);
            return;
        }
        let place = self.draw() % self.requests;
        if let Some(chosen) = self.points.get_mut(place as usize) {
            *chosen = point;
        }
    }

    /// The next number of a fixed pseudorandom sequence, so that the same events give the same
    /// sample: SplitMix64 (Steele, Lea and Flood 2014).
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The sample.
    pub(crate) fn result(&self) -> Access {
        let mut points = self.points.clone();
        points.sort_by_key(|point| (point.ts_ns, point.first_byte));
        Access {
            requests: self.requests,
            points,
        }
    }
}
