//! What the monitor says to an agent.

use arrow_flight::FlightData;
use prost::Message;

use super::{
    CHANNELS_MAX, DOWN_BYTES_MAX, FRAGMENT_BYTES_MAX, HEARTBEAT_NS, PROTOCOL_VERSION, at_most, read,
};
use crate::error::Malformed;
use crate::word::{ChannelId, MonitorWord, Welcome};

/// A message from the monitor.
#[derive(Clone, PartialEq, Message)]
pub struct Down {
    /// What it says; unknown to this version if absent.
    #[prost(oneof = "MonitorSays", tags = "1, 2, 3, 4, 5, 6")]
    pub says: Option<MonitorSays>,
}

/// What a message from the monitor says.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum MonitorSays {
    /// The answer to the agent's first message.
    #[prost(message, tag = "1")]
    Welcome(WelcomeBody),
    /// [`MonitorWord::Start`].
    #[prost(message, tag = "2")]
    Start(StartBody),
    /// [`MonitorWord::Stop`], of this channel.
    #[prost(uint64, tag = "3")]
    Stop(u64),
    /// [`MonitorWord::Taken`], up to this number.
    #[prost(uint64, tag = "4")]
    Taken(u64),
    /// [`MonitorWord::Heartbeat`], in nanoseconds.
    #[prost(int64, tag = "5")]
    Heartbeat(i64),
    /// The answer to a ping.
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
    /// [`Welcome::taken`].
    #[prost(uint64, tag = "3")]
    pub taken: u64,
    /// [`Welcome::channels`].
    #[prost(uint64, repeated, tag = "4")]
    pub channels: Vec<u64>,
    /// [`Welcome::heartbeat`], in nanoseconds.
    #[prost(int64, tag = "5")]
    pub heartbeat_ns: i64,
}

/// [`MonitorWord::Start`].
#[derive(Clone, PartialEq, Message)]
pub struct StartBody {
    /// The channel.
    #[prost(uint64, tag = "1")]
    pub channel: u64,
    /// The fragment.
    #[prost(bytes = "vec", tag = "2")]
    pub fragment: Vec<u8>,
}

/// The answer to a ping: RFC 5905's origin, receive and transmit timestamps.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Pong {
    /// When the ping left the agent, by the agent's clock.
    #[prost(int64, tag = "1")]
    pub left_ns: i64,
    /// When it came to the monitor, by the monitor's.
    #[prost(int64, tag = "2")]
    pub came_ns: i64,
    /// When the answer left, by the monitor's.
    #[prost(int64, tag = "3")]
    pub answered_ns: i64,
}

impl Down {
    /// Reads a message and holds it against every bound.
    pub fn read(data: &FlightData) -> Result<Down, Malformed> {
        let down: Down = read(&data.app_metadata, DOWN_BYTES_MAX, "a word of the monitor")?;
        match &down.says {
            Some(MonitorSays::Welcome(welcome)) => {
                at_most("welcome: channels", welcome.channels.len(), CHANNELS_MAX)?;
                heartbeat(welcome.heartbeat_ns)?;
            }
            Some(MonitorSays::Start(start)) => {
                let bytes = start.fragment.len();
                at_most("start: bytes of a fragment", bytes, FRAGMENT_BYTES_MAX)?;
            }
            Some(MonitorSays::Heartbeat(ns)) => heartbeat(*ns)?,
            _ => {}
        }
        Ok(down)
    }

    /// As it travels.
    pub fn data(&self) -> FlightData {
        FlightData {
            app_metadata: self.encode_to_vec().into(),
            ..FlightData::default()
        }
    }

    fn says(says: MonitorSays) -> Down {
        Down { says: Some(says) }
    }
}

fn heartbeat(ns: i64) -> Result<(), Malformed> {
    match HEARTBEAT_NS.contains(&ns) {
        true => Ok(()),
        false => Err(Malformed(format!(
            "heartbeat: {ns} ns, it must be between {} and {} ns",
            HEARTBEAT_NS.start(),
            HEARTBEAT_NS.end()
        ))),
    }
}

impl From<&Welcome> for Down {
    fn from(welcome: &Welcome) -> Down {
        Down::says(MonitorSays::Welcome(WelcomeBody {
            version: PROTOCOL_VERSION,
            monitor: welcome.monitor,
            taken: welcome.taken,
            channels: welcome.channels.iter().map(|c| c.0).collect(),
            heartbeat_ns: welcome.heartbeat,
        }))
    }
}

impl TryFrom<WelcomeBody> for Welcome {
    type Error = Malformed;
    fn try_from(body: WelcomeBody) -> Result<Welcome, Malformed> {
        if body.version != PROTOCOL_VERSION {
            return Err(Malformed(format!(
                "the monitor speaks version {} of the protocol, this agent version \
                 {PROTOCOL_VERSION}; run the same release of weir on both",
                body.version
            )));
        }
        Ok(Welcome {
            monitor: body.monitor,
            taken: body.taken,
            channels: body.channels.into_iter().map(ChannelId).collect(),
            heartbeat: body.heartbeat_ns,
        })
    }
}

/// A word other than the welcome and answers to pings.
impl TryFrom<MonitorSays> for MonitorWord {
    type Error = Malformed;
    fn try_from(says: MonitorSays) -> Result<MonitorWord, Malformed> {
        Ok(match says {
            MonitorSays::Start(start) => MonitorWord::Start {
                channel: ChannelId(start.channel),
                fragment: start.fragment,
            },
            MonitorSays::Stop(channel) => MonitorWord::Stop {
                channel: ChannelId(channel),
            },
            MonitorSays::Taken(number) => MonitorWord::Taken { number },
            MonitorSays::Heartbeat(ns) => MonitorWord::Heartbeat(ns),
            MonitorSays::Welcome(_) => {
                return Err(Malformed("it welcomes us a second time".into()));
            }
            MonitorSays::Pong(_) => return Err(Malformed("it answers what was not asked".into())),
        })
    }
}

impl From<&MonitorWord> for Down {
    fn from(word: &MonitorWord) -> Down {
        Down::says(match word {
            MonitorWord::Start { channel, fragment } => MonitorSays::Start(StartBody {
                channel: channel.0,
                fragment: fragment.clone(),
            }),
            MonitorWord::Stop { channel } => MonitorSays::Stop(channel.0),
            MonitorWord::Taken { number } => MonitorSays::Taken(*number),
            MonitorWord::Heartbeat(ns) => MonitorSays::Heartbeat(*ns),
        })
    }
}

impl From<Pong> for Down {
    fn from(pong: Pong) -> Down {
        Down::says(MonitorSays::Pong(pong))
    }
}
