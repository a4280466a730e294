//! What the agents of a fleet send, forwarded to Kafka: for a fleet that one monitor does not
//! serve, for long retention and for replay.
//!
//! ```text
//! rows of a channel ──encode──▶ messages ──▶ spool (files) ──▶ sender (thread) ──▶ Kafka
//! ```
//!
//! 1. [`TopicRows`] makes a message of each row, or of the content of a relation: columns that
//!    other programs read, in Avro or in JSON ([`rows`]).
//! 2. [`ForwardSpool`] appends messages to files of bounded size. When they are full, the oldest
//!    messages are dropped, and counted.
//! 3. The sender ([`sender`]) sends messages in order, and removes them once Kafka has acknowledged
//!    them. Whatever fails, it tries again: a message may arrive twice, with the same key and the
//!    same content, and is lost only where that is counted. After a restart, the content of a
//!    relation may be another one with the same key, which replaces the earlier one.
//! 4. [`Forwarder`] is all of it.
//!
//! The messages of a topic, per partition, are in the order in which the monitor received the rows.
//! Watermarks are among them: no row at or before the instant of a watermark follows it.

mod broker;
pub mod config;
mod form;
#[cfg(feature = "kafka")]
mod kafka;
pub mod message;
mod names;
pub mod rows;
pub mod sender;
pub mod spool;
mod topic;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_model::{Batch, NANOS_PER_SECOND, Nanos};
use weir_query::place::fleet::Cut;
use weir_runtime::failure::Failure;

pub use broker::{Broker, BrokerError, BrokerReader, BrokerRecord, PartitionBatch, ReadRecord};
pub use config::{ForwardConfig, ForwardedQuery, KafkaUrl};
pub use form::instant_of;
pub use message::{TargetPartition, TopicMessage};
pub use names::{
    TopicUse, description_key, descriptions_topic, fleet_topic, host_topic, host_topics,
    results_topic, shared_topic,
};
pub use rows::{RowOrigin, TopicRows};
pub use sender::{SenderState, SenderStatus};
use spool::ForwardSpool;
pub use topic::NewTopic;

/// The greatest content of a relation that is forwarded: brokers refuse larger messages by default.
const CONTENT_BYTES_MAX: usize = 1_000_000;

/// The interval of watermarks.
const WATERMARK_EVERY: Nanos = NANOS_PER_SECOND;

/// The interval of the descriptions of topics, which brokers keep for a limited time.
const DESCRIPTION_EVERY: Nanos = 3_600 * NANOS_PER_SECOND;

/// The same where each host has topics of its own, whose descriptions are the same.
const DESCRIPTION_OF_HOST_EVERY: Nanos = 24 * DESCRIPTION_EVERY;

/// The rows of a fragment that are forwarded.
struct ForwardedRows {
    rows: TopicRows,
    /// What it contains.
    description: TopicMessage,
    /// The watermark when the description was sent last.
    described_at: Option<Nanos>,
    /// Rows that could not be encoded were reported.
    has_warned: bool,
}

/// The brokers that rows are sent to: their certificates and passwords were read, and nothing is
/// connected yet.
pub struct ForwardTarget {
    prefix: String,
    topics: TopicUse,
    broker: Box<dyn Broker>,
    spool_bytes: u64,
}

impl ForwardedRows {
    /// Reports once that some are not forwarded.
    fn warn(&mut self, name: &str, why: &str) {
        if !std::mem::replace(&mut self.has_warned, true) {
            tracing::warn!(rows = %name, reason = %why, "rows are not forwarded");
        }
    }

    /// The description of rows of which there will be no more.
    fn ended(self) -> TopicMessage {
        let mut described: serde_json::Value =
            serde_json::from_slice(&self.description.value).expect("it is written as JSON");
        described["ended"] = true.into();
        TopicMessage {
            value: described.to_string().into_bytes(),
            ..self.description
        }
    }
}

impl ForwardConfig {
    /// What rows are forwarded to, if to anything.
    ///
    /// # Errors
    /// If a file cannot be used, or this program has no client of Kafka.
    pub fn target(&self) -> Result<Option<ForwardTarget>, Failure> {
        let Some(url) = self.url()? else {
            return Ok(None);
        };
        Ok(Some(ForwardTarget {
            broker: self.broker(&url)?,
            prefix: url.prefix,
            topics: url.topics,
            spool_bytes: self.spool.0 as u64,
        }))
    }
}

/// Forwards what agents send. See the module's documentation.
pub struct Forwarder {
    prefix: String,
    topics: TopicUse,
    /// The only host whose rows are forwarded: its topics have its name.
    host: Option<String>,
    /// By the names of the rows.
    forwarded: BTreeMap<String, ForwardedRows>,
    /// The last watermark in each topic.
    watermarks: BTreeMap<String, Nanos>,
    spool: ForwardSpool,
    sender: Arc<SenderState>,
    thread: Option<JoinHandle<()>>,
    /// Messages that could not be made or stored, by cause, since the last call of
    /// [`Forwarder::take_lost`].
    lost: BTreeMap<&'static str, u64>,
    lost_ever: u64,
}

impl Forwarder {
    /// Opens the spool in `directory`, and starts to send to what `config` names.
    ///
    /// # Errors
    /// If the configuration names no broker, or the directory or a file cannot be used.
    pub fn open(config: &ForwardConfig, directory: &Path) -> Result<Option<Forwarder>, Failure> {
        let target = config.target()?;
        let forwarder = target.map(|target| Forwarder::start(target, directory));
        forwarder.transpose()
    }

    /// Opens the spool in `directory`, and starts to send to `target`.
    ///
    /// # Errors
    /// If the directory cannot be used.
    pub fn start(target: ForwardTarget, directory: &Path) -> Result<Forwarder, Failure> {
        let ForwardTarget {
            prefix,
            topics,
            broker,
            spool_bytes,
        } = target;
        let forwarder = Forwarder::with_broker(prefix, broker, directory, spool_bytes)?;
        Ok(forwarder.with_topics(topics))
    }

    /// As [`Forwarder::open`], with this broker; the spool has at most `bytes_max`.
    ///
    /// # Errors
    /// If the directory cannot be used.
    pub fn with_broker(
        prefix: String,
        broker: Box<dyn Broker>,
        directory: &Path,
        bytes_max: u64,
    ) -> Result<Forwarder, Failure> {
        let (spool, reader) = ForwardSpool::open(directory, bytes_max)
            .map_err(|e| Failure::world(format_args!("{}: {e}", directory.display())))?;
        let sender = Arc::new(SenderState::default());
        let state = sender.clone();
        let thread = std::thread::Builder::new()
            .name("weir-forward".into())
            .spawn(move || sender::run(reader, broker, &state))
            .map_err(|e| Failure::world(format_args!("no thread to forward rows: {e}")))?;
        Ok(Forwarder {
            prefix,
            topics: TopicUse::PerQuery,
            host: None,
            forwarded: BTreeMap::new(),
            watermarks: BTreeMap::new(),
            spool,
            sender,
            thread: Some(thread),
            lost: BTreeMap::new(),
            lost_ever: 0,
        })
    }

    /// Forwards the rows of one host, to topics of this host: their watermarks are its own, since
    /// nothing is known here about other hosts.
    #[must_use]
    pub fn of_host(mut self, host: &str) -> Forwarder {
        self.host = Some(host.to_owned());
        self
    }

    /// Forwards rows to these topics.
    #[must_use]
    pub fn with_topics(mut self, topics: TopicUse) -> Forwarder {
        self.topics = topics;
        self
    }

    /// Begins to forward the rows with this number of `query`, which was cut; returns their name.
    ///
    /// # Errors
    /// Why they cannot be forwarded: a clause without full stop.
    pub fn add(&mut self, query: &str, cut: &Cut, number: usize) -> Result<String, String> {
        let name = self.topics.rows(&self.prefix, query, cut, number);
        let of_fleet = self.topics.topic(&self.prefix, &name);
        let topic = match &self.host {
            Some(host) => host_topic(&of_fleet, host),
            None => of_fleet.clone(),
        };
        let rows = match self.topics {
            TopicUse::PerQuery => TopicRows::new(&topic, cut, number)?,
            TopicUse::Shared => TopicRows::shared(&topic, &name, cut, number)?,
        };
        let mut described = rows.description(query, cut, number);
        // That of all hosts is the same.
        described["topic"] = of_fleet.clone().into();
        if self.host.is_some() {
            described["topics"] = host_topics(&of_fleet).into();
        }
        let description = TopicMessage {
            topic: descriptions_topic(&self.prefix),
            partition: TargetPartition::Of(0),
            key: description_key(&of_fleet, &name).into_bytes(),
            value: described.to_string().into_bytes(),
            requests: 0,
        };
        let forwarded = ForwardedRows {
            rows,
            description,
            described_at: None,
            has_warned: false,
        };
        self.forwarded.insert(name.clone(), forwarded);
        Ok(name)
    }

    /// The topic of rows.
    pub fn topic(&self, name: &str) -> Option<&str> {
        let forwarded = self.forwarded.get(name)?;
        Some(forwarded.rows.topic())
    }

    /// For rows of a relation, the interval at whose multiples its content is to be forwarded.
    pub fn content_every(&self, name: &str) -> Option<Nanos> {
        self.forwarded.get(name)?.rows.content_every()
    }

    /// Ends the forwarding of rows. Their description states it, unless it is that of all hosts.
    pub fn remove(&mut self, name: &str) {
        let Some(removed) = self.forwarded.remove(name) else {
            return;
        };
        if removed.described_at.is_some() && self.host.is_none() {
            self.push(removed.ended());
        }
        let topics = || self.forwarded.values().map(|f| f.rows.topic());
        self.watermarks
            .retain(|topic, _| topics().any(|of| of == topic));
    }

    /// Forwards some of the rows with this name.
    pub fn rows(&mut self, name: &str, origin: &RowOrigin<'_>, batch: &Batch) {
        let Some(forwarded) = self.forwarded.get_mut(name) else {
            return;
        };
        match forwarded.rows.messages(origin, batch) {
            Ok(messages) => messages.into_iter().for_each(|message| self.push(message)),
            // One of them: the others are not lost.
            Err(_) if batch.len() > 1 => (0..batch.len()).for_each(|row| {
                let first = origin.first + row;
                let origin = RowOrigin { first, ..*origin };
                self.rows(name, &origin, &batch.slice(row, 1));
            }),
            Err(why) => {
                forwarded.warn(name, &why);
                self.lose("not_encoded", batch.requests(origin.counts));
            }
        }
    }

    /// Forwards the content of the relation with this name at an instant, as far as it is that of
    /// a host: these rows, each once. `epoch` is the random number of the agent's process.
    pub fn content(&mut self, name: &str, host: &str, epoch: u64, at: Nanos, rows: &Batch) {
        let Some(forwarded) = self.forwarded.get_mut(name) else {
            return;
        };
        let requests = rows::requests_of(rows.len());
        match forwarded.rows.content(host, epoch, at, rows) {
            Ok(message) if message.value.len() > CONTENT_BYTES_MAX => {
                forwarded.warn(name, "the content of a host is larger than 1 MB");
                self.lose("too_large", requests);
            }
            Ok(message) => self.push(message),
            Err(why) => {
                forwarded.warn(name, &why);
                self.lose("not_encoded", requests);
            }
        }
    }

    /// The content of a host, with so many rows, is too large to be forwarded.
    pub fn content_is_too_large(&mut self, name: &str, rows: u64) {
        if let Some(forwarded) = self.forwarded.get_mut(name) {
            forwarded.warn(name, "the content of a host has too many rows");
            self.lose("too_large", rows);
        }
    }

    /// Forwards the watermark of the fleet, once per second: no rows at or before `watermark`
    /// follow. Then writes all messages to the spool's files.
    pub fn advance(&mut self, watermark: Nanos) {
        let lost = self.lost();
        let describe_every = match self.host {
            Some(_) => DESCRIPTION_OF_HOST_EVERY,
            None => DESCRIPTION_EVERY,
        };
        let mut due = Vec::new();
        for forwarded in self.forwarded.values_mut() {
            let described = forwarded.described_at;
            if described.is_none_or(|at| watermark.saturating_sub(at) >= describe_every) {
                forwarded.described_at = Some(watermark);
                due.push(Ok(forwarded.description.clone()));
            }
            // Rows of several names may have one topic.
            let topic = forwarded.rows.topic();
            let last = self.watermarks.get(topic).copied().unwrap_or(Nanos::MIN);
            if watermark.saturating_sub(last) >= WATERMARK_EVERY {
                self.watermarks.insert(topic.to_owned(), watermark);
                due.push(forwarded.rows.watermark(watermark, lost));
            }
        }
        for message in due {
            match message {
                Ok(message) => self.push(message),
                Err(why) => tracing::warn!(reason = %why, "a watermark is not forwarded"),
            }
        }
        self.flush();
    }

    /// Writes all messages to the spool's files.
    pub fn flush(&mut self) {
        if let Err(error) = self.spool.flush() {
            let requests = self.spool.take_unwritten();
            tracing::warn!(reason = %error, requests, "messages are lost: the spool is not writable");
            self.lose("spool_failed", requests);
        }
    }

    fn push(&mut self, message: TopicMessage) {
        self.spool.push(&message);
    }

    fn lose(&mut self, cause: &'static str, requests: u64) {
        *self.lost.entry(cause).or_default() += requests;
        self.lost_ever = self.lost_ever.saturating_add(requests);
    }

    /// The requests of all rows that were lost; those that the broker refused are among them once
    /// [`Forwarder::take_lost`] was called.
    pub fn lost(&self) -> u64 {
        self.lost_ever.saturating_add(self.spool.lost())
    }

    /// The requests of the rows that were lost since the last call, by cause.
    pub fn take_lost(&mut self) -> BTreeMap<&'static str, u64> {
        let mut lost = std::mem::take(&mut self.lost);
        for (cause, requests) in self.spool.take_lost() {
            *lost.entry(cause).or_default() += requests;
        }
        let refused = self.sender.refused.swap(0, Ordering::Relaxed);
        if refused > 0 {
            *lost.entry("refused").or_default() += refused;
            self.lost_ever = self.lost_ever.saturating_add(refused);
        }
        lost
    }

    /// The state of the sender, and the bytes that wait.
    pub fn status(&self) -> (SenderStatus, u64) {
        (self.sender.status(), self.spool.waiting_bytes())
    }

    /// Waits until Kafka has all messages, for some seconds; the rest stays in the spool. Returns
    /// its bytes.
    pub fn close(mut self) -> u64 {
        self.flush();
        self.sender.stop();
        let Some(thread) = self.thread.take() else {
            return self.spool.waiting_bytes();
        };
        // A request that is under way is not waited for: its messages are in the spool.
        let began = Instant::now();
        while !thread.is_finished() && began.elapsed() < sender::LAST_ATTEMPTS {
            std::thread::sleep(Duration::from_millis(5));
        }
        if thread.is_finished() {
            // The panic message was printed by the thread.
            let _ = thread.join();
        }
        self.spool.waiting_bytes()
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.sender.stop();
    }
}
