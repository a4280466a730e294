//! [`ResultTable`]: the table of Flink that the rows of a windowed query are written to.
//!
//! Flink writes a row again after a failure. So each row has a key: the end of its window, and the
//! values by which the rows of one window differ. A row with the key of an earlier one replaces it.

use weir_model::Nanos;

use super::block::{names, unique};
use super::{ColumnType, FlinkQuery, MILLISECOND, Untranslatable, quoted, refuse, text};
use crate::expr::Expr;
use crate::plan::{JoinKind, Node, Plan, sliding_windows};

/// The column with the end of the window.
const WINDOW_END: &str = "window_end";

/// The table of the rows of a windowed query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultTable {
    /// Its name in SQL, which is that of its topic.
    pub name: String,
    /// The columns of the query, as Flink names them.
    pub columns: Vec<(String, ColumnType)>,
    /// The columns by which the rows of one window differ.
    pub identity: Vec<usize>,
    /// The name of the column with the key.
    key: String,
}

impl ResultTable {
    /// The table for the rows of a query.
    ///
    /// # Errors
    /// If the query has no windows, or nothing distinguishes a row from one that is written again.
    pub fn new(name: &str, plan: &Plan, flink: &FlinkQuery) -> Result<ResultTable, Untranslatable> {
        if !flink.is_windowed {
            return refuse(
                "without windows that end, Flink updates its result for ever; add a slide, as in [range 10 s slide 1 s]",
            );
        }
        let Some(identity) = identity(plan) else {
            return refuse(
                "nothing distinguishes a row of the result from one that Flink writes again after a failure; select all columns of GROUP BY, or use SELECT DISTINCT",
            );
        };
        let names = names(&plan.schema);
        let mut columns = Vec::with_capacity(names.len());
        for (at, name) in names.into_iter().enumerate() {
            columns.push((name, ColumnType::of(plan, at)?));
        }
        let mut all: Vec<String> = columns.iter().map(|(name, _)| name.clone()).collect();
        all.push("key".into());
        let key = unique(all).pop().expect("it was pushed");
        Ok(ResultTable {
            name: name.to_owned(),
            columns,
            identity,
            key,
        })
    }

    /// `CREATE TABLE`: rows are JSON in a topic of Kafka, with a text as their key.
    pub fn definition(&self, with: &[(String, String)]) -> String {
        let columns = self
            .columns
            .iter()
            .map(|(name, ty)| format!("  {} {}", quoted(name), sql(*ty)));
        let own = [
            ("connector", "kafka"),
            ("topic", self.name.as_str()),
            ("key.format", "raw"),
            ("key.fields", &self.key),
            ("value.format", "json"),
            ("value.fields-include", "EXCEPT_KEY"),
            ("value.json.timestamp-format.standard", "ISO-8601"),
        ];
        let all = own.into_iter().chain(
            with.iter()
                .map(|(key, value)| (key.as_str(), value.as_str())),
        );
        let options = all.map(|(key, value)| format!("  {} = {}", text(key), text(value)));
        format!(
            "CREATE TABLE {} (\n  {} STRING NOT NULL,\n  {} TIMESTAMP_LTZ(3),\n{}\n) WITH (\n{}\n)",
            quoted(&self.name),
            quoted(&self.key),
            quoted(WINDOW_END),
            columns.collect::<Vec<_>>().join(",\n"),
            options.collect::<Vec<_>>().join(",\n"),
        )
    }

    /// `INSERT INTO`, of the windows that end at or after `from`.
    pub fn insert(&self, flink: &FlinkQuery, from: Option<Nanos>) -> String {
        let end = quoted(WINDOW_END);
        let identity = self.identity.iter().map(|at| quoted(&self.columns[*at].0));
        let key: Vec<String> = [format!("CAST({end} AS STRING)")]
            .into_iter()
            .chain(identity)
            .collect();
        let columns = self
            .columns
            .iter()
            .map(|(name, ty)| format!("CAST({} AS {})", quoted(name), sql(*ty)));
        let columns: Vec<String> = columns.collect();
        let mut sql = format!(
            "INSERT INTO {}\nSELECT JSON_ARRAY({} NULL ON NULL), CAST({end} AS TIMESTAMP_LTZ(3)), {}\nFROM (\n{}\n)",
            quoted(&self.name),
            key.join(", "),
            columns.join(", "),
            flink.select,
        );
        if let Some(from) = from {
            let ms = from.div_euclid(MILLISECOND);
            sql += &format!("\nWHERE {end} >= CAST(TO_TIMESTAMP_LTZ({ms}, 3) AS TIMESTAMP(3))");
        }
        sql
    }
}

fn sql(ty: ColumnType) -> String {
    ty.sql().expect("checked when the table was made")
}

/// The columns by which the rows of one window of a query differ, if any do.
pub(super) fn identity(plan: &Plan) -> Option<Vec<usize>> {
    match &plan.node {
        Node::Select { input, .. } | Node::Order { input, .. } | Node::ToStream { input, .. } => {
            identity(input)
        }
        Node::Aggregate { keys, .. } => Some((0..keys.len()).collect()),
        Node::Merge { keys, .. } => Some((0..*keys).collect()),
        Node::Distinct { .. } | Node::SetOp { all: false, .. } => {
            Some((0..plan.schema.fields.len()).collect())
        }
        Node::Project { input, exprs } => {
            let position = |at: usize| {
                let is_it = |e: &Expr| matches!(e, Expr::Column { index, .. } if *index == at);
                exprs.iter().position(is_it)
            };
            identity(input)?.into_iter().map(position).collect()
        }
        Node::Join(join) => match join.kind {
            JoinKind::Semi | JoinKind::Anti | JoinKind::NotIn => identity(&join.left),
            _ => {
                let columns = join.left.schema.fields.len();
                let right = identity(&join.right)?.into_iter().map(|at| columns + at);
                Some(identity(&join.left)?.into_iter().chain(right).collect())
            }
        },
        _ => None,
    }
}

/// The longest window of a query over a stream or over what agents send.
pub fn longest_window(plan: &Plan) -> Nanos {
    let sizes = sliding_windows(plan).into_iter();
    sizes.filter_map(|(size, _)| size).max().unwrap_or(0)
}
