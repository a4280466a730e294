//! The sender: a thread that sends the spool's messages, in order, and tries again what fails.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::broker::{Broker, BrokerError, BrokerRecord, PartitionBatch};
use crate::message::{TargetPartition, TopicMessage};
use crate::spool::{Chunk, ForwardSpoolReader};

/// How often the sender polls for its end, and for new messages.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The pause after a failure, and its maximum: it doubles with each.
const PAUSE: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(5)];

/// How long the sender has for what is left when it has to stop.
pub(crate) const LAST_ATTEMPTS: Duration = Duration::from_secs(5);

/// The interval at which the position of what was sent is saved.
const SAVE_EVERY: Duration = Duration::from_secs(1);

/// The bytes of one request to a broker.
const REQUEST_BYTES: usize = 256 << 10;

/// What the sender and its owner share.
#[derive(Debug, Default)]
pub struct SenderState {
    stops: AtomicBool,
    sent: AtomicU64,
    /// The requests of messages that the broker refused since they were last read.
    pub(crate) refused: AtomicU64,
    failure: Mutex<Option<String>>,
}

/// What a sender has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SenderStatus {
    /// The messages that were acknowledged.
    pub sent: u64,
    /// Why messages are not being sent.
    pub failure: Option<String>,
}

impl SenderState {
    /// The present state.
    pub fn status(&self) -> SenderStatus {
        SenderStatus {
            sent: self.sent.load(Ordering::Relaxed),
            failure: self.failure().clone(),
        }
    }

    /// Ends the thread, after some attempts to send the rest.
    pub fn stop(&self) {
        self.stops.store(true, Ordering::Relaxed);
    }

    fn failure(&self) -> MutexGuard<'_, Option<String>> {
        self.failure.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn stops(&self) -> bool {
        self.stops.load(Ordering::Relaxed)
    }
}

/// Records by topic and partition, with the requests that each stands for.
type Waiting = BTreeMap<(String, u32), VecDeque<(BrokerRecord, u64)>>;

/// Sends until `state` stops it.
pub(crate) fn run(reader: ForwardSpoolReader, broker: Box<dyn Broker>, state: &SenderState) {
    let mut sender = Sender {
        reader,
        broker,
        state,
        pause: PAUSE[0],
        saved_at: Instant::now(),
        last: None,
    };
    while !sender.is_over() {
        match sender.reader.next(POLL_INTERVAL) {
            Ok(Some(chunk)) => sender.deliver(chunk),
            Ok(None) if state.stops() && sender.reader.is_empty() => break,
            Ok(None) => {}
            Err(error) => sender.has_failed(&format!("the spool cannot be read: {error}")),
        }
        if sender.saved_at.elapsed() >= SAVE_EVERY {
            sender.save();
        }
    }
    sender.save();
}

struct Sender<'a> {
    reader: ForwardSpoolReader,
    broker: Box<dyn Broker>,
    state: &'a SenderState,
    /// The pause after the next failure.
    pause: Duration,
    saved_at: Instant,
    /// When the last attempts end.
    last: Option<Instant>,
}

impl Sender<'_> {
    /// Whether it has to stop, and the time for the last attempts has passed.
    fn is_over(&mut self) -> bool {
        if !self.state.stops() {
            return false;
        }
        let now = Instant::now();
        now >= *self.last.get_or_insert(now + LAST_ATTEMPTS)
    }

    /// Sends a chunk, however often it takes.
    fn deliver(&mut self, chunk: Chunk) {
        while let Err(error) = self.try_deliver(&chunk) {
            self.has_failed(&error.why);
            if self.is_over() {
                return;
            }
        }
        self.has_succeeded();
        let count = chunk.messages.len() as u64;
        self.state.sent.fetch_add(count, Ordering::Relaxed);
        self.reader.acknowledge(chunk);
    }

    /// Sends a chunk. After an error, all of it is sent again: topics may have changed.
    fn try_deliver(&mut self, chunk: &Chunk) -> Result<(), BrokerError> {
        let mut waiting = self.partitions(&chunk.messages)?;
        while !waiting.is_empty() {
            self.send(&mut waiting)?;
            if self.is_over() {
                return Err(BrokerError {
                    why: "the monitor ends".into(),
                    is_final: false,
                });
            }
        }
        Ok(())
    }

    /// The messages by topic and partition, in order.
    fn partitions(&mut self, messages: &[TopicMessage]) -> Result<Waiting, BrokerError> {
        let mut waiting = Waiting::new();
        for message in messages {
            let count = self.broker.partitions(&message.topic)?.max(1);
            let partitions = match message.partition {
                TargetPartition::Of(number) => number % count..number % count + 1,
                TargetPartition::All => 0..count,
            };
            for partition in partitions {
                let record = BrokerRecord {
                    key: message.key.clone(),
                    value: message.value.clone(),
                };
                let queue = waiting.entry((message.topic.clone(), partition));
                queue.or_default().push_back((record, message.requests));
            }
        }
        Ok(waiting)
    }

    /// Sends the first records of each partition, and removes those that were acknowledged or
    /// refused.
    fn send(&mut self, waiting: &mut Waiting) -> Result<(), BrokerError> {
        let batches = waiting.iter().map(|((topic, partition), queue)| {
            let mut bytes = 0;
            let fits = |(record, _): &&(BrokerRecord, u64)| {
                bytes += record.key.len() + record.value.len();
                bytes <= REQUEST_BYTES
            };
            let count = queue.iter().take_while(fits).count().max(1);
            let records = queue.iter().take(count).map(|(record, _)| record.clone());
            PartitionBatch {
                topic: topic.clone(),
                partition: *partition,
                records: records.collect(),
            }
        });
        let batches: Vec<PartitionBatch> = batches.collect();
        let counts: Vec<usize> = batches.iter().map(|batch| batch.records.len()).collect();
        let keys: Vec<(String, u32)> = waiting.keys().cloned().collect();
        let results = self.broker.append(batches);
        let mut failed = Ok(());
        for ((key, count), result) in keys.into_iter().zip(counts).zip(results) {
            let queue = waiting.get_mut(&key).expect("it was sent from there");
            match result {
                Ok(()) => drop(queue.drain(..count)),
                Err(error) if error.is_final => self.send_alone(&key, queue, count)?,
                Err(error) => failed = Err(error),
            }
        }
        waiting.retain(|_, queue| !queue.is_empty());
        failed
    }

    /// Sends records one by one after they were refused together, so that those that are refused do
    /// not hold up the others.
    fn send_alone(
        &mut self,
        (topic, partition): &(String, u32),
        queue: &mut VecDeque<(BrokerRecord, u64)>,
        count: usize,
    ) -> Result<(), BrokerError> {
        for _ in 0..count {
            let Some((record, requests)) = queue.front() else {
                break;
            };
            let (record, requests) = (record.clone(), *requests);
            let batch = PartitionBatch {
                topic: topic.clone(),
                partition: *partition,
                records: vec![record],
            };
            match self.broker.append(vec![batch]).swap_remove(0) {
                Err(error) if !error.is_final => return Err(error),
                Err(error) => self.refused(topic, requests, &error),
                Ok(()) => {}
            }
            queue.pop_front();
        }
        Ok(())
    }

    fn refused(&self, topic: &str, requests: u64, error: &BrokerError) {
        tracing::warn!(topic = %topic, requests, reason = %error, "a message is refused and lost");
        self.state.refused.fetch_add(requests, Ordering::Relaxed);
    }

    /// Reports a failure the first time, and waits.
    fn has_failed(&mut self, why: &str) {
        let mut failure = self.state.failure();
        if failure.as_deref() != Some(why) {
            tracing::warn!(reason = %why, "messages are not being forwarded; they wait in the spool");
            *failure = Some(why.to_owned());
        }
        drop(failure);
        let until = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(PAUSE[1]);
        while Instant::now() < until && !self.is_over() {
            std::thread::sleep(POLL_INTERVAL.min(until.saturating_duration_since(Instant::now())));
        }
    }

    fn has_succeeded(&mut self) {
        self.pause = PAUSE[0];
        if self.state.failure().take().is_some() {
            tracing::info!("messages are being forwarded again");
        }
    }

    fn save(&mut self) {
        self.saved_at = Instant::now();
        if let Err(error) = self.reader.save() {
            tracing::warn!(reason = %error, "the position in the spool cannot be saved");
        }
    }
}
