//! [`Prepared`]: a query as it was asked, checked and cut for the fleet.

use std::str::FromStr;

use weir_model::Catalog;
use weir_query::place::fleet::{Cut, CutError, CutOptions, Way, cut, explain_cut};
use weir_sink::{Answer, Clock};
use weir_tap::live;
use weir_wire::{Refusal, Submit};

use super::Monitor;
use crate::client::script;
use crate::config::StandingEntry;
use weir_runtime::failure::Failure;
use weir_runtime::plans;
use weir_runtime::question::Question;

/// A query, ready to run.
pub struct Prepared {
    /// The query, cut.
    pub cut: Cut,
    /// What those who watch it are told.
    pub answer: Answer,
    options: CutOptions,
}

impl Prepared {
    /// Checks a query and cuts it in the way that it asks for, else in `way`, else where it costs
    /// least in the fleet as it is.
    ///
    /// # Errors
    /// The diagnostics, or why it cannot be cut as it is asked for.
    pub fn of(submit: &Submit, way: Option<&str>, monitor: &Monitor) -> Result<Prepared, Refusal> {
        let words = |failure: Failure| Refusal::Invalid(failure.text());
        let question = Question {
            text: submit.query.clone(),
            file: None,
        };
        let plan = match &submit.script {
            Some(part) => script::plan(&question, part),
            None => question
                .check(&Catalog::builtin(), true)
                .map(|checked| checked.plan),
        };
        let plan = &plan.map_err(words)?;
        let hint = submit.place.as_deref().or(way).map(Way::from_str);
        let off = |error: CutError| Refusal::Invalid(error.to_string());
        let mut options = CutOptions {
            hint: hint.transpose().map_err(off)?,
            rates: monitor.rates(),
            capabilities: live::capabilities(),
            ..CutOptions::default()
        };
        let first = cut(plan, &options);
        let cut = match first {
            // The way that was taken before a restart may be no other than another one by now.
            Err(_) if submit.place.is_none() && options.hint.is_some() => {
                options.hint = None;
                cut(plan, &options)
            }
            other => other,
        };
        Ok(Prepared {
            cut: cut.map_err(off)?,
            answer: plans::answer(plan, Clock::Nanoseconds, false, false),
            options,
        })
    }

    /// Where each part of it runs, and what it costs: `{"text": "..", "plan": {..}}`.
    pub fn explained(&self) -> serde_json::Value {
        let explanation = explain_cut(&self.cut, &self.options);
        let plan: serde_json::Value =
            serde_json::from_str(&explanation.to_json()).expect("it is written as JSON");
        serde_json::json!({ "text": explanation.to_string(), "plan": plan })
    }
}

/// Checks the configuration's queries.
///
/// # Errors
/// All that is wrong with them.
pub fn check_queries(queries: &[StandingEntry]) -> Result<(), Failure> {
    let mut faults = Vec::new();
    for query in queries {
        let question = Question {
            text: query.text.clone(),
            file: Some(format!("query `{}`", query.name)),
        };
        if let Err(failure) = question.check(&Catalog::builtin(), true) {
            faults.push(failure.text());
        }
    }
    match faults.is_empty() {
        true => Ok(()),
        false => Err(Failure::Words(faults.join("\n"))),
    }
}
