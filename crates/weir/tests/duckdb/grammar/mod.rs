//! Random one-shot queries that are valid in CQL and in DuckDB's SQL, well typed by construction.

mod aggregates;
mod expressions;
mod tables;

use fastrand::Rng;

use crate::text::Text;
use crate::window::Window;

/// The kind of a column, as the grammar distinguishes them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Int,
    /// An integer in nanoseconds.
    Duration,
    /// An integer in bytes.
    Amount,
    Text,
    Float,
    Bool,
    Time,
    /// Values that are selected, but neither computed with nor compared: means, for instance, whose
    /// last digits differ.
    Opaque,
}

/// A column that an expression may use.
#[derive(Clone)]
pub struct Column {
    text: Text,
    kind: Kind,
}

/// A query, and whether its rows have a total order.
pub struct Query {
    pub text: Text,
    pub is_ordered: bool,
}

/// A view of WITH.
struct View {
    name: String,
    kinds: Vec<Kind>,
}

/// Generates queries.
pub struct Grammar<'a> {
    rng: &'a mut Rng,
    names: usize,
    views: Vec<View>,
    /// The windows in the order of their placeholders; without, a query reads whole recordings.
    windows: Option<Vec<Window>>,
}

/// A query with windows; in DuckDB's SQL each is a placeholder.
pub struct WindowQuery {
    pub text: Text,
    pub windows: Vec<Window>,
}

impl WindowQuery {
    /// The query over the rows of the instant `at`.
    pub fn sql(&self, at: i64) -> String {
        let windows = self.windows.iter().enumerate();
        windows.fold(self.text.duckdb.clone(), |sql, (number, window)| {
            sql.replace(&placeholder(number), &window.sql(at))
        })
    }
}

/// The place of the window with this number.
fn placeholder(number: usize) -> String {
    format!("@window{number}@")
}

/// The select list and what follows WHERE.
struct Selected {
    items: Vec<Text>,
    kinds: Vec<Kind>,
    tail: Text,
}

const ALL_SETS: [&str; 6] = [
    "UNION ALL",
    "UNION",
    "EXCEPT",
    "EXCEPT ALL",
    "INTERSECT",
    "INTERSECT ALL",
];

impl<'a> Grammar<'a> {
    pub fn new(rng: &'a mut Rng) -> Grammar<'a> {
        Grammar {
            rng,
            names: 0,
            views: Vec::new(),
            windows: None,
        }
    }

    /// A whole query over windows that change.
    pub fn window_query(mut self) -> WindowQuery {
        self.windows = Some(Vec::new());
        let query = self.query();
        WindowQuery {
            text: query.text,
            windows: self.windows.expect("it was set"),
        }
    }

    /// A whole query.
    pub fn query(&mut self) -> Query {
        let mut with = Text::default();
        while self.views.len() < 2 && self.once_in(5) {
            let name = format!("v{}", self.views.len());
            let (query, kinds) = self.relation(1, None);
            let start = if self.views.is_empty() { "WITH" } else { "," };
            with.push(&Text::of(&format!("{start} {name} AS ({{0}}) "), &[&query]));
            self.views.push(View { name, kinds });
        }
        let (body, kinds) = self.relation(2, None);
        let is_ordered = self.once_in(3);
        let mut text = with.and(&body);
        if is_ordered {
            text.push(&self.order(kinds.len()));
        }
        Query { text, is_ordered }
    }

    fn once_in(&mut self, n: usize) -> bool {
        self.rng.usize(0..n) == 0
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.rng.usize(0..of.len())]
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("x{}", self.names)
    }

    /// ORDER BY every column, so that the order is total, and mostly LIMIT.
    fn order(&mut self, count: usize) -> Text {
        let mut columns: Vec<usize> = (0..count).collect();
        self.rng.shuffle(&mut columns);
        let keys: Vec<Text> = columns
            .iter()
            .map(|column| self.sort_key(*column))
            .collect();
        let mut text = Text::of(" ORDER BY {0}", &[&Text::joined(&keys, ", ")]);
        if !self.once_in(4) {
            let limit = self.one(&[1, 2, 3, 7, 1000]);
            let offset = self.one(&["", "", " OFFSET 1", " OFFSET 4"]);
            text.push(&Text::same(format!(" LIMIT {limit}{offset}")));
        }
        text
    }

    fn sort_key(&mut self, column: usize) -> Text {
        // By its position or by its name.
        let column = match self.once_in(2) {
            true => Text::same((column + 1).to_string()),
            false => Text::same(format!("c{column}")),
        };
        match self.rng.usize(0..5) {
            0 => column,
            1 => crate::dialect::translated("descending order", &[&column]),
            2 => Text::of("{0} NULLS FIRST", &[&column]),
            3 => Text::of("{0} DESC NULLS LAST", &[&column]),
            _ => Text::of("{0} ASC NULLS LAST", &[&column]),
        }
    }

    /// A query with columns of `kinds` if given.
    fn relation(&mut self, depth: usize, kinds: Option<&[Kind]>) -> (Text, Vec<Kind>) {
        let (first, kinds) = self.block(depth, kinds);
        if depth == 0 || kinds.contains(&Kind::Opaque) || !self.once_in(5) {
            return (first, kinds);
        }
        let op = self.one(&ALL_SETS);
        let (second, _) = self.block(depth - 1, Some(&kinds));
        (
            Text::of(&format!("{{0}} {op} {{1}}"), &[&first, &second]),
            kinds,
        )
    }

    /// SELECT .. FROM .. WHERE .. GROUP BY .. HAVING
    fn block(&mut self, depth: usize, kinds: Option<&[Kind]>) -> (Text, Vec<Kind>) {
        let from = self.from(depth);
        let mut conditions = from.conditions;
        while conditions.len() < 2 && self.once_in(3) {
            let condition = self.condition(&from.columns, 2);
            conditions.push(condition);
        }
        if depth > 0 && self.once_in(4) {
            let condition = self.subquery_condition(depth - 1, &from.columns);
            conditions.push(condition);
        }
        let selected = match self.rng.usize(0..6) {
            0 | 1 => self.grouped(&from.columns, from.number.as_ref(), kinds),
            2 if kinds.is_none() && from.number.is_some() => {
                let number = from.number.expect("it was compared");
                self.windowed(&from.columns, &number)
            }
            _ => self.plain(depth, &from.columns, kinds),
        };
        let distinct = if self.once_in(7) { "DISTINCT " } else { "" };
        let items = selected.items.iter().enumerate();
        let items: Vec<Text> = items
            .map(|(i, item)| Text::of(&format!("{{0}} AS c{i}"), &[item]))
            .collect();
        let filter = match conditions.is_empty() {
            true => Text::default(),
            false => Text::of(" WHERE {0}", &[&Text::joined(&conditions, " AND ")]),
        };
        let text = Text::of(
            &format!("SELECT {distinct}{{0}} FROM {{1}}{{2}}{{3}}"),
            &[
                &Text::joined(&items, ", "),
                &from.text,
                &filter,
                &selected.tail,
            ],
        );
        (text, selected.kinds)
    }

    fn plain(&mut self, depth: usize, columns: &[Column], kinds: Option<&[Kind]>) -> Selected {
        let mut kinds = kinds.map_or_else(|| self.kinds(columns), <[Kind]>::to_vec);
        let mut items: Vec<Text> = kinds.iter().map(|k| self.value(columns, *k, 2)).collect();
        if depth == 2 && self.once_in(6) {
            items.push(self.scalar_subquery(columns));
            kinds.push(Kind::Int);
        }
        Selected {
            items,
            kinds,
            tail: Text::default(),
        }
    }

    /// Window functions over one source, whose column `number` makes an order total.
    fn windowed(&mut self, columns: &[Column], number: &Text) -> Selected {
        let mut kinds = self.kinds(columns);
        let mut items: Vec<Text> = kinds.iter().map(|k| self.value(columns, *k, 1)).collect();
        for _ in 0..self.one(&[1, 2]) {
            let (item, kind) = self.window_function(columns, number);
            items.push(item);
            kinds.push(kind);
        }
        Selected {
            items,
            kinds,
            tail: Text::default(),
        }
    }

    fn kinds(&mut self, columns: &[Column]) -> Vec<Kind> {
        let count = self.one(&[1, 2, 3]);
        let has_opaque = columns.iter().any(|c| c.kind == Kind::Opaque);
        let mut kinds = Vec::new();
        for _ in 0..count {
            let is_opaque = has_opaque && self.once_in(3);
            kinds.push(if is_opaque {
                Kind::Opaque
            } else {
                self.any_kind()
            });
        }
        kinds
    }

    /// A kind that can be computed with.
    fn any_kind(&mut self) -> Kind {
        use Kind::{Amount, Bool, Duration, Float, Int, Text, Time};
        self.one(&[
            Int, Int, Int, Duration, Amount, Text, Text, Float, Bool, Time,
        ])
    }
}
