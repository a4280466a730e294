//! Messages of the monitor to an agent.

use arrow_flight::FlightData;
use prost::Message;

use super::{
    CHANNELS_MAX, DOWN_BYTES_MAX, FRAGMENT_BYTES_MAX, HEARTBEAT_INTERVAL_NS, PROTOCOL_VERSION,
    at_most, read,
};
use crate::error::Malformed;
use crate::protocol::{ChannelId, MonitorMessage, Welcome};

/// A message from the monitor.
#[derive(Clone, PartialEq, Message)]
pub struct Down {
    /// The content; absent if unknown to this version.
    #[prost(oneof = "DownBody", tags = "1, 2, 3, 4, 5, 6")]
    pub body: Option<DownBody>,
}

/// The content of a message from the monitor.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum DownBody {
    /// The reply to the agent's first message.
    #[prost(message, tag = "1")]
    Welcome(WelcomeBody),
    /// [`MonitorMessage::Start`].
    #[prost(message, tag = "2")]
    Start(StartBody),
    /// [`MonitorMessage::Stop`], of this channel.
    #[prost(uint64, tag = "3")]
    Stop(u64),
    /// [`MonitorMessage::Ack`], up to this number.
    #[prost(uint64, tag = "4")]
    Ack(u64),
    /// [`MonitorMessage::HeartbeatInterval`], in nanoseconds.
    #[prost(int64, tag = "5")]
    HeartbeatInterval(i64),
    /// The reply to a ping.
    #[prost(message, tag = "6")]
    Pong(Pong),
}

/// [`Welcome`].
#[derive(Clone, PartialEq, Message)]
pub struct WelcomeBody {
    /// [`PROTOCOL_VERSION`] of the monitor.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// [`Welcome::monitor`].
    #[prost(fixed64, tag = "2")]
    pub monitor: u64,
    /// [`Welcome::acked`].
    #[prost(uint64, tag = "3")]
    pub acked: u64,
    /// [`Welcome::channels`].
    #[prost(uint64, repeated, tag = "4")]
    pub channels: Vec<u64>,
    /// [`Welcome::heartbeat_interval`], in nanoseconds.
    #[prost(int64, tag = "5")]
    pub heartbeat_interval_ns: i64,
}

/// [`MonitorMessage::Start`].
#[derive(Clone, PartialEq, Message)]
pub struct StartBody {
    /// The channel.
    #[prost(uint64, tag = "1")]
    pub channel: u64,
    /// The fragment.
    #[prost(bytes = "vec", tag = "2")]
    pub fragment: Vec<u8>,
}

/// The reply to a ping: RFC 5905's origin, receive and transmit timestamps.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Pong {
    /// When the agent sent the ping, by the agent's clock.
    #[prost(int64, tag = "1")]
    pub origin_ns: i64,
    /// When the monitor received it, by the monitor's clock.
    #[prost(int64, tag = "2")]
    pub receive_ns: i64,
    /// When the monitor sent the reply, by the monitor's clock.
    #[prost(int64, tag = "3")]
    pub transmit_ns: i64,
}

impl Down {
    /// Decodes a message and checks it against every bound.
    pub fn read(data: &FlightData) -> Result<Down, Malformed> {
        let down: Down = read(&data.app_metadata, DOWN_BYTES_MAX, "message of the monitor")?;
        match &down.body {
            Some(DownBody::Welcome(welcome)) => {
                at_most("welcome: channels", welcome.channels.len(), CHANNELS_MAX)?;
                heartbeat(welcome.heartbeat_interval_ns)?;
            }
            Some(DownBody::Start(start)) => {
                let bytes = start.fragment.len();
                at_most("start: bytes of a fragment", bytes, FRAGMENT_BYTES_MAX)?;
            }
            Some(DownBody::HeartbeatInterval(ns)) => heartbeat(*ns)?,
            _ => {}
        }
        Ok(down)
    }

    /// Encodes the message.
    pub fn data(&self) -> FlightData {
        FlightData {
            app_metadata: self.encode_to_vec().into(),
            ..FlightData::default()
        }
    }

    fn new(body: DownBody) -> Down {
        Down { body: Some(body) }
    }
}

fn heartbeat(ns: i64) -> Result<(), Malformed> {
    match HEARTBEAT_INTERVAL_NS.contains(&ns) {
        true => Ok(()),
        false => Err(Malformed(format!(
            "heartbeat interval: {ns} ns, it must be between {} and {} ns",
            HEARTBEAT_INTERVAL_NS.start(),
            HEARTBEAT_INTERVAL_NS.end()
        ))),
    }
}

impl From<&Welcome> for Down {
    fn from(welcome: &Welcome) -> Down {
        Down::new(DownBody::Welcome(WelcomeBody {
            version: PROTOCOL_VERSION,
            monitor: welcome.monitor,
            acked: welcome.acked,
            channels: welcome.channels.iter().map(|c| c.0).collect(),
            heartbeat_interval_ns: welcome.heartbeat_interval,
        }))
    }
}

impl TryFrom<WelcomeBody> for Welcome {
    type Error = Malformed;
    fn try_from(body: WelcomeBody) -> Result<Welcome, Malformed> {
        if body.version != PROTOCOL_VERSION {
            return Err(Malformed(format!(
                "the monitor uses version {} of the protocol, this agent version \
                 {PROTOCOL_VERSION}; run the same release of weir on both",
                body.version
            )));
        }
        Ok(Welcome {
            monitor: body.monitor,
            acked: body.acked,
            channels: body.channels.into_iter().map(ChannelId).collect(),
            heartbeat_interval: body.heartbeat_interval_ns,
        })
    }
}

/// A message other than the welcome and replies to pings.
impl TryFrom<DownBody> for MonitorMessage {
    type Error = Malformed;
    fn try_from(body: DownBody) -> Result<MonitorMessage, Malformed> {
        Ok(match body {
            DownBody::Start(start) => MonitorMessage::Start {
                channel: ChannelId(start.channel),
                fragment: start.fragment,
            },
            DownBody::Stop(channel) => MonitorMessage::Stop {
                channel: ChannelId(channel),
            },
            DownBody::Ack(number) => MonitorMessage::Ack { number },
            DownBody::HeartbeatInterval(ns) => MonitorMessage::HeartbeatInterval(ns),
            DownBody::Welcome(_) => {
                return Err(Malformed("a second welcome".into()));
            }
            DownBody::Pong(_) => return Err(Malformed("a reply without a ping".into())),
        })
    }
}

impl From<&MonitorMessage> for Down {
    fn from(message: &MonitorMessage) -> Down {
        Down::new(match message {
            MonitorMessage::Start { channel, fragment } => DownBody::Start(StartBody {
                channel: channel.0,
                fragment: fragment.clone(),
            }),
            MonitorMessage::Stop { channel } => DownBody::Stop(channel.0),
            MonitorMessage::Ack { number } => DownBody::Ack(*number),
            MonitorMessage::HeartbeatInterval(ns) => DownBody::HeartbeatInterval(*ns),
        })
    }
}

impl From<Pong> for Down {
    fn from(pong: Pong) -> Down {
        Down::new(DownBody::Pong(pong))
    }
}
