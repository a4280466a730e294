//! [`Relay`]: a TCP connection's way, which can be long, stopped or broken off.
//!
//! What a cable cannot do without help from the kernel: everything that passes comes a fixed time later,
//! in order, whatever its amount; or nothing is read any more while connections stay open.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Passes connections on. When it is dropped, they break off and no more are taken.
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
    /// Both ends of each connection, to break them off.
    open: Mutex<Vec<TcpStream>>,
}

/// What was read, and when it may go on.
type Piece = (Instant, Vec<u8>);

/// Pieces under way in one direction; more are not read.
const UNDER_WAY_MAX: usize = 1_024;

/// Length of a piece.
const PIECE_BYTES: usize = 16 << 10;

/// How often it looks whether something has changed.
const LOOK: Duration = Duration::from_millis(5);

impl Relay {
    /// One that takes connections at `address`, any port, and passes them on to `target` at once.
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

    /// Where it takes connections.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where connections go that come from now on; without a target they break off.
    pub fn aim(&self, target: Option<SocketAddr>) {
        *self.shared.target.lock().expect("no thread has panicked") = target;
    }

    /// What is read from now on goes on so much later, in each direction.
    pub fn delay(&self, by: Duration) {
        let ns = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.shared.delay_ns.store(ns, Ordering::Relaxed);
    }

    /// Whether nothing is read: what either end writes then stays in its way until there is no room.
    pub fn stall(&self, stalled: bool) {
        self.shared.stalled.store(stalled, Ordering::Relaxed);
    }

    /// Breaks all connections off. New ones are taken.
    pub fn break_off(&self) {
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
        self.break_off();
    }
}

impl Shared {
    fn accept(self: &Arc<Shared>, listener: &TcpListener) {
        while !self.over.load(Ordering::Relaxed) {
            match listener.accept() {
                // A target that is not there is to the other end a connection that breaks off.
                Ok((near, _)) => drop(self.join(near)),
                Err(_) => thread::sleep(LOOK),
            }
        }
    }

    fn join(self: &Arc<Shared>, near: TcpStream) -> Result<()> {
        near.set_nonblocking(false)?;
        let target = *self.target.lock().expect("no thread has panicked");
        let far = TcpStream::connect(target.context("there is no target")?)?;
        for end in [&near, &far] {
            end.set_nodelay(true)?;
            end.set_read_timeout(Some(LOOK))?;
        }
        for (from, to) in [(&near, &far), (&far, &near)] {
            let (from, to) = (from.try_clone()?, to.try_clone()?);
            let (pieces, arrived) = sync_channel(UNDER_WAY_MAX);
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
                thread::sleep(LOOK);
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

/// Writes each piece when its time has come; ends the direction when there will be no more.
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

    /// A target that says back what it hears.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for heard in listener.incoming() {
                let mut heard = heard.unwrap();
                let mut said = heard.try_clone().unwrap();
                thread::spawn(move || std::io::copy(&mut heard, &mut said));
            }
        });
        address
    }

    fn asked(relay: &Relay) -> TcpStream {
        let stream = TcpStream::connect(relay.address()).unwrap();
        let patience = Some(Duration::from_secs(60));
        stream.set_read_timeout(patience).unwrap();
        stream
    }

    #[test]
    fn what_passes_comes_later_and_whole() {
        let relay = Relay::new(Ipv4Addr::LOCALHOST, echo()).unwrap();
        relay.delay(Duration::from_millis(100));
        let (mut stream, begun) = (asked(&relay), Instant::now());
        let said: Vec<u8> = (0..300_000_u32).map(|i| i as u8).collect();
        let mut writer = stream.try_clone().unwrap();
        let to_say = said.clone();
        let saying = thread::spawn(move || writer.write_all(&to_say).unwrap());
        let mut heard = vec![0; said.len()];
        stream.read_exact(&mut heard).unwrap();
        saying.join().unwrap();
        assert!(heard == said);
        assert!(begun.elapsed() >= Duration::from_millis(200));
    }

    #[test]
    fn what_is_stalled_goes_on_and_what_is_broken_off_ends() {
        let relay = Relay::new(Ipv4Addr::LOCALHOST, echo()).unwrap();
        let mut stream = asked(&relay);
        let mut heard = [0; 1];
        stream.write_all(b"a").unwrap();
        stream.read_exact(&mut heard).unwrap();
        relay.stall(true);
        // A read that had begun may still take something along.
        thread::sleep(4 * LOOK);
        stream.write_all(b"b").unwrap();
        let soon = Some(Duration::from_millis(200));
        stream.set_read_timeout(soon).unwrap();
        assert!(stream.read(&mut heard).is_err());
        relay.stall(false);
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"b");
        relay.break_off();
        assert_eq!(stream.read(&mut heard).unwrap_or(0), 0);
    }
}
