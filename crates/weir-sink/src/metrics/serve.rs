//! [`Server`]: gives metrics to whoever asks at `/metrics`, one thread for all.
//!
//! Nobody can hurt it: connections are bounded in number and in time, a request's head in size and
//! in time, and what a request sends as body is not read.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{Semaphore, oneshot};

use super::{Exposition, Family};
use crate::SinkError;

/// Connections at a time; more wait in the kernel.
const CONNECTIONS_MAX: usize = 64;

/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// How long a request's head may take, and a connection may be silent.
const HEAD_TIME_MAX: Duration = Duration::from_secs(5);

/// After this a connection takes no more requests.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(60);

/// How long the last answer of a connection may take.
const LEAVE_TIME_MAX: Duration = Duration::from_secs(20);

/// Pause after the system has no more room for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Makes the metrics for a scrape in a format.
pub type Collect = dyn Fn(Exposition) -> Vec<Family> + Send + Sync;

/// The server, in a thread of its own; it ends when this is dropped.
pub struct Server {
    address: SocketAddr,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `address`, whose port may be 0 for any.
    ///
    /// # Errors
    /// When the address cannot be listened at.
    pub fn start(address: SocketAddr, collect: Arc<Collect>) -> Result<Server, SinkError> {
        let failed = |error| SinkError::io(&address.to_string(), error);
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(failed)?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener).map_err(failed)?
        };
        let (end, ended) = oneshot::channel();
        let serve = move || {
            runtime.block_on(async {
                tokio::spawn(accept(listener, collect));
                // Either way the sender is gone; the runtime ends what still goes on.
                let _ = ended.await;
            });
        };
        let thread = std::thread::Builder::new().name("weir-http".into());
        Ok(Server {
            address,
            end: Some(end),
            thread: Some(thread.spawn(serve).map_err(failed)?),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A panic has said on standard error what it was.
            let _ = thread.join();
        }
    }
}

async fn accept(listener: tokio::net::TcpListener, collect: Arc<Collect>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = places.clone().acquire_owned().await;
        let place = place.expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                let collect = collect.clone();
                tokio::spawn(async move {
                    converse(TokioIo::new(stream), collect).await;
                    drop(place);
                });
            }
            // The peer is gone already, or the process has no file left: later there may be one.
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Answers the requests of one connection.
async fn converse(stream: TokioIo<tokio::net::TcpStream>, collect: Arc<Collect>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = answer(&request, &*collect);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(HEAD_BYTES_MAX);
    let mut connection = pin!(http.serve_connection(stream, service));
    // How a connection fails is its client's affair.
    let whole = tokio::time::timeout(CONNECTION_TIME_MAX, connection.as_mut()).await;
    if whole.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(LEAVE_TIME_MAX, connection).await;
    }
}

fn answer<B>(request: &Request<B>, collect: &Collect) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = page(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered\n");
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
            let body = format.encode(&collect(format));
            let response = Response::builder().header(CONTENT_TYPE, format.content_type());
            response
                .body(Full::from(body))
                .expect("the header is well formed")
        }
        "/" => page(StatusCode::OK, "weir: metrics are at /metrics\n"),
        _ => page(StatusCode::NOT_FOUND, "metrics are at /metrics\n"),
    }
}

fn page(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let response = Response::builder().status(status);
    let response = response.header(CONTENT_TYPE, "text/plain; charset=utf-8");
    response
        .body(Full::from(text))
        .expect("the header is well formed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Kind, Sample, Series};
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn server() -> Server {
        let collect = |format: Exposition| {
            vec![Family {
                name: "x".into(),
                help: "h",
                unit: "",
                kind: Kind::Gauge,
                series: vec![Series {
                    labels: vec![("format", format.name().to_owned())],
                    sample: Sample::Number(1.0),
                    created_ns: None,
                }],
            }]
        };
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Server::start(any, Arc::new(collect)).unwrap()
    }

    fn ask(server: &Server, request: &str) -> String {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn each_scraper_gets_its_format() {
        let server = server();
        let get = |path: &str, accept: &str| {
            let accept = format!("Accept: {accept}\r\n");
            ask(
                &server,
                &format!("GET {path} HTTP/1.1\r\nHost: x\r\n{accept}Connection: close\r\n\r\n"),
            )
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
        let post = ask(
            &server,
            "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        );
        assert!(
            post.starts_with("HTTP/1.1 405") && post.contains("allow: GET"),
            "{post}"
        );
    }

    #[test]
    fn clients_that_say_nothing_do_not_keep_others_waiting() {
        let server = server();
        let idle: Vec<TcpStream> = (0..CONNECTIONS_MAX / 2)
            .map(|_| TcpStream::connect(server.address()).unwrap())
            .collect();
        let answer = ask(
            &server,
            "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        );
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let head = "x".repeat(2 * HEAD_BYTES_MAX);
        let answer = ask(
            &server,
            &format!("GET /metrics HTTP/1.1\r\nHost: x\r\nX: {head}\r\n\r\n"),
        );
        assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
        drop(idle);
    }

    #[test]
    fn an_address_in_use_is_named() {
        let server = server();
        let error = Server::start(server.address(), Arc::new(|_| vec![]))
            .err()
            .unwrap();
        assert!(
            error.to_string().contains(&server.address().to_string()),
            "{error}"
        );
    }
}
