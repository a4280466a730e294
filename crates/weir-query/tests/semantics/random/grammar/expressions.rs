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
        match (kind, self.choices.pick(6)) {
            (_, 0) => self.literal(kind),
            (_, 1) => format!(
                "CASE WHEN {} THEN {} ELSE {} END",
                self.condition(columns, depth),
                self.value(columns, kind, depth),
                self.value(columns, kind, depth)
            ),
            (_, 2) => format!(
                "coalesce({}, {})",
                self.value(columns, kind, depth),
                self.value(columns, kind, depth)
            ),
            (Kind::Int, 3) => format!("-({})", self.value(columns, kind, depth)),
            (Kind::Int, _) | (Kind::Float, 3 | 4) => {
                let ops: &[&str] = match kind {
                    Kind::Int => &["+", "-", "*", "/", "%"],
                    _ => &["+", "-", "*"],
                };
                let op = self.choices.one(ops);
                format!(
                    "({} {op} {})",
                    self.value(columns, kind, depth),
                    self.value(columns, kind, depth)
                )
            }
            (Kind::Text, _) => format!(
                "{} || {}",
                self.value(columns, kind, depth),
                self.value(columns, kind, depth)
            ),
            (Kind::Float, _) => format!("CAST({} AS float)", self.value(columns, Kind::Int, depth)),
            (Kind::Opaque, _) => unreachable!("nothing is computed with it"),
        }
    }

    pub(super) fn literal(&mut self, kind: Kind) -> String {
        match kind {
            Kind::Int => self.choices.one(&["1", "0", "2"]).into(),
            Kind::Text => self.choices.one(&["'x'", "'y'", "''"]).into(),
            Kind::Float | Kind::Opaque => self.choices.one(&["0.5", "1.0"]).into(),
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
        let kind = self
            .choices
            .one(&[Kind::Int, Kind::Int, Kind::Text, Kind::Float]);
        let x = self.value(columns, kind, depth);
        match (kind, self.choices.pick(8)) {
            (_, 0..=2) => {
                let op = self.choices.one(&["=", "<", ">=", "<>", ">", "<="]);
                format!("{x} {op} {}", self.value(columns, kind, depth))
            }
            (_, 3) => format!("{x} IS NULL"),
            (_, 4) => format!("{x} IS NOT NULL"),
            (Kind::Text, 5) => format!("{x} LIKE {}", self.choices.one(&["'x%'", "'%y'", "'_'"])),
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
        match self.choices.pick(12) {
            0..=4 => (self.aggregate_of(columns, kind), kind),
            5 => (self.aggregate_of(columns, Kind::Text), Kind::Text),
            6 if ordered => {
                let name = self.choices.one(&["first", "last"]);
                (format!("{name}({})", self.value(columns, kind, 0)), kind)
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
                let x = self.value(columns, Kind::Text, 0);
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

    /// An aggregate whose value is of this kind.
    pub(super) fn aggregate_of(&mut self, columns: &[(String, Kind)], kind: Kind) -> String {
        let distinct = self.choices.one(&["", "", "DISTINCT "]);
        let which = self.choices.pick(5);
        match (kind, which) {
            (Kind::Int, 0) => "count(*)".into(),
            (Kind::Int, 1) => {
                let of = self.choices.one(&[Kind::Int, Kind::Text, Kind::Float]);
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
