//! The monitor's side of the network: accepts connections, authenticates peers, and passes their
//! messages as [`ServerEvent`](crate::event::ServerEvent)s to one receiver.
//!
//! The life of a request:
//! 1. `listen` accepts a connection if there is a free slot (`connections`) and performs the TLS
//!    handshake; `stream` counts its bytes from then on.
//! 2. `auth` checks the token of the request or the certificate of the connection against
//!    [`crate::access`], and its rate against the limits, before the request is read.
//! 3. `service` checks the role and decodes the request (`requests`), or starts a `session`.
//! 4. The event is queued for the monitor. While the queue is full, clients wait and agents are not
//!    read (TCP flow control).
//! 5. `results` encodes the updates of a watcher as an Arrow stream.

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
use crate::{Address, FleetClock, WireError};
use connections::Connections;
use counters::Counters;
use service::Shared;
use socket::Listener;

pub(crate) use requests::STANDBY_HEADER;

pub use counters::ServerCount;
pub use events::{EventQueue, NextEvent};
pub use limits::Limits;
pub use socket::Listen;

/// The timeout for tasks to end when the server stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// The number of network threads.
const THREADS: usize = 2;

/// The configuration of the server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The address to listen on.
    pub listen: Listen,
    /// TLS; without it only peers on this host are accepted.
    pub tls: Option<ServerTls>,
    /// File of tokens, see [`crate::access`].
    pub tokens: Option<PathBuf>,
    /// Peers on the loopback interface need neither token nor certificate. For tests: every user of
    /// the host could submit queries and join as an agent.
    pub open: bool,
    /// The limits on requests of peers.
    pub limits: Limits,
    /// The reason why all requests are rejected at first, such as `is a standby`.
    pub standby: Option<String>,
    /// The clock of the fleet, to which agents synchronise.
    pub clock: FleetClock,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], DEFAULT_PORT)).into(),
            tls: None,
            tokens: None,
            open: false,
            limits: Limits::default(),
            standby: None,
            clock: FleetClock::default(),
        }
    }
}

/// The settings that can be reloaded: access rules and certificates.
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
    standby: watch::Sender<Option<String>>,
    counters: Arc<Counters>,
    connections: Arc<Connections>,
    runtime: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens, and serves on background threads.
    ///
    /// # Errors
    /// If an address beyond this host is used without TLS, or any address without certificates or
    /// tokens; if a file is invalid; if the address is in use.
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
        let (standby, standby_now) = watch::channel(options.standby.clone());
        let shared = Shared::new(
            limits,
            options.clock.clone(),
            counters.clone(),
            rules_now,
            standby_now,
            send,
        );
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
            standby,
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
    /// As [`Server::bind`], except for the address.
    pub fn check(options: &ServerOptions) -> Result<(), WireError> {
        load(options).map(drop)
    }

    /// The address it listens on.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Reloads certificates and tokens. They apply to new and existing connections: a connection
    /// with a removed token, or with a certificate that is no longer valid, is closed.
    ///
    /// # Errors
    /// If a file is invalid; nothing changes then.
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

    /// Sets the reason why all requests are rejected while this monitor is a standby; with `None`
    /// it is none any more.
    pub fn set_standby(&self, why: Option<String>) {
        self.standby.send_if_modified(|now| {
            let is_other = *now != why;
            *now = why;
            is_other
        });
    }

    /// The counters, for stream `weir`.
    pub fn counters(&self) -> Vec<ServerCount> {
        self.counters.read()
    }

    /// The number of connections.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// The number of tasks that serve them; 0 without connections.
    pub fn tasks(&self) -> usize {
        self.runtime.metrics().num_alive_tasks()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // If it panicked, that thread has reported it.
            let _ = thread.join();
        }
    }
}

/// Reads the files named in the options, and rejects options that would admit anyone.
fn load(options: &ServerOptions) -> Result<Rules, WireError> {
    let tokens = options.tokens.is_some();
    let certificates = options.tls.as_ref().is_some_and(|t| t.authority.is_some());
    if let Listen::Tcp(listen) = options.listen {
        let is_loopback = listen.ip().is_loopback();
        if !is_loopback && options.tls.is_none() {
            return Err(WireError::Unprotected(format!(
                "{listen} can be reached from other hosts and needs TLS: configure a certificate \
                 and its key (`weir certificates` creates them), or listen on unix:PATH"
            )));
        }
        if !is_loopback && !certificates && !tokens {
            return Err(WireError::Unprotected(format!(
                "{listen} can be reached from other hosts without authentication: configure an \
                 authority for client certificates, or a file of tokens"
            )));
        }
        if is_loopback && !certificates && !tokens && !options.open {
            return Err(WireError::Unprotected(format!(
                "{listen} can be reached by every user of this host: configure a file of tokens, \
                 or listen on unix:PATH, which only its user and group can open"
            )));
        }
    }
    if let (Listen::Unix(_), Some(_)) = (&options.listen, &options.tls) {
        return Err(WireError::Unprotected(
            "TLS is not supported on a unix socket: remove the certificate, or listen on an \
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

/// Serves until it is stopped, then ends within [`STOP_TIMEOUT`].
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
