//! Events of the monitor's server: agents connect, send messages and disconnect, and clients send
//! requests.
//!
//! The server owns the network; the receiver of the events interprets the messages, one after the
//! other.

use std::fmt;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use tokio::sync::{mpsc, oneshot};

use crate::Peer;
use crate::message::{AgentMessage, Hello, MonitorMessage, Welcome};

/// Identifies one connection of an agent; never reused while the monitor runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// An event on the network.
#[derive(Debug)]
pub enum ServerEvent {
    /// An agent has connected. Nothing more is read from it until it is welcomed.
    Joined(Joined),
    /// A message of an agent. Numbered messages arrive in order and once per session; those up to
    /// [`Welcome::acked`] are not repeated.
    Message {
        /// The connection.
        session: SessionId,
        /// The number of the message; `None` if it is not numbered.
        number: Option<u64>,
        /// The content.
        message: AgentMessage,
    },
    /// The connection of an agent has ended.
    Left {
        /// The connection.
        session: SessionId,
        /// The reason.
        why: String,
    },
    /// A peer was rejected.
    Refused {
        /// The peer.
        peer: Peer,
        /// The reason.
        why: String,
        /// How many rejections before this one were not reported.
        suppressed: u64,
    },
    /// A request of a client.
    Request {
        /// The client.
        who: Principal,
        /// The content.
        request: ClientRequest,
        /// Where to send the reply.
        reply: ReplySender,
    },
}

/// An agent that has connected.
#[derive(Debug)]
pub struct Joined {
    /// Its connection.
    pub session: SessionId,
    /// Its peer address.
    pub peer: Peer,
    /// Its first message.
    pub hello: Hello,
    /// Where to send the welcome, or a rejection with a reason.
    pub welcome: oneshot::Sender<Result<Welcome, Refusal>>,
    /// Messages to the agent. Bounded: when the queue is full, the sender must disconnect the
    /// agent.
    pub orders: mpsc::Sender<MonitorMessage>,
}

/// A permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// List and watch queries.
    Read,
    /// Submit and cancel queries as well.
    Place,
    /// Join as an agent.
    Agent,
}

/// An authenticated peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The name of the token or certificate; without either, the address or the local user.
    pub name: String,
    /// Its permissions.
    pub roles: Vec<Role>,
    /// The only VM whose rows it may read; `None` for all.
    pub vm: Option<String>,
}

/// A request of a client. The server has checked its role.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientRequest {
    /// Submit a query.
    Submit(Submit),
    /// Watch a query: first the current content of its relation, then the changes.
    Watch {
        /// The query's name.
        query: String,
    },
    /// List the queries.
    Queries,
    /// List the agents.
    Hosts,
    /// List the stored views.
    Views,
    /// List the streams that agents have beside the built-in ones.
    Streams,
    /// Change the stored views: CREATE VIEW and DROP VIEW statements.
    ChangeViews {
        /// The statements.
        text: String,
    },
    /// Show where each part of a query runs and what it costs.
    Explain(Submit),
    /// End a query.
    Cancel {
        /// The query's name.
        query: String,
    },
}

/// A query to submit.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Submit {
    /// The query in CQL.
    pub query: String,
    /// Its name; generated if absent.
    pub name: Option<String>,
    /// Run it until it is cancelled, also across restarts; otherwise while it is watched.
    pub standing: bool,
    /// The placement strategy, instead of the cheapest: `rows`, `partials`, `agent`.
    pub place: Option<String>,
    /// Set if it is one of the queries of a script.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script: Option<OfScript>,
}

/// Selects one query of a script in the format of the STREAM prototype.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfScript {
    /// The position of the query, counted from 1 in the order of the text; named queries that other
    /// queries read are not counted.
    pub query: u32,
    /// The length of a tick of the script's time in nanoseconds, at most a second.
    pub tick_ns: u32,
}

/// Why a request is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The query is invalid: the diagnostics, formatted.
    Invalid(String),
    /// The object does not exist.
    NotFound(String),
    /// A limit is reached; the request may succeed later.
    LimitReached(String),
    /// An object of that name exists already.
    AlreadyExists(String),
    /// The operation failed.
    Failed(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Invalid(text)
            | Refusal::NotFound(text)
            | Refusal::LimitReached(text)
            | Refusal::AlreadyExists(text)
            | Refusal::Failed(text) => f.write_str(text),
        }
    }
}

/// Where to send the reply to a [`ClientRequest`].
#[derive(Debug)]
pub struct ReplySender(pub oneshot::Sender<Result<ClientReply, Refusal>>);

/// The reply to a [`ClientRequest`].
#[derive(Debug)]
pub enum ClientReply {
    /// JSON for the client, for all requests but [`ClientRequest::Watch`].
    Json(serde_json::Value),
    /// For [`ClientRequest::Submit`] and [`ClientRequest::Watch`]: the name and columns of a query,
    /// and for [`ClientRequest::Watch`] its results.
    Query {
        /// The query's name.
        name: String,
        /// Its Arrow schema, with the description of the results as metadata.
        schema: SchemaRef,
        /// The results.
        results: Option<mpsc::Receiver<ResultUpdate>>,
    },
}

/// An update for a client that watches a query.
#[derive(Clone, Debug)]
pub struct ResultUpdate {
    /// Rows or deltas; may be empty when only the note has changed.
    pub batch: RecordBatch,
    /// Metadata: `at` (ns), `reset` (discard earlier results), `hosts`, `hosts_responded`,
    /// `rows_lost`, `rows_late`, `rows_away`, `rows_before`, `skipped`, and in the last update
    /// `ended` with the reason.
    pub note: serde_json::Value,
}
