//! Connections: limited in total and by address, and closed when unused.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::counters::{Count, Counters};
use super::limits::{Limits, REFUSALS_PER_CONNECTION_MAX, RateLimit};
use crate::Peer;
use crate::access::Certified;
use crate::tls::LoadedTls;

/// One connection, shared by everything that serves it.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) peer: Peer,
    came: Instant,
    /// Its certificate; set once, after the handshake.
    pub(crate) certificate: OnceLock<Certified>,
    /// A request of it was granted.
    has_request: AtomicBool,
    /// The number of active requests.
    busy: AtomicU32,
    /// When the last of them ended, in milliseconds since the connection was accepted.
    idle_since_ms: AtomicU64,
    refusals: AtomicU32,
    pub(crate) bytes: Mutex<RateLimit>,
    disconnect: Mutex<Option<oneshot::Sender<()>>>,
}

impl Connection {
    /// Closes it: reads and writes fail from now on. False if it was closed already.
    pub(crate) fn disconnect(&self) -> bool {
        let disconnect = self.disconnect.lock().expect("no panic while held").take();
        // Without a receiver it has been closed already.
        disconnect.map(|disconnect| disconnect.send(())).is_some()
    }

    /// A request of it was granted.
    pub(crate) fn mark_granted(&self) {
        self.has_request.store(true, Ordering::Relaxed);
    }

    /// Counts a rejected request. True if the limit is exceeded.
    pub(crate) fn refuse(&self) -> bool {
        self.refusals.fetch_add(1, Ordering::Relaxed) + 1 >= REFUSALS_PER_CONNECTION_MAX
    }

    /// True unless it presented a certificate that would not be accepted now.
    pub(crate) fn is_accepted_by(&self, tls: &LoadedTls) -> bool {
        let shown = self.certificate.get();
        shown.is_none_or(|certified| tls.accepts(&certified.chain))
    }

    fn age_ms(&self) -> u64 {
        self.came.elapsed().as_millis() as u64
    }

    /// The reason to close it now, if there is one.
    fn overdue(&self, limits: &Limits) -> Option<Count> {
        if !self.has_request.load(Ordering::Relaxed) {
            return (self.age_ms() >= limits.first_request_ms).then_some(Count::NoRequest);
        }
        let idle_ms = self
            .age_ms()
            .saturating_sub(self.idle_since_ms.load(Ordering::Relaxed));
        let idle = self.busy.load(Ordering::Relaxed) == 0 && idle_ms >= limits.idle_ms;
        idle.then_some(Count::Idle)
    }
}

/// An active request; the connection is not idle while it exists.
#[derive(Debug)]
pub(crate) struct ActiveRequest(Arc<Connection>);

impl ActiveRequest {
    pub(crate) fn new(connection: &Arc<Connection>) -> ActiveRequest {
        connection.busy.fetch_add(1, Ordering::Relaxed);
        ActiveRequest(connection.clone())
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let now_ms = self.0.age_ms();
        self.0.idle_since_ms.store(now_ms, Ordering::Relaxed);
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All connections.
#[derive(Debug)]
pub(crate) struct Connections {
    limits: Limits,
    counters: Arc<Counters>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// By the order in which they were accepted.
    open: BTreeMap<u64, Arc<Connection>>,
    by_site: HashMap<PeerKey, usize>,
}

/// A connection's slot; free again when this is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    number: u64,
    connections: Arc<Connections>,
    pub(crate) connection: Arc<Connection>,
}

impl Connections {
    pub(crate) fn new(limits: Limits, counters: Arc<Counters>) -> Connections {
        Connections {
            limits,
            counters,
            table: Mutex::default(),
        }
    }

    /// Reserves a slot for a connection from `peer`, with a receiver that completes when the
    /// connection has to be closed. Without a free slot, the oldest connection without a granted
    /// request is closed.
    ///
    /// # Errors
    /// If there is none, with the reason.
    pub(crate) fn rewrite(
        self: &Arc<Self>,
        peer: Peer,
    ) -> Result<(ConnectionSlot, oneshot::Receiver<()>), &'static str> {
        let mut table = self.table.lock().expect("no panic while held");
        let peer_key = peer_key(peer);
        let there = table.by_site.get(&peer_key).copied().unwrap_or(0);
        let no_room = if there >= self.limits.connections_per_address_max {
            Some((
                Count::AddressFull,
                Some(peer_key),
                "too many connections from this address",
            ))
        } else if table.open.len() >= self.limits.connections_max {
            Some((Count::Full, None, "too many connections"))
        } else {
            None
        };
        if let Some((count, peer_key, why)) = no_room {
            let Some(number) = table.oldest_without_request(peer_key) else {
                self.counters.add(count, 1);
                return Err(why);
            };
            self.counters.add(Count::MadeRoom, 1);
            if let Some(connection) = table.remove(number) {
                connection.disconnect();
            }
        }
        let (disconnect, disconnected) = oneshot::channel();
        let connection = Arc::new(Connection {
            peer,
            came: Instant::now(),
            certificate: OnceLock::new(),
            has_request: AtomicBool::new(false),
            busy: AtomicU32::new(0),
            idle_since_ms: AtomicU64::new(0),
            refusals: AtomicU32::new(0),
            bytes: Mutex::new(RateLimit::new(self.limits.client_bytes_per_second)),
            disconnect: Mutex::new(Some(disconnect)),
        });
        self.counters.add(Count::Accepted, 1);
        let number = table.next;
        table.next += 1;
        table.open.insert(number, connection.clone());
        *table.by_site.entry(peer_key).or_default() += 1;
        let place = ConnectionSlot {
            number,
            connections: self.clone(),
            connection,
        };
        Ok((place, disconnected))
    }

    /// Closes overdue connections, periodically.
    pub(crate) async fn sweep(&self) {
        loop {
            tokio::time::sleep(Duration::from_millis(250)).await;
            let table = self.table.lock().expect("no panic while held");
            for connection in table.open.values() {
                if let Some(count) = connection.overdue(&self.limits)
                    && connection.disconnect()
                {
                    self.counters.add(count, 1);
                }
            }
        }
    }

    /// Closes connections with a certificate that would not be accepted now.
    pub(crate) fn recheck_certificates(&self, tls: &LoadedTls) {
        let table = self.table.lock().expect("no panic while held");
        let open: Vec<Arc<Connection>> = table.open.values().cloned().collect();
        // Verifying signatures is slow, and the lock is needed meanwhile.
        drop(table);
        for connection in open {
            if !connection.is_accepted_by(tls) && connection.disconnect() {
                self.counters.add(Count::Revoked, 1);
            }
        }
    }

    /// Closes all connections.
    pub(crate) fn disconnect_all(&self) {
        let table = self.table.lock().expect("no panic while held");
        for connection in table.open.values() {
            connection.disconnect();
        }
    }

    /// The number of connections.
    pub(crate) fn len(&self) -> usize {
        self.table.lock().expect("no panic while held").open.len()
    }
}

impl Table {
    fn oldest_without_request(&self, from: Option<PeerKey>) -> Option<u64> {
        let mut waiting = self.open.iter().filter(|(_, c)| {
            !c.has_request.load(Ordering::Relaxed)
                && from.is_none_or(|from| peer_key(c.peer) == from)
        });
        waiting.next().map(|(number, _)| *number)
    }

    fn remove(&mut self, number: u64) -> Option<Arc<Connection>> {
        let connection = self.open.remove(&number)?;
        let peer_key = peer_key(connection.peer);
        if let Some(there) = self.by_site.get_mut(&peer_key) {
            *there -= 1;
            if *there == 0 {
                self.by_site.remove(&peer_key);
            }
        }
        Some(connection)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut table = self.connections.table.lock().expect("no panic while held");
        table.remove(self.number);
    }
}

/// The key by which connections are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum PeerKey {
    /// An address; of IPv6 the first 64 bits, since a host usually controls all of such a prefix.
    Ip(IpAddr),
    /// A user of this host.
    User(u32),
}

fn peer_key(peer: Peer) -> PeerKey {
    let address = match peer {
        Peer::Tcp(address) => address,
        Peer::Local { uid, .. } => return PeerKey::User(uid),
    };
    PeerKey::Ip(match address.ip().to_canonical() {
        IpAddr::V4(ip) => IpAddr::V4(ip),
        IpAddr::V6(ip) => {
            let prefix = u128::from(ip) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(prefix))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections(connections_max: usize, connections_per_address_max: usize) -> Arc<Connections> {
        let limits = Limits {
            connections_max,
            connections_per_address_max,
            ..Limits::default()
        };
        Arc::new(Connections::new(limits, Arc::default()))
    }

    fn from(text: &str) -> Peer {
        Peer::Tcp(format!("{text}:1").parse().unwrap())
    }

    #[test]
    fn the_oldest_connection_without_a_request_is_closed_first() {
        let all = connections(2, 2);
        let (first, mut first_disconnected) = all.rewrite(from("10.0.0.1")).unwrap();
        let (second, mut second_disconnected) = all.rewrite(from("10.0.0.2")).unwrap();
        first.connection.mark_granted();
        let (third, mut third_disconnected) = all.rewrite(from("10.0.0.3")).unwrap();
        assert!(first_disconnected.try_recv().is_err() && third_disconnected.try_recv().is_err());
        assert!(second_disconnected.try_recv().is_ok());
        drop(second);
        assert_eq!(all.len(), 2);
        third.connection.mark_granted();
        assert!(all.rewrite(from("10.0.0.4")).is_err());
        drop((first, third));
        assert_eq!(all.len(), 0);
        assert!(all.table.lock().unwrap().by_site.is_empty());
    }

    #[test]
    fn a_local_user_has_the_limit_of_one_address() {
        let all = connections(10, 1);
        let local = |uid, pid| all.rewrite(Peer::Local { uid, pid });
        let (first, _disconnected) = local(5, 1).unwrap();
        first.connection.mark_granted();
        assert!(local(5, 2).is_err());
        assert!(local(6, 3).is_ok());
    }

    #[test]
    fn an_address_displaces_only_its_own_connections() {
        let all = connections(10, 1);
        let (_other, mut other_disconnected) = all.rewrite(from("10.0.0.1")).unwrap();
        let (_first, mut first_disconnected) = all.rewrite(from("[2001:db8::1]")).unwrap();
        let _second = all.rewrite(from("[2001:db8::2]")).unwrap();
        assert!(first_disconnected.try_recv().is_ok());
        assert!(other_disconnected.try_recv().is_err());
    }
}
