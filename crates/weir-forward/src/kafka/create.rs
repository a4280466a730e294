//! Creates topics with settings, which the client of `rskafka` cannot: its messages can, in a
//! module that the feature `unstable-fuzzing` makes public. Any broker creates a topic, or has the
//! controller do it (KIP-590, since Kafka 2.8).

use std::sync::Arc;
use std::time::Duration;

use rskafka::client::SaslConfig;
use rskafka::client::error::ProtocolError;
use rskafka::messenger::Messenger;
use rskafka::protocol::messages::{
    CreateTopicConfig, CreateTopicRequest, CreateTopicsRequest, CreateTopicsResponse,
};
use rskafka::protocol::primitives::{Int16, Int32, NullableString, String_};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, BufStream};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::topic::NewTopic;

/// The greatest size of an answer.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// How long a broker may take, with the connection.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How long the creation of a topic may take there, in milliseconds.
const CREATE_MS: i32 = 4_000;

/// How brokers are reached.
pub struct BrokerAccess {
    /// `HOST:PORT` of some of them.
    pub brokers: Vec<String>,
    /// TLS, if they need it.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// The user, if they need one.
    pub sasl: Option<SaslConfig>,
}

impl BrokerAccess {
    /// Creates a topic at the first broker that can be reached, unless another process was first.
    ///
    /// # Errors
    /// The broker's reason, or why none can be reached.
    pub async fn create(&self, topic: &NewTopic) -> Result<(), String> {
        let mut failure = String::from("no broker is known");
        for broker in &self.brokers {
            let answer = tokio::time::timeout(TIMEOUT, self.create_at(broker, topic)).await;
            let silent = |_| Err(format!("no answer within {} s", TIMEOUT.as_secs()));
            match answer.unwrap_or_else(silent) {
                Ok(response) => return outcome(response),
                Err(why) => failure = format!("{broker}: {why}"),
            }
        }
        Err(failure)
    }

    async fn create_at(
        &self,
        broker: &str,
        topic: &NewTopic,
    ) -> Result<CreateTopicsResponse, String> {
        let connected = TcpStream::connect(broker)
            .await
            .map_err(|e| e.to_string())?;
        let Some(tls) = &self.tls else {
            return self.create_over(connected, topic).await;
        };
        let host = broker.rsplit_once(':').map_or(broker, |(host, _)| host);
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let name = ServerName::try_from(host).map_err(|e| e.to_string())?;
        let secured = TlsConnector::from(tls.clone()).connect(name, connected);
        let secured = secured.await.map_err(|e| weir_wire::causes(&e))?;
        self.create_over(secured, topic).await
    }

    async fn create_over<S>(
        &self,
        stream: S,
        topic: &NewTopic,
    ) -> Result<CreateTopicsResponse, String>
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let mut broker = Messenger::new(BufStream::new(stream), ANSWER_BYTES_MAX, "weir".into());
        let versions = broker.sync_versions().await;
        versions.map_err(|e| weir_wire::causes(&e))?;
        if let Some(sasl) = &self.sasl {
            let known = broker.do_sasl(sasl.clone()).await;
            known.map_err(|e| weir_wire::causes(&e))?;
        }
        let answered = broker.request(request(topic)).await;
        answered.map_err(|e| weir_wire::causes(&e))
    }
}

/// The request that creates a topic.
fn request(topic: &NewTopic) -> CreateTopicsRequest {
    let setting = |(name, value): (&String, &String)| CreateTopicConfig {
        name: String_(name.clone()),
        value: NullableString(Some(value.clone())),
        tagged_fields: None,
    };
    CreateTopicsRequest {
        topics: vec![CreateTopicRequest {
            name: String_(topic.name.clone()),
            num_partitions: Int32(topic.partitions.into()),
            // -1 is the default of the brokers.
            replication_factor: Int16(topic.replication.map_or(-1, i16::from)),
            assignments: Vec::new(),
            configs: topic.settings.iter().map(setting).collect(),
            tagged_fields: None,
        }],
        timeout_ms: Int32(CREATE_MS),
        validate_only: None,
        tagged_fields: None,
    }
}

/// What a broker reports of one topic.
fn outcome(response: CreateTopicsResponse) -> Result<(), String> {
    let topic = response.topics.into_iter().next();
    let topic = topic.ok_or("Kafka has answered without a topic")?;
    match topic.error {
        None | Some(ProtocolError::TopicAlreadyExists) => Ok(()),
        Some(error) => {
            let own = topic.error_message.and_then(|message| message.0);
            let why = own.map_or(String::new(), |why| format!(": {why}"));
            Err(format!(
                "topic `{}` cannot be created: {error}{why}",
                topic.name.0
            ))
        }
    }
}
