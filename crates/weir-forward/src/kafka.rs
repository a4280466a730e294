//! [`Kafka`]: the brokers of Kafka, by the crate `rskafka`.
//!
//! It waits for all in-sync replicas of a partition. It has neither transactions nor an idempotent
//! producer: what fails is sent again and may be there twice.

mod create;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::Utc;
use futures_util::future::join_all;
use rskafka::BackoffConfig;
use rskafka::client::error::{Error, ProtocolError};
use rskafka::client::partition::{Compression, OffsetAt, PartitionClient, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder, Credentials, SaslConfig};
use rskafka::record::Record as KafkaRecord;
use tokio::runtime::Runtime;
use weir_runtime::failure::Failure;

use crate::broker::{Broker, BrokerError, BrokerReader, BrokerRecord, PartitionBatch, ReadRecord};
use crate::config::{ForwardConfig, ForwardSasl, KafkaUrl, SaslMechanism};
use crate::topic::NewTopic;
use create::BrokerAccess;

/// How long a request is tried, with a connection that has failed in between.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// How often the numbers of partitions are read.
const COUNTS_EVERY: Duration = Duration::from_secs(60);

/// The number of topics from which on they are read less often, since the brokers list all topics
/// for each reader.
const TOPICS_MANY: u32 = 1_000;

/// How often a topic that was created is looked for, and the pause in between.
const VISIBLE_ATTEMPTS: u32 = 20;
const VISIBLE_PAUSE: Duration = Duration::from_millis(100);

/// The greatest size of the records of one request.
const FETCH_BYTES_MAX: i32 = 4 << 20;

/// The greatest size of a password file.
const PASSWORD_BYTES_MAX: u64 = 4 << 10;

/// The brokers of Kafka. A client that fails is replaced by a new one.
pub struct Kafka {
    runtime: Runtime,
    config: ForwardConfig,
    prefix: String,
    access: BrokerAccess,
    client: Option<Connection>,
}

/// A client, and the topics that it has found.
struct Connection {
    client: Client,
    /// When the numbers of partitions were read.
    read_at: Instant,
    counts: HashMap<String, u32>,
    partitions: HashMap<(String, u32), Arc<PartitionClient>>,
}

impl Kafka {
    /// The brokers of `url`; it does not connect yet.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub fn new(config: &ForwardConfig, url: &KafkaUrl) -> Result<Kafka, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Failure::world(format_args!("no runtime for the client of Kafka: {e}")))?;
        let tls = config.tls.as_ref().map(|tls| {
            let identity = tls.certificate.as_deref().zip(tls.key.as_deref());
            weir_wire::client_tls(&tls.ca, identity)
        });
        let tls = tls.transpose().map_err(Failure::words)?;
        let sasl = config.sasl.as_ref().map(credentials).transpose()?;
        Ok(Kafka {
            runtime,
            config: config.clone(),
            prefix: url.prefix.clone(),
            access: BrokerAccess {
                brokers: url.brokers.clone(),
                tls,
                sasl,
            },
            client: None,
        })
    }

    /// Connects, if there is no client.
    fn connected(&mut self) -> Result<(), BrokerError> {
        if self.client.is_some() {
            return Ok(());
        }
        let backoff = BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(2),
            deadline: Some(REQUEST_TIMEOUT),
            ..BackoffConfig::default()
        };
        let BrokerAccess { brokers, tls, sasl } = &self.access;
        let mut builder = ClientBuilder::new(brokers.clone())
            .client_id("weir")
            .backoff_config(backoff);
        if let Some(tls) = tls {
            builder = builder.tls_config(tls.clone());
        }
        if let Some(sasl) = sasl {
            builder = builder.sasl_config(sasl.clone());
        }
        let client = self.runtime.block_on(within(builder.build()))?;
        self.client = Some(Connection {
            client,
            read_at: Instant::now(),
            counts: HashMap::new(),
            partitions: HashMap::new(),
        });
        Ok(())
    }

    /// The results of requests; after an error, the next request has a new client.
    fn noted<T>(&mut self, result: Result<T, BrokerError>) -> Result<T, BrokerError> {
        if result.as_ref().is_err_and(|error| !error.is_final) {
            self.client = None;
        }
        result
    }
}

impl Broker for Kafka {
    fn partitions(&mut self, topic: &str) -> Result<u32, BrokerError> {
        self.connected()?;
        let new = self.config.new_topic(&self.prefix, topic);
        let connection = self.client.as_mut().expect("it is connected");
        // Each partition needs watermarks, also those that an administrator adds.
        let topics = u32::try_from(connection.counts.len()).unwrap_or(u32::MAX);
        if connection.read_at.elapsed() > COUNTS_EVERY * (topics / TOPICS_MANY).max(1) {
            connection.read_at = Instant::now();
            connection.counts.clear();
        }
        if let Some(count) = connection.counts.get(topic) {
            return Ok(*count);
        }
        let found = self
            .runtime
            .block_on(found_or_created(connection, &self.access, &new));
        self.noted(found)
    }

    fn append(&mut self, batches: Vec<PartitionBatch>) -> Vec<Result<(), BrokerError>> {
        if let Err(error) = self.connected() {
            return batches.iter().map(|_| Err(error.clone())).collect();
        }
        let connection = self.client.as_mut().expect("it is connected");
        let results = self.runtime.block_on(produced(connection, batches));
        results
            .into_iter()
            .map(|result| self.noted(result))
            .collect()
    }
}

impl BrokerReader for Kafka {
    fn existing(&mut self, topic: &str) -> Result<Option<u32>, BrokerError> {
        self.connected()?;
        let connection = self.client.as_mut().expect("it is connected");
        let found = self.runtime.block_on(found(connection, topic));
        self.noted(found)
    }

    fn topics(&mut self, prefix: &str) -> Result<BTreeMap<String, u32>, BrokerError> {
        self.connected()?;
        let connection = self.client.as_mut().expect("it is connected");
        let found = self.runtime.block_on(find_all(connection));
        self.noted(found)?;
        let client = self.client.as_ref().expect("it is connected");
        let counts = client.counts.iter();
        let topics = counts.filter(|(name, _)| name.starts_with(prefix));
        Ok(topics.map(|(name, count)| (name.clone(), *count)).collect())
    }

    fn offsets(&mut self, topic: &str, partition: u32) -> Result<(i64, i64), BrokerError> {
        self.connected()?;
        let connection = self.client.as_mut().expect("it is connected");
        let found = self.runtime.block_on(async {
            let client = partition_client(connection, topic, partition).await?;
            let first = within(client.get_offset(OffsetAt::Earliest)).await?;
            Ok((first, within(client.get_offset(OffsetAt::Latest)).await?))
        });
        self.noted(found)
    }

    fn read(
        &mut self,
        topic: &str,
        partition: u32,
        offset: i64,
        wait: Duration,
    ) -> Result<Vec<ReadRecord>, BrokerError> {
        self.connected()?;
        let connection = self.client.as_mut().expect("it is connected");
        let wait = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
        let found = self.runtime.block_on(async {
            let client = partition_client(connection, topic, partition).await?;
            within(client.fetch_records(offset, 1..FETCH_BYTES_MAX, wait)).await
        });
        let (records, _) = self.noted(found)?;
        let records = records.into_iter().map(|found| ReadRecord {
            offset: found.offset,
            record: BrokerRecord {
                key: found.record.key.unwrap_or_default(),
                value: found.record.value.unwrap_or_default(),
            },
        });
        Ok(records.collect())
    }
}

/// Finds all topics; returns the number of partitions of one.
async fn found(connection: &mut Connection, topic: &str) -> Result<Option<u32>, BrokerError> {
    find_all(connection).await?;
    Ok(connection.counts.get(topic).copied())
}

/// Finds all topics and the numbers of their partitions.
async fn find_all(connection: &mut Connection) -> Result<(), BrokerError> {
    let topics = within(connection.client.list_topics()).await?;
    connection.counts.clear();
    for topic in topics {
        let count = topic.partitions.len() as u32;
        // A topic that is being created or deleted has none.
        if count > 0 {
            connection.counts.insert(topic.name, count);
        }
    }
    Ok(())
}

/// Finds the number of partitions of a topic, or creates it.
async fn found_or_created(
    connection: &mut Connection,
    access: &BrokerAccess,
    topic: &NewTopic,
) -> Result<u32, BrokerError> {
    if let Some(count) = found(connection, &topic.name).await? {
        return Ok(count);
    }
    access.create(topic).await.map_err(|why| BrokerError {
        why,
        is_final: false,
    })?;
    // Another process may have created it, with another number of partitions.
    for _ in 0..VISIBLE_ATTEMPTS {
        if let Some(count) = found(connection, &topic.name).await? {
            return Ok(count);
        }
        tokio::time::sleep(VISIBLE_PAUSE).await;
    }
    Err(BrokerError {
        why: format!("topic `{}` is being created", topic.name),
        is_final: false,
    })
}

/// Sends all batches at the same time.
async fn produced(
    connection: &mut Connection,
    batches: Vec<PartitionBatch>,
) -> Vec<Result<(), BrokerError>> {
    let mut requests = Vec::with_capacity(batches.len());
    for batch in batches {
        let client = partition_client(connection, &batch.topic, batch.partition).await;
        requests.push(async move {
            let records = kafka_records(batch.records);
            within(client?.produce(records, Compression::Snappy)).await?;
            Ok(())
        });
    }
    join_all(requests).await
}

async fn partition_client(
    connection: &mut Connection,
    topic: &str,
    partition: u32,
) -> Result<Arc<PartitionClient>, BrokerError> {
    let key = (topic.to_owned(), partition);
    if let Some(client) = connection.partitions.get(&key) {
        return Ok(client.clone());
    }
    let number = i32::try_from(partition).unwrap_or(i32::MAX);
    let client = connection
        .client
        .partition_client(topic, number, UnknownTopicHandling::Error);
    let client = Arc::new(within(client).await?);
    connection.partitions.insert(key, client.clone());
    Ok(client)
}

fn kafka_records(records: Vec<BrokerRecord>) -> Vec<KafkaRecord> {
    let timestamp = Utc::now();
    let records = records.into_iter().map(|record| KafkaRecord {
        key: Some(record.key),
        value: Some(record.value),
        headers: Default::default(),
        timestamp,
    });
    records.collect()
}

/// The result of a request, unless it takes longer than the library should try it.
async fn within<T>(request: impl Future<Output = Result<T, Error>>) -> Result<T, BrokerError> {
    let timeout = tokio::time::timeout(2 * REQUEST_TIMEOUT, request).await;
    let result = timeout.map_err(|_| BrokerError {
        why: "no answer from Kafka".into(),
        is_final: false,
    })?;
    result.map_err(broker_error)
}

fn broker_error(error: Error) -> BrokerError {
    let is_final = matches!(
        &error,
        Error::ServerError {
            protocol_error: ProtocolError::MessageTooLarge
                | ProtocolError::RecordListTooLarge
                | ProtocolError::InvalidRecord,
            ..
        }
    );
    BrokerError {
        why: weir_wire::causes(&error),
        is_final,
    }
}

fn credentials(sasl: &ForwardSasl) -> Result<SaslConfig, Failure> {
    let password = weir_wire::read_secret(&sasl.password_file, PASSWORD_BYTES_MAX);
    let password = password.map_err(Failure::words)?;
    let password = password.trim_end_matches(['\r', '\n']).to_owned();
    let credentials = Credentials::new(sasl.user.clone(), password);
    Ok(match sasl.mechanism {
        SaslMechanism::Plain => SaslConfig::Plain(credentials),
        SaslMechanism::ScramSha256 => SaslConfig::ScramSha256(credentials),
        SaslMechanism::ScramSha512 => SaslConfig::ScramSha512(credentials),
    })
}
