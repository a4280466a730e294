//! [`TraceRecord`] and [`Reader`]: the output of every trace reader: requests, or the block layer's
//! own actions.

use weir_model::{Event, EventKind, Level, NANOS_PER_MICRO, Nanos, Op, SECTOR_BYTES, Symbol};

use super::Faults;
use super::block::Action;
use crate::TapError;

/// More sectors than any disk has; lengths in bytes stay within `i64`.
pub const SECTORS_MAX: i64 = i64::MAX / SECTOR_BYTES;

/// One record of a trace.
#[derive(Clone, Debug)]
pub struct TraceRecord {
    /// Timestamp in nanoseconds; the epoch depends on the format.
    pub ts: Nanos,
    /// Its content.
    pub what: What,
}

/// The content of a record.
#[derive(Clone, Debug)]
pub enum What {
    /// A whole request, from formats with one request per line.
    Request(TraceRequest),
    /// One step of a request through the block layer, from blktrace. A request is smaller, and most
    /// traces have requests only.
    Action(Box<Action>),
}

/// A request as recorded in a trace, issued at the record's time.
#[derive(Clone, Copy, Debug)]
pub struct TraceRequest {
    /// Operation.
    pub op: Op,
    /// The level at which it was recorded.
    pub level: Level,
    /// Sectors; a flush has none.
    pub extent: Extent,
    /// The VM, if the format names one.
    pub vm: Option<Symbol>,
    /// The disk: the VM's at level `vdisk`, else the host's.
    pub disk: Option<Symbol>,
    /// Insert to completion, if known. The record's time is then the insert's.
    pub latency_ns: Option<Nanos>,
    /// True if it was issued when it was inserted: it did not wait, and its time in the device is
    /// the latency. Otherwise neither is known.
    pub without_wait: bool,
}

impl TraceRequest {
    /// A request of which only operation and extent are known.
    pub fn new(op: Op, extent: Extent, level: Level) -> TraceRequest {
        TraceRequest {
            op,
            level,
            extent,
            vm: None,
            disk: None,
            latency_ns: None,
            without_wait: false,
        }
    }

    /// The first sector; `None` for a flush.
    pub fn sector(&self) -> Option<i64> {
        (self.op != Op::Flush).then_some(self.extent.sector)
    }

    /// Its row `Q`, issued at `ts`.
    pub fn event(&self, ts: Nanos, req_id: i64) -> Event {
        let sectors = self.extent.sectors;
        let request = EventKind::Request;
        let mut event = Event::new(ts, request, self.op, req_id, self.sector(), sectors);
        event.level = self.level;
        event.vm = self.vm;
        match self.level {
            Level::Vdisk => event.vdisk = self.disk,
            Level::Vfs | Level::Block | Level::Guest => event.pdisk = self.disk,
        }
        event
    }
}

/// The sectors of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first sector.
    pub sector: i64,
    /// The number of sectors.
    pub sectors: i64,
}

impl Extent {
    /// No sectors: a flush.
    pub const NONE: Extent = Extent {
        sector: 0,
        sectors: 0,
    };

    /// An extent in sectors.
    ///
    /// # Errors
    /// If it exceeds [`SECTORS_MAX`].
    pub fn of_sectors(sector: u64, sectors: u64) -> Result<Extent, String> {
        let max = SECTORS_MAX as u64;
        if sector > max || sectors > max {
            return Err(format!("sector {sector} + {sectors} lies beyond any disk"));
        }
        Ok(Extent {
            sector: sector as i64,
            sectors: sectors as i64,
        })
    }

    /// The sectors that contain the `length` bytes from byte `offset`.
    ///
    /// # Errors
    /// If it exceeds [`SECTORS_MAX`].
    pub fn of_bytes(offset: u64, length: u64) -> Result<Extent, String> {
        let sector_bytes = SECTOR_BYTES as u64;
        let Some(end) = offset.checked_add(length) else {
            return Err(format!("byte {offset} + {length} lies beyond any disk"));
        };
        let first = offset / sector_bytes;
        let sectors = match length {
            0 => 0,
            _ => end.div_ceil(sector_bytes) - first,
        };
        Extent::of_sectors(first, sectors)
    }
}

/// `count` units of `unit_ns` nanoseconds each, as a time.
///
/// # Errors
/// If it is after the year 2262.
pub fn nanos(count: u64, unit_ns: i64) -> Result<Nanos, String> {
    i64::try_from(count)
        .ok()
        .and_then(|c| c.checked_mul(unit_ns))
        .ok_or_else(|| format!("time {count} is out of range"))
}

/// `count` microseconds as a time.
///
/// # Errors
/// As [`nanos`].
pub fn micros(count: u64) -> Result<Nanos, String> {
    nanos(count, NANOS_PER_MICRO)
}

/// The symbol of a name from a trace.
///
/// # Errors
/// If the table of symbols is full.
pub fn name(text: &str) -> Result<Symbol, String> {
    Symbol::try_new(text).map_err(|full| full.to_string())
}

/// Reads a trace record by record.
pub trait Reader: Send {
    /// Reads and appends some records to `out`, possibly none; false at the end of the trace. Bad
    /// records are reported to `faults`.
    ///
    /// # Errors
    /// If the file cannot be read, or a record is bad and the reader strict.
    fn read(&mut self, out: &mut Vec<TraceRecord>, faults: &mut Faults) -> Result<bool, TapError>;

    /// Progress, from 0 to 1.
    fn progress(&self) -> f64;

    /// Whether the trace may be written while it is read. [`Reader::read`] then returns within a
    /// fraction of a second, also without records.
    fn is_streamed(&self) -> bool {
        false
    }

    /// Whether the trace contains completions. If not, each request is reported as completed at its
    /// own time, without latency, and `IOstream` contains requests only.
    fn knows_responses(&self) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_covers_every_sector_it_touches() {
        let of = |offset, length| {
            let extent = Extent::of_bytes(offset, length).unwrap();
            (extent.sector, extent.sectors)
        };
        assert_eq!(of(0, 4096), (0, 8));
        assert_eq!(of(511, 2), (0, 2));
        assert_eq!(of(1024, 1), (2, 1));
        assert_eq!(of(700, 0), (1, 0));
        assert!(Extent::of_bytes(u64::MAX, 2).is_err());
        assert!(Extent::of_sectors(u64::MAX, 0).is_err());
    }
}
