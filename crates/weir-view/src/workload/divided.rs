//! [`DividedCharacteriser`]: characterises the disks of a recording in two threads.
//!
//! The events of a disk depend on no other disk, so the disks are divided between the thread that
//! delivers the events and another one, by turns in the order in which they appear.

use std::panic::resume_unwind;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use weir_runtime::failure::Failure;
use weir_workload::{Characteriser, IdMap, Report, RequestEvent, SUBJECTS_MAX, Subject};

use super::feed::EventConsumer;

/// The number of events that are passed to the other thread at once.
const EVENTS_AT_ONCE: usize = 512;

/// The number of such groups that wait for it.
const GROUPS_MAX: usize = 16;

type Events = Vec<(Subject, RequestEvent)>;

/// Characterises what it receives.
pub struct DividedCharacteriser {
    /// Of the disks of this thread.
    own: Characteriser,
    other: Option<Other>,
    /// Whether a disk is analysed by the other thread.
    is_others: IdMap<Subject, bool>,
}

/// The other thread.
struct Other {
    groups: SyncSender<Events>,
    gathered: Events,
    thread: JoinHandle<Characteriser>,
}

impl DividedCharacteriser {
    /// In this thread only, with this memory for the reuse distances of each disk.
    pub fn in_one_thread(reuse_memory_bytes: usize) -> DividedCharacteriser {
        DividedCharacteriser {
            own: Characteriser::new(reuse_memory_bytes),
            other: None,
            is_others: IdMap::default(),
        }
    }

    /// In two threads.
    ///
    /// # Errors
    /// When the other one cannot be started.
    pub fn in_two_threads(reuse_memory_bytes: usize) -> Result<DividedCharacteriser, Failure> {
        let half = || Characteriser::new(reuse_memory_bytes).with_subjects_max(SUBJECTS_MAX / 2);
        let mut characteriser = half();
        let (groups, received) = sync_channel::<Events>(GROUPS_MAX);
        let run = move || {
            for (subject, event) in received.into_iter().flatten() {
                characteriser.take(&subject, &event);
            }
            characteriser
        };
        let thread = thread::Builder::new().name("analysis 2".to_owned());
        let other = Other {
            groups,
            gathered: Vec::new(),
            thread: thread.spawn(run)?,
        };
        Ok(DividedCharacteriser {
            own: half(),
            other: Some(other),
            is_others: IdMap::default(),
        })
    }

    /// The report on all events.
    pub fn report(&mut self) -> Report {
        if let Some(other) = self.other.take() {
            match other.finish() {
                Ok(characteriser) => self.own.append(characteriser),
                Err(panic) => resume_unwind(panic),
            }
        }
        self.own.report()
    }
}

impl EventConsumer for DividedCharacteriser {
    fn take(&mut self, subject: Subject, event: RequestEvent) -> bool {
        let Some(other) = &mut self.other else {
            self.own.take(&subject, &event);
            return true;
        };
        let known = self.is_others.get(&subject).copied();
        let is_others = known.unwrap_or_else(|| {
            let number = self.is_others.len();
            let is_others = number < SUBJECTS_MAX && number % 2 == 1;
            if number < SUBJECTS_MAX {
                self.is_others.insert(subject, is_others);
            }
            is_others
        });
        match is_others {
            true => other.take(subject, event),
            false => {
                self.own.take(&subject, &event);
                true
            }
        }
    }
}

impl Other {
    /// Passes an event on; false if the thread has panicked.
    fn take(&mut self, subject: Subject, event: RequestEvent) -> bool {
        self.gathered.push((subject, event));
        self.gathered.len() < EVENTS_AT_ONCE || {
            let next = Vec::with_capacity(EVENTS_AT_ONCE);
            let group = std::mem::replace(&mut self.gathered, next);
            self.groups.send(group).is_ok()
        }
    }

    fn finish(self) -> thread::Result<Characteriser> {
        // After a panic of the thread, its result is that.
        let _ = self.groups.send(self.gathered);
        drop(self.groups);
        self.thread.join()
    }
}

#[cfg(test)]
mod tests {
    use weir_model::{Op, Symbol};
    use weir_workload::{IssuedRequest, Response};

    use super::*;

    /// Events of a number of disks, each with other sectors, in one order of time.
    fn events(disks: usize, requests: i64) -> Events {
        let mut events = Events::new();
        for request in 0..requests {
            for disk in 0..disks {
                let subject = Subject {
                    vdisk: Some(Symbol::new(&format!("/dev/vd{disk}"))),
                    pdisk: Some(Symbol::new(&format!("/dev/sd{}", disk % 3))),
                    ..Subject::default()
                };
                let id = request * disks as i64 + disk as i64;
                let (ts, op) = (id * 10_000, if id % 3 == 0 { Op::Write } else { Op::Read });
                let sector = Some(id.wrapping_mul(48_271) % 1_000_000);
                let sectors = 8 << (id % 4);
                events.push((
                    subject,
                    RequestEvent::Issued(IssuedRequest {
                        ts,
                        id,
                        op,
                        sector,
                        sectors,
                    }),
                ));
                let latency_ns = Some(1_000 + id % 7_000);
                events.push((
                    subject,
                    RequestEvent::Finished(Response {
                        ts: ts + 9_000,
                        id,
                        op,
                        wait_ns: None,
                        service_ns: latency_ns,
                        latency_ns,
                        failed: false,
                    }),
                ));
            }
        }
        events
    }

    #[test]
    fn the_report_of_two_threads_is_that_of_one() {
        for (disks, requests) in [
            (0, 0),
            (1, 300),
            (2, 3_000),
            (7, 500),
            (SUBJECTS_MAX + 3, 20),
        ] {
            let mut one = DividedCharacteriser::in_one_thread(1 << 20);
            let mut two = DividedCharacteriser::in_two_threads(1 << 20).unwrap();
            for (subject, event) in events(disks, requests) {
                assert!(one.take(subject, event) && two.take(subject, event));
            }
            let (one, two) = (one.report(), two.report());
            assert_eq!(one.profiles.len(), disks.min(SUBJECTS_MAX));
            assert_eq!(one.requests_omitted == 0, disks <= SUBJECTS_MAX);
            assert!(one == two, "{disks} disks");
        }
    }
}
