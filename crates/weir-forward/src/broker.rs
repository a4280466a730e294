//! [`Broker`]: what a sender needs of a message broker.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// A message as a broker stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerRecord {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
}

/// Records for one partition of a topic, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionBatch {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: u32,
    /// The records.
    pub records: Vec<BrokerRecord>,
}

/// A message broker with topics of partitions. Its methods block.
pub trait Broker: Send {
    /// The number of partitions of a topic, which is created if it does not exist.
    ///
    /// # Errors
    /// If the broker does not answer or refuses.
    fn partitions(&mut self, topic: &str) -> Result<u32, BrokerError>;

    /// Appends batches of different partitions, at the same time. The result of a batch is `Ok` if
    /// the broker has stored it as durably as the topic is; otherwise it may have been stored.
    fn append(&mut self, batches: Vec<PartitionBatch>) -> Vec<Result<(), BrokerError>>;
}

/// A record of a partition, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRecord {
    /// The number in the partition.
    pub offset: i64,
    /// The record.
    pub record: BrokerRecord,
}

/// A message broker whose topics are read. Its methods block.
pub trait BrokerReader: Broker {
    /// The number of partitions of a topic, if it exists.
    ///
    /// # Errors
    /// If the broker does not answer or refuses.
    fn existing(&mut self, topic: &str) -> Result<Option<u32>, BrokerError>;

    /// The topics whose names begin with `prefix`, with the numbers of their partitions.
    ///
    /// # Errors
    /// If the broker does not answer or refuses.
    fn topics(&mut self, prefix: &str) -> Result<BTreeMap<String, u32>, BrokerError>;

    /// The numbers of the first record of a partition and of the one that will be appended next.
    ///
    /// # Errors
    /// If the broker does not answer, or there is no such partition.
    fn offsets(&mut self, topic: &str, partition: u32) -> Result<(i64, i64), BrokerError>;

    /// Records of a partition from `offset` on. Waits for the first one for at most `wait`, and may
    /// return none.
    ///
    /// # Errors
    /// If the broker does not answer, or has no record `offset` any more.
    fn read(
        &mut self,
        topic: &str,
        partition: u32,
        offset: i64,
        wait: Duration,
    ) -> Result<Vec<ReadRecord>, BrokerError>;
}

/// Why a broker did not do it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerError {
    /// The reason, for the user.
    pub why: String,
    /// The same request will fail again.
    pub is_final: bool,
}

impl fmt::Display for BrokerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for BrokerError {}
