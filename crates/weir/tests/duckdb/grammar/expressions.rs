//! Random expressions and conditions.

use super::{Column, Grammar, Kind};
use crate::data::TEXTS;
use crate::dialect::translated;
use crate::text::Text;

impl Grammar<'_> {
    pub(super) fn value(&mut self, columns: &[Column], kind: Kind, depth: usize) -> Text {
        if depth == 0 || kind == Kind::Opaque || self.rng.usize(0..3) == 0 {
            return self.leaf(columns, kind);
        }
        let depth = depth - 1;
        let x = self.value(columns, kind, depth);
        let y = self.value(columns, kind, depth);
        match self.rng.usize(0..9) {
            0 => {
                let when = self.condition(columns, depth);
                return Text::of("CASE WHEN {0} THEN {1} ELSE {2} END", &[&when, &x, &y]);
            }
            1 => return Text::of("coalesce({0}, {1})", &[&x, &y]),
            2 => return Text::of("nullif({0}, {1})", &[&x, &y]),
            3 if kind != Kind::Bool => {
                let name = self.one(&["greatest", "least"]);
                return Text::of(&format!("{name}({{0}}, {{1}})"), &[&x, &y]);
            }
            _ => {}
        }
        match kind {
            Kind::Int => self.integer(columns, &x, &y, depth),
            Kind::Duration => self.duration(columns, &x, &y),
            Kind::Amount => self.amount(&x, &y),
            Kind::Float => self.float(columns, &x, &y, depth),
            Kind::Text => self.text(columns, &x, &y, depth),
            Kind::Bool => Text::of("({0})", &[&self.condition(columns, depth)]),
            Kind::Time => match self.rng.usize(0..2) {
                0 => translated("bucket of time", &[&x]),
                _ => {
                    let part =
                        self.one(&["hour", "minute", "second", "day", "week", "millisecond"]);
                    Text::of(&format!("date_trunc('{part}', {{0}})"), &[&x])
                }
            },
            Kind::Opaque => unreachable!("nothing is computed with it"),
        }
    }

    /// A column, or a literal where there is none.
    pub(super) fn leaf(&mut self, columns: &[Column], kind: Kind) -> Text {
        let fitting: Vec<&Column> = columns.iter().filter(|c| c.kind == kind).collect();
        match fitting.is_empty() || (kind != Kind::Opaque && self.once_in(6)) {
            true => self.literal(kind),
            false => fitting[self.rng.usize(0..fitting.len())].text.clone(),
        }
    }

    fn integer(&mut self, columns: &[Column], x: &Text, y: &Text, depth: usize) -> Text {
        match self.rng.usize(0..15) {
            0 => Text::of("(-({0}))", &[x]),
            1 => Text::of("abs({0})", &[x]),
            2 => {
                let of = self.any_number(columns, depth);
                Text::filled("sign({0})", "CAST(sign({0}) AS bigint)", &[&of])
            }
            3 => Text::of("length({0})", &[&self.value(columns, Kind::Text, depth)]),
            4 => translated(
                "text to integer",
                &[&self.value(columns, Kind::Text, depth)],
            ),
            5 => translated(
                "float to integer",
                &[&self.value(columns, Kind::Float, depth)],
            ),
            6 => {
                let (a, b) = (
                    self.leaf(columns, Kind::Time),
                    self.leaf(columns, Kind::Time),
                );
                translated("interval of timestamps", &[&a, &b])
            }
            7 => {
                let part = self.one(&["hour", "minute", "second", "day", "month", "dow", "doy"]);
                let part = self.one(&[part, "year", "week", "quarter"]);
                let of = self.value(columns, Kind::Time, depth);
                match self.once_in(2) {
                    true => Text::of(&format!("extract({part} FROM {{0}})"), &[&of]),
                    false => Text::of(&format!("date_part('{part}', {{0}})"), &[&of]),
                }
            }
            8 => {
                let part = self.one(&["'o'", "'-'", "''", "'vd'"]);
                let of = self.value(columns, Kind::Text, depth);
                Text::of(&format!("position({part} IN {{0}})"), &[&of])
            }
            9 => Text::of(&format!("({{0}} {} {{1}})", self.one(&["&", "|"])), &[x, y]),
            10 | 11 => translated("quotient", &[x, y]),
            12 => Text::of("({0} % {1})", &[x, y]),
            _ => Text::of(
                &format!("({{0}} {} {{1}})", self.one(&["+", "-", "*"])),
                &[x, y],
            ),
        }
    }

    fn any_number(&mut self, columns: &[Column], depth: usize) -> Text {
        let kind = self.one(&[Kind::Int, Kind::Duration, Kind::Amount, Kind::Float]);
        self.value(columns, kind, depth)
    }

    fn duration(&mut self, columns: &[Column], x: &Text, y: &Text) -> Text {
        match self.rng.usize(0..4) {
            0 => Text::of("({0} + {1})", &[x, y]),
            1 => Text::of("({0} - {1})", &[x, y]),
            2 => translated("quotient", &[x, &self.leaf(columns, Kind::Int)]),
            _ => Text::of("abs({0})", &[x]),
        }
    }

    fn amount(&mut self, x: &Text, y: &Text) -> Text {
        match self.rng.usize(0..3) {
            0 => Text::of("({0} + {1})", &[x, y]),
            1 => Text::of("({0} - {1})", &[x, y]),
            _ => Text::of("(3 * {0})", &[x]),
        }
    }

    fn float(&mut self, columns: &[Column], x: &Text, y: &Text, depth: usize) -> Text {
        match self.rng.usize(0..9) {
            0 | 1 => {
                let of = self.value(columns, Kind::Int, depth);
                Text::filled("CAST({0} AS float)", "CAST({0} AS double)", &[&of])
            }
            2 => Text::of(
                &format!("{}({{0}})", self.one(&["abs", "floor", "ceil"])),
                &[x],
            ),
            3 => translated(
                "microseconds",
                &[&self.value(columns, Kind::Duration, depth)],
            ),
            4 => translated("square root", &[x]),
            5 => translated("logarithm", &[x]),
            6 => translated("float quotient", &[x, y]),
            _ => Text::of(
                &format!("({{0}} {} {{1}})", self.one(&["+", "-", "*"])),
                &[x, y],
            ),
        }
    }

    fn text(&mut self, columns: &[Column], x: &Text, y: &Text, depth: usize) -> Text {
        let n = self.one(&[0, 1, 2, 3, 20]);
        match self.rng.usize(0..16) {
            0 => Text::of("upper({0})", &[x]),
            1 => Text::of("lower({0})", &[x]),
            2 => Text::of(&format!("substr({{0}}, {})", n + 1), &[x]),
            3 => Text::of(&format!("substring({{0}}, {}, 2)", n + 1), &[x]),
            4 => {
                let of = self.value(columns, Kind::Int, depth);
                Text::filled("CAST({0} AS text)", "CAST({0} AS varchar)", &[&of])
            }
            5 => Text::of("concat({0}, {1})", &[x, y]),
            6 => Text::of("({0} || {1})", &[x, y]),
            7 => Text::of("replace({0}, 'o', '00')", &[x]),
            8 => Text::of(
                &format!("{}({{0}})", self.one(&["trim", "ltrim", "rtrim"])),
                &[x],
            ),
            9 => Text::of(
                &format!("{}({{0}}, {n})", self.one(&["left", "right"])),
                &[x],
            ),
            10 => Text::of(
                &format!("{}({{0}}, {n}, '*')", self.one(&["lpad", "rpad"])),
                &[x],
            ),
            11 => Text::of(&format!("split_part({{0}}, '/', {})", n + 1), &[x]),
            12 => {
                let flags = self.one(&["", ", 'g'", ", 'i'"]);
                Text::of(
                    &format!("regexp_replace({{0}}, '([a-f]+)', '<\\1>'{flags})"),
                    &[x],
                )
            }
            13 => translated("format", &[x, y]),
            14 => Text::of("trim(both 'v' from {0})", &[x]),
            _ => {
                let of = self.value(columns, Kind::Bool, 0);
                Text::filled("CAST({0} AS text)", "CAST({0} AS varchar)", &[&of])
            }
        }
    }

    pub(super) fn literal(&mut self, kind: Kind) -> Text {
        let cast = |cql: &str, duckdb: &str| Text::differing(cql, duckdb);
        match kind {
            Kind::Int => {
                let number = self.one(&["0", "1", "2", "7", "42"]);
                cast(number, &format!("{number}::bigint"))
            }
            Kind::Duration => match self.once_in(2) {
                true => translated("literal with unit", &[]),
                false => cast("1 ms", "1000000::bigint"),
            },
            Kind::Amount => cast("4 KiB", "4096::bigint"),
            Kind::Text => Text::same(format!("'{}'", self.one(&TEXTS))),
            Kind::Float | Kind::Opaque => {
                let number = self.one(&["0.5", "2.0", "-1.25"]);
                cast(number, &format!("({number}::double)"))
            }
            Kind::Bool => Text::same(self.one(&["true", "false"])),
            Kind::Time => {
                let time =
                    self.one(&["2023-11-14 22:13:20", "2023-11-14 22:13:21.5", "2024-02-29"]);
                Text::same(format!("timestamp '{time}'"))
            }
        }
    }

    pub(super) fn condition(&mut self, columns: &[Column], depth: usize) -> Text {
        if depth > 0 && self.once_in(3) {
            let left = self.condition(columns, depth - 1);
            let right = self.condition(columns, depth - 1);
            let template = self.one(&["({0} OR {1})", "({0} AND {1})", "(NOT ({0}))"]);
            return Text::of(template, &[&left, &right]);
        }
        let kind = self.any_kind();
        let depth = depth.saturating_sub(1);
        let x = self.value(columns, kind, depth);
        let not = self.one(&["", "NOT "]);
        match (kind, self.rng.usize(0..9)) {
            (_, 0) => Text::of(&format!("({{0}} IS {not}NULL)"), &[&x]),
            (_, 1) => {
                let y = self.value(columns, kind, depth);
                Text::of(&format!("({{0}} IS {not}DISTINCT FROM {{1}})"), &[&x, &y])
            }
            (Kind::Bool, 2) => {
                let what = self.one(&["TRUE", "FALSE", "UNKNOWN"]);
                Text::of(&format!("({{0}} IS {not}{what})"), &[&x])
            }
            (Kind::Bool, 3..) => Text::of(&format!("({not}{{0}})"), &[&x]),
            (Kind::Text, 2 | 3) => {
                let like = self.one(&["LIKE", "ILIKE"]);
                let pattern = self.one(&["'f%'", "'%o'", "'_'", "'%v_a'", "'%'", "''"]);
                Text::of(&format!("({{0}} {not}{like} {pattern})"), &[&x])
            }
            (Kind::Text, 4) => {
                let pattern = self.one(&["'^[a-z]+$'", "'[0-9]'", "'^$'", "'(o|k).*r'"]);
                Text::of(&format!("regexp_matches({{0}}, {pattern})"), &[&x])
            }
            (Kind::Text, 5) => Text::of("starts_with({0}, 'f')", &[&x]),
            (_, 2) => {
                let (low, high) = (self.literal(kind), self.literal(kind));
                Text::of(
                    &format!("({{0}} {not}BETWEEN {{1}} AND {{2}})"),
                    &[&x, &low, &high],
                )
            }
            (_, 3) => {
                let (a, b) = (self.literal(kind), self.literal(kind));
                let null = self.one(&["", "", ", NULL"]);
                Text::of(
                    &format!("({{0}} {not}IN ({{1}}, {{2}}{null}))"),
                    &[&x, &a, &b],
                )
            }
            _ => {
                let op = self.one(&["=", "<", ">=", "<>", ">", "<="]);
                let y = self.value(columns, kind, depth);
                Text::of(&format!("({{0}} {op} {{1}})"), &[&x, &y])
            }
        }
    }
}
