//! The counters of the server: connections, rejections with their causes, and traffic.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counted event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    Accepted,
    AcceptFailed,
    Full,
    AddressFull,
    MadeRoom,
    NoRequest,
    TlsFailed,
    TlsSlow,
    Idle,
    Guesses,
    Revoked,
    Requests,
    Unauthenticated,
    Forbidden,
    Standby,
    TooOften,
    TooManyWatches,
    Malformed,
    Unanswered,
    Sessions,
    SessionMalformed,
    SessionSilent,
    SessionNotRead,
    Messages,
    MessagesMissing,
    MessagesUnknown,
    MessagesSlowed,
    BytesIn,
    BytesSlowed,
    BytesOut,
    Watches,
}

/// Each count with its counter and cause, in the order in which they are reported.
const COUNTS: &[(Count, &str, Option<&str>)] = &[
    (Count::Accepted, "connections_in", None),
    (
        Count::AcceptFailed,
        "connections_refused",
        Some("no_descriptors"),
    ),
    (Count::Full, "connections_refused", Some("connections_max")),
    (
        Count::AddressFull,
        "connections_refused",
        Some("address_max"),
    ),
    (Count::MadeRoom, "connections_closed", Some("made_room")),
    (Count::NoRequest, "connections_closed", Some("no_request")),
    (Count::TlsFailed, "connections_closed", Some("tls_failed")),
    (Count::TlsSlow, "connections_closed", Some("tls_slow")),
    (Count::Idle, "connections_closed", Some("idle")),
    (Count::Guesses, "connections_closed", Some("refusals_max")),
    (Count::Revoked, "connections_closed", Some("certificate")),
    (Count::Requests, "requests_in", None),
    (
        Count::Unauthenticated,
        "requests_refused",
        Some("unauthenticated"),
    ),
    (Count::Forbidden, "requests_refused", Some("forbidden")),
    (Count::Standby, "requests_refused", Some("standby")),
    (
        Count::TooOften,
        "requests_refused",
        Some("requests_per_second"),
    ),
    (
        Count::TooManyWatches,
        "requests_refused",
        Some("watches_max"),
    ),
    (Count::Malformed, "requests_refused", Some("malformed")),
    (Count::Unanswered, "requests_refused", Some("unanswered")),
    (Count::Sessions, "sessions_in", None),
    (Count::SessionMalformed, "sessions_ended", Some("malformed")),
    (Count::SessionSilent, "sessions_ended", Some("silent")),
    (Count::SessionNotRead, "sessions_ended", Some("not_reading")),
    (Count::Messages, "messages_in", None),
    (Count::MessagesMissing, "messages_missing", None),
    (Count::MessagesUnknown, "messages_unknown", None),
    (
        Count::MessagesSlowed,
        "agents_slowed",
        Some("messages_per_second"),
    ),
    (Count::BytesIn, "bytes_in", None),
    (
        Count::BytesSlowed,
        "agents_slowed",
        Some("bytes_per_second"),
    ),
    (Count::BytesOut, "bytes_out", None),
    (Count::Watches, "watches_in", None),
];

/// The value of one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerCount {
    /// The counter.
    pub counter: &'static str,
    /// The cause, if there are several.
    pub cause: Option<&'static str>,
    /// The number of events since the server started.
    pub total: u64,
}

/// All counters.
#[derive(Debug, Default)]
pub(crate) struct Counters([AtomicU64; COUNTS.len()]);

impl Counters {
    pub(crate) fn add(&self, count: Count, amount: u64) {
        self.0[count as usize].fetch_add(amount, Ordering::Relaxed);
    }

    /// Their values.
    pub(crate) fn read(&self) -> Vec<ServerCount> {
        let read =
            |&(count, counter, cause): &(Count, &'static str, Option<&'static str>)| ServerCount {
                counter,
                cause,
                total: self.0[count as usize].load(Ordering::Relaxed),
            };
        COUNTS.iter().map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_count_has_its_own_index() {
        for (index, (count, ..)) in COUNTS.iter().enumerate() {
            assert_eq!(*count as usize, index);
        }
    }
}
