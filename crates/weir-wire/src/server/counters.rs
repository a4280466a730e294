//! What the server counts: who came, who was refused and why, how much came and went.

use std::sync::atomic::{AtomicU64, Ordering};

/// Something that is counted.
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
    MessagesSlowed,
    BytesIn,
    BytesSlowed,
    BytesOut,
    Watches,
}

/// Each count with its counter and cause, in the order in which they are shown.
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

/// One counter as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// What is counted.
    pub counter: &'static str,
    /// Why it happened, where there are several reasons.
    pub cause: Option<&'static str>,
    /// How often since the server started.
    pub total: u64,
}

/// All counters.
#[derive(Debug, Default)]
pub(crate) struct Counters([AtomicU64; COUNTS.len()]);

impl Counters {
    pub(crate) fn add(&self, count: Count, amount: u64) {
        self.0[count as usize].fetch_add(amount, Ordering::Relaxed);
    }

    /// As they stand.
    pub(crate) fn read(&self) -> Vec<Counter> {
        let read =
            |&(count, counter, cause): &(Count, &'static str, Option<&'static str>)| Counter {
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
    fn each_count_stands_in_its_own_place() {
        for (index, (count, ..)) in COUNTS.iter().enumerate() {
            assert_eq!(*count as usize, index);
        }
    }
}
