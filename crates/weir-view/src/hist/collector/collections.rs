//! [`Collections`]: the selections that a collector counts, each with its own gauge and end.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use weir_model::Nanos;
use weir_workload::Metric;

use super::folder::CollectorFolder;
use super::messages::{Collecting, CollectionRequest, CollectorRequest, CollectorResponse};
use crate::hist::choice::HistogramChoice;
use crate::hist::counted::{CountedHistograms, HistogramKey};
use crate::hist::gauge::Gauge;
use crate::hist::saved;
use weir_runtime::failure::Failure;
use weir_runtime::output;
use weir_runtime::quantity::nanos;
use weir_runtime::run_loop::wall_clock;

/// Maximum number of selections: more are expensive, since each has programs of its own in the
/// kernel.
const COLLECTIONS_MAX: usize = 8;

/// Opens a gauge for an order.
pub type OpenGauge<G> = Box<dyn FnMut(&CollectionRequest) -> Result<G, Failure>>;

/// All collections.
pub struct Collections<G> {
    open: OpenGauge<G>,
    place: CollectorFolder,
    running: Vec<Collection<G>>,
    /// Stopped collections whose counts are in the files.
    stopped: Vec<Stopped>,
}

/// One collection.
struct Collection<G> {
    order: CollectionRequest,
    gauge: G,
    since: Nanos,
    /// When it stops automatically, on the monotonic clock.
    until: Option<Instant>,
}

struct Stopped {
    choice: HistogramChoice,
    by: HistogramKey,
    lines: Vec<String>,
}

impl<G: Gauge> Collections<G> {
    /// No collections.
    pub fn new(place: CollectorFolder, open: OpenGauge<G>) -> Collections<G> {
        Collections {
            open,
            place,
            running: Vec::new(),
            stopped: Vec::new(),
        }
    }

    /// True if nothing is collected.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// The response to a request.
    ///
    /// # Errors
    /// When it fails.
    pub fn answer(&mut self, request: CollectorRequest) -> Result<CollectorResponse, Failure> {
        let collections = match request {
            CollectorRequest::Start(order) => self.start(order)?,
            CollectorRequest::Stop(choice) => self.stop(&choice)?,
            CollectorRequest::Reset(choice) => self.reset(&choice)?,
            CollectorRequest::Status => self.running.iter().map(Collection::collecting).collect(),
            CollectorRequest::Snapshot { choice, by } => {
                let lines = self.snapshot(&choice, by)?;
                return Ok(CollectorResponse::Histograms(lines));
            }
        };
        Ok(CollectorResponse::Collections(collections))
    }

    /// The time until the next collection stops automatically; `None` if none does.
    pub fn next_stop(&self) -> Option<Duration> {
        let until = self.running.iter().filter_map(|c| c.until).min()?;
        Some(until.saturating_duration_since(Instant::now()))
    }

    /// Stops collections whose time has passed.
    pub fn stop_what_is_over(&mut self) {
        let now = Instant::now();
        self.end(|c| c.until.is_some_and(|until| until <= now));
    }

    /// Stops everything.
    pub fn stop_all(&mut self) {
        self.end(|_| true);
    }

    fn start(&mut self, order: CollectionRequest) -> Result<Vec<Collecting>, Failure> {
        let same =
            |c: &&mut Collection<G>| c.order.choice == order.choice && c.order.by == order.by;
        if let Some(known) = self.running.iter_mut().find(same) {
            known.until = end_of(order.span);
            return Ok(vec![known.collecting()]);
        }
        let shared =
            |c: &&Collection<G>| c.order.by == order.by && c.order.choice.overlaps(&order.choice);
        if let Some(known) = self.running.iter().find(shared) {
            let [known, wanted] = [&known.order.choice, &order.choice].map(HistogramChoice::words);
            return Err(Failure::words(format_args!(
                "{known}: already collected, and {wanted} would be counted twice; stop it first \
                 with `weir hist -x`"
            )));
        }
        if self.running.len() >= COLLECTIONS_MAX {
            return Err(Failure::words(format_args!(
                "the limit of {COLLECTIONS_MAX} collections is reached; stop one, or collect all \
                 disks together"
            )));
        }
        let gauge = (self.open)(&order)?;
        let (choice, by) = (order.choice.clone(), order.by);
        self.stopped.retain(|s| (&s.choice, s.by) != (&choice, by));
        self.running.push(Collection {
            gauge,
            since: wall_clock(),
            until: end_of(order.span),
            order,
        });
        Ok(self
            .running
            .last()
            .map(Collection::collecting)
            .into_iter()
            .collect())
    }

    /// Ends the collections whose disks are all selected.
    fn stop(&mut self, choice: &HistogramChoice) -> Result<Vec<Collecting>, Failure> {
        let chosen = |c: &Collection<G>| c.order.choice.overlaps(choice);
        // Stopping one disk of a collection would leave an invisible gap in it.
        if let Some(wider) = self
            .running
            .iter()
            .find(|c| chosen(c) && !c.order.choice.is_within(choice))
        {
            return Err(Failure::words(format_args!(
                "{} is one collection: stop it with the -w and -i of its start, or stop all \
                 collections with `weir hist -x`",
                wider.order.choice.words()
            )));
        }
        let stopped = self.running.iter().filter(|c| chosen(c));
        let stopped = stopped.map(Collection::collecting).collect();
        self.end(chosen);
        Ok(stopped)
    }

    fn reset(&mut self, choice: &HistogramChoice) -> Result<Vec<Collecting>, Failure> {
        let mut reset = Vec::new();
        for collection in &mut self.running {
            if !collection.order.choice.overlaps(choice) {
                continue;
            }
            if !collection.order.choice.is_within(choice) {
                return Err(Failure::words(format_args!(
                    "{} is one collection: reset it with the -w and -i of its start, or reset \
                     all collections with `weir hist -r`",
                    collection.order.choice.words()
                )));
            }
            collection.gauge.reset()?;
            collection.since = wall_clock();
            reset.push(collection.collecting());
        }
        Ok(reset)
    }

    fn snapshot(
        &mut self,
        choice: &HistogramChoice,
        by: HistogramKey,
    ) -> Result<Vec<String>, Failure> {
        let mut lines = Vec::new();
        let mut reported = HashSet::new();
        let asked = |c: &&mut Collection<G>| c.order.by == by && c.order.choice.overlaps(choice);
        for collection in self.running.iter_mut().filter(asked) {
            let mut counted = collection.counted()?;
            counted.keep(choice);
            // A disk that is selected by its name in the VM and by its name on the host counts
            // once.
            counted
                .subjects
                .retain(|(subject, _)| reported.insert(*subject));
            lines.extend(saved::lines(&counted, &Metric::ALL));
        }
        Ok(lines)
    }

    /// Ends collections: their counts are written to the files, their programs removed from the
    /// kernel.
    fn end(&mut self, ended: impl Fn(&Collection<G>) -> bool) {
        let (over, running): (Vec<_>, Vec<_>) = self.running.drain(..).partition(ended);
        self.running = running;
        for mut collection in over {
            // Counts that can no longer be read are not kept; the collection ends nevertheless.
            let counted = collection.counted();
            let lines = counted.map_or(Vec::new(), |c| saved::lines(&c, &Metric::ALL));
            let CollectionRequest { choice, by, .. } = collection.order;
            self.stopped.retain(|s| (&s.choice, s.by) != (&choice, by));
            if self.stopped.len() >= COLLECTIONS_MAX {
                self.stopped.remove(0);
            }
            self.stopped.push(Stopped { choice, by, lines });
            self.keep(by);
        }
    }

    fn keep(&self, by: HistogramKey) {
        let of = self.stopped.iter().filter(|s| s.by == by);
        let lines: Vec<String> = of.flat_map(|s| s.lines.clone()).collect();
        if let Err(error) = self.place.keep(by, &lines) {
            let file = self.place.stopped(by);
            output::notice(format_args!("weir: {}: {error}", file.display()));
        }
    }
}

impl<G: Gauge> Collection<G> {
    fn counted(&mut self) -> Result<CountedHistograms, Failure> {
        let mut counted = self.gauge.snapshot()?;
        counted.keep(&self.order.choice);
        Ok(counted)
    }

    fn collecting(&self) -> Collecting {
        let left = |until: Instant| nanos(until.saturating_duration_since(Instant::now()));
        Collecting {
            choice: self.order.choice.clone(),
            by: self.order.by,
            since: self.since,
            until: self
                .until
                .map(|until| wall_clock().saturating_add(left(until))),
        }
    }
}

/// The end of a duration that starts now; `None` for one that exceeds the clock's range.
fn end_of(span: Option<Duration>) -> Option<Instant> {
    Instant::now().checked_add(span?)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use weir_model::Symbol;
    use weir_workload::{Class, Histograms, Subject};

    use super::*;

    /// Counts one request of one disk at each reading.
    struct Looks {
        seen: i64,
        open: Rc<RefCell<usize>>,
    }

    impl Gauge for Looks {
        fn snapshot(&mut self) -> Result<CountedHistograms, Failure> {
            self.seen += 1;
            let mut histograms = Histograms::default();
            let lengths = histograms.of_mut(Metric::Length, Class::All);
            (0..self.seen).for_each(|_| lengths.add(4096));
            let subject = Subject {
                vm: Some(Symbol::new("web")),
                vdisk: Some(Symbol::new("/dev/vda")),
                ..Subject::default()
            };
            Ok(CountedHistograms {
                since: 0,
                at: self.seen,
                closest_of: 16,
                subjects: vec![(subject, histograms)],
                lost: Vec::new(),
                unreliable: Vec::new(),
            })
        }

        fn reset(&mut self) -> Result<(), Failure> {
            self.seen = 0;
            Ok(())
        }
    }

    impl Drop for Looks {
        fn drop(&mut self) {
            *self.open.borrow_mut() -= 1;
        }
    }

    struct Bench {
        collections: Collections<Looks>,
        place: CollectorFolder,
        open: Rc<RefCell<usize>>,
        _scratch: tempfile::TempDir,
    }

    impl Bench {
        fn new() -> Bench {
            let scratch = tempfile::tempdir().unwrap();
            let place = CollectorFolder::at(&scratch.path().join("collector"));
            place.make().unwrap();
            let open = Rc::new(RefCell::new(0));
            let opened = open.clone();
            let opening: OpenGauge<Looks> = Box::new(move |_| {
                *opened.borrow_mut() += 1;
                Ok(Looks {
                    seen: 0,
                    open: opened.clone(),
                })
            });
            Bench {
                collections: Collections::new(place.clone(), opening),
                place,
                open,
                _scratch: scratch,
            }
        }

        fn start(
            &mut self,
            disk: &str,
            span: Option<Duration>,
        ) -> Result<Vec<Collecting>, Failure> {
            let choice = HistogramChoice::of_text(disk);
            let order = CollectionRequest {
                choice,
                span,
                ..CollectionRequest::default()
            };
            self.collections.start(order)
        }

        fn requests(&mut self, disk: &str) -> u64 {
            let choice = HistogramChoice::of_text(disk);
            let request = CollectorRequest::Snapshot {
                choice,
                by: HistogramKey::Disk,
            };
            let Ok(CollectorResponse::Histograms(lines)) = self.collections.answer(request) else {
                panic!("the counts");
            };
            let counted = saved::counted(lines.into_iter().map(Ok));
            counted.map_or(0, |c| c.together().requests())
        }
    }

    #[test]
    fn a_second_start_of_the_same_gives_more_time_and_keeps_the_counts() {
        let mut bench = Bench::new();
        bench
            .start("web:vda", Some(Duration::from_secs(60)))
            .unwrap();
        assert_eq!(bench.requests("web:vda"), 1);
        let again = bench.start("web:vda", None).unwrap();
        assert_eq!(again[0].until, None);
        assert_eq!(bench.requests("web:vda"), 2);
        assert_eq!(*bench.open.borrow(), 1);
        assert!(bench.collections.next_stop().is_none());
    }

    #[test]
    fn what_would_count_twice_is_refused_and_what_is_apart_is_not() {
        let mut bench = Bench::new();
        bench.start("web:vda", None).unwrap();
        assert!(bench.start("web:", None).is_err());
        assert!(bench.start("", None).is_err());
        for vm in 1..COLLECTIONS_MAX {
            bench.start(&format!("vm{vm}:vda"), None).unwrap();
        }
        let Err(Failure::Words(text)) = bench.start("more:vda", None) else {
            panic!("there is a bound");
        };
        assert!(text.contains("limit of 8 collections"), "{text}");
        assert_eq!(*bench.open.borrow(), COLLECTIONS_MAX);
    }

    #[test]
    fn what_is_stopped_is_detached_and_kept() {
        let mut bench = Bench::new();
        bench.start("web:vda", None).unwrap();
        assert_eq!(bench.requests(""), 1);
        let other = bench
            .collections
            .stop(&HistogramChoice::of_text("other:vda"));
        assert!(other.unwrap().is_empty());
        bench.start("web:vdb", None).unwrap();
        bench.collections.stop_all();
        assert!(bench.collections.is_empty());
        assert_eq!(*bench.open.borrow(), 0, "nothing stays in the kernel");
        let kept = std::fs::read_to_string(bench.place.stopped(HistogramKey::Disk)).unwrap();
        let kept = saved::counted(kept.lines().map(|l| Ok(l.to_owned()))).unwrap();
        // The other disk's gauge has counted as well, but its disk was not selected.
        assert_eq!(kept.together().requests(), 2);
    }

    #[test]
    fn a_part_of_a_selection_is_neither_stopped_nor_reset() {
        let mut bench = Bench::new();
        bench.start("web:", None).unwrap();
        let part = HistogramChoice::of_text("web:vda");
        assert!(bench.collections.stop(&part).is_err());
        assert!(bench.collections.reset(&part).is_err());
        assert_eq!(bench.requests("web:vda"), 1);
        let reset = bench.collections.reset(&HistogramChoice::default());
        assert_eq!(reset.unwrap().len(), 1);
        assert_eq!(bench.requests("web:vda"), 1, "it begins anew");
    }

    #[test]
    fn what_is_over_stops_by_itself() {
        let mut bench = Bench::new();
        bench
            .start("web:vda", Some(Duration::from_nanos(1)))
            .unwrap();
        bench
            .start("web:vdb", Some(Duration::from_secs(600)))
            .unwrap();
        assert!(bench.collections.next_stop().is_some());
        std::thread::sleep(Duration::from_millis(1));
        bench.collections.stop_what_is_over();
        assert_eq!(*bench.open.borrow(), 1);
        assert!(bench.collections.next_stop().unwrap() > Duration::from_secs(1));
    }
}
