//! What the running fragments demand of the host's taps, and whether a tap provides it.

use std::collections::BTreeMap;

use weir_model::{Capabilities, Catalog, Clause, Demand, Predicate, Shape, Test};
use weir_query::place;
use weir_query::plan::Plan;
use weir_tap::live::LiveTap;

use super::folds::Folds;

/// The tap of the block layer; it provides all of its streams together.
pub const BLOCK: &str = "block";

/// The streams of the block layer that queries can name.
const BLOCK_STREAMS: [&str; 2] = ["IO", "IOstream"];

/// The demands on each tap, by its name; one demand per stream.
pub type Wanted = BTreeMap<String, Vec<Demand>>;

/// The demands of plans, by tap. Only the block layer of this host is expensive and can be read by
/// two taps at once: its demands are as narrow as its capabilities allow, and may change. Of a
/// recording, which has no `live` capabilities, and of all other sources everything is demanded, so
/// that the demands never change. Groups that the kernel computes have separate taps.
pub fn wanted<'a>(
    plans: impl Iterator<Item = &'a Plan>,
    live: Option<&Capabilities>,
    folds: &Folds,
) -> Wanted {
    let plans: Vec<&Plan> = plans.collect();
    let mut wanted = Wanted::new();
    let nothing = Capabilities::default();
    for demand in place::demands(&plans, live.unwrap_or(&nothing)) {
        if let Some(groups) = folds.demand(&demand.stream) {
            wanted.insert(demand.stream, vec![groups.clone()]);
            continue;
        }
        let tap = tap_of(&demand);
        match tap == BLOCK {
            true if live.is_none() => {
                let all = || BLOCK_STREAMS.iter().map(|s| whole(s)).collect();
                wanted.entry(tap).or_insert_with(all);
            }
            true => wanted.entry(tap).or_default().push(demand),
            false => wanted.entry(tap).or_default().push(whole(&demand.stream)),
        }
    }
    wanted
}

/// The demand for all columns and rows of a stream.
fn whole(stream: &str) -> Demand {
    let catalog = Catalog::builtin();
    let declaration = catalog.find(stream);
    let columns = declaration.map_or(0, |d| d.schema.len());
    Demand {
        stream: stream.to_owned(),
        columns: (0..columns).collect(),
        predicate: Predicate::all(),
        fold: None,
    }
}

/// The reason why a plan cannot run on a host, if any.
pub fn refusal(plan: &Plan) -> Option<String> {
    let foreign = |name: &str| LiveTap::of(name).is_none();
    let sources = plan.sources();
    let source = sources.into_iter().find(|d| foreign(&d.name))?;
    let kind = match source.shape {
        Shape::Stream => "stream",
        Shape::Relation => "relation",
    };
    Some(format!("the agent has no {kind} `{}`", source.name))
}

/// The tap that serves a demand: that of the block layer, or one for the stream. Only the tap of
/// the block layer is shared by streams, since it is expensive.
fn tap_of(demand: &Demand) -> String {
    match LiveTap::of(&demand.stream) {
        Some(tap) if tap.name == BLOCK => BLOCK.to_owned(),
        _ => demand.stream.to_ascii_lowercase(),
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

    fn asked<'a>(plans: impl Iterator<Item = &'a Plan>, recorded: bool) -> Wanted {
        let live = weir_tap::live::capabilities();
        wanted(plans, (!recorded).then_some(&live), &Folds::default())
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
        assert_eq!(refusal(&plan("select latency from IO")), None);
        let why = refusal(&plan("select total from weir"));
        assert_eq!(why.as_deref(), Some("the agent has no stream `weir`"));
    }
}
