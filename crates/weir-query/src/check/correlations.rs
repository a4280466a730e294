//! Relation `correlations`: it is computed from stream `IO`, over the window that the query gives.

use std::sync::Arc;

use weir_model::Declaration;
use weir_model::correlation::{CORRELATIONS, correlations_schema};
use weir_workload::correlation::{CorrelatedMetric, WINDOW_STEPS};

use super::from::FromPlan;
use super::scope::Scope;
use super::{Checker, Dialect};
use crate::diagnostic::{Diagnostic, codes, counted};
use crate::disk_load::{self, StepSource};
use crate::plan::{Correlation, Plan, Window};
use crate::syntax::ast::{self, Named, WindowSpec};
use crate::syntax::parse;

/// The length of a step and of a window in seconds, unless the query gives them.
const STEP_SECONDS: i64 = 1;
const WINDOW_SECONDS: i64 = 60;

/// Whether the source is the built-in relation, and not a table of a script with its name.
pub(super) fn is_computed(declaration: &Declaration) -> bool {
    declaration.name == CORRELATIONS && *declaration.schema == correlations_schema()
}

impl Checker<'_> {
    /// The relation: at each multiple of the step the pairs of the windows that end there.
    pub(super) fn correlations(&mut self, named: &Named) -> FromPlan {
        let alias = named.alias.as_ref().unwrap_or(&named.name);
        let plan = self.correlation(named.window.as_ref()).and_then(|by| {
            let step = by.step;
            let load = self.load_of_disks(step, named)?;
            let pairs = Plan::correlate(load, by);
            Some(Plan::window(pairs, Window::range(step, Some(step))))
        });
        let schema = correlations_schema();
        FromPlan {
            plan,
            scope: Scope::of(&alias.value, schema.into(), None),
        }
    }

    /// What a window compares: `[range 5 min slide 1 s]` has 300 steps of 1 s.
    fn correlation(&mut self, window: Option<&ast::WindowClause>) -> Option<Correlation> {
        let second = self.options.second;
        let (size, step) = match window.map(|window| &window.value) {
            None => (WINDOW_SECONDS * second, STEP_SECONDS * second),
            Some(WindowSpec::Error) => return None,
            Some(WindowSpec::Range {
                size,
                slide,
                delay: None,
            }) => {
                let size = self.instants(size);
                let step = match slide {
                    Some(slide) => self.instants(slide),
                    None => Some(STEP_SECONDS * second),
                };
                (size?, step?)
            }
            Some(_) => return self.refuse_window(window, "is not a range with a slide"),
        };
        if size % step != 0 {
            return self.refuse_window(window, "is not a multiple of its slide");
        }
        let steps = usize::try_from(size / step).unwrap_or(usize::MAX);
        if !WINDOW_STEPS.contains(&steps) {
            return self.refuse_window(window, &format!("has {}", counted(steps, "step")));
        }
        Some(Correlation {
            step,
            steps: steps as u32,
            metrics: CorrelatedMetric::ALL.to_vec(),
        })
    }

    fn refuse_window<T>(&mut self, window: Option<&ast::WindowClause>, why: &str) -> Option<T> {
        let span = window.map(|window| window.span).unwrap_or_default();
        let message = format!("the window of `{CORRELATIONS}` {why}");
        let (least, most) = (WINDOW_STEPS.start(), WINDOW_STEPS.end());
        let help = format!(
            "write [range 5 min slide 1 s]: {least} to {most} steps, each as long as the slide"
        );
        self.diagnostics
            .push(codes::CORRELATIONS_WINDOW.at(span, message).help(help));
        None
    }

    /// The load of each disk in each step, from stream `IO` of the catalog.
    fn load_of_disks(&mut self, step: i64, named: &Named) -> Option<Arc<Plan>> {
        let source = match self.options.live {
            true => StepSource::Fleet,
            false => StepSource::Recording,
        };
        // The instants of scripts are seconds.
        let unit = if self.options.second == 1 { "s" } else { "ns" };
        let parsed = parse(&disk_load::query(&format!("{step} {unit}"), source));
        let mut inner = Checker::new(self.catalog, self.options);
        inner.options.dialect = Dialect::Cql;
        let plan = match &parsed.tree[..] {
            [ast::Statement::Query(query)] => inner.top_query(query),
            _ => None,
        };
        let error = inner.diagnostics.iter().find(|d| Diagnostic::is_error(d));
        if let Some(error) = error {
            let message = format!(
                "`{CORRELATIONS}` cannot be computed from `IO`: {}",
                error.message
            );
            self.diagnostics
                .push(codes::UNKNOWN_SOURCE.at(named.name.span, message));
        }
        plan
    }
}
