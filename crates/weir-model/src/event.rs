//! I/O events of taps and trace readers, and the table of the columns of `IOstream` and `IO`: name,
//! type, unit, aliases, meaning, how a value is read from an event and stored in one.

mod rows;

use std::sync::OnceLock;

use crate::{Alias, ClosedSet, Field, Nanos, Operand, SECTOR_BYTES, Schema, Symbol, Type, Unit};

use rows::Values;
pub use rows::{EventBatch, IoBatch, IoRows};

/// The type of an event in `IOstream` (thesis, Table 3.1, `Type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// `Q`: a request was issued.
    Request,
    /// `R`: it was completed.
    Response,
    /// `E`: it failed.
    Error,
    /// `N`: it is not supported.
    Unsupported,
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Op {
    /// `r`
    Read = 0,
    /// `w`
    Write = 1,
    /// `f`: flush the device's volatile cache.
    Flush = 2,
    /// `d`: discard (trim, unmap), secure erase included.
    Discard = 3,
    /// `z`: write zeroes.
    WriteZeroes = 4,
}

/// The level at which a tap observes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Level {
    /// The VM's own requests, before the host maps them.
    Vdisk = 0,
    /// The host's file systems.
    Vfs = 1,
    /// The host's block layer.
    Block = 2,
    /// The block layer of a guest, as an agent in it observes it.
    Guest = 3,
}

impl EventKind {
    /// All kinds.
    pub const ALL: [EventKind; 4] = [
        EventKind::Request,
        EventKind::Response,
        EventKind::Error,
        EventKind::Unsupported,
    ];

    /// `request`, `response`, `error`, `unsupported`.
    pub fn name(self) -> &'static str {
        ["request", "response", "error", "unsupported"][self as usize]
    }

    /// `Q`, `R`, `E`, `N`.
    pub fn as_str(self) -> &'static str {
        ["Q", "R", "E", "N"][self as usize]
    }

    /// The interned letter.
    pub fn symbol(self) -> Symbol {
        static SYMBOLS: OnceLock<[Symbol; 4]> = OnceLock::new();
        SYMBOLS.get_or_init(|| EventKind::ALL.map(|k| Symbol::new(k.as_str())))[self as usize]
    }
}

impl Op {
    /// All operations.
    pub const ALL: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];

    /// `r`, `w`, `f`, `d`, `z`.
    pub fn as_str(self) -> &'static str {
        ["r", "w", "f", "d", "z"][self as usize]
    }

    /// The interned letter.
    pub fn symbol(self) -> Symbol {
        static SYMBOLS: OnceLock<[Symbol; 5]> = OnceLock::new();
        SYMBOLS.get_or_init(|| Op::ALL.map(|k| Symbol::new(k.as_str())))[self as usize]
    }

    /// `read`, `write`, `flush`, `discard`, `write_zeroes`.
    pub fn name(self) -> &'static str {
        ["read", "write", "flush", "discard", "write_zeroes"][self as usize]
    }

    /// The operation for a letter, in either case.
    pub fn from_letter(letter: &str) -> Option<Op> {
        Op::ALL
            .into_iter()
            .find(|op| op.as_str().eq_ignore_ascii_case(letter))
    }
}

impl Level {
    /// All levels.
    pub const ALL: [Level; 4] = [Level::Vdisk, Level::Vfs, Level::Block, Level::Guest];

    /// `vdisk`, `vfs`, `block`, `guest`.
    pub fn as_str(self) -> &'static str {
        ["vdisk", "vfs", "block", "guest"][self as usize]
    }

    /// The interned name.
    pub fn symbol(self) -> Symbol {
        static SYMBOLS: OnceLock<[Symbol; 4]> = OnceLock::new();
        SYMBOLS.get_or_init(|| Level::ALL.map(|k| Symbol::new(k.as_str())))[self as usize]
    }
}

/// One event: a row of `IOstream`. `None` means unknown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// When it happened.
    pub ts: Nanos,
    /// Request, response, error.
    pub kind: EventKind,
    /// The operation.
    pub op: Op,
    /// Pairs a response with its request, unique per disk while in flight.
    pub req_id: i64,
    /// First sector; `None` for a flush.
    pub sector: Option<i64>,
    /// Length in sectors; the remaining part may be less than was requested.
    pub sectors: i64,
    /// The VM's name.
    pub vm: Option<Symbol>,
    /// The disk as the VM sees it.
    pub vdisk: Option<Symbol>,
    /// The device or file on the host.
    pub pdisk: Option<Symbol>,
    /// When the agent's engine received the event.
    pub agent_ts: Option<Nanos>,
    /// When the monitor's engine received the event.
    pub monitor_ts: Option<Nanos>,
    /// The agent that sent it.
    pub host: Option<Symbol>,
    /// The level of the tap.
    pub level: Level,
    /// The submitting process (thread group).
    pub pid: Option<i64>,
    /// Its command name.
    pub comm: Option<Symbol>,
    /// The path of its cgroup.
    pub cgroup: Option<Symbol>,
    /// The processor that submitted it.
    pub cpu: Option<i64>,
    /// Flags of the request, in blktrace's letters: `F` force unit access, `S` sync, `M` metadata,
    /// `A` read-ahead.
    pub flags: Option<Symbol>,
    /// The error as a positive errno; `None` without one.
    pub error: Option<i64>,
    /// The number of further bios merged into the request.
    pub merges: Option<i64>,
    /// First sector on the virtual disk, if `sector` counts on the host's device.
    pub vsector: Option<i64>,
}

impl Event {
    /// An event with the columns that every source knows; the others are unknown.
    pub fn new(
        ts: Nanos,
        kind: EventKind,
        op: Op,
        req_id: i64,
        sector: Option<i64>,
        sectors: i64,
    ) -> Event {
        Event {
            ts,
            kind,
            op,
            req_id,
            sector,
            sectors,
            vm: None,
            vdisk: None,
            pdisk: None,
            agent_ts: None,
            monitor_ts: None,
            host: None,
            level: Level::Block,
            pid: None,
            comm: None,
            cgroup: None,
            cpu: None,
            flags: None,
            error: None,
            merges: None,
            vsector: None,
        }
    }
}

/// One completed request: a row of `IO`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IoEvent {
    /// Its row in `IOstream` at completion; `ts` is the time of completion.
    pub event: Event,
    /// Insert to issue.
    pub wait_ns: Option<Nanos>,
    /// Issue to completion.
    pub service_ns: Option<Nanos>,
    /// Insert to completion: the latency for the submitter.
    pub latency_ns: Option<Nanos>,
    /// Requests of this disk outstanding when it was issued, itself included.
    pub in_flight: Option<i64>,
    /// First sector minus last sector of the disk's previous request: 1 is sequential.
    pub seek_sectors: Option<i64>,
    /// From the issue of the disk's previous request to its issue.
    pub interarrival_ns: Option<Nanos>,
    /// The time of its row `Q` in the stream `IOstream`; `None` if there is none.
    pub issue_ts: Option<Nanos>,
    /// The path of its file.
    pub file: Option<Symbol>,
    /// The number of its file in the file system.
    pub inode: Option<i64>,
}

/// Two streams of the same requests: one has a row for each event, the other one for each completed
/// request, at the instant of its response.
#[derive(Clone, Copy, Debug)]
pub struct PairedStreams {
    /// The stream of events.
    pub events: &'static str,
    /// The stream of completed requests. Its columns are those of the events, and more.
    pub finished: &'static str,
    /// The column with an event's [`EventKind`].
    pub kind: &'static str,
    /// The column with the request's number, the same in its request and its response.
    pub number: &'static str,
    /// The column with an event's time.
    pub time: &'static str,
    /// The column of a completed request with the time of its request.
    pub request_time: &'static str,
    /// Columns of a completed request that are those of the response only.
    pub response_only: &'static [&'static str],
}

/// `IOstream` and `IO`.
pub const IO_PAIRS: PairedStreams = PairedStreams {
    events: "IOstream",
    finished: "IO",
    kind: "type",
    number: "req_id",
    time: "ts",
    request_time: "issue_ts",
    response_only: &["error", "agent_ts", "monitor_ts"],
};

/// A row that has an event: the event itself, or a completed request.
trait HasEvent: 'static {
    fn event(&self) -> &Event;
    fn event_mut(&mut self) -> &mut Event;
}

impl HasEvent for Event {
    fn event(&self) -> &Event {
        self
    }

    fn event_mut(&mut self) -> &mut Event {
        self
    }
}

impl HasEvent for IoEvent {
    fn event(&self) -> &Event {
        &self.event
    }

    fn event_mut(&mut self) -> &mut Event {
        &mut self.event
    }
}

/// How a column's values are read from, and stored in, a row of type `R`.
#[derive(Clone, Copy)]
enum Access<R: 'static> {
    /// A number that follows from other columns, or is the time of the row: it is not stored.
    Derived(&'static dyn Values<R, i64>),
    Int(&'static dyn Values<R, i64>, fn(&mut R, Option<i64>)),
    Text(&'static dyn Values<R, Symbol>, fn(&mut R, Option<Symbol>)),
}

/// Replaces `value` by the value of `all` that `is_wanted` accepts, if there is one.
fn replace<T: Copy>(value: &mut T, all: &[T], is_wanted: impl Fn(&T) -> bool) {
    *value = all.iter().copied().find(is_wanted).unwrap_or(*value);
}

/// The columns of `IOstream`, in order, each with its access to the [`Event`] of a row.
fn event_columns<R: HasEvent>() -> Vec<(Field, Access<R>)> {
    use Access::{Derived, Int, Text};
    use Type as T;
    vec![
        (
            Field::new("ts", T::Time)
                .unit(Unit::Nanoseconds)
                .doc("the time of the event at the tap")
                .aliases(&[Alias::in_unit("BlktapTS", Unit::Microseconds)]),
            Derived(&|e: &R| Some(e.event().ts)),
        ),
        (
            Field::new("type", T::Text)
                .doc("Q request, R response, E error, N not supported")
                .values(ClosedSet::EventKind),
            Text(&|e: &R| Some(e.event().kind.symbol()), |e, v| {
                replace(&mut e.event_mut().kind, &EventKind::ALL, |k| {
                    Some(k.symbol()) == v
                })
            }),
        ),
        (
            Field::new("op", T::Text)
                .doc("r read, w write, f flush, d discard, z write zeroes")
                .values(ClosedSet::Op)
                .aliases(&[Alias::same("IOOp"), Alias::same("IOP")]),
            Text(&|e: &R| Some(e.event().op.symbol()), |e, v| {
                replace(&mut e.event_mut().op, &Op::ALL, |op| Some(op.symbol()) == v)
            }),
        ),
        (
            Field::new("req_id", T::Int)
                .doc(
                    "identifies a request and its response; unique per disk while the request \
                      is in flight",
                )
                .aliases(&[Alias::same("ReqId")]),
            Int(&|e: &R| Some(e.event().req_id), |e, v| {
                e.event_mut().req_id = v.unwrap_or_default()
            }),
        ),
        (
            Field::new("sector", T::Int)
                .unit(Unit::Sectors)
                .nullable()
                .doc("first sector of the request; NULL for a flush"),
            Int(&|e: &R| e.event().sector, |e, v| e.event_mut().sector = v),
        ),
        (
            Field::new("sectors", T::Int)
                .unit(Unit::Sectors)
                .doc("length of the request in sectors of 512 bytes")
                .aliases(&[Alias::same("Size")]),
            Int(&|e: &R| Some(e.event().sectors), |e, v| {
                e.event_mut().sectors = v.unwrap_or_default()
            }),
        ),
        (
            Field::new("bytes", T::Int)
                .unit(Unit::Bytes)
                .doc("length of the request in bytes"),
            Derived(&|e: &R| Some(e.event().sectors * SECTOR_BYTES)),
        ),
        (
            Field::new("vm", T::Text)
                .nullable()
                .doc("name of the virtual machine; NULL if unknown")
                .aliases(&[Alias::same("VMName")]),
            Text(&|e: &R| e.event().vm, |e, v| e.event_mut().vm = v),
        ),
        (
            Field::new("vdisk", T::Text).nullable().doc(
                "name of the disk in the VM, such as \
                        /dev/vda",
            ),
            Text(&|e: &R| e.event().vdisk, |e, v| e.event_mut().vdisk = v),
        ),
        (
            Field::new("pdisk", T::Text)
                .nullable()
                .doc("device or file on the host, such as /dev/sda3 or the path of an image"),
            Text(&|e: &R| e.event().pdisk, |e, v| e.event_mut().pdisk = v),
        ),
        (
            Field::new("agent_ts", T::Time)
                .unit(Unit::Nanoseconds)
                .nullable()
                .doc("the time at which the agent's engine received the event")
                .aliases(&[Alias::in_unit("FtrTS", Unit::Microseconds)]),
            Int(&|e: &R| e.event().agent_ts, |e, v| {
                e.event_mut().agent_ts = v
            }),
        ),
        (
            Field::new("monitor_ts", T::Time)
                .unit(Unit::Nanoseconds)
                .nullable()
                .doc("the time at which the monitor's engine received the event")
                .aliases(&[Alias::in_unit("MtrTS", Unit::Microseconds)]),
            Int(&|e: &R| e.event().monitor_ts, |e, v| {
                e.event_mut().monitor_ts = v
            }),
        ),
        (
            Field::new("host", T::Text)
                .nullable()
                .doc("the agent that sent the event")
                .aliases(&[Alias::same("IP")]),
            Text(&|e: &R| e.event().host, |e, v| e.event_mut().host = v),
        ),
        (
            Field::new("level", T::Text)
                .doc("layer of the tap: vdisk, vfs, block or guest")
                .values(ClosedSet::Level),
            Text(&|e: &R| Some(e.event().level.symbol()), |e, v| {
                replace(&mut e.event_mut().level, &Level::ALL, |l| {
                    Some(l.symbol()) == v
                })
            }),
        ),
        (
            Field::new("pid", T::Int)
                .nullable()
                .doc("process that submitted the request, captured at submission"),
            Int(&|e: &R| e.event().pid, |e, v| e.event_mut().pid = v),
        ),
        (
            Field::new("comm", T::Text)
                .nullable()
                .doc("command name of that process"),
            Text(&|e: &R| e.event().comm, |e, v| e.event_mut().comm = v),
        ),
        (
            Field::new("cgroup", T::Text)
                .nullable()
                .doc("path of the cgroup that owns the request"),
            Text(&|e: &R| e.event().cgroup, |e, v| e.event_mut().cgroup = v),
        ),
        (
            Field::new("cpu", T::Int)
                .nullable()
                .doc("processor on which the request was issued"),
            Int(&|e: &R| e.event().cpu, |e, v| e.event_mut().cpu = v),
        ),
        (
            Field::new("flags", T::Text).nullable().doc(
                "flags of the request, in blktrace's letters: F forced unit access, S sync, \
                      M metadata, A read-ahead",
            ),
            Text(&|e: &R| e.event().flags, |e, v| e.event_mut().flags = v),
        ),
        (
            Field::new("error", T::Int).nullable().doc(
                "errno of a failed request, positive; \
                        NULL for success",
            ),
            Int(&|e: &R| e.event().error, |e, v| e.event_mut().error = v),
        ),
        (
            Field::new("merges", T::Int)
                .nullable()
                .doc("number of further bios that were merged into the request"),
            Int(&|e: &R| e.event().merges, |e, v| e.event_mut().merges = v),
        ),
        (
            Field::new("vsector", T::Int)
                .unit(Unit::Sectors)
                .nullable()
                .doc("first sector on the virtual disk; NULL if unknown"),
            Int(&|e: &R| e.event().vsector, |e, v| e.event_mut().vsector = v),
        ),
    ]
}

/// The columns of `IO`, which begin with those of `IOstream`.
fn io_columns() -> Vec<(Field, Access<IoEvent>)> {
    use Access::{Int, Text};
    let span = |name: &str| {
        Field::new(name, Type::Int)
            .unit(Unit::Nanoseconds)
            .nullable()
    };
    let own = [
        (span("wait").doc("insert to issue: time in the host's queue"), Int(&|e: &IoEvent| e.wait_ns, |e, v| e.wait_ns = v)),
        (span("service").doc("issue to complete: time in the device"), Int(&|e: &IoEvent| e.service_ns, |e, v| e.service_ns = v)),
        (span("latency").doc("insert to complete: the time that the submitter waits"), Int(&|e: &IoEvent| e.latency_ns, |e, v| e.latency_ns = v)),
        (
            Field::new("in_flight", Type::Int)
                .nullable()
                .doc("requests of the disk in flight when this one was issued, including it"),
            Int(&|e: &IoEvent| e.in_flight, |e, v| e.in_flight = v),
        ),
        (
            Field::new("seek", Type::Int)
                .unit(Unit::Sectors)
                .nullable()
                .doc("first sector minus last sector of the disk's previous request; sequential is 1"),
            Int(&|e: &IoEvent| e.seek_sectors, |e, v| e.seek_sectors = v),
        ),
        (
            span("interarrival")
                .doc("from the issue of the disk's previous request to the issue of this one"),
            Int(&|e: &IoEvent| e.interarrival_ns, |e, v| e.interarrival_ns = v),
        ),
        (
            Field::new("issue_ts", Type::Time)
                .unit(Unit::Nanoseconds)
                .nullable()
                .doc("the time of issue (submission for a flush), which is ts of its row Q in \
                      IOstream; NULL without one"),
            Int(&|e: &IoEvent| e.issue_ts, |e, v| e.issue_ts = v),
        ),
        (
            Field::new("file", Type::Text)
                .nullable()
                .doc("the file of the host whose data it has, by its path when it was issued; NULL \
                      without one"),
            Text(&|e: &IoEvent| e.file, |e, v| e.file = v),
        ),
        (
            Field::new("inode", Type::Int)
                .nullable()
                .doc("the number of that file in its file system"),
            Int(&|e: &IoEvent| e.inode, |e, v| e.inode = v),
        ),
    ];
    event_columns().into_iter().chain(own).collect()
}

/// The schema of stream `IOstream`: one row per event (thesis, Table 3.1, in 64 bits).
pub fn iostream_schema() -> Schema {
    schema(event_columns::<Event>())
}

/// The schema of stream `IO`: one row per completed request.
pub fn io_schema() -> Schema {
    schema(io_columns())
}

fn schema<R>(columns: Vec<(Field, Access<R>)>) -> Schema {
    Schema::new(columns.into_iter().map(|(field, _)| field).collect())
}

impl IoEvent {
    /// An event without further times.
    pub fn new(event: Event) -> IoEvent {
        IoEvent {
            event,
            wait_ns: None,
            service_ns: None,
            latency_ns: None,
            in_flight: None,
            seek_sectors: None,
            interarrival_ns: None,
            issue_ts: None,
            file: None,
            inode: None,
        }
    }
}

/// The value of a column of `IO`, as operand. The columns of `IOstream` are at the same positions.
///
/// # Panics
/// When there is no such column.
pub fn value(name: &str) -> Operand {
    Operand::Value(io_schema().index(name))
}

/// The sampling number of a column of `IO`, as operand.
///
/// # Panics
/// When there is no such column.
pub fn sample(name: &str) -> Operand {
    Operand::Sample(io_schema().index(name))
}
