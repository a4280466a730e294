//! [`JobPlacement`]: the job of a query in Flink: the one that runs, or a new one.
//!
//! A query whose rows are in its topic of results already is continued: the new job reads what
//! agents have sent since somewhat before the last end of a window, and writes the windows from
//! there on. Some rows are written again, with the same key.

use std::time::{Duration, Instant};

use weir_forward::{BrokerReader, PartitionBatch};
use weir_model::Nanos;
use weir_query::flink::{FlinkQuery, ResultTable, ZONE};
use weir_runtime::failure::Failure;

use crate::gateway::{FlinkAddress, FlinkError, FlinkSession};
use crate::job::FlinkJob;
use crate::rest::FlinkRest;
use crate::results::{JobDescription, last_window_end};

/// How long to wait for the tasks of a job that was started.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// How long to wait where no slot is free.
const SLOT_TIMEOUT: Duration = Duration::from_secs(8);

/// The option of a source where it begins.
const STARTUP: &str = "scan.startup.mode";

/// How long before the first window of a job its messages begin, for agents with other clocks.
const CLOCKS: Nanos = 60_000_000_000;

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
    /// How much before the last end of a window another job continues.
    pub overlap: Nanos,
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
        let ms = (from - self.window - CLOCKS).max(0) / 1_000_000;
        let others = self.sources.iter().filter(|(key, _)| key != STARTUP);
        let own = [
            (STARTUP.to_owned(), "timestamp".to_owned()),
            ("scan.startup.timestamp-millis".to_owned(), ms.to_string()),
        ];
        others.cloned().chain(own).collect()
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

/// A job that runs, or waits for slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedJob {
    /// Flink's number of it.
    pub id: String,
    /// How it came to run.
    pub started: JobStart,
    /// The first end of a window that it writes, if it continues another job.
    pub from: Option<Nanos>,
    /// Why not all its tasks run yet.
    pub waits: Option<String>,
}

impl JobPlacement<'_> {
    /// Finds the job of a query, or starts one; a job of the same topic that computes something
    /// else is stopped before.
    ///
    /// # Errors
    /// If Flink or Kafka cannot be reached, or Flink refuses the query.
    pub fn place(&mut self, spec: &JobSpec) -> Result<PlacedJob, Failure> {
        let (topic, number) = (&spec.result.name, spec.number());
        let mut settings = spec.settings.clone();
        settings.push(("pipeline.name".into(), FlinkJob::name(topic, &number)));
        let session = FlinkSession::open(self.gateway, &settings).map_err(failure)?;
        let jobs = FlinkJob::all(&session).map_err(failure)?;
        let (same, others): (Vec<_>, Vec<_>) = jobs
            .into_iter()
            .filter(|job| job.topic == *topic)
            .partition(|job| job.number == number);
        // Before a job is stopped, that a new one can be started.
        let partitions = self.reader.partitions(topic).map_err(at_kafka)?;
        self.describe(spec)?;
        if let Some(job) = same.first() {
            return Ok(PlacedJob {
                id: job.id.clone(),
                started: JobStart::Existing,
                from: None,
                waits: self.waits(&session, &job.id)?,
            });
        }
        self.refuse_invalid(spec)?;
        for job in &others {
            job.stop(&session).map_err(failure)?;
        }
        let last = last_window_end(self.reader, topic, partitions).map_err(at_kafka)?;
        let from = last.map(|last| last - spec.overlap);
        let mut id = None;
        for statement in spec.statements(from) {
            id = session.run(&statement).map_err(failure)?.job;
        }
        let id = id.ok_or_else(|| Failure::world("Flink has started no job"))?;
        let started = match (last, others.is_empty()) {
            (None, true) => JobStart::New,
            _ => JobStart::Continued(others.into_iter().map(|job| job.id).collect()),
        };
        Ok(PlacedJob {
            waits: self.waits(&session, &id)?,
            id,
            started,
            from,
        })
    }

    /// Reports what Flink refuses, before a job that runs is stopped.
    fn refuse_invalid(&self, spec: &JobSpec) -> Result<(), Failure> {
        let session = FlinkSession::open(self.gateway, &spec.settings).map_err(failure)?;
        let mut statements = spec.statements(None);
        let insert = statements.pop().unwrap_or_default();
        for statement in &statements {
            session.run(statement).map_err(failure)?;
        }
        session
            .run(&format!("EXPLAIN PLAN FOR {insert}"))
            .map_err(failure)?;
        Ok(())
    }

    fn describe(&mut self, spec: &JobSpec) -> Result<(), Failure> {
        let topic = JobDescription::topic(self.prefix);
        self.reader.partitions(&topic).map_err(at_kafka)?;
        let batch = PartitionBatch {
            topic,
            partition: 0,
            records: vec![spec.description.record()],
        };
        let results = self.reader.append(vec![batch]);
        results.into_iter().try_for_each(|r| r.map_err(at_kafka))
    }

    /// Waits until all tasks run; returns why they do not.
    fn waits(&self, session: &FlinkSession, id: &str) -> Result<Option<String>, Failure> {
        let manager = FlinkRest::of_session(session, self.gateway).map_err(failure)?;
        let began = Instant::now();
        loop {
            let jobs = FlinkJob::all(session).map_err(failure)?;
            let job = jobs.iter().find(|job| job.id == id);
            let of_manager = manager.as_ref().map(|manager| manager.tasks(id));
            let Some(job) = job else {
                let why = manager.as_ref().and_then(|m| m.failure(id).ok().flatten());
                let why = why.unwrap_or("the log of its job manager has the reason".into());
                return Err(Failure::world(format_args!(
                    "job {id} of Flink has ended: {why}"
                )));
            };
            let has_started = match of_manager {
                Some(Ok(tasks)) => tasks.total > 0 && tasks.running == tasks.total,
                // The gateway knows the state of the job only.
                Some(Err(_)) | None => job.state == "RUNNING",
            };
            if has_started {
                return Ok(None);
            }
            let slots = manager.as_ref().and_then(|manager| manager.slots().ok());
            let timeout = match slots {
                Some((0, _)) => SLOT_TIMEOUT,
                _ => START_TIMEOUT,
            };
            if began.elapsed() > timeout {
                return Ok(Some(why_it_waits(manager.as_ref(), job)));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Why the tasks of a job do not run.
fn why_it_waits(manager: Option<&FlinkRest>, job: &FlinkJob) -> String {
    let Some(manager) = manager else {
        return format!("it is {}", job.state);
    };
    let tasks = manager.tasks(&job.id).unwrap_or_default();
    let slots = match tasks.waiting {
        0 => None,
        _ => manager.slots().ok(),
    };
    if slots.is_none_or(|(free, _)| free > 0)
        && let Ok(Some(failure)) = manager.failure(&job.id)
    {
        return format!("it is {}, after a failure: {failure}", job.state);
    }
    match slots {
        Some((0, total)) => format!(
            "Flink has no free slot ({total} in all): add task managers, or cancel other jobs; the \
             job starts when there is one"
        ),
        _ => format!(
            "it is {}, {} of {} tasks run",
            job.state, tasks.running, tasks.total
        ),
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
pub fn at_kafka(error: weir_forward::BrokerError) -> Failure {
    Failure::world(format_args!("Kafka: {error}"))
}
