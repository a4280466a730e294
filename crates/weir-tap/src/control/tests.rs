//! Peers that are of another version or user, that send random bytes, too much or too little, and
//! those that do not.

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use weir_testing::{skipped, wait_until};

use super::message::{Body, decode, encode};
use super::server::ReplyResult;
use super::*;

const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ask {
    Echo {
        text: String,
    },
    /// A file with that content.
    Open(String),
    /// That many parts.
    Count(u32),
    /// A response of that many bytes.
    Long(usize),
    /// Ends the session at the next round.
    Fail,
}

#[derive(Debug)]
struct Echo;

impl Service for Echo {
    const NAME: &'static str = "echo";
    const VERSION: u32 = 7;
    const REQUEST_BYTES_MAX: usize = 1 << 10;
    const RESPONSE_BYTES_MAX: usize = 4 << 20;
    type Request = Ask;
    type Response = String;
}

/// The same service, later.
struct Echo8;

impl Service for Echo8 {
    const NAME: &'static str = Echo::NAME;
    const VERSION: u32 = 8;
    const REQUEST_BYTES_MAX: usize = 1 << 10;
    const RESPONSE_BYTES_MAX: usize = 4 << 20;
    type Request = Ask;
    type Response = String;
}

#[derive(Default)]
struct Answers {
    closed: Vec<bool>,
}

impl Implementation for Answers {
    type Service = Echo;
    type Session = bool;

    fn handle(
        &mut self,
        has_failed: &mut bool,
        peer: ControlPeer,
        ask: Ask,
    ) -> ReplyResult<Answers> {
        assert_eq!(peer.pid, std::process::id() as i32);
        Ok(match ask {
            Ask::Echo { text } if text == "wrong" => {
                return Err(ServiceError::new(ErrorCode::Usage, "a wrong text"));
            }
            Ask::Echo { text } => text.into(),
            Ask::Open(content) => {
                let mut file = tempfile::tempfile().unwrap();
                file.write_all(content.as_bytes()).unwrap();
                Reply {
                    descriptors: vec![file.into()],
                    ..String::new().into()
                }
            }
            Ask::Count(n) => Reply {
                parts: (0..n).map(|n| n.to_string()).collect(),
                ..n.to_string().into()
            },
            Ask::Long(bytes) => "x".repeat(bytes).into(),
            Ask::Fail => {
                *has_failed = true;
                String::new().into()
            }
        })
    }

    fn failure(&self, has_failed: &bool) -> Option<ServiceError> {
        has_failed.then(|| ServiceError::new(ErrorCode::Failed, "it has failed"))
    }

    fn close(&mut self, _session: bool, by_peer: bool) {
        self.closed.push(by_peer);
    }
}

struct Running {
    folder: TempDir,
    stop: UnixStream,
    thread: Option<JoinHandle<Vec<bool>>>,
}

impl Running {
    fn new(limits: ControlLimits) -> Running {
        let folder = TempDir::new().unwrap();
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        let mut server = LocalServer::new(listener, Peers::OwnUser, limits).unwrap();
        let (stop, wake) = UnixStream::pair().unwrap();
        let serve = move || {
            let mut answers = Answers::default();
            while !server.round(&mut answers, wake.as_fd(), TIMEOUT) {}
            let last = ServiceError::new(ErrorCode::Stopped, "it was stopped");
            server.finish(&mut answers, Some(&last), TIMEOUT);
            answers.closed
        };
        Running {
            folder,
            stop,
            thread: Some(thread::spawn(serve)),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn client(&self) -> ControlClient<Echo> {
        ControlClient::connect(&self.path(), Peers::OwnUser, TIMEOUT).unwrap()
    }

    fn raw(&self) -> UnixStream {
        let stream = UnixStream::connect(self.path()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    /// Stops it; for each connection, whether the peer ended it.
    fn end(&mut self) -> Vec<bool> {
        (&self.stop).write_all(b"x").unwrap();
        self.thread.take().unwrap().join().unwrap()
    }
}

fn echo(client: &mut ControlClient<Echo>, text: &str) -> Result<String, ControlError> {
    client.request(&Ask::Echo { text: text.into() })
}

/// The error in what a server sent before it closed the connection.
fn last_error(mut stream: UnixStream) -> ServiceError {
    let mut bytes = Vec::new();
    // The connection may be reset after the last bytes.
    let _ = stream.read_to_end(&mut bytes);
    let frame = frame::take(&mut bytes, 1 << 20).unwrap().expect("a frame");
    match decode::<Echo, String>(&frame) {
        Ok(Body::Error(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_request_has_its_response_its_parts_and_its_descriptors() {
    let mut running = Running::new(ControlLimits::default());
    let mut client = running.client();
    assert_eq!(echo(&mut client, "ä\n\"").unwrap(), "ä\n\"");
    let Err(ControlError::Service(error)) = echo(&mut client, "wrong") else {
        panic!("an error");
    };
    assert_eq!(error, ServiceError::new(ErrorCode::Usage, "a wrong text"));
    let parts = client.request_parts(&Ask::Count(3), Vec::new()).unwrap();
    assert_eq!(parts, ["0", "1", "2", "3"]);
    client.request(&Ask::Open("content".into())).unwrap();
    let [file] = <[OwnedFd; 1]>::try_from(client.passed()).unwrap();
    let mut content = [0; 7];
    let file = File::from(file);
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut content, 0).unwrap();
    assert_eq!(&content, b"content");
    assert_eq!(client.request(&Ask::Long(1 << 20)).unwrap().len(), 1 << 20);
    let long = client.request(&Ask::Long(5 << 20));
    assert!(matches!(long, Err(ControlError::Service(e)) if e.code == ErrorCode::TooLong));
    assert_eq!(echo(&mut client, "still").unwrap(), "still");
    assert!(matches!(client.poll(), Ok(None)));
    assert_eq!(running.end(), [false]);
    let stopped = client.poll();
    assert!(matches!(stopped, Err(ControlError::Service(e)) if e.code == ErrorCode::Stopped));
    assert!(matches!(client.poll(), Err(ControlError::Closed)));
}

#[test]
fn another_version_is_an_error_that_states_both_on_both_sides() {
    let running = Running::new(ControlLimits::default());
    let mut later =
        ControlClient::<Echo8>::connect(&running.path(), Peers::OwnUser, TIMEOUT).unwrap();
    let error = later.request(&Ask::Count(0)).unwrap_err().to_string();
    assert!(error.contains("version 7 of the echo protocol"), "{error}");
    assert!(error.contains("this weir version 8"), "{error}");
    let mut raw = running.raw();
    let frame = encode::<Echo8>(Body::Request(Ask::Count(0)), 1 << 10).unwrap();
    raw.write_all(&frame).unwrap();
    raw.shutdown(std::net::Shutdown::Write).unwrap();
    let error = last_error(raw);
    assert_eq!(error.code, ErrorCode::UnsupportedVersion);
    assert!(error.message.contains("version 8"), "{error}");
}

#[test]
fn unknown_fields_are_ignored_and_unknown_requests_are_answered() {
    let running = Running::new(ControlLimits::default());
    let answered = |text: &str| {
        let mut raw = running.raw();
        raw.write_all(&(text.len() as u32).to_le_bytes()).unwrap();
        raw.write_all(text.as_bytes()).unwrap();
        raw.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        raw.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    };
    let known = r#"{"new":[1],"service":"echo","version":7,"body":{"request":{"echo":{"text":"hi","loud":true}}}}"#;
    assert!(answered(known).contains(r#"{"response":"hi"}"#));
    for wrong in [
        r#"{"service":"echo","version":7,"body":{"request":{"sing":{}}}}"#,
        r#"{"service":"echo","version":7,"body":{"response":"hi"}}"#,
        r#"{"service":"other","version":7,"body":{"request":{"count":1}}}"#,
        r#"{"weir_tapdisk":1,"ask":"status"}"#,
        "[[[[",
        "",
    ] {
        let answer = answered(wrong);
        assert!(answer.contains("malformed"), "{wrong}: {answer}");
    }
    let later = r#"{"code":"new_kind","message":"m"}"#;
    let later: ServiceError = serde_json::from_str(later).unwrap();
    assert_eq!(later.code, ErrorCode::Other);
}

#[test]
fn random_bytes_and_long_frames_end_only_their_connection() {
    let mut running = Running::new(ControlLimits::default());
    let mut client = running.client();
    let mut random = xorshift(7);
    for _ in 0..200 {
        let mut raw = running.raw();
        let bytes: Vec<u8> = (0..random() % 600).map(|_| random() as u8).collect();
        // It may be closed before everything is sent.
        let _ = raw.write_all(&bytes);
        assert_eq!(echo(&mut client, "served").unwrap(), "served");
    }
    let mut raw = running.raw();
    raw.write_all(&u32::MAX.to_le_bytes()).unwrap();
    let error = last_error(raw);
    assert_eq!(error.code, ErrorCode::TooLong);
    let mut endless = running.raw();
    let sent = (0..10_000).try_for_each(|_| endless.write_all(&[b'x'; 4096]));
    assert!(sent.is_err(), "it is disconnected");
    assert_eq!(echo(&mut client, "served").unwrap(), "served");
    running.end();
}

#[test]
fn a_client_that_stops_in_the_middle_or_does_not_read_is_disconnected() {
    let limits = ControlLimits {
        stalled: Duration::from_millis(100),
        ..ControlLimits::default()
    };
    let running = Running::new(limits);
    let mut client = running.client();
    let mut half = running.raw();
    half.write_all(&[100, 0, 0, 0, b'{']).unwrap();
    let mut deaf = running.raw();
    let frame = encode::<Echo>(Body::Request(Ask::Long(4_000_000)), 1 << 10).unwrap();
    deaf.write_all(&frame).unwrap();
    assert_eq!(half.read(&mut [0; 1]).unwrap(), 0, "it is closed");
    // Its end is noticed without reading.
    wait_until("it is disconnected", || deaf.write_all(&[0; 4]).is_err());
    assert_eq!(echo(&mut client, "served").unwrap(), "served");
}

#[test]
fn silent_clients_are_closed_when_others_connect_and_after_their_time() {
    let limits = ControlLimits {
        connections_max: 2,
        idle: Duration::from_millis(100),
        ..ControlLimits::default()
    };
    let running = Running::new(limits);
    let mut silent = running.raw();
    let mut others = [running.client(), running.client()];
    for other in &mut others {
        assert_eq!(echo(other, "served").unwrap(), "served");
    }
    assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0);
    wait_until("it is disconnected", || {
        matches!(others[0].poll(), Err(ControlError::Closed))
    });
}

#[test]
fn a_session_that_fails_ends_with_its_reason() {
    let running = Running::new(ControlLimits::default());
    let mut client = running.client();
    client.request(&Ask::Fail).unwrap();
    let until = Instant::now() + TIMEOUT;
    let error = loop {
        match client.poll() {
            Ok(_) => assert!(Instant::now() < until),
            Err(error) => break error,
        }
    };
    assert_eq!(error.to_string(), "it has failed");
}

#[test]
fn a_server_that_ends_or_is_silent_in_the_middle_of_a_response_is_an_error() {
    let answered = |bytes: &'static [u8], then: fn(UnixStream)| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let serve = thread::spawn(move || {
            let mut theirs = theirs;
            theirs.read_exact(&mut [0; 8]).unwrap();
            theirs.write_all(bytes).unwrap();
            then(theirs);
        });
        let mut client = ControlClient::<Echo>::new(ours, Duration::from_millis(200)).unwrap();
        let error = client.request(&Ask::Count(0)).unwrap_err();
        serve.join().unwrap();
        error
    };
    let closed = answered(&[9, 0, 0, 0, b'{'], drop);
    assert!(matches!(closed, ControlError::Closed), "{closed:?}");
    let silent = answered(&[9, 0, 0, 0, b'{'], |stream| {
        thread::sleep(Duration::from_millis(400));
        drop(stream);
    });
    let ControlError::System(silent) = silent else {
        panic!("{silent:?}");
    };
    use io::ErrorKind as Kind;
    assert!(matches!(silent.kind(), Kind::WouldBlock | Kind::TimedOut));
    let long = answered(&[0xff; 4], drop);
    assert!(matches!(long, ControlError::Invalid(_)), "{long:?}");
    let other = answered(b"\x02\0\0\0{}", drop);
    assert!(matches!(other, ControlError::Invalid(_)), "{other:?}");
}

/// Runs `act` in a thread of another user, if this one may become another.
fn as_another_user<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let act = move || {
        let other = rustix::process::Uid::from_raw(65534);
        // The system call changes this thread only.
        rustix::thread::set_thread_res_uid(other, other, other).ok()?;
        Some(act())
    };
    thread::spawn(act).join().unwrap()
}

#[test]
fn another_user_is_refused_on_both_sides() {
    let running = Running::new(ControlLimits::default());
    let path = running.path();
    fs::set_permissions(running.folder.path(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    let request = move || {
        let connected = ControlClient::<Echo>::connect(&path, Peers::Permitted, TIMEOUT);
        connected.unwrap().request(&Ask::Count(0)).unwrap_err()
    };
    let Some(refused) = as_another_user(request) else {
        return skipped("another_user_is_refused_on_both_sides", "not root");
    };
    let ControlError::Service(refused) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(refused.code, ErrorCode::Forbidden);
    assert!(refused.message.contains("user 65534"), "{refused}");
    let mut own = running.client();
    assert_eq!(echo(&mut own, "served").unwrap(), "served");

    let open = TempDir::new().unwrap();
    fs::set_permissions(open.path(), Permissions::from_mode(0o777)).unwrap();
    let theirs = open.path().join("theirs");
    let bound = theirs.clone();
    let listener = as_another_user(move || UnixListener::bind(bound).unwrap()).unwrap();
    let refused = ControlClient::<Echo>::connect(&theirs, Peers::OwnUser, TIMEOUT);
    let Err(ControlError::Service(refused)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(refused.code, ErrorCode::Forbidden);
    drop(listener);
}

/// A generator of pseudo-random numbers (xorshift).
fn xorshift(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}
