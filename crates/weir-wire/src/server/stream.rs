//! [`GuardedStream`]: the bytes of a connection: counted, rate-limited, and closed when the
//! connection is disconnected.

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

use super::connections::{Connection, ConnectionSlot};
use super::counters::{Count, Counters};

/// The underlying stream.
#[derive(Debug)]
pub(crate) enum Bytes {
    Plain(TcpStream),
    Local(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct GuardedStream {
    bytes: Bytes,
    place: ConnectionSlot,
    counters: Arc<Counters>,
    disconnect: Option<oneshot::Receiver<()>>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl GuardedStream {
    pub(crate) fn new(
        bytes: Bytes,
        place: ConnectionSlot,
        disconnect: oneshot::Receiver<()>,
        counters: Arc<Counters>,
    ) -> GuardedStream {
        GuardedStream {
            bytes,
            place,
            counters,
            disconnect: Some(disconnect),
            pause: None,
        }
    }

    /// An error once the connection has been disconnected.
    fn poll_disconnect(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let gone = match &mut self.disconnect {
            Some(disconnect) => Pin::new(disconnect).poll(cx).is_ready(),
            None => true,
        };
        if gone {
            self.disconnect = None;
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the monitor closed the connection",
            ));
        }
        Ok(())
    }

    /// Ready when the delay for the previous bytes has passed.
    fn poll_delay(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(pause) = &mut self.pause {
            std::task::ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        Poll::Ready(())
    }

    fn charge(&mut self, bytes: usize) {
        self.counters.add(Count::BytesIn, bytes as u64);
        let connection = &self.place.connection;
        let mut rate_limit = connection.bytes.lock().expect("no panic while held");
        let wait = rate_limit.take(bytes as u64, Instant::now());
        if !wait.is_zero() {
            self.counters.add(Count::BytesSlowed, 1);
            self.pause = Some(Box::pin(tokio::time::sleep(wait)));
        }
    }
}

impl Connected for GuardedStream {
    type ConnectInfo = Arc<Connection>;

    fn connect_info(&self) -> Arc<Connection> {
        self.place.connection.clone()
    }
}

impl AsyncRead for GuardedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_disconnect(cx)?;
        std::task::ready!(self.poll_delay(cx));
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

impl AsyncWrite for GuardedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.disconnect.is_none() {
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
        if self.disconnect.is_none() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        match &mut self.bytes {
            Bytes::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Bytes::Local(unix) => Pin::new(unix).poll_flush(cx),
            Bytes::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.disconnect.is_none() {
            return Poll::Ready(Ok(()));
        }
        match &mut self.bytes {
            Bytes::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Bytes::Local(unix) => Pin::new(unix).poll_shutdown(cx),
            Bytes::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
