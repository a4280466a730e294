//! [`Unseen`]: requests whose completion was not received, by the source's own count of those in
//! flight.
//!
//! A live tap identifies a request by the kernel's structure; when that is reused, the earlier
//! request has ended, whether or not its completion was received. A recording numbers requests
//! itself and does not contain the structure. But each request has the number in flight on its
//! disk, itself included (`in_flight`): if more are open here, some have ended, most likely the
//! oldest. If the completion of one of them arrives late, another one replaces it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;

use weir_model::{Nanos, Symbol};

use crate::devices::whole_disk;
use crate::event::Subject;
use crate::track::{IN_FLIGHT_MAX, IN_FLIGHT_NS_MAX};

/// The largest number of disks.
const DISKS_MAX: usize = 1 << 12;

/// The largest number of retained lost requests of a disk.
const LOST_MAX: usize = 1 << 10;

/// The scope of one count of requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CountScope {
    host: Option<Symbol>,
    pdisk: Option<Symbol>,
}

impl CountScope {
    /// The disk of a host's device: a partition's requests are counted with those of the whole
    /// disk.
    pub fn device(host: Option<Symbol>, pdisk: Option<Symbol>) -> CountScope {
        CountScope {
            host,
            pdisk: pdisk.map(|path| Symbol::new(whole_disk(path.as_str()))),
        }
    }
}

/// Requests that are open on each disk.
#[derive(Debug, Default)]
pub struct Unseen {
    disks: HashMap<CountScope, Disk>,
}

#[derive(Debug, Default)]
struct Disk {
    issued: u64,
    /// By the order of issue.
    open: BTreeMap<u64, Open>,
    /// The same by id.
    order: HashMap<i64, u64>,
    /// Ids of those that were found to be lost, the earliest first.
    lost: VecDeque<i64>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    id: i64,
    subject: Subject,
    ts: Nanos,
}

/// A request whose completion was not received.
pub type LostRequest = (Subject, i64);

impl Unseen {
    /// A request is issued, with this number in flight on its disk by the source's count, itself
    /// included. Returns the earlier requests that must have ended.
    pub fn issued(
        &mut self,
        disk: CountScope,
        request: (Subject, i64),
        ts: Nanos,
        in_flight: Option<i64>,
    ) -> Vec<LostRequest> {
        let full = self.disks.len() >= DISKS_MAX && !self.disks.contains_key(&disk);
        let Some(in_flight) = in_flight.filter(|_| !full) else {
            return Vec::new();
        };
        let (subject, id) = request;
        let disk = self.disks.entry(disk).or_default();
        // The same id under another subject.
        let mut lost: Vec<LostRequest> = disk
            .close(id)
            .map(|o| (o.subject, id))
            .into_iter()
            .collect();
        disk.issued += 1;
        disk.order.insert(id, disk.issued);
        disk.open.insert(disk.issued, Open { id, subject, ts });
        while disk.open.len() as i64 > in_flight.max(1) {
            lost.extend(disk.lose_oldest());
        }
        disk.forget_old(ts);
        lost
    }

    /// A request has completed. Returns the request that is lost instead, if this one was assumed
    /// to be.
    pub fn finished(&mut self, disk: CountScope, id: i64) -> Option<LostRequest> {
        let disk = self.disks.get_mut(&disk)?;
        if disk.close(id).is_some() {
            return None;
        }
        let at = disk.lost.iter().position(|lost| *lost == id)?;
        disk.lost.remove(at);
        disk.lose_oldest()
    }
}

impl Disk {
    fn close(&mut self, id: i64) -> Option<Open> {
        let order = self.order.remove(&id)?;
        self.open.remove(&order)
    }

    fn lose_oldest(&mut self) -> Option<LostRequest> {
        let (_, oldest) = self.open.pop_first()?;
        self.order.remove(&oldest.id);
        if self.lost.len() == LOST_MAX {
            self.lost.pop_front();
        }
        self.lost.push_back(oldest.id);
        Some((oldest.subject, oldest.id))
    }

    /// Requests that [`crate::Track`] has removed by now.
    fn forget_old(&mut self, now: Nanos) {
        while let Some(oldest) = self.open.first_entry() {
            let is_old = now.saturating_sub(oldest.get().ts) > IN_FLIGHT_NS_MAX;
            if !is_old && self.order.len() <= IN_FLIGHT_MAX {
                break;
            }
            let oldest = oldest.remove();
            self.order.remove(&oldest.id);
        }
    }
}
