//! [`ColumnMapping`]: the conversion of a tap's columns to the names and units of a script's
//! `register stream`.

use arrow_array::{Array, Int64Array};
use weir_model::{Batch, Column};

/// One column of the script's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedColumn {
    /// Position among the tap's columns.
    pub index: usize,
    /// The number of the tap's units in one of the script's: 1,000 for microseconds from
    /// nanoseconds.
    pub divisor: i64,
}

/// The columns of a tap that form a stream declared by a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnMapping(pub Vec<MappedColumn>);

impl ColumnMapping {
    /// Converts a batch to the columns of the script's stream.
    pub fn apply(&self, batch: &Batch) -> Batch {
        let columns = self.0.iter().map(|mapped| {
            let column = &batch.columns[mapped.index];
            match column {
                Column::Int(values) if mapped.divisor != 1 => {
                    Column::Int(divided(values, mapped.divisor))
                }
                column => column.clone(),
            }
        });
        Batch {
            ts: batch.ts.clone(),
            weights: batch.weights.clone(),
            columns: columns.collect(),
        }
    }
}

fn divided(values: &Int64Array, divisor: i64) -> Int64Array {
    let rounded_down = values.values().iter().map(|v| v.div_euclid(divisor));
    Int64Array::new(rounded_down.collect(), values.nulls().cloned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_model::{Type, Value};

    #[test]
    fn columns_are_picked_and_counted_in_the_scripts_unit() {
        let ts = Column::from_values(Type::Time, [Value::Int(21_295_029_999), Value::Null]);
        let batch = Batch::stream(vec![1, 2], vec![Column::ints(vec![7, 8]), ts]);
        let mapped = |index, divisor| MappedColumn { index, divisor };
        let out = ColumnMapping(vec![mapped(1, 1_000), mapped(0, 1)]).apply(&batch);
        assert_eq!(out.row(0), [Value::Int(21_295_029), Value::Int(7)]);
        assert_eq!(out.row(1), [Value::Null, Value::Int(8)]);
    }
}
