//! Client of a collector; starts one if necessary.

use std::io::{self, BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use weir_tap::control::{self, ControlError, ErrorCode, Peers};

use super::folder::CollectorFolder;
use super::messages::{
    Collecting, CollectionRequest, Collector, CollectorRequest, CollectorResponse,
};
use super::server::{READY, RUNNING};
use crate::hist::choice::HistogramChoice;
use crate::hist::counted::{CountedHistograms, HistogramKey};
use crate::hist::gauge::Gauge;
use crate::hist::saved;
use weir_runtime::failure::Failure;
use weir_runtime::output;

/// The timeout of each message of a collector: loading its programs into the kernel takes time.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long to retry if one collector ends when the next is started.
const START: Duration = Duration::from_secs(30);

/// A client of the collector.
#[derive(Clone, Debug)]
pub struct CollectorClient {
    place: CollectorFolder,
}

impl CollectorClient {
    /// A client of the collector at `place`, if there is one.
    pub fn new(place: CollectorFolder) -> CollectorClient {
        CollectorClient { place }
    }

    /// Starts a collection, in the running collector or in a new one.
    ///
    /// # Errors
    /// The reason why it cannot be started.
    pub fn start(&self, order: &CollectionRequest, program: &str) -> Result<Collecting, Failure> {
        let until = Instant::now() + START;
        while Instant::now() < until {
            match self.request(&CollectorRequest::Start(order.clone()))? {
                Some(response) => return collections(response)?.pop().ok_or_else(invalid),
                None => spawn(program)?,
            }
        }
        Err(Failure::world(
            "the collector cannot start: another collector is running and does not respond",
        ))
    }

    /// What is collected now.
    ///
    /// # Errors
    /// When the collector does not answer.
    pub fn status(&self) -> Result<Vec<Collecting>, Failure> {
        self.collections(&CollectorRequest::Status)
    }

    /// Stops the selected collections; returns them.
    ///
    /// # Errors
    /// As [`CollectorClient::status`], or when only a part of a collection is selected.
    pub fn stop(&self, choice: &HistogramChoice) -> Result<Vec<Collecting>, Failure> {
        self.collections(&CollectorRequest::Stop(choice.clone()))
    }

    /// Resets the counts of the selected collections; returns them.
    ///
    /// # Errors
    /// As [`CollectorClient::stop`].
    pub fn reset(&self, choice: &HistogramChoice) -> Result<Vec<Collecting>, Failure> {
        self.collections(&CollectorRequest::Reset(choice.clone()))
    }

    /// The counts so far of the selection, `None` if it is not collected.
    ///
    /// # Errors
    /// As [`CollectorClient::status`].
    pub fn snapshot(
        &self,
        choice: &HistogramChoice,
        by: HistogramKey,
    ) -> Result<Option<CountedHistograms>, Failure> {
        let choice = choice.clone();
        let response = self.request(&CollectorRequest::Snapshot { choice, by })?;
        let mut lines = Vec::new();
        for part in response.unwrap_or_default() {
            match part {
                CollectorResponse::Histograms(part) => lines.extend(part),
                CollectorResponse::Collections(_) => return Err(invalid()),
            }
        }
        if lines.is_empty() {
            return Ok(None);
        }
        let counted = saved::counted(lines.into_iter().map(Ok));
        counted.map(Some).map_err(|_| invalid())
    }

    fn collections(&self, request: &CollectorRequest) -> Result<Vec<Collecting>, Failure> {
        self.request(request)?.map_or(Ok(Vec::new()), collections)
    }

    /// The parts of a response; `None` if there is no collector.
    fn request(
        &self,
        request: &CollectorRequest,
    ) -> Result<Option<Vec<CollectorResponse>>, Failure> {
        let socket = self.place.socket();
        let failed = |error: ControlError| match error {
            ControlError::Service(error) if error.code == ErrorCode::Usage => {
                Failure::words(error.message)
            }
            ControlError::Service(error) if error.code == ErrorCode::Failed => {
                Failure::world(error.message)
            }
            error => {
                let remedy = match &error {
                    ControlError::System(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                        "; ask as its user"
                    }
                    _ => "",
                };
                let socket = socket.display();
                Failure::world(format_args!("the collector at {socket}: {error}{remedy}"))
            }
        };
        let connected =
            control::ControlClient::<Collector>::connect(&socket, Peers::OwnUser, RESPONSE_TIMEOUT);
        let mut connection = match connected {
            Ok(connection) => connection,
            Err(ControlError::System(error)) if is_gone(&error) => {
                if self.place.clear_up()? {
                    output::notice("weir: the collector was killed; its histograms are lost");
                }
                return Ok(None);
            }
            Err(error) => return Err(failed(error)),
        };
        match connection.request_parts(request, Vec::new()) {
            // The collector was about to exit.
            Err(ControlError::Closed) => Ok(None),
            other => other.map(Some).map_err(failed),
        }
    }
}

/// The selection of a collector's counts, as a gauge.
pub struct Remote {
    /// The collector.
    pub client: CollectorClient,
    /// The selection.
    pub choice: HistogramChoice,
    /// The key of the histograms.
    pub by: HistogramKey,
}

impl Gauge for Remote {
    fn snapshot(&mut self) -> Result<CountedHistograms, Failure> {
        let counted = self.client.snapshot(&self.choice, self.by)?;
        counted.ok_or_else(|| {
            Failure::world(
                "the collector has ended; start it with `weir hist \
                                              -s`",
            )
        })
    }

    fn reset(&mut self) -> Result<(), Failure> {
        self.client.reset(&self.choice).map(|_| ())
    }
}

/// Whether an error means that there is no collector.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(error.kind(), Kind::NotFound | Kind::ConnectionRefused)
}

fn invalid() -> Failure {
    Failure::world(
        "the collector's response is not one to this request; stop it with `kill`, and start it again",
    )
}

/// The collections in a response.
fn collections(response: Vec<CollectorResponse>) -> Result<Vec<Collecting>, Failure> {
    match <[CollectorResponse; 1]>::try_from(response) {
        Ok([CollectorResponse::Collections(collections)]) => Ok(collections),
        _ => Err(invalid()),
    }
}

/// Starts a collector and waits until it accepts connections. It is not an error if another one is
/// running.
fn spawn(program: &str) -> Result<(), Failure> {
    let cannot = |why: String| Failure::world(format_args!("the collector cannot start: {why}"));
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
