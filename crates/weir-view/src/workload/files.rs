//! The requests of files for `weir characterise`: the query over stream `FileIO`, and its rows in
//! the order in which the requests began.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex};

use weir_model::{Batch, Nanos, Op, Symbol};
use weir_runtime::question::quoted;
use weir_sink::{Sink, SinkError};
use weir_tap::ebpf::streams::fileio;
use weir_workload::files::{FileCharacteriser, FileRequest, FileSubject};

use super::rows::{int, operation, text};
use super::selection::WorkloadSelection;
use crate::top::levels::with_partitions;

/// Maximum number of requests that are held until they are in the order of their beginnings. A
/// request that takes longer than so many others is added late.
const REQUESTS_HELD_MAX: usize = 1 << 16;

/// The stream of the requests of files.
pub const FILES: &str = fileio::STREAM.name;

/// The columns of [`question`].
const COLUMNS: [&str; 9] = [
    "begin", "op", "path", "inode", "fs", "pdisk", "offset", "bytes", "flags",
];

/// The query for the requests of the files of the selected VM and disk.
pub fn question(selection: &WorkloadSelection) -> String {
    let vm = selection.vm.iter().map(|vm| format!("vm = {}", quoted(vm)));
    let disk = selection.disk.iter().map(|disk| {
        let names = with_partitions(disk).into_iter().map(|name| quoted(&name));
        format!("pdisk in ({})", names.collect::<Vec<_>>().join(", "))
    });
    let tests: Vec<String> = vm.chain(disk).collect();
    let condition = match tests.is_empty() {
        true => String::new(),
        false => format!(" where {}", tests.join(" and ")),
    };
    format!("select {} from {FILES}{condition}", COLUMNS.join(", "))
}

/// The sink for these rows.
pub struct FileRows {
    files: Arc<Mutex<FileCharacteriser>>,
    held: BinaryHeap<Reverse<Held>>,
    rows: u64,
}

/// A request and its file, in the order of the beginnings, then of the rows.
struct Held {
    at: (Nanos, u64),
    file: Option<FileSubject>,
    path: Option<Symbol>,
    request: FileRequest,
}

impl PartialEq for Held {
    fn eq(&self, other: &Held) -> bool {
        self.at == other.at
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Held) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Held) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

impl FileRows {
    /// Passes the requests to `files`.
    pub fn new(files: Arc<Mutex<FileCharacteriser>>) -> FileRows {
        FileRows {
            files,
            held: BinaryHeap::new(),
            rows: 0,
        }
    }

    fn add(&mut self, batch: &Batch, row: usize) -> Option<()> {
        let [begin, op, path, inode, fs, pdisk, offset, bytes, flags] = &batch.columns[..] else {
            unreachable!("the query has these columns");
        };
        let op = text(op, row)?;
        let op = match op.as_str() {
            // An fsync is the flush of a file.
            "f" => Op::Flush,
            _ => operation(op)?,
        };
        self.rows += 1;
        let begin = int(begin, row).unwrap_or(batch.ts[row]);
        self.held.push(Reverse(Held {
            at: (begin, self.rows),
            file: int(inode, row).map(|inode| FileSubject {
                pdisk: text(pdisk, row),
                fs: text(fs, row),
                inode,
            }),
            path: text(path, row),
            request: FileRequest {
                begin,
                op,
                offset: int(offset, row),
                bytes: int(bytes, row).unwrap_or_default(),
                direct: text(flags, row).is_some_and(|flags| flags.as_str().contains('D')),
            },
        }));
        Some(())
    }

    /// Passes on the earliest requests, until at most `held_max` are held.
    fn pass(&mut self, held_max: usize) {
        let mut files = self.files.lock().expect("no panic while locked");
        while self.held.len() > held_max {
            let Some(Reverse(held)) = self.held.pop() else {
                return;
            };
            files.take(held.file, held.path, &held.request);
        }
    }
}

impl Sink for FileRows {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        for row in 0..batch.len() {
            self.add(batch, row);
        }
        self.pass(REQUESTS_HELD_MAX);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.pass(0);
        Ok(())
    }
}
