//! [`Relay`]: forwards TCP connections, with a delay, stalled or closed.
//!
//! For what needs help from the kernel on a cable: all data are delayed by a fixed time, in order,
//! whatever their amount; or nothing is read any more while connections stay open.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Forwards connections. When it is dropped, they are closed and no more are accepted.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    target: Mutex<Option<SocketAddr>>,
    delay_ns: AtomicU64,
    stalled: AtomicBool,
    over: AtomicBool,
    /// Both ends of each connection, for closing them.
    open: Mutex<Vec<TcpStream>>,
}

/// Data that were read, and when they may be forwarded.
type Piece = (Instant, Vec<u8>);

/// Maximum number of pieces in flight in one direction; more are not read.
const PIECES_MAX: usize = 1_024;

/// Length of a piece.
const PIECE_BYTES: usize = 16 << 10;

/// The interval of checks for changes.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

impl Relay {
    /// A relay that accepts connections at `address`, on any port, and forwards them to `target`.
    pub fn new(address: Ipv4Addr, target: SocketAddr) -> Result<Relay> {
        let listener = TcpListener::bind((address, 0)).with_context(|| address.to_string())?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target: Mutex::new(Some(target)),
            delay_ns: AtomicU64::new(0),
            stalled: AtomicBool::new(false),
            over: AtomicBool::new(false),
            open: Mutex::new(Vec::new()),
        });
        let of_thread = Arc::clone(&shared);
        thread::spawn(move || of_thread.accept(&listener));
        Ok(Relay { address, shared })
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the target of new connections; without a target they are closed.
    pub fn set_target(&self, target: Option<SocketAddr>) {
        *self.shared.target.lock().expect("no thread has panicked") = target;
    }

    /// Sets the delay of data that are read from now on, in each direction.
    pub fn delay(&self, by: Duration) {
        let ns = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.shared.delay_ns.store(ns, Ordering::Relaxed);
    }

    /// Whether nothing is read: data of either end then stay in its buffers until these are full.
    pub fn stall(&self, stalled: bool) {
        self.shared.stalled.store(stalled, Ordering::Relaxed);
    }

    /// Closes all connections. New ones are accepted.
    pub fn close_connections(&self) {
        let mut open = self.shared.open.lock().expect("no thread has panicked");
        for end in open.drain(..) {
            // It may have ended already.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        self.close_connections();
    }
}

impl Shared {
    fn accept(self: &Arc<Shared>, listener: &TcpListener) {
        while !self.over.load(Ordering::Relaxed) {
            match listener.accept() {
                // To the other end, a missing target is a connection that is closed.
                Ok((near, _)) => drop(self.join(near)),
                Err(_) => thread::sleep(CHECK_INTERVAL),
            }
        }
    }

    fn join(self: &Arc<Shared>, near: TcpStream) -> Result<()> {
        near.set_nonblocking(false)?;
        let target = *self.target.lock().expect("no thread has panicked");
        let far = TcpStream::connect(target.context("there is no target")?)?;
        for end in [&near, &far] {
            end.set_nodelay(true)?;
            end.set_read_timeout(Some(CHECK_INTERVAL))?;
        }
        for (from, to) in [(&near, &far), (&far, &near)] {
            let (from, to) = (from.try_clone()?, to.try_clone()?);
            let (pieces, arrived) = sync_channel(PIECES_MAX);
            let shared = Arc::clone(self);
            thread::spawn(move || shared.read(from, &pieces));
            thread::spawn(move || write(to, &arrived));
        }
        let mut open = self.open.lock().expect("no thread has panicked");
        open.extend([near, far]);
        Ok(())
    }

    fn read(&self, mut from: TcpStream, pieces: &SyncSender<Piece>) {
        let mut piece = vec![0; PIECE_BYTES];
        while !self.over.load(Ordering::Relaxed) {
            if self.stalled.load(Ordering::Relaxed) {
                thread::sleep(CHECK_INTERVAL);
                continue;
            }
            match from.read(&mut piece) {
                Ok(0) => return,
                Ok(bytes) => {
                    let delay = Duration::from_nanos(self.delay_ns.load(Ordering::Relaxed));
                    let passed_on = pieces.send((Instant::now() + delay, piece[..bytes].to_vec()));
                    if passed_on.is_err() {
                        return;
                    }
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => return,
            }
        }
    }
}

/// Writes each piece when it is due; closes the direction after the last one.
fn write(mut to: TcpStream, arrived: &Receiver<Piece>) {
    while let Ok((at, piece)) = arrived.recv() {
        thread::sleep(at.saturating_duration_since(Instant::now()));
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A target that echoes its input.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for connection in listener.incoming() {
                let mut connection = connection.unwrap();
                let mut output = connection.try_clone().unwrap();
                thread::spawn(move || std::io::copy(&mut connection, &mut output));
            }
        });
        address
    }

    fn asked(relay: &Relay) -> TcpStream {
        let stream = TcpStream::connect(relay.address()).unwrap();
        let timeout = Some(Duration::from_secs(60));
        stream.set_read_timeout(timeout).unwrap();
        stream
    }

    #[test]
    fn delayed_data_arrive_later_and_complete() {
        let relay = Relay::new(Ipv4Addr::LOCALHOST, echo()).unwrap();
        relay.delay(Duration::from_millis(100));
        let (mut stream, started) = (asked(&relay), Instant::now());
        let output: Vec<u8> = (0..300_000_u32).map(|i| i as u8).collect();
        let mut writer = stream.try_clone().unwrap();
        let to_send = output.clone();
        let sending = thread::spawn(move || writer.write_all(&to_send).unwrap());
        let mut received = vec![0; output.len()];
        stream.read_exact(&mut received).unwrap();
        sending.join().unwrap();
        assert!(received == output);
        assert!(started.elapsed() >= Duration::from_millis(200));
    }

    #[test]
    fn stalled_connections_continue_and_closed_ones_end() {
        let relay = Relay::new(Ipv4Addr::LOCALHOST, echo()).unwrap();
        let mut stream = asked(&relay);
        let mut received = [0; 1];
        stream.write_all(b"a").unwrap();
        stream.read_exact(&mut received).unwrap();
        relay.stall(true);
        // A read that had started may still return data.
        thread::sleep(4 * CHECK_INTERVAL);
        stream.write_all(b"b").unwrap();
        let soon = Some(Duration::from_millis(200));
        stream.set_read_timeout(soon).unwrap();
        assert!(stream.read(&mut received).is_err());
        relay.stall(false);
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"b");
        relay.close_connections();
        assert_eq!(stream.read(&mut received).unwrap_or(0), 0);
    }
}
