//! Random FROM clauses, and the subqueries of conditions.

use super::{Column, Grammar, Kind, placeholder};
use crate::text::Text;
use crate::window::Window;

/// A FROM clause.
pub(super) struct From {
    pub text: Text,
    pub columns: Vec<Column>,
    /// A column that numbers the rows, if there is one.
    pub number: Option<Text>,
    /// Conditions between the tables, for WHERE.
    pub conditions: Vec<Text>,
}

/// The columns of both streams.
const EVENT: [(&str, Kind); 14] = [
    ("ts", Kind::Time),
    ("type", Kind::Text),
    ("op", Kind::Text),
    ("req_id", Kind::Int),
    ("bytes", Kind::Amount),
    ("vm", Kind::Text),
    ("vdisk", Kind::Text),
    ("pdisk", Kind::Text),
    ("level", Kind::Text),
    ("pid", Kind::Int),
    ("comm", Kind::Text),
    ("cpu", Kind::Int),
    ("error", Kind::Int),
    ("merges", Kind::Int),
];

/// Those of `IO` only.
const COMPLETED: [(&str, Kind); 6] = [
    ("wait", Kind::Duration),
    ("service", Kind::Duration),
    ("latency", Kind::Duration),
    ("in_flight", Kind::Int),
    ("interarrival", Kind::Duration),
    ("issue_ts", Kind::Time),
];

impl Grammar<'_> {
    /// One to three tables.
    pub(super) fn from(&mut self, depth: usize) -> From {
        let mut from = self.table(depth);
        let mut is_using_possible = from.number.is_some();
        for further in 0..self.one(&[0, 0, 0, 1, 1, 2]) {
            let next = self.table(depth.saturating_sub(1));
            from.number = None;
            let tie = self.tie(&from.columns, &next.columns);
            let kinds = ["JOIN", "INNER JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"];
            let kind = self.one(&kinds);
            let join = self.rng.usize(0..8);
            let joined = match join {
                // A product of three tables has too many rows.
                0 if further == 0 => Text::of("{0} CROSS JOIN {1}", &[&from.text, &next.text]),
                // ON of a later join could not use the columns before the comma.
                1 if further == 0 => {
                    from.conditions.push(tie);
                    Text::of("{0}, {1}", &[&from.text, &next.text])
                }
                2 if is_using_possible && next.number.is_some() => {
                    let kind = self.one(&kinds[..4]);
                    let keys = self.one(&["vm", "pid, comm", "req_id"]);
                    let template = format!("{{0}} {kind} {{1}} USING ({keys})");
                    Text::of(&template, &[&from.text, &next.text])
                }
                _ => {
                    let template = format!("{{0}} {kind} {{1}} ON {{2}}");
                    Text::of(&template, &[&from.text, &next.text, &tie])
                }
            };
            is_using_possible = false;
            from.text = joined;
            from.columns.extend(next.columns);
            if !from.conditions.is_empty() {
                break;
            }
        }
        from
    }

    /// A condition over columns of two sides, with an equality.
    fn tie(&mut self, left: &[Column], right: &[Column]) -> Text {
        let kinds = [Kind::Int, Kind::Text, Kind::Duration, Kind::Time];
        let has = |columns: &[Column], kind| columns.iter().any(|c| c.kind == kind);
        let common = kinds
            .into_iter()
            .filter(|k| has(left, *k) && has(right, *k));
        let common: Vec<Kind> = common.collect();
        let both = [left, right].concat();
        if common.is_empty() {
            return self.condition(&both, 1);
        }
        let kind = self.one(&common);
        let (x, y) = (self.column(left, kind), self.column(right, kind));
        let tie = Text::of("{0} = {1}", &[&x, &y]);
        match self.once_in(4) {
            true => Text::of("{0} AND {1}", &[&tie, &self.condition(&both, 1)]),
            false => tie,
        }
    }

    /// A column of this kind, which must exist.
    fn column(&mut self, columns: &[Column], kind: Kind) -> Text {
        let fitting: Vec<&Column> = columns.iter().filter(|c| c.kind == kind).collect();
        fitting[self.rng.usize(0..fitting.len())].text.clone()
    }

    /// A stream, a view or a subquery.
    fn table(&mut self, depth: usize) -> From {
        let name = self.name();
        match self.rng.usize(0..8) {
            0 if depth > 0 => {
                let (query, kinds) = self.relation(depth - 1, None);
                derived(&Text::of("({0})", &[&query]), &name, &kinds)
            }
            1 | 2 if !self.views.is_empty() => {
                let view = self.rng.usize(0..self.views.len());
                let view = &self.views[view];
                derived(&Text::same(&view.name), &name, &view.kinds)
            }
            3 | 4 => self.stream("IOstream", &EVENT, &name),
            _ => self.stream("IO", &[&EVENT[..], &COMPLETED].concat(), &name),
        }
    }

    fn stream(&mut self, stream: &'static str, columns: &[(&str, Kind)], name: &str) -> From {
        let windowed = match &mut self.windows {
            // Every window contains the whole recording at its end.
            None => {
                let windows = [
                    "Range Unbounded",
                    "Range 1000 s Slide 1000 s",
                    "Rows 100000",
                ];
                let window = self.one(&windows);
                Text::differing(format!("{stream} [{window}]"), stream)
            }
            Some(windows) => {
                let window = Window::random(stream, self.rng);
                windows.push(window);
                let number = windows.len() - 1;
                Text::differing(windows[number].cql(), placeholder(number))
            }
        };
        let column = |(column, kind): &(&str, Kind)| Column {
            text: Text::same(format!("{name}.{column}")),
            kind: *kind,
        };
        From {
            text: Text::of(&format!("{{0}} AS {name}"), &[&windowed]),
            columns: columns.iter().map(column).collect(),
            number: Some(Text::same(format!("{name}.req_id"))),
            conditions: Vec::new(),
        }
    }

    /// A condition with a subquery.
    pub(super) fn subquery_condition(&mut self, depth: usize, columns: &[Column]) -> Text {
        let common = [Kind::Int, Kind::Text].map(|k| (k, columns.iter().any(|c| c.kind == k)));
        let common: Vec<Kind> = common
            .iter()
            .filter(|(_, is)| *is)
            .map(|(k, _)| *k)
            .collect();
        if common.is_empty() {
            return self.condition(columns, 1);
        }
        let kind = self.one(&common);
        let not = self.one(&["", "NOT "]);
        let x = self.column(columns, kind);
        let stream = self.name();
        let inner = self.stream("IO", &[&EVENT[..], &COMPLETED].concat(), &stream);
        let y = self.column(&inner.columns, kind);
        let found = match self.rng.usize(0..6) {
            0 => {
                let (query, _) = self.relation(depth, Some(&[kind]));
                Text::of(&format!("({{0}} {not}IN ({{1}}))"), &[&x, &query])
            }
            1 => {
                let (query, _) = self.relation(depth, None);
                Text::of(&format!("({not}EXISTS ({{0}}))"), &[&query])
            }
            2 => {
                let filter = self.condition(&inner.columns, 1);
                let template =
                    format!("({not}EXISTS (SELECT 1 FROM {{0}} WHERE {{1}} = {{2}} AND {{3}}))");
                Text::of(&template, &[&inner.text, &y, &x, &filter])
            }
            3 => {
                let other = self.column(&inner.columns, kind);
                let template =
                    format!("({{0}} {not}IN (SELECT {{1}} FROM {{2}} WHERE {{3}} = {{0}}))");
                Text::of(&template, &[&x, &y, &inner.text, &other])
            }
            4 => {
                let aggregate = self.extreme(&inner.columns, kind);
                let op = self.one(&["<", "=", ">=", "<>"]);
                let template = format!("({{0}} {op} (SELECT {{1}} FROM {{2}}))");
                Text::of(&template, &[&x, &aggregate, &inner.text])
            }
            _ => {
                let aggregate = self.extreme(&inner.columns, kind);
                let op = self.one(&["<", "=", ">=", "<>"]);
                let template =
                    format!("({{0}} {op} (SELECT {{1}} FROM {{2}} WHERE {{3}} = {{4}}))");
                Text::of(&template, &[&x, &aggregate, &inner.text, &y, &x])
            }
        };
        match self.once_in(4) {
            true => Text::of("({0} OR {1})", &[&found, &self.condition(columns, 1)]),
            false => found,
        }
    }

    fn extreme(&mut self, columns: &[Column], kind: Kind) -> Text {
        let of = self.column(columns, kind);
        Text::of(&format!("{}({{0}})", self.one(&["min", "max"])), &[&of])
    }

    /// A scalar subquery with an integer result, correlated or not.
    pub(super) fn scalar_subquery(&mut self, columns: &[Column]) -> Text {
        let name = self.name();
        let inner = self.stream("IO", &[&EVENT[..], &COMPLETED].concat(), &name);
        let aggregate = match self.once_in(2) {
            true => Text::same("count(*)"),
            false => self.extreme(&inner.columns, Kind::Int),
        };
        let has_text = columns.iter().any(|c| c.kind == Kind::Text);
        if !has_text || self.once_in(3) {
            return Text::of("(SELECT {0} FROM {1})", &[&aggregate, &inner.text]);
        }
        let (x, y) = (
            self.column(&inner.columns, Kind::Text),
            self.column(columns, Kind::Text),
        );
        let template = "(SELECT {0} FROM {1} WHERE {2} = {3})";
        Text::of(template, &[&aggregate, &inner.text, &x, &y])
    }
}

fn derived(text: &Text, name: &str, kinds: &[Kind]) -> From {
    let columns = kinds.iter().enumerate().map(|(i, kind)| Column {
        text: Text::same(format!("{name}.c{i}")),
        kind: *kind,
    });
    From {
        text: Text::of(&format!("{{0}} AS {name}"), &[text]),
        columns: columns.collect(),
        number: None,
        conditions: Vec::new(),
    }
}
