//! One client: its handshake, and then its requests, many at a time, on an I/O queue of its own.
//!
//! A connection is a loop in a thread of its own: read input, submit requests, collect ended ones,
//! send replies, poll for the next request for a while, and wait for the next event. The requests
//! in flight, the partial request and the unread replies of a client are bounded; a slow client
//! only delays itself.
#![allow(unsafe_code)] // the I/O queue receives pointers to the data of requests

use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::buffer::{Buffer, Pool};
use super::clients::{Activity, Client};
use super::handshake::{MESSAGE_BYTES_MAX, Negotiation, Offer, SelectedExport, Step, Violation};
use super::protocol::{Command, Disposition, Geometry, INVALID, reply};
use super::wire::{INPUT_BYTES, InputBuffer, Outbox, ReadResult, receive};
use super::{Export, NbdError, offers};
use crate::io_queue::{Completion, IoQueue, IoQueueOptions};
use crate::polling::Polling;
use crate::stop::StopEvent;
use crate::{Outcome, Request};

/// The timeout of the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// After a stop, the timeout for a client to read its last replies.
const LAST_REPLIES_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of requests of a client, those included whose replies it has not read.
pub const DEPTH: usize = 128;

/// Maximum amount of data of a client in flight, in bytes; a single request always fits.
pub const DATA_BYTES_MAX: usize = 32 << 20;

/// Reads from the socket before other events are processed.
const READS_A_ROUND: usize = 4;

const _: () = assert!(MESSAGE_BYTES_MAX <= INPUT_BYTES, "an option fits");

/// How a connection ended.
#[derive(Debug)]
pub enum Ending {
    /// Closed by the client or a stop.
    Closed,
    /// The client violated the protocol.
    Broken(Violation),
    /// The handshake timed out.
    TimedOut,
    /// The socket, the thread or the disk failed.
    Failed(NbdError),
}

impl From<std::io::Error> for Ending {
    fn from(error: std::io::Error) -> Ending {
        use std::io::ErrorKind as Kind;
        match error.kind() {
            // Clients may disconnect without a message.
            Kind::ConnectionReset | Kind::BrokenPipe => Ending::Closed,
            _ => Ending::Failed(NbdError::Socket(error)),
        }
    }
}

/// Serves a client on a non-blocking socket until it disconnects or `stop` is raised.
pub fn serve(client: &Client, exports: &[Export], queue: u16, stop: &StopEvent) -> Ending {
    let socket = &*client.socket;
    let offers = offers(exports);
    let mut input_buffer = InputBuffer::new();
    let selected = match negotiate(socket, &offers, stop, &mut input_buffer) {
        Ok(Some(selected)) => selected,
        Ok(None) => return Ending::Closed,
        Err(ending) => return ending,
    };
    let options = IoQueueOptions {
        queue,
        depth: DEPTH as u32,
    };
    let io_queue = match IoQueue::new(&exports[selected.export].disk, options) {
        Ok(io_queue) => io_queue,
        Err(error) => return Ending::Failed(error.into()),
    };
    client.activity.note(0, 0);
    let session = Session {
        socket,
        activity: &client.activity,
        io_queue,
        geometry: offers[selected.export].geometry,
        structured: selected.structured,
        input_buffer,
        stage: Stage::Head,
        open: InFlight::new(),
        pool: Pool::new(DATA_BYTES_MAX),
        outbox: Outbox::default(),
        reads_requests: true,
        polling: Polling::new(exports[selected.export].poll),
    };
    match session.run(stop) {
        Ok(()) => Ending::Closed,
        Err(ending) => ending,
    }
}

/// The handshake; `None` when the client disconnected, or the server stops.
fn negotiate(
    socket: &OwnedFd,
    offers: &[Offer],
    stop: &StopEvent,
    input_buffer: &mut InputBuffer,
) -> Result<Option<SelectedExport>, Ending> {
    let until = Instant::now() + HANDSHAKE_TIMEOUT;
    // No data are sent here, so no buffer is lent.
    let mut pool = Pool::new(0);
    let mut outbox = Outbox::default();
    let mut out = Vec::new();
    let mut negotiation = Negotiation::new(offers, &mut out);
    let mut step = Step::NeedInput;
    loop {
        if !out.is_empty() {
            outbox.push(std::mem::take(&mut out), None);
        }
        outbox.send(socket, &mut pool)?;
        // A client that does not read the answers is not read from.
        while step == Step::NeedInput && outbox.is_empty() {
            let (consumed, next) = negotiation
                .process(input_buffer.bytes(), &mut out)
                .map_err(Ending::Broken)?;
            if consumed == 0 {
                break;
            }
            input_buffer.take(consumed);
            step = next;
            if !out.is_empty() {
                outbox.push(std::mem::take(&mut out), None);
                outbox.send(socket, &mut pool)?;
            }
        }
        match step {
            _ if !outbox.is_empty() => {}
            Step::Begin(selected) => return Ok(Some(selected)),
            Step::Aborted => return Ok(None),
            Step::NeedInput => {}
        }
        let now = Instant::now();
        if stop.is_raised() {
            return Ok(None);
        }
        if now >= until {
            return Err(Ending::TimedOut);
        }
        let interest = match outbox.is_empty() {
            true => PollFlags::IN,
            false => PollFlags::OUT,
        };
        let sources = [(socket.as_fd(), interest), (stop.fd(), PollFlags::IN)];
        wait(&sources, Some(until - now))?;
        if outbox.is_empty() && input_buffer.fill(socket)? == ReadResult::End {
            return Ok(None);
        }
    }
}

/// Waits until one of these is ready, or for the timeout.
fn wait(
    sources: &[(std::os::fd::BorrowedFd<'_>, PollFlags)],
    timeout: Option<Duration>,
) -> std::io::Result<()> {
    let mut fds: Vec<PollFd> = sources
        .iter()
        .map(|(fd, interest)| PollFd::from_borrowed_fd(*fd, *interest))
        .collect();
    let timeout = timeout.map(|d| Timespec::try_from(d).expect("waits are short"));
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A client that has chosen its export.
struct Session<'a> {
    socket: &'a OwnedFd,
    activity: &'a Activity,
    /// Before the buffers: its drop waits until the kernel has finished with them.
    io_queue: IoQueue,
    geometry: Geometry,
    structured: bool,
    input_buffer: InputBuffer,
    stage: Stage,
    open: InFlight,
    pool: Pool,
    outbox: Outbox,
    /// Whether more requests are read.
    reads_requests: bool,
    polling: Polling,
}

/// The state of the input.
enum Stage {
    /// The head of a command is next.
    Head,
    /// A request waits for a buffer.
    AwaitBuffer(Command, Request),
    /// The data of a write are read into this buffer; their number so far.
    Payload(Command, Request, Buffer, usize),
    /// The data of a rejected write are skipped; the number that remains.
    Skip(Command, Request, Outcome, usize),
}

impl Session<'_> {
    fn run(mut self, stop: &StopEvent) -> Result<(), Ending> {
        let mut done = Vec::with_capacity(DEPTH);
        let mut last: Option<Instant> = None;
        let mut polled = None;
        loop {
            if last.is_none() && stop.is_raised() {
                self.reads_requests = false;
                last = Some(Instant::now() + LAST_REPLIES_TIMEOUT);
            }
            self.io_queue.begin();
            let received = self.receive(polled);
            if !self.open.is_empty() {
                // Submitting may block for long; the connection is not idle meanwhile.
                self.activity.note(0, self.open.len());
            }
            let submitted = self.io_queue.submit();
            if !self.reads_requests {
                // Injected delays are not waited for.
                self.io_queue.end_delays();
            }
            self.io_queue.reap(&mut done);
            // Delayed requests, and those of several calls, may continue now.
            let submitted = submitted.and_then(|()| self.io_queue.submit());
            self.io_queue.end();
            received?;
            submitted.map_err(|error| Ending::Failed(error.into()))?;
            let answered = done.len();
            for Completion { token, outcome } in done.drain(..) {
                self.answer(token, outcome);
            }
            self.outbox.send(self.socket, &mut self.pool)?;
            self.activity.note(answered, self.open.len());
            let over = self.open.is_empty() && self.outbox.is_empty();
            if !self.reads_requests && over {
                return Ok(());
            }
            if last.is_some_and(|last| self.open.is_empty() && Instant::now() >= last) {
                return Ok(());
            }
            polled = self.wait(stop, last)?;
        }
    }

    /// Reads input, as far as there is room. `polled`: the result of a read that polled.
    fn receive(&mut self, polled: Option<ReadResult>) -> Result<(), Ending> {
        let mut last_read = polled;
        for _ in 0..READS_A_ROUND {
            self.parse_input()?;
            // After a read of all that had arrived, another one would rarely find more.
            let may_have_more = matches!(last_read, None | Some(ReadResult::Full(_)));
            if !may_have_more || !self.needs_input() {
                return Ok(());
            }
            last_read = Some(self.read()?);
        }
        self.parse_input()
    }

    /// Reads the socket once. It does not wait.
    fn read(&mut self) -> Result<ReadResult, Ending> {
        let read_result = match &mut self.stage {
            // Directly into the buffer: large writes are not copied.
            Stage::Payload(_, request, buffer, filled) => {
                let whole = request.bytes as usize;
                let space = &mut buffer.bytes_mut()[*filled..whole];
                let read_result = receive(self.socket, space)?;
                *filled += read_result.bytes();
                read_result
            }
            _ => self.input_buffer.fill(self.socket)?,
        };
        if read_result == ReadResult::End {
            self.reads_requests = false;
        }
        Ok(read_result)
    }

    /// Whether more input is needed: all earlier input is processed, and there is room.
    fn needs_input(&self) -> bool {
        self.reads_requests
            && match &self.stage {
                Stage::Head => self.has_room(),
                Stage::AwaitBuffer(..) => false,
                Stage::Payload(..) | Stage::Skip(..) => true,
            }
    }

    fn has_room(&self) -> bool {
        self.open.len() + self.outbox.len() < DEPTH
    }

    /// Parses the input into requests, as far as there is room.
    fn parse_input(&mut self) -> Result<(), Ending> {
        while self.reads_requests {
            match std::mem::replace(&mut self.stage, Stage::Head) {
                Stage::Head => {
                    let head = self
                        .input_buffer
                        .bytes()
                        .first_chunk::<{ Command::BYTES }>();
                    let Some(head) = head.filter(|_| self.has_room()) else {
                        return Ok(());
                    };
                    let command = Command::read(head);
                    self.input_buffer.take(Command::BYTES);
                    let command =
                        command.ok_or(Ending::Broken("it sent an invalid NBD request"))?;
                    self.check(command);
                }
                Stage::AwaitBuffer(command, request) => {
                    let Some(buffer) = self.pool.lend(command.data_bytes() as usize) else {
                        self.stage = Stage::AwaitBuffer(command, request);
                        return Ok(());
                    };
                    match command.payload_bytes() {
                        0 => self.take(command, request, Some(buffer)),
                        _ => self.stage = Stage::Payload(command, request, buffer, 0),
                    }
                }
                Stage::Payload(command, request, mut buffer, filled) => {
                    let whole = request.bytes as usize;
                    let more = self
                        .input_buffer
                        .take_into(&mut buffer.bytes_mut()[filled..whole]);
                    if filled + more < whole {
                        self.stage = Stage::Payload(command, request, buffer, filled + more);
                        return Ok(());
                    }
                    self.take(command, request, Some(buffer));
                }
                Stage::Skip(command, request, outcome, left) => {
                    let passed = left.min(self.input_buffer.bytes().len());
                    self.input_buffer.take(passed);
                    if passed < left {
                        self.stage = Stage::Skip(command, request, outcome, left - passed);
                        return Ok(());
                    }
                    self.reject(command, request, outcome);
                }
            }
        }
        Ok(())
    }

    fn check(&mut self, command: Command) {
        match command.check(&self.geometry, self.structured) {
            Disposition::Execute(request) if command.data_bytes() > 0 => {
                self.stage = Stage::AwaitBuffer(command, request);
            }
            Disposition::Execute(request) => self.take(command, request, None),
            Disposition::Reject(request, outcome) => match command.payload_bytes() as usize {
                0 => self.reject(command, request, outcome),
                payload => self.stage = Stage::Skip(command, request, outcome, payload),
            },
            Disposition::Invalid => {
                let head = reply(&command, INVALID, self.structured);
                self.outbox.push(head, None);
            }
            Disposition::Disconnect => self.reads_requests = false,
        }
    }

    fn take(&mut self, command: Command, request: Request, buffer: Option<Buffer>) {
        let (token, buffer) = self.open.insert(command, buffer);
        let data = buffer.map(|buffer| buffer.iovec(request.bytes as usize));
        // SAFETY: the buffer is kept in `open`, unused, until the I/O queue has returned the token
        // or is dropped, which happens first.
        unsafe { self.io_queue.enqueue(request, data.as_slice(), token) };
    }

    fn reject(&mut self, command: Command, request: Request, outcome: Outcome) {
        let (token, _) = self.open.insert(command, None);
        self.io_queue.reject(request, outcome, token);
    }

    fn answer(&mut self, token: u64, outcome: Outcome) {
        let (command, buffer) = self.open.remove(token);
        let head = reply(&command, outcome, self.structured);
        match buffer {
            Some(buffer) if command.is_read() && outcome == Outcome::Done => {
                let data = Some((buffer, command.data_bytes() as usize));
                self.outbox.push(head, data);
            }
            Some(buffer) => {
                self.pool.give_back(buffer);
                self.outbox.push(head, None);
            }
            None => self.outbox.push(head, None),
        }
    }

    /// Waits for the next event. `last`: the deadline of a client that is to be disconnected.
    /// Returns the result of polling, if it found input.
    fn wait(
        &mut self,
        stop: &StopEvent,
        last: Option<Instant>,
    ) -> Result<Option<ReadResult>, Ending> {
        if self.can_continue() {
            return Ok(None);
        }
        if let Some(polled) = self.poll_socket()? {
            return Ok(Some(polled));
        }
        if !self.io_queue.arm() {
            return Ok(None);
        }
        let due = self.io_queue.due();
        let mut interest = PollFlags::empty();
        if self.needs_input() {
            interest |= PollFlags::IN;
        }
        if !self.outbox.is_empty() {
            interest |= PollFlags::OUT;
        }
        let mut sources = Vec::with_capacity(3);
        // A socket without requested events would still wake the thread when the client
        // disconnects.
        if !interest.is_empty() {
            sources.push((self.socket.as_fd(), interest));
        }
        if last.is_none() {
            sources.push((stop.fd(), PollFlags::IN));
        }
        sources.extend(self.io_queue.completions().map(|fd| (fd, PollFlags::IN)));
        // Requests at the disk are waited for without a limit.
        let last = last.filter(|_| self.open.is_empty());
        let due = [due, last].into_iter().flatten().min();
        let timeout = due.map(|due| due.saturating_duration_since(Instant::now()));
        wait(&sources, timeout)?;
        Ok(None)
    }

    /// Polls the socket for a while, if that pays: a client that waits for its replies soon sends
    /// its next request. `None`: nothing arrived.
    fn poll_socket(&mut self) -> Result<Option<ReadResult>, Ending> {
        // Requests at the disk and unsent replies end with events.
        if !self.needs_input() || !self.open.is_empty() || !self.outbox.is_empty() {
            return Ok(None);
        }
        let Some(longest) = self.polling.begin() else {
            return Ok(None);
        };
        let started = Instant::now();
        let (read_result, polled) = loop {
            let read_result = self.read()?;
            let polled = started.elapsed();
            if read_result != ReadResult::Nothing || polled >= longest {
                break (read_result, polled);
            }
            // The client, or another connection that polls, may need this processor.
            thread::yield_now();
        };
        let found = read_result != ReadResult::Nothing;
        self.polling.end(found, polled);
        Ok(found.then_some(read_result))
    }

    /// Whether input that was already read can be processed, now that there is room again.
    fn can_continue(&self) -> bool {
        self.reads_requests
            && match &self.stage {
                Stage::Head => self.input_buffer.bytes().len() >= Command::BYTES && self.has_room(),
                Stage::AwaitBuffer(command, _) => self.pool.lends(command.data_bytes() as usize),
                Stage::Payload(..) | Stage::Skip(..) => !self.input_buffer.bytes().is_empty(),
            }
    }
}

/// Requests at the disk, by token.
struct InFlight {
    slots: Vec<Option<(Command, Option<Buffer>)>>,
    free: Vec<u64>,
}

impl InFlight {
    fn new() -> InFlight {
        InFlight {
            slots: (0..DEPTH).map(|_| None).collect(),
            free: (0..DEPTH as u64).rev().collect(),
        }
    }

    fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a request; returns its token, and its buffer in its place.
    fn insert(&mut self, command: Command, buffer: Option<Buffer>) -> (u64, Option<&mut Buffer>) {
        let token = self.free.pop().expect("there was room");
        let (_, buffer) = self.slots[token as usize].insert((command, buffer));
        (token, buffer.as_mut())
    }

    fn remove(&mut self, token: u64) -> (Command, Option<Buffer>) {
        let open = self.slots[token as usize].take();
        self.free.push(token);
        open.expect("a token comes back once")
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::disk::{DiskOptions, ServedDisk};

    /// Longer than a test: a period ends only because something arrived.
    const LONG: Duration = Duration::from_secs(3600);

    /// Runs `test` with a session that polls for at most `poll`, and its client.
    fn with_session(poll: Duration, test: impl FnOnce(Session, UnixStream)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        let disk = ServedDisk::open(DiskOptions::new(path)).unwrap();
        let options = IoQueueOptions {
            queue: 0,
            depth: DEPTH as u32,
        };
        let (socket, client) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let (socket, activity) = (OwnedFd::from(socket), Activity::new());
        let session = Session {
            socket: &socket,
            activity: &activity,
            io_queue: IoQueue::new(&disk, options).unwrap(),
            geometry: Geometry {
                size_bytes: disk.size_bytes(),
                block_bytes: disk.step_bytes(),
                read_only: false,
            },
            structured: false,
            input_buffer: InputBuffer::new(),
            stage: Stage::Head,
            open: InFlight::new(),
            pool: Pool::new(DATA_BYTES_MAX),
            outbox: Outbox::default(),
            reads_requests: true,
            polling: Polling::new(poll),
        };
        test(session, client);
    }

    /// A read of 512 bytes.
    fn read_command() -> Vec<u8> {
        let mut bytes = vec![0x25, 0x60, 0x95, 0x13];
        bytes.resize(Command::BYTES - 4, 0);
        bytes.extend(512_u32.to_be_bytes());
        bytes
    }

    #[test]
    fn polling_finds_a_request_and_the_end_of_the_client() {
        with_session(LONG, |mut session, mut client| {
            let sender = thread::spawn(move || {
                client.write_all(&read_command()).unwrap();
                client
            });
            let polled = session.poll_socket().unwrap();
            assert_eq!(polled, Some(ReadResult::All(Command::BYTES)));
            drop(sender.join().unwrap());
            // All that had arrived is read, so it is parsed without another read, which would find
            // the end.
            session.receive(polled).unwrap();
            assert_eq!((session.open.len(), session.reads_requests), (1, true));
            session.io_queue.submit().unwrap();
            let mut done = Vec::new();
            session.io_queue.drain(&mut done).unwrap();
            session.answer(done[0].token, done[0].outcome);
            session.outbox = Outbox::default();
            assert_eq!(session.poll_socket().unwrap(), Some(ReadResult::End));
            assert!(!session.reads_requests);
            assert_eq!(session.polling.trial(), (2, 2));
        });
    }

    #[test]
    fn polling_an_idle_client_ends_and_pauses() {
        with_session(Duration::from_micros(1), |mut session, mut client| {
            // The periods of the first trial, and the first of the idle periods without polling.
            let mut periods = 0;
            while session.polling.begin().is_some() {
                assert_eq!(session.poll_socket().unwrap(), None);
                periods += 1;
            }
            assert!((1..=64).contains(&periods), "{periods}");
            // Nothing is read in a pause.
            client.write_all(&read_command()).unwrap();
            assert_eq!(session.poll_socket().unwrap(), None);
            assert!(session.input_buffer.bytes().is_empty());
        });
    }

    #[test]
    fn what_ends_with_an_event_is_not_polled_for() {
        with_session(LONG, |mut session, mut client| {
            // Nothing would end these periods.
            session.outbox.push(vec![0; 16], None);
            assert_eq!(session.poll_socket().unwrap(), None, "a reply is unsent");
            session.outbox = Outbox::default();
            client.write_all(&read_command()).unwrap();
            session.receive(None).unwrap();
            assert_eq!(session.open.len(), 1);
            assert_eq!(session.poll_socket().unwrap(), None, "a request is open");
            assert_eq!(session.polling.trial(), (0, 0));
        });
        with_session(Duration::ZERO, |mut session, mut client| {
            client.write_all(&read_command()).unwrap();
            assert_eq!(session.poll_socket().unwrap(), None, "it is disabled");
        });
    }
}
