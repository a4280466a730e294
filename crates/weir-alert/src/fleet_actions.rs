//! [`FleetActions`]: what the alerts of a fleet do on its hosts, stored across restarts of the
//! monitor.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tracing::warn;
use weir_act::policy::ActRequest;
use weir_model::{Nanos, Symbol};
use weir_runtime::private;
use weir_wire::AlertAction;
use weir_wire::message::ACTIONS_MAX;

use crate::event::{AlertEvent, AlertKey};
use crate::instances::RuleRun;
use crate::machine::AlertState;
use crate::state_file::read_versioned;
use crate::witness::Witnesses;

/// The label with the host on which an action is carried out.
pub const HOST_LABEL: &str = "host";

/// The version of the file; another one is not read.
const VERSION: u32 = 1;

/// The file in the directory of the states.
pub const FILE: &str = "actions.json";

/// See the module's documentation.
pub struct FleetActions {
    path: PathBuf,
    wanted: BTreeMap<String, WantedAction>,
    witnesses: Witnesses,
    /// The hosts whose actions have changed and were not passed to the monitor.
    changed: BTreeSet<String>,
    /// They have changed since they were stored.
    is_unstored: bool,
}

#[derive(Serialize, Deserialize)]
struct Content {
    version: u32,
    actions: Vec<WantedAction>,
}

/// An action that should last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct WantedAction {
    host: String,
    alert: String,
    key: AlertKey,
    fired_at: Nanos,
    request: ActRequest,
    /// What its witness showed.
    verdict: Option<(bool, String)>,
}

impl FleetActions {
    /// The actions of the file in `directory` whose instances are still present in `runs`.
    ///
    /// # Errors
    /// When the file cannot be read, or is not such a file.
    pub fn open(directory: &Path, runs: &[RuleRun]) -> io::Result<FleetActions> {
        let path = directory.join(FILE);
        let content: Option<Content> = read_versioned(&path, VERSION, |c: &Content| c.version)?;
        let mut actions = FleetActions {
            path,
            wanted: BTreeMap::new(),
            witnesses: Witnesses::default(),
            changed: BTreeSet::new(),
            is_unstored: false,
        };
        for action in content.into_iter().flat_map(|content| content.actions) {
            let run = runs.iter().find(|run| run.rule().name == action.alert);
            let is_present = run.is_some_and(|run| {
                let mut keys = run.states().map(|(key, _)| key);
                run.rule().act.is_some() && keys.any(|key| *key == action.key)
            });
            if !is_present {
                continue;
            }
            if action.verdict.is_none() {
                let key = action.key.clone();
                actions.witnesses.add(&action.alert, key, action.fired_at);
            }
            actions.changed.insert(action.host.clone());
            let instance = action.request.instance.clone();
            actions.wanted.insert(instance, action);
        }
        Ok(actions)
    }

    /// Applies an event.
    pub fn event(&mut self, event: &AlertEvent) {
        match (&event.action, event.to) {
            // A row without a host is of none that could carry it out.
            (Some(request), _) => {
                if let Some(host) = event.label(HOST_LABEL) {
                    self.want(host, request, event);
                }
            }
            (None, AlertState::Clear) => {
                self.witnesses.remove(&event.alert, event.key());
                if let Some(action) = self.wanted.remove(&event.instance()) {
                    self.change(action.host);
                }
            }
            _ => {}
        }
    }

    fn want(&mut self, host: &str, request: &ActRequest, event: &AlertEvent) {
        let of_host = self.wanted.values().filter(|action| action.host == host);
        let of_host = of_host.filter(|action| !action.has_failed() && !action.is_past(event.at));
        if of_host.count() >= ACTIONS_MAX {
            let instance = &request.instance;
            warn!(
                host,
                instance, "it does not act: {ACTIONS_MAX} actions last on the host"
            );
            return;
        }
        let action = WantedAction {
            host: host.to_owned(),
            alert: event.alert.clone(),
            key: event.key(),
            fired_at: event.at,
            request: request.clone(),
            verdict: None,
        };
        self.witnesses.add(&event.alert, event.key(), event.at);
        self.wanted.insert(request.instance.clone(), action);
        self.change(host.to_owned());
    }

    fn change(&mut self, host: String) {
        self.changed.insert(host);
        self.is_unstored = true;
    }

    /// Judges the witnesses at a watermark.
    pub fn advance(&mut self, at: Nanos, rules: &[RuleRun]) {
        for verdict in self.witnesses.judge(at, rules) {
            if let Some(action) = self.wanted.get_mut(&verdict.instance) {
                action.verdict = Some((verdict.has_helped, verdict.effect));
                let host = action.host.clone();
                self.change(host);
            }
        }
    }

    /// All actions of each host whose actions have changed since the last call, without those whose
    /// time has passed. A monitor that restarts without having stored them does not want them any
    /// more, and they end.
    pub fn changes(&mut self, now: Nanos) -> Vec<(Symbol, Vec<AlertAction>)> {
        let hosts = std::mem::take(&mut self.changed).into_iter();
        let of_host = |host: String| {
            let actions = self.wanted.values().filter(|action| action.host == host);
            let mut actions: Vec<&WantedAction> =
                actions.filter(|action| !action.is_past(now)).collect();
            // Those that did not help are the first to be left out of too many.
            actions.sort_by_key(|action| action.has_failed());
            let actions = actions.into_iter().take(ACTIONS_MAX);
            let actions = actions.map(WantedAction::message).collect();
            Some((symbol(&host)?, actions))
        };
        hosts.filter_map(of_host).collect()
    }

    /// Stores the changes since the last call.
    ///
    /// # Errors
    /// When the file cannot be written; they are those of the next call.
    pub fn save(&mut self) -> io::Result<()> {
        if self.is_unstored {
            self.store()?;
            self.is_unstored = false;
        }
        Ok(())
    }

    fn store(&self) -> io::Result<()> {
        let content = Content {
            version: VERSION,
            actions: self.wanted.values().cloned().collect(),
        };
        private::replace(&self.path, &serde_json::to_vec(&content)?)
    }
}

impl WantedAction {
    /// Whether its time has passed.
    fn is_past(&self, now: Nanos) -> bool {
        self.fired_at.saturating_add(self.request.hold_ns) <= now
    }

    /// Whether it did not help.
    fn has_failed(&self) -> bool {
        let verdict = self.verdict.as_ref();
        verdict.is_some_and(|(has_helped, _)| !has_helped)
    }

    fn message(&self) -> AlertAction {
        let (request, limit) = (&self.request, &self.request.limit);
        let (has_helped, effect) = self.verdict.clone().unzip();
        AlertAction {
            instance: request.instance.clone(),
            fired_at_ns: self.fired_at,
            vm: request.vm.clone(),
            disk: request.disk.clone(),
            iops: limit.iops,
            bytes_per_second: limit.bytes,
            weight: limit.weight,
            hold_ns: request.hold_ns,
            cooldown_ns: request.cooldown_ns,
            has_helped,
            effect: effect.unwrap_or_default(),
        }
    }
}

/// The name of a host; that of a row is known already.
fn symbol(host: &str) -> Option<Symbol> {
    Symbol::try_new(host).ok()
}
