//! [`ControlServer`]: the tap's control socket, where clients request status, records and
//! histograms by the control protocol. One thread serves all of them and never waits for one.

use std::fmt;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::SocketType;
use weir_tap::control::server::ReplyResult;
use weir_tap::control::{
    ControlLimits, ControlPeer, ErrorCode, Implementation, LocalServer, Peers, Reply, ServiceError,
};
use weir_tap::tapdisk::words::{Answer, Ask, DiskLimits, RecordsWord, Tapdisk, Wanted};

use crate::histograms::HistogramCounter;
use crate::hub::{Hub, Subscription};
use crate::{ServerSocket, SocketAccess, SocketError, StopEvent};

/// The longest time until a starved client is disconnected.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// How long I/O queues may take to end after the tap was stopped.
const QUEUES_TIMEOUT: Duration = Duration::from_secs(3);

/// How long the last messages may take.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(200);

/// The interval of checks whether they have ended.
const END_INTERVAL: Duration = Duration::from_millis(1);

/// The tap's socket and the thread that serves it.
#[derive(Debug)]
pub struct ControlServer {
    stop: StopEvent,
    thread: Option<JoinHandle<()>>,
}

impl ControlServer {
    /// Listens at `path` until `stop` is raised; clients are then informed, once the I/O queues
    /// have ended.
    ///
    /// # Errors
    /// When the socket or the thread cannot be created.
    pub fn start(
        hub: &Arc<Hub>,
        path: &Path,
        access: SocketAccess,
        stop: &StopEvent,
    ) -> Result<ControlServer, SocketError> {
        let failed = |what| {
            let path = path.to_owned();
            move |error| SocketError::System { path, what, error }
        };
        let socket = ServerSocket::bind(path, SocketType::STREAM, access)?;
        // The rights of the socket's file decide who connects.
        let listener = socket.listener().try_clone();
        let server =
            listener.and_then(|l| LocalServer::new(l, Peers::Permitted, ControlLimits::default()));
        let server = server.map_err(failed("listen"))?;
        let (front, stopped) = (Front { hub: hub.clone() }, stop.clone());
        let serve = move || {
            front.serve(server, &stopped);
            // Its file is removed now.
            drop(socket);
        };
        let name = thread::Builder::new().name("tap".into());
        let thread = name.spawn(serve).map_err(failed("start a thread"))?;
        Ok(ControlServer {
            stop: stop.clone(),
            thread: Some(thread),
        })
    }
}

impl Drop for ControlServer {
    /// Stops it, and waits for the end.
    fn drop(&mut self) {
        self.stop.raise();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Answers the requests of clients.
struct Front {
    hub: Arc<Hub>,
}

/// The state of a connection.
#[derive(Default)]
struct Session {
    subscription: Option<Arc<Subscription>>,
    histograms: Option<HistogramCounter>,
}

impl Front {
    /// Serves until `stop` is raised; sends the end to clients, after all records.
    fn serve(mut self, mut server: LocalServer<Front>, stop: &StopEvent) {
        while !stop.is_raised() {
            server.round(&mut self, stop.fd(), CHECK_INTERVAL);
        }
        let until = Instant::now() + QUEUES_TIMEOUT;
        while self.hub.open_rings() > 0 && Instant::now() < until {
            thread::sleep(END_INTERVAL);
        }
        let last = ServiceError::new(ErrorCode::Stopped, "it was stopped");
        server.finish(&mut self, Some(&last), CLOSE_TIMEOUT);
    }

    fn records(
        &self,
        session: &mut Session,
        peer: ControlPeer,
        wanted: Wanted,
    ) -> ReplyResult<Front> {
        if session.subscription.is_some() {
            return Err(failed("this connection has its records; open another"));
        }
        let subscription = self.hub.subscribe(wanted, Some(peer.pid));
        let subscription = subscription.map_err(failed)?;
        let memory = subscription.memory();
        let layout = memory.layout();
        let descriptor = memory.as_fd().try_clone_to_owned();
        session.subscription = Some(subscription.clone());
        let answer = Answer::Records(RecordsWord {
            layout: layout.version(),
            ring_records: layout.ring_records(),
            groups: layout.groups(),
            disks: self.hub.disks(),
        });
        Ok(Reply {
            descriptors: vec![descriptor.map_err(failed)?],
            ..answer.into()
        })
    }

    /// Sets limits, for those who could also stop this process.
    fn limit(&self, peer: ControlPeer, disk: u16, limits: DiskLimits) -> ReplyResult<Front> {
        let own = rustix::process::geteuid().as_raw();
        if peer.uid != 0 && peer.uid != own {
            return Err(failed(format_args!(
                "user {} may not set limits; root and user {own} may",
                peer.uid
            )));
        }
        let throttle = self.hub.throttle(disk);
        let throttle = throttle.ok_or_else(|| failed(format_args!("there is no disk {disk}")))?;
        throttle.set(limits);
        Ok(Answer::Limited.into())
    }

    /// The counts, which the first such request starts. `before` is called before they are read.
    fn histograms(
        &self,
        session: &mut Session,
        before: fn(&HistogramCounter),
    ) -> ReplyResult<Front> {
        let started = match session.histograms.take() {
            Some(histograms) => histograms,
            None => HistogramCounter::begin(&self.hub).map_err(failed)?,
        };
        let histograms = session.histograms.insert(started);
        before(histograms);
        Ok(Answer::Histograms(histograms.snapshot()).into())
    }
}

impl Implementation for Front {
    type Service = Tapdisk;
    type Session = Session;

    fn handle(&mut self, session: &mut Session, peer: ControlPeer, ask: Ask) -> ReplyResult<Front> {
        match ask.checked().map_err(failed)? {
            Ask::Status => Ok(Answer::Status(self.hub.status()).into()),
            Ask::Disks => Ok(Answer::Disks(self.hub.disks()).into()),
            Ask::Records(wanted) => self.records(session, peer, wanted),
            Ask::Histograms => self.histograms(session, |_| {}),
            Ask::Reset => self.histograms(session, HistogramCounter::reset),
            Ask::Limit { disk, limits } => self.limit(peer, disk, limits),
        }
    }

    fn is_in_use(&self, session: &Session) -> bool {
        session.subscription.is_some() || session.histograms.is_some()
    }

    fn failure(&self, session: &Session) -> Option<ServiceError> {
        let is_starved = session.subscription.as_ref()?.is_starved();
        let why = "no memory for the ring of a queue that came; start again with less";
        is_starved.then(|| failed(why))
    }

    fn close(&mut self, mut session: Session, by_peer: bool) {
        session.histograms = None;
        match (session.subscription, by_peer) {
            (Some(subscription), true) => self.hub.disconnect(&subscription),
            (Some(subscription), false) => self.hub.unsubscribe(&subscription),
            (None, _) => {}
        }
    }
}

fn failed(error: impl fmt::Display) -> ServiceError {
    ServiceError::new(ErrorCode::Failed, error)
}

#[cfg(test)]
mod tests {
    use weir_tap::tapdisk::words::{DiskFigures, DiskWord};

    use super::*;
    use crate::Throttle;

    #[test]
    fn limits_are_set_by_root_and_the_user_of_the_process_only() {
        let hub = Arc::new(Hub::default());
        let (names, throttle) = (DiskWord::default(), Arc::<Throttle>::default());
        hub.register(names, Arc::new(DiskFigures::default), throttle.clone())
            .unwrap();
        let front = Front { hub };
        let limits = DiskLimits {
            iops: 7,
            ..DiskLimits::default()
        };
        let own = rustix::process::geteuid().as_raw();
        let set = |uid, disk| front.limit(ControlPeer { pid: 1, uid }, disk, limits);
        let error = set(own + 1, 0).err().unwrap();
        assert!(error.message.contains("may not set limits"), "{error}");
        assert!(throttle.limits().is_unlimited());
        assert!(set(own, 1).is_err(), "there is no such disk");
        assert!(set(own, 0).is_ok());
        assert_eq!(throttle.limits(), limits);
        assert!(set(0, 0).is_ok());
    }
}
