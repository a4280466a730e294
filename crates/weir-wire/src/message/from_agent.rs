//! [`FromAgent`]: messages of an agent to the monitor.

use arrow_flight::{FlightData, FlightDescriptor};
use prost::Message;
use weir_model::{Batch, Nanos};

use super::{
    CAPABILITIES_BYTES_MAX, CHANNELS_MAX, ChannelId, EARLIER_MAX, HOST_BYTES_MAX, NAME_BYTES_MAX,
    REASON_BYTES_MAX, Received, TALLIES_MAX, UP_BYTES_MAX, VERSION, Version, at_most, instant,
    read,
};
use crate::error::Malformed;
use crate::proto::from_agent::Body;
use crate::proto::{
    ChannelFailed, ChannelStarted, FromAgent, Hello, Note, RequestsLost, RowsHeader, SiteHosts,
    Status,
};

/// The path in the Flight descriptor of an agent's first message.
pub const AGENT_PATH: &str = "agent";

/// A message of an agent that the monitor processes: rows are decoded, and everything is within the
/// bounds of the protocol.
#[derive(Clone, Debug)]
pub enum AgentMessage {
    /// Rows (or deltas) of a channel in timestamp order, all later than the last
    /// [`AgentMessage::Watermark`].
    Rows {
        /// The channel.
        channel: ChannelId,
        /// The rows.
        batch: Batch,
    },
    /// No more rows at or before this instant will come, in any running channel. The largest
    /// instant means that the agent ends.
    Watermark(Nanos),
    /// The channel runs.
    Started(ChannelStarted),
    /// The channel's fragment failed; no more rows follow.
    Failed(ChannelFailed),
    /// Requests that no row will include.
    Lost(RequestsLost),
    /// A row of stream `weir`.
    Note(Note),
    /// The hosts of the site whose monitor the agent is, for the next watermark and later ones.
    Hosts(SiteHosts),
    /// The state of the agent. Only the newest is relevant; it is neither numbered nor retained.
    Status(Status),
    /// The capabilities of the agent's sources, encoded; neither numbered nor retained.
    Capabilities(Vec<u8>),
}

impl AgentMessage {
    /// The channel runs from `at_ns` on.
    pub fn started(channel: ChannelId, at_ns: Nanos) -> AgentMessage {
        let channel = channel.0;
        AgentMessage::Started(ChannelStarted { channel, at_ns })
    }

    /// The channel's fragment failed for the reason `why`.
    pub fn failed(channel: ChannelId, why: String) -> AgentMessage {
        let channel = channel.0;
        AgentMessage::Failed(ChannelFailed { channel, why })
    }

    /// Requests of a channel are lost.
    pub fn lost(channel: ChannelId, requests: u64, cause: &str) -> AgentMessage {
        AgentMessage::Lost(RequestsLost {
            channel: channel.0,
            requests,
            cause: cause.to_owned(),
        })
    }
}

impl RowsHeader {
    /// The number of requests that the rows represent.
    pub fn represented(&self) -> u64 {
        match self.requests {
            0 => u64::from(self.rows),
            requests => requests,
        }
    }
}

impl FromAgent {
    /// Decodes a message; its content is not checked yet.
    pub fn read(data: &FlightData) -> Result<Received<FromAgent>, Malformed> {
        read(&data.app_metadata, UP_BYTES_MAX, "message of the agent")
    }

    /// Encodes a message without a number.
    pub fn data(body: Body) -> FlightData {
        FlightData {
            app_metadata: encode_body(body).into(),
            ..FlightData::default()
        }
    }

    /// Encodes the first message of a connection, with the version of this program.
    ///
    /// # Errors
    /// If a name or a count exceeds its bound.
    pub fn hello(hello: Hello) -> Result<FlightData, Malformed> {
        let hello = Hello {
            version_major: VERSION.major,
            version_minor: VERSION.minor,
            ..hello
        };
        hello.check()?;
        let data = FromAgent::data(Body::Hello(hello));
        at_most("hello: bytes", data.app_metadata.len(), UP_BYTES_MAX)?;
        Ok(FlightData {
            flight_descriptor: Some(FlightDescriptor::new_path(vec![AGENT_PATH.to_owned()])),
            ..data
        })
    }

    /// Decodes and checks the agent's first message.
    pub fn read_hello(data: &FlightData) -> Result<Hello, Malformed> {
        match FromAgent::read(data)?.message.body {
            Some(Body::Hello(hello)) => hello.check().map(|()| hello),
            _ => Err(Malformed(
                "the first message of an agent must be hello".into(),
            )),
        }
    }
}

/// The bytes of a message without its number. Protocol buffers are concatenated by concatenating
/// their bytes, so the number can be appended when the message is sent.
pub fn encode_body(body: Body) -> Vec<u8> {
    FromAgent {
        number: 0,
        body: Some(body),
    }
    .encode_to_vec()
}

impl Hello {
    /// The version that both sides use.
    ///
    /// # Errors
    /// If the version of the agent is incompatible.
    pub fn version(&self) -> Result<Version, Malformed> {
        Version::agreed(self.version_major, self.version_minor, ["agent", "monitor"])
    }

    fn check(&self) -> Result<(), Malformed> {
        self.version()?;
        if self.host.is_empty() || self.host.chars().any(char::is_control) {
            return Err(Malformed(format!("{:?} is not a host name", self.host)));
        }
        at_most("hello: bytes of the host", self.host.len(), HOST_BYTES_MAX)?;
        let program = self.program.len();
        at_most("hello: bytes of the program", program, NAME_BYTES_MAX)?;
        at_most("hello: earlier processes", self.earlier.len(), EARLIER_MAX)?;
        let tallies: usize = self.earlier.iter().map(|e| e.tallies.len()).sum();
        at_most("hello: tallies", tallies, TALLIES_MAX)
    }
}

impl Note {
    fn check(&self) -> Result<(), Malformed> {
        let optional = [&self.cause, &self.device].into_iter().flatten();
        for text in optional.chain([&self.place, &self.counter]) {
            at_most("note: bytes of a text", text.len(), NAME_BYTES_MAX)?;
        }
        instant("note", self.at_ns).map(drop)
    }
}

impl Status {
    fn check(&self) -> Result<(), Malformed> {
        at_most("status: channels", self.channels.len(), CHANNELS_MAX)?;
        at_most("status: tallies", self.tallies.len(), TALLIES_MAX)?;
        let (share, rate) = (self.kept_share, self.requests_per_second);
        if !(0.0..=1.0).contains(&share) || !(0.0..f64::INFINITY).contains(&rate) {
            return Err(Malformed(format!(
                "status: keeps {share} of {rate} requests per second"
            )));
        }
        let counts = [
            self.cpu_ns,
            self.memory_bytes,
            self.waiting_bytes,
            self.spooled_bytes,
            self.offset_error_ns,
        ];
        match counts.iter().any(|count| *count < 0) {
            true => Err(Malformed("status: a count below zero".into())),
            false => Ok(()),
        }
    }
}

impl SiteHosts {
    fn check(&self) -> Result<(), Malformed> {
        at_most("hosts: channels", self.channels.len(), CHANNELS_MAX)?;
        for channel in &self.channels {
            instant("hosts: complete_from", channel.complete_from_ns)?;
        }
        Ok(())
    }
}

/// Checks a message other than rows.
///
/// # Errors
/// If a text, a number or a count exceeds its bound, or it is not a message for the monitor's core.
impl TryFrom<Body> for AgentMessage {
    type Error = Malformed;
    fn try_from(body: Body) -> Result<AgentMessage, Malformed> {
        Ok(match body {
            Body::Watermark(Nanos::MAX) => AgentMessage::Watermark(Nanos::MAX),
            Body::Watermark(ns) => AgentMessage::Watermark(instant("watermark", ns)?),
            Body::Started(started) => {
                instant("started", started.at_ns)?;
                AgentMessage::Started(started)
            }
            Body::Failed(failed) => {
                let bytes = failed.why.len();
                at_most("failed: bytes of the reason", bytes, REASON_BYTES_MAX)?;
                AgentMessage::Failed(failed)
            }
            Body::Lost(lost) => {
                at_most("lost: bytes of the cause", lost.cause.len(), NAME_BYTES_MAX)?;
                AgentMessage::Lost(lost)
            }
            Body::Note(note) => note.check().map(|()| AgentMessage::Note(note))?,
            Body::Status(status) => status.check().map(|()| AgentMessage::Status(status))?,
            Body::Hosts(hosts) => hosts.check().map(|()| AgentMessage::Hosts(hosts))?,
            Body::Capabilities(bytes) => {
                at_most("capabilities: bytes", bytes.len(), CAPABILITIES_BYTES_MAX)?;
                AgentMessage::Capabilities(bytes)
            }
            Body::Hello(_) => return Err(Malformed("a second hello".into())),
            Body::Resume(_) | Body::Texts(_) | Body::Ping(_) | Body::Rows(_) => {
                return Err(Malformed("unexpected message".into()));
            }
        })
    }
}

/// The content of a message other than rows, checked against the bounds: an agent gets an error for
/// a note that is too long where it creates the note.
///
/// # Errors
/// As for decoding; rows are encoded by [`crate::frame`].
impl TryFrom<AgentMessage> for Body {
    type Error = Malformed;
    fn try_from(message: AgentMessage) -> Result<Body, Malformed> {
        let body = match message {
            AgentMessage::Rows { .. } => {
                return Err(Malformed("rows are encoded as a frame".into()));
            }
            AgentMessage::Watermark(ns) => Body::Watermark(ns),
            AgentMessage::Started(started) => Body::Started(started),
            AgentMessage::Failed(failed) => Body::Failed(failed),
            AgentMessage::Lost(lost) => Body::Lost(lost),
            AgentMessage::Note(note) => Body::Note(note),
            AgentMessage::Status(status) => Body::Status(status),
            AgentMessage::Capabilities(bytes) => Body::Capabilities(bytes),
            AgentMessage::Hosts(hosts) => Body::Hosts(hosts),
        };
        AgentMessage::try_from(body.clone())?;
        Ok(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{ChannelCost, ChannelTally};

    #[test]
    fn the_largest_status_is_accepted() {
        let most = u64::MAX;
        let cost = |channel| ChannelCost {
            channel: most - channel,
            rows_in: most,
            rows_out: most,
            bytes_out: most,
        };
        let tally = |channel| ChannelTally {
            channel: most - channel,
            produced: most,
            lost: most,
        };
        let mut status = Status {
            channels: (0..CHANNELS_MAX as u64).map(cost).collect(),
            tallies: (0..TALLIES_MAX as u64).map(tally).collect(),
            ..Status::default()
        };
        let body = Body::try_from(AgentMessage::Status(status.clone())).unwrap();
        let received = FromAgent::read(&FromAgent::data(body)).unwrap();
        assert!(!received.has_unknown);
        match AgentMessage::try_from(received.message.body.unwrap()).unwrap() {
            AgentMessage::Status(read) => assert_eq!(read, status),
            other => panic!("{other:?}"),
        }
        status.tallies.push(tally(0));
        let error = Body::try_from(AgentMessage::Status(status)).unwrap_err();
        assert!(error.0.starts_with("status: tallies"), "{error}");
    }
}
