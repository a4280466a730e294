//! [`ResultSchema`]: the description of a query's rows that a sink gets before the first row.

use std::cmp::Ordering;
use std::sync::Arc;

use weir_model::{Field, Schema, Shape, Type, Value};

/// The unit of instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstantUnit {
    /// Nanoseconds since the Unix epoch.
    Nanoseconds,
    /// A script's integer ticks.
    Ticks,
}

/// One key of the order in which a relation is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortKey {
    /// Position of the column.
    pub column: usize,
    /// Descending order.
    pub descending: bool,
    /// NULLs before everything else, whatever the direction.
    pub nulls_first: bool,
}

/// The description of the rows.
#[derive(Clone, Debug)]
pub struct ResultSchema {
    /// Their columns.
    pub schema: Arc<Schema>,
    /// Rows of a stream or deltas of a relation.
    pub shape: Shape,
    /// The unit of their instants.
    pub clock: InstantUnit,
    /// The display order of a relation; ties are resolved by the values from left to right.
    pub order: Vec<SortKey>,
    /// Raw numbers, without scaled units.
    pub raw: bool,
}

/// The heading of a column: `name`, with the unit if there is one that is not the name itself.
pub(crate) fn name_with_unit(name: &str, field: &Field) -> String {
    let unit = field.unit.symbol();
    match unit.is_empty() || field.ty == Type::Time || name == unit {
        true => name.to_owned(),
        false => format!("{name} [{unit}]"),
    }
}

impl ResultSchema {
    /// The same with the unit of each column in its name, as in `latency [ns]`.
    pub fn with_units(self) -> ResultSchema {
        let renamed = |field: &Field| Field {
            name: name_with_unit(&field.name, field),
            ..field.clone()
        };
        let fields = self.schema.fields.iter().map(renamed).collect();
        ResultSchema {
            schema: Arc::new(Schema::new(fields)),
            ..self
        }
    }

    /// Unique column names, also different from those in `reserved`: a repeated name gets a number.
    pub fn unique_names(&self, reserved: &[&str]) -> Vec<String> {
        let mut taken: Vec<String> = reserved.iter().map(|r| r.to_string()).collect();
        for field in &self.schema.fields {
            let mut name = field.name.clone();
            let mut number = 2;
            while taken.contains(&name) {
                name = format!("{}_{number}", field.name);
                number += 1;
            }
            taken.push(name);
        }
        taken.split_off(reserved.len())
    }

    /// The number of lines of a row of weight `weight`: for a stream one per copy, for a delta one.
    pub(crate) fn lines(&self, weight: i64) -> i64 {
        match self.shape {
            Shape::Stream => weight,
            Shape::Relation => 1,
        }
    }

    /// Compares two rows of a relation for display.
    pub fn compare(&self, a: &[Value], b: &[Value]) -> Ordering {
        let by_key = |key: &SortKey| {
            let (a, b) = (&a[key.column], &b[key.column]);
            match (a.is_null(), b.is_null()) {
                (true, true) => Ordering::Equal,
                (true, false) if key.nulls_first => Ordering::Less,
                (true, false) => Ordering::Greater,
                (false, true) if key.nulls_first => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) if key.descending => b.cmp(a),
                (false, false) => a.cmp(b),
            }
        };
        let ordered = self.order.iter().map(by_key).find(|o| o.is_ne());
        ordered.unwrap_or_else(|| a.cmp(b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_model::{Field, Type};

    fn answer(names: &[&str], order: Vec<SortKey>) -> ResultSchema {
        let fields = names.iter().map(|n| Field::new(*n, Type::Int)).collect();
        ResultSchema {
            schema: Arc::new(Schema::new(fields)),
            shape: Shape::Relation,
            clock: InstantUnit::Ticks,
            order,
            raw: false,
        }
    }

    #[test]
    fn repeated_names_are_made_unique() {
        let answer = answer(&["x", "x", "weight", "x_2"], vec![]);
        assert_eq!(
            answer.unique_names(&["instant", "weight"]),
            ["x", "x_2", "weight_2", "x_2_2"]
        );
    }

    #[test]
    fn rows_are_ordered_by_keys_then_by_values() {
        let key = SortKey {
            column: 1,
            descending: true,
            nulls_first: false,
        };
        let answer = answer(&["a", "b"], vec![key]);
        let mut rows = [
            vec![Value::Int(2), Value::Null],
            vec![Value::Int(3), Value::Int(1)],
            vec![Value::Int(1), Value::Int(1)],
            vec![Value::Int(9), Value::Int(5)],
        ];
        rows.sort_by(|a, b| answer.compare(a, b));
        let first: Vec<String> = rows.iter().map(|r| r[0].to_string()).collect();
        assert_eq!(first, ["9", "1", "3", "2"]);
    }
}
