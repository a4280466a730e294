//! [`GuestSession`]: the host's side of a session, with a thread that extends its lease.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_runtime::failure::Failure;

use super::messages::{GuestAnswer, GuestTuneRequest, KEEP_EVERY, VERSION};
use super::serve::{Lines, Received};
use crate::queue::{QueueRecovery, QueueState};

/// The longest wait for an answer. A change of the scheduler freezes the guest's queue.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// A session with a guest. When it is dropped, the guest restores its settings.
#[derive(Debug)]
pub struct GuestSession {
    /// The settings at its start.
    pub present: QueueState,
    /// The schedulers that the guest's kernel offers.
    pub schedulers: Vec<String>,
    connection: Arc<Mutex<Connection>>,
    keeper: Keeper,
}

#[derive(Debug)]
struct Connection {
    path: PathBuf,
    stream: UnixStream,
    lines: Lines,
}

/// The thread that extends the lease until it is dropped.
#[derive(Debug)]
struct Keeper {
    is_ending: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

const UNPOISONED: &str = "no panic while locked";

impl GuestSession {
    /// Begins a session for a disk of the guest, through a socket of QEMU.
    ///
    /// # Errors
    /// When there is no such socket, no process in the guest answers, or it does not permit the
    /// disk.
    pub fn begin(socket: &Path, disk: &str) -> Result<GuestSession, Failure> {
        let failed = |error| Failure::world(format_args!("--guest {}: {error}", socket.display()));
        let stream = UnixStream::connect(socket).map_err(failed)?;
        let mut connection = Connection {
            path: socket.to_owned(),
            stream,
            lines: Lines::default(),
        };
        let begin = GuestTuneRequest::Start {
            version: VERSION,
            disk: disk.to_owned(),
        };
        // Answers to a host that was killed may still be in the port.
        let answer = connection.call(&begin, |answer| {
            matches!(answer, GuestAnswer::Started { .. } | GuestAnswer::Error(_))
        })?;
        let GuestAnswer::Started {
            present,
            schedulers,
        } = answer
        else {
            unreachable!("other answers are skipped");
        };
        let connection = Arc::new(Mutex::new(connection));
        Ok(GuestSession {
            present,
            schedulers,
            keeper: Keeper::start(connection.clone()),
            connection,
        })
    }

    /// Changes the settings to those at the start with these changes.
    ///
    /// # Errors
    /// When the guest does not carry it out, or does not answer.
    pub fn set(&self, changes: &QueueState) -> Result<(), Failure> {
        let mut connection = self.connection.lock().expect(UNPOISONED);
        let request = GuestTuneRequest::Set(changes.clone());
        connection.call(&request, |_| true).map(|_| ())
    }

    /// Has the guest restore its settings.
    ///
    /// # Errors
    /// When it cannot, or does not answer; it then restores them when the lease ends.
    pub fn restore(self) -> Result<QueueRecovery, Failure> {
        drop(self.keeper);
        let mut connection = self.connection.lock().expect(UNPOISONED);
        match connection.call(&GuestTuneRequest::Restore, |_| true)? {
            GuestAnswer::Restored(recovery) => Ok(recovery),
            _ => Ok(QueueRecovery::default()),
        }
    }
}

impl Connection {
    /// Sends a request, and receives the answer that is `accepted`; earlier ones are skipped. An
    /// answer that is an error is one.
    fn call(
        &mut self,
        request: &GuestTuneRequest,
        accepted: impl Fn(&GuestAnswer) -> bool,
    ) -> Result<GuestAnswer, Failure> {
        let path = self.path.display().to_string();
        let failed = |reason: String| Failure::world(format_args!("the guest at {path}: {reason}"));
        let mut line = serde_json::to_vec(request).map_err(std::io::Error::from)?;
        line.push(b'\n');
        let sent = self.stream.write_all(&line);
        sent.map_err(|error| failed(error.to_string()))?;
        let until = Instant::now() + ANSWER_WITHIN;
        while Instant::now() < until {
            while let Some(line) = self.lines.next() {
                let answer: GuestAnswer = serde_json::from_str(&line)
                    .map_err(|error| failed(format!("not an answer: {error}")))?;
                match answer {
                    answer if !accepted(&answer) => {}
                    GuestAnswer::Error(reason) => return Err(failed(reason)),
                    answer => return Ok(answer),
                }
            }
            let received = self.lines.receive(&mut self.stream);
            if received.map_err(|error| failed(error.to_string()))? == Received::Disconnected {
                return Err(failed("QEMU has closed the connection".to_owned()));
            }
        }
        Err(failed(format!(
            "no answer within {} s; does `weir tune --serve` run in it?",
            ANSWER_WITHIN.as_secs()
        )))
    }
}

impl Keeper {
    fn start(connection: Arc<Mutex<Connection>>) -> Keeper {
        let is_ending = Arc::new((Mutex::new(false), Condvar::new()));
        let of_thread = is_ending.clone();
        let thread = std::thread::spawn(move || {
            let (is_ending, changed) = &*of_thread;
            let mut ending = is_ending.lock().expect(UNPOISONED);
            while !*ending {
                let waited = changed.wait_timeout(ending, KEEP_EVERY);
                ending = waited.expect(UNPOISONED).0;
                if !*ending {
                    let mut connection = connection.lock().expect(UNPOISONED);
                    // The next change reports that the guest does not answer.
                    let _ = connection.call(&GuestTuneRequest::Keep, |_| true);
                }
            }
        });
        Keeper {
            is_ending,
            thread: Some(thread),
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        *self.is_ending.0.lock().expect(UNPOISONED) = true;
        self.is_ending.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use weir_runtime::run_loop::Stop;
    use weir_testing::Scratch;

    use super::super::serve::{GuestOptions, serve};
    use super::*;

    /// A guest with the disks `vda` and `vdb`, of which it permits the first, behind a socket.
    struct Guest {
        block: Scratch,
        state: Scratch,
    }

    impl Guest {
        /// The socket is where QEMU's would be. The thread serves until the process ends.
        fn start(lease: Duration) -> Guest {
            let (block, state) = (Scratch::new(), Scratch::new());
            for disk in ["vda", "vdb"] {
                block.write(&format!("{disk}/queue/scheduler"), "[none]\n");
                block.write(&format!("{disk}/queue/read_ahead_kb"), "128\n");
                block.write(&format!("{disk}/mq/0/cpu_list"), "0\n");
            }
            let listener = UnixListener::bind(state.path().join("socket")).unwrap();
            let mut options = GuestOptions::new(vec!["vda".into()], &state.path().join("journals"));
            (options.block, options.lease) = (block.path().to_owned(), lease);
            std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                serve(&mut stream, &options, &Stop::new()).unwrap();
            });
            Guest { block, state }
        }

        fn begin(&self, disk: &str) -> Result<GuestSession, Failure> {
            GuestSession::begin(&self.state.path().join("socket"), disk)
        }

        fn value(&self) -> String {
            self.block.read("vda/queue/read_ahead_kb").trim().to_owned()
        }

        /// Waits until the guest has restored its settings.
        fn await_restored(&self) {
            let until = Instant::now() + Duration::from_secs(30);
            while self.value() != "128" {
                assert!(Instant::now() < until, "{}", self.value());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    fn read_ahead(value: &str) -> QueueState {
        QueueState::from([("read_ahead_kb".to_owned(), value.to_owned())])
    }

    #[test]
    fn settings_of_the_permitted_disk_are_changed_and_restored() {
        let guest = Guest::start(Duration::from_secs(60));
        let session = guest.begin("vda").unwrap();
        assert_eq!(session.present["read_ahead_kb"], "128");
        assert_eq!(session.schedulers, ["none"]);
        session.set(&read_ahead("512")).unwrap();
        assert_eq!(guest.value(), "512");
        session.set(&QueueState::new()).unwrap();
        assert_eq!(guest.value(), "128");
        let unknown = QueueState::from([("../../x".to_owned(), "1".to_owned())]);
        let error = session.set(&unknown).unwrap_err().text();
        assert!(error.contains("no setting `../../x`"), "{error}");
        session.set(&read_ahead("256")).unwrap();
        let recovery = session.restore().unwrap();
        assert_eq!((recovery.restored.len(), &*guest.value()), (1, "128"));
    }

    #[test]
    fn other_disks_are_refused() {
        let guest = Guest::start(Duration::from_secs(60));
        let error = guest.begin("vdb").unwrap_err().text();
        assert!(error.contains("it permits vda"), "{error}");
    }

    #[test]
    fn a_broken_connection_restores_the_settings() {
        let guest = Guest::start(Duration::from_secs(60));
        let session = guest.begin("vda").unwrap();
        session.set(&read_ahead("512")).unwrap();
        assert_eq!(guest.value(), "512");
        drop(session);
        guest.await_restored();
    }

    #[test]
    fn a_silent_host_loses_its_lease() {
        let guest = Guest::start(Duration::from_millis(1_500));
        let session = guest.begin("vda").unwrap();
        session.set(&read_ahead("512")).unwrap();
        // The host extends the lease every two seconds only.
        guest.await_restored();
        let error = session.set(&read_ahead("512")).unwrap_err().text();
        assert!(error.contains("no session"), "{error}");
    }
}
