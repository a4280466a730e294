//! Blocks of two inputs: joins and set operations.

use super::{Block, FlinkWindow, indented, names, reads_content};
use crate::flink::expr::expr;
use crate::flink::table::FlinkTable;
use crate::flink::tally::{same_tallies, without_tallies, without_tally_keys};
use crate::flink::{Untranslatable, quoted, refuse};
use crate::plan::{JoinKind, JoinNode, Plan, SetOp};

/// Why others are not joined.
const OTHER_WINDOWS: &str = "Flink joins windows only with the same size and slide";

impl Block {
    /// A join of two relations.
    pub(super) fn joined(join: &JoinNode, tables: &[FlinkTable]) -> Result<Block, Untranslatable> {
        without_tally_keys(join.on.iter().flat_map(|(l, r)| [l, r]), "the join")?;
        if let JoinKind::Semi | JoinKind::Anti = join.kind
            && [&join.left, &join.right]
                .iter()
                .any(|side| reads_content(side, tables))
        {
            return Block::joined_with_keys(join, tables);
        }
        let mut sides = Vec::new();
        for (plan, alias) in [(&join.left, "l"), (&join.right, "r")] {
            let names = names(&plan.schema);
            let block = Block::of(plan, tables)?;
            sides.push(block.nested_named(&names, alias)?);
        }
        let [left, right]: [Block; 2] = sides.try_into().ok().expect("two sides");
        let window = match (&left.window, &right.window) {
            (None, None) => None,
            (Some(l), Some(r)) if l.is(r) => Some((l.clone(), r.clone())),
            _ => return refuse(OTHER_WINDOWS),
        };
        let in_window = window.as_ref().map(|(l, r)| l.is_same_as(r));
        let mut conditions = in_window.unwrap_or_default();
        for (l, r) in &join.on {
            let (l, r) = (expr(l, &left.columns)?, expr(r, &right.columns)?);
            conditions.push(format!("{l} = {r}"));
        }
        let both = [left.columns.clone(), right.columns.clone()].concat();
        if let Some(residual) = &join.residual {
            conditions.push(expr(residual, &both)?);
        }
        let (l, r) = (&left.from, &right.from);
        let on = match conditions.is_empty() {
            true => "TRUE".to_owned(),
            false => conditions.join(" AND "),
        };
        let outer = |word: &str| format!("{l}\n{word} {r}\nON {on}");
        let exists = |not: &str| {
            let inner = format!("SELECT * FROM {r}\nWHERE {on}");
            vec![format!("{not}EXISTS (\n{}\n)", indented(&inner))]
        };
        let (from, filters) = match join.kind {
            JoinKind::Inner => (outer("JOIN"), vec![]),
            JoinKind::Left => (outer("LEFT JOIN"), vec![]),
            JoinKind::Right => (outer("RIGHT JOIN"), vec![]),
            JoinKind::Full if window.is_some() => {
                return refuse("a full join of windows has no window of its own in Flink");
            }
            JoinKind::Full => (outer("FULL JOIN"), vec![]),
            JoinKind::Semi => (l.clone(), exists("")),
            JoinKind::Anti => (l.clone(), exists("NOT ")),
            JoinKind::NotIn => {
                return refuse(
                    "NOT IN is false beside a NULL, which no join of Flink computes; write NOT EXISTS",
                );
            }
        };
        let window = window.map(|(l, r)| match join.kind {
            JoinKind::Right => r,
            _ => l,
        });
        let is_windowed = window.is_some();
        Ok(Block {
            columns: match join.kind {
                JoinKind::Semi | JoinKind::Anti => left.columns,
                _ => both,
            },
            filters,
            window,
            is_growing: left.is_growing
                && right.is_growing
                && (is_windowed || join.kind == JoinKind::Inner),
            ..Block::from(from)
        })
    }

    /// A semijoin or an antijoin as a join with the keys of the other side, each once: Flink does
    /// not plan EXISTS where rows are those of an array.
    fn joined_with_keys(join: &JoinNode, tables: &[FlinkTable]) -> Result<Block, Untranslatable> {
        if join.residual.is_some() {
            return refuse(
                "Flink plans EXISTS with a relation of the hosts only for conditions that are \
                 equalities; write a join and SELECT DISTINCT",
            );
        }
        let left = Block::of(&join.left, tables)?;
        let left = left.nested_named(&names(&join.left.schema), "l")?;
        let mut right = Block::of(&join.right, tables)?;
        if right.groups.is_some() {
            right = right.nested(&join.right.schema)?;
        }
        let keys = join.on.iter().map(|(_, r)| expr(r, &right.columns));
        right.columns = keys.collect::<Result<Vec<_>, _>>()?;
        let key_names: Vec<String> = (1..=join.on.len()).map(|i| format!("key_{i}")).collect();
        let mut right = right.nested_as(&key_names)?;
        let columns = right.columns.clone();
        right = right.grouped(columns).nested_named(&key_names, "r")?;
        let (of_left, of_right) = match (&left.window, &right.window) {
            (Some(l), Some(r)) if l.is(r) => (l, r),
            _ => return refuse(OTHER_WINDOWS),
        };
        let mut conditions = of_left.is_same_as(of_right);
        for ((l, _), key) in join.on.iter().zip(&right.columns) {
            conditions.push(format!("{} = {key}", expr(l, &left.columns)?));
        }
        let is_absent = format!("{} IS NULL", of_right.end);
        let (word, filters) = match join.kind {
            JoinKind::Anti => ("LEFT JOIN", vec![is_absent]),
            _ => ("JOIN", vec![]),
        };
        let on = conditions.join(" AND ");
        let from = format!("{}\n{word} {}\nON {on}", left.from, right.from);
        Ok(Block {
            columns: left.columns,
            filters,
            window: left.window,
            ..Block::from(from)
        })
    }

    /// A set operation.
    pub(super) fn combined(
        inputs: [&Plan; 2],
        op: SetOp,
        all: bool,
        tables: &[FlinkTable],
    ) -> Result<Block, Untranslatable> {
        if (op, all) != (SetOp::Union, true) {
            without_tallies(&inputs[0].schema.fields, "the set operation")?;
        }
        same_tallies(inputs)?;
        let names = names(&inputs[0].schema);
        let mut parts = Vec::new();
        let mut windows = Vec::new();
        let mut is_growing = op == SetOp::Union && all;
        for plan in inputs {
            let block = Block::of(plan, tables)?;
            is_growing &= block.is_growing;
            windows.push(block.window.clone());
            parts.push(block.select(&names)?);
        }
        let window = match &windows[..] {
            [None, None] => None,
            [Some(l), Some(r)] if l.is(r) && op == SetOp::Union => Some(l.clone()),
            [Some(_), Some(_)] if op != SetOp::Union => {
                return refuse(
                    "INTERSECT and EXCEPT of windows would be kept for ever in Flink; write a join, EXISTS or NOT EXISTS",
                );
            }
            _ => return refuse("a set operation needs windows with the same size and slide"),
        };
        let word = match (op, all) {
            // Rows of a union are made distinct below, within their window.
            (SetOp::Union, _) => "UNION ALL",
            (SetOp::Intersect, false) => "INTERSECT",
            (SetOp::Intersect, true) => "INTERSECT ALL",
            (SetOp::Except, false) => "EXCEPT",
            (SetOp::Except, true) => "EXCEPT ALL",
        };
        let of_both = format!("{}\n{word}\n{}", parts[0], parts[1]);
        let columns: Vec<String> = names.iter().map(|name| quoted(name)).collect();
        let groups = (op == SetOp::Union && !all).then(|| columns.clone());
        let is_windowed = window.is_some();
        Ok(Block {
            columns,
            groups,
            window: window.map(|window| FlinkWindow {
                start: quoted("window_start"),
                end: quoted("window_end"),
                ..window
            }),
            is_growing: is_growing || is_windowed,
            ..Block::from(format!("(\n{}\n)", indented(&of_both)))
        })
    }
}
