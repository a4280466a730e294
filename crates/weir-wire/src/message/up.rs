//! Messages of an agent to the monitor.

use arrow_flight::{FlightData, FlightDescriptor};
use prost::Message;
use weir_model::Nanos;

use super::{
    CHANNELS_MAX, EARLIER_MAX, HOST_BYTES_MAX, NAME_BYTES_MAX, PROTOCOL_VERSION, REASON_BYTES_MAX,
    TALLIES_MAX, UP_BYTES_MAX, at_most, instant, read,
};
use crate::error::Malformed;
use crate::protocol::{AgentMessage, ChannelCost, ChannelId, ChannelTally, Hello, Note, Status};

/// The path in the Flight descriptor of an agent's first message.
pub const AGENT_PATH: &str = "agent";

/// A message from an agent.
#[derive(Clone, PartialEq, Message)]
pub struct Up {
    /// The number of the message; 0 if it has none.
    #[prost(uint64, tag = "1")]
    pub number: u64,
    /// The content; absent if unknown to this version.
    #[prost(oneof = "UpBody", tags = "2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12")]
    pub body: Option<UpBody>,
}

/// The content of a message from an agent.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum UpBody {
    /// The first message of a connection.
    #[prost(message, tag = "2")]
    Hello(HelloBody),
    /// The first after the welcome: the number of the next message. If it is above
    /// [`crate::Welcome::acked`] plus 1, the messages between are lost.
    #[prost(uint64, tag = "3")]
    Resume(u64),
    /// Further texts that rows refer to by number.
    #[prost(message, tag = "4")]
    Texts(TextsBody),
    /// A request for the monitor's time.
    #[prost(message, tag = "5")]
    Ping(Ping),
    /// [`AgentMessage::Rows`]; the columns are in the header and body of the Flight message.
    #[prost(message, tag = "6")]
    Rows(RowsHead),
    /// [`AgentMessage::Watermark`], in nanoseconds.
    #[prost(sint64, tag = "7")]
    Watermark(i64),
    /// [`AgentMessage::Started`].
    #[prost(message, tag = "8")]
    Started(StartedBody),
    /// [`AgentMessage::Failed`].
    #[prost(message, tag = "9")]
    Failed(FailedBody),
    /// [`AgentMessage::Lost`].
    #[prost(message, tag = "10")]
    Lost(LostBody),
    /// [`AgentMessage::Note`].
    #[prost(message, tag = "11")]
    Note(NoteBody),
    /// [`AgentMessage::Status`].
    #[prost(message, tag = "12")]
    Status(StatusBody),
}

/// [`Hello`].
#[derive(Clone, PartialEq, Message)]
pub struct HelloBody {
    /// [`PROTOCOL_VERSION`] of the agent.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// [`Hello::host`].
    #[prost(string, tag = "2")]
    pub host: String,
    /// [`Hello::instance`].
    #[prost(fixed64, tag = "3")]
    pub instance: u64,
    /// [`Hello::version`].
    #[prost(string, tag = "4")]
    pub program: String,
    /// [`Hello::earlier`].
    #[prost(message, repeated, tag = "5")]
    pub earlier: Vec<EarlierBody>,
    /// [`Hello::held_bytes_max`].
    #[prost(uint64, tag = "6")]
    pub held_bytes_max: u64,
}

/// The tallies of an earlier process of an agent.
#[derive(Clone, PartialEq, Message)]
pub struct EarlierBody {
    /// The process's random number.
    #[prost(fixed64, tag = "1")]
    pub instance: u64,
    /// Its tallies.
    #[prost(message, repeated, tag = "2")]
    pub tallies: Vec<TallyBody>,
}

/// [`ChannelTally`].
#[derive(Clone, Copy, PartialEq, Message)]
pub struct TallyBody {
    /// [`ChannelTally::channel`].
    #[prost(uint64, tag = "1")]
    pub channel: u64,
    /// [`ChannelTally::produced`].
    #[prost(uint64, tag = "2")]
    pub produced: u64,
    /// [`ChannelTally::lost`].
    #[prost(uint64, tag = "3")]
    pub lost: u64,
}

/// Texts that rows refer to by number, the first of them under number `first`.
#[derive(Clone, PartialEq, Message)]
pub struct TextsBody {
    /// The number of the first; all smaller ones were sent before, on this connection.
    #[prost(uint32, tag = "1")]
    pub first: u32,
    /// The texts.
    #[prost(string, repeated, tag = "2")]
    pub texts: Vec<String>,
}

/// RFC 5905's transmit timestamp of a client.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Ping {
    /// When the agent sent it, by its clock, in nanoseconds.
    #[prost(int64, tag = "1")]
    pub origin_ns: i64,
}

/// [`AgentMessage::Rows`] without the buffers of the columns.
#[derive(Clone, PartialEq, Message)]
pub struct RowsHead {
    /// The channel.
    #[prost(uint64, tag = "1")]
    pub channel: u64,
    /// The number of rows.
    #[prost(uint32, tag = "2")]
    pub rows: u32,
    /// The encoding of the timestamps.
    #[prost(message, optional, tag = "3")]
    pub ts: Option<Form>,
    /// The encoding of the weights, if there are any.
    #[prost(message, optional, tag = "4")]
    pub weights: Option<Form>,
    /// The encoding of each column.
    #[prost(message, repeated, tag = "5")]
    pub columns: Vec<Form>,
    /// The number of requests that the rows represent if they are groups; otherwise 0.
    #[prost(uint64, tag = "6")]
    pub requests: u64,
}

impl RowsHead {
    /// The number of requests that the rows represent.
    pub fn requests(&self) -> u64 {
        match self.requests {
            0 => u64::from(self.rows),
            requests => requests,
        }
    }
}

/// The encoding of a column: the kind of its values and, for integers and text numbers, `value =
/// base + (written << shift)`, where `written` takes `width` bytes.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Form {
    /// The kind of the values: `frame::KIND_..`.
    #[prost(uint32, tag = "1")]
    pub kind: u32,
    /// Bytes of a written integer: 0 (all are `base`), 1, 2, 4 or 8.
    #[prost(uint32, tag = "2")]
    pub width: u32,
    /// The number of trailing zero bits that are omitted.
    #[prost(uint32, tag = "3")]
    pub shift: u32,
    /// The smallest value.
    #[prost(sint64, tag = "4")]
    pub base: i64,
}

/// [`AgentMessage::Started`].
#[derive(Clone, Copy, PartialEq, Message)]
pub struct StartedBody {
    /// The channel.
    #[prost(uint64, tag = "1")]
    pub channel: u64,
    /// The start, in nanoseconds.
    #[prost(sint64, tag = "2")]
    pub at_ns: i64,
}

/// [`AgentMessage::Failed`].
#[derive(Clone, PartialEq, Message)]
pub struct FailedBody {
    /// The channel.
    #[prost(uint64, tag = "1")]
    pub channel: u64,
    /// The reason.
    #[prost(string, tag = "2")]
    pub why: String,
}

/// [`AgentMessage::Lost`].
#[derive(Clone, PartialEq, Message)]
pub struct LostBody {
    /// The channel.
    #[prost(uint64, tag = "1")]
    pub channel: u64,
    /// The number of requests.
    #[prost(uint64, tag = "2")]
    pub requests: u64,
    /// The reason.
    #[prost(string, tag = "3")]
    pub cause: String,
}

/// [`Note`].
#[derive(Clone, PartialEq, Message)]
pub struct NoteBody {
    /// [`Note::at`].
    #[prost(int64, tag = "1")]
    pub at_ns: i64,
    /// [`Note::place`].
    #[prost(string, tag = "2")]
    pub place: String,
    /// [`Note::counter`].
    #[prost(string, tag = "3")]
    pub counter: String,
    /// [`Note::cause`].
    #[prost(string, optional, tag = "4")]
    pub cause: Option<String>,
    /// [`Note::device`].
    #[prost(string, optional, tag = "5")]
    pub device: Option<String>,
    /// [`Note::value`].
    #[prost(sint64, tag = "6")]
    pub value: i64,
    /// [`Note::total`].
    #[prost(sint64, tag = "7")]
    pub total: i64,
}

/// [`Status`].
#[derive(Clone, PartialEq, Message)]
pub struct StatusBody {
    /// [`Status::offset_ns`].
    #[prost(sint64, tag = "1")]
    pub offset_ns: i64,
    /// [`Status::offset_error_ns`].
    #[prost(sint64, tag = "2")]
    pub offset_error_ns: i64,
    /// [`Status::cpu_ns`].
    #[prost(int64, tag = "3")]
    pub cpu_ns: i64,
    /// [`Status::memory_bytes`].
    #[prost(int64, tag = "4")]
    pub memory_bytes: i64,
    /// [`Status::waiting_bytes`].
    #[prost(int64, tag = "5")]
    pub waiting_bytes: i64,
    /// [`Status::spooled_bytes`].
    #[prost(int64, tag = "6")]
    pub spooled_bytes: i64,
    /// [`Status::requests_per_second`].
    #[prost(double, tag = "7")]
    pub requests_per_second: f64,
    /// [`Status::kept_share`].
    #[prost(double, tag = "8")]
    pub kept_share: f64,
    /// [`Status::channels`].
    #[prost(message, repeated, tag = "9")]
    pub channels: Vec<CostBody>,
    /// [`Status::tallies`].
    #[prost(message, repeated, tag = "10")]
    pub tallies: Vec<TallyBody>,
}

/// [`ChannelCost`].
#[derive(Clone, Copy, PartialEq, Message)]
pub struct CostBody {
    /// [`ChannelCost::channel`].
    #[prost(uint64, tag = "1")]
    pub channel: u64,
    /// [`ChannelCost::rows_in`].
    #[prost(uint64, tag = "2")]
    pub rows_in: u64,
    /// [`ChannelCost::rows_out`].
    #[prost(uint64, tag = "3")]
    pub rows_out: u64,
    /// [`ChannelCost::bytes_out`].
    #[prost(uint64, tag = "4")]
    pub bytes_out: u64,
}

impl Up {
    /// Decodes a message and checks its counts and lengths against the bounds of the protocol.
    pub fn read(data: &FlightData) -> Result<Up, Malformed> {
        read(&data.app_metadata, UP_BYTES_MAX, "message of the agent")
    }

    /// Encodes a message without a number.
    pub fn data(body: UpBody) -> FlightData {
        FlightData {
            app_metadata: encode_body(body).into(),
            ..FlightData::default()
        }
    }

    /// Encodes the first message of a connection.
    ///
    /// # Errors
    /// If a name or a count exceeds its bound.
    pub fn hello(hello: &Hello) -> Result<FlightData, Malformed> {
        let body = HelloBody {
            version: PROTOCOL_VERSION,
            host: hello.host.clone(),
            instance: hello.instance,
            program: hello.version.clone(),
            earlier: hello.earlier.iter().map(EarlierBody::from).collect(),
            held_bytes_max: hello.held_bytes_max,
        };
        let checked = Hello::try_from(body.clone())?;
        debug_assert_eq!(&checked, hello);
        let data = Up::data(UpBody::Hello(body));
        at_most("hello: bytes", data.app_metadata.len(), UP_BYTES_MAX)?;
        Ok(FlightData {
            flight_descriptor: Some(FlightDescriptor::new_path(vec![AGENT_PATH.to_owned()])),
            ..data
        })
    }

    /// Decodes the agent's first message.
    pub fn read_hello(data: &FlightData) -> Result<Hello, Malformed> {
        match Up::read(data)?.body {
            Some(UpBody::Hello(body)) => Hello::try_from(body),
            _ => Err(Malformed(
                "the first message of an agent must be hello".into(),
            )),
        }
    }
}

/// The bytes of a message without its number. Protocol buffers are concatenated by concatenating
/// their bytes, so the number can be appended when the message is sent.
pub fn encode_body(body: UpBody) -> Vec<u8> {
    Up {
        number: 0,
        body: Some(body),
    }
    .encode_to_vec()
}

/// Checks a message other than rows.
///
/// # Errors
/// If a text, a number or a count exceeds its bound, or the message is rows.
impl TryFrom<UpBody> for AgentMessage {
    type Error = Malformed;
    fn try_from(body: UpBody) -> Result<AgentMessage, Malformed> {
        Ok(match body {
            UpBody::Watermark(Nanos::MAX) => AgentMessage::Watermark(Nanos::MAX),
            UpBody::Watermark(ns) => AgentMessage::Watermark(instant("reached", ns)?),
            UpBody::Started(body) => AgentMessage::Started {
                channel: ChannelId(body.channel),
                at: instant("started", body.at_ns)?,
            },
            UpBody::Failed(body) => {
                at_most(
                    "failed: bytes of the reason",
                    body.why.len(),
                    REASON_BYTES_MAX,
                )?;
                AgentMessage::Failed {
                    channel: ChannelId(body.channel),
                    why: body.why,
                }
            }
            UpBody::Lost(body) => {
                at_most("lost: bytes of the cause", body.cause.len(), NAME_BYTES_MAX)?;
                AgentMessage::Lost {
                    channel: ChannelId(body.channel),
                    requests: body.requests,
                    cause: body.cause,
                }
            }
            UpBody::Note(body) => AgentMessage::Note(Note::try_from(body)?),
            UpBody::Status(body) => AgentMessage::Status(Status::try_from(body)?),
            UpBody::Hello(_) => return Err(Malformed("a second hello".into())),
            _ => return Err(Malformed("unexpected message".into())),
        })
    }
}

/// Encodes a message other than rows and checks it against the bounds.
///
/// # Errors
/// As for decoding; rows are encoded by [`crate::frame`].
impl TryFrom<AgentMessage> for UpBody {
    type Error = Malformed;
    fn try_from(message: AgentMessage) -> Result<UpBody, Malformed> {
        let body = match message {
            AgentMessage::Rows { .. } => {
                return Err(Malformed("rows are encoded as a frame".into()));
            }
            AgentMessage::Watermark(ns) => UpBody::Watermark(ns),
            AgentMessage::Started { channel, at } => UpBody::Started(StartedBody {
                channel: channel.0,
                at_ns: at,
            }),
            AgentMessage::Failed { channel, why } => UpBody::Failed(FailedBody {
                channel: channel.0,
                why,
            }),
            AgentMessage::Lost {
                channel,
                requests,
                cause,
            } => UpBody::Lost(LostBody {
                channel: channel.0,
                requests,
                cause,
            }),
            AgentMessage::Note(note) => UpBody::Note(NoteBody::from(note)),
            AgentMessage::Status(status) => UpBody::Status(StatusBody::from(status)),
        };
        AgentMessage::try_from(body.clone())?;
        Ok(body)
    }
}

impl TryFrom<HelloBody> for Hello {
    type Error = Malformed;
    fn try_from(body: HelloBody) -> Result<Hello, Malformed> {
        if body.version != PROTOCOL_VERSION {
            return Err(Malformed(format!(
                "the agent uses version {} of the protocol, this monitor version {}; run the \
                 same release of weir on both",
                body.version, PROTOCOL_VERSION
            )));
        }
        if body.host.is_empty() || body.host.chars().any(char::is_control) {
            return Err(Malformed(format!("{:?} is not a host name", body.host)));
        }
        at_most("hello: bytes of the host", body.host.len(), HOST_BYTES_MAX)?;
        at_most(
            "hello: bytes of the version",
            body.program.len(),
            NAME_BYTES_MAX,
        )?;
        at_most("hello: earlier processes", body.earlier.len(), EARLIER_MAX)?;
        let tallies: usize = body.earlier.iter().map(|e| e.tallies.len()).sum();
        at_most("hello: tallies", tallies, TALLIES_MAX)?;
        let earlier = body.earlier.iter();
        Ok(Hello {
            host: body.host.clone(),
            instance: body.instance,
            version: body.program,
            earlier: earlier
                .map(|e| {
                    (
                        e.instance,
                        e.tallies.iter().map(ChannelTally::from).collect(),
                    )
                })
                .collect(),
            held_bytes_max: body.held_bytes_max,
        })
    }
}

impl From<&(u64, Vec<ChannelTally>)> for EarlierBody {
    fn from((instance, tallies): &(u64, Vec<ChannelTally>)) -> EarlierBody {
        EarlierBody {
            instance: *instance,
            tallies: tallies.iter().map(TallyBody::from).collect(),
        }
    }
}

impl From<&ChannelTally> for TallyBody {
    fn from(tally: &ChannelTally) -> TallyBody {
        TallyBody {
            channel: tally.channel.0,
            produced: tally.produced,
            lost: tally.lost,
        }
    }
}

impl From<&TallyBody> for ChannelTally {
    fn from(body: &TallyBody) -> ChannelTally {
        ChannelTally {
            channel: ChannelId(body.channel),
            produced: body.produced,
            lost: body.lost,
        }
    }
}

impl TryFrom<NoteBody> for Note {
    type Error = Malformed;
    fn try_from(body: NoteBody) -> Result<Note, Malformed> {
        let optional = [&body.cause, &body.device];
        let texts = optional.into_iter().flatten();
        for text in texts.chain([&body.place, &body.counter]) {
            at_most("note: bytes of a text", text.len(), NAME_BYTES_MAX)?;
        }
        Ok(Note {
            at: instant("note", body.at_ns)?,
            place: body.place,
            counter: body.counter,
            cause: body.cause,
            device: body.device,
            value: body.value,
            total: body.total,
        })
    }
}

impl From<Note> for NoteBody {
    fn from(note: Note) -> NoteBody {
        NoteBody {
            at_ns: note.at,
            place: note.place,
            counter: note.counter,
            cause: note.cause,
            device: note.device,
            value: note.value,
            total: note.total,
        }
    }
}

impl TryFrom<StatusBody> for Status {
    type Error = Malformed;
    fn try_from(body: StatusBody) -> Result<Status, Malformed> {
        at_most("status: channels", body.channels.len(), CHANNELS_MAX)?;
        at_most("status: tallies", body.tallies.len(), TALLIES_MAX)?;
        let share = body.kept_share;
        if !(0.0..=1.0).contains(&share)
            || !(0.0..f64::INFINITY).contains(&body.requests_per_second)
        {
            return Err(Malformed(format!(
                "status: keeps {share} of {} requests per second",
                body.requests_per_second
            )));
        }
        let counts = [
            body.cpu_ns,
            body.memory_bytes,
            body.waiting_bytes,
            body.spooled_bytes,
            body.offset_error_ns,
        ];
        if counts.iter().any(|count| *count < 0) {
            return Err(Malformed("status: a count below zero".into()));
        }
        let cost = |c: &CostBody| ChannelCost {
            channel: ChannelId(c.channel),
            rows_in: c.rows_in,
            rows_out: c.rows_out,
            bytes_out: c.bytes_out,
        };
        Ok(Status {
            offset_ns: body.offset_ns,
            offset_error_ns: body.offset_error_ns,
            cpu_ns: body.cpu_ns,
            memory_bytes: body.memory_bytes,
            waiting_bytes: body.waiting_bytes,
            spooled_bytes: body.spooled_bytes,
            requests_per_second: body.requests_per_second,
            kept_share: body.kept_share,
            channels: body.channels.iter().map(cost).collect(),
            tallies: body.tallies.iter().map(ChannelTally::from).collect(),
        })
    }
}

impl From<Status> for StatusBody {
    fn from(status: Status) -> StatusBody {
        let cost = |c: &ChannelCost| CostBody {
            channel: c.channel.0,
            rows_in: c.rows_in,
            rows_out: c.rows_out,
            bytes_out: c.bytes_out,
        };
        StatusBody {
            offset_ns: status.offset_ns,
            offset_error_ns: status.offset_error_ns,
            cpu_ns: status.cpu_ns,
            memory_bytes: status.memory_bytes,
            waiting_bytes: status.waiting_bytes,
            spooled_bytes: status.spooled_bytes,
            requests_per_second: status.requests_per_second,
            kept_share: status.kept_share,
            channels: status.channels.iter().map(cost).collect(),
            tallies: status.tallies.iter().map(TallyBody::from).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_status_is_accepted() {
        let most = u64::MAX;
        let cost = |channel| ChannelCost {
            channel: ChannelId(most - channel),
            rows_in: most,
            rows_out: most,
            bytes_out: most,
        };
        let tally = |channel| ChannelTally {
            channel: ChannelId(most - channel),
            produced: most,
            lost: most,
        };
        let mut status = Status {
            channels: (0..CHANNELS_MAX as u64).map(cost).collect(),
            tallies: (0..TALLIES_MAX as u64).map(tally).collect(),
            ..Status::default()
        };
        let body = UpBody::try_from(AgentMessage::Status(status.clone())).unwrap();
        let read = Up::read(&Up::data(body)).unwrap().body.unwrap();
        match AgentMessage::try_from(read).unwrap() {
            AgentMessage::Status(read) => assert_eq!(read, status),
            other => panic!("{other:?}"),
        }
        status.tallies.push(tally(0));
        let error = UpBody::try_from(AgentMessage::Status(status)).unwrap_err();
        assert!(error.0.starts_with("status: tallies"), "{error}");
    }
}
