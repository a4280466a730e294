//! [`Broker`]: what a sender needs of a message broker.

use std::fmt;

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
