//! The first rows of each window, or of all.

use weir_model::Type;

use super::{Block, indented, names, unique};
use crate::expr::Expr;
use crate::flink::expr::expr;
use crate::flink::result::identity;
use crate::flink::tally::without_tally_keys;
use crate::flink::{Untranslatable, refuse};
use crate::plan::{OrderBy, Plan};

impl Block {
    /// The first rows in an order; rows with equal keys are ordered by all columns.
    pub(super) fn first(
        mut self,
        input: &Plan,
        by: &[OrderBy],
        limit: Option<u64>,
        offset: u64,
    ) -> Result<Block, Untranslatable> {
        let Some(limit) = limit.filter(|limit| *limit > 0) else {
            return refuse("Flink has the first N rows of an order only for a LIMIT above 0");
        };
        without_tally_keys(by.iter().map(|key| &key.expr), "ORDER BY")?;
        let count = self.columns.len();
        let mut names = names(&input.schema);
        // The position of each key among the columns.
        let mut keys = Vec::new();
        for key in by {
            keys.push(match key.expr {
                Expr::Column { index, .. } => index,
                _ => {
                    self.columns.push(expr(&key.expr, &self.columns)?);
                    names.push(format!("key_{}", self.columns.len() - count));
                    self.columns.len() - 1
                }
            });
        }
        let mut block = self.nested_as(&unique(names))?;
        let all = block.columns.clone();
        block.columns.truncate(count);
        let mut order = Vec::new();
        for (key, name) in by.iter().zip(keys.iter().map(|at| &all[*at])) {
            // In Flink, NULL is less than every value.
            if key.nulls_first == key.descending {
                let [null, other] = if key.nulls_first { [0, 1] } else { [1, 0] };
                order.push(format!(
                    "CASE WHEN {name} IS NULL THEN {null} ELSE {other} END"
                ));
            }
            let direction = if key.descending { "DESC" } else { "ASC" };
            order.push(format!("{name} {direction}"));
        }
        let others = (0..count).filter(|at| !keys.contains(at));
        for at in others_until_distinct(input, others.collect(), &keys)? {
            order.push(format!("{} ASC", all[at]));
        }
        let order = order.join(", ");
        let from = match &block.window {
            Some(window) => {
                let last = limit.saturating_add(offset);
                block.filters.push(format!("`row_number` <= {last}"));
                if offset > 0 {
                    block.filters.push(format!("`row_number` > {offset}"));
                }
                format!(
                    "SELECT *, ROW_NUMBER() OVER (PARTITION BY {} ORDER BY {order}) AS `row_number`\nFROM {}",
                    window.columns().join(", "),
                    block.from
                )
            }
            // In the form above, an update of a single row does not name the row that it replaces.
            None => {
                let offset = match offset {
                    0 => String::new(),
                    offset => format!(" OFFSET {offset}"),
                };
                format!(
                    "SELECT *\nFROM {}\nORDER BY {order}\nLIMIT {limit}{offset}",
                    block.from
                )
            }
        };
        block.from = format!("(\n{}\n)", indented(&from));
        block.is_growing &= block.is_windowed();
        Ok(block)
    }
}

/// The columns that order rows with equal keys. A tally is never among them: columns before it must
/// distinguish the rows.
fn others_until_distinct(
    input: &Plan,
    mut others: Vec<usize>,
    keys: &[usize],
) -> Result<Vec<usize>, Untranslatable> {
    let is_tally = |at: &usize| input.schema.fields[*at].ty == Type::Tally;
    let Some(first) = others.iter().position(is_tally) else {
        return Ok(others);
    };
    let tally = others[first];
    others.truncate(first);
    let is_compared = |at: &usize| keys.contains(at) || others.contains(at);
    match identity(input) {
        Some(identity) if identity.iter().all(is_compared) => Ok(others),
        _ => refuse(format!(
            "rows with equal keys of ORDER BY would be ordered by the tally `{}`, which Flink \
             compares in another way; select all columns of GROUP BY before it",
            input.schema.fields[tally].name
        )),
    }
}
