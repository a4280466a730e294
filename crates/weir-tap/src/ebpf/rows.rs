//! [`Rows`]: turns records into the rows that one demand asked for, column by column; a column that nobody asked for stays NULL.

use std::collections::HashMap;

use arrow_array::{Int64Array, UInt32Array};
use arrow_buffer::{BooleanBuffer, NullBuffer};
use weir_model::{Batch, Column, EventKind, Level, Nanos, Op, SECTOR_BYTES, Symbol};

use super::cgroups::Cgroups;
use super::flow::Flow;
use super::layout::{ERRNO, Record, UNKNOWN, flag, kind};
use super::needs::Stream;

/// A record with what this side adds.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// What the kernel program said.
    pub record: Record,
    /// The device.
    pub pdisk: Option<Symbol>,
    /// The demands that get it, a bit each.
    pub demands: u64,
    /// How it lies among the disk's other requests.
    pub flow: Flow,
}

/// Builds the batches of one demand.
#[derive(Debug)]
pub struct Rows {
    bit: u64,
    finished_only: bool,
    columns: Vec<Option<Source>>,
}

/// Names that come as numbers, and when we took the records in.
#[derive(Debug)]
pub struct Names {
    /// Paths of cgroups.
    pub cgroups: Cgroups,
    /// What to add to the kernel's clock.
    pub epoch_offset_ns: Nanos,
    /// Now, since the epoch.
    pub taken_ns: Nanos,
    comms: HashMap<[u64; 2], Option<Symbol>>,
    flags: [Symbol; 16],
}

/// Most command names that are remembered at a time.
const COMMS_MAX: usize = 1 << 14;

/// Where a column's values come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Ts,
    Kind,
    Op,
    Request,
    Sector,
    Sectors,
    Bytes,
    Pdisk,
    Taken,
    Level,
    Pid,
    Comm,
    Cgroup,
    Cpu,
    Flags,
    Error,
    Merges,
    Wait,
    Service,
    Latency,
    InFlight,
    Seek,
}

/// The columns that the live tap can fill; VM, virtual disk, monitor and host are for others to say.
const SOURCES: &[(&str, Source)] = &[
    ("ts", Source::Ts),
    ("type", Source::Kind),
    ("op", Source::Op),
    ("req_id", Source::Request),
    ("sector", Source::Sector),
    ("sectors", Source::Sectors),
    ("bytes", Source::Bytes),
    ("pdisk", Source::Pdisk),
    ("agent_ts", Source::Taken),
    ("level", Source::Level),
    ("pid", Source::Pid),
    ("comm", Source::Comm),
    ("cgroup", Source::Cgroup),
    ("cpu", Source::Cpu),
    ("flags", Source::Flags),
    ("error", Source::Error),
    ("merges", Source::Merges),
    ("wait", Source::Wait),
    ("service", Source::Service),
    ("latency", Source::Latency),
    ("in_flight", Source::InFlight),
    ("seek", Source::Seek),
];

impl Rows {
    /// A builder for demand number `demand` of `stream`, with the columns whose positions `wanted` names.
    pub fn new(demand: usize, stream: Stream, wanted: &[usize]) -> Rows {
        let source = |name: &str| SOURCES.iter().find(|(n, _)| *n == name).map(|(_, s)| *s);
        let fields = stream.schema().fields;
        let columns = fields.iter().enumerate();
        let columns = columns.map(|(i, f)| wanted.contains(&i).then(|| source(&f.name)).flatten());
        Rows {
            bit: 1 << demand,
            finished_only: stream == Stream::Io,
            columns: columns.collect(),
        }
    }

    /// The demand's rows among `told`, which is in order of time.
    pub fn build(&self, told: &[Told], names: &mut Names) -> Option<Batch> {
        let wanted = |t: &&Told| {
            t.demands & self.bit != 0 && !(self.finished_only && t.record.kind == kind::REQUEST)
        };
        let rows: Vec<&Told> = told.iter().filter(wanted).collect();
        if rows.is_empty() {
            return None;
        }
        let offset = names.epoch_offset_ns;
        let ts: Vec<i64> = rows
            .iter()
            .map(|t| t.record.ts_ns as i64 + offset)
            .collect();
        let columns = self.columns.iter();
        let columns = columns.map(|source| match source {
            None => Column::Nulls(rows.len()),
            Some(Source::Ts) => Column::ints(ts.clone()),
            Some(source) => source.column(&rows, names),
        });
        let columns = columns.collect();
        Some(Batch::stream(ts, columns))
    }
}

impl Source {
    fn column(self, rows: &[&Told], names: &mut Names) -> Column {
        let known = |value: u64| (value != UNKNOWN).then_some(value as i64);
        match self {
            Source::Ts | Source::Taken => ints(rows, |_| names.taken_ns),
            Source::Kind => texts(rows, |t| kind_of(&t.record).symbol()),
            Source::Op => texts(rows, |t| Op::ALL[usize::from(t.record.op)].symbol()),
            Source::Request => ints(rows, |t| request_id(t.record.request)),
            Source::Sector => maybe_ints(rows, |t| known(t.record.sector)),
            Source::Sectors => ints(rows, |t| i64::from(t.record.bytes) / SECTOR_BYTES),
            Source::Bytes => ints(rows, |t| i64::from(t.record.bytes)),
            Source::Pdisk => maybe_texts(rows, |t| t.pdisk),
            Source::Level => texts(rows, |_| Level::Block.symbol()),
            Source::Pid => maybe_ints(rows, |t| {
                (t.record.pid != 0).then_some(i64::from(t.record.pid))
            }),
            Source::Comm => maybe_texts(rows, |t| names.comm(t.record.comm)),
            Source::Cgroup => maybe_texts(rows, |t| names.cgroups.path(t.record.cgroup)),
            Source::Cpu => maybe_ints(rows, |t| {
                let seen = t.record.flags & flag::ORPHAN == 0;
                seen.then_some(i64::from(t.record.cpu))
            }),
            Source::Flags => texts(rows, |t| names.flags[usize::from(t.record.flags & 15)]),
            Source::Error => maybe_ints(rows, |t| errno(t.record.status)),
            Source::Merges => ints(rows, |t| i64::from(t.record.merges)),
            Source::Wait => maybe_ints(rows, |t| times(&t.record).0),
            Source::Service => maybe_ints(rows, |t| times(&t.record).1),
            Source::Latency => maybe_ints(rows, |t| times(&t.record).2),
            Source::InFlight => maybe_ints(rows, |t| t.flow.in_flight),
            Source::Seek => maybe_ints(rows, |t| t.flow.seek_sectors),
        }
    }
}

impl Names {
    /// No names yet.
    pub fn new(cgroups: Cgroups, epoch_offset_ns: Nanos) -> Names {
        Names {
            cgroups,
            epoch_offset_ns,
            taken_ns: 0,
            comms: HashMap::new(),
            flags: std::array::from_fn(|bits| Symbol::new(&letters(bits as u8))),
        }
    }

    fn comm(&mut self, words: [u64; 2]) -> Option<Symbol> {
        if words == [0; 2] {
            return None;
        }
        if self.comms.len() >= COMMS_MAX {
            self.comms.clear();
        }
        *self.comms.entry(words).or_insert_with(|| {
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
            let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
            Symbol::try_new(&String::from_utf8_lossy(&bytes[..end])).ok()
        })
    }
}

/// Wait, service and latency.
pub fn times(record: &Record) -> (Option<Nanos>, Option<Nanos>, Option<Nanos>) {
    let known = |value: u64| (value != UNKNOWN).then_some(value as i64);
    let (wait, service) = (known(record.wait_ns), known(record.service_ns));
    if usize::from(record.op) == Op::Flush as usize && service.is_none() {
        return (None, None, wait);
    }
    (wait, service, wait.zip(service).map(|(w, s)| w + s))
}

fn kind_of(record: &Record) -> EventKind {
    match record.kind {
        kind::REQUEST => EventKind::Request,
        kind::RESPONSE => EventKind::Response,
        _ if errno(record.status) == Some(i64::from(libc::EOPNOTSUPP)) => EventKind::Unsupported,
        _ => EventKind::Error,
    }
}

/// The kernel side names a request by how far it lies below a table of ours, in steps of 8 bytes; modulo the address space that is a
/// positive number.
fn request_id(name: u64) -> i64 {
    const ADDRESS_BITS: u32 = 57;
    ((name.wrapping_neg() & ((1 << ADDRESS_BITS) - 1)) >> 3) as i64
}

/// blktrace's letters in blktrace's order.
fn letters(bits: u8) -> String {
    let letters = [
        (flag::FUA, 'F'),
        (flag::READ_AHEAD, 'A'),
        (flag::SYNC, 'S'),
        (flag::META, 'M'),
    ];
    let set = letters.iter().filter(|(bit, _)| bits & bit != 0);
    set.map(|(_, letter)| letter).collect()
}

/// `blk_errors` of block/blk-core.c. Numbers from 14 on changed their meaning between kernels and count as EIO.
fn errno(status: u16) -> Option<i64> {
    if status & ERRNO != 0 {
        return Some(i64::from(status & !ERRNO));
    }
    let errno = match status {
        0 => return None,
        1 => libc::EOPNOTSUPP,
        2 => libc::ETIMEDOUT,
        3 => libc::ENOSPC,
        4 => libc::ENOLINK,
        5 => libc::EREMOTEIO,
        6 => libc::EBADE,
        7 => libc::ENODATA,
        8 => libc::EILSEQ,
        9 => libc::ENOMEM,
        11 => libc::EREMCHG,
        12 => libc::EAGAIN,
        13 => libc::EBUSY,
        19 => libc::EINVAL,
        _ => libc::EIO,
    };
    Some(i64::from(errno))
}

fn ints(rows: &[&Told], get: impl Fn(&Told) -> i64) -> Column {
    Column::ints(rows.iter().map(|t| get(t)).collect())
}

fn texts(rows: &[&Told], get: impl Fn(&Told) -> Symbol) -> Column {
    let ids: Vec<u32> = rows.iter().map(|t| get(t).id()).collect();
    Column::Text(UInt32Array::new(ids.into(), None))
}

fn maybe_ints(rows: &[&Told], get: impl FnMut(&Told) -> Option<i64>) -> Column {
    let (values, nulls) = gather(rows, get);
    Column::Int(Int64Array::new(values.into(), nulls))
}

fn maybe_texts(rows: &[&Told], mut get: impl FnMut(&Told) -> Option<Symbol>) -> Column {
    let (values, nulls) = gather(rows, |t| get(t).map(Symbol::id));
    Column::Text(UInt32Array::new(values.into(), nulls))
}

fn gather<V: Default>(
    rows: &[&Told],
    mut get: impl FnMut(&Told) -> Option<V>,
) -> (Vec<V>, Option<NullBuffer>) {
    let mut known = Vec::new();
    let mut values = Vec::with_capacity(rows.len());
    for (i, row) in rows.iter().enumerate() {
        let value = get(row);
        if value.is_none() && known.is_empty() {
            known.resize(rows.len(), true);
        }
        if value.is_none() {
            known[i] = false;
        }
        values.push(value.unwrap_or_default());
    }
    let nulls = (!known.is_empty()).then(|| NullBuffer::new(BooleanBuffer::from(known)));
    (values, nulls)
}
