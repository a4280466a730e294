//! What the running fragments demand of the host's taps, and whether a tap provides it.

use std::collections::BTreeMap;

use weir_model::{Capabilities, Catalog, Clause, Demand, Test};
use weir_query::place;
use weir_query::plan::Plan;

use super::folds::Folds;

/// The tap of requests; it provides all of their streams together.
pub const BLOCK: &str = "block";

/// The demands on each tap, by its name; one demand per stream.
pub type DemandSet = BTreeMap<String, Vec<Demand>>;

/// The streams of an agent.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// The capabilities of its source, and those of the host for the streams that its source lacks.
    pub capabilities: Capabilities,
    /// Whether the events of its source occur now.
    pub is_live: bool,
}

/// The demands of plans, by tap. Only requests of this host are expensive and can be read by two
/// taps at once: their demands are as narrow as the capabilities allow, and may change. Of a
/// recording, and of all other sources everything is demanded, so that the demands never change.
/// Groups that the kernel computes have separate taps.
pub fn wanted<'a>(
    plans: impl Iterator<Item = &'a Plan>,
    served: &Served,
    folds: &Folds,
) -> DemandSet {
    let plans: Vec<&Plan> = plans.collect();
    let mut wanted = DemandSet::new();
    let nothing = Capabilities::default();
    let tested = match served.is_live {
        true => &served.capabilities,
        false => &nothing,
    };
    for demand in place::demands(&plans, tested) {
        if let Some(groups) = folds.demand(&demand.stream) {
            wanted.insert(demand.stream, vec![groups.clone()]);
            continue;
        }
        match served.capabilities.is_of_requests(&demand.stream) {
            true if !served.is_live => {
                let all = || served.requests().collect();
                wanted.entry(BLOCK.into()).or_insert_with(all);
            }
            true => wanted.entry(BLOCK.into()).or_default().push(demand),
            false => {
                let tap = demand.stream.to_ascii_lowercase();
                let declared = served.capabilities.stream(&demand.stream);
                let whole = declared.map(|stream| Demand::whole(&stream.declaration));
                wanted.entry(tap).or_default().push(whole.unwrap_or(demand));
            }
        }
    }
    wanted
}

impl Served {
    /// The reason why a plan cannot run with these streams, if any.
    pub fn refusal(&self, plan: &Plan) -> Option<String> {
        let foreign = |name: &str| self.capabilities.stream(name).is_none();
        let sources = plan.sources();
        let source = sources.into_iter().find(|d| foreign(&d.name))?;
        let kind = source.shape.name();
        Some(format!("the agent has no {kind} `{}`", source.name))
    }

    /// The demands for all rows of the streams of requests that queries can name.
    fn requests(&self) -> impl Iterator<Item = Demand> {
        let catalog = Catalog::builtin();
        let streams = self.capabilities.streams.iter();
        let names = streams.map(|stream| stream.declaration.name.as_str());
        let of_requests = names.filter(|name| self.capabilities.is_of_requests(name));
        let found = of_requests.filter_map(|name| catalog.find(name).map(Demand::whole));
        found.collect::<Vec<Demand>>().into_iter()
    }
}

/// True if a tap that was opened for `open` provides everything that `wanted` demands.
pub fn covers(open: &[Demand], wanted: &[Demand]) -> bool {
    wanted.iter().all(|w| open.iter().any(|o| covers_one(o, w)))
}

fn covers_one(open: &Demand, wanted: &Demand) -> bool {
    // Alternatives of several plans may have been combined to one that is wider than each.
    let passes = |w: &Clause| open.predicate.clauses.iter().any(|o| is_within(w, o));
    open.stream.eq_ignore_ascii_case(&wanted.stream)
        && wanted.columns.iter().all(|c| open.columns.contains(c))
        && (open.predicate.is_all() || wanted.predicate.clauses.iter().all(passes))
}

/// True if every row that passes `clause` passes `wider`; each field is checked separately.
fn is_within(clause: &Clause, wider: &Clause) -> bool {
    let implied = |w: &Test| clause.tests.iter().any(|t| implies(t, w));
    wider.tests.iter().all(implied)
}

/// True if every value that passes `test` passes `wider`.
fn implies(test: &Test, wider: &Test) -> bool {
    match (test, wider) {
        (
            Test::Between { operand, low, high },
            Test::Between {
                operand: wide,
                low: least,
                high: most,
            },
        ) => operand == wide && low >= least && high <= most,
        (
            Test::In { operand, texts },
            Test::In {
                operand: wide,
                texts: more,
            },
        ) => operand == wide && texts.iter().all(|text| more.contains(text)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_model::Catalog;
    use weir_query::{CheckOptions, compile};

    fn plan(text: &str) -> Plan {
        let checked = compile(text, &Catalog::builtin(), &CheckOptions::live());
        (*checked.expect("the query is sound").plan).clone()
    }

    fn served(is_live: bool) -> Served {
        Served {
            capabilities: weir_tap::live::capabilities(),
            is_live,
        }
    }

    fn asked<'a>(plans: impl Iterator<Item = &'a Plan>, recorded: bool) -> DemandSet {
        wanted(plans, &served(!recorded), &Folds::default())
    }

    #[test]
    fn equal_fragments_need_one_demand_and_narrower_ones_are_covered() {
        let narrow = plan("select ts, latency from IO where op = 'r'");
        let wide = plan("select ts, latency, vm from IO");
        let other = plan("select ts, sector from IOstream where type = 'Q'");
        let hundred: Vec<&Plan> = std::iter::repeat_n(&narrow, 100).collect();
        let few = asked(hundred.into_iter(), false);
        assert_eq!(few.len(), 1);
        assert_eq!(few[BLOCK].len(), 1);
        let all = asked([&narrow, &wide, &other].into_iter(), false);
        assert_eq!((all.len(), all[BLOCK].len()), (1, 2));
        assert!(covers(&all[BLOCK], &few[BLOCK]));
        assert!(!covers(&few[BLOCK], &all[BLOCK]));
        assert!(covers(&few[BLOCK], &few[BLOCK]));
    }

    #[test]
    fn alternatives_that_became_one_cover_each() {
        let texts = [
            "select ts from IOstream where type = 'Q'",
            "select ts from IOstream where type = 'R'",
            "select ts from IOstream where type = 'Q' and sector between 8 and 64",
            "select ts from IOstream where type = 'R' and sector between 0 and 63 and op = 'w'",
        ];
        let plans = texts.map(plan);
        let open = asked(plans.iter(), false);
        for plan in &plans {
            assert!(covers(
                &open[BLOCK],
                &asked([plan].into_iter(), false)[BLOCK]
            ));
        }
        let some = asked(plans[2..].iter(), false);
        for plan in &plans[..2] {
            assert!(!covers(
                &some[BLOCK],
                &asked([plan].into_iter(), false)[BLOCK]
            ));
        }
    }

    #[test]
    fn a_relation_has_a_tap_of_its_own() {
        let both = plan("select d.vdisk, v.vm from disks as d, vms as v where d.vm = v.vm");
        assert_eq!(asked([&both].into_iter(), false).len(), 2);
    }

    #[test]
    fn demands_on_a_recording_or_a_relation_never_change() {
        let narrow = plan("select ts from IO where op = 'r'");
        let wide = plan("select * from IOstream");
        let first = asked([&narrow].into_iter(), true);
        assert_eq!(first, asked([&narrow, &wide].into_iter(), true));
        let (few, all) = (plan("select vm from disks"), plan("select * from disks"));
        let first = asked([&few].into_iter(), false);
        assert_eq!(first, asked([&few, &all].into_iter(), false));
    }

    #[test]
    fn what_only_a_monitor_has_is_refused() {
        let agent = served(true);
        assert_eq!(agent.refusal(&plan("select latency from IO")), None);
        let why = agent.refusal(&plan("select total from weir"));
        assert_eq!(why.as_deref(), Some("the agent has no stream `weir`"));
    }
}
