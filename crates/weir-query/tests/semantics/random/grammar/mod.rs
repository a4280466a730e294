//! Random queries: texts from a grammar of CQL, well typed by construction.

mod expressions;
pub mod hosts;
mod row_match;
mod tables;

use super::choices::Choices;
use tables::From;

/// The kind of a column, as the grammar distinguishes them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Int,
    Text,
    Float,
    Bool,
    Time,
    /// Values that are selected but not computed with: means (which are rounded) and tallies.
    Opaque,
}

/// The names in the queries.
pub struct Vocabulary {
    /// Streams with the columns below.
    pub streams: [&'static str; 2],
    /// A relation with the columns below.
    pub relation: Option<&'static str>,
    /// The columns of each, at least.
    pub columns: &'static [(&'static str, Kind)],
    /// Texts to compare with.
    pub texts: [&'static str; 3],
    /// Lists of columns that rows can have in common.
    pub keys: [&'static str; 3],
    /// Whether there are patterns over rows (MATCH_RECOGNIZE).
    pub has_patterns: bool,
}

/// A query with a name.
struct View {
    name: String,
    kinds: Vec<Kind>,
    is_stream: bool,
}

/// Generates queries from `choices`.
pub struct Grammar<'a, 'b> {
    choices: &'a mut Choices<'b>,
    words: &'static Vocabulary,
    names: usize,
    views: Vec<View>,
}

impl<'a, 'b> Grammar<'a, 'b> {
    /// A grammar without views yet.
    pub fn new(choices: &'a mut Choices<'b>, words: &'static Vocabulary) -> Grammar<'a, 'b> {
        Grammar {
            choices,
            words,
            names: 0,
            views: Vec::new(),
        }
    }

    /// A whole query.
    pub fn query(&mut self) -> String {
        let mut views = Vec::new();
        while views.len() < 2 && self.choices.once_in(4) {
            views.push(self.view());
        }
        let with = match views.is_empty() {
            true => String::new(),
            false => format!("WITH {} ", views.join(", ")),
        };
        let (body, _) = self.relation(2, None);
        let body = format!("{with}{body}");
        match self.choices.pick(8) {
            5 => format!("Istream({body})"),
            6 => format!("Dstream({body})"),
            7 => format!(
                "Rstream({body}){}",
                self.choices.one(&["", " EVERY 2 s", " EVERY 3 s"])
            ),
            _ => body,
        }
    }

    /// `name AS (query)`: a relation, or a selection of a source that stays a stream.
    fn view(&mut self) -> String {
        let name = format!("v{}", self.views.len());
        let is_stream = self.choices.once_in(2);
        let (query, kinds) = if is_stream {
            let source = self.choices.one(&self.words.streams);
            let columns = self.words.columns.iter();
            let columns: Vec<_> = columns
                .map(|(column, kind)| (column.to_string(), *kind))
                .collect();
            let condition = self.condition(&columns, 1);
            let kinds = self.kinds(&columns);
            let values = kinds.iter().map(|kind| self.value(&columns, *kind, 1));
            let items = values
                .enumerate()
                .map(|(i, value)| format!("{value} AS c{i}"));
            let items = items.collect::<Vec<_>>().join(", ");
            (
                format!("SELECT {items} FROM {source} WHERE {condition}"),
                kinds,
            )
        } else {
            self.relation(1, None)
        };
        self.views.push(View {
            name: name.clone(),
            kinds,
            is_stream,
        });
        format!("{name} AS ({query})")
    }

    /// A query whose result is a relation, with columns of `kinds` if given.
    fn relation(&mut self, depth: usize, kinds: Option<&[Kind]>) -> (String, Vec<Kind>) {
        let (first, kinds) = self.block(depth, kinds);
        if depth == 0 || kinds.contains(&Kind::Opaque) {
            return (first, kinds);
        }
        match self.choices.pick(7) {
            5 => {
                let op = self.choices.one(&[
                    "UNION ALL",
                    "UNION",
                    "EXCEPT",
                    "EXCEPT ALL",
                    "INTERSECT",
                    "INTERSECT ALL",
                ]);
                let (second, _) = self.block(depth - 1, Some(&kinds));
                (format!("{first} {op} {second}"), kinds)
            }
            6 => {
                let mut keys = Vec::new();
                for _ in 0..self.choices.one(&[1, 2]) {
                    let key = self.choices.pick(kinds.len());
                    let order = self.choices.one(&[
                        "",
                        " DESC",
                        " NULLS FIRST",
                        " NULLS LAST",
                        " DESC NULLS FIRST",
                        " DESC NULLS LAST",
                    ]);
                    keys.push(format!("c{key}{order}"));
                }
                let limit = self.choices.one(&[1, 2, 3, 5]);
                let offset = self.choices.one(&["", " OFFSET 1"]);
                let keys = keys.join(", ");
                (
                    format!("{first} ORDER BY {keys} LIMIT {limit}{offset}"),
                    kinds,
                )
            }
            _ => (first, kinds),
        }
    }

    /// SELECT .. FROM .. WHERE .. GROUP BY .. HAVING
    fn block(&mut self, depth: usize, kinds: Option<&[Kind]>) -> (String, Vec<Kind>) {
        let From {
            text: from,
            columns,
            mut ordered,
            mut conditions,
        } = self.from(depth);
        while conditions.len() < 2 && self.choices.once_in(4) {
            let condition = self.condition(&columns, 1);
            conditions.push(condition);
        }
        if depth > 0 && self.choices.once_in(5) {
            let condition = self.subquery_condition(depth - 1, &columns);
            conditions.push(condition);
            // A row that is inserted again is then the latest one.
            ordered = false;
        }
        let grouped = self.choices.once_in(3);
        let (items, kinds, tail) = if grouped {
            self.grouped(&columns, ordered, kinds)
        } else {
            self.plain(&columns, kinds)
        };
        let distinct = if self.choices.once_in(8) {
            "DISTINCT "
        } else {
            ""
        };
        let names = items.iter().enumerate();
        let items: Vec<String> = names.map(|(i, item)| format!("{item} AS c{i}")).collect();
        let filter = match conditions.is_empty() {
            true => String::new(),
            false => format!(" WHERE {}", conditions.join(" AND ")),
        };
        let text = format!(
            "SELECT {distinct}{} FROM {from}{filter}{tail}",
            items.join(", ")
        );
        (text, kinds)
    }

    fn plain(
        &mut self,
        columns: &[(String, Kind)],
        kinds: Option<&[Kind]>,
    ) -> (Vec<String>, Vec<Kind>, String) {
        let open = kinds.is_none();
        let mut kinds = kinds.map_or_else(|| self.kinds(columns), <[Kind]>::to_vec);
        let mut items: Vec<String> = kinds
            .iter()
            .map(|kind| self.value(columns, *kind, 1))
            .collect();
        if open && self.choices.once_in(5) {
            let (item, kind) = self.window_function(columns);
            kinds.push(kind);
            if self.choices.once_in(3)
                && let Some((call, window)) = item.split_once(" OVER ")
            {
                items.push(format!("{call} OVER w"));
                return (items, kinds, format!(" WINDOW w AS {window}"));
            }
            items.push(item);
        }
        (items, kinds, String::new())
    }

    /// Items, their kinds, and GROUP BY with HAVING.
    fn grouped(
        &mut self,
        columns: &[(String, Kind)],
        ordered: bool,
        kinds: Option<&[Kind]>,
    ) -> (Vec<String>, Vec<Kind>, String) {
        let mut keys: Vec<(String, Kind)> = Vec::new();
        for _ in 0..self.choices.one(&[1, 0, 2]) {
            let kind = self.choices.one(&[Kind::Int, Kind::Text, Kind::Float]);
            let key = (self.value(columns, kind, 0), kind);
            // A constant would be a column position.
            if columns.iter().any(|(name, _)| *name == key.0) {
                keys.push(key);
            }
        }
        let mut items = Vec::new();
        let mut found = Vec::new();
        match kinds {
            Some(kinds) => {
                for kind in kinds {
                    let keyed = keys.iter().find(|(_, k)| k == kind).cloned();
                    match keyed.filter(|_| self.choices.once_in(2)) {
                        Some((key, _)) => items.push(key),
                        None => items.push(self.aggregate_of(columns, *kind)),
                    }
                }
                found.extend_from_slice(kinds);
            }
            None => {
                for (key, kind) in &keys {
                    items.push(key.clone());
                    found.push(*kind);
                }
                for _ in 0..self.choices.one(&[1, 2, 3]) {
                    let (item, kind) = self.aggregate(columns, ordered);
                    items.push(item);
                    found.push(kind);
                }
            }
        }
        let names: Vec<&str> = keys.iter().map(|(key, _)| key.as_str()).collect();
        let mut tail = match names.is_empty() {
            true => String::new(),
            false => {
                let (all, first, last) = (names.join(", "), names[0], names[names.len() - 1]);
                let clause = match self.choices.pick(8) {
                    0 => format!("ROLLUP ({all})"),
                    1 => format!("CUBE ({all})"),
                    2 => format!("{first}, ROLLUP ({last})"),
                    3 => format!("CUBE ({last}), GROUPING SETS (({all}), {first}, ())"),
                    _ => all,
                };
                format!(" GROUP BY {clause}")
            }
        };
        if self.choices.once_in(4) {
            let aggregate = self.aggregate_of(columns, Kind::Int);
            let op = self.choices.one(&[">", "<=", "<>"]);
            tail += &format!(" HAVING {aggregate} {op} {}", self.choices.pick(3));
        }
        (items, found, tail)
    }

    fn kinds(&mut self, columns: &[(String, Kind)]) -> Vec<Kind> {
        let count = self.choices.one(&[1, 2, 3]);
        let opaque = columns.iter().any(|(_, k)| *k == Kind::Opaque);
        let any = |grammar: &mut Self| match opaque && grammar.choices.once_in(4) {
            true => Kind::Opaque,
            false => grammar.any_kind(),
        };
        (0..count).map(|_| any(self)).collect()
    }

    /// A kind that can be computed with.
    fn any_kind(&mut self) -> Kind {
        use Kind::{Bool, Float, Int, Text, Time};
        self.choices
            .one(&[Int, Int, Text, Float, Int, Text, Time, Bool])
    }

    fn subquery_condition(&mut self, depth: usize, columns: &[(String, Kind)]) -> String {
        let kind = self.choices.one(&[Kind::Int, Kind::Text]);
        let not = self.choices.one(&["", "NOT "]);
        match self.choices.pick(7) {
            4 => {
                let x = self.value(columns, Kind::Int, 0);
                let inner = self.table(0);
                let value = self.aggregate_of(&inner.columns, Kind::Int);
                let mut tie = String::new();
                if self.choices.once_in(2) {
                    let (left, right) = (
                        self.value(&inner.columns, kind, 0),
                        self.value(columns, kind, 0),
                    );
                    tie = format!(" WHERE {left} = {right}");
                }
                let op = self.choices.one(&["<", "=", ">="]);
                format!("{x} {op} (SELECT {value} FROM {}{tie})", inner.text)
            }
            5 => {
                let inner = self.table(0);
                let (left, right) = (
                    self.value(&inner.columns, kind, 0),
                    self.value(columns, kind, 0),
                );
                let other = self.condition(columns, 0);
                format!(
                    "({other} OR {not}EXISTS (SELECT 1 FROM {} WHERE {left} = {right}))",
                    inner.text
                )
            }
            6 => {
                let x = self.value(columns, kind, 0);
                let (query, _) = self.relation(depth, Some(&[kind]));
                let other = self.condition(columns, 0);
                format!("({other} OR {x} {not}IN ({query}))")
            }
            0 => {
                let x = self.value(columns, kind, 0);
                let (query, _) = self.relation(depth, Some(&[kind]));
                format!("{x} {not}IN ({query})")
            }
            3 => {
                let x = self.value(columns, kind, 0);
                let inner = self.table(0);
                let y = self.value(&inner.columns, kind, 0);
                let (left, right) = (
                    self.value(&inner.columns, Kind::Int, 0),
                    self.value(columns, Kind::Int, 0),
                );
                let op = self.choices.one(&["=", "=", "<"]);
                format!(
                    "{x} {not}IN (SELECT {y} FROM {} WHERE {left} {op} {right})",
                    inner.text
                )
            }
            1 => {
                let (query, _) = self.relation(depth, None);
                format!("{not}EXISTS ({query})")
            }
            _ => {
                let inner = self.table(0);
                let mut tie = format!(
                    "{} = {}",
                    self.value(&inner.columns, kind, 0),
                    self.value(columns, kind, 0)
                );
                if self.choices.once_in(3) {
                    tie = format!("{tie} AND {}", self.condition(&inner.columns, 0));
                }
                format!("{not}EXISTS (SELECT 1 FROM {} WHERE {tie})", inner.text)
            }
        }
    }
}
