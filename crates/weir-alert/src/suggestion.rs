//! [`Suggestions`]: thresholds for the conditions of a rule, from the values that its rows had.
//!
//! For each comparison of a column with a number in WHEN, such as `mean > 20 ms`, the largest value
//! (for `<` the smallest one) with a margin: what a recording of normal operation did not exceed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use weir_model::{Batch, Field, Type, Value};
use weir_query::alert::AlertRule;
use weir_query::expr::BinaryOp;
use weir_query::syntax::ast::{ExprKind, Literal, SpannedExpr, Statement};
use weir_query::syntax::parse;
use weir_sink::{Sink, SinkError};

use crate::event::{label, readable};
use crate::machine::INSTANCES_MAX;

/// Maximum number of values of a column that are kept; beyond, each value is kept with the same
/// probability.
pub const VALUES_MAX: usize = 1 << 18;

/// The significant digits of a suggested threshold.
const DIGITS: i32 = 2;

/// The values of the columns that a rule compares with numbers.
pub struct Suggestions {
    rule: AlertRule,
    comparisons: Vec<ThresholdValues>,
    rows: u64,
    instances: BTreeSet<Vec<Option<String>>>,
    random: fastrand::Rng,
}

/// A comparison of a column with a number.
#[derive(Clone, Debug)]
struct ThresholdValues {
    /// As it is in the rule: `mean > 20 ms`.
    text: String,
    /// The column.
    field: Field,
    /// The condition fires for values above the number, and not below it.
    is_above: bool,
    column: usize,
    operator: &'static str,
    seen: u64,
    values: Vec<f64>,
    smallest: f64,
    largest: f64,
}

/// A threshold, with the values on which it is based.
#[derive(Clone, Debug, PartialEq)]
pub struct Suggestion {
    /// The comparison in the rule.
    pub text: String,
    /// The column.
    pub field: Field,
    /// Half of the values are at most this.
    pub median: f64,
    /// 99 % of the values are at most this.
    pub p99: f64,
    /// The largest value; for `<` the smallest one.
    pub extreme: f64,
    /// The suggested number, in the column's unit.
    pub threshold: f64,
    /// The suggested comparison.
    pub suggested: String,
}

impl Suggestions {
    /// Those of a rule, before its first row.
    pub fn new(rule: &AlertRule) -> Suggestions {
        Suggestions {
            comparisons: comparisons(rule),
            rule: rule.clone(),
            rows: 0,
            instances: BTreeSet::new(),
            random: fastrand::Rng::with_seed(1),
        }
    }

    /// The name of the rule.
    pub fn name(&self) -> &str {
        &self.rule.name
    }

    /// The number of rows that were inserted.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The number of instances, at most [`INSTANCES_MAX`].
    pub fn instances(&self) -> usize {
        self.instances.len()
    }

    /// Whether WHEN compares a column with a number.
    pub fn compares(&self) -> bool {
        !self.comparisons.is_empty()
    }

    /// The thresholds; none for a column without values.
    pub fn all(&self, margin: f64) -> Vec<Suggestion> {
        let all = self.comparisons.iter();
        all.filter_map(|comparison| comparison.suggestion(margin))
            .collect()
    }

    fn take(&mut self, row: &[Value]) {
        self.rows += 1;
        if self.instances.len() < INSTANCES_MAX {
            let fields = &self.rule.plan.schema.fields;
            let labels = self.rule.labels.iter();
            let key = labels.map(|(_, column)| label(fields[*column].ty, &row[*column]));
            self.instances.insert(key.collect());
        }
        for comparison in &mut self.comparisons {
            match row[comparison.column] {
                Value::Int(x) => comparison.take(x as f64, &mut self.random),
                Value::Float(x) if x.is_finite() => comparison.take(x, &mut self.random),
                _ => {}
            }
        }
    }
}

impl ThresholdValues {
    fn take(&mut self, value: f64, random: &mut fastrand::Rng) {
        self.seen += 1;
        self.smallest = self.smallest.min(value);
        self.largest = self.largest.max(value);
        if self.values.len() < VALUES_MAX {
            self.values.push(value);
            return;
        }
        // Vitter, Random sampling with a reservoir, 1985, algorithm R.
        if let Some(kept) = self.values.get_mut(random.u64(..self.seen) as usize) {
            *kept = value;
        }
    }

    fn suggestion(&self, margin: f64) -> Option<Suggestion> {
        let mut values = self.values.clone();
        values.sort_by(f64::total_cmp);
        let quantile = |share: f64| {
            let at = (share * values.len() as f64).ceil() as usize;
            values.get(at.clamp(1, values.len().max(1)) - 1).copied()
        };
        let extreme = if self.is_above {
            self.largest
        } else {
            self.smallest
        };
        // A margin makes a threshold less strict, also for a negative value.
        let is_outward = self.is_above == (extreme >= 0.0);
        let threshold = if is_outward {
            extreme * margin
        } else {
            extreme / margin
        };
        let threshold = rounded(threshold, self.is_above);
        let value = match self.field.ty {
            Type::Int => Value::Int(threshold as i64),
            _ => Value::Float(threshold),
        };
        let (name, operator) = (&self.field.name, self.operator);
        Some(Suggestion {
            text: self.text.clone(),
            field: self.field.clone(),
            median: quantile(0.5)?,
            p99: quantile(0.99)?,
            extreme,
            threshold,
            suggested: format!("{name} {operator} {}", readable(&self.field, &value)),
        })
    }
}

impl Suggestion {
    /// A value of the column with its unit.
    pub fn shown(&self, value: f64) -> String {
        readable(&self.field, &Value::Float(value))
    }
}

/// With [`DIGITS`] significant digits, away from the values.
fn rounded(x: f64, up: bool) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let step = 10_f64.powi(x.abs().log10().floor() as i32 + 1 - DIGITS);
    let steps = if up {
        (x / step).ceil()
    } else {
        (x / step).floor()
    };
    steps * step
}

/// The comparisons of a column of the query with a number in WHEN.
fn comparisons(rule: &AlertRule) -> Vec<ThresholdValues> {
    let mut found = Vec::new();
    for statement in parse(&rule.text).tree {
        if let Statement::Alert(alert) = statement
            && let Some(when) = &alert.when
        {
            collect(when, rule, &mut found);
        }
    }
    found
}

fn collect(expr: &SpannedExpr, rule: &AlertRule, found: &mut Vec<ThresholdValues>) {
    let ExprKind::Binary { op, left, right } = &expr.kind else {
        return;
    };
    let is_above = match op {
        BinaryOp::Greater | BinaryOp::GreaterEqual => true,
        BinaryOp::Less | BinaryOp::LessEqual => false,
        _ => {
            collect(left, rule, found);
            return collect(right, rule, found);
        }
    };
    let (ExprKind::Column { name, .. }, ExprKind::Literal(literal)) = (&left.kind, &right.kind)
    else {
        return;
    };
    let named = |field: &Field| field.name.eq_ignore_ascii_case(&name.value);
    let column = rule.columns.iter().position(named);
    let is_number = matches!(literal, Literal::Number(_) | Literal::Quantity(..));
    if let (Some(column), true) = (column, is_number) {
        found.push(ThresholdValues {
            text: expr.to_string(),
            field: rule.columns[column].clone(),
            is_above,
            column,
            operator: op.symbol(),
            seen: 0,
            values: Vec::new(),
            smallest: f64::INFINITY,
            largest: f64::NEG_INFINITY,
        });
    }
}

/// The sinks that collect the values of rules.
pub fn sinks(rules: &[Arc<Mutex<Suggestions>>]) -> Vec<Box<dyn Sink>> {
    let sink =
        |rule: &Arc<Mutex<Suggestions>>| -> Box<dyn Sink> { Box::new(ValueSink(rule.clone())) };
    rules.iter().map(sink).collect()
}

struct ValueSink(Arc<Mutex<Suggestions>>);

impl Sink for ValueSink {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let mut suggestions = self.0.lock().expect("no panic while held");
        for row in (0..batch.len()).filter(|row| batch.weight(*row) > 0) {
            suggestions.take(&batch.row(row));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use weir_model::{Catalog, NANOS_PER_SECOND};
    use weir_query::alert::compile_alerts;
    use weir_query::{CheckOptions, Dialect};

    use super::*;

    fn suggestions(when: &str) -> Suggestions {
        let text = format!(
            "create alert a as select pdisk, avg(latency) as mean, count(*) as n
             from IO [range 1 s] group by pdisk when {when}"
        );
        let options = CheckOptions {
            second: NANOS_PER_SECOND,
            dialect: Dialect::Cql,
            live: true,
        };
        let file = compile_alerts(&text, &Catalog::builtin(), &options).unwrap();
        Suggestions::new(&file.rules[0])
    }

    fn row(mean: f64, n: i64) -> Vec<Value> {
        vec![Value::text("sda"), Value::Float(mean), Value::Int(n)]
    }

    #[test]
    fn a_threshold_is_beyond_every_value_in_two_digits() {
        let mut suggestions = suggestions("n < 3 or (mean > 20 ms and n > mean)");
        for i in 1..=1_000 {
            suggestions.take(&row(f64::from(i) * 1_230.0, 700 - i64::from(i % 400)));
        }
        let all = suggestions.all(1.2);
        let texts: Vec<&str> = all.iter().map(|s| s.suggested.as_str()).collect();
        // The smallest count is 301: 250.8 is rounded down. The largest mean is 1.23 ms.
        assert_eq!(texts, ["n < 250", "mean > 1.5 ms"]);
        assert_eq!((all[1].median, all[1].p99), (615_000.0, 1_217_700.0));
        assert_eq!((suggestions.rows(), suggestions.instances()), (1_000, 1));
    }

    #[test]
    fn a_rule_without_a_comparison_has_no_threshold() {
        assert!(!suggestions("n > 2 * mean").compares());
        assert!(
            suggestions("n > 2").all(1.2).is_empty(),
            "there are no values"
        );
    }

    #[test]
    fn rounding_is_away_from_the_values() {
        assert_eq!(
            [rounded(1_234.0, true), rounded(1_234.0, false)],
            [1_300.0, 1_200.0]
        );
        assert_eq!([rounded(0.0, true), rounded(-7.77, true)], [0.0, -7.7]);
    }
}
