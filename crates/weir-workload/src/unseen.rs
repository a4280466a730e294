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
use crate::event::Subject;
use crate::id_map::IdMap;
use crate::track::{IN_FLIGHT_MAX, IN_FLIGHT_NS_MAX};

/// The largest number of disks.
const DISKS_MAX: usize = 1 << 12;

/// Entries of the order of issue that have ended are removed at the latest when they are more than
/// these and the open ones.
const ENDED_MAX: usize = 64;

/// The largest number of retained lost requests of a disk.
const LOST_MAX: usize = 1 << 10;

/// The scope of one count of requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CountScope {
    host: Option<Symbol>,
    pdisk: Option<Symbol>,
}

/// Finds the scopes of devices, and keeps the disk of each.
#[derive(Debug, Default)]
pub struct CountScopes {
    whole_disks: IdMap<Symbol, Symbol>,
}

impl CountScopes {
    /// The disk of a host's device: a partition's requests are counted with those of the whole
    /// disk.
    pub fn of_device(&mut self, host: Option<Symbol>, pdisk: Option<Symbol>) -> CountScope {
        let whole = |path: Symbol| Symbol::new(whole_disk(path.as_str()));
        let pdisk = pdisk.map(|path| {
            let known = self.whole_disks.entry(path);
            *known.or_insert_with(|| whole(path))
        });
        CountScope { host, pdisk }
    }
}

/// Requests that are open on each disk.
#[derive(Debug, Default)]
pub struct Unseen {
    disks: IdMap<CountScope, Disk>,
}

#[derive(Debug, Default)]
struct Disk {
    issued: u64,
    /// By id.
    open: IdMap<i64, Open>,
    /// Ids and numbers in the order of issue, also of requests that are not open any more.
    order: VecDeque<(i64, u64)>,
    /// Ids of those that were found to be lost, the earliest first.
    lost: VecDeque<i64>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    /// Its number in the order of issue.
    number: u64,
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
        disk.add(id, subject, ts);
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
    fn add(&mut self, id: i64, subject: Subject, ts: Nanos) {
        self.issued += 1;
        let number = self.issued;
        let open = Open {
            number,
            subject,
            ts,
        };
        self.open.insert(id, open);
        if self.order.len() >= 2 * self.open.len() + ENDED_MAX {
            let open = &self.open;
            self.order.retain(|entry| is_open(open, entry));
        }
        self.order.push_back((id, number));
    }

    fn close(&mut self, id: i64) -> Option<Open> {
        self.open.remove(&id)
    }

    /// The id of the oldest request that is open, and the request.
    fn oldest(&mut self) -> Option<(i64, Open)> {
        while let Some(entry) = self.order.front() {
            if is_open(&self.open, entry) {
                return Some((entry.0, self.open[&entry.0]));
            }
            self.order.pop_front();
        }
        None
    }

    fn lose_oldest(&mut self) -> Option<LostRequest> {
        let (id, oldest) = self.oldest()?;
        self.close(id);
        if self.lost.len() == LOST_MAX {
            self.lost.pop_front();
        }
        self.lost.push_back(id);
        Some((oldest.subject, id))
    }

    /// Requests that [`crate::Track`] has removed by now.
    fn forget_old(&mut self, now: Nanos) {
        while let Some((id, oldest)) = self.oldest() {
            let is_old = now.saturating_sub(oldest.ts) > IN_FLIGHT_NS_MAX;
            if !is_old && self.open.len() <= IN_FLIGHT_MAX {
                break;
            }
            self.close(id);
        }
    }
}

/// Whether the request with this id and number is open.
fn is_open(open: &IdMap<i64, Open>, (id, number): &(i64, u64)) -> bool {
    open.get(id).is_some_and(|open| open.number == *number)
}
