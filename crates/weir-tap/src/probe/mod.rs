//! [`ProbeStream`]: a stream of the hits of a probe that a query defines with `CREATE STREAM .. AS
//! PROBE`.
//!
//! The life cycle of a definition:
//! 1. [`ProbeTarget::parse`] reads what it is attached to, and [`resolve`] its fields from the
//!    formats of tracepoints ([`mod@format`]), the kernel's types ([`btf`]) or a program's notes
//!    ([`elf`]).
//! 2. The stream has its columns and capabilities as every kernel stream
//!    ([`crate::ebpf::stream`]), so that the planner moves selections, sampling and groups to it.
//! 3. [`generate`] makes instructions that read the fields in use. They replace the placeholders of
//!    the compiled program `probe.bpf.c`; no compiler is needed where a query runs.
//! 4. The tap of kernel streams loads the program, attaches it and reads its records.
//!
//! A pair of probes has two programs: the first one keeps the fields of the beginning in a table by
//! what both have in common, and the second one emits the event with them.

mod btf;
mod code;
mod elf;
mod format;
mod generate;
mod hit_fields;
pub mod list;

mod pair;
mod resolve;
mod scope;
mod stack;
mod target;
mod timer;
mod usdt;

use std::borrow::Cow;
use std::sync::Arc;

use libbpf_rs::{
    Link, OpenObject, OpenProgramMut, ProgramAttachType, ProgramMut, ProgramType,
    TracepointCategory, UprobeOpts,
};
use rustix::process::geteuid;
use weir_model::{Demand, StreamCapabilities, Symbol, Unit};

use self::code::Code;
use self::elf::UsdtSite;
use self::generate::{BLOCKS, Content, Layout, Origin, PairKeys};
use self::scope::{ProbedFile, Scope};
use crate::ebpf::LiveOptions;
use crate::ebpf::object::refused;
use crate::ebpf::stream::{
    EventStream, EventTable, FieldValue, Programs, StreamColumn, StreamProbe, columns_of, tap,
};
use crate::{Tap, TapError, elevation};

pub use self::resolve::ProbeError;
pub use self::target::{KINDS, ProbeKind, ProbeTarget};

/// The compiled program.
pub(crate) static OBJECT: &[u8] = include_bytes!("probe.bpf.o");

/// The function of a probe.
const PROGRAM: &str = "on_hit";

/// The functions of a pair.
const PAIR: [&str; 2] = ["on_begin", "on_end"];

/// The table of beginnings.
const BEGINNING: &str = "begun";

/// The counters of the programs, as in `enum probe_counter`: the first one of every probe, the
/// others of a pair.
const COUNTERS: &[(&str, &str)] = &[
    ("events_lost", "cpu_share"),
    ("events_lost", "table_full"),
    ("unpaired", "no_end"),
    ("unpaired", "no_begin"),
];

/// The table of the program's constants.
const CONSTANTS: &str = ".rodata.probe";

/// A hundredth of a second.
const BUSY_NS_PER_PERCENT: u32 = 10_000_000;

/// The stream of a probe's hits.
#[derive(Clone, Debug)]
pub struct ProbeStream {
    /// The name of the stream.
    name: &'static str,
    /// Its meaning.
    doc: &'static str,
    columns: Vec<ProbeColumn>,
    /// The probe, or both of a pair.
    attachments: Vec<Attachment>,
    /// What a pair has in common.
    keys: PairKeys,
    /// Whose hits are read.
    scope: Scope,
    /// Maximum number of hits per second and processor.
    hits_max: u64,
    /// Maximum share of a processor's time.
    cpu_percent_max: u8,
}

/// What a program is attached to.
#[derive(Clone, Debug)]
struct Attachment {
    program: &'static str,
    target: ProbeTarget,
    /// The files with a USDT probe or a function of a program.
    files: Vec<ProbedFile>,
}

/// A column of a probe's stream.
#[derive(Clone, Debug)]
struct ProbeColumn {
    name: &'static str,
    doc: &'static str,
    unit: Unit,
    content: Content,
    origin: Origin,
}

impl ProbeStream {
    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its declaration and its capabilities.
    pub fn capabilities(&self) -> StreamCapabilities {
        self.table(|_, column| column.content.anywhere())
            .capabilities()
    }

    /// Whether a demand needs more of processes than their events: their VMs, or the functions in
    /// their stacks.
    pub fn needs_inventory(&self, demand: &Demand) -> bool {
        let read = columns_of(demand);
        let mut columns = self.columns.iter().enumerate();
        columns.any(|(at, column)| {
            let is_read = read >> at & 1 != 0;
            let of_process = matches!(
                column.content,
                Content::Stack(_)
                    | Content::VmOfProcess(_)
                    | Content::VmOfTask
                    | Content::VmOfNetDevice
            );
            is_read && of_process
        })
    }

    /// Attaches the probe for `demands`.
    ///
    /// # Errors
    /// If the kernel or the user's rights do not suffice.
    pub fn open(
        &self,
        demands: &[Demand],
        options: &LiveOptions,
    ) -> Result<Box<dyn Tap>, TapError> {
        let columns = self.columns.iter().map(|c| (c.content, c.origin.clone()));
        let columns: Vec<(Content, Origin)> = columns.collect();
        let layout =
            Layout::new(&columns, &self.keys, demands).map_err(|why| TapError::Unavailable {
                what: format!("stream {}: {why}", self.name),
                remedy: "use fewer or shorter fields".into(),
            })?;
        let stream = EventStream {
            table: self.table(|at, _| layout.values[at]),
            record_bytes: layout.record_bytes,
            counters: match self.attachments.len() {
                1 => &COUNTERS[..1],
                _ => COUNTERS,
            },
            programs: Arc::new(ProbePrograms {
                attachments: self.attachments.clone(),
                code: layout.code,
                beginning_bytes: layout.beginning_bytes as u32,
                event_words: layout.event_words as u32,
                scope: self.scope.clone(),
                hits_max: self.hits_max,
                busy_ns_max: u32::from(self.cpu_percent_max) * BUSY_NS_PER_PERCENT,
            }),
            device: Some(Symbol::new(self.name)),
        };
        let opened = tap::open(&stream, demands, options);
        Ok(Box::new(opened.map_err(|error| self.refused(error))?))
    }

    /// A kernel may refuse programs at functions to root as well.
    fn refused(&self, error: TapError) -> TapError {
        let mut targets = self.attachments.iter().map(|a| &a.target);
        let at_function = targets.any(|target| matches!(target, ProbeTarget::Function { .. }));
        match error {
            TapError::NotPermitted { .. } if at_function && geteuid().is_root() => {
                TapError::Unavailable {
                    what: "this kernel refuses programs at functions (fentry, fexit)".into(),
                    remedy: "use a tracepoint, tp: or tp_btf:".into(),
                }
            }
            error => error,
        }
    }

    fn table(&self, value: impl Fn(usize, &ProbeColumn) -> FieldValue) -> EventTable {
        let column = |(at, column): (usize, &ProbeColumn)| {
            let described = StreamColumn::new(column.name, value(at, column));
            let described = described.unit(column.unit).doc(column.doc);
            match column.content {
                Content::Number { .. } => described.tested().sampled().grouped().measured(),
                Content::Text(bytes) if bytes <= 16 => described.tested().grouped(),
                Content::Text(_) => described.tested(),
                Content::Cgroup => described.grouped(),
                Content::VmOfProcess(_) | Content::VmOfTask | Content::VmOfNetDevice => {
                    described.grouped()
                }
                // Its text exists in user space only.
                Content::Stack(_) => described,
                Content::Head(FieldValue::Number(_)) => described.tested().grouped(),
                Content::Head(FieldValue::Host) => described.grouped(),
                Content::Head(_) | Content::Before => StreamColumn {
                    unit: Unit::Nanoseconds,
                    ..described
                },
            }
        };
        EventTable {
            name: self.name,
            doc: self.doc,
            columns: self.columns.iter().enumerate().map(column).collect(),
        }
    }
}

/// The programs of a probe or a pair.
#[derive(Debug)]
struct ProbePrograms {
    attachments: Vec<Attachment>,
    code: [Code; BLOCKS.len()],
    beginning_bytes: u32,
    event_words: u32,
    scope: Scope,
    hits_max: u64,
    /// Maximum run time per second and processor.
    busy_ns_max: u32,
}

impl Attachment {
    /// Its text.
    fn label(&self) -> &'static str {
        Symbol::new(&self.target.to_string()).as_str()
    }

    /// Sets the type of its program.
    fn prepare(&self, program: &mut OpenProgramMut<'_>) -> Result<(), TapError> {
        let (kind, at, function) = match &self.target {
            ProbeTarget::Tracepoint { .. } => (ProgramType::Tracepoint, None, None),
            ProbeTarget::TypedTracepoint(name) => {
                let at = ProgramAttachType::TraceRawTp;
                (ProgramType::Tracing, Some(at), Some(name))
            }
            ProbeTarget::Function {
                function,
                is_return,
            } => {
                let at = match is_return {
                    true => ProgramAttachType::TraceFexit,
                    false => ProgramAttachType::TraceFentry,
                };
                (ProgramType::Tracing, Some(at), Some(function))
            }
            ProbeTarget::Kprobe { .. } | ProbeTarget::Uprobe { .. } | ProbeTarget::Usdt { .. } => {
                (ProgramType::Kprobe, None, None)
            }
            ProbeTarget::Timer(_) => (ProgramType::PerfEvent, None, None),
        };
        OpenProgramMut::set_prog_type(program, kind);
        if let Some(at) = at {
            OpenProgramMut::set_attach_type(program, at);
        }
        if let Some(function) = function {
            let set = OpenProgramMut::set_attach_target(program, 0, Some(function.clone()));
            set.map_err(|e| refused(self.label(), &e))?;
        }
        Ok(())
    }

    /// Attaches its program.
    fn attach(&self, program: &ProgramMut<'_>, pid: u32) -> libbpf_rs::Result<Vec<Link>> {
        // The breakpoints are in all processes unless one is named.
        let pid = if pid == 0 { -1 } else { pid as i32 };
        let at_site = |file: &str, site: &UsdtSite, cookie: usize, is_return| {
            let options = UprobeOpts {
                ref_ctr_offset: site.semaphore as usize,
                cookie: cookie as u64,
                retprobe: is_return,
                ..UprobeOpts::default()
            };
            program.attach_uprobe_with_opts(pid, file, site.offset as usize, options)
        };
        let files = self.files.iter();
        let sites = files.flat_map(|file| file.sites.iter().map(move |site| (&*file.path, site)));
        let sites = sites.enumerate();
        match &self.target {
            ProbeTarget::Tracepoint { category, name } => {
                let category = TracepointCategory::Custom(category.clone());
                Ok(vec![program.attach_tracepoint(category, name)?])
            }
            ProbeTarget::TypedTracepoint(_) | ProbeTarget::Function { .. } => {
                Ok(vec![program.attach_trace()?])
            }
            ProbeTarget::Kprobe {
                function,
                is_return,
            } => Ok(vec![program.attach_kprobe(*is_return, function)?]),
            ProbeTarget::Uprobe { is_return, .. } => sites
                .map(|(n, (file, site))| at_site(file, site, n, *is_return))
                .collect(),
            ProbeTarget::Usdt { .. } => sites
                .map(|(n, (file, site))| at_site(file, site, n, false))
                .collect(),
            ProbeTarget::Timer(hz) => timer::attach(program, *hz),
        }
    }
}

impl Programs for ProbePrograms {
    fn object(&self) -> Cow<'_, [u8]> {
        let mut object = OBJECT.to_vec();
        for (code, (mark, _)) in self.code.iter().zip(BLOCKS) {
            let blocks = code
                .patch(&mut object, mark)
                .expect("the layout limits the code");
            assert_ne!(blocks, 0, "the compiled program has placeholders");
        }
        object.into()
    }

    fn prepare(
        &self,
        object: &mut OpenObject,
        _: &[Demand],
        _: &LiveOptions,
    ) -> Result<Vec<StreamProbe>, TapError> {
        let cgroup = self.scope.cgroup.as_ref();
        let mut constants = self.hits_max.to_ne_bytes().to_vec();
        constants.extend(cgroup.map_or(0, |cgroup| cgroup.id).to_ne_bytes());
        let level = cgroup.map_or(0, |cgroup| cgroup.level);
        for word in [self.event_words, self.busy_ns_max, self.scope.pid, level] {
            constants.extend(word.to_ne_bytes());
        }
        let wrong = |e| refused("the tables of a probe", &e);
        for mut table in object.maps_mut() {
            if table.name() == CONSTANTS {
                table.set_initial_value(&constants).map_err(wrong)?;
            } else if table.name() == BEGINNING {
                table.set_value_size(self.beginning_bytes).map_err(wrong)?;
                let is_pair = self.attachments.len() > 1;
                table.set_autocreate(is_pair).map_err(wrong)?;
            }
        }
        for mut program in object.progs_mut() {
            let mut own = self.attachments.iter();
            let own = own.find(|attachment| program.name() == attachment.program);
            OpenProgramMut::set_autoload(&mut program, own.is_some());
            if let Some(attachment) = own {
                attachment.prepare(&mut program)?;
            }
        }
        let probe = |attachment: &Attachment| StreamProbe {
            program: attachment.program,
            name: attachment.label(),
        };
        Ok(self.attachments.iter().map(probe).collect())
    }

    fn attach(&self, program: &ProgramMut<'_>) -> libbpf_rs::Result<Vec<Link>> {
        // The files of tracefs are readable by root alone.
        let _raised = elevation::raise(elevation::READING.union(elevation::LOADING));
        let mut own = self.attachments.iter();
        let own = own.find(|attachment| program.name() == attachment.program);
        own.expect("only its programs are attached")
            .attach(program, self.scope.pid)
    }
}
