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
//! 1. [`lower`] goes up from the sources and keeps on the agents what may run there: what is
//!    *local*, so that running it on each agent and uniting what comes gives the same as running it
//!    over all, and of which no state is lost with an agent's process. [`local`] and [`lasting`] say
//!    what is. How much of that is wanted is the [`Way`].
//! 2. Where the local part ends there is a [`Fragment`], an ordinary [`Plan`], with as few columns
//!    as the monitor reads. The rest of the plan reads it as a source.
//! 3. A join of two sides that are local is made on the agents. Of the ways that do so, [`cost`]
//!    estimates what each costs, or takes what was measured, and the cheapest is taken.
//!
//! The law: however the events are dealt over agents, and whenever agents come, end or are killed,
//! what a cut query gives is what one engine gives that sees all events that were sent. Two things
//! are promised of the agents. Each fills column `host` with its own name, never NULL. And numbers
//! of requests (`req_id`) are not the same on two hosts: an agent puts its own number into the high
//! bits.

pub mod cost;
mod explain;
mod lasting;
mod local;
mod lower;
mod rates;

use std::fmt;
use std::str::FromStr;

use weir_model::catalog::MONITOR_SOURCES;
use weir_model::{Capabilities, Declaration, NANOS_PER_SECOND};

use crate::plan::{Node, Plan};
pub use cost::Cost;
pub use explain::{FleetExplanation, explain_cut};
pub use rates::{Measured, Rates};

/// How much of a query the agents run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Way {
    /// Selections and projections: the rows that matter are forwarded, as narrow as can be.
    Rows,
    /// Besides, aggregations over slides: what an agent has of each group is forwarded.
    Partials,
    /// Besides, joins of a host's own streams and relations, and what is made of one instant's rows.
    Agent,
}

impl Way {
    /// All ways, the one that asks least of the agents first.
    pub const ALL: [Way; 3] = [Way::Rows, Way::Partials, Way::Agent];

    /// `rows`, `partials`, `agent`.
    pub fn name(self) -> &'static str {
        match self {
            Way::Rows => "rows",
            Way::Partials => "partials",
            Way::Agent => "agent",
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Way {
    type Err = CutError;

    fn from_str(name: &str) -> Result<Way, CutError> {
        let found = Way::ALL.into_iter().find(|way| way.name() == name);
        found.ok_or_else(|| CutError(format!("there is no way `{name}`: rows, partials or agent")))
    }
}

/// How to cut.
#[derive(Clone, Debug)]
pub struct CutOptions {
    /// This way instead of the cheapest.
    pub hint: Option<Way>,
    /// Sources that are at the monitor, not at the agents; names are compared without regard to
    /// case.
    pub monitor_sources: Vec<String>,
    /// How many instants a second has: 1 in scripts.
    pub second: i64,
    /// How much happens, which decides between the ways.
    pub rates: Rates,
    /// What the sources of the agents can do.
    pub capabilities: Capabilities,
}

impl Default for CutOptions {
    /// Live: `hosts` and `weir` are at the monitor, instants are nanoseconds. Nothing is known of what
    /// agents' sources can do.
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

/// Why a query cannot be cut as it is asked for: a sentence without full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutError(pub String);

impl fmt::Display for CutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CutError {}

/// What every agent runs, and sends what it gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Fragment {
    /// An ordinary plan. Where it is a relation, the monitor's source is one too, of deltas: what
    /// an agent that is gone for good had in it must be taken out by the monitor.
    pub plan: Plan,
    /// The columns of it in which the monitor puts the instant when it took the row in, in place of
    /// what comes.
    pub intake: Vec<usize>,
}

/// Why an operator runs no lower than at the monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The operator, as [`Plan::title_in`] writes it.
    pub operator: String,
    /// Why: a clause without full stop.
    pub why: String,
}

/// A way of cutting a query and what it costs, or why there is none.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The way.
    pub way: Way,
    /// What it costs an agent, per second: as measured as far as its fragments are measured, the
    /// rest estimated.
    ///
    /// # Errors
    /// Why this way makes no difference: a clause without full stop.
    pub cost: Result<Cost, String>,
}

/// A query, cut.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// The way.
    pub way: Way,
    /// The ways that were looked at, in the order of [`Way::ALL`].
    pub candidates: Vec<Candidate>,
    /// What every agent runs; none twice.
    pub fragments: Vec<Fragment>,
    /// What the monitor runs; what fragment `i` gives is source `#i`.
    pub monitor: Plan,
    /// Why the operators that read fragments are not on the agents, in order of the monitor's plan.
    pub reasons: Vec<Reason>,
}

/// Cuts a query in the way that costs least, or in the one that is asked for.
///
/// # Errors
/// When the way that is asked for makes no difference to this query, and why.
pub fn cut(plan: &Plan, options: &CutOptions) -> Result<Cut, CutError> {
    let ways = Way::ALL.map(|way| lower::lower(plan, way, options));
    let mut candidates: Vec<Candidate> = Vec::new();
    for (at, cut) in ways.iter().enumerate() {
        let same = ways[..at].iter().find(|other| is_same(other, cut));
        let cost = match same {
            None => Ok(cost_of(cut, options)),
            Some(other) => Err(why_same(cut, other)),
        };
        candidates.push(Candidate { way: cut.way, cost });
    }
    let way = match options.hint {
        Some(way) => way,
        None => cheapest(&candidates, &ways),
    };
    let at = way as usize;
    if let Err(why) = &candidates[at].cost {
        return Err(CutError(format!("`{way}` is not possible: {why}")));
    }
    let cut = ways.into_iter().nth(at).expect("there is one of each way");
    Ok(Cut { candidates, ..cut })
}

fn is_same(a: &Cut, b: &Cut) -> bool {
    a.fragments == b.fragments && a.monitor == b.monitor
}

/// Why one way is no other than another.
fn why_same(cut: &Cut, other: &Cut) -> String {
    let more = match cut.way {
        Way::Rows => unreachable!("it is the first"),
        Way::Partials => "since no aggregation can be put together of parts",
        Way::Agent => "since nothing more is local to a host",
    };
    let why = cut.reasons.last();
    let why = why.map(|r| format!(" (`{}`: {})", r.operator, r.why));
    format!(
        "it is the same as `{}`, {more}{}",
        other.way,
        why.unwrap_or_default()
    )
}

/// What a cut costs an agent.
fn cost_of(cut: &Cut, options: &CutOptions) -> Cost {
    let costs = cut.fragments.iter().map(|fragment| {
        let plan = &fragment.plan;
        cost::measured(plan, options).unwrap_or_else(|| cost::estimated(plan, options))
    });
    costs.fold(Cost::default(), Cost::and)
}

/// The way that costs least of those that make joins where both sides are; of those that cost the
/// same the first.
fn cheapest(candidates: &[Candidate], ways: &[Cut]) -> Way {
    let possible = || candidates.iter().zip(ways).filter(|(c, _)| c.cost.is_ok());
    let joins_max = possible().map(|(_, cut)| joins_on_agents(cut)).max();
    let costs = possible()
        .filter(|(_, cut)| Some(joins_on_agents(cut)) == joins_max)
        .filter_map(|(c, _)| Some((c.way, c.cost.as_ref().ok()?.total_ns())));
    let least = costs.min_by(|(_, a), (_, b)| a.total_cmp(b));
    least.expect("rows are always possible").0
}

fn joins_on_agents(cut: &Cut) -> usize {
    fn joins(plan: &Plan) -> usize {
        let below = plan.inputs().into_iter().map(|input| joins(input));
        usize::from(matches!(plan.node, Node::Join { .. })) + below.sum::<usize>()
    }
    cut.fragments.iter().map(|f| joins(&f.plan)).sum()
}

impl Cut {
    /// What source `#i` is called in [`Cut::monitor`]. No name in a query begins so.
    pub fn source_name(fragment: usize) -> String {
        format!("#{fragment}")
    }

    /// What the monitor runs where the source that gives what fragment `i` gives is called
    /// `names[i]`.
    ///
    /// # Panics
    /// When there are fewer names than fragments.
    pub fn monitor_over(&self, names: &[String]) -> Plan {
        assert!(names.len() >= self.fragments.len(), "a name a fragment");
        renamed(&self.monitor, &|name| {
            let number: usize = name.strip_prefix('#')?.parse().ok()?;
            names.get(number).cloned()
        })
    }

    /// What a fragment gives, as a source of the monitor called `name`.
    pub fn declaration(&self, fragment: usize, name: &str) -> Declaration {
        lower::declaration(&self.fragments[fragment].plan, name.to_owned())
    }
}

/// The plan over sources of other names.
fn renamed(plan: &Plan, name: &dyn Fn(&str) -> Option<String>) -> Plan {
    let mut plan = super::placement::rebuilt(plan, &mut |input| renamed(input, name));
    if let Node::Source(declaration) = &mut plan.node
        && let Some(name) = name(&declaration.name)
    {
        declaration.name = name;
    }
    plan
}
