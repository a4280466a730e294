//! Random expressions, conditions and aggregates over columns of known kinds.

use super::{Grammar, Kind};

impl Grammar<'_, '_> {
    pub(super) fn value(&mut self, columns: &[(String, Kind)], kind: Kind, depth: usize) -> String {
        let fitting: Vec<&String> = columns
            .iter()
            .filter(|(_, k)| *k == kind)
            .map(|(n, _)| n)
            .collect();
        if depth == 0 || kind == Kind::Opaque || self.choices.pick(3) < 2 {
            if fitting.is_empty() {
                return self.literal(kind);
            }
            return fitting[self.choices.pick(fitting.len())].clone();
        }
        let depth = depth - 1;
        let mut one = |kind| self.value(columns, kind, depth);
        let (x, y) = (one(kind), one(kind));
        let common = self.choices.pick(10);
        match common {
            0 => return self.literal(kind),
            1 => {
                let condition = self.condition(columns, depth);
                return format!("CASE WHEN {condition} THEN {x} ELSE {y} END");
            }
            2 => return format!("coalesce({x}, {y})"),
            3 => return format!("nullif({x}, {y})"),
            4 if kind != Kind::Bool => {
                let name = self.choices.one(&["greatest", "least"]);
                return format!("{name}({x}, {y})");
            }
            _ => {}
        }
        match kind {
            Kind::Int => self.integer(columns, &x, &y, depth),
            Kind::Float => match self.choices.pick(5) {
                0 => format!("CAST({} AS float)", self.value(columns, Kind::Int, depth)),
                1 => format!("{}({x})", self.choices.one(&["abs", "floor", "round"])),
                _ => format!("({x} {} {y})", self.choices.one(&["+", "-", "*"])),
            },
            Kind::Text => match self.choices.pick(6) {
                5 => format!("format('%s:%s%%', {x}, {y})"),
                0 => format!("upper({x})"),
                1 => format!("substr({x}, 1, 1)"),
                2 => format!("CAST({} AS text)", self.value(columns, Kind::Int, depth)),
                3 => format!("concat({x}, {y})"),
                _ => format!("{x} || {y}"),
            },
            Kind::Bool => format!("({})", self.condition(columns, depth)),
            Kind::Time => format!(
                "CAST({} AS timestamp)",
                self.value(columns, Kind::Int, depth)
            ),
            Kind::Opaque => unreachable!("nothing is computed with it"),
        }
    }

    fn integer(&mut self, columns: &[(String, Kind)], x: &str, y: &str, depth: usize) -> String {
        match self.choices.pick(12) {
            10 => format!("log_bucket({x}, {})", self.choices.one(&[2, 10])),
            11 => format!("width_bucket({x}, 0, 4, 2)"),
            0 => format!("-({x})"),
            1 => format!("{}({x})", self.choices.one(&["abs", "sign"])),
            2 => format!("length({})", self.value(columns, Kind::Text, depth)),
            3 => format!(
                "CAST({} AS integer)",
                self.value(columns, Kind::Text, depth)
            ),
            4 => format!(
                "CAST({} AS integer)",
                self.value(columns, Kind::Float, depth)
            ),
            5 => format!(
                "CAST({} - {} AS integer)",
                self.value(columns, Kind::Time, depth),
                self.value(columns, Kind::Time, depth)
            ),
            _ => format!("({x} {} {y})", self.choices.one(&["+", "-", "*", "/", "%"])),
        }
    }

    pub(super) fn literal(&mut self, kind: Kind) -> String {
        match kind {
            Kind::Int => self.choices.one(&["1", "0", "2"]).into(),
            Kind::Text => format!("'{}'", self.choices.one(&self.words.texts)),
            Kind::Float | Kind::Opaque => self.choices.one(&["0.5", "1.0"]).into(),
            Kind::Bool => self.choices.one(&["true", "false"]).into(),
            Kind::Time => format!("CAST({} AS timestamp)", self.choices.one(&[6, 5])),
        }
    }

    pub(super) fn condition(&mut self, columns: &[(String, Kind)], depth: usize) -> String {
        if depth > 0 && self.choices.once_in(4) {
            let left = self.condition(columns, depth - 1);
            let right = self.condition(columns, depth - 1);
            return match self.choices.pick(3) {
                0 => format!("({left} OR {right})"),
                1 => format!("({left} AND {right})"),
                _ => format!("NOT ({left})"),
            };
        }
        let kind = self.any_kind();
        let x = self.value(columns, kind, depth);
        if kind == Kind::Bool && self.choices.once_in(2) {
            return x;
        }
        match (kind, self.choices.pick(8)) {
            (_, 0..=2) => {
                let ops = match kind {
                    Kind::Bool => &["=", "<>"][..],
                    _ => &["=", "<", ">=", "<>", ">", "<="],
                };
                let op = self.choices.one(ops);
                format!("{x} {op} {}", self.value(columns, kind, depth))
            }
            (_, 3) => format!("{x} IS NULL"),
            (_, 4) => format!("{x} IS NOT NULL"),
            (Kind::Text, 5) => {
                let not = self.choices.one(&["", "NOT "]);
                format!(
                    "{x} {not}LIKE {}",
                    self.choices.one(&["'x%'", "'%y'", "'_'"])
                )
            }
            (Kind::Bool, _) => format!("NOT {x}"),
            (_, 5) => {
                let not = self.choices.one(&["", "NOT "]);
                format!(
                    "{x} {not}BETWEEN {} AND {}",
                    self.literal(kind),
                    self.literal(kind)
                )
            }
            _ => {
                let not = self.choices.one(&["", "NOT "]);
                let null = self.choices.one(&["", ", NULL"]);
                format!(
                    "{x} {not}IN ({}, {}{null})",
                    self.literal(kind),
                    self.literal(kind)
                )
            }
        }
    }

    pub(super) fn aggregate(
        &mut self,
        columns: &[(String, Kind)],
        ordered: bool,
    ) -> (String, Kind) {
        let kind = self.choices.one(&[Kind::Int, Kind::Float]);
        let any = self.any_kind();
        match self.choices.pick(14) {
            12 => {
                let name = self.choices.one(&["max_by", "min_by"]);
                let y = self.value(columns, kind, 0);
                (format!("{name}({}, {y})", self.value(columns, any, 0)), any)
            }
            13 => {
                let name = self.choices.one(&["string_agg", "array_agg"]);
                let x = self.value(columns, Kind::Text, 0);
                (format!("{name}({x})"), Kind::Text)
            }
            0..=3 => (self.aggregate_of(columns, kind), kind),
            4 | 5 if any != Kind::Bool => (self.aggregate_of(columns, any), any),
            6 if ordered => {
                let name = self.choices.one(&["first", "last"]);
                (format!("{name}({})", self.value(columns, any, 0)), any)
            }
            7 => {
                let x = self.value(columns, Kind::Int, 0);
                (
                    format!("quantile({x}, {})", self.choices.one(&["0.5", "0.9"])),
                    Kind::Opaque,
                )
            }
            8 => {
                let x = self.value(columns, kind, 0);
                (format!("median({x})"), Kind::Opaque)
            }
            9 => {
                let x = self.value(columns, any, 0);
                (format!("top({x}, 2)"), Kind::Opaque)
            }
            10 => {
                let name = self.choices.one(&["var", "stddev"]);
                (
                    format!("{name}({})", self.value(columns, kind, 0)),
                    Kind::Opaque,
                )
            }
            _ => {
                let distinct = self.choices.one(&["", "DISTINCT "]);
                let x = self.value(columns, kind, 1);
                (format!("avg({distinct}{x})"), Kind::Opaque)
            }
        }
    }

    /// A window function and its kind.
    pub(super) fn window_function(&mut self, columns: &[(String, Kind)]) -> (String, Kind) {
        let key = self.choices.one(&[Kind::Int, Kind::Text, Kind::Float]);
        let partition = match self.choices.once_in(2) {
            true => format!("PARTITION BY {} ", self.value(columns, key, 0)),
            false => String::new(),
        };
        let kind = self.any_kind();
        let direction = self.choices.one(&["", " DESC", " NULLS FIRST"]);
        // A constant is no column position in OVER, but its rows are all equal.
        let order = format!("ORDER BY {}{direction}", self.value(columns, Kind::Int, 0));
        let x = self.value(columns, kind, 1);
        let (call, kind) = match self.choices.pick(12) {
            8 => (
                format!("ntile({})", self.choices.one(&[1, 2, 3, 9])),
                Kind::Int,
            ),
            9 => ("percent_rank()".to_owned(), Kind::Float),
            10 => ("cume_dist()".to_owned(), Kind::Float),
            0 => ("row_number()".to_owned(), Kind::Int),
            1 => ("rank()".to_owned(), Kind::Int),
            2 => ("dense_rank()".to_owned(), Kind::Int),
            3 => (format!("lag({x})"), kind),
            4 => (format!("lead({x}, 2, {})", self.literal(kind)), kind),
            which => {
                let number = self.choices.one(&[Kind::Int, Kind::Float]);
                let (call, kind) = match which {
                    5 => (format!("first_value({x})"), kind),
                    6 => (format!("last_value({x})"), kind),
                    11 => (format!("nth_value({x}, 2)"), kind),
                    _ => (self.aggregate_of(columns, number), number),
                };
                let call = call.replace("DISTINCT ", "");
                let start = self.choices.one(&[
                    "UNBOUNDED PRECEDING",
                    "2 PRECEDING",
                    "CURRENT ROW",
                    "1 FOLLOWING",
                ]);
                let end = self.choices.one(&[
                    "CURRENT ROW",
                    "1 PRECEDING",
                    "2 FOLLOWING",
                    "UNBOUNDED FOLLOWING",
                ]);
                let unit = self.choices.one(&["ROWS", "RANGE", "GROUPS"]);
                let frame = match self.choices.once_in(4) {
                    true => String::new(),
                    false => format!(" {unit} BETWEEN {start} AND {end}"),
                };
                return (format!("{call} OVER ({partition}{order}{frame})"), kind);
            }
        };
        (format!("{call} OVER ({partition}{order})"), kind)
    }

    /// An aggregate of this kind.
    pub(super) fn aggregate_of(&mut self, columns: &[(String, Kind)], kind: Kind) -> String {
        let distinct = self.choices.one(&["", "", "DISTINCT "]);
        let which = self.choices.pick(5);
        match (kind, which) {
            // Booleans have no least and no greatest value.
            (Kind::Bool, _) => format!("count(*) > {}", which),
            (Kind::Int, 0) => "count(*)".into(),
            (Kind::Int, 1) => {
                let of = self.any_kind();
                format!("count({distinct}{})", self.value(columns, of, 1))
            }
            (Kind::Int | Kind::Float, 2) => {
                format!("sum({distinct}{})", self.value(columns, kind, 1))
            }
            _ => {
                let name = if which == 3 { "max" } else { "min" };
                format!("{name}({})", self.value(columns, kind, 1))
            }
        }
    }
}
