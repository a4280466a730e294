//! [`RequestRows`]: the streams of a source of requests, and the events that are their rows.

use crate::event::{IO_PAIRS, io_schema};
use crate::{Declaration, Shape};

/// A stream of every source of requests that queries do not name: every row of `IOstream`
/// (requests and responses), in the schema of `IO`, so that responses have their times. It is the
/// content of a recording of block I/O.
pub const RECORDING: &str = "recording";

/// The streams of a source of requests, and the events that are their rows.
pub(super) const OF_REQUESTS: [(&str, RequestRows); 3] = [
    (IO_PAIRS.finished, RequestRows::Finished),
    (IO_PAIRS.events, RequestRows::Events),
    (RECORDING, RequestRows::All),
];

/// The events of requests that are rows of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestRows {
    /// One row for each request, when it is finished.
    Finished,
    /// One row for each event that the source has observed.
    Events,
    /// As `Events`, and the responses of a source that does not observe them: each request then
    /// has one at its own time.
    All,
}

impl RequestRows {
    /// The events that are rows of a stream; `None` if its rows are not events of requests.
    pub fn of(stream: &str) -> Option<RequestRows> {
        let mut all = OF_REQUESTS.into_iter();
        let found = all.find(|(name, _)| name.eq_ignore_ascii_case(stream));
        found.map(|(_, rows)| rows)
    }

    /// The number of rows for each request.
    pub fn per_request(self) -> u32 {
        match self {
            RequestRows::Finished => 1,
            RequestRows::Events | RequestRows::All => 2,
        }
    }
}

/// The declaration of [`RECORDING`].
pub fn recording() -> Declaration {
    Declaration {
        doc: "every request and every response".into(),
        ..Declaration::new(RECORDING, Shape::Stream, io_schema())
    }
}
