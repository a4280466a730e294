//! The live relations `vms`, `disks` and `devices`: the current rows when a query begins, then rows
//! that are inserted and retracted.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use weir_model::capabilities::Rate;
use weir_model::inventory::{BlockDevice, Disk, Row, Vm, changes};
use weir_model::{Batch, Capabilities, Demand, Nanos, Symbol};

use super::{InventoryWatch, NameConflict, Snapshot};
use crate::ebpf::clock::epoch_ns;
use crate::live::{LiveTap, inventory_of};
use crate::{EventCount, Tap, TapError, TapEvent};

/// The tap of the host's inventory.
pub static TAP: LiveTap = LiveTap {
    name: "inventory",
    streams: STREAMS,
    open: |demands, options| {
        let watch = inventory_of(options)?;
        let tap = Relations::new(demands, watch, options.host, options.poll_interval)?;
        Ok(Box::new(tap))
    },
    capabilities: || Capabilities::of_rows(STREAMS, Rate::Polled, "a relation is not folded"),
    needs_inventory: |_| true,
};

const STREAMS: &[&str] = &[Vm::RELATION, Disk::RELATION, BlockDevice::RELATION];

/// A relation of the inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Vms,
    Disks,
    Devices,
}

/// The inventory as a source of inserted and retracted rows.
#[derive(Debug)]
struct Relations {
    watch: Arc<InventoryWatch>,
    relations: Vec<Relation>,
    /// The value of column `host`.
    host: Option<Symbol>,
    /// The last snapshot that was emitted.
    emitted: Arc<Snapshot>,
    queued: VecDeque<TapEvent>,
    /// The watermark: the latest instant that was emitted.
    reached: Nanos,
    /// Interval of heartbeats: a join with I/O waits for them.
    poll_interval: Duration,
}

impl Relation {
    fn find(name: &str) -> Result<Relation, TapError> {
        let all = [
            (Vm::RELATION, Relation::Vms),
            (Disk::RELATION, Relation::Disks),
            (BlockDevice::RELATION, Relation::Devices),
        ];
        let found = all.into_iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
        found
            .map(|(_, relation)| relation)
            .ok_or_else(|| TapError::Unavailable {
                what: format!("the inventory has no relation `{name}`"),
                remedy: "the inventory has vms, disks and devices".into(),
            })
    }

    fn name(&self) -> &'static str {
        match self {
            Relation::Vms => Vm::RELATION,
            Relation::Disks => Disk::RELATION,
            Relation::Devices => BlockDevice::RELATION,
        }
    }

    /// The changes between two snapshots, at `ts`; `None` if there are none.
    fn changes(
        self,
        ts: Nanos,
        host: Option<Symbol>,
        before: &Snapshot,
        after: &Snapshot,
    ) -> Option<Batch> {
        let disks =
            |s: &Snapshot| -> Vec<Disk> { s.disks.iter().map(|d| d.disk.clone()).collect() };
        match self {
            Relation::Vms => difference(ts, host, &before.vms, &after.vms),
            Relation::Disks => difference(ts, host, &disks(before), &disks(after)),
            Relation::Devices => difference(ts, host, &before.devices, &after.devices),
        }
    }
}

/// The rows that are in one list only, as deltas.
fn difference<R: Row>(ts: Nanos, host: Option<Symbol>, before: &[R], after: &[R]) -> Option<Batch> {
    let same = |(a, b): &(&R, &R)| a == b;
    let head = before.iter().zip(after).take_while(same).count();
    let (before, after) = (&before[head..], &after[head..]);
    let tail = before
        .iter()
        .rev()
        .zip(after.iter().rev())
        .take_while(same)
        .count();
    let before = &before[..before.len() - tail];
    let mut come = after[..after.len() - tail].to_vec();
    let mut gone = Vec::new();
    for row in before {
        match come.iter().position(|r| r == row) {
            Some(at) => drop(come.swap_remove(at)),
            None => gone.push(row.clone()),
        }
    }
    let any = !gone.is_empty() || !come.is_empty();
    any.then(|| changes(ts, host, &gone, &come))
}

impl Relations {
    fn new(
        demands: &[Demand],
        watch: Arc<InventoryWatch>,
        host: Option<Symbol>,
        poll_interval: Duration,
    ) -> Result<Relations, TapError> {
        let relations = demands.iter().map(|d| Relation::find(&d.stream));
        let mut tap = Relations {
            relations: relations.collect::<Result<_, _>>()?,
            watch,
            host,
            emitted: Arc::default(),
            queued: VecDeque::new(),
            reached: 0,
            poll_interval,
        };
        tap.take();
        Ok(tap)
    }

    /// Queues the changes since the last call.
    fn take(&mut self) {
        if self.watch.generation() == self.emitted.generation {
            return;
        }
        let snapshot = self.watch.snapshot();
        // Instants up to the watermark are final: the change is emitted with the next instant.
        let ts = snapshot.taken.max(self.reached + 1);
        for (demand, relation) in self.relations.iter().enumerate() {
            if let Some(batch) = relation.changes(ts, self.host, &self.emitted, &snapshot) {
                self.queued.push_back(TapEvent::Rows { demand, batch });
            }
        }
        self.reached = ts;
        self.emitted = snapshot;
    }

    fn heartbeat(&mut self) -> TapEvent {
        self.reached = self.reached.max(epoch_ns());
        TapEvent::Heartbeat(self.reached)
    }
}

impl Tap for Relations {
    fn next(&mut self, timeout: Duration) -> Result<TapEvent, TapError> {
        if let Some(event) = self.queued.pop_front() {
            return Ok(event);
        }
        thread::sleep(self.poll_interval.min(timeout));
        self.take();
        Ok(match self.queued.pop_front() {
            Some(events) => events,
            None => self.heartbeat(),
        })
    }

    fn counts(&mut self) -> Vec<EventCount> {
        Vec::new()
    }

    fn describe(&self) -> Vec<String> {
        let names: Vec<&str> = self.relations.iter().map(Relation::name).collect();
        vec![format!(
            "inventory: {}, scanned once a second",
            names.join(", ")
        )]
    }

    fn messages(&self) -> Vec<String> {
        let conflicts = self.emitted.conflicts.iter().map(NameConflict::to_string);
        self.emitted
            .remarks
            .iter()
            .cloned()
            .chain(conflicts)
            .collect()
    }
}
