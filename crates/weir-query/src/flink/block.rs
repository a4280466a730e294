//! [`Block`]: one SELECT of Flink SQL under construction.

use std::iter;

use weir_model::{Declaration, NANOS_PER_SECOND, Schema, Value};

use super::expr::expr;
use super::table::FlinkTable;
use super::{Untranslatable, aggregate, quoted, refuse};
use crate::expr::{Expr, fold_expr};
use crate::place::span_text;
use crate::plan::{JoinKind, JoinNode, Node, OrderBy, Plan, SetOp, ToStream};
use crate::window::Window;

/// Names of columns that Flink adds or this translation does.
const RESERVED: [&str; 4] = ["window_start", "window_end", "window_time", "row_number"];

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
}

impl Block {
    pub(super) fn of(plan: &Plan, tables: &[FlinkTable]) -> Result<Block, Untranslatable> {
        match &plan.node {
            Node::Source(declaration) => Ok(Block::of_stream(declaration, tables)),
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
                block = block.groupable(&input.schema)?;
                let results = calls
                    .iter()
                    .map(|call| aggregate::call(call, &block.columns));
                let results = results.collect::<Result<Vec<_>, _>>()?;
                let keys = keys.iter().map(|key| expr(key, &block.columns));
                let keys = keys.collect::<Result<Vec<_>, _>>()?;
                if !keys.iter().all(|key| is_name(key)) {
                    return block.grouped_by_expressions(plan);
                }
                if keys.is_empty() {
                    block.empty = Some(calls.iter().map(aggregate::over_nothing).collect());
                }
                block.columns = [keys.clone(), results].concat();
                block.groups = Some(keys);
                block.is_growing &= block.is_windowed();
                Ok(block)
            }
            Node::Distinct { input } => {
                let mut block = Block::of(input, tables)?;
                if block.groups.is_some() || !block.columns.iter().all(|c| is_name(c)) {
                    block = block.nested(&input.schema)?;
                }
                block.groups = Some(block.columns.clone());
                block.is_growing &= block.is_windowed();
                Ok(block)
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
                    _ => block.first(&input.schema, by, *limit, *offset),
                }
            }
            Node::ToStream { input, kind } => Block::of(input, tables)?.streamed(*kind),
            Node::Over { .. } => refuse(
                "Flink has window functions over the rows of a window only for the first N of them",
            ),
            Node::Match { .. } => refuse("MATCH_RECOGNIZE is not translated"),
            Node::Correlate { .. } => refuse("Flink has no correlation of disks"),
            Node::Partial { .. } | Node::Merge { .. } => {
                refuse("a plan that was split between agents and monitor is not translated")
            }
        }
    }

    fn of_stream(declaration: &Declaration, tables: &[FlinkTable]) -> Block {
        let of_stream = |table: &FlinkTable| table.stream == declaration.name;
        let table = tables.iter().position(of_stream);
        let fields = &declaration.schema.fields;
        let columns = fields.iter().map(|field| quoted(&field.name));
        Block {
            columns: columns.collect(),
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
        mut self,
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
        let (Some(at), None) = (self.table.take(), &self.groups) else {
            return refuse(format!("{text} reads the result of a query, not a stream"));
        };
        const MILLISECOND: i64 = 1_000_000;
        if range.size % MILLISECOND != 0 || slide % MILLISECOND != 0 {
            return refuse(format!("{text} does not have whole milliseconds"));
        }
        if range.size % slide != 0 {
            return refuse(format!("the size of {text} is not a multiple of its slide"));
        }
        let (size_ms, slide_ms) = (range.size / MILLISECOND, slide / MILLISECOND);
        self.from = tables[at].windows(size_ms, slide_ms);
        self.window = Some(FlinkWindow {
            size_ms,
            slide_ms,
            start: quoted("window_start"),
            end: quoted("window_end"),
        });
        Ok(self)
    }

    fn selected(mut self, predicate: &Expr) -> Result<Block, Untranslatable> {
        if let Some(empty) = &self.empty {
            let over_nothing = predicate.map(&|e| match e {
                Expr::Column { index, .. } => empty[index].clone(),
                other => fold_expr(other),
            });
            if is_never_true(&over_nothing) {
                self.empty = None;
            }
        }
        let condition = expr(predicate, &self.columns)?;
        match self.groups {
            Some(_) => self.havings.push(condition),
            None => self.filters.push(condition),
        }
        Ok(self)
    }

    fn projected(mut self, exprs: &[Expr]) -> Result<Block, Untranslatable> {
        let columns = exprs.iter().map(|e| expr(e, &self.columns));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        if let Some(empty) = &self.empty {
            let over_nothing = exprs.iter().map(|e| {
                e.map(&|e| match e {
                    Expr::Column { index, .. } => empty[index].clone(),
                    other => fold_expr(other),
                })
            });
            self.empty = Some(over_nothing.collect());
        }
        self.columns = columns;
        Ok(self)
    }

    /// A block without groups, of the same rows.
    fn groupable(self, schema: &Schema) -> Result<Block, Untranslatable> {
        match self.groups {
            Some(_) => self.nested(schema),
            None => Ok(self),
        }
    }

    /// An aggregation some of whose keys are computed: their columns are made first.
    fn grouped_by_expressions(mut self, plan: &Plan) -> Result<Block, Untranslatable> {
        let Node::Aggregate {
            input, keys, calls, ..
        } = &plan.node
        else {
            unreachable!("it is an aggregation");
        };
        let count = self.columns.len();
        for key in keys {
            self.columns.push(expr(key, &self.columns)?);
        }
        let mut names = names(&input.schema);
        names.extend((1..=keys.len()).map(|i| format!("key_{i}")));
        let mut block = self.nested_as(&unique(names))?;
        let results = calls
            .iter()
            .map(|call| aggregate::call(call, &block.columns));
        let results = results.collect::<Result<Vec<_>, _>>()?;
        let keys = block.columns[count..].to_vec();
        block.columns = [keys.clone(), results].concat();
        block.groups = Some(keys);
        block.is_growing &= block.is_windowed();
        Ok(block)
    }

    fn joined(join: &JoinNode, tables: &[FlinkTable]) -> Result<Block, Untranslatable> {
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
            _ => return refuse("Flink joins windows only with the same size and slide"),
        };
        let mut conditions = Vec::new();
        if let Some((l, r)) = &window {
            let pairs = l.columns().into_iter().zip(r.columns());
            conditions.extend(pairs.map(|(l, r)| format!("{l} = {r}")));
        }
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

    fn combined(
        inputs: [&Plan; 2],
        op: SetOp,
        all: bool,
        tables: &[FlinkTable],
    ) -> Result<Block, Untranslatable> {
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

    /// The first rows in an order; rows with equal keys are ordered by all columns.
    fn first(
        mut self,
        schema: &Schema,
        by: &[OrderBy],
        limit: Option<u64>,
        offset: u64,
    ) -> Result<Block, Untranslatable> {
        let Some(limit) = limit.filter(|limit| *limit > 0) else {
            return refuse("Flink has the first N rows of an order only for a LIMIT above 0");
        };
        let count = self.columns.len();
        let mut names = names(schema);
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
        order.extend(others.map(|at| format!("{} ASC", all[at])));
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

fn unique(names: Vec<String>) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for name in names {
        let is_taken = |name: &String| RESERVED.contains(&name.as_str()) || found.contains(name);
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

fn indented(sql: &str) -> String {
    let lines = sql.lines().map(|line| format!("  {line}"));
    lines.collect::<Vec<_>>().join("\n")
}
