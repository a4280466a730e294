//! [`Block`]: one SELECT of Flink SQL under construction.

mod combine;
mod first;

use std::iter;

use weir_model::{Declaration, NANOS_PER_SECOND, Schema, Value};

use super::expr::{expr, value};
use super::table::FlinkTable;
use super::tally::{without_tallies, without_tally_keys};
use super::{MILLISECOND, Untranslatable, aggregate, quoted, refuse};
use crate::expr::{Expr, fold_expr};
use crate::function::{AggregateCall, Shared};
use crate::place::fleet::published::{OF_WINDOWS, WindowEnds};
use crate::place::span_text;
use crate::plan::{Node, Plan, ToStream};
use crate::window::Window;

/// The parts of a SELECT. What a plan's node does is added to that of its input where the order of
/// SQL's clauses permits it; otherwise that becomes a table in FROM.
pub(super) struct Block {
    /// The columns, as SQL over `from`.
    columns: Vec<String>,
    /// What it reads.
    from: String,
    /// The table of the stream, if `from` is one.
    table: Option<usize>,
    /// Conditions of WHERE.
    filters: Vec<String>,
    /// GROUP BY, without the window.
    groups: Option<Vec<String>>,
    /// Conditions of HAVING.
    havings: Vec<String>,
    window: Option<FlinkWindow>,
    /// The columns over an empty group, where Flink has no row for it and CQL does.
    empty: Option<Vec<Expr>>,
    /// Rows are only ever added.
    is_growing: bool,
}

/// A window of Flink, in milliseconds, and how the block names its columns.
#[derive(Clone)]
struct FlinkWindow {
    size_ms: i64,
    slide_ms: i64,
    start: String,
    end: String,
}

impl FlinkWindow {
    fn is(&self, other: &FlinkWindow) -> bool {
        (self.size_ms, self.slide_ms) == (other.size_ms, other.slide_ms)
    }

    fn columns(&self) -> [&str; 2] {
        [&self.start, &self.end]
    }

    /// The conditions for rows of the same window of another table.
    fn is_same_as(&self, other: &FlinkWindow) -> Vec<String> {
        let pairs = self.columns().into_iter().zip(other.columns());
        pairs.map(|(l, r)| format!("{l} = {r}")).collect()
    }
}

impl Block {
    pub(super) fn of(plan: &Plan, tables: &[FlinkTable]) -> Result<Block, Untranslatable> {
        match &plan.node {
            Node::Source(declaration) => Block::of_source(declaration, tables),
            Node::Window { input, window } => {
                let title = plan.title_in(&|instants| span_text(instants, NANOS_PER_SECOND));
                let text = title.trim_start_matches("window ");
                Block::of(input, tables)?.windowed(window, text, tables)
            }
            Node::Select { input, predicate } => Block::of(input, tables)?.selected(predicate),
            Node::Project { input, exprs } => Block::of(input, tables)?.projected(exprs),
            Node::Aggregate {
                input, keys, calls, ..
            } => {
                let mut block = Block::of(input, tables)?;
                if block.groups.is_some() {
                    block = block.nested(&input.schema)?;
                }
                block.aggregated(&input.schema, keys, calls)
            }
            Node::Distinct { input } => {
                without_tallies(&input.schema.fields, "DISTINCT")?;
                let mut block = Block::of(input, tables)?;
                if block.groups.is_some() || !block.columns.iter().all(|c| is_name(c)) {
                    block = block.nested(&input.schema)?;
                }
                let columns = block.columns.clone();
                Ok(block.grouped(columns))
            }
            Node::Join(join) => Block::joined(join, tables),
            Node::SetOp {
                left,
                right,
                op,
                all,
            } => Block::combined([left, right], *op, *all, tables),
            Node::Order {
                input,
                by,
                limit,
                offset,
            } => {
                let block = Block::of(input, tables)?;
                // The order of a relation's rows is a matter of who shows it.
                match (limit, offset) {
                    (None, 0) => Ok(block),
                    _ => block.first(input, by, *limit, *offset),
                }
            }
            Node::ToStream {
                kind: ToStream::Rstream { every: None },
                input,
            } if reads_content(input, tables) => refuse(
                "Rstream gives all rows also where a relation changes, between the ends of windows; omit it: each row of the result has its window_end",
            ),
            Node::ToStream { input, kind } => Block::of(input, tables)?.streamed(*kind),
            Node::Over { .. } => refuse(
                "Flink has window functions over the rows of a window only for the first N of them",
            ),
            Node::Match { .. } => refuse("MATCH_RECOGNIZE is not translated"),
            Node::Correlate { .. } => refuse("Flink has no correlation of disks"),
            Node::Merge {
                input,
                size,
                slide,
                keys,
                calls,
                ..
            } => Block::merged(input, (*size, *slide), *keys, calls, tables),
            Node::Partial { .. } => refuse("an agent's part of a query is not translated"),
        }
    }

    fn of_source(
        declaration: &Declaration,
        tables: &[FlinkTable],
    ) -> Result<Block, Untranslatable> {
        let block = Block::of_stream(declaration, tables);
        let ends = block.table.and_then(|at| tables[at].content_at());
        let Some(WindowEnds { size, slide }) = ends else {
            return Ok(block);
        };
        let mut block = block.in_windows((size, slide), &window_text(size, slide), tables)?;
        block.filters.push(FlinkTable::is_at_end());
        Ok(block)
    }

    fn of_stream(declaration: &Declaration, tables: &[FlinkTable]) -> Block {
        let of_stream = |table: &FlinkTable| table.stream == declaration.name;
        let table = tables.iter().position(of_stream);
        Block {
            columns: table.map_or_else(Vec::new, |at| tables[at].fields(declaration)),
            table,
            ..Block::from(quoted(&declaration.name))
        }
    }

    fn from(from: String) -> Block {
        Block {
            columns: Vec::new(),
            from,
            table: None,
            filters: Vec::new(),
            groups: None,
            havings: Vec::new(),
            window: None,
            empty: None,
            is_growing: true,
        }
    }

    pub(super) fn is_windowed(&self) -> bool {
        self.window.is_some()
    }

    /// The relation of a window over this stream.
    fn windowed(
        self,
        window: &Window,
        text: &str,
        tables: &[FlinkTable],
    ) -> Result<Block, Untranslatable> {
        let range = match window {
            Window::Unbounded(unbounded) if unbounded.slide.is_none() => return Ok(self),
            Window::Range(range) => range,
            _ => {
                return refuse(format!(
                    "Flink has no window like {text}: write [range SIZE slide SLIDE]"
                ));
            }
        };
        let Some(slide) = range.slide else {
            return refuse(format!(
                "the content of {text} changes with every row; windows of Flink end at multiples of a slide: add `slide`, as in [range 10 s slide 1 s]"
            ));
        };
        self.in_windows((range.size, slide), text, tables)
    }

    /// Its rows once for each window that contains them.
    fn in_windows(
        mut self,
        (size, slide): (i64, i64),
        text: &str,
        tables: &[FlinkTable],
    ) -> Result<Block, Untranslatable> {
        let (Some(at), None) = (self.table.take(), &self.groups) else {
            return refuse(format!("{text} reads the result of a query, not a stream"));
        };
        if size % MILLISECOND != 0 || slide % MILLISECOND != 0 {
            return refuse(format!("{text} does not have whole milliseconds"));
        }
        if size % slide != 0 {
            return refuse(format!("the size of {text} is not a multiple of its slide"));
        }
        let (size_ms, slide_ms) = (size / MILLISECOND, slide / MILLISECOND);
        self.from = tables[at].windows(size_ms, slide_ms);
        self.window = Some(FlinkWindow {
            size_ms,
            slide_ms,
            start: quoted("window_start"),
            end: quoted("window_end"),
        });
        Ok(self)
    }

    /// Partials that agents send, merged over a window.
    fn merged(
        input: &Plan,
        (size, slide): (Option<i64>, i64),
        keys: usize,
        calls: &[AggregateCall],
        tables: &[FlinkTable],
    ) -> Result<Block, Untranslatable> {
        let Node::Source(declaration) = &input.node else {
            return refuse("partials are merged as they are sent only");
        };
        let block = Block::of_stream(declaration, tables);
        let rows = block.table.and_then(|at| tables[at].rows());
        let Some(rows) = rows else {
            return refuse("partials that are not published are not merged");
        };
        let Some(size) = size else {
            return refuse("an unbounded window of partials has no end");
        };
        let text = window_text(size, slide);
        let mut block = block.in_windows((size, slide), &text, tables)?;
        let keys: Vec<String> = rows.keys(keys).map(quoted).collect();
        let shared = Shared::of(calls);
        let results = calls.iter().zip(&shared.state_of);
        let results = results.map(|(call, state)| aggregate::merged(call, rows.state(*state)));
        let results = results.collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() {
            block.empty = Some(calls.iter().map(aggregate::over_nothing).collect());
        }
        block.columns = [keys.clone(), results].concat();
        Ok(block.grouped(keys))
    }

    fn selected(mut self, predicate: &Expr) -> Result<Block, Untranslatable> {
        if let Some(empty) = &self.empty
            && is_never_true(&over(empty, predicate))
        {
            self.empty = None;
        }
        let condition = expr(predicate, &self.columns)?;
        match self.groups {
            Some(_) => self.havings.push(condition),
            None => self.filters.push(condition),
        }
        Ok(self)
    }

    fn projected(mut self, exprs: &[Expr]) -> Result<Block, Untranslatable> {
        let columns = exprs.iter().map(|e| value(e, &self.columns));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        if let Some(empty) = &self.empty {
            self.empty = Some(exprs.iter().map(|e| over(empty, e)).collect());
        }
        self.columns = columns;
        Ok(self)
    }

    /// The groups of a block without groups. The columns of computed keys are made first.
    fn aggregated(
        mut self,
        schema: &Schema,
        keys: &[Expr],
        calls: &[AggregateCall],
    ) -> Result<Block, Untranslatable> {
        without_tally_keys(keys.iter(), "GROUP BY")?;
        let columns = &self.columns;
        let sql = keys.iter().map(|key| expr(key, columns));
        let mut sql = sql.collect::<Result<Vec<_>, _>>()?;
        if !sql.iter().all(|key| is_name(key)) {
            let count = self.columns.len();
            self.columns.extend(sql);
            let mut names = names(schema);
            names.extend((1..=keys.len()).map(|i| format!("key_{i}")));
            self = self.nested_as(&unique(names))?;
            sql = self.columns[count..].to_vec();
        }
        let results = calls
            .iter()
            .map(|call| aggregate::call(call, &self.columns));
        let results = results.collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() {
            self.empty = Some(calls.iter().map(aggregate::over_nothing).collect());
        }
        self.columns = [sql.clone(), results].concat();
        Ok(self.grouped(sql))
    }

    fn grouped(mut self, keys: Vec<String>) -> Block {
        self.groups = Some(keys);
        self.is_growing &= self.is_windowed();
        self
    }

    fn streamed(self, kind: ToStream) -> Result<Block, Untranslatable> {
        let window = self.window.as_ref();
        match (kind, window) {
            (ToStream::Istream, None) if self.is_growing => Ok(self),
            (ToStream::Rstream { every: None }, Some(w)) if w.size_ms == w.slide_ms => Ok(self),
            (ToStream::Rstream { every: Some(every) }, Some(w))
                if every == w.slide_ms.saturating_mul(1_000_000) =>
            {
                Ok(self)
            }
            (ToStream::Istream | ToStream::Dstream, _) => refuse(
                "Istream and Dstream compare the content at successive instants, which Flink does not; omit them: each row of the result has its window_end",
            ),
            (ToStream::Rstream { .. }, _) => refuse(
                "Rstream gives all rows at instants at which no window of Flink ends; omit it: each row of the result has its window_end",
            ),
        }
    }

    /// The whole as a table in FROM.
    fn nested(self, schema: &Schema) -> Result<Block, Untranslatable> {
        self.nested_as(&names(schema))
    }

    fn nested_as(self, names: &[String]) -> Result<Block, Untranslatable> {
        let mut block = self.nested_named(names, "")?;
        block.columns = names.iter().map(|name| quoted(name)).collect();
        if let Some(window) = &mut block.window {
            (window.start, window.end) = (quoted("window_start"), quoted("window_end"));
        }
        Ok(block)
    }

    /// The whole as a table in FROM, called `alias`.
    fn nested_named(self, names: &[String], alias: &str) -> Result<Block, Untranslatable> {
        let (window, is_growing) = (self.window.clone(), self.is_growing);
        let inner = format!("(\n{}\n)", indented(&self.select(names)?));
        let column = |name: &str| format!("{}.{}", quoted(alias), quoted(name));
        let from = match alias {
            "" => inner,
            alias => format!("{inner} AS {}", quoted(alias)),
        };
        Ok(Block {
            columns: names.iter().map(|name| column(name)).collect(),
            window: window.map(|window| FlinkWindow {
                start: column("window_start"),
                end: column("window_end"),
                ..window
            }),
            is_growing,
            ..Block::from(from)
        })
    }

    /// As a SELECT whose first column is the end of the window, if there is one.
    pub(super) fn result(&self, names: &[String]) -> Result<String, Untranslatable> {
        self.query(names, |window| vec![(&window.end, "window_end")])
    }

    /// As a SELECT with both columns of the window.
    fn select(&self, names: &[String]) -> Result<String, Untranslatable> {
        self.query(names, |window| {
            vec![(&window.start, "window_start"), (&window.end, "window_end")]
        })
    }

    fn query<'a>(
        &'a self,
        names: &[String],
        of_window: impl Fn(&'a FlinkWindow) -> Vec<(&'a String, &'static str)>,
    ) -> Result<String, Untranslatable> {
        if self.empty.is_some() {
            return refuse(
                "an aggregation without GROUP BY has a row over no rows too, which Flink does not emit; add HAVING count(*) > 0",
            );
        }
        let of_window = self.window.iter().flat_map(&of_window);
        let mut columns: Vec<String> = of_window.map(|(sql, name)| named(sql, name)).collect();
        let own = self.columns.iter().zip(names);
        columns.extend(own.map(|(sql, name)| named(sql, name)));
        if columns.is_empty() {
            columns.push("1 AS `one`".into());
        }
        let mut sql = format!("SELECT {}\nFROM {}", columns.join(", "), self.from);
        let conditions = |conditions: &[String]| conditions.join(" AND ");
        if !self.filters.is_empty() {
            sql += &format!("\nWHERE {}", conditions(&self.filters));
        }
        if let Some(groups) = &self.groups {
            let of_window = self.window.iter().flat_map(FlinkWindow::columns);
            let groups: Vec<&str> = of_window.chain(groups.iter().map(String::as_str)).collect();
            if !groups.is_empty() {
                sql += &format!("\nGROUP BY {}", groups.join(", "));
            }
        }
        if !self.havings.is_empty() {
            sql += &format!("\nHAVING {}", conditions(&self.havings));
        }
        Ok(sql)
    }
}

/// Whether a plan reads the content of relations.
fn reads_content(plan: &Plan, tables: &[FlinkTable]) -> bool {
    let is_content = |name: &str| {
        let mut tables = tables.iter();
        tables.any(|table| table.stream == name && table.content_at().is_some())
    };
    plan.sources().iter().any(|source| is_content(&source.name))
}

/// A window in CQL.
fn window_text(size: i64, slide: i64) -> String {
    let [size, slide] = [size, slide].map(|span| span_text(span, NANOS_PER_SECOND));
    format!("[range {size} slide {slide}]")
}

/// An expression over columns that are these constants.
fn over(columns: &[Expr], expr: &Expr) -> Expr {
    expr.map(&|e| match e {
        Expr::Column { index, .. } => columns[index].clone(),
        other => fold_expr(other),
    })
}

/// Whether a condition without columns is false or NULL.
fn is_never_true(condition: &Expr) -> bool {
    let Expr::Literal { value, .. } = condition else {
        return false;
    };
    matches!(value, Value::Null | Value::Bool(false))
}

/// Different names for the columns of a table, none of which is one of Flink's.
pub(super) fn names(schema: &Schema) -> Vec<String> {
    unique(schema.fields.iter().map(|f| f.name.clone()).collect())
}

/// These names, changed where one occurs twice or is that of a window's column.
pub(super) fn unique(names: Vec<String>) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for name in names {
        let is_taken = |name: &String| OF_WINDOWS.contains(&name.as_str()) || found.contains(name);
        let other = (2..).map(|i| format!("{name}_{i}"));
        let mut candidates = iter::once(name.clone()).chain(other);
        found.push(candidates.find(|name| !is_taken(name)).expect("endless"));
    }
    found
}

/// Whether an expression is the name of a column.
pub(super) fn is_name(sql: &str) -> bool {
    let parts = sql.split('.');
    sql.starts_with('`')
        && parts.clone().count() <= 2
        && parts
            .clone()
            .all(|part| part.len() > 2 && part.matches('`').count() == 2)
}

/// `sql AS name`, or `sql` where it has that name.
fn named(sql: &str, name: &str) -> String {
    let name = quoted(name);
    match sql == name {
        true => name,
        false => format!("{sql} AS {name}"),
    }
}

pub(super) fn indented(sql: &str) -> String {
    let lines = sql.lines().map(|line| format!("  {line}"));
    lines.collect::<Vec<_>>().join("\n")
}
