//! `weir explain`: the plan, and the location of each of its operators with the reason.

use std::fmt::{self, Display, Formatter, Write};

use weir_model::spread::SPREADS;
use weir_model::{
    Capabilities, Declaration, Demand, Dimension, NANOS_PER_SECOND, Operand, PartialKind,
    Predicate, Schema, Shape, Test, Type, Unit,
};

use super::fold::Grouping;
use super::kernel::SourceStream;
use super::{Placement, kernel};
use crate::expr::Expr;
use crate::plan::{Node, Plan, show};
use crate::syntax::measure::MEASURES;

/// The location of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// In the source, by the name of its part that observes requests: `kernel` on a live host.
    Source(&'static str),
    /// In the engine on the host.
    Agent,
    /// In the engine that merges the results of several hosts.
    Monitor,
}

/// In an eBPF program of this host.
const KERNEL: Location = Location::Source("kernel");

impl Location {
    /// `kernel` (or another part of a source), `agent`, `monitor`.
    pub fn name(self) -> &'static str {
        match self {
            Location::Source(part) => part,
            Location::Agent => "agent",
            Location::Monitor => "monitor",
        }
    }
}

/// One operator of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Operator {
    /// Its depth below the result.
    pub depth: usize,
    /// Its description, in one line.
    pub title: String,
    /// Names, types and units of its columns.
    pub columns: Vec<(String, Type, Unit)>,
    /// Stream or relation.
    pub shape: Shape,
    /// Its location.
    pub place: Location,
    /// The reason for the location, and the remaining work elsewhere; full sentences without full
    /// stop.
    pub notes: Vec<String>,
}

/// A plan with the locations of its operators.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The operators, the result first, every operator before its inputs.
    pub operators: Vec<Operator>,
    /// The demands on the tap.
    pub demands: Vec<Demand>,
    /// The sources' columns, in the order of `demands`.
    pub(super) sources: Vec<Declaration>,
}

/// The location of each operator of `plan` on one host, live, with nanoseconds as instants, if the
/// tap delivers rows.
pub fn explain(plan: &Plan, capabilities: &Capabilities) -> Explanation {
    let placement = Placement::of_rows(&[plan], capabilities);
    explain_placed(plan, &placement, NANOS_PER_SECOND)
}

/// As [`explain`], for a plan that was placed.
pub fn explain_placed(plan: &Plan, placement: &Placement, second: i64) -> Explanation {
    let demands = &placement.demands;
    let sources: Vec<Declaration> = plan.sources().into_iter().cloned().collect();
    let sources = demands.iter().filter_map(|demand| {
        sources
            .iter()
            .find(|s| s.name.eq_ignore_ascii_case(&demand.stream))
            .cloned()
    });
    let mut explanation = Explanation {
        operators: Vec::new(),
        sources: sources.collect(),
        demands: demands.clone(),
    };
    let span = |instants: i64| span_text(instants, second);
    let placed = Placed {
        placement,
        folded: placement.folded(plan),
        span: &span,
    };
    placed.operators(plan, 0, None, &mut explanation.operators);
    explanation
}

/// A plan with its placement.
struct Placed<'a> {
    placement: &'a Placement,
    /// The aggregations that read groups, each with the demand for these.
    folded: Vec<(Plan, &'a Demand)>,
    span: &'a dyn Fn(i64) -> String,
}

impl Placed<'_> {
    /// Adds `plan` and all below it. `fold` is the demand for groups of an aggregation above, if
    /// there is one.
    fn operators(&self, plan: &Plan, depth: usize, fold: Option<&Demand>, out: &mut Vec<Operator>) {
        let own = self.folded.iter().find(|(aggregate, _)| aggregate == plan);
        let fold = own.map(|(_, demand)| *demand).or(fold);
        let (place, notes) = match (&plan.node, fold) {
            (Node::Aggregate { .. } | Node::Partial { .. }, Some(demand)) => {
                (KERNEL, fold_notes(plan, demand))
            }
            (Node::Aggregate { .. } | Node::Partial { .. }, None) => {
                let why = self.placement.why_not(plan);
                let note = why.map(|why| format!("not aggregated at the source: {why}"));
                (Location::Agent, note.into_iter().collect())
            }
            (Node::Window { .. } | Node::Project { .. }, Some(_)) => (KERNEL, Vec::new()),
            (Node::Select { predicate, .. }, Some(demand)) => {
                self.fold_select_notes(plan, predicate, demand)
            }
            (Node::Source(declaration), Some(demand)) => {
                let notes = rows_text(&demand.predicate, &declaration.schema);
                let names = column_names(demand, declaration);
                let note = format!("delivers groups {notes}, and {names} of rows that do not fit");
                (KERNEL, vec![note])
            }
            (_, None) => self.place(plan),
            _ => (Location::Agent, Vec::new()),
        };
        let columns = plan.schema.fields.iter();
        out.push(Operator {
            depth,
            title: plan.title_in(self.span),
            columns: columns.map(|f| (f.name.clone(), f.ty, f.unit)).collect(),
            shape: plan.shape,
            place,
            notes,
        });
        for input in plan.inputs() {
            self.operators(input, depth + 1, fold, out);
        }
    }

    /// The location of an operator with single rows as input.
    fn place(&self, plan: &Plan) -> (Location, Vec<String>) {
        match &plan.node {
            Node::Source(declaration) => {
                let mut demands = self.placement.demands.iter();
                let demand = demands.find(|d| d.stream == declaration.name && d.fold.is_none());
                let selects = self.placement.capabilities.selects(declaration);
                let place = match selects {
                    true => KERNEL,
                    false => Location::Agent,
                };
                let notes = demand.map(|d| source_notes(d, declaration, selects));
                (place, notes.unwrap_or_default())
            }
            Node::Select { input, predicate } => self.select_place(input, predicate),
            Node::Window { window, .. } => {
                let remark = window.kind().remark().map(String::from);
                (Location::Agent, remark.into_iter().collect())
            }
            Node::Join(_) => {
                let why = self.placement.why_not(plan);
                let note = why.map(|why| format!("not computed from the tap's pairs: {why}"));
                (Location::Agent, note.into_iter().collect())
            }
            _ => (Location::Agent, Vec::new()),
        }
    }

    /// The location of a selection below folded groups.
    fn fold_select_notes(
        &self,
        select: &Plan,
        predicate: &Expr,
        demand: &Demand,
    ) -> (Location, Vec<String>) {
        let fields = select.schema.fields.as_slice();
        let Ok(source) = stream_source(select) else {
            return (Location::Agent, Vec::new());
        };
        let source = SourceStream::new(source, &self.placement.capabilities);
        let (mut place, mut notes) = (Location::Agent, Vec::new());
        for condition in predicate.clone().conjuncts() {
            let tested = kernel::tested(&condition, source);
            match tested.exact && !demand.predicate.is_all() {
                true => place = KERNEL,
                false => notes.push(format!(
                    "`{}` is tested by the agent, once per group",
                    show(&condition, fields)
                )),
            }
        }
        (place, notes)
    }

    /// The location of a selection, condition by condition.
    fn select_place(&self, input: &Plan, predicate: &Expr) -> (Location, Vec<String>) {
        let fields = input.schema.fields.as_slice();
        let declaration = match stream_source(input) {
            Ok(declaration) => declaration,
            Err(why) => return (Location::Agent, vec![why]),
        };
        let source = SourceStream::new(declaration, &self.placement.capabilities);
        let (mut kernel, mut agent) = (Vec::new(), Vec::new());
        for condition in predicate.clone().conjuncts() {
            let text = show(&condition, fields).to_string();
            match kernel::superset(&condition, source).is_all() {
                false if !self.placement.capabilities.selects(declaration) => {
                    let why = "the source may leave out parts without such rows".to_owned();
                    agent.push((why, text));
                }
                false => kernel.push(text),
                true => agent.push((why_not(&condition, declaration, source), text)),
            }
        }
        let mut notes = Vec::new();
        if !agent.is_empty() {
            let place = if kernel.is_empty() {
                Location::Agent
            } else {
                KERNEL
            };
            for (why, text) in agent {
                notes.push(format!("`{text}` is tested by the agent: {why}"));
            }
            return (place, notes);
        }
        (KERNEL, notes)
    }
}

/// The values that the kernel keeps for each group, and the remaining work of the agent.
fn fold_notes(aggregate: &Plan, demand: &Demand) -> Vec<String> {
    let (Ok(grouping), Some(fold)) = (Grouping::of(aggregate), &demand.fold) else {
        return Vec::new();
    };
    let name = |at: &usize| grouping.source.schema[*at].name.as_str();
    let kept = fold.calls.iter().map(|call| {
        let of = call.column.as_ref().map_or("rows", name);
        match (&call.keep, call.column) {
            (PartialKind::Moments, None) => "count".to_owned(),
            (PartialKind::Moments, _) => format!("count, sum, min and max of {of}"),
            (PartialKind::Limits(limits), _) => {
                format!("{of} in buckets with {} limits", limits.len())
            }
            (PartialKind::LogLinear { bits }, _) => {
                format!("{of} in {} bins per power of two", 1 << bits)
            }
        }
    });
    let kept: Vec<String> = kept.collect();
    let keys: Vec<&str> = fold.keys.iter().map(name).collect();
    let by = match keys.is_empty() {
        true => String::new(),
        false => format!(" by {}", keys.join(", ")),
    };
    let merged = match grouping.panes {
        1 => String::new(),
        panes => format!(" of {panes} slides"),
    };
    vec![
        format!("aggregates{by}: {}", kept.join("; ")),
        format!("the agent merges the groups{merged} and the remaining rows"),
    ]
}

/// A duration in the largest unit in which it is a whole number.
pub fn span_text(instants: i64, second: i64) -> String {
    let units = MEASURES
        .iter()
        .rev()
        .filter(|m| m.dimension == Dimension::Time);
    let nanos = i128::from(instants) * i128::from(NANOS_PER_SECOND) / i128::from(second);
    let unit = units.into_iter().find(|m| nanos % i128::from(m.scale) == 0);
    match unit {
        Some(unit) if second > 1 => format!("{} {}", nanos / i128::from(unit.scale), unit.name),
        _ => format!("{instants} ticks"),
    }
}

/// The rows and columns that the source delivers.
fn source_notes(demand: &Demand, source: &Declaration, selects: bool) -> Vec<String> {
    let columns = column_names(demand, source);
    let rows = rows_text(&demand.predicate, &source.schema);
    let parts = match selects || demand.predicate.is_all() {
        true => "",
        false => ", and perhaps others",
    };
    vec![format!("delivers {columns} {rows}{parts}")]
}

/// The columns that are delivered.
fn column_names(demand: &Demand, source: &Declaration) -> String {
    let all = source.schema.len();
    let names = demand
        .columns
        .iter()
        .map(|i| source.schema[*i].name.as_str());
    match demand.columns.len() {
        0 => "rows without columns".to_owned(),
        n if n == all => "all columns".to_owned(),
        _ => names.collect::<Vec<_>>().join(", "),
    }
}

/// The rows that are delivered.
fn rows_text(predicate: &Predicate, schema: &Schema) -> String {
    match predicate {
        p if p.is_all() => "of every row".to_owned(),
        p if p.clauses.is_empty() => "of no rows, because none can match".to_owned(),
        p => format!("of rows where {}", predicate_text(p, schema)),
    }
}

/// The stream that a selection reads, or why it does not read one.
fn stream_source(plan: &Plan) -> Result<&Declaration, String> {
    match &plan.node {
        Node::Source(declaration) => Ok(declaration),
        Node::Select { input, .. } => stream_source(input),
        Node::Window { input, window } if window.kind().is_per_row() => stream_source(input),
        Node::Window { .. } => {
            Err("the window counts rows, including those that do not match".into())
        }
        Node::Aggregate { .. } | Node::Partial { .. } | Node::Merge { .. } => {
            Err("it tests a result of the agent's aggregation".into())
        }
        Node::Join(_) => Err("it tests a result of the agent's join".into()),
        _ => Err("it tests a result of the agent's computation".into()),
    }
}

/// Why a condition is not tested at the source.
fn why_not(condition: &Expr, declaration: &Declaration, source: SourceStream<'_>) -> String {
    let mut unknown = Vec::new();
    condition.visit_columns(&mut |i| {
        let name = &declaration.schema[i].name;
        if !source.is_tested(i) && !unknown.contains(name) {
            unknown.push(name.clone());
        }
    });
    match unknown.as_slice() {
        [] => "it is not a comparison of one column with constants".into(),
        [one] => format!("`{one}` is not available at the source"),
        several => format!("{} are not available at the source", several.join(", ")),
    }
}

/// `(op in ('r') and latency >= 1000000) or ..`
fn predicate_text(predicate: &Predicate, schema: &Schema) -> String {
    let clauses = predicate.clauses.iter().map(|clause| {
        let tests: Vec<String> = clause.tests.iter().map(|t| test_text(t, schema)).collect();
        tests.join(" and ")
    });
    let clauses: Vec<String> = clauses.collect();
    match clauses.as_slice() {
        [one] => one.clone(),
        several => several
            .iter()
            .map(|c| format!("({c})"))
            .collect::<Vec<_>>()
            .join(" or "),
    }
}

fn test_text(test: &Test, schema: &Schema) -> String {
    let column = &schema[test.operand().column()].name;
    let name = match test.operand() {
        Operand::Value(_) => column.clone(),
        Operand::Sample(_) => format!("the sample number of {column}"),
    };
    match test {
        Test::Between {
            operand: Operand::Sample(_),
            low: 0,
            high,
        } => {
            let share = (*high + 1) as f64 / SPREADS as f64;
            format!("sample({column}, {})", (share * 1e6).round() / 1e6)
        }
        Test::Between {
            low: i64::MIN,
            high: i64::MAX,
            ..
        } => format!("{name} is not null"),
        Test::Between { low, high, .. } if low == high => format!("{name} = {low}"),
        Test::Between {
            low: i64::MIN,
            high,
            ..
        } => format!("{name} <= {high}"),
        Test::Between {
            low,
            high: i64::MAX,
            ..
        } => format!("{name} >= {low}"),
        Test::Between { low, high, .. } => format!("{name} between {low} and {high}"),
        Test::In { texts, .. } => {
            let texts: Vec<String> = texts.iter().map(|t| format!("'{t}'")).collect();
            format!("{name} in ({})", texts.join(", "))
        }
    }
}

fn column_text((name, ty, unit): &(String, Type, Unit)) -> String {
    match unit {
        Unit::None => format!("{name} {ty}"),
        _ if *ty == Type::Time => format!("{name} {ty}"),
        unit => format!("{name} {ty} {unit}"),
    }
}

impl Display for Explanation {
    /// The schema of the result, and then the tree with its locations.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(result) = self.operators.first() {
            let shape = result.shape.name();
            let columns: Vec<String> = result.columns.iter().map(column_text).collect();
            writeln!(f, "{shape} ({})\n", columns.join(", "))?;
        }
        let width = |o: &Operator| 2 * o.depth + o.title.chars().count();
        // Long lines do not affect the alignment of the others.
        const ALIGNED_MAX: usize = 72;
        let widths = self
            .operators
            .iter()
            .map(width)
            .filter(|w| *w <= ALIGNED_MAX);
        let column = widths.max().unwrap_or(0) + 2;
        for operator in &self.operators {
            let indent = 2 * operator.depth;
            let gap = column.saturating_sub(width(operator)).max(2);
            let place = operator.place.name();
            writeln!(f, "{:indent$}{}{:gap$}-> {place}", "", operator.title, "")?;
            for note in &operator.notes {
                writeln!(f, "{:1$}{note}", "", indent + 4)?;
            }
        }
        Ok(())
    }
}

impl Explanation {
    /// The same of a source other than this host: with the name of its part that observes requests.
    #[must_use]
    pub fn at_source(mut self, part: &'static str) -> Explanation {
        for operator in &mut self.operators {
            if let Location::Source(name) = &mut operator.place {
                *name = part;
            }
        }
        self
    }

    /// As one JSON object: `{"operators": [..], "demands": [..]}`.
    pub fn to_json(&self) -> String {
        let operators = self.operators.iter().map(|o| {
            let columns = o.columns.iter().map(|(name, ty, unit)| {
                let unit = match unit {
                    Unit::None => "null".into(),
                    unit => json_text(unit.symbol()),
                };
                let (name, ty) = (json_text(name), json_text(ty.name()));
                format!("{{\"name\":{name},\"type\":{ty},\"unit\":{unit}}}")
            });
            let shape = if o.shape == Shape::Stream { "stream" } else { "relation" };
            format!(
                "{{\"depth\":{},\"operator\":{},\"shape\":\"{shape}\",\"place\":\"{}\",\"columns\":[{}],\"notes\":[{}]}}",
                o.depth,
                json_text(&o.title),
                o.place.name(),
                columns.collect::<Vec<_>>().join(","),
                o.notes.iter().map(|n| json_text(n)).collect::<Vec<_>>().join(","),
            )
        });
        let demands = self
            .demands
            .iter()
            .zip(&self.sources)
            .map(|(demand, source)| {
                let columns = demand
                    .columns
                    .iter()
                    .map(|i| json_text(&source.schema[*i].name));
                let rows = match demand.predicate.is_all() {
                    true => "null".into(),
                    false => json_text(&predicate_text(&demand.predicate, &source.schema)),
                };
                let groups = demand.fold.as_ref().map(|fold| {
                    let keys = fold.keys.iter().map(|i| json_text(&source.schema[*i].name));
                    let keys = keys.collect::<Vec<_>>().join(",");
                    format!(
                        ",\"groups\":{{\"by\":[{keys}],\"every\":{}}}",
                        fold.interval
                    )
                });
                let groups = groups.unwrap_or_default();
                format!(
                    "{{\"stream\":{},\"columns\":[{}],\"rows\":{rows}{groups}}}",
                    json_text(&demand.stream),
                    columns.collect::<Vec<_>>().join(","),
                )
            });
        let operators = operators.collect::<Vec<_>>().join(",");
        let demands = demands.collect::<Vec<_>>().join(",");
        format!("{{\"operators\":[{operators}],\"demands\":[{demands}]}}")
    }
}

/// A text as a JSON string (RFC 8259, section 7).
pub(super) fn json_text(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if u32::from(c) < 0x20 => {
                write!(out, "\\u{:04x}", u32::from(c)).expect("memory holds it");
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::live::live;
    use crate::{CheckOptions, compile};
    use weir_model::Catalog;

    #[test]
    fn the_json_form_has_the_same_content() {
        let query = "select op, latency as \"a\\b\" from IO [range 1 s] where latency > 1 ms";
        let query = query.replace("\"a\\b\"", "`a\"b`");
        let checked = compile(&query, &Catalog::builtin(), &CheckOptions::live());
        let explanation = explain(&checked.expect("the query is right").plan, &live());
        let json = explanation.to_json();
        assert!(
            json.contains(r#"{"name":"a\"b","type":"integer","unit":"ns"}"#),
            "{json}"
        );
        let demands =
            r#""demands":[{"stream":"IO","columns":["op","latency"],"rows":"latency >= 1000001"}]"#;
        assert!(json.contains(demands), "{json}");
        let operators = explanation.operators.len();
        assert_eq!(json.matches("\"place\":").count(), operators);
    }
}
