//! [`Guarded`]: a connection's bytes, counted, slowed down beyond its allowance, and ended when the
//! connection is let go.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::connections::{Connection, Place};
use super::counters::{Count, Counters};

/// The bytes underneath.
#[derive(Debug)]
pub(crate) enum Bytes {
    Plain(TcpStream),
    Local(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection that is served.
#[derive(Debug)]
pub(crate) struct Guarded {
    bytes: Bytes,
    place: Place,
    counters: Arc<Counters>,
    let_go: Option<oneshot::Receiver<()>>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Guarded {
    pub(crate) fn new(
        bytes: Bytes,
        place: Place,
        let_go: oneshot::Receiver<()>,
        counters: Arc<Counters>,
    ) -> Guarded {
        Guarded {
            bytes,
            place,
            counters,
            let_go: Some(let_go),
            pause: None,
        }
    }

    /// An error once the connection has been let go.
    fn alive(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let gone = match &mut self.let_go {
            Some(let_go) => Pin::new(let_go).poll(cx).is_ready(),
            None => true,
        };
        if gone {
            self.let_go = None;
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the monitor let the connection go",
            ));
        }
        Ok(())
    }

    /// Ready when the last bytes' worth of waiting is over.
    fn rested(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(pause) = &mut self.pause {
            std::task::ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        Poll::Ready(())
    }

    fn charge(&mut self, bytes: usize) {
        self.counters.add(Count::BytesIn, bytes as u64);
        let connection = &self.place.connection;
        let mut allowance = connection.bytes.lock().expect("nobody panics here");
        let wait = allowance.take(bytes as u64, Instant::now());
        if !wait.is_zero() {
            self.counters.add(Count::BytesSlowed, 1);
            self.pause = Some(Box::pin(tokio::time::sleep(wait)));
        }
    }
}

impl Connected for Guarded {
    type ConnectInfo = Arc<Connection>;

    fn connect_info(&self) -> Arc<Connection> {
        self.place.connection.clone()
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.alive(cx)?;
        std::task::ready!(self.rested(cx));
        let before = buffer.filled().len();
        let read = match &mut self.bytes {
            Bytes::Plain(tcp) => Pin::new(tcp).poll_read(cx, buffer),
            Bytes::Local(unix) => Pin::new(unix).poll_read(cx, buffer),
            Bytes::Tls(tls) => Pin::new(tls).poll_read(cx, buffer),
        };
        let bytes = buffer.filled().len() - before;
        if bytes > 0 {
            self.charge(bytes);
        }
        read
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.let_go.is_none() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let written = match &mut self.bytes {
            Bytes::Plain(tcp) => Pin::new(tcp).poll_write(cx, data),
            Bytes::Local(unix) => Pin::new(unix).poll_write(cx, data),
            Bytes::Tls(tls) => Pin::new(tls).poll_write(cx, data),
        };
        if let Poll::Ready(Ok(bytes)) = &written {
            self.counters.add(Count::BytesOut, *bytes as u64);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.let_go.is_none() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        match &mut self.bytes {
            Bytes::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Bytes::Local(unix) => Pin::new(unix).poll_flush(cx),
            Bytes::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.let_go.is_none() {
            return Poll::Ready(Ok(()));
        }
        match &mut self.bytes {
            Bytes::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Bytes::Local(unix) => Pin::new(unix).poll_shutdown(cx),
            Bytes::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
