//! [`MetricsServer`]: serves metrics at `/metrics` and health checks at `/healthz` and `/readyz`,
//! one thread for all clients.
//!
//! A client cannot use more than its own connection: connections are limited in number, in total
//! and per address, and in time; the head of a request is limited in size and time, and its body is
//! not read. At a limit, the connection whose last request is the oldest is closed for the new one
//! ([`Connections`]).
//!
//! A server on a loopback address answers only requests whose `Host` is an address or `localhost`.
//! A web page in a browser on this host cannot read the metrics via its own name that resolves to
//! 127.0.0.1 (DNS rebinding).

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HOST};
use hyper::http::uri::Authority;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::oneshot;

use super::connections::{Connection, Connections};
use super::{Exposition, Family};
use crate::SinkError;

/// The largest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// The timeout of a request head, and of an idle connection.
const HEAD_TIME_MAX: Duration = Duration::from_secs(5);

/// After this time a connection accepts no more requests.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(60);

/// The timeout of the last response of a connection.
const LEAVE_TIME_MAX: Duration = Duration::from_secs(20);

/// The pause when the system cannot accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What `/` and unknown paths return.
const PATHS: &str = "weir: metrics are at /metrics, health checks at /healthz and /readyz\n";

/// Produces the metrics for a scrape in a format.
pub type Collect = dyn Fn(Exposition) -> Vec<Family> + Send + Sync;

/// The checks of a service's health, as orchestrators make them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthCheck {
    /// `/healthz`: the process works; if not, it should be restarted.
    Live,
    /// `/readyz`: it can serve its purpose now.
    Ready,
}

/// The result of a health check: a short description, or the reason why it fails.
pub type Health = dyn Fn(HealthCheck) -> Result<String, String> + Send + Sync;

/// A server that is bound to its address but does not answer requests yet, so that privileges can
/// be dropped before its thread exists.
pub struct Bound {
    address: SocketAddr,
    listener: TcpListener,
}

/// The server, in a background thread; it stops when this is dropped.
pub struct MetricsServer {
    address: SocketAddr,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Bound {
    /// Listens on `address`; port 0 selects any port. Clients can connect from now on.
    ///
    /// # Errors
    /// If listening fails.
    pub fn at(address: SocketAddr) -> Result<Bound, SinkError> {
        let failed = |error| SinkError::io(&address.to_string(), error);
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Bound {
            address: listener.local_addr().map_err(failed)?,
            listener,
        })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts the thread that answers requests.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn serve(
        self,
        collect: Arc<Collect>,
        health: Arc<Health>,
    ) -> Result<MetricsServer, SinkError> {
        let Bound { address, listener } = self;
        let failed = |error| SinkError::io(&address.to_string(), error);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(failed)?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener).map_err(failed)?
        };
        let page = Arc::new(Page {
            local: address.ip().is_loopback(),
            collect,
            health,
        });
        let (end, ended) = oneshot::channel();
        let serve = move || {
            runtime.block_on(async {
                tokio::spawn(accept(listener, page));
                // Either way the sender is gone; the runtime ends the rest.
                let _ = ended.await;
            });
        };
        let thread = std::thread::Builder::new().name("weir-http".into());
        Ok(MetricsServer {
            address,
            end: Some(end),
            thread: Some(thread.spawn(serve).map_err(failed)?),
        })
    }
}

impl MetricsServer {
    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A panic was reported on standard error.
            let _ = thread.join();
        }
    }
}

async fn accept(listener: tokio::net::TcpListener, page: Arc<Page>) {
    let connections = Connections::default();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let (page, connection) = (page.clone(), connections.open(peer.ip()));
                let number = connection.number();
                let task = tokio::spawn(converse(TokioIo::new(stream), page, connection));
                connections.keep(number, task.abort_handle());
                // A client with a pending request is answered before a new connection can displace
                // it.
                tokio::task::yield_now().await;
            }
            // The peer has disconnected, or the process has no file descriptor left: retry later.
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Answers the requests of one connection.
async fn converse(stream: TokioIo<tokio::net::TcpStream>, page: Arc<Page>, connection: Connection) {
    let connection = &connection;
    let service = service_fn(move |request: Request<Incoming>| {
        connection.requested();
        let response = page.answer(&request);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(HEAD_BYTES_MAX);
    let mut connection = pin!(http.serve_connection(stream, service));
    // Errors of a connection concern only its client.
    let whole = tokio::time::timeout(CONNECTION_TIME_MAX, connection.as_mut()).await;
    if whole.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(LEAVE_TIME_MAX, connection).await;
    }
}

/// The state of the service.
struct Page {
    /// The server listens at a loopback address.
    local: bool,
    collect: Arc<Collect>,
    health: Arc<Health>,
}

impl Page {
    fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        if self.local && !is_local(request) {
            return page(
                StatusCode::FORBIDDEN,
                "only requests to localhost or to an IP address are accepted\n",
            );
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response = page(StatusCode::METHOD_NOT_ALLOWED, "only GET is supported\n");
            response
                .headers_mut()
                .insert(ALLOW, "GET, HEAD".parse().expect("a header"));
            return response;
        }
        match request.uri().path() {
            "/metrics" => {
                let accept = request.headers().get_all(ACCEPT).iter();
                let accept: Vec<&str> = accept.filter_map(|v| v.to_str().ok()).collect();
                let format = Exposition::accepted(&accept.join(","));
                let body = format.encode(&(self.collect)(format));
                let response = Response::builder().header(CONTENT_TYPE, format.content_type());
                response
                    .body(Full::from(body))
                    .expect("the header is well formed")
            }
            "/healthz" => self.checked(HealthCheck::Live),
            "/readyz" => self.checked(HealthCheck::Ready),
            "/" => page(StatusCode::OK, PATHS),
            _ => page(StatusCode::NOT_FOUND, PATHS),
        }
    }

    /// The response to a health check: 200, or 503 with the reason.
    fn checked(&self, check: HealthCheck) -> Response<Full<Bytes>> {
        match (self.health)(check) {
            Ok(found) => page(StatusCode::OK, format!("{found}\n")),
            Err(reason) => page(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
        }
    }
}

/// Whether a request is addressed to `localhost` or to an IP address, which cannot be the name of a
/// web site. A request without `Host` is HTTP/1.0, which browsers do not use.
fn is_local<B>(request: &Request<B>) -> bool {
    let hosts = request.headers().get_all(HOST).iter();
    let hosts = hosts.map(|host| Authority::try_from(host.as_bytes()).ok());
    let target = request.uri().authority().cloned().map(Some);
    let is_local = |name: &str| {
        let bare = name.strip_prefix('[').and_then(|n| n.strip_suffix(']'));
        name.eq_ignore_ascii_case("localhost") || bare.unwrap_or(name).parse::<IpAddr>().is_ok()
    };
    hosts
        .chain(target)
        .all(|host| host.is_some_and(|host| is_local(host.host())))
}

fn page(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let response = Response::builder().status(status);
    let response = response.header(CONTENT_TYPE, "text/plain; charset=utf-8");
    response
        .body(Full::new(text.into()))
        .expect("the header is well formed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::connections::{ADDRESS_CONNECTIONS_MAX, CONNECTIONS_MAX};
    use crate::metrics::{MetricKind, MetricSample, Series};
    use std::io::{Read, Write};
    use std::net::TcpStream;

    const GET: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

    fn server() -> MetricsServer {
        let collect = |format: Exposition| {
            vec![Family {
                name: "x".into(),
                help: "h",
                unit: "",
                kind: MetricKind::Gauge,
                series: vec![Series {
                    labels: vec![("format", format.name().to_owned())],
                    sample: MetricSample::Number(1.0),
                    created_ns: None,
                }],
            }]
        };
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let health = |check| match check {
            HealthCheck::Live => Ok("ok".to_owned()),
            HealthCheck::Ready => Err("not connected".to_owned()),
        };
        let bound = Bound::at(any).unwrap();
        bound.serve(Arc::new(collect), Arc::new(health)).unwrap()
    }

    fn ask(server: &MetricsServer, request: &str) -> String {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn each_scraper_gets_its_requested_format() {
        let server = server();
        let get = |path: &str, accept: &str| {
            let rest = format!("Host: localhost\r\nAccept: {accept}\r\nConnection: close");
            ask(&server, &format!("GET {path} HTTP/1.1\r\n{rest}\r\n\r\n"))
        };
        let text = get("/metrics", "*/*");
        assert!(
            text.starts_with("HTTP/1.1 200") && text.contains("x{format=\"text\"} 1\n"),
            "{text}"
        );
        let open = get("/metrics", "application/openmetrics-text");
        assert!(
            open.contains("content-type: application/openmetrics-text; version=1.0.0"),
            "{open}"
        );
        assert!(open.ends_with("# EOF\n"));
        assert!(get("/", "*/*").contains("/metrics"));
        assert!(get("/other", "*/*").starts_with("HTTP/1.1 404"));
        let live = get("/healthz", "*/*");
        assert!(live.starts_with("HTTP/1.1 200") && live.ends_with("\r\n\r\nok\n"));
        let ready = get("/readyz", "*/*");
        assert!(ready.starts_with("HTTP/1.1 503") && ready.ends_with("\r\n\r\nnot connected\n"));
        let post = ask(&server, &GET.replace("GET", "POST"));
        assert!(
            post.starts_with("HTTP/1.1 405") && post.contains("allow: GET"),
            "{post}"
        );
    }

    #[test]
    fn slow_and_silent_clients_do_not_delay_others() {
        let server = server();
        let open = || TcpStream::connect(server.address()).unwrap();
        // Idle connections, incomplete requests, and clients that do not read the response.
        for incomplete in ["", "GET /metr", &GET.replace("close", "keep-alive")] {
            let clients: Vec<TcpStream> = (0..CONNECTIONS_MAX + 1).map(|_| open()).collect();
            for mut client in &clients {
                // A closed connection cannot write.
                let _ = client.write_all(incomplete.as_bytes());
            }
            let answer = ask(&server, GET);
            assert!(answer.starts_with("HTTP/1.1 200"), "{incomplete}: {answer}");
            drop(clients);
        }
        let head = "x".repeat(2 * HEAD_BYTES_MAX);
        let request = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: {head}\r\n\r\n");
        let answer = ask(&server, &request);
        assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    }

    #[test]
    fn the_connection_with_the_oldest_request_is_closed_first() {
        let server = server();
        let request = GET.replace("close", "keep-alive");
        let mut clients: Vec<TcpStream> = Vec::new();
        let ask_again = |client: &mut TcpStream| {
            client.write_all(request.as_bytes()).unwrap();
            let (mut answer, mut byte) = (Vec::new(), [0]);
            while !answer.ends_with(b"} 1\n") {
                client.read_exact(&mut byte).unwrap();
                answer.push(byte[0]);
            }
            assert!(answer.starts_with(b"HTTP/1.1 200"));
        };
        for _ in 0..ADDRESS_CONNECTIONS_MAX {
            clients.push(TcpStream::connect(server.address()).unwrap());
            ask_again(clients.last_mut().unwrap());
        }
        // The first one sends another request, so the second is the oldest.
        ask_again(&mut clients[0]);
        assert!(ask(&server, GET).starts_with("HTTP/1.1 200"));
        let mut rest = Vec::new();
        clients[1].read_to_end(&mut rest).unwrap();
        ask_again(&mut clients[0]);
    }

    #[test]
    fn a_foreign_host_name_is_rejected() {
        let server = server();
        let port = server.address().port();
        let get = |host: &str| ask(&server, &GET.replace("localhost", host));
        for host in [
            "evil.example",
            &format!("evil.example:{port}"),
            "127.0.0.1.evil.example",
            "",
        ] {
            let answer = get(host);
            assert!(
                answer.starts_with("HTTP/1.1 4") && !answer.contains("x{"),
                "{host}: {answer}"
            );
        }
        for host in [
            "LOCALHOST",
            &format!("127.0.0.1:{port}"),
            "[::1]:9",
            "192.0.2.7",
        ] {
            assert!(get(host).starts_with("HTTP/1.1 200"), "{host}");
        }
        // An absolute request target takes precedence over `Host`.
        let absolute = GET.replace(" /metrics", " http://evil.example/metrics");
        assert!(ask(&server, &absolute).starts_with("HTTP/1.1 403"));
        let two = GET.replace("Connection", "Host: evil.example\r\nConnection");
        assert!(!ask(&server, &two).contains("x{"));
        assert!(ask(&server, "GET /metrics HTTP/1.0\r\n\r\n").contains("x{"));
    }

    #[test]
    fn an_address_in_use_is_reported() {
        let server = server();
        let error = Bound::at(server.address()).err().unwrap();
        assert!(
            error.to_string().contains(&server.address().to_string()),
            "{error}"
        );
    }
}
