//! Reads blktrace files: one per CPU, merged by timestamp.
//!
//! The kernel numbers the events of a device and CPU as it stores them; a missing number is an
//! event that was lost before it reached the file. This does not apply to a dump of `blkparse -d`:
//! with `-a` blkparse omits events. A dump is recognised ([`Beginning`]) by its times, which are
//! relative to the first event, while its notes, which precede the events, have the kernel's times.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use weir_model::{Nanos, Op, Symbol};

use super::super::Faults;
use super::super::block::{Action, BlockAction};
use super::super::record::{Extent, Reader, TraceRecord, What, name};
use super::super::source::{Input, WINDOW_BYTES};
use super::layout::{
    CATEGORY_SHIFT, HEADER_BYTES_MAX, Header, Layout, act, category, device_name, note,
};
use crate::TapError;

/// Events per read.
const EVENTS_PER_READ: usize = 1024;

/// Maximum time of a read from a pipe: the events so far are passed on then.
const READ_TIME_MAX: Duration = Duration::from_millis(100);

/// Silence after which the time of the wall clock is no longer expected.
const CLOCK_TIME_MAX: Duration = Duration::from_secs(1);

/// Bytes of a pipe in which the time of the wall clock is expected.
const CLOCK_BYTES: usize = 4096;

/// Maximum number of files of one trace, one per CPU.
const FILES_MAX: usize = 4096;

/// Maximum number of processes whose names are stored.
const PROCESSES_MAX: usize = 1 << 20;

/// Maximum time of an event, 146 years after the clock started: differences of times stay within
/// `i64`.
const TIME_NS_MAX: u64 = 1 << 62;

/// A larger step in an event's sequence number is treated as an invalid number, not as a loss.
const GAP_MAX: u32 = 1 << 20;

/// Whether `head` is the beginning of a blktrace file.
pub fn sniff(head: &[u8]) -> Option<bool> {
    Some(
        head.first_chunk()
            .is_some_and(|magic| Layout::of(*magic).is_some()),
    )
}

/// The files of the trace at `path`: `X.blktrace.3`, or `X` for all `X.blktrace.N`. Empty if there
/// are none.
pub fn beside(path: &Path) -> Vec<PathBuf> {
    let Some(file_name) = path.file_name().and_then(|n| n.to_str()) else {
        return Vec::new();
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let prefix = match file_name.rsplit_once('.') {
        Some((stem, cpu)) if is_number(cpu) && stem.ends_with(".blktrace") => format!("{stem}."),
        _ if path.exists() => return Vec::new(),
        _ => format!("{file_name}.blktrace."),
    };
    let directory = path.parent().filter(|p| !p.as_os_str().is_empty());
    let Ok(entries) = std::fs::read_dir(directory.unwrap_or(Path::new("."))) else {
        return Vec::new();
    };
    let mut files: Vec<(u64, PathBuf)> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let entry_name = entry.file_name();
            let cpu = entry_name.to_str()?.strip_prefix(&prefix)?;
            let cpu = cpu.parse().ok().filter(|_| is_number(cpu))?;
            Some((cpu, path.with_file_name(&entry_name)))
        })
        .collect();
    files.sort();
    files
        .into_iter()
        .map(|(_, path)| path)
        .take(FILES_MAX)
        .collect()
}

/// Reads a trace: the file, and those of the other CPUs in the same folder.
///
/// # Errors
/// If a file cannot be opened.
pub fn open(input: Input) -> Result<Box<dyn Reader>, TapError> {
    let set = beside(input.path());
    let own = set.iter().position(|path| path == input.path());
    let mut inputs = Vec::new();
    for (_, path) in set.into_iter().enumerate().filter(|(i, _)| own != Some(*i)) {
        inputs.push(input.open_beside(path)?);
    }
    inputs.insert(own.unwrap_or(0), input);
    let files: Vec<Events> = inputs
        .into_iter()
        .map(Events::new)
        .collect::<Result<_, _>>()?;
    let beginnings = || files.iter().map(|file| &file.beginning);
    let wall_clock = beginnings().find_map(|b| b.wall_clock).unwrap_or(0);
    Ok(Box::new(Blktrace {
        files,
        wall_clock,
        next: None,
        behind: Vec::new(),
        names: Names::default(),
        sequences: HashMap::default(),
    }))
}

struct Blktrace {
    files: Vec<Events>,
    /// Offset from the kernel's time to the wall clock.
    wall_clock: Nanos,
    /// The time of the next event of each file that has one; `None` before the first read.
    next: Option<BinaryHeap<Reverse<(u64, usize)>>>,
    /// The files whose next event is not read yet: pipes whose writers were silent.
    behind: Vec<usize>,
    names: Names,
    /// The last sequence number of each device and CPU.
    sequences: HashMap<(u32, u32), u32, RandomState>,
}

impl Reader for Blktrace {
    fn read(&mut self, out: &mut Vec<TraceRecord>, faults: &mut Faults) -> Result<bool, TapError> {
        if self.next.is_none() {
            let mut next = BinaryHeap::new();
            for (i, file) in self.files.iter_mut().enumerate() {
                if let Some(time) = file.advance(faults)? {
                    next.push(Reverse((time, i)));
                }
            }
            self.next = Some(next);
        }
        let started = Instant::now();
        for _ in 0..EVENTS_PER_READ {
            if !self.catch_up(faults)? || self.is_streamed() && started.elapsed() > READ_TIME_MAX {
                return Ok(true);
            }
            let Some(Reverse((_, i))) = self.next.as_mut().and_then(BinaryHeap::pop) else {
                return Ok(false);
            };
            let file = &mut self.files[i];
            if let Some(event) = file.event.take() {
                match self.names.record(&event, self.wall_clock) {
                    Ok(Decoded::Action(ts, action)) => out.push(TraceRecord {
                        ts,
                        what: What::Action(action.into()),
                    }),
                    Ok(Decoded::Skipped(cause)) => faults.count("skipped", cause, 1),
                    Ok(Decoded::Nothing) => {}
                    Err(reason) => faults.bad_in(&file.path, event.offset, reason)?,
                }
                let missing = gap(&mut self.sequences, &event.header);
                match file.beginning.is_dump {
                    true => faults.count("skipped", "left_out_by_blkparse", missing),
                    false => faults.count("events_lost", "unrecorded", missing),
                }
            }
            self.behind.push(i);
        }
        Ok(true)
    }

    fn is_streamed(&self) -> bool {
        self.files.iter().any(|file| file.input.is_pipe())
    }

    fn progress(&self) -> f64 {
        self.files.iter().map(|f| f.input.progress()).sum::<f64>() / self.files.len() as f64
    }

    fn knows_responses(&self) -> bool {
        true
    }
}

impl Blktrace {
    /// Reads the next event of the files that are behind; false if one has none at present.
    fn catch_up(&mut self, faults: &mut Faults) -> Result<bool, TapError> {
        while let Some(&i) = self.behind.last() {
            let file = &mut self.files[i];
            if file.input.is_silent(HEADER_BYTES_MAX) {
                return Ok(false);
            }
            if let Some(time) = file.advance(faults)? {
                self.next.get_or_insert_default().push(Reverse((time, i)));
            }
            self.behind.pop();
        }
        Ok(true)
    }
}

/// The number of missing events before this one. An event that follows its successor reverses the
/// loss counted there.
fn gap(sequences: &mut HashMap<(u32, u32), u32, RandomState>, header: &Header) -> i64 {
    if header.action >> CATEGORY_SHIFT & category::NOTIFY != 0 || sequences.len() >= PROCESSES_MAX {
        return 0;
    }
    let Some(last) = sequences.get_mut(&(header.device, header.cpu)) else {
        sequences.insert((header.device, header.cpu), header.sequence);
        return 0;
    };
    let ahead = header.sequence.wrapping_sub(*last);
    let behind = last.wrapping_sub(header.sequence);
    if ahead > 0 && ahead < GAP_MAX {
        *last = header.sequence;
        i64::from(ahead) - 1
    } else if behind > 0 && behind < GAP_MAX {
        -1
    } else {
        *last = header.sequence;
        0
    }
}

/// The events of one file.
struct Events {
    path: PathBuf,
    input: Input,
    beginning: Beginning,
    event: Option<RawEvent>,
}

struct RawEvent {
    offset: u64,
    header: Header,
    payload: Vec<u8>,
}

impl Events {
    fn new(mut input: Input) -> Result<Events, TapError> {
        let beginning = match input.is_pipe() {
            true => Beginning::of_pipe(&mut input)?,
            false => Beginning::of(input.peek(WINDOW_BYTES)?),
        };
        Ok(Events {
            path: input.path().into(),
            input,
            beginning,
            event: None,
        })
    }

    /// The end of a file whose last event has only `seen` bytes.
    fn cut_off(
        &mut self,
        faults: &mut Faults,
        offset: u64,
        seen: usize,
    ) -> Result<Option<u64>, TapError> {
        let why = "the file ends within an event";
        faults.bad_in(&self.path, offset, why)?;
        self.input.consume(seen);
        Ok(None)
    }

    /// Reads the next event and returns its time; `None` at the end.
    fn advance(&mut self, faults: &mut Faults) -> Result<Option<u64>, TapError> {
        loop {
            let offset = self.input.offset();
            let head = self.input.peek(HEADER_BYTES_MAX)?;
            if head.is_empty() {
                return Ok(None);
            }
            let layout = head.first_chunk().and_then(|magic| Layout::of(*magic));
            let Some(layout) = layout else {
                faults.bad_in(&self.path, offset, "invalid magic number of an event")?;
                self.resume()?;
                continue;
            };
            let header_bytes = layout.header_bytes();
            if head.len() < header_bytes {
                let seen = head.len();
                return self.cut_off(faults, offset, seen);
            }
            let header = layout.decode(&head[..header_bytes]);
            let event_bytes = header_bytes + usize::from(header.payload_bytes);
            let event = self.input.peek(event_bytes)?;
            if event.len() < event_bytes {
                let seen = event.len();
                return self.cut_off(faults, offset, seen);
            }
            self.event = Some(RawEvent {
                offset,
                header,
                payload: event[header_bytes..].to_vec(),
            });
            self.input.consume(event_bytes);
            return Ok(Some(header.time));
        }
    }

    /// Skips to the next position where an event may start.
    fn resume(&mut self) -> Result<(), TapError> {
        self.input.consume(1);
        loop {
            let part = self.input.peek(WINDOW_BYTES)?;
            let start = part
                .windows(4)
                .position(|w| Layout::of([w[0], w[1], w[2], w[3]]).is_some());
            // The last three bytes may be the start of a magic number.
            let skipped = start.unwrap_or(part.len().saturating_sub(3));
            let at_end = part.len() < 4;
            let skipped = if at_end { part.len() } else { skipped };
            self.input.consume(skipped);
            if start.is_some() || at_end {
                return Ok(());
            }
        }
    }
}

/// The properties of a file that its first events show.
#[derive(Debug, Default)]
struct Beginning {
    /// Offset to the wall clock, if there is a timestamp note.
    wall_clock: Option<Nanos>,
    /// Written by `blkparse -d`.
    is_dump: bool,
    /// It has an event that is not a note.
    has_event: bool,
}

impl Beginning {
    /// The same without waiting for more of a pipe than is needed: until the first event, and the
    /// clock, which precedes it, or silence.
    fn of_pipe(input: &mut Input) -> Result<Beginning, TapError> {
        let mut silence = None;
        loop {
            let seen = input.buffered().len();
            let beginning = Beginning::of(input.buffered());
            let enough = beginning.wall_clock.is_some() || seen >= CLOCK_BYTES;
            let is_whole = beginning.has_event && enough || seen >= WINDOW_BYTES;
            if !is_whole && beginning.has_event && input.is_silent(seen + 1) {
                let started = *silence.get_or_insert_with(Instant::now);
                match started.elapsed() < CLOCK_TIME_MAX {
                    true => continue,
                    false => return Ok(beginning),
                }
            }
            if is_whole || input.peek(seen + 1)?.len() == seen {
                return Ok(beginning);
            }
        }
    }

    fn of(mut head: &[u8]) -> Beginning {
        // The times of the last note before the first event, and of the first event.
        let (mut noted, mut first) = (None, None);
        // The timestamp note: kernel time and wall clock at the same instant.
        let mut stamp: Option<(u64, Nanos)> = None;
        while let Some((header, payload, rest)) = first_of(head) {
            if header.action >> CATEGORY_SHIFT & category::NOTIFY == 0 {
                first = first.or(Some(header.time));
            } else {
                if first.is_none() {
                    noted = Some(header.time);
                }
                let wall = payload.filter(|_| header.action & 0xff == note::TIMESTAMP);
                stamp = stamp.or(wall.map(|wall| (header.time, wall)));
            }
            if stamp.is_some() && first.is_some() {
                break;
            }
            head = rest;
        }
        let is_dump = noted.zip(first).is_some_and(|(note, at)| at < note / 2);
        let wall_clock = stamp
            .filter(|(at, _)| *at <= TIME_NS_MAX)
            // A dump does not record the time of its first event: shortly after tracing began.
            .map(|(at, wall)| if is_dump { wall } else { wall - at as i64 });
        Beginning {
            wall_clock,
            is_dump,
            has_event: first.is_some(),
        }
    }
}

/// The first event of `head`, its payload as a wall-clock time if it has that length, and the bytes
/// after it.
fn first_of(head: &[u8]) -> Option<(Header, Option<Nanos>, &[u8])> {
    let layout = head.first_chunk().and_then(|magic| Layout::of(*magic))?;
    let header = layout.decode(head.get(..layout.header_bytes())?);
    let event_bytes = layout.header_bytes() + usize::from(header.payload_bytes);
    let payload = head.get(layout.header_bytes()..event_bytes)?;
    let wall = (payload.len() >= 8).then(|| {
        let seconds = i64::from(layout.u32(payload, 0));
        seconds * weir_model::NANOS_PER_SECOND + i64::from(layout.u32(payload, 4))
    });
    Some((header, wall, &head[event_bytes..]))
}

/// The content of an event.
enum Decoded {
    Action(Nanos, Action),
    /// An event that is not block I/O, and its kind.
    Skipped(&'static str),
    Nothing,
}

/// The names of processes and devices.
#[derive(Default)]
struct Names {
    processes: HashMap<u32, Symbol, RandomState>,
    devices: HashMap<u32, Symbol, RandomState>,
    flags: HashMap<u64, Option<Symbol>, RandomState>,
}

impl Names {
    fn record(&mut self, event: &RawEvent, wall_clock: Nanos) -> Result<Decoded, String> {
        let header = &event.header;
        let categories = header.action >> CATEGORY_SHIFT;
        let is = |bits: u64| categories & bits != 0;
        if is(category::NOTIFY) {
            self.take_note(event)?;
            return Ok(Decoded::Nothing);
        }
        if is(category::PASSTHROUGH) {
            return Ok(Decoded::Skipped("passthrough"));
        }
        if is(category::DRIVER) || is(category::ZONE_MANAGEMENT) {
            return Ok(Decoded::Skipped("not_block_io"));
        }
        let Some(step) = step(event)? else {
            return Ok(Decoded::Nothing);
        };
        let Some(op) = op(categories, header.bytes) else {
            return Ok(Decoded::Skipped("no_extent"));
        };
        if header.time > TIME_NS_MAX {
            return Err(format!("time {} is out of range", header.time));
        }
        let sector = if op == Op::Flush { 0 } else { header.sector };
        let extent = Extent::of_sectors(sector, u64::from(header.bytes).div_ceil(512))?;
        let action = Action {
            step,
            op,
            device: self.device(header.device)?,
            sector: extent.sector,
            sectors: extent.sectors,
            pid: Some(i64::from(header.pid)),
            comm: self.processes.get(&header.pid).copied(),
            cpu: Some(i64::from(header.cpu)),
            flags: self.flags(categories),
            error: error(header.error),
        };
        Ok(Decoded::Action(header.time as Nanos + wall_clock, action))
    }

    fn take_note(&mut self, event: &RawEvent) -> Result<(), String> {
        if event.header.action & 0xff != note::PROCESS {
            return Ok(());
        }
        let text = event.payload.split(|&b| b == 0).next().unwrap_or_default();
        if self.processes.len() < PROCESSES_MAX {
            let comm = name(&String::from_utf8_lossy(text))?;
            self.processes.insert(event.header.pid, comm);
        }
        Ok(())
    }

    /// The letters of the flags.
    fn flags(&mut self, categories: u64) -> Option<Symbol> {
        let all = FLAGS.iter().fold(0, |all, (bit, _)| all | bit);
        let known = self.flags.entry(categories & all);
        *known.or_insert_with(|| {
            let set = FLAGS.iter().filter(|(bit, _)| categories & bit != 0);
            let text: String = set.map(|(_, letter)| letter).collect();
            (!text.is_empty()).then(|| Symbol::new(&text))
        })
    }

    fn device(&mut self, device: u32) -> Result<Symbol, String> {
        if let Some(symbol) = self.devices.get(&device) {
            return Ok(*symbol);
        }
        let symbol = name(&device_name(device))?;
        self.devices.insert(device, symbol);
        Ok(symbol)
    }
}

/// The step of an event, `None` for those that do not concern a request.
fn step(event: &RawEvent) -> Result<Option<BlockAction>, String> {
    let action = event.header.action & 0xffff;
    Ok(Some(match action & !act::CGROUP {
        act::QUEUE => BlockAction::Queue,
        act::GET_REQUEST | act::INSERT => BlockAction::Insert,
        act::BACK_MERGE => BlockAction::BackMerge,
        act::FRONT_MERGE => BlockAction::FrontMerge,
        act::ISSUE => BlockAction::Issue,
        act::REQUEUE => BlockAction::Requeue,
        act::COMPLETE => BlockAction::Complete,
        act::SPLIT => {
            let skipped = if action & act::CGROUP != 0 { 8 } else { 0 };
            let at = event.payload.get(skipped..).and_then(|p| p.first_chunk());
            let at = at.ok_or("a split without its sector")?;
            let at = u64::from_be_bytes(*at);
            BlockAction::Split(Extent::of_sectors(at, 0)?.sector)
        }
        _ => return Ok(None),
    }))
}

/// The operation of these categories. A flush carries no data: one with data is a write preceded by
/// a flush.
fn op(categories: u64, bytes: u32) -> Option<Op> {
    let is = |bits: u64| categories & bits != 0;
    if is(category::DISCARD) {
        Some(Op::Discard)
    } else if bytes == 0 {
        is(category::FLUSH).then_some(Op::Flush)
    } else if is(category::WRITE) || is(category::ZONE_APPEND) {
        Some(Op::Write)
    } else {
        Some(Op::Read)
    }
}

/// The categories that are flags, with their letters, in blkparse's order.
const FLAGS: [(u64, char); 4] = [
    (category::FUA, 'F'),
    (category::AHEAD, 'A'),
    (category::SYNC, 'S'),
    (category::META, 'M'),
];

/// The errno of an event, positive. The kernel stores it as a negative number.
pub fn error(field: u16) -> Option<i64> {
    let error = i64::from((field as i16).unsigned_abs());
    (error != 0).then_some(error)
}

#[cfg(test)]
mod tests {
    use super::super::super::TraceInput;
    use super::*;

    /// Both versions in both byte orders.
    fn layouts() -> Vec<Layout> {
        let word = |version: u32| super::super::layout::MAGIC | version;
        let magics = [7, 8].map(word).into_iter();
        let magics = magics.flat_map(|magic| [magic.to_le_bytes(), magic.to_be_bytes()]);
        magics.filter_map(Layout::of).collect()
    }

    fn event(sequence: u32, time: u64, action: u64) -> Header {
        Header {
            sequence,
            time,
            sector: 64,
            bytes: 4096,
            action,
            pid: 42,
            device: 8 << 20 | 1,
            cpu: 3,
            ..Header::default()
        }
    }

    fn note(kind: u64, time: u64) -> Header {
        event(0, time, kind | category::NOTIFY << CATEGORY_SHIFT)
    }

    fn read(layout: Layout, events: &[(Header, Vec<u8>)]) -> (Vec<(Nanos, Action)>, Faults) {
        let mut bytes = Vec::new();
        for (header, payload) in events {
            let payload_bytes = payload.len() as u16;
            bytes.extend(layout.encode(&Header {
                payload_bytes,
                ..*header
            }));
            bytes.extend(payload);
        }
        let input = Input::open(&TraceInput::bytes(bytes)).unwrap();
        let mut faults = Faults::new(input.path(), false);
        let mut records = Vec::new();
        open(input)
            .unwrap()
            .read(&mut records, &mut faults)
            .unwrap();
        let actions = records.into_iter().map(|record| match record.what {
            What::Action(action) => (record.ts, *action),
            What::Request(request) => panic!("{request:?}"),
        });
        (actions.collect(), faults)
    }

    #[test]
    fn every_layout_yields_the_same_events() {
        assert_eq!(layouts().len(), 4);
        for layout in layouts() {
            let write = (category::WRITE | category::SYNC | category::FUA) << CATEGORY_SHIFT;
            let clock = |value: u32| match layout.u32(&[1, 0, 0, 0], 0) {
                1 => value.to_le_bytes(),
                _ => value.to_be_bytes(),
            };
            let name = b"fio\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
            let split = [[9; 8].to_vec(), 72u64.to_be_bytes().to_vec()].concat();
            let (actions, faults) = read(
                layout,
                &[
                    (note(note::TIMESTAMP, 1000), [clock(5), clock(7)].concat()),
                    (note(note::PROCESS, 1000), name),
                    (event(1, 1010, act::QUEUE | write), vec![]),
                    (event(2, 1020, act::SPLIT | act::CGROUP | write), split),
                    (event(3, 1030, act::ISSUE | write), vec![]),
                    (
                        event(
                            4,
                            1040,
                            act::ISSUE | category::PASSTHROUGH << CATEGORY_SHIFT,
                        ),
                        vec![1; 16],
                    ),
                ],
            );
            let times: Vec<Nanos> = actions.iter().map(|(ts, _)| ts - 5_000_000_007).collect();
            assert_eq!(times, [10, 20, 30], "the wall clock's");
            let steps: Vec<BlockAction> = actions.iter().map(|(_, a)| a.step).collect();
            assert_eq!(
                steps,
                [
                    BlockAction::Queue,
                    BlockAction::Split(72),
                    BlockAction::Issue
                ]
            );
            let (_, action) = actions[0];
            assert_eq!(
                (action.op, action.sector, action.sectors),
                (Op::Write, 64, 8)
            );
            assert_eq!(action.device, Symbol::new("8,1"));
            assert_eq!((action.pid, action.cpu), (Some(42), Some(3)));
            assert_eq!(action.comm, Some(Symbol::new("fio")));
            assert_eq!(action.flags, Some(Symbol::new("FS")));
            let skipped = faults
                .counts()
                .iter()
                .map(|c| (c.cause, c.total))
                .collect::<Vec<_>>();
            assert_eq!(skipped, [(Some("passthrough"), 1)]);
        }
    }

    #[test]
    fn events_that_were_not_recorded_are_missed() {
        let queue = act::QUEUE | category::READ << CATEGORY_SHIFT;
        let lost = |sequences: &[u32]| {
            let events = sequences.iter().enumerate();
            let events = events.map(|(i, &s)| (event(s, i as u64, queue), vec![]));
            let (_, faults) = read(Layout::WRITTEN, &events.collect::<Vec<_>>());
            faults.counts().iter().map(|c| c.total).sum::<i64>()
        };
        assert_eq!(lost(&[1, 2, 3]), 0);
        assert_eq!(lost(&[1, 2, 7, 8]), 4);
        assert_eq!(lost(&[1, 3, 2, 4]), 0, "out of order is not lost");
        assert_eq!(
            lost(&[1, 0x8000_0000, 0x8000_0001]),
            0,
            "nonsense is not lost"
        );
    }

    #[test]
    fn what_blkparse_omitted_from_a_dump_is_not_missed() {
        let queue = act::QUEUE | category::READ << CATEGORY_SHIFT;
        let clock = [5u32, 7].map(u32::to_le_bytes).concat();
        let counted = |start: u64| {
            let started = 3_600_000_000_000;
            let mut events = vec![
                (note(note::TIMESTAMP, started), clock.clone()),
                (note(note::PROCESS, started + 900), b"fio\0".to_vec()),
            ];
            for (i, sequence) in [1, 2, 7, 8].into_iter().enumerate() {
                events.push((event(sequence, start + i as u64, queue), vec![]));
            }
            let (actions, faults) = read(Layout::WRITTEN, &events);
            let counts = faults.counts();
            let counts: Vec<_> = counts.iter().map(|c| (c.counter, c.total)).collect();
            (actions[0].0, counts)
        };
        let raw = counted(3_600_000_001_000);
        assert_eq!(raw, (5_000_001_007, vec![("events_lost", 4)]));
        // In a dump the times are relative to the first event.
        assert_eq!(counted(0), (5_000_000_007, vec![("skipped", 4)]));
    }
}
