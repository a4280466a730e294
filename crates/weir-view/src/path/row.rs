//! [`PathRow`]: a row of the query for the rows of a stream with levels.

use weir_model::{Batch, Nanos, Symbol};

use super::selection::{LEVELS_MAX, LevelStream};
use crate::workload::rows::{int, text};

/// The disk of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PathDisk {
    /// The VM; `None` for I/O that is not attributed to a VM.
    pub vm: Option<Symbol>,
    /// The disk of the VM; `None` if its requests are not known.
    pub vdisk: Option<Symbol>,
    /// The device of the host, or the host of the virtual disk: column `place` of the stream.
    pub place: Option<Symbol>,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathRow {
    /// When the last level was left.
    pub ts: Nanos,
    /// The disk.
    pub disk: PathDisk,
    /// Why a level is not known, if one is not: column `cause` of the stream.
    pub cause: Option<Symbol>,
    /// The time at all levels, ns.
    pub latency_ns: i64,
    /// The time at each level of the stream, ns; `None` for a level that it did not cross.
    pub levels_ns: [Option<i64>; LEVELS_MAX],
    /// What identifies it, if the query has that.
    pub identity: Option<Identity>,
}

/// What identifies a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Identity {
    /// The operation.
    pub op: Option<Symbol>,
    /// Its size.
    pub bytes: Option<i64>,
    /// The file.
    pub path: Option<Symbol>,
    /// The first byte in the file.
    pub offset: Option<i64>,
    /// The first sector on the disk.
    pub sector: Option<i64>,
    /// The flags of `IOpath`.
    pub flags: Option<Symbol>,
    /// The process.
    pub pid: Option<i64>,
    /// The command name of the thread.
    pub comm: Option<Symbol>,
    /// The application's number of a request of io_uring, or the number of a guest's request.
    pub number: Option<i64>,
}

impl PathRow {
    /// A row of a batch; `None` without a latency.
    pub fn of(stream: &LevelStream, batch: &Batch, row: usize) -> Option<PathRow> {
        let [vm, vdisk, place, cause, latency, rest @ ..] = &batch.columns[..] else {
            unreachable!("the query has these columns");
        };
        let (levels, identity) = rest.split_at(stream.levels.len());
        let at = |name: &str| {
            let at = stream.identity.iter().position(|column| *column == name);
            at.and_then(|at| identity.get(at))
        };
        let word = |name: &str| at(name).and_then(|column| text(column, row));
        let number = |name: &str| at(name).and_then(|column| int(column, row));
        let identity = (!identity.is_empty()).then(|| Identity {
            op: word("op"),
            bytes: number("bytes"),
            path: word("path"),
            offset: number("offset"),
            sector: number("sector"),
            flags: word("flags"),
            pid: number("pid"),
            comm: word("comm"),
            number: number("user_data").or(number("req_id")),
        });
        let level = |level: usize| levels.get(level).and_then(|column| int(column, row));
        Some(PathRow {
            ts: batch.ts[row],
            disk: PathDisk {
                vm: text(vm, row),
                vdisk: text(vdisk, row),
                place: text(place, row),
            },
            cause: text(cause, row),
            latency_ns: int(latency, row)?,
            levels_ns: std::array::from_fn(level),
            identity,
        })
    }
}
