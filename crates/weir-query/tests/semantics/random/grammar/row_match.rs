//! Random patterns over the rows of a stream: MATCH_RECOGNIZE.

use super::tables::Table;
use super::{Grammar, Kind};

/// The variables of a pattern.
const VARIABLES: [&str; 3] = ["A", "B", "C"];

/// The longest time of a match in seconds.
const WITHIN_MAX: usize = 8;

impl Grammar<'_, '_> {
    /// The matches in a source, as a table of FROM.
    pub fn row_match(&mut self, name: &str) -> Table {
        let source = self.choices.one(&self.words.streams);
        let pattern = self.sequence(2);
        let used = VARIABLES.into_iter().filter(|v| pattern.contains(v));
        let used: Vec<&str> = used.collect();
        let absent = match self.choices.pick(4) {
            3 => format!(" NOT {}", self.choices.one(&used)),
            _ => String::new(),
        };
        let unlimited = pattern.contains(['*', '+']) || pattern.contains(",}");
        let within = match unlimited || !absent.is_empty() || !self.choices.once_in(4) {
            true => format!(" WITHIN {} s", 1 + self.choices.pick(WITHIN_MAX)),
            false => String::new(),
        };
        let keys = self.choices.one(&[Some(0), None, Some(1), Some(2)]);
        let keys = keys.map_or("", |key| self.words.keys[key]);
        let (mut columns, mut measures) = (Vec::new(), Vec::new());
        for (i, _) in keys.split(", ").filter(|key| !key.is_empty()).enumerate() {
            let key = keys.split(", ").nth(i).expect("it was counted");
            let kind = self.words.columns.iter().find(|(column, _)| *column == key);
            columns.push((format!("{name}.{key}"), kind.expect("a key is a column").1));
        }
        for i in 0..self.choices.one(&[1, 2, 3]) {
            let (measure, kind) = self.measure(&used);
            measures.push(format!("{measure} AS m{i}"));
            columns.push((format!("{name}.m{i}"), kind));
        }
        let partition = match keys {
            "" => String::new(),
            keys => format!("PARTITION BY {keys} "),
        };
        let sort_key = self.words.columns[0].0;
        let order = match self.choices.pick(3) {
            0 => String::new(),
            1 => "ORDER BY ts ".into(),
            _ => format!("ORDER BY ts, {sort_key} DESC "),
        };
        let after = self.choices.one(&[
            "",
            "AFTER MATCH SKIP TO NEXT ROW ",
            "ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW ",
        ]);
        let definitions = self.definitions(&used);
        let measures = measures.join(", ");
        let window = self.time_window();
        let text = format!(
            "{source} MATCH_RECOGNIZE ({partition}{order}MEASURES {measures} {after}PATTERN \
             ({pattern}{absent}){within}{definitions}){window} AS {name}"
        );
        Table::unordered(text, columns)
    }

    /// Terms of which the first one matches a row.
    fn sequence(&mut self, depth: usize) -> String {
        let mut terms = vec![self.term(depth) + self.choices.one(&["", "", "+", "{1,2}", "{2}"])];
        for _ in 0..self.choices.one(&[1, 0, 2, 1]) {
            let times = ["", "+", "*", "?", "{1,2}", "{2,}", "{,2}"];
            let times = self.choices.one(&times);
            let reluctant = match times {
                "" => "",
                _ => self.choices.one(&["", "", "?"]),
            };
            let term = self.term(depth);
            terms.push(format!("{term}{times}{reluctant}"));
        }
        terms.join(" ")
    }

    fn term(&mut self, depth: usize) -> String {
        match self.choices.pick(6) {
            4 if depth > 0 => format!("({})", self.sequence(depth - 1)),
            5 if depth > 0 => {
                let (one, other) = (self.sequence(depth - 1), self.sequence(depth - 1));
                format!("({one} | {other})")
            }
            _ => self.choices.one(&VARIABLES).to_string(),
        }
    }

    /// Conditions of some of the variables.
    fn definitions(&mut self, used: &[&str]) -> String {
        let mut definitions = Vec::new();
        for variable in used {
            if self.choices.once_in(5) {
                continue;
            }
            let mut read = self.current(&[""]);
            match self.choices.pick(4) {
                0 => {}
                1 => read.extend(self.around(&["prev"], "")),
                2 => {
                    let other = self.choices.one(used);
                    read.extend(self.around(&["first", "last"], &format!("{other}.")));
                    read.extend(self.current(&[&format!("{other}.")]));
                }
                _ => read.extend(self.around(&["first", "last", "prev"], "")),
            }
            let depth = self.choices.pick(2);
            let condition = self.condition(&read, depth);
            definitions.push(format!("{variable} AS {condition}"));
        }
        match definitions.is_empty() {
            true => String::new(),
            false => format!(" DEFINE {}", definitions.join(", ")),
        }
    }

    fn measure(&mut self, used: &[&str]) -> (String, Kind) {
        let variable = format!("{}.", self.choices.one(used));
        let of = self.choices.one(&[&variable[..], ""]);
        match self.choices.pick(8) {
            0 => ("match_number()".into(), Kind::Int),
            1 => ("classifier()".into(), Kind::Text),
            2 => (format!("count({of}*)"), Kind::Int),
            3 | 4 => {
                let columns = self.current(&[of]);
                let kind = self.choices.one(&[Kind::Int, Kind::Text]);
                (self.aggregate_of(&columns, kind), kind)
            }
            _ => {
                let mut read = self.current(&[&variable, ""]);
                read.extend(self.around(&["first", "last"], of));
                let kind = self.any_kind();
                (self.value(&read, kind, 1), kind)
            }
        }
    }

    /// The columns with qualifiers.
    fn current(&self, of: &[&str]) -> Vec<(String, Kind)> {
        let columns = self.words.columns.iter();
        let each = columns
            .flat_map(|(column, kind)| of.iter().map(move |of| (format!("{of}{column}"), *kind)));
        each.collect()
    }

    /// The columns of other rows.
    fn around(&self, functions: &[&str], of: &str) -> Vec<(String, Kind)> {
        let columns = self.words.columns.iter();
        let each = columns.flat_map(|(column, kind)| {
            let call = move |function| (format!("{function}({of}{column})"), *kind);
            functions.iter().map(call)
        });
        each.collect()
    }
}
