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

/// A message broker with topics of partitions. Its methods block.
pub trait Broker: Send {
    /// The number of partitions of a topic, which is created if it does not exist.
    ///
    /// # Errors
    /// If the broker does not answer or refuses.
    fn partitions(&mut self, topic: &str) -> Result<u32, BrokerError>;

    /// Appends records to a partition, in order. On return, the broker has stored them as durably
    /// as the topic is.
    ///
    /// # Errors
    /// If that is not known: they may have been stored.
    fn append(
        &mut self,
        topic: &str,
        partition: u32,
        records: Vec<BrokerRecord>,
    ) -> Result<(), BrokerError>;
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
