//! [`Connections`]: the open connections of the metrics server, and which one to close at the
//! limit.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::task::AbortHandle;

/// The largest number of connections.
pub const CONNECTIONS_MAX: usize = 64;

/// The largest number of connections of one address (of IPv6, a /64).
pub const ADDRESS_CONNECTIONS_MAX: usize = 8;

/// The open connections, ordered by the time of the last request, or of the connection if there was
/// none.
#[derive(Clone, Default)]
pub struct Connections {
    open: Arc<Mutex<Open>>,
}

#[derive(Default)]
struct Open {
    entries: Vec<Entry>,
    next: u64,
}

struct Entry {
    number: u64,
    from: IpAddr,
    task: Option<AbortHandle>,
}

/// A connection; it is open until this is dropped.
pub struct Connection {
    number: u64,
    connections: Connections,
}

impl Connections {
    /// Adds a connection; at the limit, closes the oldest one of `peer`, or of all.
    pub fn open(&self, peer: IpAddr) -> Connection {
        let from = network(peer);
        let mut open = self.lock();
        let of_peer = |entry: &Entry| entry.from == from;
        if open.entries.iter().filter(|e| of_peer(e)).count() >= ADDRESS_CONNECTIONS_MAX {
            open.close_first(of_peer);
        } else if open.entries.len() >= CONNECTIONS_MAX {
            open.close_first(|_| true);
        }
        let number = open.next;
        open.next += 1;
        open.entries.push(Entry {
            number,
            from,
            task: None,
        });
        Connection {
            number,
            connections: self.clone(),
        }
    }

    /// Holds the sender that closes a connection.
    pub fn keep(&self, number: u64, task: AbortHandle) {
        let mut open = self.lock();
        if let Some(entry) = open.entries.iter_mut().find(|e| e.number == number) {
            entry.task = Some(task);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().expect("no panic while held")
    }
}

impl Open {
    fn close_first(&mut self, which: impl Fn(&Entry) -> bool) {
        if let Some(at) = self.entries.iter().position(which)
            && let Some(task) = self.entries.remove(at).task
        {
            task.abort();
        }
    }
}

impl Connection {
    /// Its unique number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Records a complete request.
    pub fn requested(&self) {
        let mut open = self.connections.lock();
        if let Some(at) = open.entries.iter().position(|e| e.number == self.number) {
            let entry = open.entries.remove(at);
            open.entries.push(entry);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut open = self.connections.lock();
        open.entries.retain(|e| e.number != self.number);
    }
}

/// The key of an address.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let prefix = u128::from(address) & (u128::MAX << 64);
            IpAddr::V6(prefix.into())
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(connections: &Connections) -> Vec<u64> {
        connections
            .lock()
            .entries
            .iter()
            .map(|e| e.number)
            .collect()
    }

    #[test]
    fn an_address_displaces_its_own_connections_first() {
        let connections = Connections::default();
        let peer = |n: u8| IpAddr::from([192, 0, 2, n]);
        let other = connections.open(peer(1));
        let many: Vec<Connection> = (0..ADDRESS_CONNECTIONS_MAX as u64 + 3)
            .map(|_| connections.open(peer(2)))
            .collect();
        let expected: Vec<u64> = [other.number()]
            .into_iter()
            .chain(4..=ADDRESS_CONNECTIONS_MAX as u64 + 3)
            .collect();
        assert_eq!(numbers(&connections), expected);
        drop(many);
        assert_eq!(numbers(&connections), [other.number()]);
    }

    #[test]
    fn addresses_of_one_network_count_together() {
        let at = |text: &str| network(text.parse().unwrap());
        assert_eq!(at("2001:db8::1"), at("2001:db8::ffff:2"));
        assert_ne!(at("2001:db8:0:1::1"), at("2001:db8::1"));
        assert_eq!(at("::ffff:192.0.2.1"), at("192.0.2.1"));
    }

    #[test]
    fn the_total_of_all_addresses_is_bounded() {
        let connections = Connections::default();
        let open: Vec<Connection> = (0..CONNECTIONS_MAX as u8 + 5)
            .map(|n| connections.open(IpAddr::from([192, 0, 2, n])))
            .collect();
        assert_eq!(numbers(&connections).len(), CONNECTIONS_MAX);
        assert_eq!(numbers(&connections)[0], open[5].number());
    }
}
