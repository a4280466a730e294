//! [`GuestStream`]: stream `GuestIO`, formed from the requests that agents in guests report and
//! those of the virtual disks that agents on hosts report.
//!
//! While a query reads the stream, all agents run two more fragments ([`fragments`]): the requests
//! of both levels, and the VMs of each host. Their rows come here in timestamp order when the
//! watermark of the fleet passes them. A disk of a guest is related to a virtual disk ([`disks`]),
//! and a [`Matcher`] for each pair ties the requests.

mod disks;
mod request;

use std::collections::{BTreeMap, HashMap};

use weir_model::guest::{GuestRequest, guestio_batch};
use weir_model::{Batch, Catalog, NANOS_PER_SECOND, Nanos, Symbol, Value};
use weir_query::place::fleet::{CutOptions, Fragment, PlacementStrategy, cut};
use weir_runtime::question::QueryText;
use weir_workload::guest::{MatchOptions, MatchOutcome, Matcher, UnmatchedCause};

use disks::{DiskInGuest, ServedDisk, VmNames};
use request::ReportedRequest;

/// The columns of a request, in the order of [`ReportedRequest::of`].
const REQUEST_COLUMNS: [&str; 16] = [
    "host", "level", "vm", "vdisk", "pdisk", "op", "sector", "sectors", "ts", "wait", "service",
    "latency", "req_id", "pid", "comm", "error",
];

/// The columns of a VM, in the order of [`VmNames::change`].
const VM_COLUMNS: [&str; 3] = ["host", "vm", "uuid"];

/// How long requests wait for their disk to be related to one of the other side.
const TIMEOUT: Nanos = 3 * NANOS_PER_SECOND;

/// How far back rows are needed for the results of an instant.
pub const MEMORY: Nanos = 10 * NANOS_PER_SECOND;

/// Most requests of a disk that wait for that.
const WAITING_MAX: usize = 1 << 16;

/// Most disks of guests and virtual disks; requests of further ones are not tied.
const DISKS_MAX: usize = 4096;

/// The fragments that every agent runs for the stream: the requests, and the VMs.
pub fn fragments() -> Vec<Fragment> {
    let fragment = |text: &str| {
        let checked = QueryText::new(text.to_owned()).check(&Catalog::builtin(), true);
        let plan = checked
            .unwrap_or_else(|_| panic!("`{text}` is correct"))
            .plan;
        let options = CutOptions {
            hint: Some(PlacementStrategy::Rows),
            ..CutOptions::default()
        };
        let cut = cut(&plan, &options).expect("rows are always possible");
        assert_eq!(cut.fragments.len(), 1, "one source");
        cut.fragments.into_iter().next()
    };
    let requests = format!(
        "select {} from IO where level in ('guest', 'vdisk')",
        REQUEST_COLUMNS.join(", ")
    );
    let vms = format!("select {} from vms", VM_COLUMNS.join(", "));
    let texts = [requests, vms];
    texts.iter().filter_map(|text| fragment(text)).collect()
}

/// What the stream counts, for stream `weir`.
pub type GuestCounts = BTreeMap<(&'static str, &'static str), i64>;

/// Requests of one disk that wait for the disk of the other side.
#[derive(Default)]
struct Disk {
    waiting: Vec<ReportedRequest>,
    first_seen: Nanos,
}

/// The stream. See the module's documentation.
pub struct GuestStream {
    /// The positions of [`REQUEST_COLUMNS`] and [`VM_COLUMNS`] in the rows of their fragments.
    columns: (Vec<usize>, Vec<usize>),
    inventory: VmNames,
    guests: HashMap<DiskInGuest, Disk>,
    vdisks: HashMap<ServedDisk, Disk>,
    related: HashMap<DiskInGuest, ServedDisk>,
    matchers: HashMap<ServedDisk, Matcher<ReportedRequest, ReportedRequest>>,
    sections: u64,
    counts: GuestCounts,
}

impl GuestStream {
    /// The stream from the rows of [`fragments`].
    pub fn new(fragments: &[Fragment]) -> GuestStream {
        let [requests, vms] = fragments else {
            unreachable!("there are two fragments");
        };
        let positions = |fragment: &Fragment, names: &[&str]| {
            let schema = &fragment.plan.schema;
            names.iter().map(|name| schema.index(name)).collect()
        };
        GuestStream {
            columns: (
                positions(requests, &REQUEST_COLUMNS),
                positions(vms, &VM_COLUMNS),
            ),
            inventory: VmNames::default(),
            guests: HashMap::new(),
            vdisks: HashMap::new(),
            related: HashMap::new(),
            matchers: HashMap::new(),
            sections: 0,
            counts: GuestCounts::new(),
        }
    }

    /// Adds changes of the VMs of hosts.
    pub fn vms(&mut self, batch: &Batch) {
        for row in 0..batch.len() {
            let values = values(batch, row, &self.columns.1);
            self.inventory.change(&values, batch.weight(row));
        }
    }

    /// Adds requests, in timestamp order.
    pub fn requests(&mut self, batch: &Batch) {
        for row in 0..batch.len() {
            let Some(request) = ReportedRequest::of(&values(batch, row, &self.columns.0)) else {
                continue;
            };
            match request.is_of_guest() {
                true => self.guest(request),
                false => self.vdisk(request),
            }
        }
    }

    fn guest(&mut self, request: ReportedRequest) {
        let disk = request.guest_disk();
        if let Some(vdisk) = self.related.get(&disk) {
            let matcher = self
                .matchers
                .get_mut(vdisk)
                .expect("related disks have one");
            let refused = matcher.guest(request.sighting(), request);
            return self.waiting_outcome(refused);
        }
        let room = self.guests.len() < DISKS_MAX || self.guests.contains_key(&disk);
        match room {
            true => wait(self.guests.entry(disk).or_default(), request),
            false => count(&mut self.counts, "guest_unmatched", "too_many"),
        }
    }

    fn vdisk(&mut self, request: ReportedRequest) {
        let Some(disk) = request.virtual_disk() else {
            return;
        };
        if let Some(matcher) = self.matchers.get_mut(&disk) {
            let refused = matcher.vdisk(request.sighting(), request);
            return self.waiting_outcome(refused);
        }
        // Disks of VMs without an agent are not followed.
        let room = self.vdisks.len() < DISKS_MAX || self.vdisks.contains_key(&disk);
        if room {
            wait(self.vdisks.entry(disk).or_default(), request);
        }
    }

    /// GuestCounts a request for which a matcher had no room.
    fn waiting_outcome(&mut self, refused: Option<MatchOutcome<ReportedRequest, ReportedRequest>>) {
        match refused {
            Some(MatchOutcome::Guest(..)) => count(&mut self.counts, "guest_unmatched", "too_many"),
            Some(MatchOutcome::Vdisk(..)) => count(&mut self.counts, "vdisk_unmatched", "too_many"),
            Some(MatchOutcome::Pair { .. }) | None => {}
        }
    }

    /// The rows that are certain when all agents have passed `watermark`; their instants are after
    /// `before`.
    pub fn release(&mut self, before: Nanos, watermark: Nanos) -> Batch {
        let mut rows: Vec<(Nanos, GuestRequest)> = Vec::new();
        self.separate(&mut rows);
        self.relate(watermark);
        for (disk, matcher) in &mut self.matchers {
            for outcome in matcher.advance(watermark) {
                emit(outcome, disk, &mut rows, &mut self.counts);
            }
        }
        self.expire(watermark, &mut rows);
        let first = before.saturating_add(1);
        let last = watermark.max(first);
        rows.iter_mut()
            .for_each(|(at, _)| *at = (*at).clamp(first, last));
        rows.sort_by_key(|(at, _)| *at);
        let (instants, rows): (Vec<Nanos>, Vec<GuestRequest>) = rows.into_iter().unzip();
        guestio_batch(instants, &rows)
    }

    /// Separates the disks of a VM that is on another host now, or has another name.
    fn separate(&mut self, rows: &mut Vec<(Nanos, GuestRequest)>) {
        let has_moved = |(guest, vdisk): &(&DiskInGuest, &ServedDisk)| {
            let now = self.inventory.vm(guest.vm, self.vdisks.keys());
            now.is_some_and(|vm| vm != (vdisk.host, vdisk.vm))
        };
        let moved = self.related.iter().filter(has_moved);
        let moved: Vec<(DiskInGuest, ServedDisk)> = moved.map(|(g, v)| (*g, *v)).collect();
        for (guest, vdisk) in moved {
            self.related.remove(&guest);
            let matcher = self.matchers.remove(&vdisk);
            for outcome in matcher.into_iter().flat_map(|mut matcher| matcher.finish()) {
                emit(outcome, &vdisk, rows, &mut self.counts);
            }
        }
    }

    /// Relates the disks of guests for which it is certain now, and passes on what waited.
    fn relate(&mut self, watermark: Nanos) {
        let settled = watermark.saturating_sub(TIMEOUT / 3);
        let guests: Vec<DiskInGuest> = self.guests.keys().copied().collect();
        for guest in guests {
            let Some(vm) = self.inventory.vm(guest.vm, self.vdisks.keys()) else {
                continue;
            };
            let of_vm = |vdisk: &&ServedDisk| (vdisk.host, vdisk.vm) == vm;
            let known = self.matchers.keys().chain(self.vdisks.keys());
            let vdisks: Vec<ServedDisk> = known.filter(of_vm).copied().collect();
            let others = self.guests.keys().chain(self.related.keys());
            let disks = others
                .filter(|d| (d.host, d.vm) == (guest.host, guest.vm))
                .count();
            let equal = vdisks.iter().find(|v| Some(v.vdisk) == guest.device);
            let only = match vdisks[..] {
                [one] if disks == 1 && self.guests[&guest].first_seen <= settled => Some(one),
                _ => None,
            };
            let Some(vdisk) = equal.copied().or(only) else {
                continue;
            };
            if self.matchers.contains_key(&vdisk) {
                // Another guest, or an earlier agent of this one, has it.
                continue;
            }
            let mut matcher = Matcher::new(MatchOptions::default());
            for request in self
                .guests
                .remove(&guest)
                .into_iter()
                .flat_map(|d| d.waiting)
            {
                let _ = matcher.guest(request.sighting(), request);
            }
            for request in self
                .vdisks
                .remove(&vdisk)
                .into_iter()
                .flat_map(|d| d.waiting)
            {
                let _ = matcher.vdisk(request.sighting(), request);
            }
            self.matchers.insert(vdisk, matcher);
            self.related.insert(guest, vdisk);
        }
    }

    /// Reports requests of guests whose disk is not related, and drops those of virtual disks of
    /// VMs without an agent.
    fn expire(&mut self, watermark: Nanos, rows: &mut Vec<(Nanos, GuestRequest)>) {
        let old = watermark.saturating_sub(TIMEOUT);
        for disk in self.guests.values_mut() {
            let gone = disk.waiting.partition_point(|request| request.ts <= old);
            for request in disk.waiting.drain(..gone) {
                count(&mut self.counts, "guest_unmatched", "no_disk");
                rows.push((request.ts, request.alone(None, "no_disk")));
            }
        }
        for disk in self.vdisks.values_mut() {
            let gone = disk.waiting.partition_point(|request| request.ts <= old);
            disk.waiting.drain(..gone);
        }
        self.vdisks.retain(|_, disk| !disk.waiting.is_empty());
    }

    /// What was counted since the last call.
    pub fn take_counts(&mut self) -> GuestCounts {
        let sections: u64 = self.matchers.values().map(|m| m.clock().sections()).sum();
        let located = self.matchers.values().filter(|m| m.clock().is_known());
        let sets = sections.saturating_sub(located.count() as u64);
        if sets > self.sections {
            let new = i64::try_from(sets - self.sections).unwrap_or(i64::MAX);
            *self.counts.entry(("guest_clock_set", "")).or_default() += new;
        }
        self.sections = sets;
        std::mem::take(&mut self.counts)
    }
}

/// Adds what became of requests to the rows and counts.
fn emit(
    outcome: MatchOutcome<ReportedRequest, ReportedRequest>,
    disk: &ServedDisk,
    rows: &mut Vec<(Nanos, GuestRequest)>,
    counts: &mut GuestCounts,
) {
    match outcome {
        MatchOutcome::Pair {
            guest,
            vdisk,
            offset,
        } => {
            count(counts, "guest_matched", "");
            rows.push((guest.ts, guest.tied(&vdisk, offset)));
        }
        MatchOutcome::Guest(guest, cause) => {
            count(counts, "guest_unmatched", name(cause));
            rows.push((guest.ts, guest.alone(Some(disk), name(cause))));
        }
        MatchOutcome::Vdisk(_, cause) => count(counts, "vdisk_unmatched", name(cause)),
    }
}

fn wait(disk: &mut Disk, request: ReportedRequest) {
    if disk.waiting.is_empty() && disk.first_seen == 0 {
        disk.first_seen = request.ts;
    }
    if disk.waiting.len() < WAITING_MAX {
        disk.waiting.push(request);
    }
}

fn count(counts: &mut GuestCounts, counter: &'static str, cause: &'static str) {
    *counts.entry((counter, cause)).or_default() += 1;
}

fn name(cause: UnmatchedCause) -> &'static str {
    match cause {
        UnmatchedCause::Missing => "missing",
        UnmatchedCause::Ambiguous => "ambiguous",
        UnmatchedCause::TooMany => "too_many",
    }
}

/// The values of a row at these positions.
fn values(batch: &Batch, row: usize, columns: &[usize]) -> Vec<Value> {
    let columns = columns.iter().map(|at| &batch.columns[*at]);
    columns.map(|column| column.value(row)).collect()
}

/// The text of a value.
fn symbol(value: &Value) -> Option<Symbol> {
    match value {
        Value::Text(text) => Some(*text),
        _ => None,
    }
}

/// The number of a value.
fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}
