//! [`Prepared`]: a submitted query, checked and split for the fleet.

use std::str::FromStr;
use std::sync::Arc;

use weir_model::{Catalog, Declaration};
use weir_query::optimize::optimize;
use weir_query::place::fleet::published::cut_to_publish;
use weir_query::place::fleet::{
    Cut, CutError, CutOptions, PlacementStrategy, Rates, cut, explain_cut,
};
use weir_query::plan::{Plan, restricted};
use weir_sink::{InstantUnit, ResultSchema};
use weir_wire::{Refusal, Submit};

use super::Monitor;
use crate::client::script;
use crate::config::StandingEntry;
use weir_runtime::failure::Failure;
use weir_runtime::plans;
use weir_runtime::question::QueryText;

/// A query, ready to run.
pub struct Prepared {
    /// The query, split into fragments.
    pub cut: Cut,
    /// The description of its results for clients.
    pub answer: ResultSchema,
    /// The streams that it reads which agents have beside the built-in ones.
    pub streams: Vec<Declaration>,
    options: CutOptions,
}

impl Prepared {
    /// Checks a query, restricts it to the rows of `vm`, if given, and splits it by the requested
    /// placement strategy, else by `strategy`, else by the one with the lowest cost in the current
    /// fleet. It may read `streams` also if no connected agent has them.
    ///
    /// # Errors
    /// The diagnostics, a source that cannot be restricted, or the reason why the requested
    /// strategy is not possible.
    pub fn of(
        submit: &Submit,
        vm: Option<&str>,
        strategy: Option<&str>,
        monitor: &Monitor,
        streams: &[Declaration],
    ) -> Result<Prepared, Refusal> {
        let mut catalog = monitor.catalog();
        for stream in streams {
            if catalog.find(&stream.name).is_none() {
                catalog.declarations.push(stream.clone());
            }
        }
        let words = |failure: Failure| Refusal::Invalid(failure.text());
        let question = QueryText::new(submit.query.clone());
        if question.defines_streams() {
            return Err(Refusal::Invalid(
                "a query of a fleet reads the streams of probes that its agents have, and defines \
                 none; define them at the agents (`weir agent --define FILE`)"
                    .into(),
            ));
        }
        let plan = match &submit.script {
            Some(part) => script::plan(&question, part),
            None => question.check(&catalog, true).map(|checked| checked.plan),
        };
        let mut plan = plan.map_err(words)?;
        if let Some(vm) = vm {
            plan = optimize(&restricted(&plan, vm).map_err(Refusal::Invalid)?);
        }
        let hint = submit
            .place
            .as_deref()
            .or(strategy)
            .map(PlacementStrategy::from_str);
        let hint = hint.transpose().map_err(off)?;
        let options = CutOptions {
            hint,
            // Measurements are those of all VMs.
            rates: match vm {
                Some(_) => Rates::default(),
                None => monitor.rates(),
            },
            capabilities: monitor.capabilities(),
            ..CutOptions::default()
        };
        // Others merge what the agents send: it must not depend on the present rates.
        if submit.standing && submit.place.is_none() && monitor.forwards() {
            let cut = cut_to_publish(&plan, &options);
            return Ok(Prepared::with(cut.map_err(off)?, &plan, options));
        }
        // The strategy that was used before a restart may not be available any more.
        let is_required = submit.place.is_some();
        Prepared::cut(&plan, options, is_required)
    }

    /// Splits a plan by the strategy with the lowest cost in the current fleet.
    ///
    /// # Errors
    /// The reason why that is not possible.
    pub fn of_plan(plan: &Arc<Plan>, monitor: &Monitor) -> Result<Prepared, Refusal> {
        let options = CutOptions {
            rates: monitor.rates(),
            capabilities: monitor.capabilities(),
            ..CutOptions::default()
        };
        Prepared::cut(plan, options, false)
    }

    fn cut(
        plan: &Arc<Plan>,
        mut options: CutOptions,
        is_required: bool,
    ) -> Result<Prepared, Refusal> {
        let cut = match cut(plan, &options) {
            Err(_) if !is_required && options.hint.is_some() => {
                options.hint = None;
                cut(plan, &options)
            }
            other => other,
        };
        Ok(Prepared::with(cut.map_err(off)?, plan, options))
    }

    fn with(cut: Cut, plan: &Arc<Plan>, options: CutOptions) -> Prepared {
        Prepared {
            cut,
            answer: plans::answer(plan, InstantUnit::Nanoseconds, false, false),
            streams: own_streams(plan),
            options,
        }
    }

    /// The placement of each part and its cost: `{"text": "..", "plan": {..}}`.
    pub fn explained(&self) -> serde_json::Value {
        let explanation = explain_cut(&self.cut, &self.options);
        let plan: serde_json::Value =
            serde_json::from_str(&explanation.to_json()).expect("it is written as JSON");
        serde_json::json!({ "text": explanation.to_string(), "plan": plan })
    }
}

fn off(error: CutError) -> Refusal {
    Refusal::Invalid(error.to_string())
}

/// The streams of a plan that are not built in.
fn own_streams(plan: &Plan) -> Vec<Declaration> {
    let builtin = Catalog::builtin();
    let sources = plan.sources().into_iter();
    let own = sources.filter(|source| builtin.find(&source.name).is_none());
    own.cloned().collect()
}

/// Checks the configuration's queries.
///
/// # Errors
/// All errors of the queries.
pub fn check_queries(queries: &[StandingEntry]) -> Result<(), Failure> {
    check_each(queries, |_, _| Ok(()))
}

/// Checks the configuration's queries, and then each valid one by `check`.
///
/// # Errors
/// All errors of the queries.
pub(super) fn check_each(
    queries: &[StandingEntry],
    check: impl Fn(&StandingEntry, &Plan) -> Result<(), String>,
) -> Result<(), Failure> {
    let mut faults = Vec::new();
    for query in queries {
        let question = QueryText {
            text: query.text.clone(),
            file: Some(format!("query `{}`", query.name)),
            definitions: Vec::new(),
        };
        let checked = question.check(&Catalog::builtin(), true);
        let checked = checked.map_err(|failure| failure.text());
        if let Err(why) = checked.and_then(|checked| check(query, &checked.plan)) {
            faults.push(why);
        }
    }
    match faults.is_empty() {
        true => Ok(()),
        false => Err(Failure::Words(faults.join("\n"))),
    }
}
