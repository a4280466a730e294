//! A simulated fleet: events distributed over agents, an engine for each that runs the fragments of
//! a split query, and an engine for the monitor over their results.
//!
//! It tests the split alone. weir-query may not use the agent and the monitor, whose own behaviour
//! (connections, restarts, losses, time) `crates/weir-simulation` tests with the same random
//! queries; that simulation compares with the engine, this one with the oracle, which shares no
//! code with it.

use std::collections::BTreeMap;

use weir_model::{Declaration, Shape, Value};
use weir_query::engine::{Engine, EngineOptions};
use weir_query::place::fleet::Cut;
use weir_query::plan::{Node, Plan, Window};

use super::Row;
use super::feed::{self, Event, Random};
use super::history::{Element, History};
use super::oracle::Outcome;
use super::run::Run;

/// A split query and its environment.
pub struct Fleet<'a> {
    /// The query.
    pub cut: &'a Cut,
    /// The sources.
    pub sources: &'a [Declaration],
    /// Sources of the monitor, by name.
    pub monitor_sources: &'a [String],
    /// The number of agents.
    pub agents: u64,
}

/// The lifetime of an agent's process.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    /// The agent.
    pub agent: u64,
    /// It sees the rows after this instant,
    pub from: i64,
    /// and those up to this one.
    pub to: i64,
    /// Its results after this instant are lost; `None`: it ends in order.
    pub killed: Option<i64>,
}

impl Life {
    /// Whether it sees the events of an instant.
    pub fn sees(&self, ts: i64) -> bool {
        (self.from + 1..=self.to).contains(&ts)
    }
}

impl Fleet<'_> {
    /// Runs the query on all of `history`; `agent` maps a row of a source, by position, to an
    /// agent. Batches, steps and the progress of the engines are cut by `random`.
    pub fn run(
        &self,
        history: &History,
        agent: &dyn Fn(usize, &Element) -> u64,
        random: &mut Random,
    ) -> Outcome {
        let whole = |agent: u64| Life {
            agent,
            from: i64::MIN,
            to: i64::MAX,
            killed: None,
        };
        let lives: Vec<Life> = (0..self.agents).map(whole).collect();
        self.run_lives(&lives, history, agent, random)
    }

    /// As [`Fleet::run`], where agents start and end: events of a host without agent are not seen.
    /// When the next process of an agent starts, the monitor retracts the rows of the previous one
    /// in relations.
    pub fn run_lives(
        &self,
        lives: &[Life],
        history: &History,
        agent: &dyn Fn(usize, &Element) -> u64,
        random: &mut Random,
    ) -> Outcome {
        match self.emitted(lives, history, agent, random) {
            Ok(emitted) => {
                let rows = |of: Vec<(usize, Element)>| of.into_iter().map(|(_, e)| e).collect();
                self.monitor(history, emitted.into_iter().map(rows).collect(), random)
            }
            Err(outcome) => outcome,
        }
    }

    /// What the agents emit for each fragment, with the number of the life.
    ///
    /// # Errors
    /// When a fragment fails.
    pub fn emitted(
        &self,
        lives: &[Life],
        history: &History,
        agent: &dyn Fn(usize, &Element) -> u64,
        random: &mut Random,
    ) -> Result<Vec<Vec<(usize, Element)>>, Outcome> {
        let mut emitted: Vec<Vec<(usize, Element)>> = vec![Vec::new(); self.cut.fragments.len()];
        for (number, life) in lives.iter().enumerate() {
            let is_mine = |source: usize, e: &Element| {
                agent(source, e) == life.agent && life.sees(e.ts) && !self.is_central(source)
            };
            let next = lives[number + 1..].iter().find(|l| l.agent == life.agent);
            let mut run = self.engine(self.sources.to_vec(), random);
            let fragments = self.cut.fragments.iter();
            let plans = fragments.map(|f| std::sync::Arc::new(f.plan.clone()));
            let queries: Vec<usize> = plans.map(|plan| run.add(&plan)).collect();
            self.feed(&mut run, history, &is_mine, random);
            for (fragment, query) in queries.into_iter().enumerate() {
                let query = run.query(query);
                if let Some(message) = &query.failure {
                    return Err(Outcome {
                        changes: Default::default(),
                        failure: Some((i64::MAX, message.clone())),
                    });
                }
                let arrives = |e: &&Element| life.killed.is_none_or(|at| e.ts <= at);
                let arrived: Vec<Element> = query.emitted.iter().filter(arrives).cloned().collect();
                let is_relation = self.cut.fragments[fragment].plan.shape == Shape::Relation;
                if let (Some(next), true) = (next, is_relation) {
                    let retracted = retractions(&arrived, next.from);
                    emitted[fragment].extend(retracted.into_iter().map(|e| (number, e)));
                }
                emitted[fragment].extend(arrived.into_iter().map(|e| (number, e)));
            }
        }
        Ok(emitted)
    }

    fn monitor(
        &self,
        history: &History,
        mut emitted: Vec<Vec<Element>>,
        random: &mut Random,
    ) -> Outcome {
        let names = (0..emitted.len()).map(|i| format!("channel {i}"));
        let names: Vec<String> = names.collect();
        let of_agents = names.iter().enumerate();
        let of_agents = of_agents.map(|(i, name)| self.cut.declaration(i, name));
        let own = self.sources.iter().enumerate();
        let own: Vec<_> = own.filter(|(source, _)| self.is_central(*source)).collect();
        for rows in &mut emitted {
            rows.sort_by_key(|e| e.ts);
        }
        let sources: Vec<Declaration> = own.iter().map(|(_, s)| (*s).clone()).collect();
        let sources: Vec<Declaration> = sources.into_iter().chain(of_agents).collect();
        let own_rows = own.iter().map(|(_, s)| history.source(&s.name).to_vec());
        let rows: Vec<Vec<Element>> = own_rows.chain(emitted).collect();
        let rows = sources.iter().map(|s| s.name.clone()).zip(rows);
        let mut all = History::new(rows);
        all.end = history.end;
        let mut run = self.engine(sources, random);
        run.begin(history.begin);
        let query = run.add(&std::sync::Arc::new(self.cut.monitor_over(&names)));
        self.feed(&mut run, &all, &|_, _| true, random);
        let query = run.query(query);
        Outcome {
            changes: query.changes.clone(),
            failure: query.failure.clone().map(|message| (i64::MAX, message)),
        }
    }

    fn is_central(&self, source: usize) -> bool {
        let name = &self.sources[source].name;
        let mut central = self.monitor_sources.iter();
        central.any(|other| other.eq_ignore_ascii_case(name))
    }

    fn engine(&self, sources: Vec<Declaration>, random: &mut Random) -> Run {
        let options = EngineOptions {
            span_rows_max: [1, 2, 3, 10, 1 << 16][random.below(5) as usize],
            ..EngineOptions::default()
        };
        let run_sources = sources.clone();
        let mut run = Run::new(Engine::new(options), run_sources);
        sources.iter().for_each(|s| run.engine.declare(s));
        run
    }

    /// The rows for which `is_mine` is true, and then the end of time.
    fn feed(
        &self,
        run: &mut Run,
        history: &History,
        is_mine: &dyn Fn(usize, &Element) -> bool,
        random: &mut Random,
    ) {
        let names: Vec<String> = run.sources().iter().map(|s| s.name.clone()).collect();
        let mut events = Vec::new();
        for (source, name) in names.iter().enumerate() {
            let rows = history.source(name).iter().filter(|e| is_mine(source, e));
            events.extend(rows.map(|e| Event::Row(source, e.clone())));
        }
        if history.end > i64::MIN {
            events.push(Event::Heartbeat(None, history.end));
        }
        run.act(&feed::cut(&events, names.len(), random));
    }
}

/// The retraction of all rows at an instant.
fn retractions(changes: &[Element], at: i64) -> Vec<Element> {
    let mut content: Vec<Element> = Vec::new();
    for change in changes {
        match content.iter_mut().find(|e| e.row == change.row) {
            Some(known) => known.weight += change.weight,
            None => content.push(change.clone()),
        }
    }
    content.retain(|e| e.weight != 0);
    for element in &mut content {
        (element.ts, element.weight) = (at, -element.weight);
    }
    content
}

/// Whether the result of a query depends on the order of arrival within an instant, which is not
/// defined over several agents.
pub fn is_by_arrival(plan: &Plan) -> bool {
    let here = match &plan.node {
        Node::Window { window, .. } => {
            matches!(window, Window::Rows(_) | Window::Partition(_))
        }
        Node::Aggregate { calls, .. } => calls.iter().any(|call| !call.function.splits()),
        _ => false,
    };
    here || plan.inputs().into_iter().any(|input| is_by_arrival(input))
}

/// The distribution of rows to agents: at random, but rows of one host or of one request go to the
/// same, and so do a row's insertion into a relation and its retraction.
pub struct Deal<'a> {
    sources: &'a [Declaration],
    /// With this, rows of one instant and source also go to the same agent, so that their order of
    /// arrival is defined.
    by_instant: bool,
    /// Ties that are merged into another one.
    parents: BTreeMap<Tie, Tie>,
    agents: u64,
    seed: u64,
}

/// A property that keeps rows together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tie {
    Host(Value),
    Request(Value),
    Instant(usize, i64),
    Row(usize, i64, Row),
}

impl<'a> Deal<'a> {
    /// Distributes the rows of a history.
    pub fn new(
        sources: &'a [Declaration],
        history: &History,
        agents: u64,
        by_instant: bool,
        random: &mut Random,
    ) -> Deal<'a> {
        let mut deal = Deal {
            sources,
            by_instant,
            parents: BTreeMap::new(),
            agents,
            seed: random.below(u64::MAX),
        };
        for (source, declaration) in sources.iter().enumerate() {
            for element in history.source(&declaration.name) {
                let ties = deal.ties(source, element);
                for pair in ties.windows(2) {
                    let (a, b) = (deal.root(&pair[0]), deal.root(&pair[1]));
                    if a != b {
                        deal.parents.insert(a, b);
                    }
                }
            }
        }
        deal
    }

    /// The agent of a row of source number `source`.
    pub fn agent(&self, source: usize, element: &Element) -> u64 {
        use std::hash::{Hash, Hasher};
        let root = self.root(&self.ties(source, element)[0]);
        let mut hasher = std::collections::hash_map::DefaultHasher::new();
        format!("{root:?}").hash(&mut hasher);
        Random::new(self.seed ^ hasher.finish()).below(self.agents)
    }

    fn ties(&self, source: usize, element: &Element) -> Vec<Tie> {
        let declaration = &self.sources[source];
        let value = |names: [&str; 2]| {
            let found = names.iter().find_map(|name| declaration.schema.find(name));
            found.map(|(at, _)| element.row[at].clone())
        };
        // A row of a relation is retracted at another time than it was inserted.
        let ts = match declaration.shape {
            Shape::Stream => element.ts,
            Shape::Relation => 0,
        };
        let mut ties = vec![Tie::Row(source, ts, element.row.clone())];
        ties.extend(value(["host", "IP"]).map(Tie::Host));
        ties.extend(value(["req_id", "ReqId"]).map(Tie::Request));
        if self.by_instant && declaration.shape == Shape::Stream {
            ties.push(Tie::Instant(source, element.ts));
        }
        ties
    }

    fn root(&self, tie: &Tie) -> Tie {
        let mut tie = tie;
        while let Some(parent) = self.parents.get(tie) {
            tie = parent;
        }
        tie.clone()
    }
}
