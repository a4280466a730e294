//! [`FleetAlerts`]: the alerts that run at the monitor, over the rows of its agents.
//!
//! Each rule is a query of the monitor, whose results go to the [`Board`] of the rules. Its events
//! go to the receivers, to a file, and back to the monitor as stream `alerts` and relation
//! `alert_states`. What they do is carried out by the agent of its host. States are stored, so that
//! no instance fires a second time after a restart of the monitor. The instances of a host
//! whose agent is silent are unknown; without a label `host`, all instances of the rule.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tracing::warn;
use weir_model::alert::AlertChange;
use weir_model::{Batch, Catalog, NANOS_PER_SECOND, Nanos};
use weir_monitor::{
    FleetCompleteness, Monitor, Prepared, Publisher, PublisherLimits, ResultObserver,
};
use weir_query::CheckOptions;
use weir_query::alert::{AlertRule, compile_alerts};
use weir_query::engine::QueryId;
use weir_runtime::config;
use weir_runtime::failure::Failure;
use weir_runtime::output;
use weir_runtime::question::QueryText;
use weir_runtime::run_loop::wall_clock;
use weir_sink::{Sink, SinkError, Watermark};

use crate::alert_log::{self, AlertLog};
use crate::board::{AlertConsumer, Board, RuleId};
use crate::event::AlertEvent;
use crate::fleet_actions::{FILE as ACTIONS_FILE, FleetActions, HOST_LABEL};
use crate::instances::RuleRun;
use crate::machine::AlertState;
use crate::notifier::Notifier;
use crate::placed::{PlacedAlert, PlacedAlerts};
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
#[derive(Default)]
pub struct FleetAlertFile {
    rules: Vec<AlertRule>,
    routes: RouteFile,
    text_of_routes: String,
}

impl FleetAlertFile {
    /// Reads a file of alerts, and one of routes.
    ///
    /// # Errors
    /// All errors of the first file that has some.
    pub fn read(alerts: Option<&Path>, routes: Option<&Path>) -> Result<FleetAlertFile, Failure> {
        let mut file = FleetAlertFile::default();
        if let Some(path) = alerts {
            let text = QueryText::read(path)?;
            let read = compile_alerts(&text.text, &Catalog::builtin(), &CheckOptions::live());
            file.rules = read.map_err(|d| text.failure(&d))?.rules;
            let acting = file.rules.iter().try_for_each(check_acting);
            let name = path.display();
            acting.map_err(|why| Failure::words(format_args!("{name}: {why}")))?;
        }
        if let Some(path) = routes {
            file.routes = config::load::<RouteFile>(Some(path), "")?.config;
            file.text_of_routes = std::fs::read_to_string(path)?;
        }
        Ok(file)
    }
}

/// Checks that an alert that acts has a host on which it does.
pub(crate) fn check_acting(rule: &AlertRule) -> Result<(), String> {
    let is_host = |(name, _): &(String, usize)| name.eq_ignore_ascii_case(HOST_LABEL);
    match rule.act.is_none() || rule.labels.iter().any(is_host) {
        true => Ok(()),
        false => Err(format!(
            "the alert `{}` has ACT, and no label `host`, on which it is carried out; group by \
             host and vm, and have host as a label",
            rule.name
        )),
    }
}

fn refused(rule: &str, why: &str) -> Failure {
    Failure::words(format_args!("alert `{rule}`: {why}"))
}

/// See the module's documentation.
pub struct FleetAlerts {
    directory: PathBuf,
    board: Arc<Mutex<Board>>,
    notifier: Arc<Mutex<Notifier>>,
    reported: Arc<Mutex<Vec<AlertChange>>>,
    actions: Arc<Mutex<FleetActions>>,
    running: Vec<RunningRule>,
    text_of_routes: String,
    /// The rules of the file.
    of_file: Vec<AlertRule>,
    placed: PlacedAlerts,
    /// Actions could not be stored at the last attempt.
    is_unwritable: bool,
}

/// A rule whose query runs.
struct RunningRule {
    rule: AlertRule,
    id: RuleId,
    query: QueryId,
    /// It was removed: the end of its query is no failure.
    is_removed: Arc<AtomicBool>,
}

impl FleetAlerts {
    /// Starts the alerts of a file and those that clients have placed, with their states in
    /// `directory`.
    ///
    /// # Errors
    /// When a file cannot be used, or a rule of the file cannot run.
    pub fn start(
        file: FleetAlertFile,
        directory: &Path,
        monitor: &mut Monitor,
        now: Nanos,
    ) -> Result<FleetAlerts, Failure> {
        let failed = |path: &Path, error: std::io::Error| {
            Failure::world(format_args!("{}: {error}", path.display()))
        };
        let state = StateFile::new(directory).map_err(|e| failed(directory, e))?;
        let placed = PlacedAlerts::open(directory).map_err(|e| failed(directory, e))?;
        let rules = with_placed(&file.rules, &placed);
        let definitions = rules.iter().map(|rule| (&*rule.name, &*rule.text));
        let saved = state.read(definitions);
        let mut saved = saved.map_err(|e| failed(state.path(), e))?;
        let runs = rules.iter().map(|rule| {
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
        let mut notifier = notifier(&file.routes, directory)?;
        notifier.start();
        let notifier = Arc::new(Mutex::new(notifier));
        let reported: Arc<Mutex<Vec<AlertChange>>> = Arc::default();
        let consumer = FleetConsumer {
            notifier: notifier.clone(),
            log,
            state,
            directory: directory.to_owned(),
            reported: reported.clone(),
            actions: actions.clone(),
            stored: Instant::now(),
            is_changed: false,
        };
        let (board, _) = Board::new(Vec::new(), Box::new(consumer));
        let mut alerts = FleetAlerts {
            directory: directory.to_owned(),
            board,
            notifier,
            reported,
            actions,
            running: Vec::new(),
            text_of_routes: file.text_of_routes,
            of_file: file.rules,
            placed,
            is_unwritable: false,
        };
        for run in runs {
            let name = run.rule().name.clone();
            match alerts.begin(run, monitor, now) {
                Err(failure) if !alerts.is_of_file(&name) => {
                    warn!(alert = name, reason = %failure.text(), "a placed alert does not run");
                }
                started => alerts.running.push(started?),
            }
        }
        // Agents that connect again receive what lasted before a restart.
        alerts.advance(monitor);
        Ok(alerts)
    }

    /// Runs the alerts of another file; true if there is a difference. Rules with the same text
    /// continue undisturbed; the instances of those that are removed or changed clear.
    ///
    /// # Errors
    /// When a file cannot be used or a rule cannot run: then nothing has changed.
    pub fn reload(
        &mut self,
        file: FleetAlertFile,
        monitor: &mut Monitor,
        now: Nanos,
    ) -> Result<bool, Failure> {
        let has_routes = file.text_of_routes != self.text_of_routes;
        if has_routes {
            // Receivers that cannot be opened are an error before anything changes.
            notifier(&file.routes, &self.directory)?;
        }
        let rules = with_placed(&file.rules, &self.placed);
        let has_rules = self.replace_rules(rules, monitor, now)?;
        if has_routes {
            let mut current = self.notifier.lock().expect("no panic while held");
            // What waits is in its files before they are read again.
            print_remarks(&mut current);
            *current = notifier(&file.routes, &self.directory)?;
            current.start();
            drop(current);
            self.text_of_routes = file.text_of_routes;
        }
        self.of_file = file.rules;
        Ok(has_rules || has_routes)
    }

    /// Makes these the rules that run; true if there is a difference.
    ///
    /// # Errors
    /// When one of them cannot run: then nothing has changed.
    fn replace_rules(
        &mut self,
        rules: Vec<AlertRule>,
        monitor: &mut Monitor,
        now: Nanos,
    ) -> Result<bool, Failure> {
        let runs = |rule: &&AlertRule| {
            let mut running = self.running.iter();
            running.any(|run| is_same(&run.rule, rule))
        };
        let added: Vec<AlertRule> = rules.iter().filter(|rule| !runs(rule)).cloned().collect();
        let mut started = Vec::new();
        for rule in added {
            match self.begin(RuleRun::new(rule, None), monitor, now) {
                Ok(run) => started.push(run),
                Err(failure) => {
                    started
                        .into_iter()
                        .for_each(|run| self.end(run, monitor, now));
                    return Err(failure);
                }
            }
        }
        let is_kept = |run: &RunningRule| rules.iter().any(|rule| is_same(rule, &run.rule));
        let (kept, removed): (Vec<RunningRule>, Vec<RunningRule>) =
            self.running.drain(..).partition(is_kept);
        self.running = kept;
        let is_changed = !removed.is_empty() || !started.is_empty();
        self.running.extend(started);
        removed
            .into_iter()
            .for_each(|run| self.end(run, monitor, now));
        self.advance(monitor);
        Ok(is_changed)
    }

    /// Ends the query of a rule, whose instances clear.
    fn end(&self, run: RunningRule, monitor: &mut Monitor, now: Nanos) {
        run.is_removed.store(true, Ordering::Relaxed);
        monitor.stop(run.query, "the alert was removed");
        let mut board = self.board.lock().expect("no panic while held");
        if let Err(error) = board.remove(run.id, now) {
            output::notice(format_args!("weir: alerts: {error}"));
        }
    }

    /// Starts the query of a rule.
    fn begin(
        &self,
        run: RuleRun,
        monitor: &mut Monitor,
        now: Nanos,
    ) -> Result<RunningRule, Failure> {
        let rule = run.rule().clone();
        let failed = |why: String| refused(&rule.name, &why);
        let prepared = Prepared::of_plan(&rule.plan, monitor);
        let prepared = prepared.map_err(|refusal| failed(refusal.to_string()))?;
        let (id, sink) = Board::add(&self.board, run);
        let is_removed = Arc::<AtomicBool>::default();
        let observer = RuleObserver {
            rule: id,
            board: self.board.clone(),
            sink,
            begin: now,
            failed: (0, 0),
            is_removed: is_removed.clone(),
        };
        let publisher = Publisher::new(prepared.answer.clone(), LIMITS, Vec::new());
        let publisher = publisher.observed_by(Box::new(observer));
        let name = format!("alert {}", rule.name);
        match monitor.start(&name, &prepared.cut, false, publisher, now) {
            Ok(query) => Ok(RunningRule {
                rule,
                id,
                query,
                is_removed,
            }),
            Err(error) => {
                let mut board = self.board.lock().expect("no panic while held");
                board.remove(id, now)?;
                Err(failed(error.to_string()))
            }
        }
    }

    /// Passes the changes since the last call to the monitor: for its streams, and for the agents.
    pub fn advance(&mut self, monitor: &mut Monitor) {
        if self.running.is_empty() {
            // No watermark of a rule delivers what waits of removed ones.
            let mut notifier = self.notifier.lock().expect("no panic while held");
            notifier.advance(wall_clock());
        }
        let reported = std::mem::take(&mut *self.reported.lock().expect("no panic while held"));
        for change in reported {
            monitor.report_alert(change);
        }
        let mut actions = self.actions.lock().expect("no panic while held");
        let saved = actions.save();
        for (host, actions) in actions.changes(wall_clock()) {
            monitor.set_actions(host, actions, wall_clock());
        }
        drop(actions);
        // It is tried again at each call, and reported once.
        let was_unwritable = std::mem::replace(&mut self.is_unwritable, saved.is_err());
        if let Err(error) = saved
            && !was_unwritable
        {
            let directory = self.directory.display();
            warn!(%directory, %error, "the actions of alerts are not stored");
        }
    }

    /// Stores the states, and delivers what waits.
    pub fn close(&mut self) {
        let closed = self.board.lock().expect("no panic while held").close();
        if let Err(error) = closed {
            output::fail(format_args!("weir: alerts: {error}"));
        }
    }

    /// The directory of the states.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether the file has an alert of this name.
    pub(crate) fn is_of_file(&self, name: &str) -> bool {
        has_name(&self.of_file, name)
    }

    /// The alerts that clients have placed.
    pub(crate) fn placed(&self) -> &PlacedAlerts {
        &self.placed
    }

    /// The same, to be changed; [`FleetAlerts::run_rules`] applies the change.
    pub(crate) fn placed_mut(&mut self) -> &mut PlacedAlerts {
        &mut self.placed
    }

    /// Runs the rules of the file and those that clients have placed, as they are now.
    ///
    /// # Errors
    /// When one of them cannot run: then nothing has changed.
    pub(crate) fn run_rules(&mut self, monitor: &mut Monitor, now: Nanos) -> Result<(), Failure> {
        let rules = with_placed(&self.of_file, &self.placed);
        self.replace_rules(rules, monitor, now).map(drop)
    }

    /// The rules that run, with the instances that are not clear.
    pub(crate) fn states(&self) -> Vec<(AlertRule, Vec<(String, AlertState)>)> {
        let board = self.board.lock().expect("no panic while held");
        let states = |run: &RuleRun| {
            let states = run.states();
            let states = states.map(|(key, state)| (run.instance(key), state));
            (run.rule().clone(), states.collect())
        };
        board.rules().iter().map(states).collect()
    }
}

/// Whether two rules have the same definition.
fn is_same(one: &AlertRule, other: &AlertRule) -> bool {
    (&one.name, &one.text) == (&other.name, &other.text)
}

/// The rules of the file, and those that clients have placed; placed ones that cannot run are
/// logged.
fn with_placed(of_file: &[AlertRule], placed: &PlacedAlerts) -> Vec<AlertRule> {
    let rule = |alert: &PlacedAlert| {
        let rule = match has_name(of_file, &alert.name) {
            true => Err("the file of the monitor has an alert of that name".to_owned()),
            false => alert.rule(),
        };
        rule.inspect_err(|why| {
            warn!(
                alert = alert.name,
                reason = why,
                "a placed alert does not run"
            );
        })
        .ok()
    };
    let placed = placed.alerts().iter().filter_map(rule);
    of_file.iter().cloned().chain(placed).collect()
}

/// Whether one of the rules has this name.
fn has_name(rules: &[AlertRule], name: &str) -> bool {
    let mut rules = rules.iter();
    rules.any(|rule| rule.name.eq_ignore_ascii_case(name))
}

/// The receivers of a file of routes.
fn notifier(routes: &RouteFile, directory: &Path) -> Result<Notifier, Failure> {
    let receivers = open::open(&routes.receivers, Some(directory))?;
    let notifier = Notifier::new(receivers, routes).with_silences(directory);
    notifier.map_err(|e| Failure::world(format_args!("{}: {e}", directory.display())))
}

/// Ends the receivers, and prints what was not delivered.
fn print_remarks(notifier: &mut Notifier) {
    for remark in notifier.close() {
        output::notice(format_args!("weir: {remark}"));
    }
}

/// The results of a rule's query, for its part of the board.
struct RuleObserver {
    rule: RuleId,
    board: Arc<Mutex<Board>>,
    sink: Box<dyn Sink>,
    begin: Nanos,
    /// How many hosts could not run the query, and how often there were more than before.
    failed: (u64, i64),
    /// As in [`RunningRule`].
    is_removed: Arc<AtomicBool>,
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
        if !self.is_removed.load(Ordering::Relaxed) {
            let mut board = self.board.lock().expect("no panic while held");
            let ended = board.fail(self.rule, why);
            drop(board);
            self.report(ended);
        }
    }
}

/// Where the events of the fleet's alerts go.
struct FleetConsumer {
    notifier: Arc<Mutex<Notifier>>,
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
}

impl AlertConsumer for FleetConsumer {
    fn event(&mut self, event: &AlertEvent) -> Result<(), SinkError> {
        self.is_changed = true;
        let now = wall_clock();
        let mut notifier = self.notifier.lock().expect("no panic while held");
        let is_silenced = notifier.event(event, now);
        drop(notifier);
        let row = alert_log::row(event, now, is_silenced);
        self.reported.lock().expect("no panic while held").push(row);
        let written = self.log.write(event, now, is_silenced);
        let mut actions = self.actions.lock().expect("no panic while held");
        actions.event(event);
        drop(actions);
        let name = self.directory.display().to_string();
        written.map_err(|error| SinkError::Io { name, error })
    }

    fn advance(&mut self, watermark: &Watermark, rules: &[RuleRun]) -> Result<(), SinkError> {
        let mut notifier = self.notifier.lock().expect("no panic while held");
        notifier.advance(wall_clock());
        drop(notifier);
        let mut actions = self.actions.lock().expect("no panic while held");
        actions.advance(watermark.at, rules);
        drop(actions);
        match self.is_changed || self.stored.elapsed() >= STORE_EVERY {
            true => self.store(rules),
            false => Ok(()),
        }
    }

    fn close(&mut self, rules: &[RuleRun]) -> Result<(), SinkError> {
        self.store(rules)?;
        print_remarks(&mut self.notifier.lock().expect("no panic while held"));
        Ok(())
    }
}
