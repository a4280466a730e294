//! `--on flink` of `weir fleet`: jobs of Flink over what monitors forward to Kafka.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use weir_flink::placement::{at_kafka, failure};
use weir_flink::sources::{TOPIC_PATTERN, source_names};
use weir_flink::{
    FlinkAddress, FlinkJob, FlinkSession, JobDescription, JobPlacement, JobResults, JobSpec,
    JobStart, PlacedJob, ResultColumn,
};
use weir_forward::{BrokerReader, ForwardConfig, KafkaUrl, descriptions_topic, results_topic};
use weir_monitor::config::MonitorConfig;
use weir_query::Plan;
use weir_query::flink::{ResultTable, longest_window};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::run_loop::Stop;
use weir_sink::{SinkError, time};
use weir_wire::read_token;

use super::explain_flink::{self, ForwardedBy, option};
use crate::args::{OutputArgs, QueryEngine};

/// Settings of a job: its state survives the failure of a task, and the gateway does not wait for
/// its end.
const SETTINGS: [(&str, &str); 3] = [
    ("execution.checkpointing.interval", "10 s"),
    ("execution.runtime-mode", "streaming"),
    ("table.dml-sync", "false"),
];

/// The address of a gateway on this host.
const GATEWAY: &str = "http://localhost:8083";

/// The compressions of results that this program reads.
const COMPRESSIONS: [&str; 2] = ["none", "snappy"];

/// How long the brokers may be away while results are printed, before that is reported.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Where Flink is, and where Kafka is.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Flink")]
pub struct FlinkArgs {
    /// URL of Flink's SQL Gateway [default: http://localhost:8083]
    #[arg(long, value_name = "URL")]
    gateway: Option<String>,
    /// Verify the gateway's certificate with the certificate of this authority (PEM) [default: the
    /// authorities of the system]
    #[arg(long, value_name = "FILE")]
    gateway_ca: Option<PathBuf>,
    /// File with a token for a proxy in front of the gateway, readable by its owner only [default:
    /// none]
    #[arg(long, value_name = "FILE")]
    gateway_token_file: Option<PathBuf>,
    /// Kafka to which monitors or agents forward, with the same URL as there (`weir monitor
    /// --forward`), such as kafka://kafka1:9092,kafka2:9092/weir [default: that of
    /// --monitor-config]
    #[arg(long, value_name = "URL")]
    forward: Option<KafkaUrl>,
    /// Use the brokers, the certificates and the password of section `forward` of this file, the
    /// configuration of a monitor [default: none]
    #[arg(long, value_name = "FILE")]
    monitor_config: Option<PathBuf>,
    /// Topic of the results [default: PREFIX.NAME.results]
    #[arg(long, value_name = "TOPIC")]
    results: Option<String>,
}

/// How a job is started.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Flink")]
pub struct JobArgs {
    /// The agents forward the rows, each to topics of its host (`weir agent --forward`): start the
    /// job without a monitor
    #[arg(long)]
    pub agents: bool,
    /// Option of the connector of the tables that the job reads, such as
    /// properties.security.protocol=SASL_SSL; those that begin with `properties.` are also options
    /// of the results; may be repeated [default: topic, format and brokers of what is forwarded]
    #[arg(long, value_name = "KEY=VALUE", value_parser = option)]
    flink_with: Vec<(String, String)>,
    /// Setting of Flink for the job, such as state.backend.type=rocksdb; may be repeated [default:
    /// execution.checkpointing.interval=10 s]
    #[arg(long, value_name = "KEY=VALUE", value_parser = option)]
    flink_set: Vec<(String, String)>,
    /// Jar with weir's functions, as Flink finds it [default: they are in Flink's class path]
    #[arg(long, value_name = "PATH")]
    flink_jar: Option<String>,
    /// Tasks of each operator, at most as many as the topics have partitions [default: 1]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    parallelism: Option<u32>,
}

impl JobArgs {
    fn is_given(&self) -> bool {
        self.agents
            || !self.flink_with.is_empty()
            || !self.flink_set.is_empty()
            || self.flink_jar.is_some()
            || self.parallelism.is_some()
    }

    /// The settings of the job, and the tasks of each operator.
    fn settings(&self) -> Result<(Vec<(String, String)>, u32), Failure> {
        const PARALLELISM: &str = "parallelism.default";
        let is_set = |key: &str| self.flink_set.iter().any(|(set, _)| set == key);
        if is_set(PARALLELISM) {
            return Err(Failure::words(format_args!(
                "--flink-set {PARALLELISM}: use --parallelism"
            )));
        }
        let parallelism = self.parallelism.unwrap_or(1);
        let own = SETTINGS.iter().filter(|(key, _)| !is_set(key));
        let mut settings: Vec<(String, String)> = own
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        settings.push((PARALLELISM.into(), parallelism.to_string()));
        settings.extend(self.flink_set.iter().cloned());
        Ok((settings, parallelism))
    }
}

impl QueryEngine {
    /// Refuses options that this engine does not use; `more` if another one of these was given.
    ///
    /// # Errors
    /// If one was given.
    pub fn refuse(
        self,
        flink: &FlinkArgs,
        job: Option<&JobArgs>,
        more: bool,
    ) -> Result<(), Failure> {
        let is_given = flink.is_given() || job.is_some_and(JobArgs::is_given) || more;
        match self == QueryEngine::Monitor && is_given {
            true => Err(Failure::words(
                "the options of Flink, --agents, --job-only and --from-start are for --on flink",
            )),
            false => Ok(()),
        }
    }
}

/// The brokers, and the first part of the names of topics.
struct Topics {
    reader: Box<dyn BrokerReader>,
    url: KafkaUrl,
    /// They need TLS or a password.
    is_protected: bool,
}

impl FlinkArgs {
    /// Whether an option was given, which the monitor does not use.
    fn is_given(&self) -> bool {
        self.names_kafka()
            || self.gateway.is_some()
            || self.gateway_ca.is_some()
            || self.gateway_token_file.is_some()
            || self.results.is_some()
    }

    fn names_kafka(&self) -> bool {
        self.forward.is_some() || self.monitor_config.is_some()
    }

    fn address(&self) -> Result<FlinkAddress, Failure> {
        let token = self.gateway_token_file.as_deref();
        Ok(FlinkAddress {
            url: self.gateway.clone().unwrap_or_else(|| GATEWAY.into()),
            ca: self.gateway_ca.clone(),
            token: token.map(read_token).transpose()?,
        })
    }

    /// How Kafka is reached.
    fn kafka(&self) -> Result<(ForwardConfig, KafkaUrl), Failure> {
        let config = match &self.monitor_config {
            Some(file) => {
                let loaded = weir_runtime::config::load::<MonitorConfig>(Some(file), "")?;
                loaded.config.forward
            }
            None => ForwardConfig::default(),
        };
        let url = match (&self.forward, config.url()?) {
            (Some(url), _) => url.clone(),
            (None, Some(url)) => url,
            (None, None) => {
                return Err(Failure::words(
                    "--on flink needs the Kafka to which monitors or agents forward: --forward \
                     kafka://HOST:PORT[/PREFIX], or --monitor-config FILE",
                ));
            }
        };
        Ok((config, url))
    }

    fn topics(&self) -> Result<Topics, Failure> {
        let (mut config, url) = self.kafka()?;
        // The order of results is that of a partition.
        config.partitions = Some(1);
        let is_protected = config.tls.is_some() || config.sasl.is_some();
        Ok(Topics {
            reader: config.broker(&url)?,
            url,
            is_protected,
        })
    }

    fn results(&self, prefix: &str, name: &str) -> String {
        let own = || results_topic(prefix, name);
        self.results.clone().unwrap_or_else(own)
    }
}

/// A query that is placed in Flink.
pub struct FlinkPlacement {
    spec: JobSpec,
    gateway: FlinkAddress,
    topics: Topics,
    /// The jobs that were stopped for this one.
    stopped: Vec<String>,
}

impl FlinkPlacement {
    /// Checks that Flink can answer the query `name`, and that its job can be started or, with
    /// `replace`, take the place of another one. Nothing is changed yet.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn prepare(
        args: &FlinkArgs,
        job: &JobArgs,
        query: (&str, &str, &Plan),
        strategy: Option<&str>,
        replace: bool,
    ) -> Result<FlinkPlacement, Failure> {
        let topics = args.topics()?;
        let mut placement = FlinkPlacement {
            spec: spec(args, job, &topics.url, query, strategy)?,
            gateway: args.address()?,
            topics,
            stopped: Vec::new(),
        };
        let is_stated = |(key, _): &(String, String)| key == "properties.security.protocol";
        if placement.topics.is_protected && !job.flink_with.iter().any(is_stated) {
            output::notice(format_args!(
                "weir: Flink connects to these brokers without TLS and password; state \
                 --flink-with properties.security.protocol=.. (docs/flink.md)"
            ));
        }
        let (mut jobs, spec) = placement.jobs();
        jobs.prepare(spec, replace)?;
        Ok(placement)
    }

    fn jobs(&mut self) -> (JobPlacement<'_>, &JobSpec) {
        let jobs = JobPlacement {
            gateway: &self.gateway,
            reader: &mut *self.topics.reader,
            prefix: &self.topics.url.prefix,
        };
        (jobs, &self.spec)
    }

    /// Called before the query at the monitor is replaced.
    ///
    /// # Errors
    /// If Flink or Kafka cannot be reached.
    pub fn before_change(&mut self) -> Result<(), Failure> {
        let (mut jobs, spec) = self.jobs();
        self.stopped = jobs.stop_readers(spec)?;
        Ok(())
    }

    /// Finds the job, or starts it; prints which.
    ///
    /// # Errors
    /// If Flink or Kafka cannot be reached.
    pub fn place(mut self, name: &str, as_json: bool) -> Result<Ending, Failure> {
        let stopped = std::mem::take(&mut self.stopped);
        let (mut jobs, spec) = self.jobs();
        let placed = jobs.place(spec, stopped)?;
        output::print(&match as_json {
            true => format!("{}\n", placed_json(&placed, spec)),
            false => placed_text(&placed, spec, name),
        })?;
        if !placed.is_complete {
            output::notice(format_args!(
                "weir: Kafka does not have all rows of earlier windows: the first results are those \
                 of the rows that it has"
            ));
        }
        Ok(match &placed.waits {
            None => Ending::Done,
            Some(why) => {
                output::notice(format_args!(
                    "weir: job {} does not run yet: {why}",
                    placed.id
                ));
                Ending::Failed
            }
        })
    }
}

fn spec(
    args: &FlinkArgs,
    job: &JobArgs,
    url: &KafkaUrl,
    (name, text, plan): (&str, &str, &Plan),
    strategy: Option<&str>,
) -> Result<JobSpec, Failure> {
    let by = ForwardedBy::agents(job.agents);
    if job.flink_with.iter().any(|(key, _)| key == TOPIC_PATTERN) {
        return Err(Failure::words(format_args!(
            "--flink-with {TOPIC_PATTERN}: the topics that a job reads must be known; state them as \
             topic=FIRST;SECOND, or use --agents for those that agents forward to"
        )));
    }
    let translation = explain_flink::of_forwarded(plan, url, name, strategy, by)?;
    let (flink, sources) = translation.parts(&job.flink_with);
    let topic = args.results(&url.prefix, name);
    let result = ResultTable::new(&topic, plan, &flink).map_err(explain_flink::refused)?;
    let of_client = |(key, _): &&(String, String)| key.starts_with("properties.");
    let compression = sources
        .iter()
        .find(|(key, _)| key == "properties.compression.type");
    if let Some((_, other)) = compression
        && !COMPRESSIONS.contains(&other.as_str())
    {
        return Err(Failure::words(format_args!(
            "--flink-with properties.compression.type={other}: `weir fleet watch` reads results \
             that are not compressed, or with {}",
            COMPRESSIONS[1]
        )));
    }
    let (settings, parallelism) = job.settings()?;
    let columns = plan.schema.fields.iter().zip(&result.columns);
    let columns =
        columns.map(|(column, (field, ty))| ResultColumn::new(field, *ty, column.clone()));
    Ok(JobSpec {
        sink: sources.iter().filter(of_client).cloned().collect(),
        description: JobDescription {
            topic,
            query: name.to_owned(),
            text: text.to_owned(),
            columns: columns.collect(),
            sources: source_names(&flink, &sources),
            since: None,
        },
        jar: job.flink_jar.clone(),
        window: longest_window(plan),
        parallelism,
        flink,
        result,
        sources,
        settings,
    })
}

fn placed_json(placed: &PlacedJob, spec: &JobSpec) -> Value {
    let (started, replaced) = match &placed.started {
        JobStart::Existing => ("existing", &[][..]),
        JobStart::New => ("new", &[][..]),
        JobStart::Continued(replaced) => ("continued", &replaced[..]),
    };
    json!({
        "job": placed.id,
        "started": started,
        "replaced": replaced,
        "from": placed.from,
        "complete": placed.is_complete,
        "results": spec.result.name,
        "waits": placed.waits,
    })
}

fn placed_text(placed: &PlacedJob, spec: &JobSpec, name: &str) -> String {
    let PlacedJob { id, from, .. } = placed;
    let from = from.map_or(String::new(), |from| {
        format!(", from windows that end at {}", time::timestamp(from))
    });
    let what = match &placed.started {
        JobStart::Existing => format!("job {id} of Flink runs already"),
        JobStart::New => format!("job {id} of Flink was started"),
        JobStart::Continued(jobs) if jobs.is_empty() => {
            format!("job {id} of Flink continues an earlier one{from}")
        }
        JobStart::Continued(jobs) => {
            format!("job {id} of Flink replaces {}{from}", jobs.join(", "))
        }
    };
    format!(
        "{what}; `weir fleet watch {name} --on flink` prints its results (topic {})\n",
        spec.result.name
    )
}

/// Ends the job of a query; returns the jobs that have ended.
///
/// # Errors
/// If Flink cannot be reached.
pub fn cancel(args: &FlinkArgs, name: &str) -> Result<Vec<String>, Failure> {
    let (_, url) = args.kafka()?;
    let topic = args.results(&url.prefix, name);
    let session = FlinkSession::open(&args.address()?, &[]).map_err(failure)?;
    let jobs = FlinkJob::of_topic(&session, &topic).map_err(failure)?;
    if jobs.is_empty() {
        output::notice(format_args!(
            "weir: Flink runs no job with results in topic `{topic}`; `weir fleet queries --on \
             flink` lists the jobs"
        ));
    }
    for job in &jobs {
        job.stop(&session).map_err(failure)?;
    }
    Ok(jobs.into_iter().map(|job| job.id).collect())
}

/// The jobs that weir has started, of one prefix if `args` has one.
///
/// # Errors
/// If Flink cannot be reached.
pub fn jobs(args: &FlinkArgs) -> Result<Value, Failure> {
    let prefix = match args.names_kafka() {
        true => Some(format!("{}.", args.kafka()?.1.prefix)),
        false => None,
    };
    let session = FlinkSession::open(&args.address()?, &[]).map_err(failure)?;
    let jobs = FlinkJob::all(&session).map_err(failure)?;
    let is_of_it = |job: &&FlinkJob| prefix.as_ref().is_none_or(|p| job.topic.starts_with(p));
    let jobs = jobs.iter().filter(is_of_it).map(|job| {
        json!({
            "job": job.id,
            "state": job.state,
            "since": job.since,
            "results": job.topic,
            "number": job.number,
        })
    });
    Ok(jobs.collect())
}

/// Prints the rows that a job writes, each once.
///
/// # Errors
/// If there is no such job, or the output fails.
pub fn watch(
    args: &FlinkArgs,
    name: &str,
    output: &OutputArgs,
    span: Option<Duration>,
    from_start: bool,
) -> Result<Ending, Failure> {
    let Topics {
        mut reader, url, ..
    } = args.topics()?;
    let topic = args.results(&url.prefix, name);
    let found = JobDescription::find(&mut *reader, &url.prefix, &topic).map_err(at_kafka)?;
    let description = found.ok_or_else(|| {
        Failure::world(format_args!(
            "topic `{}` has no description of `{topic}`: place the query with `weir fleet place \
             {name} --on flink`; if it runs, that writes the description again",
            descriptions_topic(&url.prefix)
        ))
    })?;
    let schema = description.schema(output.raw);
    let mut results = JobResults::open(&mut *reader, description, from_start).map_err(at_kafka)?;
    let stop = Stop::on_signals()?;
    let mut sink = output.open(schema, true)?;
    let until = span.map(|span| Instant::now() + span);
    let mut is_away = false;
    let ending = loop {
        if let Some(number) = stop.signal() {
            break Ending::Signal(number);
        }
        let is_over = until.is_some_and(|until| Instant::now() >= until);
        if is_over || stop.is_abandoned() {
            break Ending::Done;
        }
        let batch = match results.next(&mut *reader) {
            Ok(batch) => batch,
            Err(error) => {
                if !std::mem::replace(&mut is_away, true) {
                    output::notice(format_args!("weir: Kafka: {error}; trying again"));
                }
                stop.wait(RETRY_AFTER);
                continue;
            }
        };
        is_away = false;
        let written = match batch.is_empty() {
            true => sink.flush(),
            false => sink.write(&batch).and_then(|()| sink.flush()),
        };
        match written {
            Ok(()) => {}
            Err(SinkError::Closed { .. }) => break Ending::Done,
            Err(error) => return Err(error.into()),
        }
    };
    match sink.finish() {
        Ok(()) | Err(SinkError::Closed { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let skipped = results.skipped();
    let reasons = [
        (
            skipped.repeated,
            "were written again by Flink, and are printed once",
        ),
        (skipped.unreadable, "are no rows of this query"),
        (skipped.deleted, "were deleted before they were read"),
    ];
    for (count, reason) in reasons {
        if count > 0 {
            output::notice(format_args!(
                "weir: {count} records of topic `{topic}` {reason}"
            ));
        }
    }
    Ok(ending)
}
