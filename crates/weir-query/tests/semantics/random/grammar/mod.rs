//! Random queries: text from a grammar of what CQL offers, well typed by construction.

mod expressions;

use super::choices::Choices;

/// What a column holds, as far as the grammar cares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Int,
    Text,
    Float,
    /// What is passed on but not computed with: means (which are rounded) and tallies.
    Opaque,
}

/// A table in FROM: its name there, and its columns.
struct Table {
    text: String,
    columns: Vec<(String, Kind)>,
    /// Whether the rows have an order that is defined, so that there is a first and a last.
    ordered: bool,
}

/// Writes queries by `choices`.
pub struct Grammar<'a, 'b> {
    choices: &'a mut Choices<'b>,
    names: usize,
    /// Whether the relation `r` may be read.
    relations: bool,
}

impl<'a, 'b> Grammar<'a, 'b> {
    /// A grammar; without `relations` queries read streams only.
    pub fn new(choices: &'a mut Choices<'b>, relations: bool) -> Grammar<'a, 'b> {
        Grammar {
            choices,
            names: 0,
            relations,
        }
    }

    /// A whole query.
    pub fn query(&mut self) -> String {
        let (body, _) = self.relation(2, None);
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

    /// A query that gives a relation, with columns of these kinds if any are asked for.
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
                let key = self.choices.pick(kinds.len());
                let order = self.choices.one(&[
                    "",
                    " DESC",
                    " NULLS FIRST",
                    " NULLS LAST",
                    " DESC NULLS FIRST",
                    " DESC NULLS LAST",
                ]);
                let limit = self.choices.one(&[1, 2, 3]);
                let offset = self.choices.one(&["", " OFFSET 1"]);
                (
                    format!("{first} ORDER BY c{key}{order} LIMIT {limit}{offset}"),
                    kinds,
                )
            }
            _ => (first, kinds),
        }
    }

    /// SELECT .. FROM .. WHERE .. GROUP BY .. HAVING
    fn block(&mut self, depth: usize, kinds: Option<&[Kind]>) -> (String, Vec<Kind>) {
        let (from, columns, mut ordered, mut conditions) = self.from(depth);
        while conditions.len() < 2 && self.choices.once_in(4) {
            let condition = self.condition(&columns, 1);
            conditions.push(condition);
        }
        if depth > 0 && self.choices.once_in(5) {
            let condition = self.subquery_condition(depth - 1, &columns);
            conditions.push(condition);
            // A row that comes back is a late one.
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
        let kinds = kinds.map_or_else(|| self.kinds(columns), <[Kind]>::to_vec);
        let items = kinds
            .iter()
            .map(|kind| self.value(columns, *kind, 1))
            .collect();
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
            // A constant would be taken for the position of a column.
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
            false => format!(" GROUP BY {}", names.join(", ")),
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
        let kinds = [Kind::Int, Kind::Text, Kind::Float, Kind::Int, Kind::Opaque];
        let kinds = if opaque { &kinds[..] } else { &kinds[..4] };
        (0..count).map(|_| self.choices.one(kinds)).collect()
    }

    /// Tables, their columns, whether they are in order, and conditions that tie them together.
    fn from(&mut self, depth: usize) -> (String, Vec<(String, Kind)>, bool, Vec<String>) {
        let first = self.table(depth);
        let (mut text, mut columns, mut ordered) = (first.text, first.columns, first.ordered);
        // ON sees what is joined since the last comma, WHERE sees all.
        let mut joined = columns.clone();
        let mut conditions = Vec::new();
        for _ in 0..self.choices.one(&[0, 0, 1, 0, 1, 2]) {
            let next = self.table(depth.saturating_sub(1));
            ordered = false;
            let kind = self
                .choices
                .one(&[Kind::Int, Kind::Int, Kind::Text, Kind::Float]);
            let join = self.choices.pick(7);
            let seen = if join < 2 { &columns } else { &joined };
            let mut tie = format!(
                "{} {} {}",
                self.value(seen, kind, 0),
                self.choices.one(&["=", "=", "=", "<", "<>"]),
                self.value(&next.columns, kind, 0)
            );
            if self.choices.once_in(4) {
                let both = [&seen[..], &next.columns[..]].concat();
                tie = format!("{tie} AND {}", self.condition(&both, 1));
            }
            match join {
                0 | 1 => {
                    text = format!("{text}, {}", next.text);
                    conditions.push(tie);
                    joined.clear();
                }
                2 => text = format!("{text} CROSS JOIN {}", next.text),
                _ => {
                    let kind = ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"][join - 3];
                    text = format!("{text} {kind} {} ON {tie}", next.text);
                }
            }
            joined.extend(next.columns.clone());
            columns.extend(next.columns);
        }
        (text, columns, ordered, conditions)
    }

    fn table(&mut self, depth: usize) -> Table {
        let name = format!("x{}", self.names);
        self.names += 1;
        let source = match self.choices.pick(10) {
            0..=3 => "s",
            4..=6 => "u",
            7 if self.relations => "r",
            8 if depth > 0 => {
                let (query, kinds) = self.relation(depth - 1, None);
                return Table {
                    text: format!("({query}) AS {name}"),
                    columns: derived(&name, &kinds),
                    ordered: false,
                };
            }
            9 if depth > 0 => {
                let (query, kinds) = self.relation(depth - 1, None);
                let stream = self.choices.one(&["Istream", "Dstream", "Rstream"]);
                // Rows of one instant have no order here, so that no window may count them.
                let window = self.time_window();
                return Table {
                    text: format!("({stream}({query})){window} AS {name}"),
                    columns: derived(&name, &kinds),
                    ordered: false,
                };
            }
            _ => "s",
        };
        let window = if source == "r" {
            String::new()
        } else {
            self.window()
        };
        let columns = [
            ("a", Kind::Int),
            ("b", Kind::Int),
            ("t", Kind::Text),
            ("f", Kind::Float),
        ];
        Table {
            text: format!("{source}{window} AS {name}"),
            columns: columns
                .map(|(column, kind)| (format!("{name}.{column}"), kind))
                .to_vec(),
            // From a partitioned window equal values may leave in another order than they came.
            ordered: source != "r" && !window.contains("Partition"),
        }
    }

    fn window(&mut self) -> String {
        match self.choices.pick(8) {
            6 => format!(" [Rows {}]", self.choices.one(&[1, 2, 3])),
            7 => format!(
                " [Partition By {} Rows {}]",
                self.choices.one(&["a", "t", "a, t"]),
                self.choices.one(&[1, 2])
            ),
            _ => self.time_window(),
        }
    }

    fn time_window(&mut self) -> String {
        let slide = self
            .choices
            .one(&["", "", " Slide 2 s", " Slide 3 s", " Slide 5 s"]);
        match self.choices.pick(5) {
            0 => String::new(),
            1 | 2 => format!(" [Range {} s{slide}]", self.choices.one(&[3, 1, 2, 5])),
            3 => " [Now]".into(),
            _ => format!(" [Range Unbounded{slide}]"),
        }
    }

    fn subquery_condition(&mut self, depth: usize, columns: &[(String, Kind)]) -> String {
        let kind = self.choices.one(&[Kind::Int, Kind::Text]);
        let not = self.choices.one(&["", "NOT "]);
        match self.choices.pick(3) {
            0 => {
                let x = self.value(columns, kind, 0);
                let (query, _) = self.relation(depth, Some(&[kind]));
                format!("{x} {not}IN ({query})")
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

fn derived(name: &str, kinds: &[Kind]) -> Vec<(String, Kind)> {
    let columns = kinds.iter().enumerate();
    columns
        .map(|(i, kind)| (format!("{name}.c{i}"), *kind))
        .collect()
}
