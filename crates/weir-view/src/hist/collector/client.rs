//! Client of a collector; starts one if necessary.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::place::Place;
use super::protocol::{Collecting, End, Order, Question, read_line};
use super::server::{READY, RUNNING};
use crate::hist::choice::Choice;
use crate::hist::counted::{By, Counted};
use crate::hist::gauge::Gauge;
use crate::hist::saved;
use weir_runtime::failure::Failure;
use weir_runtime::output;

/// The timeout for a line of a collector: loading its programs into the kernel takes time.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long to retry if one collector ends when the next is started.
const START: Duration = Duration::from_secs(30);

/// A client of the collector.
#[derive(Clone, Debug)]
pub struct Client {
    place: Place,
}

impl Client {
    /// A client of the collector at `place`, if there is one.
    pub fn new(place: Place) -> Client {
        Client { place }
    }

    /// Starts a collection, in the running collector or in a new one.
    ///
    /// # Errors
    /// The reason why it cannot be started.
    pub fn start(&self, order: &Order, program: &str) -> Result<Collecting, Failure> {
        let until = Instant::now() + START;
        while Instant::now() < until {
            match self.ask(&Question::Start(order.clone()))? {
                Some(lines) => return collecting(&lines)?.pop().ok_or_else(odd),
                None => spawn(program)?,
            }
        }
        Err(Failure::world(
            "the collector does not start: another one holds its place and does not answer",
        ))
    }

    /// What is collected now.
    ///
    /// # Errors
    /// When the collector does not answer.
    pub fn status(&self) -> Result<Vec<Collecting>, Failure> {
        self.told(&Question::Status)
    }

    /// Stops the selected collections; returns them.
    ///
    /// # Errors
    /// As [`Client::status`], or when only a part of a collection is selected.
    pub fn stop(&self, choice: &Choice) -> Result<Vec<Collecting>, Failure> {
        self.told(&Question::Stop(choice.clone()))
    }

    /// Resets the counts of the selected collections; returns them.
    ///
    /// # Errors
    /// As [`Client::stop`].
    pub fn reset(&self, choice: &Choice) -> Result<Vec<Collecting>, Failure> {
        self.told(&Question::Reset(choice.clone()))
    }

    /// The counts so far of the selection, `None` if it is not collected.
    ///
    /// # Errors
    /// As [`Client::status`].
    pub fn snapshot(&self, choice: &Choice, by: By) -> Result<Option<Counted>, Failure> {
        match self.ask(&Question::Snapshot(choice.clone(), by))? {
            Some(lines) if !lines.is_empty() => {
                let counted = saved::counted(lines.into_iter().map(Ok));
                Ok(Some(counted.map_err(|_| odd())?))
            }
            _ => Ok(None),
        }
    }

    fn told(&self, question: &Question) -> Result<Vec<Collecting>, Failure> {
        collecting(&self.ask(question)?.unwrap_or_default())
    }

    /// The lines of a response, without its end; `None` if there is no collector.
    fn ask(&self, question: &Question) -> Result<Option<Vec<String>>, Failure> {
        let socket = self.place.socket();
        let failed = |error: io::Error| {
            let remedy = match error.kind() {
                io::ErrorKind::PermissionDenied => "; ask as its user",
                _ => "",
            };
            Failure::world(format_args!(
                "the collector at {}: {error}{remedy}",
                socket.display()
            ))
        };
        let mut stream = match UnixStream::connect(&socket) {
            Ok(stream) => stream,
            Err(error) if is_gone(&error) => {
                if self.place.clear_up()? {
                    output::say(
                        "weir: the collector ended without being stopped; what it had counted is lost",
                    );
                }
                return Ok(None);
            }
            Err(error) => return Err(failed(error)),
        };
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
        let line = question.to_line() + "\n";
        if let Err(error) = stream.write_all(line.as_bytes()) {
            return if is_gone(&error) {
                Ok(None)
            } else {
                Err(failed(error))
            };
        }
        let mut from = BufReader::new(stream);
        let mut lines = Vec::new();
        loop {
            let line = match read_line(&mut from, saved::LINE_BYTES_MAX) {
                Ok(line) => line,
                Err(error) if is_gone(&error) => None,
                Err(error) => return Err(failed(error)),
            };
            // Without an end, the collector was about to exit.
            let Some(line) = line else {
                return Ok(None);
            };
            match End::of_line(&line) {
                Some(end) => return end.map(|()| Some(lines)),
                None => lines.push(line),
            }
        }
    }
}

/// The selection of a collector's counts, as a gauge.
pub struct Remote {
    /// The collector.
    pub client: Client,
    /// The selection.
    pub choice: Choice,
    /// The key of the histograms.
    pub by: By,
}

impl Gauge for Remote {
    fn snapshot(&mut self) -> Result<Counted, Failure> {
        let counted = self.client.snapshot(&self.choice, self.by)?;
        counted.ok_or_else(|| Failure::world("the collector has stopped; `weir hist -s` starts it"))
    }

    fn reset(&mut self) -> Result<(), Failure> {
        self.client.reset(&self.choice).map(|_| ())
    }
}

/// Whether an error means that the collector has ended.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
    )
}

fn odd() -> Failure {
    Failure::world(
        "the collector's answer is not understood: it is of another version; end it, and start anew",
    )
}

fn collecting(lines: &[String]) -> Result<Vec<Collecting>, Failure> {
    let all = lines.iter().map(|line| Collecting::of_line(line));
    all.collect::<Option<_>>().ok_or_else(odd)
}

/// Starts a collector and waits until it accepts connections. It is not an error if another one is
/// running.
fn spawn(program: &str) -> Result<(), Failure> {
    let cannot = |why: String| Failure::world(format_args!("the collector does not start: {why}"));
    let weir = std::env::current_exe()?;
    let mut child = Command::new(weir)
        .arg(program)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| cannot(error.to_string()))?;
    let stdout = child.stdout.take().expect("it was asked for");
    let mut word = String::new();
    // It prints a line or exits, so this ends.
    let _ = BufReader::new(stdout).read_line(&mut word);
    match word.trim_end() {
        READY => Ok(()),
        RUNNING => {
            let _ = child.wait();
            std::thread::sleep(Duration::from_millis(20));
            Ok(())
        }
        "" => {
            let status = child.wait()?;
            Err(cannot(format!("it ended at once ({status})")))
        }
        why => {
            let _ = child.wait();
            Err(cannot(why.to_owned()))
        }
    }
}
