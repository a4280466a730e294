//! The requests of a load: the load program in the guest executes them, and the test that started
//! it can compute the same list.
//!
//! This file is compiled twice, into this crate and into the load program, and uses nothing but the
//! standard library.

use std::fmt;
use std::str::FromStr;

/// A load on one disk. As text: `disk=/dev/vda,read=70,write=30,bytes=4096,count=1000`, in any
/// order; omitted keys have the defaults of [`DiskLoad::on`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskLoad {
    /// The disk, or file, such as `/dev/vda`.
    pub disk: String,
    /// Relative frequency of reads, as a weight.
    pub read: u64,
    /// Relative frequency of writes, as a weight.
    pub write: u64,
    /// Bytes of each request, a multiple of 512.
    pub bytes: u64,
    /// Total number of requests.
    pub count: u64,
    /// Threads, each with one request in flight.
    pub depth: u64,
    /// The seed for the order of offsets and of operations.
    pub seed: u64,
    /// First byte of the used part of the disk.
    pub start: u64,
    /// Length of that part.
    pub span: u64,
    /// Sequential instead of random.
    pub sequential: bool,
    /// Bypasses the page cache (`O_DIRECT`).
    pub direct: bool,
    /// The number of requests after which an fsync follows; 0: one fsync at the end, if anything
    /// was written through the page cache.
    pub fsync: u64,
    /// Requests per second, sent as one burst every [`BURST_EVERY_MS`]; 0: unlimited.
    pub rate: u64,
}

/// Time between two bursts of a load with a rate: long enough for a sleeping thread not to spin.
pub const BURST_EVERY_MS: u64 = 10;

/// One request of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoadRequest {
    /// `r` or `w`.
    pub op: char,
    /// The first sector on the disk.
    pub sector: u64,
    /// Number of sectors.
    pub sectors: u64,
}

impl DiskLoad {
    /// 256 reads of 4 KiB at random offsets of the first 16 MiB, one at a time, direct.
    pub fn on(disk: &str) -> DiskLoad {
        DiskLoad {
            disk: disk.to_owned(),
            read: 100,
            write: 0,
            bytes: 4096,
            count: 256,
            depth: 1,
            seed: 1,
            start: 0,
            span: 16 << 20,
            sequential: false,
            direct: true,
            fsync: 0,
            rate: 0,
        }
    }

    /// When request number `i` is due, in ms after the start.
    pub fn due_ms(&self, i: u64) -> u64 {
        let exact_ms = (i * 1000).checked_div(self.rate).unwrap_or(0);
        exact_ms - exact_ms % BURST_EVERY_MS
    }

    /// The number of possible offsets. A random load uses only every second block: no two requests
    /// are adjacent, so no layer can merge them.
    pub fn places(&self) -> u64 {
        self.span / self.bytes / if self.sequential { 1 } else { 2 }
    }

    /// Request number `i`, from 0 on. Every offset is used once before any is used again.
    pub fn request(&self, i: u64) -> LoadRequest {
        let place = if self.sequential {
            i % self.places()
        } else {
            2 * shuffled(i % self.places(), self.places(), self.seed)
        };
        let next_disjoint = scrambled(self.seed ^ i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let op = if next_disjoint % (self.read + self.write) < self.read {
            'r'
        } else {
            'w'
        };
        LoadRequest {
            op,
            sector: (self.start + place * self.bytes) / 512,
            sectors: self.bytes / 512,
        }
    }

    /// All requests.
    pub fn requests(&self) -> impl Iterator<Item = LoadRequest> + '_ {
        (0..self.count).map(|i| self.request(i))
    }

    /// The number of fsync calls.
    pub fn fsyncs(&self) -> u64 {
        match self.fsync {
            0 => u64::from(self.syncs_at_end()),
            every => self.count / every,
        }
    }

    /// Whether there is a final fsync.
    pub fn syncs_at_end(&self) -> bool {
        self.fsync == 0 && !self.direct && self.write > 0
    }

    fn checked(self) -> Result<DiskLoad, String> {
        let wrong = |what: &str| Err(format!("load `{self}`: {what}"));
        if self.disk.is_empty() {
            return wrong("disk= is missing");
        }
        if self.bytes == 0 || !self.bytes.is_multiple_of(512) || !self.start.is_multiple_of(512) {
            return wrong("bytes and start are multiples of 512, bytes is not 0");
        }
        if self.places() == 0 {
            return wrong("span is too short for a request");
        }
        if self.read + self.write == 0 {
            return wrong("read or write must have a share");
        }
        if !(1..=DEPTH_MAX).contains(&self.depth) {
            return wrong("depth is out of range");
        }
        Ok(self)
    }
}

/// Maximum number of threads of a load.
pub const DEPTH_MAX: u64 = 64;

/// The `i`th of `count` numbers in an order that `seed` determines: `i` times a number without a
/// common factor with `count`, plus a shift.
fn shuffled(i: u64, count: u64, seed: u64) -> u64 {
    let mut factor = scrambled(seed) % count;
    while common_factor(factor, count) != 1 {
        factor = (factor + 1) % count.max(2);
    }
    let product = u128::from(i) * u128::from(factor) + u128::from(scrambled(!seed) % count);
    u64::try_from(product % u128::from(count)).expect("a remainder is below its divisor")
}

fn common_factor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_factor(b, a % b) }
}

/// The output function of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
/// Generators, 2014, figure 14).
pub(crate) fn scrambled(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl FromStr for DiskLoad {
    type Err = String;

    fn from_str(text: &str) -> Result<DiskLoad, String> {
        let mut load = DiskLoad::on("");
        for pair in text.split(',') {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| format!("load `{text}`: `{pair}` is not KEY=VALUE"))?;
            let number = || {
                let number: Result<u64, _> = value.parse();
                number.map_err(|e| format!("load `{text}`: {key}={value}: {e}"))
            };
            match key {
                "disk" => value.clone_into(&mut load.disk),
                "read" => load.read = number()?,
                "write" => load.write = number()?,
                "bytes" => load.bytes = number()?,
                "count" => load.count = number()?,
                "depth" => load.depth = number()?,
                "seed" => load.seed = number()?,
                "start" => load.start = number()?,
                "span" => load.span = number()?,
                "sequential" => load.sequential = number()? != 0,
                "direct" => load.direct = number()? != 0,
                "fsync" => load.fsync = number()?,
                "rate" => load.rate = number()?,
                _ => return Err(format!("load `{text}`: unknown key `{key}`")),
            }
            // A load with only writes has no reads.
            if key == "write" && !text.contains("read=") {
                load.read = 0;
            }
        }
        load.checked()
    }
}

impl fmt::Display for DiskLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "disk={},read={},write={},bytes={},count={},depth={},seed={},start={},span={},\
             sequential={},direct={},fsync={},rate={}",
            self.disk,
            self.read,
            self.write,
            self.bytes,
            self.count,
            self.depth,
            self.seed,
            self.start,
            self.span,
            u8::from(self.sequential),
            u8::from(self.direct),
            self.fsync,
            self.rate
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_offset_is_used_once_and_none_has_a_neighbour() {
        for (span, seed) in [(16 << 20, 1), (3 * 8192, 2), (1000 * 8192, 77), (8192, 5)] {
            let mut load = DiskLoad {
                span,
                seed,
                ..DiskLoad::on("x")
            };
            load.count = load.places();
            let sectors: BTreeSet<u64> = load.requests().map(|r| r.sector).collect();
            assert_eq!(sectors.len() as u64, load.count, "{load}");
            assert!(sectors.iter().all(|s| s % 16 == 0 && s * 512 < span));
        }
    }

    #[test]
    fn the_mix_is_the_requested_one() {
        let load: DiskLoad = "disk=/dev/vda,read=70,write=30,count=10000"
            .parse()
            .unwrap();
        let reads = load.requests().filter(|r| r.op == 'r').count();
        assert!((6_800..7_200).contains(&reads), "{reads} of 10000");
        let load: DiskLoad = "disk=/dev/vda,write=1".parse().unwrap();
        assert!(load.requests().all(|r| r.op == 'w'));
    }

    #[test]
    fn with_a_rate_each_burst_is_due_at_once() {
        let load = DiskLoad {
            rate: 400,
            ..DiskLoad::on("/dev/sdb")
        };
        let due: Vec<u64> = [0, 3, 4, 7, 8, 400].map(|i| load.due_ms(i)).into();
        assert_eq!(due, [0, 0, 10, 10, 20, 1000]);
        assert_eq!(DiskLoad::on("/dev/sdb").due_ms(1000), 0);
    }

    #[test]
    fn a_printed_load_parses_to_itself() {
        let text = "disk=/dev/sdb,read=1,write=3,bytes=512,count=7,depth=4,seed=9,start=1024,\
                    span=65536,sequential=1,direct=0,fsync=2,rate=400";
        let load: DiskLoad = text.parse().unwrap();
        assert_eq!(load.to_string(), text);
        for bad in [
            "",
            "disk",
            "disk=x,bytes=100",
            "disk=x,span=100",
            "disk=x,depth=0",
            "k=v",
        ] {
            assert!(bad.parse::<DiskLoad>().is_err(), "{bad}");
        }
    }
}
