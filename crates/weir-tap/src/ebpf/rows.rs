//! [`Rows`]: converts records to the rows of one demand, column by column; a column that is not
//! demanded is NULL.

use std::collections::HashMap;
use std::path::Path;

use arrow_array::{Int64Array, UInt32Array};
use arrow_buffer::{ArrowNativeType, NullBuffer, NullBufferBuilder, ScalarBuffer};
use weir_model::{Batch, Column, EventKind, Level, Nanos, Op, SECTOR_BYTES, Symbol};

use foldhash::fast::RandomState;

use super::attribution::Owner;
use super::cgroups::Cgroups;
use super::devices::read_text;
use super::flow::Flow;
use super::layout::{FileOfRecord, Record, Relation, Submitter, UNKNOWN, flag, kind};
use super::needs::Stream;
use super::stream::paths::Paths;
use crate::io_columns::COLUMNS;

/// The result of a drain, ready for conversion to rows.
#[derive(Clone, Copy, Debug)]
pub struct Drained<'a> {
    /// The records, in the order of reading.
    pub records: &'a [Record],
    /// The submitter of each record; empty if not needed.
    pub submitters: &'a [Submitter],
    /// The relation of each record to the others of its disk, if the programs determine it.
    pub relations: &'a [Relation],
    /// The file of each record; empty if not needed.
    pub files: &'a [FileOfRecord],
    /// The records to report, in timestamp order.
    pub delivered: &'a [Delivered],
    /// The relation of each of `delivered` to its disk's requests, including its number; empty if
    /// not needed.
    pub flows: &'a [Flow],
    /// The owner of each of `delivered`; empty if not needed.
    pub owners: &'a [Owner],
    /// The devices to which `delivered` refers.
    pub places: &'a [Place],
}

/// A record to report.
#[derive(Clone, Copy, Debug)]
pub struct Delivered {
    /// Its position among the records.
    pub at: u32,
    /// The position of its device in the list of devices.
    pub place: u32,
}

/// A device as rows name it.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its path.
    pub path: Option<Symbol>,
    /// The number of the whole disk.
    pub disk: u32,
    /// The demands that include it, a bit each.
    pub demands: u64,
}

/// Builds the batches of one demand.
#[derive(Debug)]
pub struct Rows {
    bit: u64,
    /// The flag of records that were folded for this demand instead.
    folded: u8,
    finished_only: bool,
    columns: Vec<Option<Source>>,
}

/// Converts the numbers in records to names and times.
#[derive(Debug)]
pub struct Names {
    /// Paths of cgroups.
    pub cgroups: Cgroups,
    /// Paths of files, if they are needed.
    pub paths: Option<Paths>,
    /// Offset from the kernel's clock to the epoch.
    pub epoch_offset_ns: Nanos,
    /// The current time, since the epoch.
    pub taken_ns: Nanos,
    /// The name of this host.
    host: Option<Symbol>,
    comms: HashMap<[u64; 2], Option<Symbol>, RandomState>,
    flags: [Symbol; 16],
}

/// Maximum number of cached command names.
const COMMS_MAX: usize = 1 << 14;

/// The source of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Ts,
    Kind,
    Op,
    Request,
    Sector,
    Sectors,
    Bytes,
    Vm,
    Vdisk,
    Vsector,
    Pdisk,
    Host,
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
    Interarrival,
    IssueTs,
    File,
    Inode,
}

impl Rows {
    /// A builder for demand number `demand` of `stream`, with the columns whose positions `wanted`
    /// names. Records with one of the flags `folded` are skipped.
    pub fn new(demand: usize, stream: Stream, wanted: &[usize], folded: u8) -> Rows {
        let own = COLUMNS[..stream.schema().len()].iter().enumerate();
        let columns = own.map(|(i, column)| column.read.filter(|_| wanted.contains(&i)));
        Rows {
            bit: 1 << demand,
            folded,
            finished_only: stream == Stream::Io,
            columns: columns.collect(),
        }
    }

    /// The demand's rows of `drained`, if there are any.
    pub fn build(&self, drained: &Drained<'_>, names: &mut Names) -> Option<Batch> {
        let wanted = |t: &Delivered| {
            let record = &drained.records[t.at as usize];
            drained.places[t.place as usize].demands & self.bit != 0
                && !(self.finished_only && record.kind == kind::REQUEST)
                && record.flags & self.folded == 0
        };
        let delivered = drained.delivered.iter().enumerate();
        let rows: Vec<u32> = delivered
            .filter(|(_, t)| wanted(t))
            .map(|(i, _)| i as u32)
            .collect();
        if rows.is_empty() {
            return None;
        }
        let chosen = Chosen {
            drained,
            rows: &rows,
        };
        let offset = names.epoch_offset_ns;
        let ts = chosen.ints(|_, r| r.ts_ns as i64 + offset);
        let columns = self.columns.iter();
        let columns = columns.map(|source| match source {
            None => Column::Nulls(rows.len()),
            Some(Source::Ts) => Column::Int(Int64Array::new(ts.clone(), None)),
            Some(source) => source.column(&chosen, names),
        });
        let columns = columns.collect();
        Some(Batch::stream(ts, columns))
    }
}

/// The rows of one batch.
struct Chosen<'a> {
    drained: &'a Drained<'a>,
    /// Positions in `delivered`.
    rows: &'a [u32],
}

impl Source {
    fn column(self, chosen: &Chosen<'_>, names: &mut Names) -> Column {
        let known = |value: u64| (value != UNKNOWN).then_some(value as i64);
        let int = |values| Column::Int(Int64Array::new(values, None));
        let drained = chosen.drained;
        match self {
            Source::Ts | Source::Taken => int(chosen.ints(|_, _| names.taken_ns)),
            Source::Kind => {
                let ids = EventKind::ALL.map(|kind| kind.symbol().id());
                chosen.texts(|_, r| ids[kind_of(r) as usize])
            }
            Source::Op => {
                let ids = Op::ALL.map(|op| op.symbol().id());
                chosen.texts(|_, r| ids[usize::from(r.op)])
            }
            Source::Request => int(chosen.ints(|i, r| match drained.flows.get(i) {
                Some(flow) => flow.number,
                // The kernel side has numbered them.
                None => r.request as i64,
            })),
            Source::Sector => chosen.maybe_ints(|_, r| known(r.sector)),
            Source::Sectors => int(chosen.ints(|_, r| i64::from(r.bytes) / SECTOR_BYTES)),
            Source::Bytes => int(chosen.ints(|_, r| i64::from(r.bytes))),
            Source::Pdisk => chosen.maybe_texts(|i, _| {
                let place = drained.delivered[i].place;
                drained.places[place as usize].path
            }),
            Source::Vm => chosen.owned_texts(Owner::vm),
            Source::Vdisk => chosen.owned_texts(Owner::vdisk),
            Source::Vsector => chosen.maybe_ints(|i, _| {
                let owner = drained.owners.get(i);
                owner.and_then(Owner::vsector)
            }),
            Source::Host => chosen.maybe_texts(|_, _| names.host),
            Source::Level => {
                let id = Level::Block.symbol().id();
                chosen.texts(|_, _| id)
            }
            Source::Pid => chosen.maybe_submitted(|s| (s.pid != 0).then_some(i64::from(s.pid))),
            Source::Comm => chosen.maybe_named(|s| names.comm(s.comm)),
            Source::Cgroup => chosen.maybe_named(|s| names.cgroups.path(s.cgroup)),
            Source::Cpu => chosen.maybe_ints(|_, r| {
                let seen = r.flags & flag::ORPHAN == 0;
                seen.then_some(i64::from(r.cpu))
            }),
            Source::Flags => {
                let ids = names.flags.map(Symbol::id);
                chosen.texts(|_, r| ids[usize::from(r.flags & 15)])
            }
            Source::Error => chosen.maybe_ints(|_, r| errno(r.status)),
            Source::Merges => int(chosen.ints(|_, r| i64::from(r.merges))),
            Source::Wait => chosen.maybe_ints(|_, r| times(r).0),
            Source::Service => chosen.maybe_ints(|_, r| times(r).1),
            Source::Latency => chosen.maybe_ints(|_, r| times(r).2),
            Source::InFlight => chosen.maybe_ints(|i, _| chosen.relation(i).in_flight),
            Source::Seek => chosen.maybe_ints(|i, _| chosen.relation(i).seek),
            Source::Interarrival => chosen.maybe_ints(|i, _| chosen.relation(i).interarrival_ns),
            Source::IssueTs => chosen.maybe_ints(|_, r| issue_ts(r, names.epoch_offset_ns)),
            Source::File => chosen.maybe_texts(|i, _| {
                let file = chosen.file(i)?;
                names.paths.as_mut().and_then(|p| p.path(file.path))
            }),
            Source::Inode => chosen.maybe_ints(|i, _| {
                let file = chosen.file(i).filter(|file| file.inode != 0);
                file.map(|file| file.inode as i64)
            }),
        }
    }
}

impl Chosen<'_> {
    /// The relation of a row to the others of its disk.
    fn relation(&self, delivered: usize) -> Relation {
        let at = self.drained.delivered[delivered].at as usize;
        let found = self.drained.relations.get(at).copied();
        found.unwrap_or_else(|| {
            let flow = self.drained.flows[delivered];
            Relation {
                in_flight: flow.in_flight,
                seek: flow.seek_sectors,
                interarrival_ns: flow.interarrival_ns,
            }
        })
    }

    /// The file of a row.
    fn file(&self, delivered: usize) -> Option<&FileOfRecord> {
        let at = self.drained.delivered[delivered].at as usize;
        self.drained.files.get(at)
    }

    /// Calls `get` with the position and the record of each row.
    fn ints(&self, get: impl Fn(usize, &Record) -> i64) -> ScalarBuffer<i64> {
        let rows = self.rows.iter();
        rows.map(|i| get(*i as usize, self.record(*i))).collect()
    }

    fn texts(&self, get: impl Fn(usize, &Record) -> u32) -> Column {
        let rows = self.rows.iter();
        let ids: ScalarBuffer<u32> = rows.map(|i| get(*i as usize, self.record(*i))).collect();
        Column::Text(UInt32Array::new(ids, None))
    }

    fn maybe_ints(&self, mut get: impl FnMut(usize, &Record) -> Option<i64>) -> Column {
        let (values, nulls) = self.gather(|i| get(i as usize, self.record(i)));
        Column::Int(Int64Array::new(values, nulls))
    }

    fn maybe_texts(&self, mut get: impl FnMut(usize, &Record) -> Option<Symbol>) -> Column {
        let (ids, nulls) = self.gather(|i| get(i as usize, self.record(i)).map(Symbol::id));
        Column::Text(UInt32Array::new(ids, nulls))
    }

    /// A name of each row's owner.
    fn owned_texts(&self, get: impl Fn(&Owner) -> Option<Symbol>) -> Column {
        let owners = self.drained.owners;
        let is_known = |row: &u32| get(&owners[*row as usize]).is_some();
        match owners.is_empty() || !self.rows.iter().any(is_known) {
            true => Column::Nulls(self.rows.len()),
            false => self.maybe_texts(|i, _| get(&owners[i])),
        }
    }

    fn maybe_submitted(&self, get: impl Fn(&Submitter) -> Option<i64>) -> Column {
        let (values, nulls) = self.gather(|i| get(self.submitter(i)));
        Column::Int(Int64Array::new(values, nulls))
    }

    fn maybe_named(&self, mut get: impl FnMut(&Submitter) -> Option<Symbol>) -> Column {
        let (ids, nulls) = self.gather(|i| get(self.submitter(i)).map(Symbol::id));
        Column::Text(UInt32Array::new(ids, nulls))
    }

    fn record(&self, row: u32) -> &Record {
        &self.drained.records[self.drained.delivered[row as usize].at as usize]
    }

    fn submitter(&self, row: u32) -> &Submitter {
        &self.drained.submitters[self.drained.delivered[row as usize].at as usize]
    }

    fn gather<V: ArrowNativeType>(
        &self,
        mut get: impl FnMut(u32) -> Option<V>,
    ) -> (ScalarBuffer<V>, Option<NullBuffer>) {
        let mut values = Vec::with_capacity(self.rows.len());
        let mut nulls = NullBufferBuilder::new(self.rows.len());
        for row in self.rows {
            let value = get(*row);
            nulls.append(value.is_some());
            values.push(value.unwrap_or_default());
        }
        (values.into(), nulls.finish())
    }
}

impl Names {
    /// An empty cache with the name of the host only.
    pub fn new(cgroups: Cgroups, host: Option<Symbol>, epoch_offset_ns: Nanos) -> Names {
        Names {
            cgroups,
            paths: None,
            epoch_offset_ns,
            taken_ns: 0,
            host,
            comms: HashMap::default(),
            flags: std::array::from_fn(|bits| Symbol::new(&letters(bits as u8))),
        }
    }

    /// This host's name.
    pub fn host(&self) -> Option<Symbol> {
        self.host
    }

    /// Decodes a command name from the kernel's representation.
    pub fn comm(&mut self, words: [u64; 2]) -> Option<Symbol> {
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

/// The host name of the system; see proc_sys_kernel(5).
pub fn host_name() -> Option<Symbol> {
    let name = read_text(Path::new("/proc/sys/kernel/hostname"))?;
    Symbol::try_new(&name).ok().filter(|_| !name.is_empty())
}

/// Wait, service and latency.
pub fn times(record: &Record) -> (Option<Nanos>, Option<Nanos>, Option<Nanos>) {
    let known = |value: u64| (value != UNKNOWN).then_some(value as i64);
    let (wait, service) = (known(record.wait_ns), known(record.service_ns));
    if record.kind != kind::REQUEST && service.is_none() {
        // A flush, or issue times are not needed.
        return (None, None, wait);
    }
    (wait, service, wait.zip(service).map(|(w, s)| w + s))
}

/// The time at which a finished request was reported as issued: its issue, or, for a flush without
/// data, which is never issued, its submission.
fn issue_ts(record: &Record, epoch_offset_ns: Nanos) -> Option<Nanos> {
    if record.kind == kind::REQUEST {
        return None;
    }
    let since = match times(record) {
        (_, Some(service), _) => Some(service),
        (_, None, latency) if record.op == Op::Flush as u8 => latency,
        _ => None,
    };
    since.map(|since| record.ts_ns as i64 + epoch_offset_ns - since)
}

fn kind_of(record: &Record) -> EventKind {
    match record.kind {
        kind::REQUEST => EventKind::Request,
        kind::RESPONSE => EventKind::Response,
        _ if errno(record.status) == Some(i64::from(libc::EOPNOTSUPP)) => EventKind::Unsupported,
        _ => EventKind::Error,
    }
}

/// The letters of blktrace, in its order.
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

/// `blk_errors` of block/blk-core.c. Numbers from 14 on have different meanings in different
/// kernels and are mapped to EIO.
pub fn errno(status: u16) -> Option<i64> {
    if let negative @ ..0 = status as i16 {
        return Some(-i64::from(negative));
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
