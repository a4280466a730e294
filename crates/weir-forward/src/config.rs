//! [`ForwardConfig`]: section `[forward]` of a configuration file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use weir_runtime::config::{Fault, Size, Time};
use weir_runtime::failure::Failure;

use crate::BrokerReader;
use crate::names::TopicUse;
use crate::topic::RETENTION;

/// The part of the names of all topics that a URL without a path has.
const PREFIX: &str = "weir";

/// The longest name of a topic, and what follows the prefix in it at least.
const PREFIX_MAX: usize = 100;

/// The partitions of a topic, unless configured.
const PARTITIONS: u16 = 4;

/// The most partitions of a topic.
const PARTITIONS_MAX: u16 = 10_000;

/// The least size of the spool.
const SPOOL_BYTES_MIN: usize = 256 << 10;

/// Where to forward rows to (`[forward]`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ForwardConfig {
    /// `kafka://HOST:PORT,..[/PREFIX][?topics=shared]`; by default rows are not forwarded.
    pub to: Option<String>,
    /// The partitions of topics that do not exist yet; by default 4, of the topic of one host 1.
    pub partitions: Option<u16>,
    /// The replicas of topics that do not exist yet; by default as many as the brokers have as
    /// their default.
    pub replication: Option<u8>,
    /// How long the brokers keep messages of topics that do not exist yet; by default as long as
    /// they have as their default.
    pub retention: Option<Time>,
    /// Further settings of topics that do not exist yet, by Kafka's names for them.
    pub settings: BTreeMap<String, String>,
    /// The size of the spool on disk.
    pub spool: Size,
    /// TLS to the brokers.
    pub tls: Option<ForwardTls>,
    /// The user at the brokers.
    pub sasl: Option<ForwardSasl>,
}

/// TLS to the brokers (`[forward.tls]`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForwardTls {
    /// The authorities of the brokers' certificates, PEM.
    #[serde(serialize_with = "weir_runtime::config::path_shown")]
    pub ca: PathBuf,
    /// The certificate chain of this client, PEM.
    #[serde(default, serialize_with = "weir_runtime::config::optional_path_shown")]
    pub certificate: Option<PathBuf>,
    /// The key of the certificate, PEM.
    #[serde(default, serialize_with = "weir_runtime::config::optional_path_shown")]
    pub key: Option<PathBuf>,
}

/// The user at the brokers (`[forward.sasl]`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForwardSasl {
    /// How the password is proved.
    pub mechanism: SaslMechanism,
    /// The name.
    pub user: String,
    /// A file with the password, which only its owner can read.
    #[serde(serialize_with = "weir_runtime::config::path_shown")]
    pub password_file: PathBuf,
}

/// A mechanism of SASL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SaslMechanism {
    /// RFC 4616.
    #[serde(rename = "PLAIN")]
    Plain,
    /// RFC 7677.
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    /// The same with SHA-512.
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
}

/// A query whose rows an agent without a monitor forwards (`[[query]]` of its configuration).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForwardedQuery {
    /// Its name.
    pub name: String,
    /// The text of the query.
    pub text: String,
    /// Its placement strategy.
    pub place: Option<String>,
}

impl FromStr for ForwardedQuery {
    type Err = String;

    fn from_str(text: &str) -> Result<ForwardedQuery, String> {
        match text.split_once('=') {
            Some((name, query)) if !name.trim().is_empty() && !query.trim().is_empty() => {
                Ok(ForwardedQuery {
                    name: name.trim().to_owned(),
                    text: query.trim().to_owned(),
                    place: None,
                })
            }
            _ => Err("expected NAME=QUERY".to_owned()),
        }
    }
}

/// `kafka://HOST:PORT,..[/PREFIX][?topics=shared]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaUrl {
    /// `HOST:PORT` of some of the brokers.
    pub brokers: Vec<String>,
    /// The first part of the names of all topics.
    pub prefix: String,
    /// Which topics have the rows of queries.
    pub topics: TopicUse,
}

impl FromStr for KafkaUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<KafkaUrl, String> {
        let form = "expected kafka://HOST:PORT[,HOST:PORT..][/PREFIX][?topics=shared]";
        let rest = text.strip_prefix("kafka://").ok_or(form)?;
        let (rest, topics) = match rest.split_once('?') {
            None => (rest, TopicUse::default()),
            Some((rest, "topics=query")) => (rest, TopicUse::PerQuery),
            Some((rest, "topics=shared")) => (rest, TopicUse::Shared),
            Some((_, other)) => {
                return Err(format!(
                    "{form}; `?{other}` is neither `?topics=shared` nor `?topics=query`"
                ));
            }
        };
        let (brokers, prefix) = rest.split_once('/').unwrap_or((rest, PREFIX));
        let is_address = |broker: &&str| {
            let (host, port) = broker.rsplit_once(':').unwrap_or_default();
            !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
        };
        let brokers: Vec<&str> = brokers.split(',').map(str::trim).collect();
        if let Some(wrong) = brokers.iter().find(|broker| !is_address(broker)) {
            return Err(format!("{form}; `{wrong}` is no HOST:PORT"));
        }
        let is_valid = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if prefix.is_empty() || prefix.len() > PREFIX_MAX || !prefix.chars().all(is_valid) {
            return Err(format!(
                "`{prefix}` cannot begin the names of topics: use 1 to {PREFIX_MAX} letters, \
                 digits and `.`, `_`, `-`"
            ));
        }
        Ok(KafkaUrl {
            brokers: brokers.into_iter().map(str::to_owned).collect(),
            prefix: prefix.to_owned(),
            topics,
        })
    }
}

impl ForwardConfig {
    /// Adds the errors of values that types do not exclude.
    pub fn check(&self, faults: &mut Vec<Fault>) {
        let mut fault = |key: &str, why: String| {
            faults.push(Fault {
                key: format!("forward.{key}"),
                why,
            });
        };
        if let Some(Err(why)) = self.to.as_ref().map(|to| to.parse::<KafkaUrl>()) {
            fault("to", why);
        }
        if self.spool.0 < SPOOL_BYTES_MIN {
            let why = format!("expected at least {} KiB", SPOOL_BYTES_MIN >> 10);
            fault("spool", why);
        }
        if self
            .partitions
            .is_some_and(|count| !(1..=PARTITIONS_MAX).contains(&count))
        {
            let why = format!("expected a whole number from 1 to {PARTITIONS_MAX}");
            fault("partitions", why);
        }
        if self.replication == Some(0) {
            fault("replication", "expected a number from 1 to 255".into());
        }
        if self.retention.is_some() && self.settings.contains_key(RETENTION) {
            let why = format!("`{RETENTION}` is `retention`; state one of them");
            fault("settings", why);
        }
        if let Some(tls) = &self.tls
            && tls.certificate.is_some() != tls.key.is_some()
        {
            fault("tls", "`certificate` and `key` belong together".into());
        }
    }

    /// The same for the topics of one host, which have one partition.
    #[must_use]
    pub fn of_one_host(&self) -> ForwardConfig {
        ForwardConfig {
            partitions: Some(1),
            ..self.clone()
        }
    }

    /// The partitions of topics that do not exist yet.
    pub fn new_partitions(&self) -> u16 {
        self.partitions.unwrap_or(PARTITIONS)
    }

    /// Where to forward to, if anywhere.
    ///
    /// # Errors
    /// If it is no such URL.
    pub fn url(&self) -> Result<Option<KafkaUrl>, Failure> {
        let url = self.to.as_ref().map(|to| to.parse());
        url.transpose()
            .map_err(|why: String| Failure::words(format_args!("forward: {why}")))
    }

    /// Checks the files that it names.
    ///
    /// # Errors
    /// If one cannot be used, or this program has no client of Kafka.
    pub fn check_files(&self) -> Result<(), Failure> {
        if let Some(url) = self.url()? {
            self.broker(&url)?;
        }
        Ok(())
    }

    /// The client of the brokers.
    ///
    /// # Errors
    /// If a file cannot be used, or this program has no client of Kafka.
    #[cfg(feature = "kafka")]
    pub fn broker(&self, url: &KafkaUrl) -> Result<Box<dyn BrokerReader>, Failure> {
        Ok(Box::new(crate::kafka::Kafka::new(self, url)?))
    }

    /// The client of the brokers.
    ///
    /// # Errors
    /// Always: this program has none.
    #[cfg(not(feature = "kafka"))]
    pub fn broker(&self, _url: &KafkaUrl) -> Result<Box<dyn BrokerReader>, Failure> {
        Err(Failure::words(
            "this program was built without a client of Kafka (feature `kafka`)",
        ))
    }
}

impl Default for ForwardConfig {
    fn default() -> ForwardConfig {
        ForwardConfig {
            to: None,
            partitions: None,
            replication: None,
            retention: None,
            settings: BTreeMap::new(),
            spool: Size(256 << 20),
            tls: None,
            sasl: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_brokers_and_a_prefix() {
        let url: KafkaUrl = "kafka://a:9092,b.example:9093/fleet.east".parse().unwrap();
        assert_eq!(url.brokers, ["a:9092", "b.example:9093"]);
        assert_eq!(url.prefix, "fleet.east");
        let url: KafkaUrl = "kafka://[::1]:9092".parse().unwrap();
        assert_eq!((&*url.brokers[0], &*url.prefix), ("[::1]:9092", "weir"));
        for (end, topics) in [
            ("", TopicUse::PerQuery),
            ("?topics=query", TopicUse::PerQuery),
            ("?topics=shared", TopicUse::Shared),
        ] {
            for prefix in ["", "/fleet"] {
                let url: KafkaUrl = format!("kafka://a:9092{prefix}{end}").parse().unwrap();
                assert_eq!(url.topics, topics, "{prefix}{end}");
                let expected = if prefix.is_empty() { "weir" } else { "fleet" };
                assert_eq!(url.prefix, expected, "{prefix}{end}");
            }
        }
        for wrong in [
            "http://a:1",
            "kafka://",
            "kafka://a",
            "kafka://a:0",
            "kafka://a:9092,,b:1",
            "kafka://a:9092/",
            "kafka://a:9092/x/y",
            "kafka://a:9092/x?",
            "kafka://a:9092?topics=one",
            "kafka://a:9092?topics=shared&topics=query",
        ] {
            assert!(wrong.parse::<KafkaUrl>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn faults_name_their_keys() {
        let config = ForwardConfig {
            to: Some("kafka://a".into()),
            replication: Some(0),
            tls: Some(ForwardTls {
                ca: "/ca".into(),
                certificate: Some("/c".into()),
                key: None,
            }),
            ..ForwardConfig::default()
        };
        let mut faults = Vec::new();
        config.check(&mut faults);
        let keys: Vec<&str> = faults.iter().map(|fault| fault.key.as_str()).collect();
        assert_eq!(keys, ["forward.to", "forward.replication", "forward.tls"]);
    }
}
