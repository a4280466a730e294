//! [`translate`]: a query as Flink SQL (Flink 2.3, streaming mode), where Flink gives the same
//! answer.
//!
//! Flink has no window that is a relation. Its windows are tables: every row once for each window
//! that contains it, with the columns `window_start` and `window_end`. So a relation that changes
//! at the multiples of a slide is a table with these columns, and its content at τ is the rows
//! with `window_end` = τ. A window over all rows is the stream itself, as a table that Flink
//! updates. Other windows change with every row and are refused. The content of a relation that
//! agents send is in windows of the query's size and slide too, in each the one at its end.
//!
//! An instant is nanoseconds in a BIGINT, since event time has milliseconds in Flink: a row at `ts`
//! has event time ⌊(ts - 1) / 10⁶⌋ ms, so that the windows (a, b] of CQL are the windows [a, b) of
//! Flink for whole milliseconds.
//!
//! Sources: Flink 2.3, "Windowing table-valued functions", "Window Aggregation", "Window Join",
//! "Window Top-N" and "Top-N".

mod aggregate;
mod block;
mod expr;
mod result;
mod scalar;
mod table;
mod tally;

use std::fmt::{self, Display, Formatter};

pub use result::{ResultTable, longest_window};
pub use table::{FlinkTable, FlinkView, TopicContent};
pub use tally::ColumnType;

use weir_model::{Capabilities, Declaration, Demand};

use crate::place::demands;
use crate::place::fleet::Cut;
use crate::place::fleet::published::PublishedRows;
use crate::plan::Plan;
use block::Block;

/// The statement that makes `window_end` a time in UTC, and windows multiples since 1970.
pub const ZONE: &str = "SET 'table.local-time-zone' = 'UTC'";

/// Nanoseconds of the unit of Flink's times.
const MILLISECOND: i64 = 1_000_000;

/// The functions of Flink that this project adds (`packaging/flink`), and their classes.
static FUNCTIONS: [FlinkFunction; 10] = [
    FlinkFunction {
        name: "weir_quantile",
        class: "weir.flink.Quantile",
    },
    FlinkFunction {
        name: "weir_double_quantile",
        class: "weir.flink.DoubleQuantile",
    },
    FlinkFunction {
        name: "weir_approx_count_distinct",
        class: "weir.flink.ApproxCountDistinct",
    },
    FlinkFunction {
        name: "weir_merged_quantile",
        class: "weir.flink.MergedQuantile",
    },
    FlinkFunction {
        name: "weir_merged_double_quantile",
        class: "weir.flink.MergedDoubleQuantile",
    },
    FlinkFunction {
        name: "weir_merged_approx_count_distinct",
        class: "weir.flink.MergedApproxCountDistinct",
    },
    FlinkFunction {
        name: "weir_top",
        class: "weir.flink.Top",
    },
    FlinkFunction {
        name: "weir_merged_top",
        class: "weir.flink.MergedTop",
    },
    FlinkFunction {
        name: "weir_histogram",
        class: "weir.flink.Histogram",
    },
    FlinkFunction {
        name: "weir_merged_histogram",
        class: "weir.flink.MergedHistogram",
    },
];

/// A function that Flink does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlinkFunction {
    /// Its name in SQL.
    pub name: &'static str,
    /// Its class in Java.
    pub class: &'static str,
}

impl FlinkFunction {
    /// `CREATE FUNCTION`, of a jar or of what Flink has in its class path.
    pub fn definition(&self, jar: Option<&str>) -> String {
        let using = jar.map_or(String::new(), |jar| format!(" USING JAR {}", text(jar)));
        let FlinkFunction { name, class } = self;
        format!("CREATE TEMPORARY FUNCTION {name} AS '{class}' LANGUAGE JAVA{using}")
    }
}

/// A query in Flink SQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlinkQuery {
    /// The tables that it reads, each once.
    pub tables: Vec<FlinkTable>,
    /// The functions that it calls and Flink does not have.
    pub functions: Vec<FlinkFunction>,
    /// `SELECT ..`. The columns are those of the query, after `window_end` where
    /// [`FlinkQuery::is_windowed`].
    pub select: String,
    /// Whether the result is the content at each multiple of a slide. Otherwise it is one table
    /// that grows or is updated.
    pub is_windowed: bool,
}

/// Why a query has no translation, as a clause without full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untranslatable(pub String);

impl Display for Untranslatable {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Untranslatable {}

/// `Err` with this reason.
fn refuse<T>(reason: impl Into<String>) -> Result<T, Untranslatable> {
    Err(Untranslatable(reason.into()))
}

/// A plan in Flink SQL; its instants are nanoseconds.
///
/// # Errors
/// What Flink does not have, or does not compute in the same way.
pub fn translate(plan: &Plan) -> Result<FlinkQuery, Untranslatable> {
    translate_over(plan, tables_of(plan)?)
}

/// What is left of a query that was cut, in Flink SQL over what is published of it. The rows with
/// number `i` have the name `names[i]`, which is also that of their topic, unless it has the rows
/// of several.
///
/// # Errors
/// As [`translate`], and why the rows of a fragment are not published.
pub fn translate_published(
    cut: &Cut,
    names: &[String],
    topic: TopicContent,
) -> Result<FlinkQuery, Untranslatable> {
    let plan = cut.monitor_over_published(names);
    let pane_ms = table::pane_ms(&plan)?;
    let tables = names.iter().enumerate().map(|(number, name)| {
        let rows = PublishedRows::of(cut, number).map_err(Untranslatable)?;
        FlinkTable::published(name, rows, topic, pane_ms)
    });
    let tables = tables.collect::<Result<Vec<_>, _>>()?;
    let is_known = |d: &&Declaration| tables.iter().any(|table| table.stream == d.name);
    if let Some(other) = plan.sources().into_iter().find(|d| !is_known(d)) {
        return refuse(format!("{} is at the monitor, not in Kafka", other.name));
    }
    translate_over(&plan, tables)
}

fn translate_over(plan: &Plan, tables: Vec<FlinkTable>) -> Result<FlinkQuery, Untranslatable> {
    let block = Block::of(plan, &tables)?;
    let select = block.result(&block::names(&plan.schema))?;
    let called = |function: &&FlinkFunction| select.contains(&format!("{}(", function.name));
    Ok(FlinkQuery {
        tables,
        functions: FUNCTIONS.iter().filter(called).copied().collect(),
        is_windowed: block.is_windowed(),
        select,
    })
}

/// The tables of the streams of a plan, with the columns that it reads.
fn tables_of(plan: &Plan) -> Result<Vec<FlinkTable>, Untranslatable> {
    let demands = demands(&[plan], &Capabilities::default());
    let table = |declaration: &Declaration| {
        let of_it = |demand: &&Demand| demand.stream.eq_ignore_ascii_case(&declaration.name);
        let columns = demands.iter().find(of_it).map(|demand| &demand.columns);
        FlinkTable::new(declaration, columns.map_or(&[], Vec::as_slice))
    };
    plan.sources().into_iter().map(table).collect()
}

/// A name in quotes.
fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

/// A text as a literal.
fn text(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
