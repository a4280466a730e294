//! [`Counting`]: counts the events of a recording, or of a live source whose requests are read
//! individually.

use std::collections::hash_map::Entry;

use weir_model::Nanos;
use weir_workload::little::is_reliable;
use weir_workload::{Counter, IdMap, RequestEvent, Subject};

use super::choice::HistogramChoice;
use super::counted::{CLOSEST_OF, CountedHistograms, HistogramKey};
use crate::workload::EventConsumer;
use weir_runtime::failure::Failure;

/// Maximum number of subjects with histograms; the events of others are counted as lost.
const SUBJECTS_MAX: usize = 4_096;

/// Receives the counts: at the end, or in each interval. Returns false to end.
pub type Each = Box<dyn FnMut(CountedHistograms) -> Result<bool, Failure> + Send>;

/// Counts by subject, and passes on the counts of each interval.
pub struct Counting {
    choice: HistogramChoice,
    by: HistogramKey,
    interval_ns: Option<Nanos>,
    each: Each,
    counters: IdMap<Subject, (Subject, Counter)>,
    /// The first instant of the interval, once an event was received.
    started_at: Option<Nanos>,
    last: Nanos,
    beyond: u64,
    ended: Result<bool, Failure>,
}

impl Counting {
    /// Counts the selection. Without an interval, all counts are passed on at the end.
    pub fn new(
        choice: HistogramChoice,
        by: HistogramKey,
        interval_ns: Option<Nanos>,
        each: Each,
    ) -> Counting {
        Counting {
            choice,
            by,
            interval_ns,
            each,
            counters: IdMap::default(),
            started_at: None,
            last: 0,
            beyond: 0,
            ended: Ok(true),
        }
    }

    /// Passes on the last counts, after the end of the input.
    ///
    /// # Errors
    /// Those of the receiver, now or earlier.
    pub fn finish(&mut self) -> Result<(), Failure> {
        if matches!(self.ended, Ok(true)) {
            self.hand_on(self.last);
        }
        std::mem::replace(&mut self.ended, Ok(false)).map(|_| ())
    }

    /// Passes on the counts up to `at`; an empty interval is skipped.
    fn hand_on(&mut self, at: Nanos) {
        let mut counted = CountedHistograms {
            since: self.started_at.unwrap_or(at),
            at,
            closest_of: CLOSEST_OF,
            subjects: Vec::new(),
            lost: Vec::new(),
            unreliable: Vec::new(),
        };
        for (subject, counter) in self.counters.values_mut() {
            let mut histograms = counter.histograms().clone();
            let ratio = counter.little_ratio();
            if let Some(ratio) = ratio.filter(|ratio| !is_reliable(*ratio)) {
                histograms.clear_outstanding();
                counted.unreliable.push((*subject, ratio));
            }
            // The last requests are kept, so that the next interval's first has a predecessor.
            counter.reset();
            if !super::counted::is_empty(&histograms) {
                counted.subjects.push((*subject, histograms));
            }
        }
        let beyond = std::mem::take(&mut self.beyond);
        if beyond > 0 {
            counted.lost.push(("too_many_disks".into(), beyond));
        }
        counted.sort();
        if self.interval_ns.is_none() || !counted.subjects.is_empty() {
            self.ended = (self.each)(counted);
        }
    }

    /// Ends the interval if `ts` is beyond it.
    fn begin_interval(&mut self, ts: Nanos) {
        let started_at = *self.started_at.get_or_insert(ts);
        let Some(interval) = self.interval_ns.filter(|i| ts - started_at >= *i) else {
            return;
        };
        let end = started_at + interval;
        self.hand_on(end);
        self.started_at = Some(end + (ts - end) / interval * interval);
    }
}

impl EventConsumer for Counting {
    fn take(&mut self, subject: Subject, event: RequestEvent) -> bool {
        self.begin_interval(event.ts());
        self.last = event.ts();
        if !matches!(self.ended, Ok(true)) {
            return false;
        }
        if !self.choice.has(&subject) {
            return true;
        }
        let key = self.by.of(subject);
        let is_full = self.counters.len() >= SUBJECTS_MAX;
        match self.counters.entry(key) {
            Entry::Occupied(mut known) => {
                known.get_mut().1.take(&event);
            }
            Entry::Vacant(_) if is_full => self.beyond += 1,
            Entry::Vacant(new) => {
                // A virtual disk is labelled with the first of the host's devices on which it was
                // observed.
                let label = match self.by {
                    HistogramKey::Disk => subject,
                    _ => key,
                };
                let (_, counter) = new.insert((label, Counter::new(CLOSEST_OF)));
                counter.take(&event);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use weir_model::{Op, Symbol};
    use weir_workload::{Class, IssuedRequest, Metric};

    use super::*;

    fn disk(vdisk: &str, pdisk: &str) -> Subject {
        let symbol = |text: &str| (!text.is_empty()).then(|| Symbol::new(text));
        Subject {
            vm: symbol("web").filter(|_| !vdisk.is_empty()),
            vdisk: symbol(vdisk),
            pdisk: symbol(pdisk),
            ..Subject::default()
        }
    }

    fn request(ts: Nanos, sector: i64) -> RequestEvent {
        RequestEvent::Issued(IssuedRequest {
            ts,
            id: ts,
            op: Op::Read,
            sector: Some(sector),
            sectors: 8,
        })
    }

    fn count(
        choice: &str,
        interval_ns: Option<Nanos>,
        enough: usize,
        events: &[(Subject, RequestEvent)],
    ) -> Vec<CountedHistograms> {
        let taken = Arc::new(Mutex::new(Vec::new()));
        let all = taken.clone();
        let each = move |counted| {
            let mut all = all.lock().unwrap();
            all.push(counted);
            Ok(all.len() < enough)
        };
        let choice = HistogramChoice::of_text(choice);
        let mut counting = Counting::new(choice, HistogramKey::Disk, interval_ns, Box::new(each));
        let _ = events.iter().all(|(s, e)| counting.take(*s, *e));
        counting.finish().unwrap();
        std::mem::take(&mut *taken.lock().unwrap())
    }

    #[test]
    fn a_virtual_disk_is_one_wherever_it_lies() {
        let (a, b) = (disk("/dev/vda", "/dev/sda"), disk("/dev/vda", "/dev/sdb"));
        let host = disk("", "/dev/sda");
        let events = [
            (a, request(1, 0)),
            (b, request(2, 8)),
            (host, request(3, 0)),
        ];
        let all = count("", None, 9, &events);
        assert_eq!(all.len(), 1);
        let subjects: Vec<Subject> = all[0].subjects.iter().map(|(s, _)| *s).collect();
        assert_eq!(subjects, [a, host]);
        let seeks = all[0].subjects[0].1.of(Metric::Seek, Class::All);
        assert_eq!(
            (seeks.count, seeks.min),
            (1, 1),
            "the second follows the first"
        );
        let some = count("web:vda", None, 9, &events);
        assert_eq!(some[0].together().requests(), 2);
    }

    #[test]
    fn intervals_are_of_the_events_own_time_and_silences_are_passed_over() {
        let a = disk("/dev/vda", "");
        let times = [5, 12, 19, 1_000, 1_015];
        let events = times.map(|ts| (a, request(ts, ts)));
        let all = count("", Some(10), 9, &events);
        let spans: Vec<_> = all.iter().map(|c| (c.since, c.at)).collect();
        assert_eq!(spans, [(5, 15), (15, 25), (995, 1_005), (1_015, 1_015)]);
        let requests: Vec<_> = all.iter().map(|c| c.together().requests()).collect();
        assert_eq!(requests, [2, 1, 1, 1]);
        let seeks = all[1].together().of(Metric::Seek, Class::All).count;
        assert_eq!(seeks, 1, "the interval before ends in its predecessor");
        assert_eq!(count("", Some(10), 1, &events).len(), 1);
    }
}
