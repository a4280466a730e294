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
    /// Place alerts that act on hosts as well.
    Act,
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

impl Principal {
    /// Whether its permissions include `role`: `act` includes `place`, and that `read`.
    pub fn allows(&self, role: Role) -> bool {
        let has = |role: Role| self.roles.contains(&role);
        match role {
            Role::Read => has(Role::Read) || self.allows(Role::Place),
            Role::Place => has(Role::Place) || has(Role::Act),
            Role::Act | Role::Agent => has(role),
        }
    }
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
    /// List the alerts that run at the monitor, with their instances.
    Alerts,
    /// Run alerts at the monitor: CREATE ALERT statements. An alert of the same name that a client
    /// has placed is replaced.
    PlaceAlerts {
        /// The statements.
        text: String,
    },
    /// End an alert that a client has placed.
    RemoveAlert {
        /// Its name.
        alert: String,
    },
    /// List the silences.
    Silences,
    /// Withhold the messages of alerts.
    Silence(SilenceRequest),
    /// End a silence.
    Unsilence {
        /// Its id.
        silence: String,
    },
    /// Show where each part of a query runs and what it costs.
    Explain(Submit),
    /// End a query.
    Cancel {
        /// The query's name.
        query: String,
    },
}

impl ClientRequest {
    /// Whether it is about the alerts that run at the monitor.
    pub fn is_of_alerts(&self) -> bool {
        matches!(
            self,
            ClientRequest::Alerts
                | ClientRequest::PlaceAlerts { .. }
                | ClientRequest::RemoveAlert { .. }
                | ClientRequest::Silences
                | ClientRequest::Silence(_)
                | ClientRequest::Unsilence { .. }
        )
    }
}

/// A silence to add.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SilenceRequest {
    /// The alert; all if absent.
    #[serde(default)]
    pub alert: Option<String>,
    /// Values of labels, all of which an instance must have.
    #[serde(default)]
    pub labels: Vec<(String, String)>,
    /// Its length, in nanoseconds.
    pub for_ns: i64,
    /// Why, for other users.
    #[serde(default)]
    pub comment: String,
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
