//! [`Registry`]: the queries of the fleet by name, with owner and state, and the reasons that end
//! them.
//!
//! A query is *standing* if it runs until it is cancelled, across restarts: the configuration's
//! queries are, and those that were submitted as such. Others end when they have no clients.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tracing::warn;
use weir_model::Nanos;
use weir_query::engine::QueryId;
use weir_query::place::fleet::PlacementStrategy;
use weir_wire::{Principal, Refusal, Submit};

use super::files::{FileSink, path_of};
use super::publish::PublisherLimits;
use super::query_store::{AddedFiles, QueryStore, StoredQuery};
use super::question::Prepared;
use super::state::{Position, SavedQuery};
use super::view_store::ViewStore;
use super::{Monitor, Publisher, StateError};
use crate::config::{MonitorConfig, MonitorLimits, SinkEntry, StandingEntry};
use weir_runtime::quantity::nanos;

/// The interval at which the clients and files of queries are checked.
const LOOK_EVERY: Nanos = weir_model::NANOS_PER_SECOND / 4;

/// The queries of the fleet.
pub struct Registry {
    limits: MonitorLimits,
    unwatched: Nanos,
    directory: PathBuf,
    book: QueryStore,
    /// The stored views.
    views: ViewStore,
    entries: BTreeMap<String, Entry>,
    /// The number of generated names.
    named: u64,
    looked_at: Nanos,
}

/// A query.
pub struct Entry {
    /// The query as submitted.
    pub submit: Submit,
    /// The client that submitted it; `None` for the configuration.
    pub owner: Option<String>,
    /// The only VM whose rows it reads.
    pub vm: Option<String>,
    /// The time at which it started.
    pub since: Nanos,
    /// Its state.
    pub state: QueryState,
    sinks: Vec<SinkEntry>,
    /// The last time at which it had a client, or its start.
    watched_at: Nanos,
    /// Files whose failure was logged.
    failed_files: usize,
}

/// The state of a query.
pub enum QueryState {
    /// It runs.
    Runs {
        /// Its identifier in the monitor.
        query: QueryId,
        /// Its placement strategy.
        strategy: PlacementStrategy,
    },
    /// It is standing, but does not run.
    Failed(String),
}

/// A query that is to run.
struct RequestedQuery {
    name: String,
    submit: Submit,
    owner: Option<String>,
    vm: Option<String>,
    sinks: Vec<SinkEntry>,
    /// The placement strategy before a restart.
    strategy: Option<String>,
}

impl Registry {
    /// Opens the standing queries: the submitted ones and those of the configuration. To be called
    /// before time advances.
    ///
    /// # Errors
    /// If the state directory cannot be used.
    pub fn open(
        config: &MonitorConfig,
        monitor: &mut Monitor,
        now: Nanos,
    ) -> Result<Registry, StateError> {
        let mut registry = Registry {
            limits: config.limits.clone(),
            unwatched: nanos(config.unwatched.0),
            directory: config.state.clone(),
            book: QueryStore::open(&config.state)?,
            views: ViewStore::open(&config.state)?,
            entries: BTreeMap::new(),
            named: 0,
            looked_at: now,
        };
        for kept in registry.book.kept().to_vec() {
            if kept.owner.is_some() {
                registry.resume(kept, monitor, now);
            }
        }
        registry.configure(&config.queries, monitor, now)?;
        Ok(registry)
    }

    /// Applies a changed configuration. Queries that cannot run are reported, and the earlier ones
    /// continue.
    ///
    /// # Errors
    /// If the state directory cannot be used.
    pub fn reload(
        &mut self,
        config: &MonitorConfig,
        monitor: &mut Monitor,
        now: Nanos,
    ) -> Result<(), StateError> {
        self.limits = config.limits.clone();
        self.unwatched = nanos(config.unwatched.0);
        let limits = self.publisher_limits();
        for (query, _) in self.running() {
            if let Some(running) = monitor.query_mut(query) {
                running.publisher.set_limits(limits);
            }
        }
        self.configure(&config.queries, monitor, now)
    }

    /// The stored views.
    pub fn views(&mut self) -> &mut ViewStore {
        &mut self.views
    }

    /// A submitted query, with the definitions of the stored views that it reads. Those who may
    /// read the rows of one VM only have none: their definitions may name other VMs.
    pub fn expanded(&self, submit: Submit, who: &Principal) -> Submit {
        if who.vm.is_some() || submit.script.is_some() {
            return submit;
        }
        let query = self.views.expanded(submit.query);
        Submit { query, ..submit }
    }

    /// Starts a query of `who`; returns its name.
    ///
    /// # Errors
    /// If it is not valid, its name is in use, a limit is reached, or it cannot be saved.
    pub fn place(
        &mut self,
        submit: Submit,
        who: &Principal,
        monitor: &mut Monitor,
        now: Nanos,
    ) -> Result<String, Refusal> {
        let name = match &submit.name {
            Some(name) => name.clone(),
            None => self.free_name(),
        };
        if let Some(there) = self.entries.get(&name) {
            return Err(Refusal::AlreadyExists(match there.is_visible(who) {
                true => format!(
                    "query `{name}` already exists, submitted by {}; choose another name, or use \
                     `weir fleet cancel {name}`",
                    there.owner()
                ),
                false => format!("the name `{name}` is in use; choose another one"),
            }));
        }
        let most = self.limits.queries;
        if self.entries.len() >= most {
            return Err(Refusal::LimitReached(format!(
                "the limit of {most} queries is reached (limits.queries); cancel one"
            )));
        }
        let owner = &who.name;
        let own = |entry: &&Entry| entry.owner.as_ref() == Some(owner);
        let most = self.limits.queries_per_client;
        if self.entries.values().filter(own).count() >= most {
            return Err(Refusal::LimitReached(format!(
                "`{owner}` has reached the limit of {most} queries (limits.queries_per_client); \
                 cancel one"
            )));
        }
        let wanted = RequestedQuery {
            name: name.clone(),
            submit: self.expanded(submit, who),
            owner: Some(owner.clone()),
            vm: who.vm.clone(),
            sinks: Vec::new(),
            strategy: None,
        };
        self.begin(wanted, monitor, now)?;
        Ok(name)
    }

    /// Ends a query that a client submitted.
    ///
    /// # Errors
    /// If there is none, it is from the configuration, or the change cannot be saved.
    pub fn cancel(
        &mut self,
        name: &str,
        who: &Principal,
        monitor: &mut Monitor,
    ) -> Result<(), Refusal> {
        let entry = self.visible(name, who)?;
        if entry.owner.is_none() {
            return Err(Refusal::Failed(format!(
                "`{name}` is defined in the monitor's configuration; remove it there and reload"
            )));
        }
        let removed = self.book.remove_stored(name);
        removed.map_err(|error| {
            Refusal::Failed(format!(
                "{error}; `{name}` is still a standing \
                                                        query"
            ))
        })?;
        self.remove(name, "cancelled", monitor);
        Ok(())
    }

    /// Checks the queries: ends those that failed, that have no clients, or whose rate of rows is
    /// too high.
    pub fn look(&mut self, monitor: &mut Monitor, now: Nanos) {
        for failed in monitor.take_failed() {
            self.retain_files(&failed.name);
            self.has_failed(&failed.name, &failed.error.to_string());
        }
        if now.saturating_sub(self.looked_at) < LOOK_EVERY && now >= self.looked_at {
            return;
        }
        self.looked_at = now;
        let mut over = Vec::new();
        for (name, entry) in &mut self.entries {
            let QueryState::Runs { query, .. } = entry.state else {
                continue;
            };
            let Some(running) = monitor.query_mut(query) else {
                continue;
            };
            let publisher = &running.publisher;
            if publisher.clients() > 0 || entry.submit.standing {
                entry.watched_at = now;
            }
            if publisher.is_too_fast() {
                over.push((name.clone(), too_fast(self.limits.rows_per_second)));
            } else if now.saturating_sub(entry.watched_at) > self.unwatched {
                over.push((name.clone(), "it has no clients".to_owned()));
            }
            let failed: Vec<String> = publisher
                .files()
                .iter()
                .filter_map(|file| file.failed().map(str::to_owned))
                .collect();
            for why in failed.iter().skip(entry.failed_files) {
                warn!(query = %name, reason = %why, "a sink failed");
                monitor.note(now, "sink_failed", &format!("{name}: {why}"));
            }
            entry.failed_files = failed.len();
        }
        for (name, why) in over {
            self.end(&name, &why, monitor);
        }
    }

    /// The queries by name.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries
            .iter()
            .map(|(name, entry)| (name.as_str(), entry))
    }

    /// A query that `who` may see. To others it does not exist.
    fn visible(&self, name: &str, who: &Principal) -> Result<&Entry, Refusal> {
        let entry = self.entries.get(name);
        let entry = entry.filter(|entry| entry.is_visible(who));
        entry.ok_or_else(|| unknown(name))
    }

    /// The running query of a name, which `who` may see.
    ///
    /// # Errors
    /// If there is none, or it does not run.
    pub fn find(&self, name: &str, who: &Principal) -> Result<QueryId, Refusal> {
        let entry = self.visible(name, who)?;
        match &entry.state {
            QueryState::Runs { query, .. } => Ok(*query),
            QueryState::Failed(why) => {
                Err(Refusal::Failed(format!("`{name}` is not running: {why}")))
            }
        }
    }

    /// Maximum number of clients per query.
    pub fn clients_max(&self) -> usize {
        self.limits.clients
    }

    /// Ends all results, because the monitor ends.
    pub fn close(&mut self, monitor: &mut Monitor) {
        for (query, _) in self.running() {
            if let Some(running) = monitor.query_mut(query) {
                running.publisher.end("the monitor is shutting down");
            }
        }
    }

    fn running(&self) -> Vec<(QueryId, PlacementStrategy)> {
        let runs = |entry: &Entry| match entry.state {
            QueryState::Runs { query, strategy } => Some((query, strategy)),
            QueryState::Failed(_) => None,
        };
        self.entries.values().filter_map(runs).collect()
    }

    /// Starts, replaces and ends queries as the configuration specifies.
    fn configure(
        &mut self,
        queries: &[StandingEntry],
        monitor: &mut Monitor,
        now: Nanos,
    ) -> Result<(), StateError> {
        let is_same = |entry: &Entry, standing: &StandingEntry| {
            entry.submit.query == standing.text
                && entry.submit.place == standing.place
                && entry.sinks == standing.sinks
        };
        let ours = self.entries.iter().filter(|(_, e)| e.owner.is_none());
        let gone = ours.filter(|(name, entry)| {
            !queries
                .iter()
                .any(|q| q.name == **name && is_same(entry, q))
        });
        let gone: Vec<String> = gone.map(|(name, _)| name.clone()).collect();
        for name in gone {
            self.book.remove_stored(&name)?;
            self.remove(&name, "the configuration has changed", monitor);
        }
        for standing in queries {
            if self.entries.contains_key(&standing.name) {
                let theirs = self.entries[&standing.name].owner.is_some();
                if theirs {
                    warn!(
                        query = %standing.name,
                        "a client has submitted a query with this name; the query of the \
                         configuration does not run"
                    );
                }
                continue;
            }
            self.configured(standing, monitor, now);
        }
        let is_configured = |kept: &StoredQuery| {
            kept.owner.is_some() || queries.iter().any(|q| q.name == kept.name)
        };
        let stale: Vec<StoredQuery> = self
            .book
            .kept()
            .iter()
            .filter(|k| !is_configured(k))
            .cloned()
            .collect();
        stale
            .iter()
            .try_for_each(|kept| self.book.remove_stored(&kept.name))
    }

    /// Runs a query of the configuration.
    fn configured(&mut self, standing: &StandingEntry, monitor: &mut Monitor, now: Nanos) {
        let submit = Submit {
            query: standing.text.clone(),
            name: Some(standing.name.clone()),
            standing: true,
            place: standing.place.clone(),
            script: None,
        };
        let before = self.book.kept().iter().find(|k| k.name == standing.name);
        let same = before.filter(|before| before.is_of(&standing.name, &submit));
        let strategy = same.map(|before| before.strategy.clone());
        let wanted = RequestedQuery {
            name: standing.name.clone(),
            submit,
            owner: None,
            vm: None,
            sinks: standing.sinks.clone(),
            strategy,
        };
        self.begin_or_log(wanted, monitor, now);
    }

    /// Runs a query again that a client had submitted before a restart.
    fn resume(&mut self, kept: StoredQuery, monitor: &mut Monitor, now: Nanos) {
        let wanted = RequestedQuery {
            submit: Submit {
                query: kept.query,
                name: Some(kept.name.clone()),
                standing: true,
                place: kept.place,
                script: kept.script,
            },
            name: kept.name,
            owner: kept.owner,
            vm: kept.vm,
            sinks: Vec::new(),
            strategy: Some(kept.strategy),
        };
        self.begin_or_log(wanted, monitor, now);
    }

    /// Runs a standing query; if it cannot run, the error is logged and its state is failed.
    fn begin_or_log(&mut self, wanted: RequestedQuery, monitor: &mut Monitor, now: Nanos) {
        let (name, submit) = (wanted.name.clone(), wanted.submit.clone());
        let (owner, vm) = (wanted.owner.clone(), wanted.vm.clone());
        let sinks = wanted.sinks.clone();
        if let Err(refusal) = self.begin(wanted, monitor, now) {
            warn!(query = %name, reason = %refusal, "the query cannot run");
            self.retain_files(&name);
            let entry = Entry {
                submit,
                owner,
                vm,
                since: now,
                state: QueryState::Failed(refusal.to_string()),
                sinks,
                watched_at: now,
                failed_files: 0,
            };
            self.entries.insert(name, entry);
        }
    }

    fn begin(
        &mut self,
        wanted: RequestedQuery,
        monitor: &mut Monitor,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let world = |error: StateError| Refusal::Failed(error.to_string());
        let (vm, strategy) = (wanted.vm.as_deref(), wanted.strategy.as_deref());
        let standing = wanted.submit.standing;
        let is_it = |kept: &&StoredQuery| {
            standing && kept.vm == wanted.vm && kept.is_of(&wanted.name, &wanted.submit)
        };
        let before = self.book.kept().iter().find(is_it).cloned();
        let streams = before.as_ref().map_or(&[][..], |kept| &kept.streams);
        let prepared = Prepared::of(&wanted.submit, vm, strategy, monitor, streams)?;
        let strategy = prepared.cut.strategy;
        let saved = monitor.continued(&wanted.name, before.as_ref());
        let rows = saved.as_ref().map_or(0, |saved| saved.rows);
        let checkpoint = monitor.continued_from();
        let of_before = |sizes: fn(&StoredQuery, Nanos) -> &[Position]| {
            let sizes = before.as_ref().map(|kept| sizes(kept, checkpoint));
            sizes.unwrap_or_default()
        };
        let positions = match &saved {
            Some(saved) => [&saved.positions, of_before(StoredQuery::added_at)].concat(),
            None => of_before(|kept, _| &kept.files).to_vec(),
        };
        let mut files = self.files(&wanted, &prepared, &positions)?;
        if saved.is_some() {
            files.iter_mut().for_each(FileSink::begin_with_content);
        }
        let is_first = before.is_none();
        let kept = before.unwrap_or_else(|| StoredQuery {
            name: wanted.name.clone(),
            query: wanted.submit.query.clone(),
            script: wanted.submit.script.clone(),
            place: wanted.submit.place.clone(),
            strategy: strategy.to_string(),
            owner: wanted.owner.clone(),
            vm: wanted.vm.clone(),
            streams: prepared.streams.clone(),
            since: now,
            from: None,
            failed: false,
            files: Vec::new(),
            added: None,
        });
        let kept = match &saved {
            Some(saved) => StoredQuery {
                since: saved.since,
                from: Some(saved.from),
                failed: false,
                added: added_files(&mut files, saved, checkpoint),
                ..kept
            },
            None => StoredQuery {
                since: now,
                from: Some(monitor.next_start()),
                failed: false,
                files: files.iter_mut().filter_map(FileSink::position).collect(),
                added: None,
                ..kept
            },
        };
        let since = kept.since;
        if standing && !self.book.kept().contains(&kept) {
            self.book.keep(kept).map_err(world)?;
        }
        let publisher = Publisher::new(prepared.answer, self.publisher_limits(), files);
        let publisher = publisher.after_rows(rows);
        let started = monitor.start(&wanted.name, &prepared.cut, standing, publisher, now);
        if started.is_err() && standing && is_first {
            // A rejected query must not run after a restart.
            self.book.remove_stored(&wanted.name).map_err(world)?;
        }
        let query = started.map_err(world)?;
        let entry = Entry {
            submit: wanted.submit,
            owner: wanted.owner,
            vm: wanted.vm,
            since,
            state: QueryState::Runs { query, strategy },
            sinks: wanted.sinks,
            watched_at: now,
            failed_files: 0,
        };
        self.entries.insert(wanted.name, entry);
        Ok(())
    }

    /// Opens the files of a query.
    fn files(
        &self,
        wanted: &RequestedQuery,
        prepared: &Prepared,
        positions: &[Position],
    ) -> Result<Vec<FileSink>, Refusal> {
        let mut files = Vec::new();
        let mut paths: Vec<PathBuf> = Vec::new();
        for entry in &wanted.sinks {
            let path = path_of(entry, &self.directory);
            let others = self.entries.values().flat_map(|e| &e.sinks);
            let mut others = others.map(|e| path_of(e, &self.directory));
            if others.any(|other| other == path) || paths.contains(&path) {
                return Err(Refusal::Failed(format!(
                    "{}: another result is written there; use another file",
                    path.display()
                )));
            }
            // No file is truncated before all can be written: if the query does not start, nothing
            // sends the rows again.
            FileSink::check(entry, &self.directory).map_err(Refusal::Failed)?;
            paths.push(path);
        }
        for (entry, path) in wanted.sinks.iter().zip(paths) {
            let position = positions.iter().find(|position| position.path == path);
            let answer = prepared.answer.clone();
            let file = FileSink::open(entry, &self.directory, answer, position);
            files.push(file.map_err(Refusal::Failed)?);
        }
        Ok(files)
    }

    /// Ends a query for a reason other than its owner's request; a standing query becomes failed.
    pub(super) fn end(&mut self, name: &str, why: &str, monitor: &mut Monitor) {
        let stands = self.entries.get(name).is_some_and(|e| e.submit.standing);
        match stands {
            true => {
                self.stop(name, why, monitor);
                self.retain_files(name);
                self.has_failed(name, why);
            }
            false => self.remove(name, why, monitor),
        }
    }

    /// A standing query has failed and is in no later checkpoint: what its files have then is not
    /// removed when it starts again.
    fn retain_files(&mut self, name: &str) {
        let stored = self.book.kept().iter().find(|kept| kept.name == name);
        let Some(stored) = stored.filter(|kept| !kept.failed).cloned() else {
            return;
        };
        let failed = StoredQuery {
            failed: true,
            files: Vec::new(),
            ..stored
        };
        if let Err(error) = self.book.keep(failed) {
            warn!(query = %name, %error, "its files may lose rows when the monitor restarts");
        }
    }

    fn has_failed(&mut self, name: &str, why: &str) {
        warn!(query = %name, reason = %why, "the query has ended");
        match self.entries.get_mut(name) {
            Some(entry) if entry.submit.standing => {
                entry.state = QueryState::Failed(why.to_owned())
            }
            _ => {
                self.entries.remove(name);
            }
        }
    }

    fn remove(&mut self, name: &str, why: &str, monitor: &mut Monitor) {
        self.stop(name, why, monitor);
        self.entries.remove(name);
    }

    fn stop(&self, name: &str, why: &str, monitor: &mut Monitor) {
        if let Some(QueryState::Runs { query, .. }) = self.entries.get(name).map(|e| &e.state) {
            monitor.stop(*query, why);
        }
    }

    fn free_name(&mut self) -> String {
        loop {
            self.named += 1;
            let name = format!("q{}", self.named);
            if !self.entries.contains_key(&name) {
                return name;
            }
        }
    }

    fn publisher_limits(&self) -> PublisherLimits {
        PublisherLimits {
            clients_max: self.limits.clients,
            backlog_bytes_max: self.limits.client_queue.0,
            snapshot_bytes_max: self.limits.snapshot.0,
            rows_per_second_max: self.limits.rows_per_second,
        }
    }
}

impl Entry {
    /// Whether `who` may see it: everybody who may read all VMs, and those who may read the same VM
    /// only as this query does.
    pub fn is_visible(&self, who: &Principal) -> bool {
        who.vm.is_none() || who.vm == self.vm
    }

    /// The client that submitted it.
    pub fn owner(&self) -> &str {
        self.owner.as_deref().unwrap_or("the configuration")
    }
}

/// The files of a query that continues from a checkpoint which does not contain them.
fn added_files(
    files: &mut [FileSink],
    saved: &SavedQuery,
    checkpoint: Nanos,
) -> Option<AddedFiles> {
    let is_saved = |file: &&mut FileSink| saved.positions.iter().any(|p| p.path == file.path());
    let added = files.iter_mut().filter(|file| !is_saved(file));
    let files: Vec<Position> = added.filter_map(FileSink::first_position).collect();
    (!files.is_empty()).then_some(AddedFiles { checkpoint, files })
}

fn unknown(name: &str) -> Refusal {
    Refusal::NotFound(format!(
        "there is no query `{name}`; `weir fleet queries` lists them"
    ))
}

fn too_fast(most: usize) -> String {
    format!("it returns more than {most} rows per second (limits.rows_per_second); group or filter")
}
