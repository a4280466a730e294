//! [`FleetAlerts`]: the alerts that run at the monitor, over the rows of its agents.
//!
//! Each rule is a query of the monitor, whose results go to the [`Board`] of the rules. Its events
//! go to the receivers, to a file, and back to the monitor as stream `alerts` and relation
//! `alert_states`. What they do is carried out by the agent of its host. States are stored, so that
//! no instance fires a second time after a restart of the monitor. The instances of a host
//! whose agent is silent are unknown; without a label `host`, all instances of the rule.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weir_model::alert::AlertChange;
use weir_model::{Batch, Catalog, NANOS_PER_SECOND, Nanos, Symbol};
use weir_monitor::{
    FleetCompleteness, Monitor, Prepared, Publisher, PublisherLimits, ResultObserver,
};
use weir_query::CheckOptions;
use weir_query::alert::{AlertFile, AlertRule, compile_alerts};
use weir_query::engine::QueryId;
use weir_runtime::config;
use weir_runtime::failure::Failure;
use weir_runtime::output;
use weir_runtime::question::QueryText;
use weir_runtime::run_loop::wall_clock;
use weir_sink::{Sink, SinkError, Watermark};

use crate::alert_log::{self, AlertLog};
use crate::board::{AlertConsumer, Board};
use crate::event::AlertEvent;
use crate::fleet_actions::{FILE as ACTIONS_FILE, FleetActions, HOST_LABEL};
use crate::instances::RuleRun;
use crate::notifier::Notifier;
use crate::receiver::open;
use crate::routes::RouteFile;
use crate::state_file::StateFile;

/// The interval at which states are stored beside their changes.
const STORE_EVERY: Duration = Duration::from_secs(10);

/// How long instances are unknown after a restart, so that agents have connected again.
const RECONNECT_NS: Nanos = 10 * NANOS_PER_SECOND;

/// The limits of a rule's query; it has no clients.
const LIMITS: PublisherLimits = PublisherLimits {
    clients_max: 0,
    backlog_bytes_max: 0,
    snapshot_bytes_max: 64 << 20,
    rows_per_second_max: usize::MAX,
};

/// Checked alerts of a fleet with their routes.
pub struct FleetAlertFile {
    file: AlertFile,
    routes: RouteFile,
    /// The texts of both files.
    texts: [String; 2],
}

impl FleetAlertFile {
    /// Reads a file of alerts, and one of routes.
    ///
    /// # Errors
    /// All errors of the first file that has some.
    pub fn read(alerts: &Path, routes: Option<&Path>) -> Result<FleetAlertFile, Failure> {
        let text = QueryText::read(alerts)?;
        let file = compile_alerts(&text.text, &Catalog::builtin(), &CheckOptions::live());
        let file = file.map_err(|diagnostics| text.failure(&diagnostics))?;
        let has_host = |rule: &AlertRule| {
            let mut labels = rule.labels.iter();
            labels.any(|(name, _)| name.eq_ignore_ascii_case(HOST_LABEL))
        };
        let mut rules = file.rules.iter();
        if let Some(rule) = rules.find(|rule| rule.act.is_some() && !has_host(rule)) {
            return Err(Failure::words(format_args!(
                "{}: the alert `{}` has ACT, and no label `host`, on which it is carried out; \
                 group by host and vm, and have host as a label",
                alerts.display(),
                rule.name
            )));
        }
        let (routes, text_of_routes) = match routes {
            Some(path) => {
                let routes = config::load::<RouteFile>(Some(path), "")?.config;
                (routes, std::fs::read_to_string(path)?)
            }
            None => (RouteFile::default(), String::new()),
        };
        Ok(FleetAlertFile {
            file,
            routes,
            texts: [text.text, text_of_routes],
        })
    }

    /// The queries of the rules.
    ///
    /// # Errors
    /// When the monitor cannot run one of them.
    fn prepared(&self, monitor: &Monitor) -> Result<Vec<Prepared>, Failure> {
        let prepared = self.file.rules.iter().map(|rule| {
            let prepared = Prepared::of_plan(&rule.plan, monitor);
            prepared.map_err(|refusal| refused(&rule.name, &refusal.to_string()))
        });
        prepared.collect()
    }
}

fn refused(rule: &str, why: &str) -> Failure {
    Failure::words(format_args!("alert `{rule}`: {why}"))
}

/// See the module's documentation.
pub struct FleetAlerts {
    board: Arc<Mutex<Board>>,
    reported: Arc<Mutex<Vec<AlertChange>>>,
    actions: Arc<Mutex<FleetActions>>,
    /// Their queries.
    queries: Vec<QueryId>,
    /// Another file replaces them: the end of their queries is no failure.
    is_replaced: Arc<AtomicBool>,
    texts: [String; 2],
}

impl FleetAlerts {
    /// Replaces `current` by the alerts of a file, unless their texts are equal; true if it did.
    /// Rules with the same text continue from their states, as after a restart of the monitor.
    ///
    /// # Errors
    /// When a rule cannot run: then nothing has changed. When a file cannot be used: then no alert
    /// runs.
    pub fn replace(
        current: &mut Option<FleetAlerts>,
        file: Option<FleetAlertFile>,
        directory: &Path,
        monitor: &mut Monitor,
        now: Nanos,
    ) -> Result<bool, Failure> {
        let texts = file.as_ref().map(|file| &file.texts);
        if current.as_ref().map(|alerts| &alerts.texts) == texts {
            return Ok(false);
        }
        if let Some(file) = &file {
            file.prepared(monitor)?;
        }
        let before = match current.take() {
            Some(alerts) => alerts.stop(monitor),
            None => HashSet::new(),
        };
        let started = file.map(|file| FleetAlerts::start(file, directory, monitor, now));
        let started = started.transpose();
        let kept = match &started {
            Ok(Some(alerts)) => alerts.acting_hosts(),
            _ => HashSet::new(),
        };
        for host in before.difference(&kept) {
            monitor.set_actions(*host, Vec::new(), now);
        }
        *current = started?;
        Ok(true)
    }

    /// The hosts on which actions should last.
    fn acting_hosts(&self) -> HashSet<Symbol> {
        self.actions.lock().expect("no panic while held").hosts()
    }

    /// Stops the alerts; returns the hosts on which their actions last.
    fn stop(mut self, monitor: &mut Monitor) -> HashSet<Symbol> {
        self.advance(monitor);
        self.close();
        self.is_replaced.store(true, Ordering::Relaxed);
        for query in &self.queries {
            monitor.stop(*query, "the file of alerts was replaced");
        }
        monitor.clear_alerts();
        self.acting_hosts()
    }

    /// Starts the alerts, with their states in `directory`.
    ///
    /// # Errors
    /// When a file cannot be used, or a rule cannot run.
    pub fn start(
        alerts: FleetAlertFile,
        directory: &Path,
        monitor: &mut Monitor,
        now: Nanos,
    ) -> Result<FleetAlerts, Failure> {
        let prepared = alerts.prepared(monitor)?;
        let FleetAlertFile {
            file,
            routes,
            texts,
        } = alerts;
        let failed = |path: &Path, error: std::io::Error| {
            Failure::world(format_args!("{}: {error}", path.display()))
        };
        let state = StateFile::new(directory).map_err(|e| failed(directory, e))?;
        let definitions = file.rules.iter().map(|rule| (&*rule.name, &*rule.text));
        let saved = state.read(definitions);
        let mut saved = saved.map_err(|e| failed(state.path(), e))?;
        let runs = file.rules.iter().map(|rule| {
            let saved = saved.remove(&rule.name);
            RuleRun::new(rule.clone(), saved).with_grace(RECONNECT_NS)
        });
        let runs: Vec<RuleRun> = runs.collect();
        let log = AlertLog::open(directory, &runs).map_err(|e| failed(directory, e))?;
        log.present()
            .for_each(|instance| monitor.restore_alert(instance));
        let actions = FleetActions::open(directory, &runs);
        let actions = actions.map_err(|e| failed(&directory.join(ACTIONS_FILE), e))?;
        let actions = Arc::new(Mutex::new(actions));
        let receivers = open::open(&routes.receivers, Some(directory))?;
        let notifier = Notifier::new(receivers, &routes).with_silences(directory);
        let mut notifier = notifier.map_err(|e| failed(directory, e))?;
        notifier.start();
        let reported: Arc<Mutex<Vec<AlertChange>>> = Arc::default();
        let consumer = FleetConsumer {
            notifier,
            log,
            state,
            directory: directory.to_owned(),
            reported: reported.clone(),
            actions: actions.clone(),
            stored: Instant::now(),
            is_changed: false,
        };
        let (board, sinks) = Board::new(runs, Box::new(consumer));
        let is_replaced = Arc::<AtomicBool>::default();
        let mut queries = Vec::new();
        let rules = file.rules.iter().zip(prepared).zip(sinks);
        for (at, ((rule, prepared), sink)) in rules.enumerate() {
            let observer = RuleObserver {
                rule: at,
                board: board.clone(),
                sink,
                begin: now,
                failed: (0, 0),
                is_replaced: is_replaced.clone(),
            };
            let publisher = Publisher::new(prepared.answer.clone(), LIMITS, Vec::new());
            let publisher = publisher.observed_by(Box::new(observer));
            let name = format!("alert {}", rule.name);
            let started = monitor.start(&name, &prepared.cut, false, publisher, now);
            queries.push(started.map_err(|error| refused(&rule.name, &error.to_string()))?);
        }
        let mut alerts = FleetAlerts {
            board,
            reported,
            actions,
            queries,
            is_replaced,
            texts,
        };
        // Agents that connect again receive what lasted before a restart.
        alerts.advance(monitor);
        Ok(alerts)
    }

    /// Passes the changes since the last call to the monitor: for its streams, and for the agents.
    pub fn advance(&mut self, monitor: &mut Monitor) {
        let reported = std::mem::take(&mut *self.reported.lock().expect("no panic while held"));
        for change in reported {
            monitor.report_alert(change);
        }
        let changes = self.actions.lock().expect("no panic while held").changes();
        for (host, actions) in changes {
            monitor.set_actions(host, actions, wall_clock());
        }
    }

    /// Stores the states, and delivers what waits.
    pub fn close(&mut self) {
        let closed = self.board.lock().expect("no panic while held").close();
        if let Err(error) = closed {
            output::fail(format_args!("weir: alerts: {error}"));
        }
    }
}

/// The results of a rule's query, for its part of the board.
struct RuleObserver {
    rule: usize,
    board: Arc<Mutex<Board>>,
    sink: Box<dyn Sink>,
    begin: Nanos,
    /// How many hosts could not run the query, and how often there were more than before.
    failed: (u64, i64),
    /// As in [`FleetAlerts`].
    is_replaced: Arc<AtomicBool>,
}

impl RuleObserver {
    fn report(&self, outcome: Result<(), SinkError>) {
        if let Err(error) = outcome {
            output::notice(format_args!("weir: alerts: {error}"));
        }
    }
}

impl ResultObserver for RuleObserver {
    fn write(&mut self, batch: &Batch) {
        let written = self.sink.write(batch);
        self.report(written);
    }

    fn complete(&mut self, completeness: &FleetCompleteness, silent: &BTreeSet<String>) {
        {
            let mut board = self.board.lock().expect("no panic while held");
            board.set_silent(self.rule, silent);
        }
        if completeness.hosts_failed > self.failed.0 {
            self.failed.1 += 1;
        }
        self.failed.0 = completeness.hosts_failed;
        let requests = completeness
            .rows_lost
            .saturating_add(completeness.rows_late);
        let watermark = Watermark {
            begin: self.begin,
            at: completeness.at,
            missed: i64::try_from(requests)
                .unwrap_or(i64::MAX)
                .saturating_add(self.failed.1),
        };
        let advanced = self.sink.advance(&watermark);
        self.report(advanced);
    }

    fn end(&mut self, why: &str) {
        if !self.is_replaced.load(Ordering::Relaxed) {
            let ended = self.sink.fail(why);
            self.report(ended);
        }
    }
}

/// Where the events of the fleet's alerts go.
struct FleetConsumer {
    notifier: Notifier,
    log: AlertLog,
    state: StateFile,
    directory: PathBuf,
    reported: Arc<Mutex<Vec<AlertChange>>>,
    actions: Arc<Mutex<FleetActions>>,
    stored: Instant,
    is_changed: bool,
}

impl FleetConsumer {
    fn store(&mut self, rules: &[RuleRun]) -> Result<(), SinkError> {
        let name = self.state.path().display().to_string();
        let stored = self.state.write(rules);
        (self.stored, self.is_changed) = (Instant::now(), false);
        stored.map_err(|error| SinkError::Io { name, error })
    }

    /// An error of a file in the directory.
    fn failed(&self) -> impl FnOnce(std::io::Error) -> SinkError + use<> {
        let name = self.directory.display().to_string();
        |error| SinkError::Io { name, error }
    }
}

impl AlertConsumer for FleetConsumer {
    fn event(&mut self, event: &AlertEvent) -> Result<(), SinkError> {
        self.is_changed = true;
        let now = wall_clock();
        let is_silenced = self.notifier.event(event, now);
        let row = alert_log::row(event, now, is_silenced);
        self.reported.lock().expect("no panic while held").push(row);
        let written = self.log.write(event, now, is_silenced);
        written.map_err(self.failed())?;
        let acted = self
            .actions
            .lock()
            .expect("no panic while held")
            .event(event);
        acted.map_err(self.failed())
    }

    fn advance(&mut self, watermark: &Watermark, rules: &[RuleRun]) -> Result<(), SinkError> {
        self.notifier.advance(wall_clock());
        let mut actions = self.actions.lock().expect("no panic while held");
        let judged = actions.advance(watermark.at, rules);
        drop(actions);
        judged.map_err(self.failed())?;
        match self.is_changed || self.stored.elapsed() >= STORE_EVERY {
            true => self.store(rules),
            false => Ok(()),
        }
    }

    fn close(&mut self, rules: &[RuleRun]) -> Result<(), SinkError> {
        self.store(rules)?;
        for remark in self.notifier.close() {
            output::notice(format_args!("weir: {remark}"));
        }
        Ok(())
    }
}
