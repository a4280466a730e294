//! One client: its handshake, and then its requests, many at a time, on a lane of its own.
//!
//! A connection is a loop in a thread of its own: take what has come, submit it, take what is done,
//! send what the client takes, and wait for whichever comes next. What a client has in flight, has
//! not sent whole or does not fetch is bounded; a client that is slow waits for itself.
#![allow(unsafe_code)] // the lane is told where a request's data are

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::buffer::{Buffer, Pool};
use super::clients::{Activity, Client};
use super::handshake::{Chosen, MESSAGE_BYTES_MAX, Negotiation, Offer, Step, Violation};
use super::protocol::{Command, Geometry, SENSELESS, Verdict, reply};
use super::wire::{Came, Outbox, STAGED_BYTES, Staged, receive};
use super::{Export, NbdError, offers};
use crate::lane::{Done, Lane, LaneOptions};
use crate::stop::Stop;
use crate::{Outcome, Request};

/// A client has to agree within this time.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// After a stop a client has this long to fetch its last replies.
const LAST_REPLIES: Duration = Duration::from_secs(5);

/// Requests a client may have under way, those included whose replies it has not fetched.
pub const DEPTH: usize = 128;

/// Bytes of data a client may have under way; a single request always fits.
pub const DATA_BYTES_MAX: usize = 32 << 20;

/// Reads from the socket before the others get their turn: what is done, what is to be sent.
const READS_A_ROUND: usize = 4;

const _: () = assert!(MESSAGE_BYTES_MAX <= STAGED_BYTES, "an option fits");

/// How a connection ended.
#[derive(Debug)]
pub enum Ending {
    /// As the client or a stop wanted.
    Fine,
    /// The client did what the protocol does not allow.
    Broken(Violation),
    /// It did not agree in time.
    Slow,
    /// The socket, the thread or the disk failed.
    Failed(NbdError),
}

impl From<std::io::Error> for Ending {
    fn from(error: std::io::Error) -> Ending {
        use std::io::ErrorKind as Kind;
        match error.kind() {
            // Clients go without a word, and that is fine.
            Kind::ConnectionReset | Kind::BrokenPipe => Ending::Fine,
            _ => Ending::Failed(NbdError::Socket(error)),
        }
    }
}

/// Serves a client, whose socket does not block, until it leaves or `stop` is raised.
pub fn serve(client: &Client, exports: &[Export], queue: u16, stop: &Stop) -> Ending {
    let socket = &*client.socket;
    let offers = offers(exports);
    let mut staged = Staged::new();
    let chosen = match negotiate(socket, &offers, stop, &mut staged) {
        Ok(Some(chosen)) => chosen,
        Ok(None) => return Ending::Fine,
        Err(ending) => return ending,
    };
    let options = LaneOptions {
        queue,
        depth: DEPTH as u32,
    };
    let lane = match Lane::new(&exports[chosen.export].disk, options) {
        Ok(lane) => lane,
        Err(error) => return Ending::Failed(error.into()),
    };
    client.activity.note(0, 0);
    let session = Session {
        socket,
        activity: &client.activity,
        lane,
        geometry: offers[chosen.export].geometry,
        structured: chosen.structured,
        staged,
        stage: Stage::Head,
        open: Open::new(),
        pool: Pool::new(DATA_BYTES_MAX),
        outbox: Outbox::default(),
        listening: true,
    };
    match session.run(stop) {
        Ok(()) => Ending::Fine,
        Err(ending) => ending,
    }
}

/// The handshake; `None` when the client left, or everything is to end.
fn negotiate(
    socket: &OwnedFd,
    offers: &[Offer],
    stop: &Stop,
    staged: &mut Staged,
) -> Result<Option<Chosen>, Ending> {
    let until = Instant::now() + HANDSHAKE;
    // No data are sent here, so nothing is lent.
    let mut pool = Pool::new(0);
    let mut outbox = Outbox::default();
    let mut out = Vec::new();
    let mut negotiation = Negotiation::new(offers, &mut out);
    let mut step = Step::Listen;
    loop {
        if !out.is_empty() {
            outbox.push(std::mem::take(&mut out), None);
        }
        outbox.send(socket, &mut pool)?;
        // Who does not fetch the answers is not asked on.
        while step == Step::Listen && outbox.is_empty() {
            let (taken, next) = negotiation
                .hear(staged.bytes(), &mut out)
                .map_err(Ending::Broken)?;
            if taken == 0 {
                break;
            }
            staged.take(taken);
            step = next;
            if !out.is_empty() {
                outbox.push(std::mem::take(&mut out), None);
                outbox.send(socket, &mut pool)?;
            }
        }
        match step {
            _ if !outbox.is_empty() => {}
            Step::Begin(chosen) => return Ok(Some(chosen)),
            Step::Left => return Ok(None),
            Step::Listen => {}
        }
        let now = Instant::now();
        if stop.is_raised() {
            return Ok(None);
        }
        if now >= until {
            return Err(Ending::Slow);
        }
        let interest = match outbox.is_empty() {
            true => PollFlags::IN,
            false => PollFlags::OUT,
        };
        let sources = [(socket.as_fd(), interest), (stop.fd(), PollFlags::IN)];
        wait(&sources, Some(until - now))?;
        if outbox.is_empty() && staged.fill(socket)? == Came::End {
            return Ok(None);
        }
    }
}

/// Waits until one of these is ready, or for so long.
fn wait(
    sources: &[(std::os::fd::BorrowedFd<'_>, PollFlags)],
    patience: Option<Duration>,
) -> std::io::Result<()> {
    let mut fds: Vec<PollFd> = sources
        .iter()
        .map(|(fd, interest)| PollFd::from_borrowed_fd(*fd, *interest))
        .collect();
    let patience = patience.map(|d| Timespec::try_from(d).expect("waits are short"));
    match poll(&mut fds, patience.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A client that has chosen its export.
struct Session<'a> {
    socket: &'a OwnedFd,
    activity: &'a Activity,
    /// Before the buffers: when it goes it waits until the kernel has done with them.
    lane: Lane,
    geometry: Geometry,
    structured: bool,
    staged: Staged,
    stage: Stage,
    open: Open,
    pool: Pool,
    outbox: Outbox,
    /// Whether more requests are taken.
    listening: bool,
}

/// What is being read.
enum Stage {
    /// The head of a command comes next.
    Head,
    /// A request waits for a buffer.
    Wants(Command, Request),
    /// The data of a write come, into this buffer; so many are there.
    Payload(Command, Request, Buffer, usize),
    /// The data of a write that is refused come; so many are still to be passed over.
    Skip(Command, Request, Outcome, usize),
}

impl Session<'_> {
    fn run(mut self, stop: &Stop) -> Result<(), Ending> {
        let mut done = Vec::with_capacity(DEPTH);
        let mut last: Option<Instant> = None;
        loop {
            if last.is_none() && stop.is_raised() {
                self.listening = false;
                last = Some(Instant::now() + LAST_REPLIES);
            }
            self.lane.begin();
            let heard = self.hear();
            if !self.open.is_empty() {
                // To submit may block for long; the connection is not idle meanwhile.
                self.activity.note(0, self.open.len());
            }
            let submitted = self.lane.submit();
            if !self.listening {
                // Nobody waits for the end of a drill.
                self.lane.hurry();
            }
            self.lane.reap(&mut done);
            // What was held back, or takes several steps, may go on now.
            let submitted = submitted.and_then(|()| self.lane.submit());
            self.lane.end();
            heard?;
            submitted.map_err(|error| Ending::Failed(error.into()))?;
            let answered = done.len();
            for Done { token, outcome } in done.drain(..) {
                self.answer(token, outcome);
            }
            self.outbox.send(self.socket, &mut self.pool)?;
            self.activity.note(answered, self.open.len());
            let over = self.open.is_empty() && self.outbox.is_empty();
            if !self.listening && over {
                return Ok(());
            }
            if last.is_some_and(|last| self.open.is_empty() && Instant::now() >= last) {
                return Ok(());
            }
            self.wait(stop, last)?;
        }
    }

    /// Takes what has come, as far as there is room.
    fn hear(&mut self) -> Result<(), Ending> {
        for _ in 0..READS_A_ROUND {
            self.digest()?;
            if !self.is_hungry() {
                break;
            }
            let came = match &mut self.stage {
                // Past the stage: large writes are not copied.
                Stage::Payload(_, request, buffer, filled) => {
                    let whole = request.bytes as usize;
                    let came = receive(self.socket, &mut buffer.bytes_mut()[*filled..whole])?;
                    if let Came::Bytes(count) = came {
                        *filled += count;
                    }
                    came
                }
                _ => self.staged.fill(self.socket)?,
            };
            match came {
                Came::Bytes(_) => {}
                Came::Nothing => break,
                Came::End => {
                    self.listening = false;
                    break;
                }
            }
        }
        self.digest()
    }

    /// True if bytes of the client's are wanted: none are left to be looked at, and there is room.
    fn is_hungry(&self) -> bool {
        self.listening
            && match &self.stage {
                Stage::Head => self.has_room(),
                Stage::Wants(..) => false,
                Stage::Payload(..) | Stage::Skip(..) => true,
            }
    }

    fn has_room(&self) -> bool {
        self.open.len() + self.outbox.len() < DEPTH
    }

    /// Makes requests of the bytes that are there, as far as there is room.
    fn digest(&mut self) -> Result<(), Ending> {
        while self.listening {
            match std::mem::replace(&mut self.stage, Stage::Head) {
                Stage::Head => {
                    let head = self.staged.bytes().first_chunk::<{ Command::BYTES }>();
                    let Some(head) = head.filter(|_| self.has_room()) else {
                        return Ok(());
                    };
                    let command = Command::read(head);
                    self.staged.take(Command::BYTES);
                    let command =
                        command.ok_or(Ending::Broken("what it sends is no NBD request"))?;
                    self.judge(command);
                }
                Stage::Wants(command, request) => {
                    let Some(buffer) = self.pool.lend(command.data_bytes() as usize) else {
                        self.stage = Stage::Wants(command, request);
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
                        .staged
                        .take_into(&mut buffer.bytes_mut()[filled..whole]);
                    if filled + more < whole {
                        self.stage = Stage::Payload(command, request, buffer, filled + more);
                        return Ok(());
                    }
                    self.take(command, request, Some(buffer));
                }
                Stage::Skip(command, request, outcome, left) => {
                    let passed = left.min(self.staged.bytes().len());
                    self.staged.take(passed);
                    if passed < left {
                        self.stage = Stage::Skip(command, request, outcome, left - passed);
                        return Ok(());
                    }
                    self.refuse(command, request, outcome);
                }
            }
        }
        Ok(())
    }

    fn judge(&mut self, command: Command) {
        match command.judge(&self.geometry, self.structured) {
            Verdict::Do(request) if command.data_bytes() > 0 => {
                self.stage = Stage::Wants(command, request);
            }
            Verdict::Do(request) => self.take(command, request, None),
            Verdict::Refuse(request, outcome) => match command.payload_bytes() as usize {
                0 => self.refuse(command, request, outcome),
                payload => self.stage = Stage::Skip(command, request, outcome, payload),
            },
            Verdict::Senseless => {
                let head = reply(&command, SENSELESS, self.structured);
                self.outbox.push(head, None);
            }
            Verdict::Goodbye => self.listening = false,
        }
    }

    fn take(&mut self, command: Command, request: Request, buffer: Option<Buffer>) {
        let (token, buffer) = self.open.insert(command, buffer);
        let data = buffer.map(|buffer| buffer.iovec(request.bytes as usize));
        // SAFETY: the buffer is kept in `open`, untouched, until the lane has given the token back or is
        // gone, which goes first.
        unsafe { self.lane.take(request, data.as_slice(), token) };
    }

    fn refuse(&mut self, command: Command, request: Request, outcome: Outcome) {
        let (token, _) = self.open.insert(command, None);
        self.lane.refuse(request, outcome, token);
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

    /// Waits for whatever comes next. `last`: when a client that is to go has had its time.
    fn wait(&mut self, stop: &Stop, last: Option<Instant>) -> Result<(), Ending> {
        if self.can_go_on() || !self.lane.arm() {
            return Ok(());
        }
        let due = self.lane.due();
        let mut interest = PollFlags::empty();
        if self.is_hungry() {
            interest |= PollFlags::IN;
        }
        if !self.outbox.is_empty() {
            interest |= PollFlags::OUT;
        }
        let mut sources = Vec::with_capacity(3);
        // A socket that nothing is wanted of would still wake us when the client has gone.
        if !interest.is_empty() {
            sources.push((self.socket.as_fd(), interest));
        }
        if last.is_none() {
            sources.push((stop.fd(), PollFlags::IN));
        }
        sources.extend(self.lane.completions().map(|fd| (fd, PollFlags::IN)));
        // Requests that the disk has are waited for, however long it takes.
        let last = last.filter(|_| self.open.is_empty());
        let due = [due, last].into_iter().flatten().min();
        let patience = due.map(|due| due.saturating_duration_since(Instant::now()));
        Ok(wait(&sources, patience)?)
    }

    /// Whether bytes that are here already can be looked at, now that there is room again.
    fn can_go_on(&self) -> bool {
        self.listening
            && match &self.stage {
                Stage::Head => self.staged.bytes().len() >= Command::BYTES && self.has_room(),
                Stage::Wants(command, _) => self.pool.lends(command.data_bytes() as usize),
                Stage::Payload(..) | Stage::Skip(..) => !self.staged.bytes().is_empty(),
            }
    }
}

/// Requests that the disk has, by token.
struct Open {
    slots: Vec<Option<(Command, Option<Buffer>)>>,
    free: Vec<u64>,
}

impl Open {
    fn new() -> Open {
        Open {
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

    /// Its token, and its buffer where it stays.
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
