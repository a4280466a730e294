//! [`JobPlacement`]: the job of a query in Flink: the one that runs, or a new one.
//!
//! A query whose rows are in its topic of results already is continued: the new job reads what
//! agents have sent since somewhat before the last end of a window, and writes the windows from
//! there on. Some rows are written again, with the same key.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use weir_forward::{
    BrokerError, BrokerReader, PartitionBatch, ReadRecord, description_key, descriptions_topic,
    instant_of, shared_topic,
};
use weir_model::{NANOS_PER_SECOND, Nanos};
use weir_query::flink::{FlinkQuery, ResultTable, ZONE};
use weir_runtime::failure::Failure;
use weir_runtime::run_loop::wall_clock;

use crate::gateway::{FlinkAddress, FlinkError, FlinkSession};
use crate::job::FlinkJob;
use crate::rest::{FlinkRest, FlinkSlots};
use crate::results::{JobDescription, descriptions, window_ends};
use crate::sources::{SourceTopics, has_all_rows, shares_topics};

/// How long to wait for the tasks of a job that was started.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How long to wait where other jobs use all slots.
const SLOT_TIMEOUT: Duration = Duration::from_secs(8);

/// How long to wait for the topics of what is forwarded, which a monitor creates.
const SOURCE_TIMEOUT: Duration = Duration::from_secs(20);

/// How long requests to Kafka are repeated.
const KAFKA_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait for the first message of a partition.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// How far before the last end of a window a job continues: for tasks that are behind others, and
/// rows that were not written yet.
const OVERLAP: Nanos = 60 * NANOS_PER_SECOND;

/// The unit of the ends of windows.
const MILLISECOND: Nanos = 1_000_000;

/// The option of a source where it begins.
const STARTUP: &str = "scan.startup.mode";

/// How long before the first window of a job its messages begin, for agents with other clocks.
const CLOCKS: Nanos = 60 * NANOS_PER_SECOND;

/// What a job computes.
pub struct JobSpec {
    /// The query.
    pub flink: FlinkQuery,
    /// The table that it writes to.
    pub result: ResultTable,
    /// Options of the tables that it reads.
    pub sources: Vec<(String, String)>,
    /// Options of the table that it writes to, without topic and formats.
    pub sink: Vec<(String, String)>,
    /// The jar with this project's functions, unless Flink has them in its class path.
    pub jar: Option<String>,
    /// Settings of Flink for the job.
    pub settings: Vec<(String, String)>,
    /// The longest window.
    pub window: Nanos,
    /// Tasks of each operator.
    pub parallelism: u32,
    /// What the rows are.
    pub description: JobDescription,
}

impl JobSpec {
    /// The statements that start it, with the windows that end at or after `from`.
    pub fn statements(&self, from: Option<Nanos>) -> Vec<String> {
        let mut statements = vec![ZONE.to_owned()];
        let functions = self.flink.functions.iter();
        statements.extend(functions.map(|f| f.definition(self.jar.as_deref())));
        let sources = self.sources_from(from);
        for table in &self.flink.tables {
            statements.push(table.definition(&sources));
            statements.extend(table.view().map(|view| view.definition()));
        }
        statements.push(self.result.definition(&self.sink));
        statements.push(self.result.insert(&self.flink, from));
        statements
    }

    fn sources_from(&self, from: Option<Nanos>) -> Vec<(String, String)> {
        let Some(from) = from else {
            return self.sources.clone();
        };
        let ms = (from - self.window - CLOCKS).max(0) / MILLISECOND;
        let others = self.sources.iter().filter(|(key, _)| key != STARTUP);
        let own = [
            (STARTUP.to_owned(), "timestamp".to_owned()),
            ("scan.startup.timestamp-millis".to_owned(), ms.to_string()),
        ];
        others.cloned().chain(own).collect()
    }

    /// The topics that it reads.
    fn source_topics(&self) -> SourceTopics {
        SourceTopics::of_query(&self.flink, &self.sources)
    }

    /// Whether its topics have rows of other queries.
    fn shares_topics(&self) -> bool {
        shares_topics(&self.flink)
    }

    /// A number of what the job computes: another query has another one.
    pub fn number(&self) -> String {
        let mut text = self.statements(None).join(";\n");
        for (key, value) in &self.settings {
            text += &format!("\n{key} = {value}");
        }
        format!("{:08x}", crc32fast::hash(text.as_bytes()))
    }
}

/// Where jobs are placed.
pub struct JobPlacement<'a> {
    /// The gateway of Flink.
    pub gateway: &'a FlinkAddress,
    /// The brokers of the results.
    pub reader: &'a mut dyn BrokerReader,
    /// The first part of the names of topics.
    pub prefix: &'a str,
}

/// How a job came to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobStart {
    /// It ran already.
    Existing,
    /// It is the first one of its query.
    New,
    /// It continues a job that ran with another query, or that has ended; the jobs that it replaces.
    Continued(Vec<String>),
}

/// Where a job continues the results that are there.
#[derive(Clone, Copy, Debug)]
struct ContinuedResults {
    /// The first end of a window.
    from: Nanos,
    /// Kafka has all rows of that window.
    is_complete: bool,
}

/// A job that runs, or waits for slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedJob {
    /// Flink's number of it.
    pub id: String,
    /// How it came to run.
    pub started: JobStart,
    /// The first end of a window that it writes, if it continues another job.
    pub from: Option<Nanos>,
    /// False if its first windows lack rows that Kafka has no more.
    pub is_complete: bool,
    /// Why not all its tasks run yet.
    pub waits: Option<String>,
}

impl JobPlacement<'_> {
    /// Checks that a job can be started or be replaced, before anything is changed.
    ///
    /// # Errors
    /// If Flink or Kafka cannot be reached, Flink refuses the query, or a job would be replaced and
    /// `replace` is false.
    pub fn prepare(&mut self, spec: &JobSpec, replace: bool) -> Result<(), Failure> {
        let session = FlinkSession::open(self.gateway, &spec.settings).map_err(failure)?;
        let (same, others) = self.jobs(&session, spec)?;
        if let (Some(other), false) = (others.first(), replace) {
            return Err(Failure::world(format_args!(
                "job {} of Flink writes to `{}` with another query or other settings; --replace \
                 stops it",
                other.id, other.topic
            )));
        }
        let continued = self.continued(spec)?;
        if same.is_empty() {
            let mut statements = spec.statements(continued.map(|c| c.from));
            let insert = statements.pop().unwrap_or_default();
            for statement in &statements {
                session.run(statement).map_err(failure)?;
            }
            let explained = session.run(&format!("EXPLAIN PLAN FOR {insert}"));
            explained.map_err(failure)?;
        }
        Ok(())
    }

    /// Stops the jobs that this one replaces if they read other rows of topics of all queries,
    /// before the monitor ends these rows: the watermarks in the topics continue, and windows that
    /// lack rows would be written. Returns the jobs.
    ///
    /// # Errors
    /// If Flink or Kafka cannot be reached.
    pub fn stop_readers(&mut self, spec: &JobSpec) -> Result<Vec<String>, Failure> {
        if !spec.shares_topics() || self.before(spec)?.is_some_and(|job| job.reads_as(spec)) {
            return Ok(Vec::new());
        }
        let session = FlinkSession::open(self.gateway, &spec.settings).map_err(failure)?;
        let (_, others) = self.jobs(&session, spec)?;
        for job in &others {
            job.stop(&session).map_err(failure)?;
        }
        Ok(others.into_iter().map(|job| job.id).collect())
    }

    /// Finds the job of a query, or starts one, after [`JobPlacement::prepare`]; a job of the same
    /// topic that computes something else is stopped before. The jobs `stopped` were already.
    ///
    /// # Errors
    /// If Flink or Kafka cannot be reached, or nothing is forwarded for the query.
    pub fn place(
        &mut self,
        spec: &JobSpec,
        mut stopped: Vec<String>,
    ) -> Result<PlacedJob, Failure> {
        let placed = self.place_after(spec, &mut stopped);
        placed.map_err(|error| none_runs(error, &stopped))
    }

    /// As [`JobPlacement::place`]; adds the jobs that it stops to `stopped`.
    fn place_after(
        &mut self,
        spec: &JobSpec,
        stopped: &mut Vec<String>,
    ) -> Result<PlacedJob, Failure> {
        self.check_sources(spec)?;
        let mut settings = spec.settings.clone();
        let name = FlinkJob::name(&spec.result.name, &spec.number());
        settings.push(("pipeline.name".into(), name));
        let session = FlinkSession::open(self.gateway, &settings).map_err(failure)?;
        let (same, others) = self.jobs(&session, spec)?;
        if let Some(job) = same.first() {
            self.describe(spec, true)?;
            return Ok(self.started(&session, spec, JobStart::Existing, None, &job.id));
        }
        for job in others {
            job.stop(&session).map_err(failure)?;
            stopped.push(job.id);
        }
        let (id, continued) = self.begin(&session, spec)?;
        let replaced = std::mem::take(stopped);
        self.describe(spec, continued.is_some())?;
        let start = match (continued, replaced.is_empty()) {
            (None, true) => JobStart::New,
            _ => JobStart::Continued(replaced),
        };
        Ok(self.started(&session, spec, start, continued, &id))
    }

    fn begin(
        &mut self,
        session: &FlinkSession,
        spec: &JobSpec,
    ) -> Result<(String, Option<ContinuedResults>), Failure> {
        // The job that was stopped may have written more.
        let continued = self.continued(spec)?;
        let mut id = None;
        for statement in spec.statements(continued.map(|c| c.from)) {
            id = session.run(&statement).map_err(failure)?.job;
        }
        let id = id.ok_or_else(|| Failure::world("Flink has started no job"))?;
        Ok((id, continued))
    }

    /// The jobs that write to the topic of results: those of this query, the oldest first, and
    /// others.
    fn jobs(
        &self,
        session: &FlinkSession,
        spec: &JobSpec,
    ) -> Result<(Vec<FlinkJob>, Vec<FlinkJob>), Failure> {
        let mut jobs = FlinkJob::of_topic(session, &spec.result.name).map_err(failure)?;
        jobs.sort_by(|a, b| (&a.since, &a.id).cmp(&(&b.since, &b.id)));
        let number = spec.number();
        Ok(jobs.into_iter().partition(|job| job.number == number))
    }

    /// Where a job continues the results that are there, if there are any.
    fn continued(&mut self, spec: &JobSpec) -> Result<Option<ContinuedResults>, Failure> {
        let topic = &spec.result.name;
        let partitions = retried(|| self.reader.partitions(topic))?;
        let ends = retried(|| window_ends(self.reader, topic, partitions))?;
        let Some((first, last)) = ends else {
            return Ok(None);
        };
        let from = last - OVERLAP;
        let (topics, of_hosts) = match spec.source_topics() {
            SourceTopics::Named(topics) => (self.named(topics)?, false),
            SourceTopics::Beginning(prefixes) => (self.beginning(&prefixes)?, true),
        };
        let mut kept = Vec::new();
        for (topic, partitions) in topics {
            for partition in 0..partitions {
                kept.extend(self.first_kept(&topic, partition)?);
            }
        }
        let since = from - spec.window;
        // A topic of all queries may be older than the rows of this one.
        let has_these = match spec.shares_topics() {
            true => self
                .before(spec)?
                .is_some_and(|job| job.has_rows(spec, since)),
            false => true,
        };
        let is_complete = has_these && has_all_rows(&kept, of_hosts, first, since);
        Ok(Some(match is_complete {
            true => ContinuedResults { from, is_complete },
            // What was written before has rows that Kafka has no more.
            false => ContinuedResults {
                from: last + MILLISECOND,
                is_complete,
            },
        }))
    }

    /// The description of the job before.
    fn before(&mut self, spec: &JobSpec) -> Result<Option<JobDescription>, Failure> {
        let results = &spec.result.name;
        retried(|| JobDescription::find(self.reader, self.prefix, results))
    }

    /// Those of these topics that exist, with the numbers of their partitions.
    fn named(&mut self, topics: BTreeSet<String>) -> Result<BTreeMap<String, u32>, Failure> {
        let mut existing = BTreeMap::new();
        for topic in topics {
            let partitions = retried(|| self.reader.existing(&topic))?;
            existing.extend(partitions.map(|count| (topic, count)));
        }
        Ok(existing)
    }

    /// The topics whose names begin with one of these, with the numbers of their partitions.
    fn beginning(&mut self, prefixes: &BTreeSet<String>) -> Result<BTreeMap<String, u32>, Failure> {
        let mut topics = BTreeMap::new();
        for prefix in prefixes {
            topics.extend(retried(|| self.reader.topics(prefix))?);
        }
        Ok(topics)
    }

    /// The number and the instant of the first message of a partition.
    fn first_kept(&mut self, topic: &str, partition: u32) -> Result<Option<(i64, Nanos)>, Failure> {
        let (first, end) = retried(|| self.reader.offsets(topic, partition))?;
        if first == end {
            return Ok(None);
        }
        let records = self.reader.read(topic, partition, first, READ_TIMEOUT);
        let records = records.map_err(at_kafka)?;
        let instant = |found: &ReadRecord| {
            instant_of(&found.record.value).map(|instant| (found.offset, instant))
        };
        Ok(records.first().and_then(instant))
    }

    /// Waits until the topics that the job reads exist, and checks their partitions.
    fn check_sources(&mut self, spec: &JobSpec) -> Result<(), Failure> {
        let mut partitions = 0;
        match spec.source_topics() {
            SourceTopics::Named(topics) => {
                for topic in topics {
                    let existing = |reader: &mut dyn BrokerReader| reader.existing(&topic);
                    partitions += self.await_source(existing, || {
                        format!(
                            "there is no topic `{topic}`: the monitor does not forward this query \
                             to this URL (`weir monitor --forward`), or it was placed there with \
                             another --place"
                        )
                    })?;
                }
            }
            SourceTopics::Beginning(prefixes) => {
                for prefix in prefixes {
                    let of_hosts = |reader: &mut dyn BrokerReader| {
                        let topics = reader.topics(&prefix)?;
                        Ok((!topics.is_empty()).then(|| topics.values().sum::<u32>()))
                    };
                    partitions += self.await_source(of_hosts, || {
                        format!(
                            "no topic begins with `{prefix}`: no agent forwards this query to this \
                             URL (`weir agent --forward`), or agents have it with another \
                             placement strategy"
                        )
                    })?;
                }
            }
        }
        if spec.shares_topics() {
            self.check_rows(spec)?;
        }
        if partitions > 0 && spec.parallelism > partitions {
            return Err(Failure::words(format_args!(
                "--parallelism {}: the topics have {partitions} partitions, and a task without a \
                 partition has no watermarks",
                spec.parallelism
            )));
        }
        Ok(())
    }

    /// Waits until the rows that a job reads in the topic of all queries are described. Of topics
    /// of other prefixes, such as copies, no description is known.
    fn check_rows(&mut self, spec: &JobSpec) -> Result<(), Failure> {
        let of_hosts = matches!(spec.source_topics(), SourceTopics::Beginning(_));
        let topic = shared_topic(self.prefix);
        for table in &spec.flink.tables {
            let key = description_key(&topic, &table.stream);
            if !spec.description.sources.contains(&key) {
                continue;
            }
            let prefix = self.prefix;
            let description = |reader: &mut dyn BrokerReader| {
                let found = descriptions(reader, prefix, &key)?;
                let last = found.last();
                Ok(last.and_then(|last| is_forwarded(&last.value, of_hosts).then_some(())))
            };
            self.await_source(description, || {
                format!(
                    "`{topic}` has no rows of this query: it is not forwarded to this URL \
                     (`--forward` of the monitor or of agents), or there with another placement \
                     strategy"
                )
            })?;
        }
        Ok(())
    }

    /// Waits until something is found, for some seconds.
    ///
    /// # Errors
    /// If there is nothing, `missing`; if Kafka cannot be reached.
    fn await_source<T>(
        &mut self,
        mut find: impl FnMut(&mut dyn BrokerReader) -> Result<Option<T>, BrokerError>,
        missing: impl FnOnce() -> String,
    ) -> Result<T, Failure> {
        let began = Instant::now();
        loop {
            if let Some(found) = retried(|| find(self.reader))? {
                return Ok(found);
            }
            if began.elapsed() > SOURCE_TIMEOUT {
                return Err(Failure::world(missing()));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Describes the job, which continues others or does not.
    fn describe(&mut self, spec: &JobSpec, continues: bool) -> Result<(), Failure> {
        let since = match self.before(spec)? {
            Some(before) if before.reads_as(spec) => before.since,
            _ => continues.then(wall_clock),
        };
        let description = JobDescription {
            since,
            ..spec.description.clone()
        };
        let topic = descriptions_topic(self.prefix);
        retried(|| self.reader.partitions(&topic))?;
        retried(|| {
            let batch = PartitionBatch {
                topic: topic.clone(),
                partition: 0,
                records: vec![description.record()],
            };
            let results = self.reader.append(vec![batch]);
            results.into_iter().collect()
        })
    }

    /// The job that runs; of two that others have started at the same time, the older one stays.
    fn started(
        &self,
        session: &FlinkSession,
        spec: &JobSpec,
        started: JobStart,
        continued: Option<ContinuedResults>,
        id: &str,
    ) -> PlacedJob {
        let mut placed = PlacedJob {
            id: id.to_owned(),
            started,
            from: continued.map(|c| c.from),
            is_complete: continued.is_none_or(|c| c.is_complete),
            waits: None,
        };
        // The job runs, whatever cannot be found out about it.
        let waits = self.jobs(session, spec).and_then(|(same, _)| {
            if let Some((oldest, others)) = same.split_first() {
                placed.id.clone_from(&oldest.id);
                for job in others {
                    job.stop(session).map_err(failure)?;
                }
            }
            self.waits(session, &placed.id)
        });
        placed.waits = waits.unwrap_or_else(|error| Some(text(&error)));
        placed
    }

    /// Waits until all tasks run; returns why they do not.
    fn waits(&self, session: &FlinkSession, id: &str) -> Result<Option<String>, Failure> {
        let mut rest = FlinkRest::of_session(session, self.gateway).map_err(failure)?;
        let began = Instant::now();
        loop {
            let jobs = FlinkJob::all(session).map_err(failure)?;
            let job = jobs.iter().find(|job| job.id == id);
            let tasks = rest.as_ref().map(|rest| rest.tasks(id));
            if let Some(Err(FlinkError::Unreachable(_))) = tasks {
                // The gateway has another network than this host, and knows the job's state.
                rest = None;
            }
            let Some(job) = job else {
                let why = rest
                    .as_ref()
                    .and_then(|rest| rest.failure(id).ok().flatten());
                let why = why.unwrap_or("the log of its job manager has the reason".into());
                return Ok(Some(format!("it has ended: {why}")));
            };
            let has_started = match tasks {
                Some(Ok(tasks)) => tasks.total > 0 && tasks.running == tasks.total,
                Some(Err(_)) | None => job.state == "RUNNING",
            };
            if has_started {
                return Ok(None);
            }
            let slots = rest.as_ref().and_then(|rest| rest.slots().ok());
            // Without other jobs, task managers keep their slots for jobs of a job manager that has
            // ended, for `taskmanager.slot.timeout`. Without any slot, Flink may start a task
            // manager for the job.
            let timeout = match slots {
                Some(slots) if slots.free == 0 && slots.total > 0 && slots.jobs > 1 => SLOT_TIMEOUT,
                _ => START_TIMEOUT,
            };
            if began.elapsed() > timeout {
                return Ok(Some(why_it_waits(rest.as_ref(), job)));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// The result of a request to Kafka; one that may succeed later is repeated for some seconds, since
/// topics that are being created are not there at once.
fn retried<T>(mut request: impl FnMut() -> Result<T, BrokerError>) -> Result<T, Failure> {
    let began = Instant::now();
    loop {
        match request() {
            Err(error) if !error.is_final && began.elapsed() < KAFKA_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(200));
            }
            result => return result.map_err(at_kafka),
        }
    }
}

/// Why the tasks of a job do not run.
fn why_it_waits(rest: Option<&FlinkRest>, job: &FlinkJob) -> String {
    let Some(rest) = rest else {
        return format!("it is {}", job.state);
    };
    let tasks = rest.tasks(&job.id).unwrap_or_default();
    let slots = match tasks.waiting {
        0 => None,
        _ => rest.slots().ok(),
    };
    if slots.is_none_or(|slots| slots.free > 0)
        && let Ok(Some(failure)) = rest.failure(&job.id)
    {
        return format!("it is {}, after a failure: {failure}", job.state);
    }
    match slots {
        Some(FlinkSlots { free: 0, total, .. }) => format!(
            "Flink has no free slot ({total} in all): add task managers, or cancel other jobs; the \
             job starts when there is one"
        ),
        _ => format!(
            "it is {}, {} of {} tasks run",
            job.state, tasks.running, tasks.total
        ),
    }
}

/// Whether a description is that of rows that are forwarded, by a monitor or by hosts.
fn is_forwarded(description: &[u8], by_hosts: bool) -> bool {
    let described: Result<serde_json::Value, _> = serde_json::from_slice(description);
    described.is_ok_and(|d| d.get("ended").is_none() && d.get("topics").is_some() == by_hosts)
}

/// A failure after jobs were stopped.
fn none_runs(error: Failure, stopped: &[String]) -> Failure {
    match stopped {
        [] => error,
        ids => Failure::world(format_args!(
            "{}; job {} was stopped, and no job runs now: repeat the command",
            text(&error),
            ids.join(", ")
        )),
    }
}

/// The text of a failure, within a sentence.
fn text(failure: &Failure) -> String {
    match failure {
        Failure::Words(text) => text.trim_start_matches("weir: ").to_owned(),
        Failure::World(error) => error.to_string(),
    }
}

/// As a failure of a command: a URL or a file is the user's, the rest is not.
pub fn failure(error: FlinkError) -> Failure {
    match error {
        FlinkError::Address(why) => Failure::words(why),
        FlinkError::Unreachable(why) => Failure::world(why),
        FlinkError::Refused(why) => Failure::world(format_args!("Flink: {why}")),
    }
}

/// As a failure of a command.
pub fn at_kafka(error: BrokerError) -> Failure {
    Failure::world(format_args!("Kafka: {error}"))
}
