//! [`Unseen`]: requests whose completion was not received, by the source's own count of those in
//! flight.
//!
//! A live tap identifies a request by the kernel's structure; when that is reused, the earlier
//! request has ended, whether or not its completion was received. A recording numbers requests
//! itself and does not contain the structure. But each request has the number in flight on its
//! disk, itself included (`in_flight`): if more are open here, some have ended, most likely the
//! oldest. If the completion of one of them arrives late, another one replaces it.

use std::collections::VecDeque;

use weir_model::{Nanos, Symbol};

use crate::devices::whole_disk;
use crate::event::{Subject, two_ids};
use crate::id_map::IdMap;
use crate::track::{IN_FLIGHT_MAX, IN_FLIGHT_NS_MAX};

/// The largest number of disks.
const DISKS_MAX: usize = 1 << 12;

/// Entries of the order of issue that have ended are removed at the latest when they are more than
/// these and the open ones.
const ENDED_MAX: usize = 64;

/// The largest number of retained lost requests of a disk.
const LOST_MAX: usize = 1 << 10;

/// A disk with a count of its requests in flight, of one [`Unseen`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedDisk(usize);

/// Requests that are open on each disk.
#[derive(Debug, Default)]
pub struct Unseen {
    /// The numbers of the disks by the ids of their hosts and names, and by those of partitions.
    names: IdMap<u64, usize>,
    /// The number of whole disks.
    whole_disks: usize,
    disks: Vec<Disk>,
}

#[derive(Debug, Default)]
struct Disk {
    issued: u64,
    /// By id.
    open: IdMap<i64, Open>,
    /// Requests in the order of issue, also those that are not open any more.
    order: VecDeque<Ordered>,
    /// Ids of those that were found to be lost, the earliest first.
    lost: VecDeque<i64>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    /// Its number in the order of issue.
    number: u64,
    subject: Subject,
}

/// An entry of the order of issue.
#[derive(Clone, Copy, Debug)]
struct Ordered {
    id: i64,
    number: u64,
    ts: Nanos,
}

/// A request whose completion was not received.
pub type LostRequest = (Subject, i64);

impl Unseen {
    /// The disk of a host's device: a partition's requests are counted with those of the whole
    /// disk.
    pub fn disk_of(&mut self, host: Option<Symbol>, pdisk: Option<Symbol>) -> CountedDisk {
        let name = two_ids(host, pdisk);
        if let Some(number) = self.names.get(&name) {
            return CountedDisk(*number);
        }
        let whole = pdisk.map(|path| Symbol::new(whole_disk(path.as_str())));
        let number = *self.names.entry(two_ids(host, whole)).or_insert_with(|| {
            self.whole_disks += 1;
            self.whole_disks - 1
        });
        self.names.insert(name, number);
        CountedDisk(number)
    }

    /// A request is issued, with this number in flight on its disk by the source's count, itself
    /// included. Returns the earlier requests that must have ended.
    pub fn issued(
        &mut self,
        disk: CountedDisk,
        request: (Subject, i64),
        ts: Nanos,
        in_flight: Option<i64>,
    ) -> Vec<LostRequest> {
        let Some(in_flight) = in_flight.filter(|_| disk.0 < DISKS_MAX) else {
            return Vec::new();
        };
        let (subject, id) = request;
        if disk.0 >= self.disks.len() {
            self.disks.resize_with(disk.0 + 1, Disk::default);
        }
        let disk = &mut self.disks[disk.0];
        // The same id under another subject.
        let mut lost: Vec<LostRequest> = disk
            .add(id, subject, ts)
            .map(|earlier| (earlier.subject, id))
            .into_iter()
            .collect();
        while disk.open.len() as i64 > in_flight.max(1) {
            lost.extend(disk.lose_oldest());
        }
        disk.forget_old(ts);
        lost
    }

    /// A request has completed. Returns the request that is lost instead, if this one was assumed
    /// to be.
    pub fn finished(&mut self, disk: CountedDisk, id: i64) -> Option<LostRequest> {
        let disk = self.disks.get_mut(disk.0)?;
        if disk.open.remove(&id).is_some() {
            return None;
        }
        let at = disk.lost.iter().position(|lost| *lost == id)?;
        disk.lost.remove(at);
        disk.lose_oldest()
    }
}

impl Disk {
    /// Adds a request; returns an earlier one with its id.
    fn add(&mut self, id: i64, subject: Subject, ts: Nanos) -> Option<Open> {
        self.issued += 1;
        let number = self.issued;
        let earlier = self.open.insert(id, Open { number, subject });
        if self.order.len() >= 2 * self.open.len() + ENDED_MAX {
            let open = &self.open;
            self.order.retain(|entry| entry.is_open(open));
        }
        self.order.push_back(Ordered { id, number, ts });
        earlier
    }

    /// The oldest request that is open.
    fn oldest(&mut self) -> Option<Ordered> {
        while let Some(entry) = self.order.front() {
            if entry.is_open(&self.open) {
                return Some(*entry);
            }
            self.order.pop_front();
        }
        None
    }

    fn lose_oldest(&mut self) -> Option<LostRequest> {
        let id = self.oldest()?.id;
        let oldest = self.open.remove(&id)?;
        if self.lost.len() == LOST_MAX {
            self.lost.pop_front();
        }
        self.lost.push_back(id);
        Some((oldest.subject, id))
    }

    /// Forgets requests that [`crate::Track`] has removed by now.
    fn forget_old(&mut self, now: Nanos) {
        while let Some(first) = self.order.front() {
            let is_old = now.saturating_sub(first.ts) > IN_FLIGHT_NS_MAX;
            if !is_old && self.open.len() <= IN_FLIGHT_MAX {
                break;
            }
            if first.is_open(&self.open) {
                self.open.remove(&first.id);
            }
            self.order.pop_front();
        }
    }
}

impl Ordered {
    fn is_open(&self, open: &IdMap<i64, Open>) -> bool {
        open.get(&self.id)
            .is_some_and(|open| open.number == self.number)
    }
}
