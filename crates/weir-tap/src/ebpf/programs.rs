//! [`Programs`]: loads and attaches the kernel programs that the needs require, and maps the tables
//! shared with them.
//!
//! The object is compiled from `tap.bpf.c` and committed, so that users need no compiler; `cargo
//! xtask bpf` recompiles it. Programs and tables are held by descriptors of this process: when it
//! ends, for any reason, the kernel removes them.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use libbpf_rs::{Link, Object, OpenObject, OpenProgramMut, ProgramMut};

use super::cost::{self, RunTime};
use super::extents::ExtentTables;
use super::files::{self, FileTables};
use super::flow::FlowTables;
use super::fold;
use super::fold::layout::Folding;
use super::hist::{HistOptions, HistTables, Setup};
use super::layout::{self, Config};
use super::needs::Needs;
use super::object::{self, refused};
use super::order::PROCESSORS_MAX;
use super::rings::{self, RING_BYTES};
use super::stream::paths::{Paths, SLOT_BYTES, SLOTS};
use super::tap::LiveOptions;
use crate::TapError;
use crate::shared::Shared;

/// The programs, compiled.
pub static OBJECT: &[u8] = include_bytes!("tap.bpf.o");

/// A program of `tap.bpf.c` and the tracepoint to which it is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The function.
    pub program: &'static str,
    /// The tracepoint.
    pub tracepoint: &'static str,
    /// The effect of its absence.
    pub without: &'static str,
}

impl Probe {
    /// A program, its tracepoint, and the effect of its absence.
    pub const fn new(
        program: &'static str,
        tracepoint: &'static str,
        without: &'static str,
    ) -> Probe {
        Probe {
            program,
            tracepoint,
            without,
        }
    }
}

/// Every program, in the order of a request's life cycle.
pub const PROBES: &[Probe] = &[
    START,
    INSERT,
    ISSUE,
    REQUEUE,
    MERGE,
    COMPLETE,
    BIO_QUEUE,
    BIO_COMPLETE,
];

/// Submitters, and the times of submission.
pub const START: Probe = Probe {
    program: "on_start",
    tracepoint: "block_io_start",
    without: "wait starts at the insertion into an I/O scheduler and is 0 without one; pid and comm are those of \
              the issuing task; flag F is missing; a flush without data has no request row and no latency \
              (kernel 6.5 has this tracepoint)",
};

/// The replacement of [`START`] before 6.5.
pub const INSERT: Probe = Probe {
    program: "on_insert",
    tracepoint: "block_rq_insert",
    without: "on kernels before 6.5, wait is always 0",
};

/// Requests.
pub const ISSUE: Probe = Probe {
    program: "on_issue",
    tracepoint: "block_rq_issue",
    without: "requests and times are missing: only responses are observed",
};

/// Requests that are requeued.
pub const REQUEUE: Probe = Probe {
    program: "on_requeue",
    tracepoint: "block_rq_requeue",
    without: "a request that a driver requeues is reported twice",
};

/// Requests that are merged into others.
pub const MERGE: Probe = Probe {
    program: "on_merge",
    tracepoint: "block_rq_merge",
    without: "a merged request occupies an entry of the table until it is removed",
};

/// Responses.
pub const COMPLETE: Probe = Probe {
    program: "on_complete",
    tracepoint: "block_rq_complete",
    without: "responses and stream IO are missing",
};

/// Bios to devices without requests.
pub const BIO_QUEUE: Probe = Probe {
    program: "on_bio_queue",
    tracepoint: "block_bio_queue",
    without: "devices without requests (dm, md, zram) are not observed",
};

/// Completions of these bios.
pub const BIO_COMPLETE: Probe = Probe {
    program: "on_bio_complete",
    tracepoint: "block_bio_complete",
    without: "devices without requests (dm, md, zram) are not observed",
};

/// The sizes of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Possible processors, including offline ones.
    pub processors: u32,
    /// Bytes of a record.
    pub record_bytes: usize,
    /// Records per processor, a power of two.
    pub ring_slots: u32,
    /// Buckets of the table of requests in flight, a power of two.
    pub buckets: u32,
    /// Rows of counters per processor.
    pub device_rows: u32,
    /// Entries of the tables of devices and of cgroups, a power of two.
    pub known: u32,
    /// Disks of which the programs determine the relations of requests; 1 if they do not.
    pub flows: u32,
    /// True if groups depend on the extents of virtual disks.
    pub extents: bool,
    /// Histograms.
    pub hist: Setup,
}

/// Number of disks that can be counted separately.
pub const DEVICE_ROWS: u32 = 256;

/// Entries of the tables of devices and cgroups, each for four of them.
const KNOWN: u32 = 1 << 10;

impl Sizes {
    /// Sizes for this machine.
    ///
    /// # Errors
    /// If the number of processors is unknown.
    pub fn new(options: &LiveOptions, record_bytes: usize) -> Result<Sizes, TapError> {
        let processors =
            libbpf_rs::num_possible_cpus().map_err(|e| refused("its processors", &e))?;
        let buckets = options
            .requests_max
            .div_ceil(layout::WAYS)
            .clamp(1, 1 << 20);
        Ok(Sizes {
            processors: processors as u32,
            record_bytes,
            ring_slots: rings::ring_slots(options.ring_bytes, processors, record_bytes),
            buckets: buckets.next_power_of_two() as u32,
            device_rows: DEVICE_ROWS,
            known: KNOWN,
            flows: 1,
            extents: false,
            hist: Setup::off(),
        })
    }

    /// The sizes for these needs.
    pub fn for_needs(self, needs: &Needs) -> Sizes {
        Sizes {
            flows: if needs.order { self.device_rows } else { 1 },
            ..self
        }
    }

    /// The sizes with memory for histograms.
    ///
    /// # Errors
    /// On a machine with more processors than the order of a subject can represent.
    pub fn keep_histograms(
        &mut self,
        options: &HistOptions,
        needs: &Needs,
    ) -> Result<(), TapError> {
        if self.processors > PROCESSORS_MAX {
            return Err(TapError::Unavailable {
                what: format!(
                    "{} processors exceed the limit of histograms",
                    self.processors
                ),
                remedy: format!(
                    "histograms support {PROCESSORS_MAX} processors; use single requests instead"
                ),
            });
        }
        let clauses = needs.histogram_clauses();
        self.hist = Setup::new(options, self.processors, clauses, needs.start);
        Ok(())
    }

    /// Size of all tables in bytes.
    pub fn bytes(&self) -> u64 {
        let ring = self.ring_slots as usize * self.record_bytes + RING_BYTES;
        let counters = self.device_rows as usize * layout::COUNTS_BYTES;
        let bucket = layout::BUCKET_BYTES + layout::WAYS * layout::ENTRY_BYTES;
        let known = 2 * self.known as usize * layout::KNOWN_BYTES;
        let processors = self.processors as usize;
        let tap = processors * (ring + counters) + self.buckets as usize * bucket + known;
        let extents = match self.extents {
            true => ExtentTables::bytes(self.device_rows),
            false => 0,
        };
        let flows = FlowTables::bytes(self.flows, self.processors);
        tap as u64 + self.hist.bytes() + flows + extents
    }
}

/// Loaded and attached programs with the shared tables.
#[derive(Debug)]
pub struct Programs {
    /// The records, `processors * ring_slots` of them.
    pub records: Shared,
    /// A head and a tail per processor.
    pub rings: Shared,
    /// The requests in flight.
    pub buckets: Shared,
    /// The stored data of each.
    pub entries: Shared,
    /// Devices and their marks.
    pub devices: Shared,
    /// Cgroups and their marks.
    pub cgroups: Shared,
    /// Counts per processor and device.
    pub counters: Shared,
    /// The tables of groups, if any are folded, until a caller moves them out.
    pub folds: Option<fold::Tables>,
    /// The histograms, where they are kept.
    pub hist: Option<HistTables>,
    /// The relations of requests, where the programs determine them.
    pub flows: Option<FlowTables>,
    /// The extents of virtual disks, where groups depend on them.
    pub extents: Option<ExtentTables>,
    /// The files of requests, where they are found.
    pub files: Option<FileTables>,
    /// Whether the programs are active yet.
    state: Shared,
    /// The attached programs.
    pub probes: Vec<Probe>,
    // Order matters: links are dropped before the object that they belong to.
    links: Vec<Link>,
    object: Object,
}

impl Programs {
    /// Loads the programs that `probes` name, without attaching them.
    ///
    /// # Errors
    /// If the kernel refuses a program, a table or a mapping.
    pub fn load(
        probes: &[Probe],
        config: &Config,
        folding: &Folding,
        sizes: &Sizes,
    ) -> Result<Programs, TapError> {
        let with_files = config.inode != 0;
        let mut object = object::open(if with_files { files::OBJECT } else { OBJECT })?;
        for mut program in object.progs_mut() {
            let wanted = probes.iter().any(|p| program.name() == p.program);
            OpenProgramMut::set_autoload(&mut program, wanted);
        }
        size_tables(&mut object, config, folding, sizes).map_err(|e| refused("a table", &e))?;
        let object = object.load().map_err(|e| refused("the programs", &e))?;
        let records = (sizes.processors * sizes.ring_slots) as usize;
        let known = sizes.known as usize;
        let counters = (sizes.processors * sizes.device_rows) as usize;
        let buckets = sizes.buckets as usize;
        let map =
            |name: &str, bytes: usize, values: usize| object::map(&object, name, bytes, values);
        let processors = sizes.processors as usize;
        let folds = || fold::Tables::map(&map, folding, processors);
        let folds = (!folding.folds.is_empty()).then(folds).transpose()?;
        let hist = match sizes.hist.config.on {
            true => Some(HistTables::map(&sizes.hist, &map)?),
            false => None,
        };
        let files = || {
            Ok(FileTables {
                paths: Some(Paths::new(map("paths", SLOT_BYTES, SLOTS)?)),
                causes: map("untied", files::CAUSES_BYTES, 1)?,
            })
        };
        let files = with_files.then(files).transpose()?;
        let flows = || FlowTables::map(&map, sizes.flows);
        let flows = (config.flow != 0).then(flows).transpose()?;
        let extents = || ExtentTables::map(&map, sizes.device_rows);
        let extents = sizes.extents.then(extents).transpose()?;
        Ok(Programs {
            folds,
            flows,
            extents,
            files,
            records: map("records", sizes.record_bytes, records)?,
            rings: map("rings", RING_BYTES, processors)?,
            buckets: map("buckets", layout::BUCKET_BYTES, buckets)?,
            entries: map("entries", layout::ENTRY_BYTES, buckets * layout::WAYS)?,
            devices: map("devices", layout::KNOWN_BYTES, known)?,
            cgroups: map("cgroups", layout::KNOWN_BYTES, known)?,
            counters: map("counters", layout::COUNTS_BYTES, counters)?,
            hist,
            state: map(".bss", layout::STATE_BYTES, 1)?,
            probes: probes.to_vec(),
            links: Vec::new(),
            object,
        })
    }

    /// Attaches the programs, and then activates all of them at once, so that a request whose start
    /// is observed is also observed at its completion.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn attach(&mut self) -> Result<(), TapError> {
        for probe in &self.probes {
            let program = self.object.progs_mut().find(|p| p.name() == probe.program);
            let program: ProgramMut<'_> = program.expect("the object has every probe's program");
            let attached = program.attach();
            let link = attached.map_err(|e| refused(probe.tracepoint, &e))?;
            self.links.push(link);
        }
        self.state.words()[layout::STATE_LIVE_WORD].store(1, Ordering::Release);
        Ok(())
    }

    /// Histograms are not updated from `ns` of the monotonic clock on.
    pub fn stop_histograms_at(&self, ns: u64) {
        self.state.words()[layout::STATE_HIST_UNTIL_WORD].store(ns, Ordering::Release);
    }

    /// True if optional records are omitted.
    pub fn sheds(&self) -> bool {
        self.state.words()[layout::STATE_SHED_WORD].load(Ordering::Acquire) != 0
    }

    /// Optional records are delivered again.
    pub fn stop_shedding(&self) {
        self.state.words()[layout::STATE_SHED_WORD].store(0, Ordering::Release);
    }

    /// Detaches the programs. The content of the tables is kept.
    pub fn detach(&mut self) {
        self.links.clear();
    }

    /// The kernel's statistics of each program's runs.
    pub fn run_times(&self) -> Vec<RunTime> {
        let of = |probe: &Probe| {
            let program = self.object.progs_mut().find(|p| p.name() == probe.program);
            program.map(|p| cost::run_time(probe.tracepoint, p.as_fd()))
        };
        self.probes.iter().filter_map(of).collect()
    }
}

/// The probes that `needs` requires. `has` tests whether this kernel has a tracepoint; `bios` is
/// whether a demanded device has no requests.
pub fn probes(needs: &Needs, has: &dyn Fn(&str) -> bool, bios: bool) -> Vec<Probe> {
    let mut probes = Vec::new();
    let finished = needs.kinds & super::selection::KINDS_FINISHED != 0;
    if !needs.is_any() {
        return probes;
    }
    if has(START.tracepoint) {
        if needs.start || needs.flush_start {
            probes.push(START);
        }
    } else if needs.start {
        probes.push(INSERT);
    }
    if needs.sees_issue(has(START.tracepoint)) {
        probes.extend([ISSUE, REQUEUE]);
    }
    if needs.start {
        probes.push(MERGE);
    }
    if finished || needs.track {
        probes.push(COMPLETE);
    }
    if bios {
        probes.push(BIO_QUEUE);
        if finished || needs.histograms {
            probes.push(BIO_COMPLETE);
        }
    }
    probes.retain(|p| has(p.tracepoint));
    probes
}

fn size_tables(
    object: &mut OpenObject,
    config: &Config,
    folding: &Folding,
    sizes: &Sizes,
) -> libbpf_rs::Result<()> {
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let entries = match name.as_str() {
            "records" => {
                map.set_value_size(sizes.record_bytes as u32)?;
                sizes.processors * sizes.ring_slots
            }
            "rings" => sizes.processors,
            "buckets" => sizes.buckets,
            "entries" => sizes.buckets * layout::WAYS as u32,
            "devices" | "cgroups" => sizes.known,
            "counters" => sizes.processors * sizes.device_rows,
            _ if folding.size(&name, &mut map, sizes.processors)? => continue,
            _ if name.ends_with(".rodata") => {
                map.set_initial_value(&config.bytes())?;
                continue;
            }
            _ if name.ends_with(".rodata.hist") => {
                map.set_initial_value(&sizes.hist.config.bytes())?;
                continue;
            }
            table => {
                let flows = FlowTables::values(table, sizes.flows, sizes.processors);
                let extents = ExtentTables::values(table, sizes.device_rows, sizes.extents);
                match flows.or(extents).or_else(|| sizes.hist.values(table)) {
                    Some(values) => values,
                    None => continue,
                }
            }
        };
        map.set_max_entries(entries)?;
    }
    Ok(())
}
