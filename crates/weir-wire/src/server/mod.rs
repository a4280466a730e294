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

mod auth;
mod connections;
mod counters;
mod events;
mod limits;
mod listen;
mod refusals;
mod requests;
mod results;
mod service;
mod session;
mod socket;
mod stream;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{oneshot, watch};

use crate::access::Access;
use crate::address::DEFAULT_PORT;
use crate::tls::{LoadedTls, ServerTls};
use crate::{Address, WireError};
use connections::Connections;
use counters::Counters;
use service::Shared;
use socket::Listener;

pub use counters::Counter;
pub use events::{EventQueue, NextEvent};
pub use limits::Limits;
pub use socket::Listen;

/// How long tasks may take to end when the server stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// Threads that serve the network.
const THREADS: usize = 2;

/// What the server is to do.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where to listen.
    pub listen: Listen,
    /// TLS; without it only peers on this host are served.
    pub tls: Option<ServerTls>,
    /// File of tokens, see [`crate::access`].
    pub tokens: Option<PathBuf>,
    /// Peers on the loopback interface need neither token nor certificate. For tests: every user of
    /// the host could place queries and join as an agent.
    pub open: bool,
    /// Bounds of what peers may ask.
    pub limits: Limits,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], DEFAULT_PORT)).into(),
            tls: None,
            tokens: None,
            open: false,
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
    address: Address,
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
    /// When an address beyond this host is to be listened to without TLS, or any address without
    /// certificates or tokens; when a file is not what it should be; when the address is in use.
    pub fn bind(options: ServerOptions) -> Result<(Server, EventQueue), WireError> {
        let rules = Arc::new(load(&options)?);
        let listen = |source| WireError::Listen {
            address: options.listen.to_string(),
            source,
        };
        let listener = Listener::bind(&options.listen).map_err(listen)?;
        let address = listener.address().map_err(listen)?;

        let mut limits = options.limits.clone();
        limits.connections_max = limits
            .connections_max
            .min(listen::connections_possible(&limits));
        let counters = Arc::new(Counters::default());
        let connections = Arc::new(Connections::new(limits.clone(), counters.clone()));
        let (rules, rules_now) = watch::channel(rules);
        let (send, events) = EventQueue::channel(limits.events_waiting_max);
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

    /// Checks the options as [`Server::bind`] does, without listening.
    ///
    /// # Errors
    /// As of [`Server::bind`], but for the address.
    pub fn check(options: &ServerOptions) -> Result<(), WireError> {
        load(options).map(drop)
    }

    /// Where it listens.
    pub fn address(&self) -> &Address {
        &self.address
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
                connections.recheck_certificates(tls);
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

/// Reads the files that the options name, and refuses options that would serve anyone.
fn load(options: &ServerOptions) -> Result<Rules, WireError> {
    let tokens = options.tokens.is_some();
    let certificates = options.tls.as_ref().is_some_and(|t| t.authority.is_some());
    if let Listen::Tcp(listen) = options.listen {
        let is_loopback = listen.ip().is_loopback();
        if !is_loopback && options.tls.is_none() {
            return Err(WireError::Unprotected(format!(
                "{listen} can be reached from other hosts and needs TLS: give a certificate and \
                 its key (`weir certificates` makes them), or listen on unix:PATH"
            )));
        }
        if !is_loopback && !certificates && !tokens {
            return Err(WireError::Unprotected(format!(
                "{listen} can be reached from other hosts and would serve anyone: give an \
                 authority whose certificates are accepted, or a file of tokens"
            )));
        }
        if is_loopback && !certificates && !tokens && !options.open {
            return Err(WireError::Unprotected(format!(
                "{listen} can be reached by every user of this host: give a file of tokens, or \
                 listen on unix:PATH, which its user and group alone can reach"
            )));
        }
    }
    if let (Listen::Unix(_), Some(_)) = (&options.listen, &options.tls) {
        return Err(WireError::Unprotected(
            "a unix socket is not used with TLS: leave out the certificate, or listen on an \
             address and a port"
                .to_owned(),
        ));
    }
    Ok(Rules {
        access: Access::load(options.tokens.as_deref(), certificates, options.open)?,
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
    listener: Listener,
    shared: Arc<Shared>,
    connections: Arc<Connections>,
    stopped: oneshot::Receiver<()>,
) {
    runtime.block_on(async {
        tokio::select! {
            () = listen::serve(listener, shared, connections.clone()) => {}
            _ = stopped => {}
        }
        connections.disconnect_all();
    });
    runtime.shutdown_timeout(STOP_TIMEOUT);
}
