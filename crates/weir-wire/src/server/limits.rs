//! [`Limits`]: how much the network may ask of the monitor.

use std::time::Duration;

use crate::message::FRAME_BYTES_MAX;

/// The longest message from an agent, in bytes: a word, and room for Flight's own fields.
pub(crate) const AGENT_MESSAGE_BYTES_MAX: usize = FRAME_BYTES_MAX + (512 << 10);
/// The longest message from a client, in bytes: a query and what goes with it.
pub(crate) const CLIENT_MESSAGE_BYTES_MAX: usize = 256 << 10;
/// The longest query, in bytes.
pub(crate) const QUERY_BYTES_MAX: usize = 64 << 10;
/// The longest name of a query, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 256;
/// HTTP/2 requests that a connection may have open at once. A client watches a few queries.
pub(crate) const STREAMS_PER_CONNECTION_MAX: u32 = 32;
/// The longest HTTP/2 header list, in bytes.
pub(crate) const HEADER_BYTES_MAX: u32 = 16 << 10;
/// The longest HTTP/2 frame that is taken, in bytes (RFC 9113's smallest).
pub(crate) const HTTP_FRAME_BYTES_MAX: u32 = 16 << 10;
/// What may come on one request before it is read: an agent's messages, in bytes.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// What may come on one connection before it is read, in bytes.
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = 2 << 20;
/// Requests that were reset before they were answered; beyond, the connection ends
/// (CVE-2023-44487, "rapid reset").
pub(crate) const RESETS_PENDING_MAX: usize = 20;
/// Errors of a peer's making that are answered with a reset; beyond, the connection ends.
pub(crate) const RESETS_LOCAL_MAX: usize = 128;
/// Refusals (a wrong token, a role that is missing) after which a connection is let go.
pub(crate) const REFUSALS_PER_CONNECTION_MAX: u32 = 8;
/// Words that wait to be sent to an agent.
pub(crate) const ORDERS_WAITING_MAX: usize = 256;
/// Connections that were accepted and wait to be served.
pub(crate) const CONNECTIONS_WAITING_MAX: usize = 64;
/// How often a connection is asked whether it is still there.
pub(crate) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// How long it may take to say so.
pub(crate) const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// How much the network may ask of the monitor. Reaching a limit is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections in all. When all places are taken, whoever has not asked for anything yet and
    /// came first has to go.
    pub connections_max: usize,
    /// Connections from one address (of IPv6, one /64).
    pub connections_per_address_max: usize,
    /// How long a connection may take to its first whole request (of an agent: its hello).
    pub first_request_ms: u64,
    /// How long a TLS handshake may take.
    pub tls_handshake_ms: u64,
    /// How long a request may take to come and to be answered.
    pub request_ms: u64,
    /// How long an agent may be silent.
    pub agent_silence_ms: u64,
    /// How long a connection on which nothing is asked for is kept.
    pub idle_ms: u64,
    /// Words from one agent in a second; beyond, it is read more slowly.
    pub agent_messages_per_second: u64,
    /// Bytes from one agent in a second; beyond, it is read more slowly.
    pub agent_bytes_per_second: u64,
    /// Bytes from one client's connection in a second; beyond, it is read more slowly.
    pub client_bytes_per_second: u64,
    /// Requests of one principal in a second; beyond, they are refused.
    pub requests_per_second: u64,
    /// Queries that one principal watches at once.
    pub watches_per_principal_max: usize,
    /// EventQueue that wait for the monitor. When all places are taken, agents wait.
    pub events_waiting_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_max: 8192,
            connections_per_address_max: 2048,
            first_request_ms: 10_000,
            tls_handshake_ms: 5_000,
            request_ms: 30_000,
            agent_silence_ms: 60_000,
            idle_ms: 600_000,
            agent_messages_per_second: 20_000,
            agent_bytes_per_second: 64 << 20,
            client_bytes_per_second: 1 << 20,
            requests_per_second: 100,
            watches_per_principal_max: 256,
            events_waiting_max: 1024,
        }
    }
}

/// How much of something may still happen: so much a second, and what was left of the last second.
#[derive(Debug)]
pub(crate) struct RateLimit {
    per_second: f64,
    left: f64,
    at: std::time::Instant,
}

impl RateLimit {
    pub(crate) fn new(per_second: u64) -> RateLimit {
        RateLimit {
            per_second: per_second.max(1) as f64,
            left: per_second.max(1) as f64,
            at: std::time::Instant::now(),
        }
    }

    /// Takes `amount`, more than there is if need be, and says how long to wait before the next.
    pub(crate) fn take(&mut self, amount: u64, now: std::time::Instant) -> Duration {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        self.left = (self.left + passed * self.per_second).min(self.per_second) - amount as f64;
        Duration::from_secs_f64((-self.left / self.per_second).clamp(0.0, 60.0))
    }

    /// Takes `amount` if that much is there.
    pub(crate) fn try_take(&mut self, amount: u64, now: std::time::Instant) -> bool {
        let waits = self.take(amount, now) > Duration::ZERO;
        if waits {
            self.left += amount as f64;
        }
        !waits
    }

    /// From now on `per_second`.
    pub(crate) fn set(&mut self, per_second: u64) {
        self.per_second = per_second.max(1) as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn who_takes_more_than_a_second_gives_waits_for_it() {
        let start = Instant::now();
        let mut rate_limit = RateLimit::new(100);
        rate_limit.at = start;
        assert_eq!(rate_limit.take(100, start), Duration::ZERO);
        assert_eq!(rate_limit.take(50, start), Duration::from_millis(500));
        let later = start + Duration::from_millis(500);
        assert!(!rate_limit.try_take(1, later));
        assert!(rate_limit.try_take(100, later + Duration::from_secs(9)));
        assert!(!rate_limit.try_take(1, later + Duration::from_secs(9)));
    }
}
