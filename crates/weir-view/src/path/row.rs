//! [`PathRow`]: a row of the query for the rows of `IOpath`.

use weir_model::{Batch, Nanos, Symbol};

use super::selection::LEVELS;
use crate::workload::rows::{int, text};

/// A device of the host, and the VM and the virtual disk whose requests it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PathDisk {
    /// The VM; `None` for I/O that is not attributed to a VM.
    pub vm: Option<Symbol>,
    /// The disk of the VM; `None` if its requests are not known.
    pub vdisk: Option<Symbol>,
    /// The device.
    pub pdisk: Option<Symbol>,
}

/// A request of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathRow {
    /// When the last level was left.
    pub ts: Nanos,
    /// The disk.
    pub disk: PathDisk,
    /// Why its file is not known, if it is not.
    pub untied: Option<Symbol>,
    /// The time at all levels, ns.
    pub latency_ns: i64,
    /// The time at each of [`LEVELS`], ns; `None` for a level that it did not cross.
    pub levels_ns: [Option<i64>; LEVELS.len()],
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
    /// The flags of `IOpath`.
    pub flags: Option<Symbol>,
    /// The process.
    pub pid: Option<i64>,
    /// The command name of the thread.
    pub comm: Option<Symbol>,
    /// The application's number of a request of io_uring.
    pub user_data: Option<i64>,
}

impl PathRow {
    /// A row of a batch; `None` without a latency.
    pub fn of(batch: &Batch, row: usize) -> Option<PathRow> {
        let [vm, vdisk, pdisk, untied, latency, rest @ ..] = &batch.columns[..] else {
            unreachable!("the query has these columns");
        };
        let (levels, identity) = rest.split_at(LEVELS.len());
        let identity = match identity {
            [op, bytes, path, offset, flags, pid, comm, user_data] => Some(Identity {
                op: text(op, row),
                bytes: int(bytes, row),
                path: text(path, row),
                offset: int(offset, row),
                flags: text(flags, row),
                pid: int(pid, row),
                comm: text(comm, row),
                user_data: int(user_data, row),
            }),
            _ => None,
        };
        Some(PathRow {
            ts: batch.ts[row],
            disk: PathDisk {
                vm: text(vm, row),
                vdisk: text(vdisk, row),
                pdisk: text(pdisk, row),
            },
            untied: text(untied, row),
            latency_ns: int(latency, row)?,
            levels_ns: std::array::from_fn(|level| int(&levels[level], row)),
            identity,
        })
    }
}
