//! The monitor's side of the network: it listens, lets in who may come in, and turns what they say
//! into [`Event`](crate::event::Event)s for one receiver.
//!
//! The life of a request:
//! 1. `listen` accepts a connection if there is a place for it (`connections`) and does the TLS
//!    handshake; `stream` counts its bytes from then on.
//! 2. `front` holds the request's token or the connection's certificate against [`crate::access`],
//!    and its rate against the limits. Nothing of a request is read before.
//! 3. `service` checks the role and reads the request (`requests`), or begins an agent's `session`.
//! 4. The event goes to the monitor. There is room for so many; when it is full, whoever asked
//!    waits, an agent's connection is not read, and TCP tells the agent.
//! 5. `results` gives a watcher its rows as Arrow's own stream.

mod connections;
mod counters;
mod events;
mod front;
mod limits;
mod listen;
mod requests;
mod results;
mod service;
mod session;
mod stream;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{oneshot, watch};

use crate::WireError;
use crate::access::Access;
use crate::address::DEFAULT_PORT;
use crate::tls::{LoadedTls, ServerTls};
use connections::Connections;
use counters::Counters;
use service::Shared;

pub use counters::Counter;
pub use events::{Events, Next};
pub use limits::Limits;

/// How long tasks may take to end when the server stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// Threads that serve the network.
const THREADS: usize = 2;

/// What the server is to do.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where to listen; port 0 lets the system choose one.
    pub listen: SocketAddr,
    /// TLS; without it only this host can be listened to.
    pub tls: Option<ServerTls>,
    /// File of tokens, see [`crate::access`].
    pub tokens: Option<PathBuf>,
    /// How much the network may ask.
    pub limits: Limits,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], DEFAULT_PORT)),
            tls: None,
            tokens: None,
            limits: Limits::default(),
        }
    }
}

/// What may change while the server runs: who is let in, and with which certificates.
#[derive(Debug)]
struct Rules {
    access: Access,
    tls: Option<LoadedTls>,
}

/// The server. It stops when it is dropped.
#[derive(Debug)]
pub struct Server {
    options: ServerOptions,
    address: SocketAddr,
    rules: watch::Sender<Arc<Rules>>,
    counters: Arc<Counters>,
    connections: Arc<Connections>,
    runtime: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens, and serves on threads of its own.
    ///
    /// # Errors
    /// When an address beyond this host is to be listened to without TLS, or with TLS but without
    /// certificates or tokens; when a file is not what it should be; when the address is taken.
    pub fn bind(options: ServerOptions) -> Result<(Server, Events), WireError> {
        let rules = Arc::new(load(&options)?);
        let listen = |source| WireError::Listen {
            address: options.listen.to_string(),
            source,
        };
        let listener = TcpListener::bind(options.listen).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;

        let mut limits = options.limits.clone();
        limits.connections_max = limits.connections_max.min(listen::room(&limits));
        let counters = Arc::new(Counters::default());
        let connections = Arc::new(Connections::new(limits.clone(), counters.clone()));
        let (rules, rules_now) = watch::channel(rules);
        let (send, events) = Events::channel(limits.events_waiting_max);
        let shared = Shared::new(limits, counters.clone(), rules_now, send);
        let (stop, stopped) = oneshot::channel();

        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("weir-wire")
            .enable_all()
            .build()
            .map_err(WireError::Thread)?;
        let (served, handle) = (connections.clone(), runtime.handle().clone());
        let serve = move || run(runtime, listener, shared, served, stopped);
        let thread = std::thread::Builder::new()
            .name("weir-server".to_owned())
            .spawn(serve)
            .map_err(WireError::Thread)?;
        let server = Server {
            options,
            address,
            rules,
            counters,
            connections,
            runtime: handle,
            stop: Some(stop),
            thread: Some(thread),
        };
        Ok((server, events))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Reads certificates and tokens again. Who comes from now on is held against them, and so are
    /// connections that are there: who shows a token that is gone, or a certificate of an authority
    /// that is gone or that holds no longer, is let go.
    ///
    /// # Errors
    /// When a file is not what it should be; all stays as it was then.
    pub fn reload(&self) -> Result<(), WireError> {
        let rules = Arc::new(load(&self.options)?);
        self.rules.send_replace(rules.clone());
        let connections = self.connections.clone();
        self.runtime.spawn_blocking(move || {
            if let Some(tls) = &rules.tls {
                connections.hold_against(tls);
            }
        });
        Ok(())
    }

    /// What was counted, for stream `weir`.
    pub fn counters(&self) -> Vec<Counter> {
        self.counters.read()
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// How many tasks serve them; none when nobody is there.
    pub fn tasks(&self) -> usize {
        self.runtime.metrics().num_alive_tasks()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It panicked if at all on another thread, which has said so.
            let _ = thread.join();
        }
    }
}

/// Reads what the options name, and refuses what would be open to strangers.
fn load(options: &ServerOptions) -> Result<Rules, WireError> {
    let tokens = options.tokens.is_some();
    let certificates = options.tls.as_ref().is_some_and(|t| t.authority.is_some());
    if !options.listen.ip().is_loopback() {
        let listen = options.listen;
        if options.tls.is_none() {
            return Err(WireError::Unprotected(format!(
                "{listen} can be reached from other hosts and needs TLS: give a certificate and \
                 its key (`weir certificates` makes them), or listen on 127.0.0.1"
            )));
        }
        if !certificates && !tokens {
            return Err(WireError::Unprotected(format!(
                "{listen} can be reached from other hosts and lets everybody in: give an \
                 authority whose certificates are taken, or a file of tokens"
            )));
        }
    }
    Ok(Rules {
        access: Access::load(options.tokens.as_deref(), certificates)?,
        tls: options
            .tls
            .as_ref()
            .map(|tls| tls.load(tokens))
            .transpose()?,
    })
}

/// Serves until it is told to stop, and then ends within [`STOP_TIMEOUT`].
fn run(
    runtime: Runtime,
    listener: TcpListener,
    shared: Arc<Shared>,
    connections: Arc<Connections>,
    stopped: oneshot::Receiver<()>,
) {
    runtime.block_on(async {
        tokio::select! {
            () = listen::serve(listener, shared, connections.clone()) => {}
            _ = stopped => {}
        }
        connections.let_all_go();
    });
    runtime.shutdown_timeout(STOP_TIMEOUT);
}
