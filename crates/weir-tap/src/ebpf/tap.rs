//! [`BlockTap`]: the live tap: opens, waits, reads, delivers and counts.

mod folds;
mod histograms;
mod lost;
mod shedding;

use self::folds::WrittenExtents;
pub use self::histograms::open_with_histograms;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::{Duration, Instant};

use weir_model::{Demand, Folded, Nanos, Symbol};

use self::histograms::Kept;
use self::lost::Lost;
use self::shedding::Shedding;
use super::attribution::{Attribution, LOOKS_APART, Owner};
use super::cgroups::{Cgroups, Root};
use super::clock;
use super::completeness::CompletenessCheck;
use super::cost::RunTime;
use super::devices::{DeviceChoice, Devices};
use super::explain;
use super::files::{self, FileTables};
use super::flow::{Flow, Flows};
use super::fold::layout::Folding;
use super::fold::{Folds, Plans};
use super::hist::HistOptions;
use super::kernel::RunningKernel;
use super::layout::{Config, Record, Records, count};
use super::needs::Needs;
use super::order;
use super::pace::Pace;
use super::programs::{self, Programs, Sizes};
use super::rings::{self, Rings};
use super::rows::{Delivered, Drained, Names, Place, Rows, host_name};
use super::stream::StreamSwitch;
use super::tables::{self, Known, Removed};
use crate::elevation;
use crate::inventory::InventoryWatch;
use crate::io_columns;
use crate::live::LiveTap;
use crate::{EventCount, FOLDED, RECORDING, Tap, TapError, TapEvent};

/// Options of the live tap.
#[derive(Clone, Debug)]
pub struct LiveOptions {
    /// The devices of a demand that names none.
    pub devices: DeviceChoice,
    /// Maximum size of all rings together, in bytes; each processor gets an equal part.
    pub ring_bytes: usize,
    /// Maximum size of the tables of groups, in bytes; each processor gets an equal part.
    pub fold_bytes: usize,
    /// Maximum number of requests in flight, on the whole host.
    pub requests_max: usize,
    /// Tracepoints that are not used, as if the kernel lacked them.
    pub without: Vec<String>,
    /// The inventory; `None` if no demand needs it.
    pub inventory: Option<Arc<InventoryWatch>>,
    /// Interval of the polls of QEMU's counters.
    pub qmp_every: Duration,
    /// Rows of demands without groups may be omitted while they are written faster than they are
    /// read, so that no event needed by others is lost. Effective only together with demands with
    /// groups.
    pub optional_rows: bool,
    /// Maximum delay of rows if nothing requires an earlier delivery: a longer delay is cheaper.
    pub poll_interval: Duration,
    /// Offset from the monotonic clock to an event's time; by default it is measured when the tap
    /// is opened. Taps that must agree to the nanosecond get the same value.
    pub epoch_offset_ns: Option<Nanos>,
    /// Intervals of groups end at the multiples of a clock that is ahead of events' times by this
    /// much when they begin. It may change at run time; the ends are reported in events' times.
    pub interval_shift_ns: Arc<AtomicI64>,
    /// Which kernel streams other than those of block I/O are attached.
    pub switch: StreamSwitch,
    /// The value of column `host`, in rows and in groups: an agent's name may differ from the
    /// system's.
    pub host: Option<Symbol>,
}

/// The live tap of block I/O.
pub static TAP: LiveTap = LiveTap {
    name: "block",
    streams: &["IO", "IOstream", RECORDING],
    open: |demands, options| Ok(Box::new(open(demands, options)?)),
    capabilities: || io_columns::live_capabilities().clone(),
    needs_inventory: |demand| io_columns::needed([demand]).owner,
};

/// Maximum number of demands of one tap.
pub const DEMANDS_MAX: usize = 64;

/// Interval of the maintenance of devices, cgroups, the census and the table of requests.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);

/// Minimum interval between scans for devices that are caused by an unknown device.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// An entry of this age belongs to a request whose completion was not observed: no driver delays a
/// request that long.
const ENTRY_AGE_MAX_NS: u64 = 300_000_000_000;

/// A live source of the host's block I/O.
#[derive(Debug)]
pub struct BlockTap {
    needs: Needs,
    plans: Plans,
    live: Option<Live>,
    rows: Vec<Rows>,
    names: Names,
    devices: Devices,
    queued: VecDeque<TapEvent>,
    delivered: Vec<Delivered>,
    flows_delivered: Vec<Flow>,
    flows: Option<Flows>,
    attribution: Option<Attribution>,
    owners: Vec<Owner>,
    written_extents: WrittenExtents,
    completeness: CompletenessCheck,
    pace: Pace,
    maintained_at: Instant,
    looked: Instant,
    events: i64,
    expired: i64,
    lost: Lost,
    kept: Option<Kept>,
    shedding: Shedding,
}

/// The objects of the kernel side.
#[derive(Debug)]
struct Live {
    programs: Programs,
    rings: Rings<Records>,
    folds: Option<Folds>,
    sizes: Sizes,
    known_devices: Known,
    known_cgroups: Known,
}

impl Default for LiveOptions {
    fn default() -> LiveOptions {
        LiveOptions {
            devices: DeviceChoice::default(),
            ring_bytes: 64 << 20,
            fold_bytes: 64 << 20,
            requests_max: 1 << 15,
            without: Vec::new(),
            inventory: None,
            qmp_every: Duration::from_secs(1),
            optional_rows: false,
            poll_interval: Duration::from_millis(20),
            epoch_offset_ns: None,
            interval_shift_ns: Arc::default(),
            switch: StreamSwitch::default(),
            host: host_name(),
        }
    }
}

/// Opens the live tap for `demands`: loads and attaches the programs that they need, and none if
/// they need none.
///
/// # Errors
/// [`TapError::Unavailable`] if the kernel or the user's rights do not suffice, with what is
/// missing.
pub fn open(demands: &[Demand], options: &LiveOptions) -> Result<BlockTap, TapError> {
    open_for(demands, options, None, &[])
}

/// Waits for the first scan of the inventory, which runs while programs are loaded.
///
/// # Errors
/// If it fails.
pub fn wait_for_inventory(options: &LiveOptions) -> Result<(), TapError> {
    options
        .inventory
        .as_ref()
        .map_or(Ok(()), |watch| watch.ready())
}

/// As [`open`]. `refused` are the reasons why groups of `demands` are delivered as rows.
fn open_for(
    demands: &[Demand],
    options: &LiveOptions,
    histograms: Option<&HistOptions>,
    refused: &[String],
) -> Result<BlockTap, TapError> {
    if demands.len() > DEMANDS_MAX {
        return Err(TapError::Unavailable {
            what: format!("{} demands exceed the limit of a live tap", demands.len()),
            remedy: format!("use at most {DEMANDS_MAX}, or merge those of one stream"),
        });
    }
    // Histograms have an order of their own, which changes the times of events as well.
    let can_order = histograms.is_none() && order::is_possible(programs::DEVICE_ROWS);
    let mut needs = Needs::of(demands, options.inventory.is_some(), can_order)?;
    if options.optional_rows && demands.iter().any(|d| d.fold.is_some()) {
        needs = needs.with_optional_rows(demands);
    }
    let kernel = RunningKernel::default();
    files::require(&mut needs, demands, &|name| {
        !options.without.iter().any(|w| w == name)
            && kernel.get().is_ok_and(|kernel| kernel.has_tracepoint(name))
    })?;
    let mut sizes = Sizes::new(options, needs.record_bytes())?.for_needs(&needs);
    if let Some(histograms) = histograms {
        needs = needs.with_histograms(histograms);
        sizes.keep_histograms(histograms, &needs)?;
    }
    let devices = Devices::new(
        options.devices.clone(),
        needs.clauses.clone(),
        needs.demand_count(),
        sizes.device_rows,
    );
    let mut plans = Plans::of(demands, &needs);
    plans.declined.extend_from_slice(refused);
    sizes.extents = plans.by_owner();
    let root = Root::find();
    let unified = root.as_ref().is_some_and(|r| r.unified);
    let rows = needs.streams.iter().zip(demands).enumerate();
    let rows =
        rows.map(|(i, (stream, demand))| Rows::new(i, *stream, &demand.columns, plans.flag(i)));
    let now = Instant::now();
    let measured = options.epoch_offset_ns;
    let epoch_offset_ns = measured.unwrap_or_else(clock::epoch_offset_ns);
    let mut tap = BlockTap {
        rows: rows.collect(),
        names: Names::new(Cgroups::new(root), options.host, epoch_offset_ns),
        queued: VecDeque::new(),
        delivered: Vec::new(),
        flows_delivered: Vec::new(),
        flows: needs.flows().then(Flows::default),
        attribution: match &options.inventory {
            Some(watch) if needs.columns.owner => Some(Attribution::new(watch.clone())),
            _ => None,
        },
        owners: Vec::new(),
        completeness: CompletenessCheck::default(),
        pace: Pace::new(now, plans.poll_interval(options.poll_interval)),
        written_extents: WrittenExtents::default(),
        plans,
        maintained_at: now,
        looked: now,
        events: 0,
        expired: 0,
        lost: Lost::new(sizes.device_rows),
        live: None,
        shedding: Shedding::default(),
        kept: histograms.map(|options| Kept::new(options, &sizes)),
        devices,
        needs,
    };
    if !tap.needs.is_any() {
        return Ok(tap);
    }
    // A kernel may reject the programs as too long with groups: then those of the last demand are
    // delivered as rows, and so on.
    let last = tap.plans.plans().map(|plan| plan.demand).max();
    match (tap.go_live(options, sizes, unified, &kernel), last) {
        (Err(why), Some(last)) => {
            let mut demands = demands.to_vec();
            demands[last].fold = None;
            let why = format!("this kernel refused its programs: {why}");
            let refused = [refused, &[why]].concat();
            open_for(&demands, options, histograms, &refused)
        }
        (live, _) => live.map(|()| tap),
    }
}

impl BlockTap {
    /// The kernel's statistics of the programs' runs, while [`super::cost::Statistics`] are on.
    pub fn run_times(&self) -> Vec<RunTime> {
        let live = self.live.as_ref();
        live.map(|l| l.programs.run_times()).unwrap_or_default()
    }

    fn go_live(
        &mut self,
        options: &LiveOptions,
        sizes: Sizes,
        unified: bool,
        kernel: &RunningKernel,
    ) -> Result<(), TapError> {
        let _raised = elevation::raise(elevation::LOADING);
        let kernel = kernel.get()?;
        let without = |name: &str| options.without.iter().any(|w| w == name);
        let has = |name: &str| kernel.has_tracepoint(name) && !without(name);
        let bios = self.devices.wanted_disks().iter().any(|d| d.bio_based);
        let mut probes = programs::probes(&self.needs, &has, bios);
        if self.needs.files() {
            // They find the file before the other programs of the tracepoint.
            probes.insert(0, files::FIND);
            if files::any_stacked(&self.devices) {
                probes.splice(..0, files::STACKED);
            }
        }
        let config = Config::new(
            &self.needs,
            &sizes,
            &kernel.numbers(),
            has(programs::START.tracepoint),
            unified,
        );
        let folding = Folding::new(self.plans.plans(), options.fold_bytes, sizes.processors);
        let mut programs = Programs::load(&probes, &config, &folding, &sizes)?;
        let tables = programs.folds.take();
        self.names.paths = programs.files.as_mut().and_then(|f| f.paths.take());
        let plans = self.plans.plans().cloned().collect();
        let offset_ns = self.names.epoch_offset_ns;
        let shift_ns = options.interval_shift_ns.clone();
        let mut live = Live {
            rings: Rings::new(
                sizes.processors,
                sizes.ring_slots,
                sizes.record_bytes,
                Records::new(sizes.record_bytes, self.needs.order),
            ),
            folds: tables.map(|tables| Folds::begin(plans, tables, offset_ns, shift_ns)),
            known_devices: Known::default(),
            known_cgroups: Known::default(),
            programs,
            sizes,
        };
        if self.needs.cgroups() {
            self.names.cgroups.walk();
            live.write_cgroups(&self.needs, &self.names.cgroups);
        }
        live.write_devices(&self.devices);
        self.live = Some(live);
        self.begin_histograms();
        // No ring is read before it is complete.
        wait_for_inventory(options)?;
        self.write_extents();
        if let Some(live) = &mut self.live {
            live.programs.attach()?;
        }
        self.check_completeness();
        Ok(())
    }

    /// Reads the rings and queues the rows to be delivered.
    fn drain(&mut self) {
        let settled_ns = self.fold_up(rings::settled_ns());
        let Some(live) = &mut self.live else {
            return;
        };
        let programs = &live.programs;
        live.rings
            .drain(&programs.rings, &programs.records, settled_ns);
        let settled = live.rings.settled().len();
        let full = self
            .pace
            .drained(settled, live.rings.holds_back(), live.rings.fill());
        if full {
            self.lost.add(live, self.pace.was_late());
        }
        // Before the rows: a later row would imply that the interval is complete.
        self.emit_folded();
        if settled != 0 {
            self.events += settled as i64;
            self.names.taken_ns = clock::monotonic_ns() as i64 + self.names.epoch_offset_ns;
            self.find_devices();
            self.line_up();
            // The processes of these rows may be known now.
            self.write_extents();
            if self.attribution.as_ref().is_some_and(|a| a.sees_growth()) {
                self.pace.wait_for(LOOKS_APART);
            }
        }
    }

    /// Ensures that the devices of the records are known, if they are in sysfs.
    fn find_devices(&mut self) {
        let Some(live) = &self.live else {
            return;
        };
        let records = &live.rings.store().records;
        let new = |r: &Record| self.devices.get(r.device).is_none();
        // Consecutive records are often of one device.
        let mut last = None;
        let unknown = records.iter().any(|r| {
            let same = last == Some(r.device);
            last = Some(r.device);
            !same && new(r)
        });
        if unknown && self.looked.elapsed() > LOOK_AGAIN {
            self.look_at_devices();
        }
    }

    /// Converts the settled records to rows.
    fn line_up(&mut self) {
        let Some(live) = &self.live else {
            return;
        };
        let records = &live.rings.store().records;
        self.delivered.clear();
        self.flows_delivered.clear();
        let mut places: Vec<(u32, Place)> = Vec::new();
        let mut place = 0;
        for at in live.rings.settled() {
            let record = &records[at as usize];
            if places
                .get(place)
                .is_none_or(|(number, _)| *number != record.device)
            {
                let known = places
                    .iter()
                    .position(|(number, _)| *number == record.device);
                place = known.unwrap_or(places.len());
                if known.is_none() {
                    places.push((record.device, self.devices.place(record.device)));
                }
            }
            if let Some(flows) = &mut self.flows {
                let disk = places[place].1.disk;
                self.flows_delivered.push(flows.see(record, disk));
            }
            let place = place as u32;
            self.delivered.push(Delivered { at, place });
        }
        let places: Vec<Place> = places.into_iter().map(|(_, place)| place).collect();
        if let Some(attribution) = &mut self.attribution {
            let delivered = self.delivered.iter();
            attribution.attribute(
                delivered.map(|t| (t.at, places[t.place as usize].disk)),
                records,
                &live.rings.store().submitters,
                &mut self.names.cgroups,
                &mut self.owners,
            );
        }
        let drained = Drained {
            records,
            submitters: &live.rings.store().submitters,
            relations: &live.rings.store().relations,
            files: &live.rings.store().files,
            delivered: &self.delivered,
            flows: &self.flows_delivered,
            owners: &self.owners,
            places: &places,
        };
        for (demand, rows) in self.rows.iter().enumerate() {
            if let Some(batch) = rows.build(&drained, &mut self.names) {
                self.queued.push_back(TapEvent::Rows { demand, batch });
            }
        }
    }

    /// Finds new devices and marks those that are demanded for the kernel side.
    fn look_at_devices(&mut self) {
        self.looked = Instant::now();
        if !self.devices.refresh().is_empty() {
            self.written_extents.of = None;
            self.write_devices();
        }
    }

    /// Periodic maintenance.
    fn maintain(&mut self) {
        self.maintained_at = Instant::now();
        self.look_at_devices();
        self.check_completeness();
        if self.needs.cgroups() || self.keeps_owners() {
            self.names.cgroups.walk();
        }
        self.write_all_owners();
        let Some(live) = &mut self.live else {
            return;
        };
        if self.needs.cgroups() {
            live.write_cgroups(&self.needs, &self.names.cgroups);
        }
        let before = clock::monotonic_ns().saturating_sub(ENTRY_AGE_MAX_NS);
        let programs = &live.programs;
        let forget = |removed: Removed| {
            if let Some(tables) = &programs.hist {
                tables.forget(removed.subject);
            }
            if let Some((flows, row)) = programs.flows.as_ref().zip(removed.in_flight_of) {
                flows.forget(row);
            }
        };
        self.expired += tables::sweep(&programs.buckets, &programs.entries, before, forget);
        if let Some(flows) = &mut self.flows {
            flows.sweep(before);
        }
        self.lost.add(live, self.pace.was_late());
        let restarted = self.shedding.look(live.programs.sheds());
        if restarted {
            self.flows.iter_mut().for_each(Flows::restart);
            live.programs.stop_shedding();
        }
    }

    fn check_completeness(&mut self) {
        let Some(live) = &self.live else {
            return;
        };
        if live.programs.probes.contains(&programs::COMPLETE) {
            let count = |d: &super::devices::Device, word: usize| live.count(d.index, word);
            let misses = misses(live, true);
            self.completeness
                .take(&self.devices.whole_disks(), &count, misses as u64);
        }
    }

    fn heartbeat(&self) -> TapEvent {
        let watermark = match &self.live {
            Some(live) => live.rings.watermark_ns(),
            None => clock::monotonic_ns(),
        };
        TapEvent::Heartbeat(watermark as i64 + self.names.epoch_offset_ns)
    }
}

impl Tap for BlockTap {
    fn next(&mut self, timeout: Duration) -> Result<TapEvent, TapError> {
        if let Some(event) = self.queued.pop_front() {
            return Ok(event);
        }
        let until = Instant::now() + timeout;
        loop {
            if self.pace.starts_by(until) {
                self.drain();
                if self.maintained_at.elapsed() >= MAINTENANCE_INTERVAL {
                    self.maintain();
                }
            }
            if let Some(event) = self.queued.pop_front() {
                self.queued.push_back(self.heartbeat());
                return Ok(event);
            }
            if Instant::now() >= until {
                return Ok(self.heartbeat());
            }
        }
    }

    fn close(&mut self) -> Vec<(usize, Folded)> {
        self.close_folds()
    }

    fn counts(&mut self) -> Vec<EventCount> {
        self.check_completeness();
        let mut counts = vec![EventCount::of("events_in", None, self.events)];
        let Some(live) = &self.live else {
            return counts;
        };
        let folded = live.folds.as_ref().map_or(0, Folds::unrecorded);
        counts[0].total += folded;
        self.lost.add(live, self.pace.was_late());
        let whole = EventCount::of;
        counts.push(whole("events_late", None, live.rings.late() as i64));
        counts.push(whole("requests_expired", None, self.expired));
        if folded > 0 {
            counts.push(whole(FOLDED, None, folded));
        }
        let discarded = live.folds.as_ref().map_or(0, Folds::discarded);
        if discarded > 0 {
            counts.push(whole("bad_records", None, discarded));
        }
        if self.shedding.pauses() > 0 {
            counts.push(whole("rows_paused", None, self.shedding.pauses()));
        }
        // Skipped runs of the completion's program are counted as unseen once the kernel has
        // counted the request.
        let missed = misses(live, false) + self.completeness.misses_open();
        counts.push(whole("events_lost", Some("recursion"), missed));
        counts.extend(self.completeness.counts());
        counts.extend(live.programs.files.iter().flat_map(FileTables::counts));
        for disk in self.devices.wanted_disks() {
            self.count_disk(live, disk.path, disk.index, &mut counts);
        }
        self.count_disk(live, Symbol::new("unknown"), 0, &mut counts);
        counts
    }

    fn lost(&self) -> i64 {
        self.lost.total
    }

    fn in_flight_since(&mut self) -> Option<Nanos> {
        let programs = &self.live.as_ref()?.programs;
        let first_ns = tables::oldest(&programs.buckets, &programs.entries)?;
        Some(first_ns as Nanos + self.names.epoch_offset_ns)
    }

    fn describe(&self) -> Vec<String> {
        let probes = self.live.as_ref().map(|l| l.programs.probes.as_slice());
        let mut lines = explain::lines(&self.needs, probes.unwrap_or_default(), &self.devices);
        lines.extend(self.plans.lines());
        lines
    }

    fn messages(&self) -> Vec<String> {
        let notice = self.attribution.as_ref().and_then(Attribution::notice);
        let live = self.live.as_ref();
        let sees_bios = |l: &Live| l.programs.probes.contains(&programs::BIO_QUEUE);
        let blind = live.filter(|live| !sees_bios(live));
        let added = blind.and_then(|_| self.devices.added_without_probes());
        let without_room = self.without_room();
        notice
            .into_iter()
            .chain(added)
            .chain(without_room)
            .collect()
    }
}

impl BlockTap {
    /// The nonzero counts of one disk.
    fn count_disk(&self, live: &Live, path: Symbol, row: u32, counts: &mut Vec<EventCount>) {
        let row_usize = row as usize;
        let of = |word| live.count(row, word);
        let all = [
            (
                "events_lost",
                Some("ring_full"),
                self.lost.ring_full[row_usize],
            ),
            (
                "events_lost",
                Some("slow_consumer"),
                self.lost.slow_consumer[row_usize],
            ),
            (
                "requests_untracked",
                Some("table_full"),
                of(count::TABLE_FULL),
            ),
            (
                "requests_untracked",
                Some("begun_unseen"),
                of(count::ORPHANS),
            ),
            (
                "requests_untracked",
                Some("ended_unseen"),
                of(count::REPLACED),
            ),
            ("requests_unordered", None, of(count::UNORDERED)),
            ("requeues", None, of(count::REQUEUES)),
            ("flush_commands", None, of(count::FLUSH_COMMANDS)),
            ("other_commands", None, of(count::OTHER)),
        ];
        let happened = all.into_iter().filter(|(.., total)| *total != 0);
        counts.extend(happened.map(|(counter, cause, total)| EventCount {
            counter,
            cause,
            device: Some(path),
            total,
        }));
    }
}

/// Runs that were skipped because the program was already running on that processor: of the
/// completion's program, or of the others.
fn misses(live: &Live, of_completion: bool) -> i64 {
    let completion = programs::COMPLETE.tracepoint;
    let run_times = live.programs.run_times();
    let runs = run_times.iter();
    let runs = runs.filter(|run| (run.tracepoint == completion) == of_completion);
    runs.map(|run| run.missed as i64).sum()
}

impl Live {
    /// A counter of a device's row, over all processors.
    fn count(&self, row: u32, word: usize) -> i64 {
        tables::sum(&self.programs.counters, &self.sizes, row, word)
    }

    fn write_devices(&mut self, devices: &Devices) {
        let table = &self.programs.devices;
        for device in devices.iter() {
            let marks = devices.marks(device);
            self.known_devices
                .insert(table, u64::from(device.number) + 1, device.index, marks);
        }
    }

    fn write_cgroups(&mut self, needs: &Needs, cgroups: &Cgroups) {
        let table = &self.programs.cgroups;
        for (id, path) in cgroups.iter() {
            self.known_cgroups
                .insert(table, id, 0, needs.cgroup_marks(path));
        }
    }
}
