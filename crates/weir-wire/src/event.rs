//! What the monitor's server hears: agents that come, speak and go, and clients that ask.
//!
//! The server owns the network; what the words mean is for whoever receives the events, one after
//! the other.

use std::fmt;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use tokio::sync::{mpsc, oneshot};

use crate::Peer;
use crate::protocol::{AgentMessage, Hello, MonitorMessage, Welcome};

/// Names one connection of an agent; never used twice while the monitor runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// Something that happened on the network.
#[derive(Debug)]
pub enum ServerEvent {
    /// An agent has come. Until it is welcomed nothing of it is read.
    Joined(Joined),
    /// It said something. Words with numbers come in order; each comes once in a session, and those
    /// up to [`Welcome::taken`] do not come again.
    Message {
        /// On which connection.
        session: SessionId,
        /// The number of the word; `None` for those that are not numbered.
        number: Option<u64>,
        /// What.
        message: AgentMessage,
    },
    /// Its connection is gone.
    Left {
        /// Which connection.
        session: SessionId,
        /// Why, in words.
        why: String,
    },
    /// A peer was refused.
    Refused {
        /// The peer.
        peer: Peer,
        /// The reason.
        why: String,
        /// How many more were refused before it without an event of their own.
        suppressed: u64,
    },
    /// A client asks.
    Request {
        /// Who.
        who: Principal,
        /// What.
        request: Request,
        /// Where the answer goes.
        reply: ReplySender,
    },
}

/// An agent that has come.
#[derive(Debug)]
pub struct Joined {
    /// Its connection.
    pub session: SessionId,
    /// The other end of that.
    pub peer: Peer,
    /// What it said of itself.
    pub hello: Hello,
    /// To be welcomed, or refused with a reason.
    pub welcome: oneshot::Sender<Result<Welcome, Refusal>>,
    /// What it is to do. Bounded: an agent that does not read is let go by whoever finds it full.
    pub orders: mpsc::Sender<MonitorMessage>,
}

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Look: list queries and watch them.
    Read,
    /// Place queries and cancel them as well.
    Place,
    /// Be an agent.
    Agent,
}

/// Who speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The name that goes with the token or certificate; without either the address or the local user.
    pub name: String,
    /// What it may do.
    pub roles: Vec<Role>,
}

/// What a client asks. The server has checked its role.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Place a query.
    Submit(Submit),
    /// Watch what a query gives: first what its relation holds, then what changes.
    Watch {
        /// The query's name.
        query: String,
    },
    /// What queries there are.
    Queries,
    /// What agents there are.
    Hosts,
    /// Where each part of a query runs, and what it costs.
    Explain(Submit),
    /// End a query.
    Cancel {
        /// The query's name.
        query: String,
    },
}

/// A query to be placed.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Submit {
    /// The query in CQL.
    pub query: String,
    /// What to call it; without a name it gets one.
    pub name: Option<String>,
    /// It runs until it is cancelled, also over restarts; otherwise as long as somebody watches.
    pub standing: bool,
    /// Where it is to run, instead of where it costs least: `rows`, `partials`, `agent`.
    pub place: Option<String>,
    /// It is one of the queries of a script.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script: Option<OfScript>,
}

/// That a text is a script in the format of the STREAM prototype, of which one query is meant.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfScript {
    /// Which one, counted from 1 in the order of the text; named queries that others read are not
    /// counted.
    pub query: u32,
    /// How many nanoseconds a tick of the script's time has, at most a second's.
    pub tick_ns: u32,
}

/// Why something is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The words are off: the diagnostics, as they are shown.
    Invalid(String),
    /// There is no such thing.
    NotFound(String),
    /// A bound is reached; it may go another time.
    LimitReached(String),
    /// Something with that name is there already.
    AlreadyExists(String),
    /// It cannot be done.
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

/// Where the answer to a [`Request`] goes.
#[derive(Debug)]
pub struct ReplySender(pub oneshot::Sender<Result<Reply, Refusal>>);

/// The answer to a [`Request`].
#[derive(Debug)]
pub enum Reply {
    /// To all but [`Request::Watch`]: JSON for whoever asked.
    Json(serde_json::Value),
    /// To [`Request::Submit`] and [`Request::Watch`]: the name and columns of a query, and for
    /// [`Request::Watch`] what comes of it.
    Query {
        /// The query's name.
        name: String,
        /// Its columns as Arrow's, with the answer's description as metadata.
        schema: SchemaRef,
        /// What comes.
        results: Option<mpsc::Receiver<ResultUpdate>>,
    },
}

/// What somebody who watches a query is shown.
#[derive(Clone, Debug)]
pub struct ResultUpdate {
    /// Rows or deltas; without rows, it is said how complete they are.
    pub batch: RecordBatch,
    /// Besides: `at` (ns), `reset` (forget what was shown before), `hosts`, `hosts_heard`,
    /// `rows_lost`, `rows_late`, `rows_away`, `rows_before`, `skipped`, and at the end `ended` with
    /// the reason.
    pub note: serde_json::Value,
}
