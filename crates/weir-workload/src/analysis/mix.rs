//! [`Mix`]: the number of requests of each kind, and their bytes.

use serde::Serialize;
use weir_model::{Op, SECTOR_BYTES};

use crate::track::Step;

/// The operations of a subject, counted exactly at issue.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Mix {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes of the device's volatile cache.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Requests to write zeroes.
    pub write_zeroes: u64,
    /// Bytes to be read.
    pub read_bytes: u64,
    /// Bytes to be written, excluding write-zeroes requests.
    pub written_bytes: u64,
    /// Requests that ended with an error.
    pub failed: u64,
    /// The share of reads among reads and writes, from 0 to 1.
    pub read_share: Option<f64>,
    /// The same by bytes.
    pub read_bytes_share: Option<f64>,
    /// The mean number of writes between two flushes.
    pub writes_per_flush: Option<f64>,
}

impl Mix {
    /// Adds a step.
    pub fn take(&mut self, step: &Step) {
        let request = match step {
            Step::Issued(issue) => &issue.request,
            Step::Finished(end) => {
                self.failed += u64::from(end.response.failed);
                return;
            }
            Step::Lost { .. } => return,
        };
        let bytes = request.sectors.saturating_mul(SECTOR_BYTES).max(0) as u64;
        match request.op {
            Op::Read => {
                self.reads += 1;
                self.read_bytes += bytes;
            }
            Op::Write => {
                self.writes += 1;
                self.written_bytes += bytes;
            }
            Op::Flush => self.flushes += 1,
            Op::Discard => self.discards += 1,
            Op::WriteZeroes => self.write_zeroes += 1,
        }
    }

    /// The counts with their shares.
    pub fn result(&self) -> Mix {
        let share = |part: u64, rest: u64| {
            let whole = part + rest;
            (whole > 0).then(|| part as f64 / whole as f64)
        };
        Mix {
            read_share: share(self.reads, self.writes),
            read_bytes_share: share(self.read_bytes, self.written_bytes),
            writes_per_flush: (self.flushes > 0).then(|| self.writes as f64 / self.flushes as f64),
            ..self.clone()
        }
    }

    /// Requests of any kind.
    pub fn requests(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.discards + self.write_zeroes
    }
}
