//! [`StreamTap`]: the live tap of a kernel stream: loads its programs, reads, delivers and counts.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libbpf_rs::{Link, Object, OpenObject};
use weir_model::{Demand, Folded};

use super::flush::Flush;
use super::groups::{Groups, Naming};
use super::layout::{COUNTS_BYTES, Config, STATE_BYTES};
use super::paths::{self, Paths};
use super::rows::{Decoder, Events, Rows};
use super::selection::Selection;
use super::stacks::Stacks;
use super::switch::{self, StreamSwitch};
use super::{EventStream, FieldValue, StreamColumn, StreamProbe, columns_of};
use crate::ebpf::attribution::Attribution;
use crate::ebpf::cgroups::{Cgroups, Root};
use crate::ebpf::fold::layout::Folding;
use crate::ebpf::fold::{Folds, Tables, poll_interval};
use crate::ebpf::object::{self, refused};
use crate::ebpf::pace::Pace;
use crate::ebpf::rings::{self, RING_BYTES, Rings};
use crate::ebpf::rows::Names;
use crate::ebpf::tap::wait_for_inventory;
use crate::ebpf::tap::{DEMANDS_MAX, LiveOptions};
use crate::ebpf::{clock, cost};
use crate::inventory::InventoryWatch;
use crate::shared::Shared;
use crate::{EventCount, FOLDED, Tap, TapError, TapEvent, elevation};

/// A live source of one kernel stream.
#[derive(Debug)]
pub struct StreamTap {
    stream: EventStream,
    selection: Selection,
    groups: Groups,
    rows: Vec<Rows>,
    decoder: Decoder,
    live: Option<Live>,
    switch: StreamSwitch,
    queue: VecDeque<TapEvent>,
    pace: Pace,
    events: i64,
    /// Events lost because a ring was full although it was read in time, and while the consumer of
    /// the rows was busy.
    lost: [i64; 2],
    /// Events that were not tested since there were too many in a second.
    throttled: i64,
}

/// The objects of the kernel side.
#[derive(Debug)]
struct Live {
    rings: Rings<Events>,
    ring_table: Shared,
    records: Shared,
    counts: Shared,
    folds: Option<Folds>,
    flush: Option<Flush>,
    probes: Vec<StreamProbe>,
    state: Shared,
    /// The number of times that the programs were attached.
    attached: u64,
    /// Empty while they are not. Order matters: links are dropped before the object that they
    /// belong to.
    links: Vec<Link>,
    object: Object,
}

/// Opens `stream` for `demands`.
///
/// # Errors
/// As [`super::KernelStream::open`].
pub fn open(
    stream: &EventStream,
    demands: &[Demand],
    options: &LiveOptions,
) -> Result<StreamTap, TapError> {
    if demands.len() > DEMANDS_MAX {
        return Err(TapError::Unavailable {
            what: format!("{} demands are more than a live tap serves", demands.len()),
            remedy: format!("use at most {DEMANDS_MAX}, or merge those of one stream"),
        });
    }
    let selection = Selection::of(&stream.table.columns, demands);
    let groups = Groups::of(&stream.table, demands, &selection);
    let rows = demands.iter().enumerate().map(|(i, demand)| {
        let (clauses, folded) = (selection.bits(i), groups.bit(i));
        Rows::new(&stream.table, &demand.columns, clauses, folded)
    });
    let mut rows: Vec<Rows> = rows.collect();
    Rows::choose_counting(&mut rows);
    let offset_ns = options.epoch_offset_ns;
    let offset_ns = offset_ns.unwrap_or_else(clock::epoch_offset_ns);
    // Without a hierarchy for tasks and bios the cgroup is unknown.
    let root = Root::unified();
    let unified = root.is_some();
    let names = Names::new(Cgroups::new(root), options.host, offset_ns);
    let attribution = options.inventory.clone().map(Attribution::new);
    let poll_interval = poll_interval(groups.plans.iter(), options.poll_interval);
    let mut decoder = Decoder::new(&stream.table, names, attribution);
    let is_stack = |c: &StreamColumn| matches!(c.value, FieldValue::Stack(_));
    if stream.table.columns.iter().any(is_stack) {
        let inventory = options.inventory.as_deref();
        let inspection = inventory.and_then(InventoryWatch::inspection);
        decoder.stacks = Some(Stacks::new(inspection)?);
    }
    let mut tap = StreamTap {
        stream: stream.clone(),
        rows,
        decoder,
        live: None,
        switch: options.switch.clone(),
        queue: VecDeque::new(),
        pace: Pace::new(Instant::now(), poll_interval),
        events: 0,
        lost: [0; 2],
        throttled: 0,
        selection,
        groups,
    };
    if tap.selection.clauses.is_empty() {
        return Ok(tap);
    }
    match tap.load(demands, unified, options) {
        // The kernel may reject the programs as too long with groups: then everything is delivered
        // as rows.
        Err(_) if !tap.groups.plans.is_empty() => {
            let rows = |demand: &Demand| Demand {
                fold: None,
                ..demand.clone()
            };
            open(
                stream,
                &demands.iter().map(rows).collect::<Vec<_>>(),
                options,
            )
        }
        Err(error) => Err(error),
        Ok((live, paths)) => {
            tap.live = Some(live);
            tap.decoder.paths = paths;
            Ok(tap)
        }
    }
}

impl Live {
    /// Attaches the programs. What they kept when they were attached before is removed, since the
    /// end of it was not seen.
    fn attach(&mut self, stream: &EventStream) -> Result<(), TapError> {
        if self.attached > 0 {
            object::clear_tables(&mut self.object)?;
            if let Some(flush) = &mut self.flush {
                flush.discard(&self.object)?;
            }
        }
        for probe in &self.probes {
            let mut programs = self.object.progs_mut();
            let program = programs.find(|p| p.name() == probe.program);
            let program = program.expect("the object has every probe's program");
            let own = stream.programs.attach(&program);
            self.links.extend(own.map_err(|e| refused(probe.name, &e))?);
        }
        self.attached += 1;
        self.state.words()[0].store(self.attached, Ordering::Release);
        Ok(())
    }

    fn attached_now(&self) -> bool {
        !self.links.is_empty()
    }

    fn detach(&mut self) {
        self.state.words()[0].store(0, Ordering::Release);
        self.links.clear();
    }

    /// The sum of a word of the counts of all processors.
    fn count(&self, word: usize) -> i64 {
        let words = self.counts.words().iter().skip(word);
        let words = words.step_by(COUNTS_BYTES / 8);
        words.map(|word| word.load(Ordering::Relaxed) as i64).sum()
    }

    /// The counters of the stream's programs.
    fn counters(&self, stream: &EventStream) -> Vec<(&'static str, Option<&'static str>, i64)> {
        let counters = stream.counters.iter().enumerate();
        counters
            .map(|(i, (counter, cause))| {
                (*counter, Some(*cause), self.count(COUNTS_BYTES / 16 + i))
            })
            .collect()
    }
}

impl StreamTap {
    /// Loads and attaches the programs.
    fn load(
        &self,
        demands: &[Demand],
        unified: bool,
        options: &LiveOptions,
    ) -> Result<(Live, Option<Paths>), TapError> {
        let _raised = elevation::raise(elevation::LOADING);
        let stream = &self.stream;
        let record_bytes = stream.record_bytes;
        let processors =
            libbpf_rs::num_possible_cpus().map_err(|e| refused("its processors", &e))?;
        let bytes_max = match self.switch.is_used() {
            true => switch::BYTES_MAX,
            false => usize::MAX,
        };
        let ring_bytes = options.ring_bytes.min(bytes_max);
        let slots = rings::ring_slots(ring_bytes, processors, record_bytes);
        let folding = Folding::new(
            self.groups.plans.iter(),
            options.fold_bytes.min(bytes_max),
            processors as u32,
        );
        let mut config = Config {
            clauses: self
                .selection
                .clauses
                .iter()
                .map(|c| c.tests.clone())
                .collect(),
            ring_slots: slots,
            columns: demands.iter().fold(0, |bits, d| bits | columns_of(d)),
            unified,
            ..Config::default()
        };
        self.groups.configure(&mut config);
        let mut object = object::open(&stream.programs.object())?;
        let probes = stream.programs.prepare(&mut object, demands, options)?;
        size_tables(
            &mut object,
            &config,
            &folding,
            record_bytes,
            processors as u32,
        )
        .map_err(|e| refused("a table", &e))?;
        let object = object.load().map_err(|e| refused("the programs", &e))?;
        let map = |name: &str, bytes, values| object::map(&object, name, bytes, values);
        let folds = match folding.folds.is_empty() {
            true => None,
            false => Some(Tables::map(&map, &folding, processors)?),
        };
        let ring_table = map("rings", RING_BYTES, processors)?;
        let records = map("records", record_bytes, processors * slots as usize)?;
        let counts = map("counts", COUNTS_BYTES, processors)?;
        let state = map(".bss", STATE_BYTES, 1)?;
        let by_path = |c: &StreamColumn| matches!(c.value, FieldValue::Path(_));
        let paths = match stream.table.columns.iter().any(by_path) {
            true => Some(Paths::new(map("paths", paths::SLOT_BYTES, paths::SLOTS)?)),
            false => None,
        };
        let offset_ns = self.decoder.names.epoch_offset_ns;
        let shift_ns = options.interval_shift_ns.clone();
        let folds = folds
            .map(|tables| Folds::begin(self.groups.plans.clone(), tables, offset_ns, shift_ns));
        let mut live = Live {
            rings: Rings::new(
                processors as u32,
                slots,
                record_bytes,
                Events::new(record_bytes),
            ),
            ring_table,
            records,
            counts,
            folds,
            flush: stream.programs.flush().map(Flush::new),
            probes,
            state,
            attached: 0,
            links: Vec::new(),
            object,
        };
        if self.switch.has(stream.table.name) {
            wait_for_inventory(options)?;
            live.attach(stream)?;
        }
        Ok((live, paths))
    }

    /// Attaches or detaches the programs as the switch requires.
    fn follow_switch(&mut self) -> Result<(), TapError> {
        let Some(live) = &mut self.live else {
            return Ok(());
        };
        match (self.switch.has(self.stream.table.name), live.attached_now()) {
            (true, false) => live.attach(&self.stream)?,
            (false, true) => live.detach(),
            _ => (),
        }
        Ok(())
    }

    /// Reads the rings and queues the rows to be delivered.
    fn drain(&mut self) -> Result<(), TapError> {
        self.follow_switch()?;
        let Some(live) = &mut self.live else {
            return Ok(());
        };
        if let Some(attribution) = &mut self.decoder.attribution {
            attribution.refresh();
        }
        let mut settled_ns = match &mut live.flush {
            Some(flush) if !live.links.is_empty() => {
                flush.run(&live.object, self.decoder.paths.as_mut())?
            }
            _ => rings::settled_ns(),
        };
        let mut naming = Naming {
            keys: &self.groups.keys,
            decoder: &mut self.decoder,
        };
        if let Some(folds) = &mut live.folds {
            settled_ns = folds.advance(settled_ns, &mut naming);
        }
        live.rings
            .drain(&live.ring_table, &live.records, settled_ns);
        let settled = live.rings.settled().len();
        let full = self
            .pace
            .drained(settled, live.rings.holds_back(), live.rings.fill());
        if full {
            self.count_lost();
        }
        let Some(live) = &mut self.live else {
            return Ok(());
        };
        // Before the rows: a later row would imply that the interval is complete.
        let watermark_ns = live.rings.watermark_ns();
        let complete = live.folds.iter_mut().flat_map(|f| f.over(watermark_ns));
        self.queue
            .extend(complete.map(|(demand, folded)| TapEvent::Folded { demand, folded }));
        self.events += settled as i64;
        for (demand, rows) in self.rows.iter().enumerate().filter(|_| settled != 0) {
            let (events, settled) = (live.rings.store(), live.rings.settled());
            if let Some(batch) = rows.build(events, settled, &mut self.decoder) {
                self.queue.push_back(TapEvent::Rows { demand, batch });
            }
        }
        Ok(())
    }

    /// Adds the losses since the last call.
    fn count_lost(&mut self) {
        if let Some(live) = &self.live {
            self.throttled = live.count(1);
            let more = live.count(0) - self.lost.iter().sum::<i64>();
            self.lost[usize::from(self.pace.was_late())] += more;
        }
    }

    fn heartbeat(&self) -> TapEvent {
        let watermark_ns = match &self.live {
            Some(live) => live.rings.watermark_ns(),
            None => clock::monotonic_ns(),
        };
        TapEvent::Heartbeat(watermark_ns as i64 + self.decoder.names.epoch_offset_ns)
    }
}

impl Tap for StreamTap {
    fn next(&mut self, timeout: Duration) -> Result<TapEvent, TapError> {
        let until = Instant::now() + timeout;
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Ok(event);
            }
            if self.pace.starts_by(until) {
                self.drain()?;
                if !self.queue.is_empty() {
                    let heartbeat = self.heartbeat();
                    self.queue.push_back(heartbeat);
                }
            } else if Instant::now() >= until {
                return Ok(self.heartbeat());
            }
        }
    }

    fn close(&mut self) -> Vec<(usize, Folded)> {
        let mut naming = Naming {
            keys: &self.groups.keys,
            decoder: &mut self.decoder,
        };
        let folds = self.live.as_mut().and_then(|live| live.folds.as_mut());
        folds.map_or_else(Vec::new, |folds| folds.close(&mut naming))
    }

    fn counts(&mut self) -> Vec<EventCount> {
        self.count_lost();
        let Some(live) = &self.live else {
            return Vec::new();
        };
        let folded = live.folds.as_ref().map_or(0, Folds::unrecorded);
        let missed = live.probes.iter().filter_map(|probe| {
            let mut programs = live.object.progs_mut();
            let program = programs.find(|p| p.name() == probe.program)?;
            Some(cost::run_time(probe.name, program.as_fd()).missed as i64)
        });
        let [ring_full, slow_consumer] = self.lost;
        let all = [
            ("events_in", None, self.events + folded),
            ("events_late", None, live.rings.late() as i64),
            (FOLDED, None, folded),
            (
                "bad_records",
                None,
                live.folds.as_ref().map_or(0, Folds::discarded),
            ),
            ("events_lost", Some("ring_full"), ring_full),
            ("events_lost", Some("slow_consumer"), slow_consumer),
            ("events_lost", Some("throttled"), self.throttled),
            ("events_lost", Some("recursion"), missed.sum()),
        ];
        let untied = self.decoder.untied;
        let untied = [
            ("untied_vdisk", Some("ambiguous"), untied.ambiguous),
            ("untied_vdisk", Some("no_map"), untied.no_map),
        ];
        let own = live.counters(&self.stream).into_iter().chain(untied);
        let happened =
            |(counter, _, total): &(&str, _, i64)| *counter == "events_in" || *total != 0;
        let count = |(counter, cause, total)| EventCount {
            device: self.stream.device,
            ..EventCount::of(counter, cause, total)
        };
        let all = all.into_iter().chain(own);
        all.filter(happened).map(count).collect()
    }

    fn lost(&self) -> i64 {
        let own = self
            .live
            .iter()
            .flat_map(|live| live.counters(&self.stream));
        let own = own.filter(|(counter, ..)| *counter == "events_lost");
        let own: i64 = own.map(|(.., total)| total).sum();
        self.lost.iter().sum::<i64>() + self.throttled + own
    }

    fn describe(&self) -> Vec<String> {
        let Some(live) = &self.live else {
            return vec!["live tap: no rows are requested, nothing is attached".into()];
        };
        let names: Vec<&str> = live.probes.iter().map(|p| p.name).collect();
        let mut lines = vec![format!("live tap: attached to {}", names.join(", "))];
        for clause in self.selection.clauses.iter().filter(|c| !c.text.is_empty()) {
            lines.push(format!("kernel: selects {}", clause.text.join(" and ")));
        }
        let relaxed = self.selection.relaxed.iter();
        lines.extend(relaxed.map(|what| format!("agent: selects again; {what}")));
        lines.extend(self.groups.lines());
        lines
    }
}

/// Sets the sizes of the tables, and the constants.
fn size_tables(
    object: &mut OpenObject,
    config: &Config,
    folding: &Folding,
    event_bytes: usize,
    processors: u32,
) -> libbpf_rs::Result<()> {
    for mut table in object.maps_mut() {
        let name = table.name().to_string_lossy().into_owned();
        if folding.size(&name, &mut table, processors)? {
            continue;
        }
        match name.as_str() {
            "records" => {
                table.set_value_size(event_bytes as u32)?;
                table.set_max_entries(processors * config.ring_slots)?;
            }
            "rings" | "counts" => table.set_max_entries(processors)?,
            _ if name.ends_with(".rodata") => table.set_initial_value(&config.bytes())?,
            _ => (),
        }
    }
    Ok(())
}
