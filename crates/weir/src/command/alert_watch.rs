//! `weir alert watch`: runs alerts, prints their events, and delivers them to receivers.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use weir_alert::board::AlertConsumer;
use weir_alert::event::{AlertEvent, fingerprint};
use weir_alert::instances::RuleRun;
use weir_alert::receiver::alertmanager_api::{self, AlertmanagerClient};
use weir_alert::receiver::webhook::Webhook;
use weir_alert::receiver::{EventSpool, HttpClient, Receiver};
use weir_alert::run::{self, AlertRunOptions};
use weir_alert::state_file::StateFile;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::lock::Lock;
use weir_runtime::output;
use weir_runtime::run_loop::{ProgressKind, Stop, conclude};
use weir_runtime::unobserved::UnobservedDevices;
use weir_sink::{SinkError, Target, Watermark, text, time};
use weir_tap::ebpf::Files;

use super::alert::{AlertFileArgs, ReadAlerts};
use crate::args::{LimitArgs, SourceArgs};

/// The interval at which states are stored beside their changes.
const STORE_EVERY: Duration = Duration::from_secs(10);

/// Minimum length of a secret, in bytes.
const SECRET_BYTES_MIN: usize = 16;

/// Watch this host with alerts
///
/// Prints a line at each change of the state of an alert, and delivers firings and their ends to
/// the receivers. Without a file, it runs the rules that come with weir. It runs until Ctrl-C or
/// for the time of --for.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir alert watch\n  \
    weir alert watch --rule stalled_disk --rule disk_errors --json\n  \
    weir alert watch -f alerts.cql --state /var/lib/weir/alerts \\\n    \
      --webhook https://example.org/hook --secret /etc/weir/hook.key\n  \
    weir alert watch --alertmanager http://localhost:9093")]
pub struct WatchArgs {
    #[command(flatten)]
    file: AlertFileArgs,
    /// Print a JSON object per change
    #[arg(short = 'j', long)]
    json: bool,
    /// Also print when an alert is pending, and when it was only that
    #[arg(long)]
    pending: bool,
    #[command(flatten)]
    receivers: ReceiverArgs,
    /// Directory in which states, and events that were not delivered, survive a restart [default:
    /// they do not]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// Where events are delivered.
#[derive(Args, Debug)]
#[command(next_help_heading = "Receivers")]
struct ReceiverArgs {
    /// Post events as JSON to this URL; may be repeated [default: no webhook]
    #[arg(long, value_name = "URL")]
    webhook: Vec<String>,
    /// File with the secret that signs what is posted to webhooks (HMAC-SHA256)
    #[arg(long, value_name = "FILE", requires = "webhook")]
    secret: Option<PathBuf>,
    /// Post alerts to the Alertmanager at this URL; may be repeated [default: no Alertmanager]
    #[arg(long, value_name = "URL")]
    alertmanager: Vec<String>,
    /// Certificates of the authorities that sign the certificates of receivers, in PEM format
    /// [default: those of the system]
    #[arg(long, value_name = "FILE")]
    receiver_ca: Option<PathBuf>,
}

impl ReceiverArgs {
    fn is_none(&self) -> bool {
        self.webhook.is_empty() && self.alertmanager.is_empty()
    }

    /// The receivers; events that wait for a webhook are stored in `directory`.
    fn open(&self, directory: Option<&Path>) -> Result<Vec<Box<dyn Receiver>>, Failure> {
        let client = |option: &str, url: &str| {
            let client = HttpClient::new(url, self.receiver_ca.as_deref());
            client.map_err(|why| Failure::words(format_args!("{option}: {why}")))
        };
        let secret = self.secret.as_deref().map(secret).transpose()?;
        let mut receivers: Vec<Box<dyn Receiver>> = Vec::new();
        for url in &self.webhook {
            let spool = match directory {
                Some(directory) => {
                    let path = directory.join(format!("webhook-{}.jsonl", fingerprint(url)));
                    EventSpool::open(&path)
                        .map_err(|e| Failure::world(format_args!("{}: {e}", path.display())))?
                }
                None => EventSpool::new(),
            };
            let client = client("--webhook", url)?;
            receivers.push(Box::new(Webhook::new(client, secret.as_deref(), spool)));
        }
        for url in &self.alertmanager {
            let url = match url.trim_end_matches('/') {
                url if url.ends_with(alertmanager_api::PATH) => url.to_owned(),
                url => format!("{url}{}", alertmanager_api::PATH),
            };
            let client = client("--alertmanager", &url)?;
            receivers.push(Box::new(AlertmanagerClient::new(client)));
        }
        Ok(receivers)
    }
}

/// The secret in a file, without the line break at its end.
fn secret(path: &Path) -> Result<Vec<u8>, Failure> {
    let name = path.display();
    let failed = |e: std::io::Error| Failure::world(format_args!("--secret {name}: {e}"));
    let mode = fs::metadata(path).map_err(failed)?.mode();
    if mode & 0o077 != 0 {
        return Err(Failure::words(format_args!(
            "--secret {name}: other users can read it; `chmod 600 {name}`"
        )));
    }
    let mut secret = fs::read(path).map_err(failed)?;
    while secret.last().is_some_and(|byte| b"\r\n".contains(byte)) {
        secret.pop();
    }
    match secret.len() >= SECRET_BYTES_MIN {
        true => Ok(secret),
        false => Err(Failure::words(format_args!(
            "--secret {name}: shorter than {SECRET_BYTES_MIN} bytes; `openssl rand -hex 32` makes \
             one"
        ))),
    }
}

pub fn run(args: &WatchArgs, verbose: bool) -> Result<Ending, Failure> {
    let ReadAlerts { file, left_out } = args.file.read(&args.source)?;
    let rules = file.rules;
    for (rule, reason) in &left_out {
        output::notice(format_args!("weir: {rule} is left out: {reason}"));
    }
    let state = args.state.as_deref().map(StateFile::new).transpose();
    let directory = args.state.clone().unwrap_or_default();
    let state = state.map_err(|e| Failure::world(format_args!("{}: {e}", directory.display())))?;
    let _lock = match &args.state {
        Some(directory) => Some(locked(directory)?),
        None => None,
    };
    let saved = match &state {
        Some(state) => {
            let definitions = rules.iter().map(|rule| (&*rule.name, &*rule.text));
            let path = state.path().display();
            state.read(definitions).map_err(|e| {
                Failure::world(format_args!(
                    "{path}: {e}; remove it to start without states"
                ))
            })?
        }
        None => Default::default(),
    };
    let receivers = args.receivers.open(args.state.as_deref())?;
    let stop = Stop::on_signals()?;
    let unobserved = UnobservedDevices::of(&args.source);
    let watch = Watch {
        json: args.json,
        pending: args.pending,
        target: output::standard_output(args.source.is_live())?,
        receivers,
        state,
        stored: Instant::now(),
        is_changed: false,
        is_started: false,
    };
    let options = AlertRunOptions {
        source: &args.source,
        query_bytes_max: args.limits.limit_memory,
        saved,
        progress: ProgressKind::Nothing,
        files: match args.state {
            Some(_) => Files::Named,
            None if args.receivers.is_none() => Files::Open,
            None => Files::OpenAndConnect,
        },
    };
    let (board, report) = run::run(rules, options, Box::new(watch), &stop)?;
    let mut board = board.lock().expect("no panic while held");
    for run in board.rules() {
        if run.refused() > 0 {
            output::notice(format_args!(
                "weir: {}: {} changes of further instances were refused; select fewer labels",
                run.rule().name,
                run.refused()
            ));
        }
    }
    match board.close() {
        Err(SinkError::Closed { .. }) => {}
        closed => closed?,
    }
    unobserved.report();
    conclude(report, verbose)
}

fn locked(directory: &Path) -> Result<Lock, Failure> {
    let name = directory.display();
    let lock = Lock::take(directory);
    let lock = lock.map_err(|e| Failure::world(format_args!("--state {name}: {e}")))?;
    lock.ok_or_else(|| {
        Failure::world(format_args!(
            "--state {name}: another `weir alert watch` uses this directory"
        ))
    })
}

/// Prints events, delivers them, and stores states.
struct Watch {
    json: bool,
    pending: bool,
    target: Target,
    receivers: Vec<Box<dyn Receiver>>,
    state: Option<StateFile>,
    stored: Instant,
    /// States changed since they were stored.
    is_changed: bool,
    /// The receivers deliver.
    is_started: bool,
}

impl Watch {
    fn store(&mut self, rules: &[RuleRun]) -> Result<(), SinkError> {
        if let Some(state) = &self.state {
            let name = state.path().display().to_string();
            let stored = state.write(rules);
            stored.map_err(|error| SinkError::Io { name, error })?;
        }
        (self.stored, self.is_changed) = (Instant::now(), false);
        Ok(())
    }
}

impl AlertConsumer for Watch {
    fn event(&mut self, event: &AlertEvent) -> Result<(), SinkError> {
        self.is_changed = true;
        // First the receivers' files, then the state: an event may be delivered twice, but is not
        // lost.
        for receiver in &mut self.receivers {
            receiver.notify(event);
        }
        let line = match self.json {
            true => format!("{}\n", event.json()),
            false => format!(
                "{} {}\n",
                time::readable(event.at),
                text::shown(&event.line())
            ),
        };
        match self.pending || event.is_reported() {
            true => self.target.put(&line),
            false => Ok(()),
        }
    }

    fn advance(&mut self, _: &Watermark, rules: &[RuleRun]) -> Result<(), SinkError> {
        if !std::mem::replace(&mut self.is_started, true) {
            self.receivers
                .iter_mut()
                .for_each(|receiver| receiver.start());
        }
        match self.is_changed || self.stored.elapsed() >= STORE_EVERY {
            true => self.store(rules),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.target.flush()
    }

    fn close(&mut self, rules: &[RuleRun]) -> Result<(), SinkError> {
        self.store(rules)?;
        for receiver in &mut self.receivers {
            if let Some(remark) = receiver.close() {
                output::notice(format_args!("weir: {remark}"));
            }
        }
        self.target.flush()
    }
}
