//! Random groups, aggregates and window functions.

use super::{Column, Grammar, Kind, Selected};
use crate::dialect::translated;
use crate::text::Text;

impl Grammar<'_> {
    /// GROUP BY with HAVING; `number` numbers the rows, if there is such a column.
    pub(super) fn grouped(
        &mut self,
        columns: &[Column],
        number: Option<&Text>,
        kinds: Option<&[Kind]>,
    ) -> Selected {
        let mut keys: Vec<(Text, Kind)> = Vec::new();
        for _ in 0..self.one(&[0, 1, 1, 2, 2]) {
            let kind = self.one(&[
                Kind::Int,
                Kind::Text,
                Kind::Text,
                Kind::Duration,
                Kind::Bool,
            ]);
            // A constant would be the position of a column.
            if columns.iter().any(|c| c.kind == kind) {
                let key = match self.once_in(3) {
                    true => self.value(columns, kind, 1),
                    false => self.leaf(columns, kind),
                };
                if key.cql.contains('.') {
                    keys.push((key, kind));
                }
            }
        }
        let mut selected = Selected {
            items: Vec::new(),
            kinds: Vec::new(),
            tail: self.group_by(&keys),
        };
        match kinds {
            Some(kinds) => {
                for kind in kinds {
                    let key = keys.iter().find(|(_, k)| k == kind).cloned();
                    let item = match key.filter(|_| self.once_in(2)) {
                        Some((key, _)) => key,
                        None => self.extreme_of(columns, *kind),
                    };
                    selected.items.push(item);
                }
                selected.kinds = kinds.to_vec();
            }
            None => {
                for (key, kind) in &keys {
                    selected.items.push(key.clone());
                    selected.kinds.push(*kind);
                }
                if selected.tail.cql.contains(" (") && keys.len() == 2 {
                    let (a, b) = (&keys[0].0, &keys[1].0);
                    selected.items.push(Text::of("grouping({0}, {1})", &[a, b]));
                    selected.kinds.push(Kind::Int);
                }
                for _ in 0..self.one(&[1, 2, 3]) {
                    let (item, kind) = self.aggregate(columns, number);
                    selected.items.push(item);
                    selected.kinds.push(kind);
                }
            }
        }
        if self.once_in(4) {
            let kind = self.one(&[Kind::Int, Kind::Text, Kind::Duration]);
            let (x, op) = (self.extreme_of(columns, kind), self.one(&[">", "<=", "<>"]));
            let having = Text::of(
                &format!(" HAVING {{0}} {op} {{1}}"),
                &[&x, &self.literal(kind)],
            );
            selected.tail.push(&having);
        } else if self.once_in(4) {
            selected.tail.push(&Text::same(" HAVING count(*) > 1"));
        }
        selected
    }

    /// Keys, or several sets of them, which are written with a blank before the parenthesis.
    fn group_by(&mut self, keys: &[(Text, Kind)]) -> Text {
        let texts: Vec<Text> = keys.iter().map(|(key, _)| key.clone()).collect();
        let list = Text::joined(&texts, ", ");
        let first = texts.first().cloned().unwrap_or_default();
        let is_unique = texts.len() == 2 && texts[0].cql != texts[1].cql;
        match texts.len() {
            0 => Text::default(),
            2 if is_unique && self.once_in(2) => {
                let template = self.one(&[
                    " GROUP BY ROLLUP ({0})",
                    " GROUP BY CUBE ({0})",
                    " GROUP BY GROUPING SETS (({0}), ({1}), ())",
                    " GROUP BY GROUPING SETS (({0}), ({1}))",
                    " GROUP BY {1}, ROLLUP ({2})",
                    " GROUP BY CUBE ({1}), {2}",
                    " GROUP BY ROLLUP ({1}), GROUPING SETS (({2}), ())",
                    " GROUP BY {1}, CUBE ({0})",
                ]);
                Text::of(template, &[&list, &first, &texts[1]])
            }
            _ => Text::of(" GROUP BY {0}", &[&list]),
        }
    }

    /// An aggregate whose result has this kind.
    fn extreme_of(&mut self, columns: &[Column], kind: Kind) -> Text {
        if kind == Kind::Bool {
            return Text::same("count(*) > 2");
        }
        let x = self.value(columns, kind, 1);
        Text::of(&format!("{}({{0}})", self.one(&["min", "max"])), &[&x])
    }

    fn aggregate(&mut self, columns: &[Column], number: Option<&Text>) -> (Text, Kind) {
        let (call, kind) = self.aggregate_call(columns, number);
        match self.once_in(4) {
            true => {
                let filter = self.condition(columns, 1);
                let filtered = Text::of("{0} FILTER (WHERE {1})", &[&call, &filter]);
                // FILTER belongs to the aggregate, inside of the cast of a translated sum.
                let cast = " AS bigint)";
                match call.duckdb.strip_suffix(cast) {
                    Some(sum) => {
                        let sql = format!("{sum} FILTER (WHERE {}){cast}", filter.duckdb);
                        (Text::differing(filtered.cql, sql), kind)
                    }
                    None => (filtered, kind),
                }
            }
            false => (call, kind),
        }
    }

    fn aggregate_call(&mut self, columns: &[Column], number: Option<&Text>) -> (Text, Kind) {
        let any = self.any_kind();
        let distinct = self.one(&["", "DISTINCT "]);
        let small = self.leaf(columns, Kind::Int);
        match self.rng.usize(0..17) {
            0 | 1 => (Text::same("count(*)"), Kind::Int),
            2 => {
                let x = self.value(columns, any, 1);
                (
                    Text::of(&format!("count({distinct}{{0}})"), &[&x]),
                    Kind::Int,
                )
            }
            3 | 4 => (self.sum(columns, distinct), Kind::Int),
            5 => {
                let x = self.value(columns, Kind::Duration, 1);
                (translated("sum", &[&x]), Kind::Duration)
            }
            15 => {
                let x = self.value(columns, Kind::Duration, 1);
                (
                    Text::of(&format!("avg({distinct}{{0}})"), &[&x]),
                    Kind::Opaque,
                )
            }
            6 => {
                let x = self.value(columns, Kind::Float, 1);
                (Text::of("sum({0})", &[&x]), Kind::Opaque)
            }
            7 if any != Kind::Bool => (self.extreme_of(columns, any), any),
            8 => (Text::of("median({0})", &[&small]), Kind::Opaque),
            9 => (
                Text::of(
                    &format!("stddev{}({{0}})", self.one(&["", "_pop"])),
                    &[&small],
                ),
                Kind::Opaque,
            ),
            10 => (translated("variance", &[&small]), Kind::Opaque),
            11 => {
                let (name, share) = (self.one(&["disc", "cont"]), self.one(&["0.5", "0.9", "0"]));
                let template = format!("percentile_{name}({share}) WITHIN GROUP (ORDER BY {{0}})");
                (Text::of(&template, &[&small]), Kind::Opaque)
            }
            12 => {
                let x = self.leaf(columns, Kind::Text);
                let name = self.one(&["list", "distinct list"]);
                (translated(name, &[&x]), Kind::Text)
            }
            13 | 14 if number.is_some() => {
                let x = self.leaf(columns, any);
                let name = self.one(&["max_by", "min_by"]);
                let number = number.expect("it was compared");
                (
                    Text::of(&format!("{name}({{0}}, {{1}})"), &[&x, number]),
                    any,
                )
            }
            _ => (self.extreme_of(columns, Kind::Int), Kind::Int),
        }
    }

    fn sum(&mut self, columns: &[Column], distinct: &str) -> Text {
        let x = self.value(columns, Kind::Int, 1);
        translated("sum", &[&Text::of(&format!("{distinct}{{0}}"), &[&x])])
    }

    /// A window function and its kind; with ties in the order only where they have the same result.
    pub(super) fn window_function(&mut self, columns: &[Column], number: &Text) -> (Text, Kind) {
        let key = self.one(&[Kind::Int, Kind::Text]);
        let partition = match self.once_in(3) {
            true => Text::default(),
            false => Text::of("PARTITION BY {0} ", &[&self.leaf(columns, key)]),
        };
        let order_kind = self.one(&[Kind::Int, Kind::Text, Kind::Duration, Kind::Time]);
        let mut order = self.leaf(columns, order_kind);
        if !order.cql.contains('.') {
            order = number.clone();
        }
        let direction = self.one(&["", " NULLS FIRST", " DESC NULLS LAST", " DESC NULLS FIRST"]);
        let ties = Text::of(&format!("ORDER BY {{0}}{direction}"), &[&order]);
        let total = Text::of("{0}, {1}", &[&ties, number]);
        let kind = self.any_kind();
        let x = self.value(columns, kind, 1);
        let over = |call: &Text, order: &Text, frame: &str| {
            let template = format!("{{0}} OVER ({{1}}{{2}}{frame})");
            Text::of(&template, &[call, &partition, order])
        };
        let rows = self.one(&[
            "",
            " ROWS UNBOUNDED PRECEDING",
            " ROWS BETWEEN 2 PRECEDING AND CURRENT ROW",
            " ROWS BETWEEN 1 PRECEDING AND 2 FOLLOWING",
            " ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
            " ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING",
            " ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING",
        ]);
        match self.rng.usize(0..14) {
            10 => (over(&Text::same("ntile(3)"), &total, ""), Kind::Int),
            11 => {
                let call = Text::same(self.one(&["percent_rank()", "cume_dist()"]));
                (over(&call, &ties, ""), Kind::Opaque)
            }
            12 => {
                let call = Text::of("nth_value({0}, 2)", &[&x]);
                (over(&call, &total, rows), kind)
            }
            13 => {
                let call = Text::of("count({0})", &[&x]);
                let frame = self.one(&[
                    " GROUPS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
                    " GROUPS 2 PRECEDING",
                    " GROUPS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING",
                ]);
                (over(&call, &ties, frame), Kind::Int)
            }
            0 => (over(&Text::same("row_number()"), &total, ""), Kind::Int),
            1 => (over(&Text::same("rank()"), &ties, ""), Kind::Int),
            2 => (over(&Text::same("dense_rank()"), &ties, ""), Kind::Int),
            3 => (over(&Text::of("lag({0})", &[&x]), &total, ""), kind),
            4 => {
                let call = Text::of("lead({0}, 2, {1})", &[&x, &self.literal(kind)]);
                (over(&call, &total, ""), kind)
            }
            5 => (
                over(&Text::of("first_value({0})", &[&x]), &total, rows),
                kind,
            ),
            6 => (
                over(&Text::of("last_value({0})", &[&x]), &total, rows),
                kind,
            ),
            7 => {
                let call = Text::of("min({0})", &[&self.value(columns, Kind::Int, 1)]);
                let frame = " RANGE BETWEEN 2 PRECEDING AND 1 FOLLOWING";
                let keys = Text::of("ORDER BY {0}", &[&self.leaf(columns, Kind::Int)]);
                match keys.cql.contains('.') {
                    true => (over(&call, &keys, frame), Kind::Int),
                    false => (over(&call, &total, rows), Kind::Int),
                }
            }
            8 => {
                let call = Text::of("count({0})", &[&x]);
                let frame = self.one(&["", " RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING"]);
                (over(&call, &ties, frame), Kind::Int)
            }
            _ => {
                let x = self.value(columns, Kind::Int, 1);
                let sum = over(&Text::of("sum({0})", &[&x]), &total, rows);
                (
                    Text::filled("{0}", "CAST({0} AS bigint)", &[&sum]),
                    Kind::Int,
                )
            }
        }
    }
}
