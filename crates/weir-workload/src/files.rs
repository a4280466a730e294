//! [`FileCharacteriser`]: how files are accessed: sequentiality, sizes, share of reads, and offset
//! over time, for the files of each disk, in bounded memory.
//!
//! Ouarnoughi 2014, figures 8 and 9, shows the positions of a VM's requests on the disk over time,
//! and concludes from them that its image is fragmented. By file, the pattern of the application
//! and the placement on the disk are separate: an application that reads a fragmented file from
//! its start is sequential here.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use weir_model::{Nanos, Op, Symbol};
use weir_sketch::Frequent;

use crate::analysis::access::{Access, Point, Reservoir};

/// The largest number of files that are followed at once. A further file replaces the one with the
/// fewest requests.
pub const FILES_MAX: usize = 1_024;

/// The largest number of files of a disk in the report.
pub const FILES_SHOWN_MAX: usize = 16;

/// The largest number of points of a file.
pub const FILE_POINTS_MAX: usize = 512;

/// Distinct lengths counted for each file; exact up to this number.
const LENGTHS_MAX: usize = 32;

/// The largest number of reported lengths.
const FREQUENT_MAX: usize = 4;

/// The share from which a file has a pattern, as in the verdict on a disk.
const PATTERN_SHARE: f64 = 0.7;

/// The smallest number of reads and writes for a pattern.
const PATTERN_REQUESTS_MIN: u64 = 10;

/// A file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileSubject {
    /// The device of its file system.
    pub pdisk: Option<Symbol>,
    /// The type of its file system.
    pub fs: Option<Symbol>,
    /// Its number in its file system.
    pub inode: i64,
}

/// A request of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRequest {
    /// When it began.
    pub begin: Nanos,
    /// What it does.
    pub op: Op,
    /// Its first byte in the file; `None` for a flush.
    pub offset: Option<i64>,
    /// Its length.
    pub bytes: i64,
    /// Whether it bypasses the page cache.
    pub direct: bool,
}

/// Follows all files.
#[derive(Debug, Default)]
pub struct FileCharacteriser {
    files: HashMap<FileSubject, FollowedFile>,
    requests: u64,
    requests_nameless: u64,
    requests_replaced: u64,
    files_replaced: u64,
    first: Option<Nanos>,
    last: Nanos,
}

/// The state of one file.
#[derive(Debug)]
struct FollowedFile {
    /// The newest path.
    path: Option<Symbol>,
    requests: u64,
    direct: u64,
    flushes: u64,
    reads: AccessCounts,
    writes: AccessCounts,
    lengths: Frequent<i64>,
    first_byte: i64,
    end_byte: i64,
    points: Reservoir<FILE_POINTS_MAX>,
}

/// The requests of a file of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct AccessCounts {
    /// Their number.
    pub requests: u64,
    /// Their bytes.
    pub bytes: i64,
    /// Those that begin where the previous one of this operation in the file ended.
    pub sequential: u64,
    /// The end of the last one.
    #[serde(skip)]
    end: Option<i64>,
}

/// The files of all disks.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FileReport {
    /// The first request of any.
    pub began_ns: Option<Nanos>,
    /// From there to the last one.
    pub span_ns: Nanos,
    /// The requests of all files.
    pub requests: u64,
    /// Requests without a file: discards, and those of a file system without a number of the file.
    pub requests_nameless: u64,
    /// Requests of files that were replaced by others, since there were more than 1,024.
    pub requests_replaced: u64,
    /// The number of times that a file was replaced.
    pub files_replaced: u64,
    /// The disks, the one with the most bytes first.
    pub disks: Vec<DiskFiles>,
}

/// The files of a disk.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiskFiles {
    /// The disk.
    pub pdisk: Option<&'static str>,
    /// The number of its files that are followed.
    pub files_followed: usize,
    /// Those with the most bytes, at most 16, the one with the most first.
    pub files: Vec<FilePattern>,
}

/// How a file is accessed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FilePattern {
    /// Its newest path.
    pub path: Option<&'static str>,
    /// Its number in its file system.
    pub inode: i64,
    /// The type of its file system.
    pub fs: Option<&'static str>,
    /// The pattern of its reads and writes.
    pub pattern: FileOrder,
    /// Its requests of any kind.
    pub requests: u64,
    /// Those that are direct I/O.
    pub direct: u64,
    /// Flushes.
    pub flushes: u64,
    /// Reads.
    pub reads: AccessCounts,
    /// Writes.
    pub writes: AccessCounts,
    /// Reads among the bytes of reads and writes, from 0 to 1.
    pub read_bytes_share: Option<f64>,
    /// Sequential requests among reads and writes, from 0 to 1.
    pub sequential_share: Option<f64>,
    /// The mean length of a read or write.
    pub mean_bytes: Option<f64>,
    /// The most frequent lengths, each with its requests, the most frequent first. Exact with up
    /// to 32 distinct lengths.
    pub lengths: Vec<(i64, u64)>,
    /// The first byte that was accessed.
    pub first_byte: Option<i64>,
    /// The end of the last byte that was accessed.
    pub end_byte: Option<i64>,
    /// Offset over time, a sample.
    pub access: Access,
}

/// The order of the reads and writes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileOrder {
    /// 70 % or more begin where the previous one of the same operation ended.
    Sequential,
    /// 70 % or more do not.
    Random,
    /// Neither.
    Mixed,
    /// Fewer than 10 reads and writes.
    TooFew,
}

impl FileOrder {
    /// As text.
    pub fn as_str(self) -> &'static str {
        match self {
            FileOrder::Sequential => "sequential",
            FileOrder::Random => "random",
            FileOrder::Mixed => "mixed",
            FileOrder::TooFew => "too few requests",
        }
    }
}

impl FileCharacteriser {
    /// Adds a request, in the order in which requests begin; without a file it is only counted.
    pub fn take(&mut self, file: Option<FileSubject>, path: Option<Symbol>, request: &FileRequest) {
        self.first = Some(self.first.map_or(request.begin, |at| at.min(request.begin)));
        self.last = self.last.max(request.begin);
        self.requests += 1;
        let Some(file) = file else {
            self.requests_nameless += 1;
            return;
        };
        if !self.files.contains_key(&file) && self.files.len() >= FILES_MAX {
            self.replace();
        }
        let followed = self.files.entry(file).or_insert_with(FollowedFile::new);
        followed.path = path.or(followed.path);
        followed.take(request);
    }

    /// Removes the file with the fewest requests.
    fn replace(&mut self) {
        let least = self.files.iter().min_by_key(|(file, followed)| {
            let pdisk = file.pdisk.map(Symbol::as_str);
            (followed.requests, pdisk, file.inode)
        });
        let least = least.map(|(file, followed)| (*file, followed.requests));
        if let Some((file, requests)) = least {
            self.files.remove(&file);
            self.files_replaced += 1;
            self.requests_replaced += requests;
        }
    }

    /// The report so far.
    pub fn report(&self) -> FileReport {
        let disks: HashSet<Option<Symbol>> = self.files.keys().map(|file| file.pdisk).collect();
        let mut disks: Vec<(i64, DiskFiles)> = disks
            .into_iter()
            .map(|pdisk| {
                let of_disk = self.files.iter().filter(|(file, _)| file.pdisk == pdisk);
                let mut files: Vec<(i64, FileSubject, &FollowedFile)> = of_disk
                    .map(|(file, followed)| (followed.bytes(), *file, followed))
                    .collect();
                files.sort_by_key(|(bytes, file, _)| (std::cmp::Reverse(*bytes), file.inode));
                let bytes = files.iter().fold(0, |sum: i64, f| sum.saturating_add(f.0));
                let shown = files.iter().take(FILES_SHOWN_MAX);
                let shown = shown.map(|(_, file, followed)| followed.pattern(file));
                let disk = DiskFiles {
                    pdisk: pdisk.map(Symbol::as_str),
                    files_followed: files.len(),
                    files: shown.collect(),
                };
                (bytes, disk)
            })
            .collect();
        disks.sort_by_key(|(bytes, disk)| (std::cmp::Reverse(*bytes), disk.pdisk));
        FileReport {
            began_ns: self.first,
            span_ns: self
                .first
                .map_or(0, |first| self.last.saturating_sub(first)),
            requests: self.requests,
            requests_nameless: self.requests_nameless,
            requests_replaced: self.requests_replaced,
            files_replaced: self.files_replaced,
            disks: disks.into_iter().map(|(_, disk)| disk).collect(),
        }
    }
}

impl FollowedFile {
    fn new() -> FollowedFile {
        FollowedFile {
            path: None,
            requests: 0,
            direct: 0,
            flushes: 0,
            reads: AccessCounts::default(),
            writes: AccessCounts::default(),
            lengths: Frequent::new(LENGTHS_MAX),
            first_byte: i64::MAX,
            end_byte: 0,
            points: Reservoir::default(),
        }
    }

    fn bytes(&self) -> i64 {
        self.reads.bytes.saturating_add(self.writes.bytes)
    }

    fn take(&mut self, request: &FileRequest) {
        self.requests += 1;
        self.direct += u64::from(request.direct);
        let counts = match request.op {
            Op::Read => &mut self.reads,
            Op::Write => &mut self.writes,
            Op::Flush => {
                self.flushes += 1;
                return;
            }
            _ => return,
        };
        let (Some(offset), bytes) = (request.offset, request.bytes.max(0)) else {
            return;
        };
        let end = offset.saturating_add(bytes);
        counts.requests += 1;
        counts.bytes = counts.bytes.saturating_add(bytes);
        counts.sequential += u64::from(counts.end == Some(offset));
        counts.end = Some(end);
        self.lengths.add(bytes, 1);
        self.first_byte = self.first_byte.min(offset);
        self.end_byte = self.end_byte.max(end);
        self.points.add(Point {
            ts_ns: request.begin,
            first_byte: offset,
            bytes,
            write: request.op == Op::Write,
        });
    }

    fn pattern(&self, file: &FileSubject) -> FilePattern {
        let accesses = self.reads.requests + self.writes.requests;
        let sequential = self.reads.sequential + self.writes.sequential;
        let share = |part: f64, all: f64| (all > 0.0).then(|| part / all);
        let sequential_share = share(sequential as f64, accesses as f64);
        let lengths = self.lengths.top(FREQUENT_MAX).into_iter();
        FilePattern {
            path: self.path.map(Symbol::as_str),
            inode: file.inode,
            fs: file.fs.map(Symbol::as_str),
            pattern: match sequential_share {
                _ if accesses < PATTERN_REQUESTS_MIN => FileOrder::TooFew,
                Some(share) if share >= PATTERN_SHARE => FileOrder::Sequential,
                Some(share) if share > 1.0 - PATTERN_SHARE => FileOrder::Mixed,
                _ => FileOrder::Random,
            },
            requests: self.requests,
            direct: self.direct,
            flushes: self.flushes,
            reads: self.reads,
            writes: self.writes,
            read_bytes_share: share(self.reads.bytes as f64, self.bytes() as f64),
            sequential_share,
            mean_bytes: share(self.bytes() as f64, accesses as f64),
            lengths: lengths
                .map(|(bytes, frequency)| (bytes, frequency.most))
                .collect(),
            first_byte: (accesses > 0).then_some(self.first_byte),
            end_byte: (accesses > 0).then_some(self.end_byte),
            access: self.points.result(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(inode: i64) -> Option<FileSubject> {
        Some(FileSubject {
            pdisk: Some(Symbol::new("/dev/sda")),
            fs: Some(Symbol::new("ext4")),
            inode,
        })
    }

    fn request(begin: Nanos, op: Op, offset: i64, bytes: i64) -> FileRequest {
        FileRequest {
            begin,
            op,
            offset: (op != Op::Flush).then_some(offset),
            bytes,
            direct: true,
        }
    }

    #[test]
    fn a_sequential_write_and_random_reads_are_distinguished() {
        let mut files = FileCharacteriser::default();
        let path = |name| Some(Symbol::new(name));
        for i in 0..20 {
            files.take(
                file(1),
                path("/log"),
                &request(2 * i, Op::Write, 4096 * i, 4096),
            );
            let place = 8192 * ((7 * i) % 20);
            files.take(
                file(2),
                path("/db"),
                &request(2 * i + 1, Op::Read, place, 512),
            );
        }
        files.take(file(1), path("/log.1"), &request(50, Op::Flush, 0, 0));
        files.take(None, None, &request(51, Op::Discard, 0, 4096));
        let report = files.report();
        let [disk] = &report.disks[..] else {
            panic!("{report:?}")
        };
        let [log, db] = &disk.files[..] else {
            panic!("{disk:?}")
        };
        assert_eq!(
            (log.path, log.pattern, log.flushes),
            (Some("/log.1"), FileOrder::Sequential, 1)
        );
        assert_eq!((log.writes.requests, log.writes.sequential), (20, 19));
        assert_eq!((log.first_byte, log.end_byte), (Some(0), Some(20 * 4096)));
        assert_eq!(log.lengths, [(4096, 20)]);
        assert_eq!(
            (db.pattern, db.read_bytes_share),
            (FileOrder::Random, Some(1.0))
        );
        assert_eq!(db.reads.sequential, 0);
        assert_eq!(
            (report.requests, report.requests_nameless, report.span_ns),
            (42, 1, 51)
        );
    }

    #[test]
    fn more_files_than_fit_replace_those_with_the_fewest_requests() {
        let mut files = FileCharacteriser::default();
        for i in 0..10 {
            files.take(file(0), None, &request(i, Op::Read, 0, 512));
        }
        let all = FILES_MAX as i64 + 5;
        for inode in 1..all {
            files.take(file(inode), None, &request(100, Op::Read, 0, 4096));
        }
        let report = files.report();
        assert_eq!((report.files_replaced, report.requests_replaced), (5, 5));
        let disk = &report.disks[0];
        assert_eq!(
            (disk.files_followed, disk.files.len()),
            (FILES_MAX, FILES_SHOWN_MAX)
        );
        assert_eq!(files.files[&file(0).unwrap()].requests, 10);
    }

    #[test]
    fn the_points_of_a_file_are_bounded() {
        let mut files = FileCharacteriser::default();
        for i in 0..10_000 {
            files.take(file(1), None, &request(i, Op::Read, i64::MAX - 1, i64::MAX));
        }
        let report = files.report();
        let access = &report.disks[0].files[0].access;
        assert_eq!(
            (access.requests, access.points.len()),
            (10_000, FILE_POINTS_MAX)
        );
    }
}
