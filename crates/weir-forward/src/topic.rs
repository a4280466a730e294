//! [`NewTopic`]: a topic that does not exist yet, as the configuration states it.

use std::collections::BTreeMap;

use crate::config::ForwardConfig;
use crate::names::descriptions_topic;

/// The setting that a topic with descriptions has: the last one of each key is kept forever.
const COMPACTED: (&str, &str) = ("cleanup.policy", "compact");

/// Kafka's name for the time for which messages are kept, in milliseconds.
pub const RETENTION: &str = "retention.ms";

/// A topic that does not exist yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTopic {
    /// Its name.
    pub name: String,
    /// The number of partitions.
    pub partitions: u16,
    /// The number of replicas; by default as many as the brokers have as their default.
    pub replication: Option<u8>,
    /// Its settings, by Kafka's names for them.
    pub settings: BTreeMap<String, String>,
}

impl ForwardConfig {
    /// The topic `name` as it is created, where the names of all topics begin with `prefix`.
    pub fn new_topic(&self, prefix: &str, name: &str) -> NewTopic {
        let of_descriptions = name == descriptions_topic(prefix);
        let settings = match of_descriptions {
            true => BTreeMap::from([(COMPACTED.0.to_owned(), COMPACTED.1.to_owned())]),
            false => {
                let mut settings = self.settings.clone();
                let retention = self.retention.map(|time| time.0.as_millis().to_string());
                settings.extend(retention.map(|ms| (RETENTION.to_owned(), ms)));
                settings
            }
        };
        NewTopic {
            name: name.to_owned(),
            // The order of descriptions is that of a partition.
            partitions: if of_descriptions {
                1
            } else {
                self.new_partitions()
            },
            replication: self.replication,
            settings,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_runtime::config::Time;

    use super::*;

    #[test]
    fn descriptions_are_kept_and_rows_are_as_configured() {
        let day = Time(Duration::from_secs(86_400));
        let config = ForwardConfig {
            partitions: Some(7),
            replication: Some(3),
            retention: Some(day),
            settings: BTreeMap::from([("compression.type".into(), "zstd".into())]),
            ..ForwardConfig::default()
        };
        let rows = config.new_topic("w", "w.load.1");
        assert_eq!((rows.partitions, rows.replication), (7, Some(3)));
        let settings = [("compression.type", "zstd"), ("retention.ms", "86400000")];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(rows.settings, BTreeMap::from(settings));
        let described = config.new_topic("w", "w.queries");
        assert_eq!((described.partitions, described.replication), (1, Some(3)));
        assert_eq!(described.settings["cleanup.policy"], "compact");
        assert_eq!(described.settings.len(), 1);
        assert_eq!(
            ForwardConfig::default().new_topic("w", "x").settings.len(),
            0
        );
    }
}
