//! A query over a fleet, cut: what every agent runs, and what the monitor runs over what they send.
//!
//! ```text
//! select vm, count(*) from IO [range 5 s slide 1 s] where op = 'r' group by vm
//!
//! every agent:  project vm                 the monitor:  aggregate count(*) by vm
//!                 select op = 'r'                          window [range 5 s slide 1 s]
//!                   source IO                                source #0
//! ```
//!
//! 1. [`lower`] proceeds up from the sources and keeps operators on the agents that may run there:
//!    they are *local*, so that the united results of all agents are the same as those over all
//!    rows, and no state is lost with an agent's process. [`local`] and [`lifetime`] decide this.
//!    The [`PlacementStrategy`] determines how many of them are kept there.
//! 2. The local part ends with a [`Fragment`], an ordinary [`Plan`], with only the columns that
//!    the monitor reads. The rest of the plan reads it as a source.
//! 3. A join of two sides that are local runs on the agents. Of the placement strategies with this
//!    property, [`cost`] estimates the costs or uses measurements, and the cheapest is chosen.
//!
//! The invariant: however events are distributed over agents, and whenever agents start, end or are
//! killed, the result of a cut query is that of one engine that receives all events that were sent.
//! Agents guarantee two properties. Each fills column `host` with its own name, never NULL. And
//! numbers of requests (`req_id`) are not the same on two hosts: an agent puts its own number into
//! the high bits.

pub mod cost;
mod explain;
mod lifetime;
mod local;
mod lower;
pub mod published;
mod rates;

use std::fmt;
use std::str::FromStr;

use weir_model::catalog::MONITOR_SOURCES;
use weir_model::{Capabilities, Declaration, NANOS_PER_SECOND};

use crate::plan::{Node, Plan};
pub use cost::Cost;
pub use explain::{FleetExplanation, explain_cut};
pub use rates::{MeasuredFragment, Rates};

/// The placement strategy: how much of a query the agents run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PlacementStrategy {
    /// Selections and projections: only the relevant rows and columns are sent.
    Rows,
    /// Also aggregations over slides: an agent's partials are sent.
    Partials,
    /// Also joins of a host's own streams and relations, and operators over one instant's rows.
    Agent,
}

impl PlacementStrategy {
    /// All strategies, the one with the least work on the agents first.
    pub const ALL: [PlacementStrategy; 3] = [
        PlacementStrategy::Rows,
        PlacementStrategy::Partials,
        PlacementStrategy::Agent,
    ];

    /// `rows`, `partials`, `agent`.
    pub fn name(self) -> &'static str {
        match self {
            PlacementStrategy::Rows => "rows",
            PlacementStrategy::Partials => "partials",
            PlacementStrategy::Agent => "agent",
        }
    }
}

impl fmt::Display for PlacementStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PlacementStrategy {
    type Err = CutError;

    fn from_str(name: &str) -> Result<PlacementStrategy, CutError> {
        let found = PlacementStrategy::ALL
            .into_iter()
            .find(|strategy| strategy.name() == name);
        found.ok_or_else(|| {
            CutError(format!(
                "unknown placement strategy `{name}`: rows, partials or agent"
            ))
        })
    }
}

/// Options for cutting.
#[derive(Clone, Debug)]
pub struct CutOptions {
    /// This strategy instead of the cheapest.
    pub hint: Option<PlacementStrategy>,
    /// Sources that are at the monitor, not at the agents; names are compared without regard to
    /// case.
    pub monitor_sources: Vec<String>,
    /// The number of instants per second: 1 in scripts.
    pub second: i64,
    /// The rates by which strategies are compared.
    pub rates: Rates,
    /// The capabilities of the agents' sources.
    pub capabilities: Capabilities,
}

impl Default for CutOptions {
    /// Live: `hosts` and `weir` are at the monitor, instants are nanoseconds. The capabilities of
    /// the agents' sources are unknown.
    fn default() -> CutOptions {
        CutOptions {
            hint: None,
            monitor_sources: MONITOR_SOURCES.map(String::from).to_vec(),
            second: NANOS_PER_SECOND,
            rates: Rates::default(),
            capabilities: Capabilities::default(),
        }
    }
}

/// Why a query cannot be cut as requested: a sentence without full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutError(pub String);

impl fmt::Display for CutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CutError {}

/// The part that every agent runs, and whose output it sends.
#[derive(Clone, Debug, PartialEq)]
pub struct Fragment {
    /// An ordinary plan. If it is a relation, the monitor's source is one too, of deltas: the
    /// monitor must retract the rows of an agent that has left permanently.
    pub plan: Plan,
    /// Its columns that the monitor replaces by the instant at which it received the row.
    pub intake: Vec<usize>,
}

/// Why an operator runs at the monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The operator, as [`Plan::title_in`] writes it.
    pub operator: String,
    /// The reason: a clause without full stop.
    pub why: String,
}

/// A placement strategy for a query and its costs, or why it is not a candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The strategy.
    pub strategy: PlacementStrategy,
    /// Its costs for an agent, per second: measured for the fragments that are measured, otherwise
    /// estimated.
    ///
    /// # Errors
    /// Why this strategy makes no difference: a clause without full stop.
    pub cost: Result<Cost, String>,
}

/// A query, cut.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// The strategy.
    pub strategy: PlacementStrategy,
    /// The strategies that were considered, in the order of [`PlacementStrategy::ALL`].
    pub candidates: Vec<Candidate>,
    /// The fragments that every agent runs, without duplicates.
    pub fragments: Vec<Fragment>,
    /// The plan of the monitor; the output of fragment `i` is source `#i`.
    pub monitor: Plan,
    /// Why the operators that read fragments are not on the agents, in order of the monitor's plan.
    pub reasons: Vec<Reason>,
}

/// Cuts a query by the cheapest strategy, or by the requested one.
///
/// # Errors
/// When the requested strategy makes no difference to this query, and why.
pub fn cut(plan: &Plan, options: &CutOptions) -> Result<Cut, CutError> {
    let strategies = PlacementStrategy::ALL.map(|strategy| lower::lower(plan, strategy, options));
    let mut candidates: Vec<Candidate> = Vec::new();
    for (at, cut) in strategies.iter().enumerate() {
        let same = strategies[..at].iter().find(|other| is_same(other, cut));
        let cost = match same {
            None => Ok(cost_of(cut, options)),
            Some(other) => Err(why_same(cut, other)),
        };
        candidates.push(Candidate {
            strategy: cut.strategy,
            cost,
        });
    }
    let strategy = match options.hint {
        Some(strategy) => strategy,
        None => cheapest(&candidates, &strategies),
    };
    let at = strategy as usize;
    if let Err(why) = &candidates[at].cost {
        return Err(CutError(format!("`{strategy}` is not possible: {why}")));
    }
    let cut = strategies
        .into_iter()
        .nth(at)
        .expect("there is one of each strategy");
    Ok(Cut { candidates, ..cut })
}

fn is_same(a: &Cut, b: &Cut) -> bool {
    a.fragments == b.fragments && a.monitor == b.monitor
}

/// Why one strategy is the same as another.
fn why_same(cut: &Cut, other: &Cut) -> String {
    let more = match cut.strategy {
        PlacementStrategy::Rows => unreachable!("it is the first"),
        PlacementStrategy::Partials => "since no aggregation can be computed from partials",
        PlacementStrategy::Agent => "because nothing else is local to a host",
    };
    let why = cut.reasons.last();
    let why = why.map(|r| format!(" (`{}`: {})", r.operator, r.why));
    format!(
        "the same as `{}`, {more}{}",
        other.strategy,
        why.unwrap_or_default()
    )
}

/// The costs of a cut for an agent.
fn cost_of(cut: &Cut, options: &CutOptions) -> Cost {
    let costs = cut.fragments.iter().map(|fragment| {
        let plan = &fragment.plan;
        cost::measured(plan, options).unwrap_or_else(|| cost::estimated(plan, options))
    });
    costs.fold(Cost::default(), Cost::and)
}

/// The cheapest strategy of those that run joins where both sides are; of those with equal costs
/// the first.
fn cheapest(candidates: &[Candidate], strategies: &[Cut]) -> PlacementStrategy {
    let possible = || {
        candidates
            .iter()
            .zip(strategies)
            .filter(|(c, _)| c.cost.is_ok())
    };
    let joins_max = possible().map(|(_, cut)| joins_on_agents(cut)).max();
    let costs = possible()
        .filter(|(_, cut)| Some(joins_on_agents(cut)) == joins_max)
        .filter_map(|(c, _)| Some((c.strategy, c.cost.as_ref().ok()?.total_ns())));
    let least = costs.min_by(|(_, a), (_, b)| a.total_cmp(b));
    least.expect("rows are always possible").0
}

fn joins_on_agents(cut: &Cut) -> usize {
    fn joins(plan: &Plan) -> usize {
        let below = plan.inputs().into_iter().map(|input| joins(input));
        usize::from(matches!(plan.node, Node::Join(_))) + below.sum::<usize>()
    }
    cut.fragments.iter().map(|f| joins(&f.plan)).sum()
}

impl Cut {
    /// The name of source `#i` in [`Cut::monitor`]. No name in a query has this prefix.
    pub fn source_name(fragment: usize) -> String {
        format!("#{fragment}")
    }

    /// The plan of the monitor with `names[i]` as the name of the source for fragment `i`.
    ///
    /// # Panics
    /// When there are fewer names than fragments.
    pub fn monitor_over(&self, names: &[String]) -> Plan {
        assert!(names.len() >= self.fragments.len(), "a name a fragment");
        renamed(&self.monitor, &|name| names.get(number_of(name)?).cloned())
    }

    /// The output of a fragment, as a source of the monitor with that name.
    pub fn declaration(&self, fragment: usize, name: &str) -> Declaration {
        self.fragments[fragment].declaration(name)
    }
}

impl Fragment {
    /// Its output, as a source of the monitor with that name.
    pub fn declaration(&self, name: &str) -> Declaration {
        lower::declaration(&self.plan, name.to_owned())
    }
}

/// The fragment of a source, by its name in [`Cut::monitor`].
fn number_of(name: &str) -> Option<usize> {
    name.strip_prefix('#')?.parse().ok()
}

/// The plan over sources with other names.
fn renamed(plan: &Plan, name: &dyn Fn(&str) -> Option<String>) -> Plan {
    let mut plan = super::placement::rebuilt(plan, &mut |input| renamed(input, name));
    if let Node::Source(declaration) = &mut plan.node
        && let Some(name) = name(&declaration.name)
    {
        declaration.name = name;
    }
    plan
}
