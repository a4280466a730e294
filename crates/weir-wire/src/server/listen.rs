//! Accepts connections, does their TLS handshakes, and gives them to the HTTP/2 server.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server as HttpServer;

use super::connections::{Connections, Place};
use super::counters::Count;
use super::front::Front;
use super::limits::{self, Limits};
use super::service::Shared;
use super::stream::{Bytes, Guarded};
use crate::access::Certified;

/// How long to wait when the system has no descriptor left for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Descriptors that are left for all else the process does.
const DESCRIPTORS_KEPT: u64 = 256;

/// How many connections this process can have, after its limit of descriptors was raised as far as
/// it may be and need be.
pub(super) fn room(limits: &Limits) -> usize {
    let wanted = limits.connections_max as u64 + DESCRIPTORS_KEPT;
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
    let kept = DESCRIPTORS_KEPT.min(granted / 2);
    (granted - kept).min(limits.connections_max as u64) as usize
}

/// Serves whoever comes.
pub(super) async fn serve(
    listener: TcpListener,
    shared: Arc<Shared>,
    connections: Arc<Connections>,
) {
    let listener = tokio::net::TcpListener::from_std(listener)
        .expect("the listener does not block and the runtime drives the network");
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
        .serve_with_incoming(Front::new(shared.clone()), ReceiverStream::new(incoming));
    tokio::select! {
        _ = http => {}
        () = accept(listener, &shared, &connections, ready) => {}
        () = connections.sweep() => {}
    }
}

async fn accept(
    listener: tokio::net::TcpListener,
    shared: &Arc<Shared>,
    connections: &Arc<Connections>,
    ready: mpsc::Sender<Result<Guarded, std::io::Error>>,
) {
    loop {
        let (tcp, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(_) => {
                shared.counters.add(Count::AcceptFailed, 1);
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some((place, let_go)) = connections.admit(address) else {
            continue;
        };
        // Small messages are not held back; a connection on which this fails is broken anyway.
        let _ = tcp.set_nodelay(true);
        let (shared, ready) = (shared.clone(), ready.clone());
        tokio::spawn(async move {
            if let Some(guarded) = guarded(&shared, tcp, place, let_go).await {
                // The server stops when nobody takes it.
                let _ = ready.send(Ok(guarded)).await;
            }
        });
    }
}

/// The connection as it is served, after the handshake if there is one; `None` if it is none.
async fn guarded(
    shared: &Shared,
    tcp: TcpStream,
    place: Place,
    mut let_go: oneshot::Receiver<()>,
) -> Option<Guarded> {
    let counters = shared.counters.clone();
    let rules = shared.rules.borrow().clone();
    let Some(tls) = &rules.tls else {
        return Some(Guarded::new(Bytes::Plain(tcp), place, let_go, counters));
    };
    let timeout = Duration::from_millis(shared.limits.tls_handshake_ms);
    let bytes = tokio::select! {
        bytes = TlsAcceptor::from(tls.config.clone()).accept(tcp) => bytes,
        _ = &mut let_go => return None,
        () = tokio::time::sleep(timeout) => {
            counters.add(Count::TlsSlow, 1);
            return None;
        }
    };
    let Ok(bytes) = bytes else {
        counters.add(Count::TlsFailed, 1);
        return None;
    };
    let shown = bytes.get_ref().1.peer_certificates();
    if let Some(certified) = shown.and_then(Certified::read) {
        let connection = &place.connection;
        let set = connection.certificate.set(certified);
        set.expect("a connection has one handshake");
        // A reload during the handshake may not have seen it.
        let now = shared.rules.borrow().clone();
        let changed = !Arc::ptr_eq(&now, &rules);
        if changed
            && now
                .tls
                .as_ref()
                .is_some_and(|tls| !connection.is_taken_by(tls))
        {
            counters.add(Count::TlsFailed, 1);
            return None;
        }
    }
    let bytes = Bytes::Tls(Box::new(bytes));
    Some(Guarded::new(bytes, place, let_go, counters))
}
