//! [`Console`]: connections, routes, and the headers of every response.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::{Semaphore, oneshot};

use crate::access::{AccessControl, Rejection};
use crate::lease_api::{LeasePermissions, LeaseProcesses};
use crate::program::Program;
use crate::sources::Sources;
use crate::standing::StandingQueries;
use crate::{api, assets};

/// The maximum number of connections. Further ones wait in the kernel's queue.
pub const CONNECTIONS_MAX: usize = 256;

/// The maximum number of WebSockets.
pub const SOCKETS_MAX: usize = 64;

/// The maximum size of the head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 160 << 10;

/// The timeout of a request head, and of an idle connection.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);

/// The pause when the system cannot accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The policy of the page: nothing but its own files, no script from a text.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

/// The headers of every response.
const HEADERS: [(HeaderName, &str); 5] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// Options of a console.
pub struct ConsoleOptions {
    /// The address, of the loopback interface; port 0 selects any port.
    pub listen: SocketAddr,
    /// The program that runs queries.
    pub program: Program,
    /// The maximum number of queries that run at a time.
    pub queries_max: usize,
    /// The folder of recordings that clients may open.
    pub recordings: Option<PathBuf>,
    /// The only VM whose rows clients may read. The program's options restrict its queries.
    pub only_vm: Option<String>,
    /// What clients may do to disks.
    pub leases: LeasePermissions,
    /// Receives the link to open: at the start, and a new one when it was used.
    pub on_link: Box<dyn Fn(&str) + Send + Sync>,
}

/// What the handlers share.
pub struct ConsoleState {
    /// Which requests are accepted.
    pub access: AccessControl,
    /// The processes.
    pub program: Program,
    /// The standing queries.
    pub queries: Arc<StandingQueries>,
    /// The sources that clients may name.
    pub sources: Arc<Sources>,
    /// The only VM whose rows clients may read.
    pub only_vm: Option<String>,
    /// What clients may do to disks.
    pub leases: LeasePermissions,
    /// The leases of clients.
    pub held: LeaseProcesses,
    /// A permit for each query over HTTP.
    pub requests: Arc<Semaphore>,
    /// A permit for each WebSocket.
    pub sockets: Arc<Semaphore>,
    address: SocketAddr,
    on_link: Box<dyn Fn(&str) + Send + Sync>,
}

/// A running console; it stops when this is dropped.
pub struct Console {
    service: Arc<ConsoleState>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Console {
    /// Listens, and serves in a thread of its own.
    ///
    /// # Errors
    /// When the address is not of the loopback interface, or listening fails.
    pub fn start(options: ConsoleOptions) -> io::Result<Console> {
        if !options.listen.ip().is_loopback() {
            let message = "the console listens on the loopback interface only, because it has no \
                encryption; from another host, use ssh -L 19350:127.0.0.1:19350 HOST";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", options.listen));
        let listener = TcpListener::bind(options.listen).map_err(named)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let queries_max = options.queries_max;
        let service = Arc::new(ConsoleState {
            access: AccessControl::new(address.port())?,
            queries: Arc::new(StandingQueries::new(options.program.clone(), queries_max)),
            sources: Arc::new(Sources {
                has_recent: options.program.is_shared(),
                folder: options.recordings,
            }),
            only_vm: options.only_vm,
            leases: options.leases,
            held: LeaseProcesses::default(),
            program: options.program,
            requests: Arc::new(Semaphore::new(queries_max)),
            sockets: Arc::new(Semaphore::new(SOCKETS_MAX)),
            address,
            on_link: options.on_link,
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("weir-console")
            .enable_all()
            .build()?;
        let (end, ended) = oneshot::channel::<()>();
        let served = service.clone();
        let serve = move || {
            runtime.block_on(async {
                match tokio::net::TcpListener::from_std(listener) {
                    Ok(listener) => drop(tokio::spawn(accept(listener, served.clone()))),
                    Err(error) => tracing::error!(%error, "the console cannot listen"),
                }
                // Either way the sender is gone.
                let _ = ended.await;
                served.held.end().await;
            });
            served.queries.end();
            runtime.shutdown_timeout(Duration::from_secs(1));
        };
        let thread = std::thread::Builder::new().name("weir-console".into());
        let thread = thread.spawn(serve)?;
        if service.program.is_shared() {
            // Requests are retained from now on; a failure is reported with the first query.
            let shared = service.queries.shared_source().clone();
            std::thread::spawn(move || shared.interval());
        }
        service.announce();
        Ok(Console {
            service,
            end: Some(end),
            thread: Some(thread),
        })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.service.address
    }

    /// The token for `Authorization: Bearer`.
    pub fn token(&self) -> &str {
        self.service.access.token()
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A panic was reported on standard error.
            let _ = thread.join();
        }
    }
}

impl ConsoleState {
    /// Rejects what concerns other VMs than the one whose rows clients may read.
    ///
    /// # Errors
    /// The rejection.
    pub fn check_all_vms(&self) -> Result<(), api::ApiError> {
        let Some(vm) = &self.only_vm else {
            return Ok(());
        };
        let message = format!("this console shows VM {vm} only");
        Err(api::ApiError::new(StatusCode::FORBIDDEN, message))
    }

    /// Reports the current link.
    pub fn announce(&self) {
        let (address, secret) = (self.address, self.access.link_secret());
        // A fragment is not sent to the server and does not appear in logs.
        (self.on_link)(&format!("http://{address}/#link={secret}"));
    }
}

async fn accept(listener: tokio::net::TcpListener, service: Arc<ConsoleState>) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let router = router(&service);
    loop {
        let permit = connections.clone().acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // The peer has disconnected, or the process has no file descriptor left: retry later.
            Err(_) => {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let router = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME_MAX)
                .max_buf_size(HEAD_BYTES_MAX);
            let connection = http.serve_connection(TokioIo::new(stream), router);
            // Errors of a connection concern only its client.
            let _ = connection.with_upgrades().await;
            drop(permit);
        });
    }
}

fn router(service: &Arc<ConsoleState>) -> Router {
    let signed_in = from_fn_with_state(service.clone(), require_credentials);
    let api = api::router().layer(signed_in);
    Router::new()
        .merge(api)
        .merge(api::open_router())
        .fallback(assets::serve)
        .layer(from_fn_with_state(service.clone(), guard))
        .with_state(service.clone())
}

/// Rejects requests of other sites, before anything else; adds the headers of every response.
async fn guard(State(service): State<Arc<ConsoleState>>, request: Request, next: Next) -> Response {
    let checked = service
        .access
        .check_origin(request.method(), request.headers());
    let mut response = match checked {
        Ok(()) => next.run(request).await,
        Err(rejection) => rejected(StatusCode::FORBIDDEN, rejection),
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let uncached = HeaderValue::from_static("no-store");
    headers.entry(CACHE_CONTROL).or_insert(uncached);
    response
}

async fn require_credentials(
    State(service): State<Arc<ConsoleState>>,
    request: Request,
    next: Next,
) -> Response {
    match service.access.check_credentials(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(rejection) => rejected(StatusCode::UNAUTHORIZED, rejection),
    }
}

fn rejected(status: StatusCode, rejection: Rejection) -> Response {
    api::ApiError::new(status, rejection.message()).into_response()
}
