//! Files of alerts: CREATE VIEW and CREATE STREAM, CREATE ALERT, and EXPECT, in this order or any.
//!
//! [`compile_alerts`] makes a [`AlertRule`] of each alert: a plan whose rows have the columns of
//! the alert's query, its labels and annotations, and the values of its conditions. What the states
//! of an instance are is up to the caller, who receives the changes of that relation.

use std::sync::Arc;

use weir_model::{Catalog, Field};

use crate::check::alert::CheckedAlert;
pub use crate::check::alert::{ACTIONS, AlertAct};
use crate::check::{CheckOptions, Checker, merged, sorted_diagnostics};
use crate::diagnostic::{Diagnostic, Span, codes};
use crate::optimize::optimize;
use crate::plan::Plan;
use crate::syntax::ast::{AlertDefinition, Expectation, Statement};
use crate::syntax::parse;
use weir_model::suggest::nearest;

/// Maximum number of alerts in a file.
pub const ALERTS_MAX: usize = 256;

/// The states of an instance, as EXPECT names them.
pub const STATES: [&str; 4] = ["clear", "pending", "firing", "unknown"];

/// A checked alert. Columns are positions in the plan's schema.
#[derive(Clone, Debug)]
pub struct AlertRule {
    /// The name.
    pub name: String,
    /// What it computes, optimized: the columns of its query, labels, annotations, conditions.
    pub plan: Arc<Plan>,
    /// The columns of its query.
    pub columns: Vec<Field>,
    /// Names and columns of the labels, which identify an instance.
    pub labels: Vec<(String, usize)>,
    /// The annotations.
    pub annotations: Vec<Annotation>,
    /// The column of the condition to fire; without it, a row that is present.
    pub when: Option<usize>,
    /// The column of the condition to clear; without it, that the one to fire does not hold.
    pub until: Option<usize>,
    /// How long the condition to fire must hold.
    pub hold_ns: i64,
    /// How long the condition to clear must hold.
    pub hold_clear_ns: i64,
    /// What is done while an instance fires.
    pub act: Option<AlertAct>,
    /// The definition.
    pub text: String,
}

/// What is reported beside the labels of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// The name.
    pub name: String,
    /// The column.
    pub column: usize,
    /// The column is a text in which `{name}` stands for a column of the query.
    pub is_template: bool,
}

/// What a file states about the run of its alerts over a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct AlertExpectation {
    /// The statement.
    pub text: String,
    /// The position of the alert in [`AlertFile::rules`].
    pub rule: usize,
    /// No instance is in the state.
    pub negated: bool,
    /// A position in [`STATES`].
    pub state: usize,
    /// First and last instant since the start of the recording; `None` is the whole recording.
    pub interval_ns: Option<(i64, i64)>,
    /// Values of labels of the instances that are meant.
    pub labels: Vec<(String, String)>,
}

/// A checked file.
#[derive(Clone, Debug)]
pub struct AlertFile {
    /// The alerts, in order.
    pub rules: Vec<AlertRule>,
    /// What is expected of them.
    pub expectations: Vec<AlertExpectation>,
    /// Warnings: what is probably not intended.
    pub warnings: Vec<Diagnostic>,
}

/// Whether a text has a CREATE ALERT, so that it is a file of alerts and not a query.
pub fn has_alerts(text: &str) -> bool {
    let tree = parse(text).tree;
    tree.iter()
        .any(|s| matches!(s, Statement::Alert(_) | Statement::Expect(_)))
}

/// Parses, checks and optimizes a file of alerts.
///
/// # Errors
/// All errors in the text, in the order of the text.
pub fn compile_alerts(
    text: &str,
    catalog: &Catalog,
    options: &CheckOptions,
) -> Result<AlertFile, Vec<Diagnostic>> {
    let parsed = parse(text);
    let mut reader = Reader {
        checker: Checker::new(catalog, *options),
        rules: Vec::new(),
        names: Vec::new(),
    };
    let mut expected = Vec::new();
    for statement in &parsed.tree {
        match statement {
            Statement::View(view) => reader.checker.view(view),
            Statement::Stream(definition) => reader.checker.stream(definition),
            Statement::Alert(alert) => reader.alert(alert),
            Statement::Expect(expectation) => expected.push(expectation),
            Statement::Query(query) => reader.misplaced(query.body.span),
            _ => reader.misplaced(Span::default()),
        }
    }
    let expectations = expected.into_iter().filter_map(|e| reader.expectation(e));
    let expectations: Vec<AlertExpectation> = expectations.collect();
    if reader.names.is_empty() && parsed.diagnostics.is_empty() {
        let end = Span::new(text.len(), text.len());
        let found = codes::NO_ALERT.at(end, "the text has no CREATE ALERT");
        reader.checker.diagnostics.push(found);
    }
    let diagnostics = sorted_diagnostics(merged(parsed.diagnostics, reader.checker.diagnostics));
    match diagnostics.iter().any(Diagnostic::is_error) {
        true => Err(diagnostics),
        false => Ok(AlertFile {
            rules: reader.rules,
            expectations,
            warnings: diagnostics,
        }),
    }
}

struct Reader<'a> {
    checker: Checker<'a>,
    rules: Vec<AlertRule>,
    /// The names of all alerts, also of those with errors.
    names: Vec<String>,
}

impl Reader<'_> {
    fn misplaced(&mut self, span: Span) {
        let message = "a file of alerts has no queries and no other statements";
        let found = codes::NOT_A_STATEMENT.at(span, message);
        let help = "it has CREATE ALERT, EXPECT, CREATE VIEW and CREATE STREAM";
        self.checker.diagnostics.push(found.help(help));
    }

    fn alert(&mut self, alert: &AlertDefinition) {
        let name = &alert.name;
        let same = |other: &String| other.eq_ignore_ascii_case(&name.value);
        let refusal = if self.names.iter().any(same) {
            Some(format!("the alert `{}` already exists", name.value))
        } else if self.names.len() >= ALERTS_MAX {
            Some(format!("a file has at most {ALERTS_MAX} alerts"))
        } else {
            None
        };
        self.names.push(name.value.clone());
        if let Some(message) = refusal {
            let found = codes::DUPLICATE_SOURCE.at(name.span, message);
            self.checker.diagnostics.push(found);
            return;
        }
        if let Some(checked) = self.checker.alert(alert)
            && self.templates_are_valid(alert, &checked)
        {
            self.rules.push(rule(alert, checked));
        }
    }

    /// Checks that each `{name}` of an annotation is a column of the query.
    fn templates_are_valid(&mut self, alert: &AlertDefinition, checked: &CheckedAlert) -> bool {
        let columns = &checked.plan.schema.fields[..checked.own];
        let mut valid = true;
        for ((_, _, is_template), item) in checked.annotations.iter().zip(&alert.annotations) {
            if !is_template {
                continue;
            }
            for name in template_names(&item.to_string()) {
                if columns.iter().any(|c| c.name.eq_ignore_ascii_case(&name)) {
                    continue;
                }
                let message = format!("unknown column `{name}` in the annotation");
                let found = codes::UNKNOWN_COLUMN.at(item.span, message);
                let near = nearest(&name, columns.iter().map(|c| c.name.as_str()));
                self.checker.diagnostics.push(match near {
                    Some(near) => found.help(format!("did you mean `{{{near}}}`?")),
                    None => found.help("select it in the query of the alert"),
                });
                valid = false;
            }
        }
        valid
    }

    fn expectation(&mut self, expected: &Expectation) -> Option<AlertExpectation> {
        let (alert, state) = (&expected.alert, &expected.state);
        let is_state = |s: &&str| s.eq_ignore_ascii_case(&state.value);
        let known = STATES.iter().position(is_state);
        if known.is_none() {
            let message = format!("unknown state `{}`", state.value);
            let found = codes::ALERT_NAME.at(state.span, message);
            let help = "states are pending, firing, clear and unknown";
            self.checker.diagnostics.push(found.help(help));
        }
        let same = |name: &str| name.eq_ignore_ascii_case(&alert.value);
        if !self.names.iter().any(|name| same(name)) {
            let message = format!("unknown alert `{}`", alert.value);
            let found = codes::ALERT_NAME.at(alert.span, message);
            let near = nearest(&alert.value, self.names.iter().map(String::as_str));
            self.checker.diagnostics.push(match near {
                Some(near) => found.help(format!("did you mean `{near}`?")),
                None => found.help("EXPECT names an alert of the same text"),
            });
            return None;
        }
        let rule = self.rules.iter().position(|rule| same(&rule.name))?;
        for (label, _) in &expected.labels {
            let of_rule = &self.rules[rule].labels;
            if !of_rule
                .iter()
                .any(|(name, _)| name.eq_ignore_ascii_case(&label.value))
            {
                let message = format!("`{}` has no label `{}`", alert.value, label.value);
                let found = codes::ALERT_NAME.at(label.span, message);
                let names: Vec<&str> = of_rule.iter().map(|(name, _)| name.as_str()).collect();
                let help = match names.is_empty() {
                    true => "it has no labels".to_owned(),
                    false => format!("its labels are {}", names.join(", ")),
                };
                self.checker.diagnostics.push(found.help(help));
            }
        }
        let interval_ns = match &expected.interval {
            Some((from, to)) => Some((self.checker.elapsed(from)?, self.checker.elapsed(to)?)),
            None => None,
        };
        let labels = expected.labels.iter();
        let labels = labels.map(|(label, value)| (label.value.clone(), value.value.clone()));
        Some(AlertExpectation {
            text: expected.to_string(),
            rule,
            negated: expected.negated,
            state: known?,
            interval_ns,
            labels: labels.collect(),
        })
    }
}

fn rule(alert: &AlertDefinition, checked: CheckedAlert) -> AlertRule {
    let annotation = |(name, column, is_template)| Annotation {
        name,
        column,
        is_template,
    };
    AlertRule {
        name: alert.name.value.clone(),
        columns: checked.plan.schema.fields[..checked.own].to_vec(),
        plan: optimize(&checked.plan),
        labels: checked.labels,
        annotations: checked.annotations.into_iter().map(annotation).collect(),
        when: checked.when,
        until: checked.until,
        hold_ns: checked.hold,
        hold_clear_ns: checked.hold_clear,
        act: checked.act,
        text: alert.to_string(),
    }
}

/// The names in braces of a template.
pub fn template_names(template: &str) -> Vec<String> {
    let parts = template.split('{').skip(1);
    let names = parts.filter_map(|part| part.split_once('}'));
    names.map(|(name, _)| name.trim().to_owned()).collect()
}
