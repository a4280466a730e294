//! `weir alert watch`: runs alerts, prints their events, and delivers them to receivers.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use weir_alert::actor::Actor;
use weir_alert::alert_log::AlertLog;
use weir_alert::board::AlertConsumer;
use weir_alert::event::{AlertEvent, VERSION};
use weir_alert::instances::RuleRun;
use weir_alert::notifier::Notifier;
use weir_alert::receiver::open;
use weir_alert::routes::{ReceiverEntry, RouteFile};
use weir_alert::run::{self, AlertRunOptions};
use weir_alert::state_file::StateFile;
use weir_runtime::config;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::lock::Lock;
use weir_runtime::output;
use weir_runtime::run_loop::{ProgressKind, Stop, conclude, wall_clock};
use weir_runtime::unobserved::UnobservedDevices;
use weir_sink::{SinkError, Target, Watermark, text, time};
use weir_tap::ebpf::Files;

use super::act;
use super::act_serve::{PolicyArgs, step_line};
use super::alert::{AlertFileArgs, ReadAlerts};
use crate::args::{LimitArgs, SourceArgs};

/// The interval at which states are stored beside their changes.
const STORE_EVERY: Duration = Duration::from_secs(10);

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
    weir alert watch -f alerts.cql --state /var/lib/weir/alerts --act 'batch-*'\n  \
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
    #[command(flatten)]
    actions: ActionArgs,
    /// Directory in which states, and events that were not delivered, survive a restart; streams
    /// alerts and alert_states are read from it [default: none]
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
    /// File of receivers, routes and inhibitions [default: every receiver gets every event]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["webhook", "alertmanager"])]
    routes: Option<PathBuf>,
}

impl ReceiverArgs {
    /// The receivers and routes.
    fn read(&self) -> Result<RouteFile, Failure> {
        if let Some(path) = &self.routes {
            return Ok(config::load::<RouteFile>(Some(path), "")?.config);
        }
        let entry = |option: &str, url: &String| ReceiverEntry {
            name: format!("{option} {url}"),
            webhook: (option == "--webhook").then(|| url.clone()),
            alertmanager: (option == "--alertmanager").then(|| url.clone()),
            secret: self.secret.clone().filter(|_| option == "--webhook"),
            ca: self.receiver_ca.clone(),
        };
        let webhooks = self.webhook.iter().map(|url| entry("--webhook", url));
        let others = self
            .alertmanager
            .iter()
            .map(|url| entry("--alertmanager", url));
        Ok(RouteFile {
            receivers: webhooks.chain(others).collect(),
            ..RouteFile::default()
        })
    }
}

/// What alerts may do.
#[derive(Args, Debug)]
#[command(next_help_heading = "Actions")]
struct ActionArgs {
    #[command(flatten)]
    policy: PolicyArgs,
    /// Directory of the leases of actions
    #[arg(long, value_name = "DIR", default_value = act::DIRECTORY)]
    act_state: PathBuf,
}

impl ActionArgs {
    /// The process that carries out actions.
    fn start(&self, source: &SourceArgs) -> Result<Actor, Failure> {
        let mut program: Vec<OsString> = ["/proc/self/exe", "act", "serve", "--stdin"]
            .map(Into::into)
            .into();
        let mut add = |option: &str, value: &OsStr| {
            let mut arg = OsString::from(format!("--{option}="));
            arg.push(value);
            program.push(arg);
        };
        add("state", self.act_state.as_os_str());
        let PolicyArgs {
            act,
            act_floor,
            act_targets,
        } = &self.policy;
        add("act-floor", act_floor.to_string().as_ref());
        add("act-targets", act_targets.to_string().as_ref());
        for vm in act {
            add("act", vm.as_ref());
        }
        for declared in source.declared() {
            add("declare", declared.to_string().as_ref());
        }
        let started = Actor::start(&program);
        started.map_err(|e| Failure::world(format_args!("`weir act serve` cannot be started: {e}")))
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
    let routes = args.receivers.read()?;
    let receivers = open::open(&routes.receivers, args.state.as_deref())?;
    let has_receivers = !receivers.is_empty();
    let mut notifier = Notifier::new(receivers, &routes);
    let mut log = None;
    if let Some(directory) = &args.state {
        let failed = |e: io::Error| Failure::world(format_args!("{}: {e}", directory.display()));
        notifier = notifier.with_silences(directory).map_err(failed)?;
        let runs = rules
            .iter()
            .map(|rule| RuleRun::new(rule.clone(), saved.get(&rule.name).cloned()));
        let runs: Vec<RuleRun> = runs.collect();
        log = Some(AlertLog::open(directory, &runs).map_err(failed)?);
    }
    let stop = Stop::on_signals()?;
    let actor = match rules.iter().any(|rule| rule.act.is_some()) {
        true => Some(args.actions.start(&args.source)?),
        false => None,
    };
    let unobserved = UnobservedDevices::of(&args.source);
    let watch = Watch {
        json: args.json,
        pending: args.pending,
        target: output::standard_output(args.source.is_live())?,
        notifier,
        actor,
        log,
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
            None if !has_receivers => Files::Open,
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
    notifier: Notifier,
    actor: Option<Actor>,
    log: Option<AlertLog>,
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

/// An error of something that events are passed to.
fn failed(name: &str) -> impl FnOnce(io::Error) -> SinkError {
    let name = name.to_owned();
    |error| SinkError::Io { name, error }
}

impl Watch {
    /// Prints the steps of actions.
    fn print_steps(&mut self, steps: &[Value]) -> Result<(), SinkError> {
        for step in steps {
            let line = match self.json {
                true => json!({"version": VERSION, "action": step}).to_string(),
                false => step_line(step),
            };
            self.target.put(&format!("{line}\n"))?;
        }
        match steps.is_empty() {
            true => Ok(()),
            false => self.target.flush(),
        }
    }
}

impl AlertConsumer for Watch {
    fn event(&mut self, event: &AlertEvent) -> Result<(), SinkError> {
        self.is_changed = true;
        let now = wall_clock();
        // First the receivers' files, then the state: an event may be delivered twice, but is not
        // lost.
        let is_silenced = self.notifier.event(event, now);
        if let Some(log) = &mut self.log {
            log.write(event, now, is_silenced)
                .map_err(failed("--state"))?;
        }
        if let Some(actor) = &mut self.actor {
            actor.event(event).map_err(failed("weir act serve"))?;
        }
        let line = match self.json {
            true => {
                let mut json = event.json();
                if is_silenced {
                    json["silenced"] = json!(true);
                }
                format!("{json}\n")
            }
            false => {
                let (at, line) = (time::readable(event.at), event.line());
                let silenced = if is_silenced { " (silenced)" } else { "" };
                format!("{at} {}{silenced}\n", text::shown(&line))
            }
        };
        match self.pending || event.is_reported() {
            true => self.target.put(&line),
            false => Ok(()),
        }
    }

    fn advance(&mut self, watermark: &Watermark, rules: &[RuleRun]) -> Result<(), SinkError> {
        if !std::mem::replace(&mut self.is_started, true) {
            self.notifier.start();
        }
        self.notifier.advance(wall_clock());
        if let Some(actor) = &mut self.actor {
            let advanced = actor.advance(watermark.at, rules);
            let steps = advanced.and_then(|()| actor.steps());
            let steps = steps.map_err(failed("weir act serve"))?;
            self.print_steps(&steps)?;
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
        if let Some(mut actor) = self.actor.take() {
            let (steps, is_undone) = actor.close();
            self.print_steps(&steps)?;
            if !is_undone {
                output::fail(format_args!(
                    "weir: not every action was undone; `weir act status` lists them, and `weir act \
                     undo --all` undoes them"
                ));
            }
        }
        for remark in self.notifier.close() {
            output::notice(format_args!("weir: {remark}"));
        }
        self.target.flush()
    }
}
