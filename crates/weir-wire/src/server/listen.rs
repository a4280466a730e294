//! Accepts connections, performs TLS handshakes, and passes them to the HTTP/2 server.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server as HttpServer;

use super::auth::AuthService;
use super::connections::{ConnectionSlot, Connections};
use super::counters::Count;
use super::limits::{self, Limits};
use super::service::Shared;
use super::socket::{Listener, SocketFile};
use super::stream::{Bytes, GuardedStream};
use crate::Peer;
use crate::access::Certified;

/// The pause when no file descriptor is left for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// File descriptors reserved for the rest of the process.
const DESCRIPTORS_RESERVED: u64 = 256;

/// The number of connections this process can have, after raising its limit of file descriptors as
/// far as allowed and needed.
pub(super) fn connections_possible(limits: &Limits) -> usize {
    let wanted = limits.connections_max as u64 + DESCRIPTORS_RESERVED;
    let now = getrlimit(Resource::Nofile);
    let current = now.current.unwrap_or(u64::MAX);
    let possible = now.maximum.unwrap_or(u64::MAX);
    let mut granted = current;
    if current < wanted {
        let raised = Rlimit {
            current: Some(wanted.min(possible)),
            maximum: now.maximum,
        };
        if setrlimit(Resource::Nofile, raised).is_ok() {
            granted = wanted.min(possible);
        }
    }
    let kept = DESCRIPTORS_RESERVED.min(granted / 2);
    (granted - kept).min(limits.connections_max as u64) as usize
}

/// A listener on the runtime's network.
#[derive(Debug)]
enum Accepting {
    Tcp(TcpListener),
    /// The socket file exists as long as this.
    Unix(UnixListener, #[allow(dead_code)] SocketFile),
}

/// A connection before its TLS handshake.
#[derive(Debug)]
enum Accepted {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Accepting {
    /// Must be called on the runtime.
    fn new(listener: Listener) -> io::Result<Accepting> {
        Ok(match listener {
            Listener::Tcp(listener) => Accepting::Tcp(TcpListener::from_std(listener)?),
            Listener::Unix(listener, bound) => {
                Accepting::Unix(UnixListener::from_std(listener)?, bound)
            }
        })
    }

    async fn accept(&self) -> io::Result<(Accepted, Peer)> {
        Ok(match self {
            Accepting::Tcp(listener) => {
                let (tcp, address) = listener.accept().await?;
                // Disables Nagle's algorithm; a connection on which this fails is broken.
                let _ = tcp.set_nodelay(true);
                (Accepted::Tcp(tcp), Peer::Tcp(address))
            }
            Accepting::Unix(listener, _) => {
                let (unix, _) = listener.accept().await?;
                let credentials = unix.peer_cred()?;
                let peer = Peer::Local {
                    uid: credentials.uid(),
                    pid: credentials.pid().map_or(0, |pid| pid as u32),
                };
                (Accepted::Unix(unix), peer)
            }
        })
    }
}

/// Accepts peers until the runtime ends.
pub(super) async fn serve(listener: Listener, shared: Arc<Shared>, connections: Arc<Connections>) {
    let listener =
        Accepting::new(listener).expect("the listener does not block and the runtime has I/O");
    let (ready, incoming) = mpsc::channel(limits::CONNECTIONS_WAITING_MAX);
    let http = HttpServer::builder()
        .accept_http1(false)
        .http2_keepalive_interval(Some(limits::KEEP_ALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(limits::KEEP_ALIVE_TIMEOUT))
        .http2_max_header_list_size(limits::HEADER_BYTES_MAX)
        .http2_max_pending_accept_reset_streams(Some(limits::RESETS_PENDING_MAX))
        .http2_max_local_error_reset_streams(Some(limits::RESETS_LOCAL_MAX))
        .max_frame_size(limits::HTTP_FRAME_BYTES_MAX)
        .max_concurrent_streams(limits::STREAMS_PER_CONNECTION_MAX)
        .initial_stream_window_size(limits::STREAM_WINDOW_BYTES)
        .initial_connection_window_size(limits::CONNECTION_WINDOW_BYTES)
        .serve_with_incoming(
            AuthService::new(shared.clone()),
            ReceiverStream::new(incoming),
        );
    tokio::select! {
        _ = http => {}
        () = accept(listener, &shared, &connections, ready) => {}
        () = connections.sweep() => {}
    }
}

async fn accept(
    listener: Accepting,
    shared: &Arc<Shared>,
    connections: &Arc<Connections>,
    ready: mpsc::Sender<Result<GuardedStream, std::io::Error>>,
) {
    loop {
        let (accepted, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(_) => {
                shared.counters.add(Count::AcceptFailed, 1);
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (place, disconnect) = match connections.rewrite(peer) {
            Ok(admitted) => admitted,
            Err(why) => {
                shared.refusals.report(peer, why);
                continue;
            }
        };
        let (shared, ready) = (shared.clone(), ready.clone());
        tokio::spawn(async move {
            if let Some(guarded) = guarded(&shared, accepted, place, disconnect).await {
                // Without a receiver the server is stopping.
                let _ = ready.send(Ok(guarded)).await;
            }
        });
    }
}

/// The connection after its TLS handshake, if any; `None` if that failed.
async fn guarded(
    shared: &Shared,
    accepted: Accepted,
    place: ConnectionSlot,
    mut disconnect: oneshot::Receiver<()>,
) -> Option<GuardedStream> {
    let counters = shared.counters.clone();
    let rules = shared.rules.borrow().clone();
    let (tcp, tls) = match (accepted, &rules.tls) {
        (Accepted::Unix(unix), _) => {
            return Some(GuardedStream::new(
                Bytes::Local(unix),
                place,
                disconnect,
                counters,
            ));
        }
        (Accepted::Tcp(tcp), None) => {
            return Some(GuardedStream::new(
                Bytes::Plain(tcp),
                place,
                disconnect,
                counters,
            ));
        }
        (Accepted::Tcp(tcp), Some(tls)) => (tcp, tls),
    };
    let peer = place.connection.peer;
    let refuse = |count, why: &str| {
        shared.counters.add(count, 1);
        shared
            .refusals
            .report(peer, format!("TLS handshake: {why}"));
    };
    let timeout = Duration::from_millis(shared.limits.tls_handshake_ms);
    let bytes = tokio::select! {
        bytes = TlsAcceptor::from(tls.config.clone()).accept(tcp) => bytes,
        _ = &mut disconnect => return None,
        () = tokio::time::sleep(timeout) => {
            refuse(Count::TlsSlow, "timed out");
            return None;
        }
    };
    let bytes = match bytes {
        Ok(bytes) => bytes,
        Err(error) => {
            refuse(Count::TlsFailed, &error.to_string());
            return None;
        }
    };
    let shown = bytes.get_ref().1.peer_certificates();
    if let Some(certified) = shown.and_then(Certified::read) {
        let connection = &place.connection;
        let set = connection.certificate.set(certified);
        set.expect("a connection has one handshake");
        // A reload during the handshake may have missed this connection.
        let now = shared.rules.borrow().clone();
        let changed = !Arc::ptr_eq(&now, &rules);
        if changed
            && now
                .tls
                .as_ref()
                .is_some_and(|tls| !connection.is_accepted_by(tls))
        {
            refuse(Count::TlsFailed, "the certificate is no longer accepted");
            return None;
        }
    }
    let bytes = Bytes::Tls(Box::new(bytes));
    Some(GuardedStream::new(bytes, place, disconnect, counters))
}
