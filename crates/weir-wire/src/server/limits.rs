//! [`Limits`]: the limits on what peers may request from the monitor.

use std::time::Duration;

use crate::message::FRAME_BYTES_MAX;

/// The longest message of an agent, in bytes: one with rows, and room for Flight's own fields.
pub(crate) const AGENT_MESSAGE_BYTES_MAX: usize = FRAME_BYTES_MAX + (512 << 10);
/// The longest message of a client, in bytes: a query and its metadata.
pub(crate) const CLIENT_MESSAGE_BYTES_MAX: usize = 256 << 10;
/// The longest query, in bytes.
pub(crate) const QUERY_BYTES_MAX: usize = 64 << 10;
/// The longest name of a query, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 256;
/// HTTP/2 requests that a connection may have open at once. A client watches a few queries.
pub(crate) const STREAMS_PER_CONNECTION_MAX: u32 = 32;
/// The longest HTTP/2 header list, in bytes.
pub(crate) const HEADER_BYTES_MAX: u32 = 16 << 10;
/// The longest accepted HTTP/2 frame, in bytes (the minimum of RFC 9113).
pub(crate) const HTTP_FRAME_BYTES_MAX: u32 = 16 << 10;
/// The receive window of one request, in bytes: an agent's messages.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// The receive window of one connection, in bytes.
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = 2 << 20;
/// Requests that were reset before they were answered; beyond this, the connection is closed
/// (CVE-2023-44487, "rapid reset").
pub(crate) const RESETS_PENDING_MAX: usize = 20;
/// Protocol errors of a peer that are answered with a reset; beyond this, the connection is closed.
pub(crate) const RESETS_LOCAL_MAX: usize = 128;
/// Rejected requests (an invalid token, a missing role) after which a connection is closed.
pub(crate) const REFUSALS_PER_CONNECTION_MAX: u32 = 8;
/// The queue of messages to an agent.
pub(crate) const ORDERS_WAITING_MAX: usize = 256;
/// The queue of accepted connections.
pub(crate) const CONNECTIONS_WAITING_MAX: usize = 64;
/// The interval of keep-alive probes.
pub(crate) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// The timeout of a keep-alive probe.
pub(crate) const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// The limits of the server. Reaching one is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections in total. When all slots are in use, the oldest connection without a granted
    /// request is closed.
    pub connections_max: usize,
    /// Connections from one address (of IPv6, one /64).
    pub connections_per_address_max: usize,
    /// The time until the first complete request of a connection (for an agent, its hello).
    pub first_request_ms: u64,
    /// The timeout of a TLS handshake.
    pub tls_handshake_ms: u64,
    /// The timeout for receiving and answering a request.
    pub request_ms: u64,
    /// The longest silence of an agent.
    pub agent_silence_ms: u64,
    /// The time after which a connection without active requests is closed.
    pub idle_ms: u64,
    /// Messages per second of one agent; beyond this, it is read more slowly.
    pub agent_messages_per_second: u64,
    /// Bytes per second of one agent; beyond this, it is read more slowly.
    pub agent_bytes_per_second: u64,
    /// Bytes per second of one client connection; beyond this, it is read more slowly.
    pub client_bytes_per_second: u64,
    /// Requests per second of one principal; beyond this, they are rejected.
    pub requests_per_second: u64,
    /// Queries that one principal may watch at once.
    pub watches_per_principal_max: usize,
    /// Events queued for the monitor. While the queue is full, agents wait.
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

/// A token bucket: a rate per second, with at most one second's amount saved.
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

    /// Takes `amount`, even beyond the balance, and returns how long to wait before the next.
    pub(crate) fn take(&mut self, amount: u64, now: std::time::Instant) -> Duration {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = now;
        self.left = (self.left + passed * self.per_second).min(self.per_second) - amount as f64;
        Duration::from_secs_f64((-self.left / self.per_second).clamp(0.0, 60.0))
    }

    /// Takes `amount` if the balance suffices.
    pub(crate) fn try_take(&mut self, amount: u64, now: std::time::Instant) -> bool {
        let waits = self.take(amount, now) > Duration::ZERO;
        if waits {
            self.left += amount as f64;
        }
        !waits
    }

    /// Sets the rate.
    pub(crate) fn set(&mut self, per_second: u64) {
        self.per_second = per_second.max(1) as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn exceeding_the_rate_causes_a_wait() {
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
