//! Writes blktrace version 7, as the file of one CPU, which blkparse, btt and fio read.
//!
//! A recording contains a request at its issue, but its wait time only at its completion. A request
//! is therefore written at its completion, and events are sorted in a bounded buffer:
//!
//! | event | time |
//! | --- | --- |
//! | Q, and G and I of a request whose wait is known | end - latency |
//! | Q and M of each bio that was merged into it | end - latency |
//! | D | end - service; if it was issued twice, first at its issue, then R and a second D |
//! | C | end |
//!
//! So btt's I2D is `wait`, D2C is `service`, Q2C is `latency`, and Q2G and G2I are 0. Merged bios
//! are recorded as a number: they get equal parts of the request, and those of front merges are M,
//! too. A flush has no I. A request whose latency is unknown is written with a Q at its issue,
//! without wait, since fio replays Qs only. Requests without completion have a Q and a D.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use weir_model::{
    Batch, Event, EventKind, IoEvent, NANOS_PER_SECOND, Nanos, Op, SECTOR_BYTES, Symbol,
};

use super::super::remarks::Remarks;
use super::super::table::REQUESTS_MAX;
use super::super::write::{Header as FileHeader, TraceWriter};
use super::layout::{CATEGORY_SHIFT, Header, Layout, act, category, device_of, note};
use crate::{EventCount, TapError};

/// Maximum number of events buffered for sorting. Events of a request that completes after more
/// than these are written late.
const EVENTS_HELD_MAX: usize = 1 << 18;

/// The major number of devices whose number is unknown, one of those for local use
/// (Documentation/admin-guide/devices.txt).
const MAJOR_LOCAL: u32 = 240;

/// Sectors of a block of 4 KiB.
const BLOCK_SECTORS: i64 = 8;

/// Length of a process' name (TASK_COMM_LEN).
const COMM_BYTES: usize = 16;

struct Blktrace {
    path: PathBuf,
    file: BufWriter<File>,
    cpu: u32,
    responses_assumed: bool,
    outstanding: BTreeMap<(Disk, i64), Event>,
    /// By their times and the order in which they were added. Those added and those written next
    /// to each other are next to each other in memory, unlike in a heap.
    held: BTreeMap<(Nanos, u64), Held>,
    held_total: u64,
    /// The time of the last event written; `None` before the first.
    written: Option<Nanos>,
    /// The last sequence number of each device: each has a trace of its own.
    sequences: HashMap<u32, u32>,
    devices: HashMap<Disk, u32>,
    processes: HashSet<(u32, Symbol)>,
    remarks: Remarks,
}

/// The identity of a disk.
type Disk = [u32; 3];

/// An event to be written.
struct Held {
    sector: u64,
    bytes: u32,
    action: u64,
    pid: u32,
    device: u32,
    error: u16,
    comm: Option<u32>,
}

/// Creates or overwrites a trace at `path`. Its CPU is the number at the end of the name, else 0.
///
/// # Errors
/// If the file cannot be written.
pub fn create(path: &Path, header: &FileHeader) -> Result<Box<dyn TraceWriter>, TapError> {
    let file = File::create(path).map_err(|error| TapError::File {
        path: path.into(),
        error,
    })?;
    let extension = path.extension().and_then(|e| e.to_str());
    Ok(Box::new(Blktrace {
        path: path.into(),
        file: BufWriter::new(file),
        cpu: extension.and_then(|e| e.parse().ok()).unwrap_or(0),
        responses_assumed: header.responses_assumed,
        outstanding: BTreeMap::new(),
        held: BTreeMap::new(),
        held_total: 0,
        written: None,
        sequences: HashMap::new(),
        devices: HashMap::new(),
        processes: HashSet::new(),
        remarks: Remarks::default(),
    }))
}

impl Blktrace {
    fn take(&mut self, row: &IoEvent) -> std::io::Result<()> {
        let key = (disk(&row.event), row.event.req_id);
        match row.event.kind {
            EventKind::Request => {
                if self.outstanding.len() >= REQUESTS_MAX
                    && let Some((_, oldest)) = self.outstanding.pop_first()
                {
                    self.remarks.note("requests without a recorded completion");
                    self.hold_unended(&oldest);
                }
                self.outstanding.insert(key, row.event);
            }
            EventKind::Response | EventKind::Error | EventKind::Unsupported => {
                let issued = self.outstanding.remove(&key).map(|e| e.ts);
                self.hold_ended(row, issued);
            }
        }
        while self.held.len() > EVENTS_HELD_MAX {
            self.write_first()?;
        }
        Ok(())
    }

    fn hold_unended(&mut self, event: &Event) {
        self.hold_queued(event, event.ts, false);
        self.hold(event, event.ts, act::ISSUE, category::ISSUE);
    }

    fn hold_ended(&mut self, row: &IoEvent, issued: Option<Nanos>) {
        let event = &row.event;
        let done = event.ts;
        let last_issue = row.service_ns.map(|service| done.saturating_sub(service));
        let first_issue = issued.or(last_issue);
        let inserted = row.latency_ns.map(|latency| done.saturating_sub(latency));
        let queued = inserted.or(first_issue).unwrap_or(done);
        let waited = inserted.is_some() && last_issue.is_some();
        self.hold_queued(event, queued, waited);
        if let Some(first) = first_issue {
            self.hold(event, first.max(queued), act::ISSUE, category::ISSUE);
            if let Some(last) = last_issue.filter(|last| *last > first) {
                self.hold(event, last, act::REQUEUE, category::REQUEUE);
                self.hold(event, last, act::ISSUE, category::ISSUE);
            }
        }
        if !self.responses_assumed {
            self.hold(event, done, act::COMPLETE, category::COMPLETE);
        }
    }

    /// The events of a request before its issue: its first bio, the bios that were merged into it,
    /// and if its wait is known, its allocation and insertion.
    fn hold_queued(&mut self, event: &Event, ts: Nanos, waited: bool) {
        let bios = bios(event);
        if event.merges.is_some_and(|merges| merges > 0) {
            self.remarks.note(match bios.len() {
                1 => "merges of requests with fewer sectors than bios omitted",
                _ => "merged bios written as equal parts of their requests, because their sizes are not recorded",
            });
        }
        for (number, bio) in bios.iter().enumerate() {
            self.hold(bio, ts, act::QUEUE, category::QUEUE);
            if number > 0 {
                self.hold(bio, ts, act::BACK_MERGE, category::QUEUE);
            } else if waited {
                self.hold(bio, ts, act::GET_REQUEST, category::QUEUE);
            }
        }
        // A flush bypasses the scheduler.
        if waited && event.op != Op::Flush {
            self.hold(event, ts, act::INSERT, category::QUEUE);
        }
    }

    fn hold(&mut self, event: &Event, ts: Nanos, action: u64, category: u64) {
        let device = self.device(event);
        let bytes = match event.op {
            Op::Flush => 0,
            _ => event.sectors.saturating_mul(SECTOR_BYTES),
        };
        let bytes = u32::try_from(bytes).unwrap_or_else(|_| {
            self.remarks
                .note("lengths above 4 GiB truncated, because blktrace has 32 bits for a length");
            u32::MAX - 511
        });
        if event.op == Op::WriteZeroes {
            self.remarks
                .note("write zeroes written as writes, because blktrace has no bit for them");
        }
        let complete = action == act::COMPLETE;
        let errno = event.error.filter(|_| complete).unwrap_or(0);
        self.held_total += 1;
        let held = Held {
            sector: event
                .sector
                .and_then(|s| u64::try_from(s).ok())
                .unwrap_or(0),
            bytes,
            action: action | (category | categories(event)) << CATEGORY_SHIFT,
            pid: event
                .pid
                .and_then(|p| u32::try_from(p).ok())
                .filter(|_| !complete)
                .unwrap_or(0),
            device,
            error: i16::try_from(errno).map_or(0, |e| (-e) as u16),
            comm: event.comm.filter(|_| !complete).map(Symbol::id),
        };
        self.held.insert((ts, self.held_total), held);
    }

    /// The number of the event's device: from its name, from the system, or assigned by the writer.
    fn device(&mut self, event: &Event) -> u32 {
        let next = MAJOR_LOCAL << 20 | (self.devices.len() as u32 & 0xf_ffff);
        *self.devices.entry(disk(event)).or_insert_with(|| {
            let name = event.pdisk.map_or("", Symbol::as_str);
            device_of(name)
                .or_else(|| system_device(name))
                .unwrap_or(next)
        })
    }

    fn write_first(&mut self) -> std::io::Result<()> {
        let Some(((ts, _), held)) = self.held.pop_first() else {
            return Ok(());
        };
        let ts = match self.written {
            Some(last) if ts < last => {
                self.remarks
                    .note("events of long requests written later than they happened");
                last
            }
            Some(_) => ts,
            None => {
                self.write_clock(ts)?;
                ts
            }
        };
        self.written = Some(ts);
        if let Some(comm) = held.comm.map(Symbol::from_id)
            && self.processes.insert((held.pid, comm))
        {
            self.write_process(ts, &held, comm)?;
        }
        let sequence = self.sequences.entry(held.device).or_default();
        *sequence = sequence.wrapping_add(1);
        let header = Header {
            sequence: *sequence,
            time: time(ts),
            sector: held.sector,
            bytes: held.bytes,
            action: held.action,
            pid: held.pid,
            device: held.device,
            cpu: self.cpu,
            error: held.error,
            payload_bytes: 0,
        };
        self.file.write_all(&Layout::WRITTEN.encode(&header))
    }

    /// Writes a timestamp note: times are those of the wall clock.
    fn write_clock(&mut self, ts: Nanos) -> std::io::Result<()> {
        let wall = time(ts);
        let second = NANOS_PER_SECOND as u64;
        let seconds = u32::try_from(wall / second).unwrap_or(0).to_le_bytes();
        let nanos = ((wall % second) as u32).to_le_bytes();
        self.write_note(ts, note::TIMESTAMP, 0, 0, &[seconds, nanos].concat())
    }

    fn write_process(&mut self, ts: Nanos, held: &Held, comm: Symbol) -> std::io::Result<()> {
        let mut name = [0; COMM_BYTES];
        let bytes = comm.as_str().as_bytes();
        let length = bytes.len().min(COMM_BYTES - 1);
        name[..length].copy_from_slice(&bytes[..length]);
        self.write_note(ts, note::PROCESS, held.pid, held.device, &name)
    }

    fn write_note(
        &mut self,
        ts: Nanos,
        kind: u64,
        pid: u32,
        device: u32,
        payload: &[u8],
    ) -> std::io::Result<()> {
        let header = Header {
            time: time(ts),
            action: kind | category::NOTIFY << CATEGORY_SHIFT,
            pid,
            device,
            cpu: self.cpu,
            payload_bytes: payload.len() as u16,
            ..Header::default()
        };
        self.file.write_all(&Layout::WRITTEN.encode(&header))?;
        self.file.write_all(payload)
    }

    fn finish_file(&mut self) -> std::io::Result<()> {
        while let Some((_, event)) = self.outstanding.pop_first() {
            self.hold_unended(&event);
        }
        while !self.held.is_empty() {
            self.write_first()?;
        }
        self.file.flush()
    }
}

impl TraceWriter for Blktrace {
    fn write(&mut self, batch: &Batch) -> Result<(), TapError> {
        for row in IoEvent::of_batch(batch) {
            self.take(&row).map_err(|error| TapError::File {
                path: self.path.clone(),
                error,
            })?;
        }
        Ok(())
    }

    fn count(&mut self, _counts: Vec<EventCount>) {}

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, TapError> {
        self.finish_file().map_err(|error| TapError::File {
            path: self.path.clone(),
            error,
        })?;
        Ok(self.remarks.lines())
    }
}

/// The bios of a request: parts of equal size, whole blocks of 4 KiB if there are enough. Only the
/// request itself if its bios are not known or would have no sector.
fn bios(event: &Event) -> Vec<Event> {
    let count = 1 + event.merges.unwrap_or(0);
    let (Some(sector), true) = (event.sector, count > 1) else {
        return vec![*event];
    };
    if event.op == Op::Flush || event.sectors < count {
        return vec![*event];
    }
    let is_whole = event.sectors % BLOCK_SECTORS == 0 && event.sectors / BLOCK_SECTORS >= count;
    let unit = if is_whole { BLOCK_SECTORS } else { 1 };
    let units = event.sectors / unit;
    let edge = |number: i64| sector + unit * (units * number / count);
    let part = |number: i64| Event {
        sector: Some(edge(number)),
        sectors: edge(number + 1) - edge(number),
        ..*event
    };
    (0..count).map(part).collect()
}

fn disk(event: &Event) -> Disk {
    [event.vm, event.vdisk, event.pdisk].map(|name| name.map_or(0, Symbol::id))
}

/// The system's device number of a device file.
fn system_device(name: &str) -> Option<u32> {
    let metadata = std::fs::metadata(name)
        .ok()
        .filter(|m| m.file_type().is_block_device())?;
    let device = metadata.rdev();
    Some(libc::major(device) << 20 | libc::minor(device))
}

/// The format cannot represent times before 1970.
fn time(ts: Nanos) -> u64 {
    u64::try_from(ts).unwrap_or(0)
}

/// The categories of an operation and its flags.
fn categories(event: &Event) -> u64 {
    let op = match event.op {
        Op::Read => category::READ,
        Op::Write | Op::WriteZeroes => category::WRITE,
        Op::Flush => category::FLUSH,
        Op::Discard => category::DISCARD | category::WRITE,
    };
    let flags = event.flags.map_or("", Symbol::as_str).chars();
    let flags = flags.map(|letter| match letter {
        'F' => category::FUA,
        'A' => category::AHEAD,
        'S' => category::SYNC,
        'M' => category::META,
        _ => 0,
    });
    op | flags.fold(0, |all, bit| all | bit)
}
