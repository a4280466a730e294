//! [`EventFeed`]: opens a source and passes its events to a [`EventConsumer`].

use std::sync::{Arc, Mutex};
use std::time::Duration;

use weir_model::capabilities::recording;
use weir_model::{Batch, Catalog, Symbol};
use weir_query::engine::{Engine, EngineOptions, QueryId};
use weir_sink::{Sink, SinkError};
use weir_tap::RECORDING;
use weir_tap::ebpf::Files;
use weir_tap::ebpf::streams::fileio;
use weir_workload::files::FileCharacteriser;
use weir_workload::{LostRequest, RequestEvent, Subject, Unseen};

use super::delivery::{Delivery, Worker};
use super::files::{self, FileRows};
use super::rows::{Row, Rows};
use super::selection::WorkloadSelection;
use weir_runtime::device_names;
use weir_runtime::failure::Failure;
use weir_runtime::plans;
use weir_runtime::question::QueryText;
use weir_runtime::run_loop::{self, LoopOptions, ProgressKind, RunReport, Show, Stop, TapInput};
use weir_runtime::source;
use weir_runtime::source::SourceOptions;

/// Maximum delay of rows.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A consumer of events.
pub trait EventConsumer: Send {
    /// Receives what happened to a request of `subject`, in timestamp order; false to end. If a
    /// source does not know when requests completed, their ends follow immediately and without
    /// times: latencies and the number in flight are unknown.
    fn take(&mut self, subject: Subject, event: RequestEvent) -> bool;

    /// The same with the command name of the process, if the selection reads it.
    fn take_of(&mut self, subject: Subject, _: Option<Symbol>, event: RequestEvent) -> bool {
        self.take(subject, event)
    }
}

/// An open source.
pub struct EventFeed {
    args: SourceOptions,
    engine: Engine,
    /// The query for the requests of disks, unless the sources have only those of files.
    query: Option<QueryId>,
    /// The query for the requests of files, with its sink.
    files: Option<(QueryId, FileRows)>,
    inputs: Vec<TapInput>,
    selection: WorkloadSelection,
}

impl EventFeed {
    /// Opens the sources for the selection.
    ///
    /// # Errors
    /// When a file cannot be read or its format is unknown, the host cannot be observed, or a name
    /// cannot be expressed in CQL.
    pub fn open(
        args: &SourceOptions,
        selection: &WorkloadSelection,
        stop: &Stop,
    ) -> Result<EventFeed, Failure> {
        EventFeed::open_with_files(args, selection, None, stop)
    }

    /// As [`EventFeed::open`]; with `files`, the requests of files are added to these, and a
    /// recording may have only them.
    ///
    /// # Errors
    /// As [`EventFeed::open`], and when the sources have no requests of files.
    pub fn open_with_files(
        args: &SourceOptions,
        selection: &WorkloadSelection,
        files: Option<Arc<Mutex<FileCharacteriser>>>,
        stop: &Stop,
    ) -> Result<EventFeed, Failure> {
        let mut args = args.clone();
        args.without_responses = true;
        // Single requests are not displayed: rows may be delivered in larger batches, which is
        // cheaper.
        args.poll_interval = Some(POLL_INTERVAL);
        args.idle = args.idle.max(5 * POLL_INTERVAL);
        let capabilities = args.capabilities()?;
        let catalog = Catalog {
            declarations: vec![recording(), fileio::STREAM.declaration()],
            ..Catalog::default()
        };
        let mut questions = Vec::new();
        let has_disks = files.is_none() || capabilities.stream(RECORDING).is_some();
        questions.extend(has_disks.then(|| selection.question(args.is_live())));
        questions.extend(files.is_some().then(|| files::question(selection)));
        let plans = questions.into_iter().map(|text| {
            let checked = QueryText::new(text).compile(&catalog, args.is_live())?;
            Ok(device_names::resolve(&checked.plan, &args).0)
        });
        let plans: Vec<_> = plans.collect::<Result<_, Failure>>()?;
        let mut engine = Engine::new(EngineOptions::default());
        let mut ids = plans
            .iter()
            .map(|plan| engine.add(plan))
            .collect::<Vec<_>>();
        let files = files.map(|files| {
            let id = ids.pop().expect("its query is the last one");
            (id, FileRows::new(files))
        });
        let demanded: Vec<_> = plans.iter().map(|plan| &**plan).collect();
        Ok(EventFeed {
            query: ids.pop(),
            files,
            inputs: source::open(&args, &plans::of_rows(&demanded, &capabilities), stop)?,
            engine,
            args,
            selection: selection.clone(),
        })
    }

    /// Passes every event to `reader`, until the sources end, it returns false, or `stop`. A thread
    /// of its own delivers the events of a recording while others are read.
    ///
    /// # Errors
    /// When a source fails; earlier events were delivered.
    pub fn run<R: EventConsumer + 'static>(
        self,
        reader: &Arc<Mutex<R>>,
        progress: ProgressKind,
        stop: &Stop,
    ) -> Result<RunReport, Failure> {
        source::drop_privileges(&self.args, &self.inputs, Files::Open)?;
        let events = Events {
            consumer: reader.clone(),
            selection: self.selection,
            unseen: Unseen::default(),
        };
        let (delivery, worker) = match self.args.is_live() {
            true => (Delivery::Here(events), None),
            false => {
                let (delivery, worker) = Delivery::beside(events)?;
                (delivery, Some(worker))
            }
        };
        let options = LoopOptions {
            idle: self.args.idle,
            own_stream: false,
            instant_ns: 1,
            progress,
            whole: None,
            watermarks: false,
            changes: None,
            counts: Arc::default(),
        };
        let disks = self.query.map(|id| Show::new(id, Box::new(Pour(delivery))));
        let files = self.files.map(|(id, rows)| Show::new(id, Box::new(rows)));
        let shows = disks.into_iter().chain(files).collect();
        let ran = run_loop::run(self.engine, self.inputs, shows, options, stop);
        worker.into_iter().for_each(Worker::finish);
        ran
    }
}

/// Passes rows on as they are read.
struct Pour<R>(Delivery<R>);

impl<R: EventConsumer + 'static> Sink for Pour<R> {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        match self.0.deliver(batch) {
            true => Ok(()),
            false => Err(SinkError::Closed {
                name: "the reader".into(),
            }),
        }
    }
}

/// The events of rows, for a consumer.
pub(super) struct Events<R> {
    consumer: Arc<Mutex<R>>,
    selection: WorkloadSelection,
    unseen: Unseen,
}

impl<R: EventConsumer> Events<R> {
    /// Passes the events of these rows to the consumer; false if it ends.
    pub(super) fn pass(&mut self, batch: &Batch) -> bool {
        let rows = Rows::new(batch);
        let mut consumer = self.consumer.lock().expect("no panic while held");
        let selection = &self.selection;
        let mut pass = |subject: Subject, process, event| {
            !selection.has(&subject) || consumer.take_of(subject, process, event)
        };
        for row in (0..batch.len()).filter_map(|row| rows.row(row)) {
            // The ends of earlier requests that it implies come first.
            let ts = row.event.ts();
            for (of, id) in lost(&mut self.unseen, &row) {
                if !pass(of, row.process, RequestEvent::Lost { ts, id }) {
                    return false;
                }
            }
            if !pass(row.subject, row.process, row.event) {
                return false;
            }
        }
        true
    }
}

/// The earlier requests that have ended, as a row shows.
fn lost(unseen: &mut Unseen, row: &Row) -> Vec<LostRequest> {
    let Row { subject, event, .. } = *row;
    let counted = unseen.disk_of(row.host, subject.pdisk);
    match event {
        RequestEvent::Issued(request) => {
            let request = (subject, request.id);
            unseen.issued(counted, request, event.ts(), row.in_flight)
        }
        RequestEvent::Finished(response) => {
            let lost = unseen.finished(counted, response.id);
            lost.into_iter().collect()
        }
        RequestEvent::Lost { .. } => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use weir_model::Op;
    use weir_workload::IssuedRequest;

    use super::*;

    /// Receives all events, up to a number.
    struct All {
        taken: Vec<(Subject, RequestEvent)>,
        wanted: usize,
    }

    impl EventConsumer for All {
        fn take(&mut self, subject: Subject, event: RequestEvent) -> bool {
            self.taken.push((subject, event));
            self.taken.len() < self.wanted
        }
    }

    fn read(
        path: &Path,
        selection: &WorkloadSelection,
        wanted: usize,
    ) -> Vec<(Subject, RequestEvent)> {
        let source = SourceOptions::of(path.to_str().unwrap(), &[], false, &[]).unwrap();
        let stop = Stop::new();
        let feed = EventFeed::open(&source, selection, &stop).unwrap();
        let all = Arc::new(Mutex::new(All {
            taken: Vec::new(),
            wanted,
        }));
        feed.run(&all, ProgressKind::Nothing, &stop).unwrap();
        std::mem::take(&mut all.lock().unwrap().taken)
    }

    /// A trace in a temporary folder.
    fn trace(name: &str, text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join(name);
        std::fs::write(&path, text).unwrap();
        (scratch, path)
    }

    /// Two requests of 0.5 ms, 1 ms apart, then one of another host.
    const MSR: &str = "128166372030000000,vm1,0,Read,4096,4096,5000\n\
        128166372030010000,vm1,0,Write,0,512,5000\n\
        128166372030020000,vm2,0,Write,0,512,5000\n";

    #[test]
    fn requests_and_responses_come_in_order_of_time() {
        let (_scratch, path) = trace("msr.csv", MSR);
        let taken = read(&path, &WorkloadSelection::default(), usize::MAX);
        assert_eq!(taken.len(), 6, "{taken:?}");
        assert!(taken.is_sorted_by_key(|(_, event)| event.ts()));
        let RequestEvent::Issued(IssuedRequest { op, sector, .. }) = taken[0].1 else {
            panic!("{taken:?}");
        };
        assert_eq!((op, sector), (Op::Read, Some(8)));
        let RequestEvent::Finished(response) = taken[1].1 else {
            panic!("{taken:?}");
        };
        assert_eq!(response.service_ns.or(response.latency_ns), Some(500_000));
        assert!(!response.failed);
    }

    #[test]
    fn a_selection_keeps_to_its_disk_and_a_reader_may_have_enough() {
        let (_scratch, path) = trace("some.csv", MSR);
        let all = read(&path, &WorkloadSelection::default(), 1);
        assert_eq!(all.len(), 1);
        let disk = all[0].0.vdisk.or(all[0].0.pdisk).unwrap();
        let selection = WorkloadSelection {
            disk: Some(disk.as_str().to_owned()),
            vm: all[0].0.vm.map(|vm| vm.as_str().to_owned()),
            with_process: false,
        };
        let some = read(&path, &selection, usize::MAX);
        assert_eq!(some.len(), 4, "{some:?}");
        assert!(some.iter().all(|(subject, _)| *subject == all[0].0));
    }

    #[test]
    fn of_a_trace_without_responses_the_ends_have_no_times() {
        // MQSim: time ns, device, sector, sectors, 0 for a write.
        let (_scratch, path) = trace("requests.trace", "0 0 8 8 1\n1000 0 16 8 0\n");
        let taken = read(&path, &WorkloadSelection::default(), usize::MAX);
        assert_eq!(taken.len(), 4, "{taken:?}");
        for (_, event) in taken {
            if let RequestEvent::Finished(response) = event {
                assert!(!response.is_timed(), "{response:?}");
            }
        }
    }
}
