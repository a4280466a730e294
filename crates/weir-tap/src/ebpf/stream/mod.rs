//! [`KernelStream`]: a stream of events that kernel programs emit, described by one table of
//! columns.
//!
//! A stream is a folder with three files, and a line in a list of taps ([`crate::live::TAPS`]):
//! - `NAME.bpf.c`: the programs. They include `stream.bpf.h`, fill in an event and emit it.
//! - `NAME.bpf.o`: the programs, compiled by `cargo xtask bpf`.
//! - `mod.rs`: the [`KernelStream`] with its table of columns and the choice of its probes.
//!
//! Everything else is derived from the table: the declaration of the stream, its [`Capabilities`],
//! selections, sampling and groups in the kernel, rows, and counts of lost events.
//!
//! The life cycle of an event:
//! 1. A program calls `EMIT`. The event is tested by the clauses of the demands; an event that
//!    passes none ends here.
//! 2. It is added to the groups of demands with a fold ([`super::fold`]). If other demands select
//!    it as well, or it has no room there, it is written to the ring of its processor. A full ring
//!    is counted.
//! 3. [`super::rings::Rings`] merges the rings in timestamp order.
//! 4. [`rows::Rows`] converts the events that passed a demand's clauses to its columns.

mod flush;
mod groups;
pub(crate) mod layout;
mod overlays;
pub(super) mod paths;
mod rows;
mod selection;
pub(crate) mod stacks;
mod switch;
pub(crate) mod tap;

pub use stacks::RecordedStack;
pub use switch::StreamSwitch;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use libbpf_rs::{Link, OpenObject, OpenProgramMut, ProgramMut};
use weir_model::capabilities::{Measure, Rate, Select};
use weir_model::{
    Alias, Capabilities, ColumnCapabilities, Declaration, Demand, Field, Schema, SelectionLimits,
    Shape, StreamCapabilities, Symbol, Test, Type, Unit,
};

use self::layout::{
    CLAUSES, COLUMNS_MAX, COUNTERS_MAX, CPU_OFFSET, HEAD_BYTES, LONG_EVENT_BYTES_MAX, Slot, TESTS,
    TEXTS,
};
use super::kernel::Kernel;
use super::programs::Probe;
use super::tap::LiveOptions;
use crate::io_columns::GROUPS;
use crate::{Tap, TapError};

/// A stream of kernel events.
#[derive(Clone, Copy, Debug)]
pub struct KernelStream {
    /// Its name.
    pub name: &'static str,
    /// A description, in a sentence.
    pub doc: &'static str,
    /// The compiled programs.
    pub object: &'static [u8],
    /// Bytes of an event: the size of the structure that the programs emit.
    pub event_bytes: usize,
    /// Its columns, in their order. The first one is the time.
    pub columns: &'static [StreamColumn],
    /// The counters of its programs, each with a cause, in the order of their numbers there.
    pub counters: &'static [(&'static str, &'static str)],
    /// The probes to attach. The error is what the kernel lacks.
    pub probes: ChooseProbes,
    /// The program, of type `syscall`, that emits what the others counted; user space runs it several
    /// times a second. `None` if the others emit.
    pub flush: Option<&'static str>,
}

/// The function that chooses the probes of a stream.
pub type ChooseProbes = fn(&ProbeChoice<'_>) -> Result<Vec<Probe>, String>;

/// What the choice of a stream's probes depends on.
pub struct ProbeChoice<'a> {
    has: &'a dyn Fn(&str) -> bool,
    stream: &'a KernelStream,
    demands: &'a [Demand],
}

impl ProbeChoice<'_> {
    /// True if the kernel has the tracepoint.
    pub fn has(&self, tracepoint: &str) -> bool {
        (self.has)(tracepoint)
    }

    /// Fails with the first tracepoint of `probes` that the kernel does not have.
    pub fn require<'p>(&self, probes: impl IntoIterator<Item = &'p Probe>) -> Result<(), String> {
        let mut probes = probes.into_iter();
        match probes.find(|probe| !self.has(probe.tracepoint)) {
            Some(absent) => Err(absent.tracepoint.into()),
            None => Ok(()),
        }
    }

    /// True if a demand reads the column.
    pub fn reads(&self, column: &str) -> bool {
        self.demands.iter().any(|d| self.stream.reads(d, column))
    }

    /// True if a row with one of these values of the column may pass a demand.
    pub fn admits(&self, column: &str, values: &[&str]) -> bool {
        let at = self.stream.columns.iter().position(|c| c.name == column);
        let passes = |test: &Test| match test {
            Test::In { operand, texts } if Some(operand.column()) == at => {
                texts.iter().any(|text| values.contains(&text.as_str()))
            }
            _ => true,
        };
        let clauses = self.demands.iter().flat_map(|d| &d.predicate.clauses);
        let mut clauses = clauses.map(|clause| clause.tests.iter().all(passes));
        clauses.any(|passes| passes)
    }
}

impl fmt::Debug for ProbeChoice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProbeChoice({} demands)", self.demands.len())
    }
}

/// A stream as its tap reads it.
#[derive(Clone, Debug)]
pub(crate) struct EventStream {
    /// Its name and its columns.
    pub table: EventTable,
    /// Bytes of a record in the rings.
    pub record_bytes: usize,
    /// The counters of its programs, as in [`KernelStream::counters`].
    pub counters: &'static [(&'static str, &'static str)],
    /// Its programs.
    pub programs: Arc<dyn Programs>,
    /// The device of its counts.
    pub device: Option<Symbol>,
}

/// The name of a stream and its columns; the first one is the time.
#[derive(Clone, Debug)]
pub(crate) struct EventTable {
    /// Its name.
    pub name: &'static str,
    /// A description, in a sentence.
    pub doc: &'static str,
    /// Its columns, in their order.
    pub columns: Cow<'static, [StreamColumn]>,
}

/// The kernel programs of a stream.
pub(crate) trait Programs: fmt::Debug + Send + Sync {
    /// The compiled object.
    fn object(&self) -> Cow<'_, [u8]>;

    /// Sets what is particular to the stream before the object is loaded, and returns the probes to
    /// attach.
    fn prepare(
        &self,
        object: &mut OpenObject,
        demands: &[Demand],
        options: &LiveOptions,
    ) -> Result<Vec<StreamProbe>, TapError>;

    /// Attaches the program of a probe.
    fn attach(&self, program: &ProgramMut<'_>) -> libbpf_rs::Result<Vec<Link>>;

    /// The program that emits what the others counted.
    fn flush(&self) -> Option<&'static str> {
        None
    }
}

/// A program of a stream, and what it is attached to.
#[derive(Clone, Debug)]
pub(crate) struct StreamProbe {
    /// The function.
    pub program: &'static str,
    /// The tracepoint, or another probe.
    pub name: &'static str,
}

/// A column of a kernel stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamColumn {
    /// The name.
    pub name: &'static str,
    /// The unit of its numbers.
    pub unit: Unit,
    /// Other names.
    pub aliases: &'static [Alias],
    /// The meaning, in a sentence.
    pub doc: &'static str,
    /// Its values.
    pub value: FieldValue,
    /// The number in an event that stands for NULL.
    pub null: Option<u64>,
    /// The kernel selects by it.
    pub select: bool,
    /// The kernel samples by it.
    pub sample: bool,
    /// The kernel groups by it.
    pub group: bool,
    /// The kernel keeps its values for groups.
    pub measure: bool,
}

/// The source of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValue {
    /// The time of the event.
    Time,
    /// A number of the event.
    Number(FieldNumber),
    /// The name of a number of the event; without a name it is NULL.
    Name(FieldNumber, &'static [(i64, &'static str)]),
    /// A text of 16 bytes at this offset; empty is NULL.
    Text(usize),
    /// A text of any size; empty is NULL.
    LongText(LongText),
    /// The time of the event minus this number of nanoseconds.
    Before(FieldNumber),
    /// A letter for each bit of a number that is set, in this order.
    Letters(FieldNumber, &'static str),
    /// The `errno` of a status: negative, or, if positive, a status of the block layer; 0 is NULL.
    Status(FieldNumber),
    /// The path with this key, of `file.bpf.h`.
    Path(FieldNumber),
    /// The path in an overlayfs of the file with the first key: that with the second key, or, if
    /// that is 0, the one that the mounts give it; NULL if it is [`FieldValue::NOT_OVERLAID`].
    Opened(FieldNumber, FieldNumber),
    /// The path of the cgroup with this number.
    Cgroup(FieldNumber),
    /// The path of the block device with this number.
    Device(FieldNumber),
    /// The VM of a process in a cgroup; the last number is 1 for a kernel thread.
    Vm(FieldNumber, FieldNumber, FieldNumber),
    /// The VM of the virtual disk, of the process or of its cgroup.
    VmOfDisk(DiskFields),
    /// The virtual disk: the one that a tapdisk serves, or whose image has the request.
    Vdisk(DiskFields),
    /// The sector there: the first number, if a tapdisk serves the disk, or that of the offset in
    /// the file, or that of the sector on the device.
    Vsector(DiskFields, FieldNumber, FieldNumber, FieldNumber),
    /// The VM of the process with this number.
    VmOfProcess(FieldNumber),
    /// The VM of the network device whose name, of 16 bytes, is at this offset.
    VmOfNetDevice(usize),
    /// The functions of a stack, outermost first, separated by `;`.
    Stack(RecordedStack),
    /// The same text in each row.
    Constant(&'static str),
    /// The name of this host.
    Host,
}

/// The numbers of an event that identify the virtual disk of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskFields {
    /// The process.
    pub pid: FieldNumber,
    /// The cgroup.
    pub cgroup: FieldNumber,
    /// 1 for a kernel thread.
    pub by_kernel: FieldNumber,
    /// The key of a disk of the tapdisk that is this process; 0 without one.
    pub disk_key: FieldNumber,
    /// The key of the file's path.
    pub path: FieldNumber,
    /// The device.
    pub device: FieldNumber,
}

impl DiskFields {
    fn all(self) -> [FieldNumber; 6] {
        let DiskFields {
            pid,
            cgroup,
            by_kernel,
            disk_key,
            path,
            device,
        } = self;
        [pid, cgroup, by_kernel, disk_key, path, device]
    }
}

impl FieldValue {
    /// The key of a file that was not opened in an overlayfs.
    pub const NOT_OVERLAID: u64 = 1;

    /// An unsigned number of 1, 2, 4 or 8 bytes at this offset of the event.
    pub const fn unsigned(offset: usize, bytes: usize) -> FieldValue {
        FieldValue::Number(FieldNumber::unsigned(offset, bytes))
    }
}

/// Where a text of more than 16 bytes is in a record. It ends at a NUL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongText {
    /// The offset of its first byte, a multiple of 8.
    pub offset: usize,
    /// Its maximum size, a multiple of 8.
    pub bytes: usize,
    /// The offset of its first 16 bytes in the event, if the kernel tests them.
    pub prefix: Option<usize>,
}

/// Where a number is in an event, and its size. Offsets are those in the structure that the
/// programs emit, with its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldNumber {
    offset: usize,
    bytes: usize,
    is_signed: bool,
}

impl FieldNumber {
    /// The processor that emitted the event.
    pub const CPU: FieldNumber = FieldNumber::unsigned(CPU_OFFSET, 2);

    /// An unsigned number of 1, 2, 4 or 8 bytes.
    pub const fn unsigned(offset: usize, bytes: usize) -> FieldNumber {
        FieldNumber {
            offset,
            bytes,
            is_signed: false,
        }
    }

    /// A signed number of 1, 2, 4 or 8 bytes.
    pub const fn signed(offset: usize, bytes: usize) -> FieldNumber {
        FieldNumber {
            offset,
            bytes,
            is_signed: true,
        }
    }
}

impl StreamColumn {
    /// A column without unit and description that only rows have.
    pub const fn new(name: &'static str, value: FieldValue) -> StreamColumn {
        StreamColumn {
            name,
            unit: match value {
                FieldValue::Time | FieldValue::Before(_) => Unit::Nanoseconds,
                _ => Unit::None,
            },
            aliases: &[],
            doc: "",
            value,
            null: None,
            select: false,
            sample: false,
            group: false,
            measure: false,
        }
    }

    /// The same column in `unit`.
    pub const fn unit(self, unit: Unit) -> StreamColumn {
        StreamColumn { unit, ..self }
    }

    /// The same column with its meaning.
    pub const fn doc(self, doc: &'static str) -> StreamColumn {
        StreamColumn { doc, ..self }
    }

    /// The same column with other names.
    pub const fn aliases(self, aliases: &'static [Alias]) -> StreamColumn {
        StreamColumn { aliases, ..self }
    }

    /// The same column, NULL where the event has this number.
    pub const fn null(self, number: u64) -> StreamColumn {
        StreamColumn {
            null: Some(number),
            ..self
        }
    }

    /// The same column; the kernel selects by it.
    pub const fn tested(self) -> StreamColumn {
        StreamColumn {
            select: true,
            ..self
        }
    }

    /// The same column; the kernel samples by it.
    pub const fn sampled(self) -> StreamColumn {
        StreamColumn {
            sample: true,
            ..self
        }
    }

    /// The same column; the kernel groups by it.
    pub const fn grouped(self) -> StreamColumn {
        StreamColumn {
            group: true,
            ..self
        }
    }

    /// The same column; the kernel keeps its values for groups.
    pub const fn measured(self) -> StreamColumn {
        StreamColumn {
            measure: true,
            ..self
        }
    }

    /// Its type.
    pub fn ty(&self) -> Type {
        match self.value {
            FieldValue::Time | FieldValue::Before(_) => Type::Time,
            FieldValue::Number(_) | FieldValue::Status(_) | FieldValue::Vsector(..) => Type::Int,
            _ => Type::Text,
        }
    }

    fn field(&self) -> Field {
        let field = Field::new(self.name, self.ty())
            .unit(self.unit)
            .doc(self.doc)
            .aliases(self.aliases);
        match self.value {
            FieldValue::Time
            | FieldValue::Before(_)
            | FieldValue::Letters(..)
            | FieldValue::Constant(_) => field,
            FieldValue::Number(_) if self.null.is_none() => field,
            _ => field.nullable(),
        }
    }

    fn capabilities(&self) -> ColumnCapabilities {
        ColumnCapabilities {
            select: match (self.select, self.value) {
                (true, FieldValue::LongText(_)) => Select::AtLeast,
                (true, _) => Select::Exact,
                (false, _) => Select::No,
            },
            sample: self.sample,
            group: self.group,
            measure: match self.measure {
                true => Measure::Kept,
                false => Measure::No,
            },
            product: None,
        }
    }

    /// Where the kernel finds its number, or the words of its text.
    fn slots(&self) -> Vec<Slot> {
        let slot = |number: FieldNumber| Slot {
            offset: number.offset as u16,
            bytes: number.bytes as u8,
            is_signed: number.is_signed,
            null: self.null,
        };
        match self.value {
            FieldValue::Number(number)
            | FieldValue::Name(number, _)
            | FieldValue::Before(number)
            | FieldValue::Letters(number, _)
            | FieldValue::Status(number)
            | FieldValue::Path(number)
            | FieldValue::Cgroup(number)
            | FieldValue::VmOfProcess(number)
            | FieldValue::Device(number) => vec![slot(number)],
            FieldValue::Vm(pid, cgroup, by_kernel) => [pid, cgroup, by_kernel].map(slot).into(),
            FieldValue::VmOfDisk(fields) | FieldValue::Vdisk(fields) => {
                fields.all().map(slot).into()
            }
            FieldValue::Vsector(fields, vsector, offset, sector) => {
                let own = fields.all().into_iter().chain([vsector, offset, sector]);
                own.map(slot).collect()
            }
            FieldValue::Opened(path, opened) => [path, opened].map(slot).into(),
            FieldValue::Text(offset)
            | FieldValue::VmOfNetDevice(offset)
            | FieldValue::LongText(LongText {
                prefix: Some(offset),
                ..
            }) => [0, 8]
                .map(|word| slot(FieldNumber::unsigned(offset + word, 8)))
                .into(),
            FieldValue::Time
            | FieldValue::LongText(_)
            | FieldValue::Stack(_)
            | FieldValue::Constant(_)
            | FieldValue::Host => Vec::new(),
        }
    }

    /// What is wrong with it in an event of this size.
    fn fault(&self, event_bytes: usize) -> Option<&'static str> {
        let number = matches!(self.value, FieldValue::Number(_));
        let named = matches!(
            self.value,
            FieldValue::Name(..) | FieldValue::Text(_) | FieldValue::LongText(_)
        );
        let outside = |slot: &Slot| {
            let (offset, bytes) = (usize::from(slot.offset), usize::from(slot.bytes));
            let aligned = [1, 2, 4, 8].contains(&bytes) && offset.is_multiple_of(bytes);
            let head = offset < HEAD_BYTES && self.slots() != [StreamColumn::cpu_slot()];
            !aligned || head || offset + bytes > event_bytes
        };
        if self.slots().iter().any(outside) {
            return Some("its field is not in the event");
        }
        if (self.sample || self.measure) && !number || self.select && !number && !named {
            return Some("the kernel cannot do that with its values");
        }
        let time = self.ty() == Type::Time;
        (self.group && time).then_some("the kernel does not group by time")
    }

    fn cpu_slot() -> Slot {
        StreamColumn::new("cpu", FieldValue::Number(FieldNumber::CPU)).slots()[0]
    }
}

impl KernelStream {
    /// Its declaration for queries.
    pub fn declaration(&self) -> Declaration {
        self.table().declaration()
    }

    /// Its capabilities.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities {
            streams: vec![self.table().capabilities()],
        }
    }

    fn table(&self) -> EventTable {
        EventTable {
            name: self.name,
            doc: self.doc,
            columns: self.columns.into(),
        }
    }

    /// The first fault of the table of columns, in a sentence.
    pub fn fault(&self) -> Option<String> {
        let size = (HEAD_BYTES..=LONG_EVENT_BYTES_MAX).contains(&self.event_bytes);
        if !size || !self.event_bytes.is_multiple_of(8) {
            return Some(format!(
                "{}: no event has {} bytes",
                self.name, self.event_bytes
            ));
        }
        if self.columns.len() > COLUMNS_MAX || self.counters.len() > COUNTERS_MAX {
            return Some(format!("{}: too many columns or counters", self.name));
        }
        match self.columns.first().map(|column| column.value) {
            Some(FieldValue::Time) => (),
            _ => return Some(format!("{}: the first column is not the time", self.name)),
        }
        let mut columns = self.columns.iter();
        columns.find_map(|column| {
            let fault = column.fault(self.event_bytes)?;
            Some(format!("{}.{}: {fault}", self.name, column.name))
        })
    }

    /// True if a demand reads the column, in rows or as the key of groups.
    pub fn reads(&self, demand: &Demand, column: &str) -> bool {
        let at = self.columns.iter().position(|c| c.name == column);
        at.is_some_and(|at| columns_of(demand) >> at & 1 != 0)
    }

    /// Opens the stream for `demands`: loads and attaches its programs if a row is demanded.
    ///
    /// # Errors
    /// [`TapError::Unavailable`] if the kernel or the user's rights do not suffice.
    ///
    /// # Panics
    /// If the table of columns has a fault.
    pub fn open(
        &self,
        demands: &[Demand],
        options: &LiveOptions,
    ) -> Result<Box<dyn Tap>, TapError> {
        assert_eq!(self.fault(), None, "the table of columns");
        let stream = EventStream {
            table: self.table(),
            record_bytes: self.event_bytes,
            counters: self.counters,
            programs: Arc::new(*self),
            device: None,
        };
        Ok(Box::new(tap::open(&stream, demands, options)?))
    }
}

impl EventTable {
    /// Its declaration for queries.
    pub fn declaration(&self) -> Declaration {
        let fields = self.columns.iter().map(StreamColumn::field).collect();
        Declaration {
            doc: self.doc.into(),
            ..Declaration::new(self.name, Shape::Stream, Schema::new(fields))
        }
    }

    /// Its capabilities.
    pub fn capabilities(&self) -> StreamCapabilities {
        StreamCapabilities {
            declaration: self.declaration(),
            columns: self
                .columns
                .iter()
                .map(StreamColumn::capabilities)
                .collect(),
            limits: SelectionLimits {
                clauses: CLAUSES / 2,
                tests: TESTS,
                texts: TEXTS,
            },
            groups: Ok(GROUPS),
            paired: Err("its rows are no requests and responses".into()),
            rate: Rate::Events,
        }
    }
}

impl Programs for KernelStream {
    fn object(&self) -> Cow<'_, [u8]> {
        self.object.into()
    }

    fn prepare(
        &self,
        object: &mut OpenObject,
        demands: &[Demand],
        options: &LiveOptions,
    ) -> Result<Vec<StreamProbe>, TapError> {
        let kernel = Kernel::running()?;
        let without = |name: &str| options.without.iter().any(|w| w == name);
        let has = |name: &str| kernel.has_tracepoint(name) && !without(name);
        let choice = ProbeChoice {
            has: &has,
            stream: self,
            demands,
        };
        let probes = (self.probes)(&choice).map_err(|lacks| TapError::Unavailable {
            what: format!("stream {}: this kernel has no {lacks}", self.name),
            remedy: "`weir doctor` lists what is missing".into(),
        })?;
        for mut program in object.progs_mut() {
            let mut names = probes.iter().map(|p| p.program).chain(self.flush);
            let wanted = names.any(|name| program.name() == name);
            OpenProgramMut::set_autoload(&mut program, wanted);
        }
        let probe = |probe: &Probe| StreamProbe {
            program: probe.program,
            name: probe.tracepoint,
        };
        Ok(probes.iter().map(probe).collect())
    }

    fn attach(&self, program: &ProgramMut<'_>) -> libbpf_rs::Result<Vec<Link>> {
        Ok(vec![program.attach()?])
    }

    fn flush(&self) -> Option<&'static str> {
        self.flush
    }
}

/// The columns that a demand reads, one bit each: those of its rows, of its groups, and those that
/// it tests.
pub(crate) fn columns_of(demand: &Demand) -> u64 {
    let keys = demand.fold.iter().flat_map(|fold| &fold.keys);
    let calls = demand.fold.iter().flat_map(|fold| &fold.calls);
    let measured = calls.filter_map(|call| call.column.as_ref());
    let clauses = demand.predicate.clauses.iter();
    let tests = clauses.flat_map(|clause| &clause.tests);
    let tested = tests.map(|test| test.operand().column());
    let all = demand.columns.iter().chain(keys).chain(measured).copied();
    all.chain(tested).fold(0, |bits, at| {
        bits | 1_u64.checked_shl(at as u32).unwrap_or(0)
    })
}
