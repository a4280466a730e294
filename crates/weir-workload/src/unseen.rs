//! [`Unseen`]: requests whose completion was not received, by the source's own count of those in flight.
//!
//! A live tap knows a request by the kernel's structure; when that is in use again, the earlier request has
//! ended, whether or not its completion was received. A recording numbers requests afresh, so the structure
//! is not in it. But each request carries the number in flight on its disk, itself included (`in_flight`):
//! where more are open here than that, some have ended. The oldest are the likeliest. Should the completion
//! of one of them arrive after all, another one takes its place.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;

use weir_model::{Nanos, Symbol};

use crate::devices::whole_disk;
use crate::event::Subject;
use crate::track::{IN_FLIGHT_MAX, IN_FLIGHT_NS_MAX};

/// Most disks that are followed.
const DISKS_MAX: usize = 1 << 12;

/// Most requests of a disk that are remembered once they have been found to be lost.
const LOST_MAX: usize = 1 << 10;

/// What one count of requests in flight is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Counted {
    host: Option<Symbol>,
    pdisk: Option<Symbol>,
}

impl Counted {
    /// The disk of a host's device: a partition's requests are counted with those of the whole disk.
    pub fn device(host: Option<Symbol>, pdisk: Option<Symbol>) -> Counted {
        Counted {
            host,
            pdisk: pdisk.map(|path| Symbol::new(whole_disk(path.as_str()))),
        }
    }
}

/// Requests that are open on each disk.
#[derive(Debug, Default)]
pub struct Unseen {
    disks: HashMap<Counted, Disk>,
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
    /// A request is issued, with so many in flight on its disk by the source's count, itself included.
    /// Gives the earlier ones that have ended before it.
    pub fn issued(
        &mut self,
        disk: Counted,
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

    /// A request has finished. Gives the one that is missing in its place, if this one was thought to be.
    pub fn finished(&mut self, disk: Counted, id: i64) -> Option<LostRequest> {
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

    /// Requests that [`crate::Track`] removes as well by now.
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
