//! Random tables in FROM: sources and views under windows, subqueries, joins.

use super::{Grammar, Kind};

/// A table in FROM, and its columns.
pub struct Table {
    pub text: String,
    pub columns: Vec<(String, Kind)>,
    /// Whether it is a source, with the columns of all sources.
    is_source: bool,
    /// Whether the order of the rows is defined, so that there is a first and a last.
    ordered: bool,
}

/// A FROM clause.
pub(super) struct From {
    pub text: String,
    pub columns: Vec<(String, Kind)>,
    /// Whether the order of the rows is defined.
    pub ordered: bool,
    /// Conditions between the tables, for WHERE.
    pub conditions: Vec<String>,
}

impl Table {
    /// Rows without an order, with these columns.
    pub(super) fn unordered(text: String, columns: Vec<(String, Kind)>) -> Table {
        Table {
            text,
            columns,
            is_source: false,
            ordered: false,
        }
    }
}

impl Grammar<'_, '_> {
    /// One to three tables.
    pub(super) fn from(&mut self, depth: usize) -> From {
        let first = self.table(depth);
        let mut from = From {
            text: first.text,
            columns: first.columns.clone(),
            ordered: first.ordered,
            conditions: Vec::new(),
        };
        // ON can use the columns joined since the last comma, WHERE all.
        let mut joined = first.columns;
        let mut alone_since_comma = first.is_source;
        for _ in 0..self.choices.one(&[0, 0, 1, 0, 1, 2]) {
            let next = self.table(depth.saturating_sub(1));
            from.ordered = false;
            let join = self.choices.pick(8);
            let using = join == 7 && alone_since_comma && next.is_source;
            let seen = if join < 2 { &from.columns } else { &joined };
            let tie = self.tie(seen, &next.columns);
            let kinds = ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"];
            match join {
                0 | 1 => {
                    from.text += &format!(", {}", next.text);
                    from.conditions.push(tie);
                    joined.clear();
                }
                2 => from.text += &format!(" CROSS JOIN {}", next.text),
                7 if using => {
                    let kind = self.choices.one(&kinds[..3]);
                    let columns = self.choices.one(&self.words.keys);
                    from.text += &format!(" {kind} {} USING ({columns})", next.text);
                }
                _ => {
                    let kind = kinds[(join - 3) % 4];
                    from.text += &format!(" {kind} {} ON {tie}", next.text);
                }
            }
            alone_since_comma = join < 2 && next.is_source;
            joined.extend(next.columns.clone());
            from.columns.extend(next.columns);
        }
        from
    }

    /// A condition over columns of two sides.
    fn tie(&mut self, left: &[(String, Kind)], right: &[(String, Kind)]) -> String {
        let kind = self.any_kind();
        let ops = match kind {
            Kind::Bool => &["=", "=", "<>"][..],
            _ => &["=", "=", "=", "<", "<>"],
        };
        let tie = format!(
            "{} {} {}",
            self.value(left, kind, 0),
            self.choices.one(ops),
            self.value(right, kind, 0)
        );
        if self.choices.once_in(4) {
            let both = [left, right].concat();
            return format!("{tie} AND {}", self.condition(&both, 1));
        }
        tie
    }

    /// A source, a view or a subquery, with its window.
    pub(super) fn table(&mut self, depth: usize) -> Table {
        let name = format!("x{}", self.names);
        self.names += 1;
        match self.choices.pick(11 + usize::from(self.words.has_patterns)) {
            1 | 4..=6 => self.stream(self.words.streams[1], &name),
            7 if self.words.relation.is_some() => self.relation_source(&name),
            8 if depth > 0 => {
                let (query, kinds) = self.relation(depth - 1, None);
                derived(&name, format!("({query})"), &kinds)
            }
            9 if depth > 0 => {
                let (query, kinds) = self.relation(depth - 1, None);
                let stream = self.choices.one(&["Istream", "Dstream", "Rstream"]);
                // Rows of one instant have no defined order here, so a row-based window cannot be
                // used.
                let window = self.time_window();
                derived(&name, format!("({stream}({query})){window}"), &kinds)
            }
            10 if !self.views.is_empty() => {
                let view = self.choices.pick(self.views.len());
                let window = match self.views[view].is_stream {
                    true => self.window("c0"),
                    false => String::new(),
                };
                let view = &self.views[view];
                derived(&name, format!("{}{window}", view.name), &view.kinds)
            }
            11 => self.row_match(&name),
            _ => self.stream(self.words.streams[0], &name),
        }
    }

    fn stream(&mut self, source: &str, name: &str) -> Table {
        let keys = self.choices.one(&self.words.keys);
        let window = self.window(keys);
        // Equal values may leave these windows in another order than they entered.
        let ordered = !window.contains("Partition") && !window.contains("Session");
        self.source(format!("{source}{window}"), name, ordered)
    }

    fn relation_source(&mut self, name: &str) -> Table {
        let relation = self.words.relation.expect("there is one");
        self.source(relation.to_string(), name, false)
    }

    fn source(&self, text: String, name: &str, ordered: bool) -> Table {
        let columns = self.words.columns.iter();
        Table {
            text: format!("{text} AS {name}"),
            columns: columns
                .map(|(column, kind)| (format!("{name}.{column}"), *kind))
                .collect(),
            is_source: true,
            ordered,
        }
    }

    fn window(&mut self, keys: &str) -> String {
        match self.choices.pick(9) {
            8 => {
                let gap = self.choices.one(&[1, 2, 3]);
                let by = self.choices.one(&["", " By "]);
                let keys = if by.is_empty() { "" } else { keys };
                format!(" [Session {gap} s{by}{keys}]")
            }
            6 => format!(" [Rows {}]", self.choices.one(&[1, 2, 3])),
            7 => {
                let rows = self.choices.one(&[1, 2]);
                format!(" [Partition By {keys} Rows {rows}]")
            }
            _ => self.time_window(),
        }
    }

    pub(super) fn time_window(&mut self) -> String {
        let slides = ["", "", " Slide 2 s", " Slide 3 s", " Slide 5 s"];
        let slide = self.choices.one(&slides);
        match self.choices.pick(5) {
            0 => String::new(),
            1 | 2 => {
                let size = self.choices.one(&[3, 1, 2, 5]);
                let delay = self.choices.one(&["", "", " Delay 1 s", " Delay 4 s"]);
                format!(" [Range {size} s{slide}{delay}]")
            }
            3 => " [Now]".into(),
            _ => format!(" [Range Unbounded{slide}]"),
        }
    }
}

fn derived(name: &str, text: String, kinds: &[Kind]) -> Table {
    let columns = kinds.iter().enumerate();
    Table {
        text: format!("{text} AS {name}"),
        columns: columns
            .map(|(i, kind)| (format!("{name}.c{i}"), *kind))
            .collect(),
        is_source: false,
        ordered: false,
    }
}
