//! Queries in Flink SQL have the result of the oracle in Flink: at each end of a window, or in the
//! end. With `WEIR_TESTS=all` these are all golden cases that are translated and many random
//! queries, otherwise some of them.

// Other tests use the rest.
#[allow(dead_code, unused_imports)]
#[path = "../support/mod.rs"]
mod support;

mod published;
mod tallies;

#[path = "../semantics/random/choices.rs"]
mod choices;
#[allow(dead_code)]
#[path = "../semantics/random/data.rs"]
mod data;
#[allow(dead_code)]
#[path = "../semantics/random/grammar/mod.rs"]
mod grammar;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use weir_model::{
    Catalog, Declaration, Field, NANOS_PER_SECOND, Schema, Shape, Tally, Type, Unit, Value,
};
use weir_query::flink::{ColumnType, FlinkQuery, FlinkTable, ZONE, translate};
use weir_query::plan::{Node, Plan};
use weir_query::window::Window;
use weir_query::{CheckOptions, Dialect, compile, compile_unoptimized};
use weir_testing::flink::{FlinkRow, entries};
use weir_testing::repository::root;
use weir_testing::{Flink, is_full, skipped};

use choices::Choices;
use grammar::Grammar;
use support::Row;
use support::case::{self, Case};
use support::changes::Changes;
use support::feed;
use support::history::{Element, History};
use support::oracle;

/// Every so many of the cases that are translated, unless all are run.
const SHARE: usize = 16;

/// The number of random queries, and with `WEIR_TESTS=all`.
const RANDOM: [usize; 2] = [8, 200];

/// What Flink reports for a plan that it made and cannot run, such as one of `avg(DISTINCT b)`
/// `WHERE b IS NULL`.
const NOT_PLANNED: &str = "This function does not support retraction";

/// Windows of random queries.
const WINDOWS: [&str; 4] = [
    "[Range 2 s Slide 2 s]",
    "[Range 6 s Slide 2 s]",
    "[Range 1 s Slide 1 s]",
    "[Range Unbounded]",
];

const MILLISECOND: i64 = 1_000_000;

/// A query that is translated, and its input.
struct Translated {
    name: String,
    /// The plan as the checker makes it.
    plan: Arc<Plan>,
    /// The same, optimized.
    optimized: Arc<Plan>,
    flink: FlinkQuery,
    history: History,
    sources: Vec<Declaration>,
}

/// Flink, or none where it cannot be run.
fn flink(test: &str) -> Option<Flink> {
    match Flink::start() {
        Ok(flink) => Some(flink),
        Err(why) => {
            skipped(test, format!("{why:#}"));
            None
        }
    }
}

/// Fails with all differences, if there are any.
fn none(differ: &[String]) {
    assert!(
        differ.is_empty(),
        "{} differ\n{}",
        differ.len(),
        differ.join("\n")
    );
}

#[test]
fn golden_cases_have_the_same_result_in_flink() {
    let Some(mut flink) = flink("golden_cases_have_the_same_result_in_flink") else {
        return;
    };
    let mut cases: Vec<Translated> = case::files()
        .iter()
        .filter_map(|file| of_case(file, &translated))
        .collect();
    assert!(
        cases.len() > 80,
        "only {} cases are translated",
        cases.len()
    );
    if !is_full() {
        let mut at = 0..;
        cases.retain(|_| at.next().is_some_and(|at| at % SHARE == 0));
    }
    let mut differ = Vec::new();
    for mut case in cases {
        differ.extend(case.difference(&mut flink));
        // A nanosecond earlier or later is another window for rows at its end.
        if case.flink.is_windowed {
            case.shift(-1);
            differ.extend(case.difference(&mut flink));
            case.shift(2);
            differ.extend(case.difference(&mut flink));
        }
    }
    none(&differ);
}

#[test]
fn random_queries_have_the_same_result_in_flink() {
    let Some(mut flink) = flink("random_queries_have_the_same_result_in_flink") else {
        return;
    };
    let count = RANDOM[usize::from(is_full())];
    let seeds = (0..100_000).filter_map(|seed| of_seed(seed, &translated));
    let mut differ = Vec::new();
    let (mut windowed, mut refused) = (0, 0);
    for case in seeds.take(count) {
        windowed += usize::from(case.flink.is_windowed);
        match case.difference(&mut flink) {
            Some(difference) if difference.contains(NOT_PLANNED) => refused += 1,
            difference => differ.extend(difference),
        }
    }
    println!("{windowed} of {count} have windows, {refused} cannot be planned");
    assert!(
        refused * 50 <= count,
        "{refused} of {count} cannot be planned"
    );
    none(&differ);
}

/// Expressions over the columns of [`of_values`].
const EXPRESSIONS: &[&str] = &[
    "-a",
    "a + b",
    "a - 3",
    "a * b",
    "a / b",
    "a / 7",
    "a % b",
    "a % 7",
    "f / 2",
    "f * a",
    "f / a",
    "f / f",
    "a / f",
    "a = b",
    "a <> b",
    "a < b",
    "f >= a",
    "t < u",
    "t || u",
    "t || '.'",
    "NOT (a > b)",
    "a > b AND f > 0",
    "a > b OR t = 'x'",
    "a IS NULL",
    "t IS NOT NULL",
    "a IN (1, 2, 3)",
    "a NOT IN (1, NULL)",
    "a IN (b, 1)",
    "a BETWEEN -2 AND b",
    "t LIKE 'a%'",
    "t NOT LIKE '%b_'",
    "t LIKE 'x\\%%'",
    "t LIKE ''",
    "CASE WHEN a > 0 THEN 1 WHEN a < 0 THEN -1 END",
    "CASE t WHEN 'x' THEN 'yes' ELSE t END",
    "CASE WHEN a > b THEN f ELSE a END",
    "CAST(a AS float)",
    "CAST(f AS integer)",
    "CAST(a AS text)",
    "CAST(g AS integer)",
    "CAST(a AS boolean)",
    "CAST(w AS integer)",
    "w + 5",
    "w - w",
    "abs(a)",
    "abs(f)",
    "sign(a)",
    "sign(f)",
    "floor(f)",
    "ceil(f)",
    "floor(a)",
    "bucket(a, 10)",
    "bucket(w, 7)",
    "sqrt(f)",
    "sqrt(a)",
    "ln(a)",
    "log2(f)",
    "log10(a)",
    "exp(f)",
    "coalesce(a, b, 0)",
    "coalesce(t, 'none')",
    "coalesce(f, a)",
    "nullif(a, 1)",
    "nullif(t, u)",
    "a IS DISTINCT FROM b",
    "t IS NOT DISTINCT FROM u",
    "lower(t)",
    "upper(t)",
    "length(t)",
    "replace(t, 'a', 'bc')",
    "position('b', t)",
    "starts_with(t, 'a')",
    "starts_with(t, u)",
    "seconds(w - w + 1500 ms)",
    "least(a, b)",
    "greatest(a, b, 3)",
    "least(t, u)",
    "greatest(f, a)",
    "concat(t, a, '.', u)",
    "left(t, 2)",
    "right(t, 3)",
    "left(t, 0)",
    "substr(t, 2)",
    "substr(t, 2, 2)",
    "substr(t, 9, 1)",
    "trim(t)",
    "ltrim(t)",
    "rtrim(t)",
    "round(f)",
    "round(a)",
    "split_part(t, 'a', 1)",
    "split_part(t, 'ab', 2)",
    "split_part(t, ' ', 1)",
    "g AND NOT g",
    "g = (a > 0)",
];

/// The values of expressions over rows of all kinds of values.
#[test]
fn expressions_have_the_same_values_in_flink() {
    let Some(mut flink) = flink("expressions_have_the_same_values_in_flink") else {
        return;
    };
    let catalog = of_values();
    let mut list = String::new();
    let mut differ = Vec::new();
    for expression in EXPRESSIONS {
        let query = format!("SELECT {expression} FROM s");
        match plans(&query, &catalog, NANOS_PER_SECOND, &translated) {
            Some(_) => list += &format!(", {expression}"),
            None => differ.push(format!("{expression} is not translated")),
        }
    }
    let Plans {
        plan,
        optimized,
        flink: translated,
    } = plans(
        &format!("SELECT id{list} FROM s"),
        &catalog,
        NANOS_PER_SECOND,
        &translated,
    )
    .unwrap();
    let history = History::new([("s".to_owned(), rows_of_values())]);
    let case = Translated {
        name: "expressions".into(),
        plan,
        optimized,
        flink: translated,
        history,
        sources: catalog.declarations,
    };
    let contents = [case.expected(), case.found(&mut flink).unwrap()];
    // By the number of each row.
    let [expected, found] = contents.map(|content| {
        let rows = content.instants.into_values().flatten();
        rows.map(|(row, _)| (row[0].clone(), row))
            .collect::<BTreeMap<_, _>>()
    });
    assert_eq!(expected.len(), found.len());
    let names: Vec<&String> = case
        .plan
        .schema
        .fields
        .iter()
        .map(|field| &field.name)
        .collect();
    let inputs = case.history.source("s");
    for (input, (id, row)) in inputs.iter().zip(&expected) {
        let values = names.iter().zip(row.iter().zip(&found[id]));
        let wrong = values.filter(|(_, (expected, found))| !is_close(expected, found));
        differ.extend(wrong.map(|(name, (expected, found))| {
            format!("{name}: {expected}, Flink {found}; over {:?}", input.row)
        }));
    }
    none(&differ);
}

fn is_close(expected: &Value, found: &Value) -> bool {
    match (expected, found) {
        (Value::Float(x), Value::Float(y)) => {
            x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= 1e-12 * x.abs()
        }
        _ => expected == found,
    }
}

fn of_values() -> Catalog {
    let fields = [
        ("id", Type::Int, Unit::None),
        ("a", Type::Int, Unit::None),
        ("b", Type::Int, Unit::None),
        ("f", Type::Float, Unit::None),
        ("t", Type::Text, Unit::None),
        ("u", Type::Text, Unit::None),
        ("g", Type::Bool, Unit::None),
        ("w", Type::Time, Unit::Nanoseconds),
    ];
    let fields = fields.map(|(name, ty, unit)| Field::new(name, ty).unit(unit).nullable());
    Catalog {
        declarations: vec![Declaration::new(
            "s",
            Shape::Stream,
            Schema::new(fields.to_vec()),
        )],
        ..Catalog::default()
    }
}

fn rows_of_values() -> Vec<Element> {
    let mut random = fastrand::Rng::with_seed(1);
    let texts = [
        "", "x", "a", "ab", "xab", "abab", "x%y", "Ä b", "B_a", "aaaa b c",
    ];
    (0..80)
        .map(|id| {
            let mut values = vec![
                Value::Int(random.i64(-12..12)),
                Value::Int(random.i64(-3..4)),
                Value::Float(random.i32(-40..40) as f64 / 4.0),
                Value::text(texts[random.usize(..texts.len())]),
                Value::text(texts[random.usize(..texts.len())]),
                Value::Bool(random.bool()),
                Value::Int(random.i64(0..1000)),
            ];
            for value in &mut values {
                if random.u32(..8) == 0 {
                    *value = Value::Null;
                }
            }
            values.insert(0, Value::Int(id));
            Element {
                ts: id + 1,
                weight: 1,
                row: values,
            }
        })
        .collect()
}

/// A random query on random input, if it is one that is translated by `translated`.
fn of_seed(seed: u64, translated: Translation) -> Option<Translated> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut numbers = |count| (0..count).map(|_| random.u32(..)).collect::<Vec<_>>();
    let (query, rows) = (numbers(60), numbers(150));
    let text = Grammar::new(&mut Choices::new(&query), &data::VOCABULARY).query();
    let text = with_window(&text, WINDOWS[random.usize(..WINDOWS.len())]);
    let catalog = data::catalog();
    let Plans {
        plan,
        optimized,
        flink,
    } = plans(&text, &catalog, NANOS_PER_SECOND, translated)?;
    let feed = data::feed(&mut Choices::new(&rows));
    let names: Vec<String> = catalog
        .declarations
        .iter()
        .map(|d| d.name.clone())
        .collect();
    let ticks = feed::history(&feed, &names, &plan);
    let mut sources = ticks.sources;
    for (name, rows) in &mut sources {
        let is_relation = catalog.find(name).unwrap().shape == Shape::Relation;
        for row in rows.iter_mut() {
            // A row of a relation goes after it came.
            let near = if is_relation {
                row.ts % 3 - 1
            } else {
                random.i64(-1..=1)
            };
            row.ts = (row.ts + 1) * NANOS_PER_SECOND + near;
        }
        rows.sort_by_key(|row| row.ts);
    }
    let mut history = History::new(sources);
    if history.sources.values().all(Vec::is_empty) {
        return None;
    }
    history.end += 2 * largest_window(&plan);
    Some(Translated {
        name: format!("seed {seed}: {text}"),
        plan,
        optimized,
        flink,
        history,
        sources: catalog.declarations,
    })
}

/// A query with this window in place of each of its own, few of which are translated.
fn with_window(query: &str, window: &str) -> String {
    let mut parts = query.split('[');
    let mut text = parts.next().unwrap().to_owned();
    for part in parts {
        let (_, rest) = part.split_once(']').expect("a window ends");
        text += &format!("{window}{rest}");
    }
    text
}

/// The plan of a query, as the checker makes it and optimized, and its translation.
struct Plans {
    plan: Arc<Plan>,
    optimized: Arc<Plan>,
    flink: FlinkQuery,
}

/// The translation of an optimized plan, if there is one.
type Translation<'a> = &'a dyn Fn(&Plan) -> Option<FlinkQuery>;

/// The translation over the rows of streams.
fn translated(plan: &Plan) -> Option<FlinkQuery> {
    translate(plan).ok()
}

/// The plans of a query, if it is translated by `translated`.
fn plans(text: &str, catalog: &Catalog, second: i64, translated: Translation) -> Option<Plans> {
    let options = CheckOptions {
        second,
        dialect: Dialect::Cql,
        live: false,
    };
    let optimized = compile(text, catalog, &options).ok()?.plan;
    let flink = translated(&optimized)?;
    let plan = compile_unoptimized(text, catalog, &options).expect("it was compiled");
    Some(Plans {
        plan: plan.plan,
        optimized,
        flink,
    })
}

/// A case, if its query can be translated by `translated` and does not fail.
fn of_case(file: &Path, translated: Translation) -> Option<Translated> {
    let case = Case::parse(&fs::read_to_string(file).unwrap()).unwrap();
    if case.second == 1 || case.expected.failure.is_some() || case.bytes_max.is_some() {
        return None;
    }
    let Plans {
        plan,
        optimized,
        flink,
    } = plans(&case.query, &case.catalog(), case.second, translated)?;
    let mut history = feed::history(&case.feed(), &case.source_names(), &plan);
    let first = history.sources.values().flatten().map(|row| row.ts).min()?;
    // The division of Flink rounds towards zero.
    if flink.is_windowed && first <= 1 {
        return None;
    }
    history.end += 2 * largest_window(&plan);
    Some(Translated {
        name: file.strip_prefix(root()).unwrap().display().to_string(),
        plan,
        optimized,
        flink,
        history,
        sources: case.catalog().declarations,
    })
}

fn largest_window(plan: &Plan) -> i64 {
    let own = match &plan.node {
        Node::Window {
            window: Window::Range(range),
            ..
        } => range.size,
        _ => 0,
    };
    let below = plan.inputs().into_iter().map(|input| largest_window(input));
    below.fold(own, i64::max)
}

/// The first multiple of `slide` at or after an instant.
fn next_multiple(instant: i64, slide: i64) -> i64 {
    -(-instant).div_euclid(slide) * slide
}

fn slide(plan: &Plan) -> Option<i64> {
    match &plan.node {
        Node::Window {
            window: Window::Range(range),
            ..
        } => range.slide,
        _ => plan.inputs().into_iter().find_map(|input| slide(input)),
    }
}

impl Translated {
    /// Moves all rows in time, with the columns that have it.
    fn shift(&mut self, by: i64) {
        for (name, rows) in &mut self.history.sources {
            let of_name = |d: &&Declaration| d.name.eq_ignore_ascii_case(name);
            let source = self.sources.iter().find(of_name).unwrap();
            let instant = source.schema.fields.iter().position(|f| f.name == "ts");
            for row in rows {
                row.ts += by;
                if let Some(at) = instant {
                    row.row[at] = Value::Int(row.ts);
                }
            }
        }
        self.history.end += by;
    }

    /// The difference of both results, if there is one.
    fn difference(&self, flink: &mut Flink) -> Option<String> {
        let difference = self.check(flink).err()?;
        Some(format!(
            "== {}\n{difference}\n{}\n",
            self.name, self.flink.select
        ))
    }

    fn check(&self, flink: &mut Flink) -> Result<(), String> {
        let found = self.found(flink)?;
        self.expected().agree(&found, ["oracle", "Flink"])
    }

    /// Flink's result.
    fn found(&self, flink: &mut Flink) -> Result<Changes, String> {
        let lines = |table: &FlinkTable| {
            let declaration = self.sources.iter().find(|d| d.name == table.stream);
            self.lines(table, declaration.unwrap())
        };
        self.found_over(flink, &lines)
    }

    /// Flink's result, over tables with these lines.
    fn found_over(
        &self,
        flink: &mut Flink,
        lines: &dyn Fn(&FlinkTable) -> String,
    ) -> Result<Changes, String> {
        let mut statements = vec![ZONE.to_owned()];
        for table in &self.flink.tables {
            let file = flink.folder().join(format!("{}.json", table.stream));
            fs::write(&file, lines(table)).unwrap();
            let with = [
                ("connector", "filesystem".to_owned()),
                ("path", format!("file://{}", file.display())),
                ("format", "json".to_owned()),
            ];
            statements.push(table.definition(&with.map(|(key, value)| (key.to_owned(), value))));
            statements.extend(table.view().map(|view| view.definition()));
        }
        let functions = self.flink.functions.iter();
        statements.extend(functions.map(|function| function.definition(None)));
        statements.push(self.flink.select.clone());
        let rows = flink.run(&statements).map_err(|e| format!("{e:#}"))?;
        self.content(&rows)
    }

    /// The rows of a stream as JSON.
    fn lines(&self, table: &FlinkTable, declaration: &Declaration) -> String {
        let fields = &declaration.schema.fields;
        let mut lines = String::new();
        for element in self.history.source(&table.stream) {
            let values = table.columns.iter().map(|(name, _)| {
                let at = fields.iter().position(|field| field.name == *name);
                let value = at.map_or(Value::Int(element.ts), |at| element.row[at].clone());
                format!("{name:?}: {}", published::json(&value))
            });
            let values: Vec<String> = values.collect();
            for _ in 0..element.weight {
                lines += &format!("{{{}}}\n", values.join(", "));
            }
        }
        lines
    }

    /// What Flink's rows leave, by the ends of windows if there are any.
    fn content(&self, rows: &[FlinkRow]) -> Result<Changes, String> {
        let mut content = Changes::default();
        for (comes, values) in rows {
            let (end, values) = match self.flink.is_windowed {
                false => (0, &values[..]),
                true => {
                    let end = values[0].as_ref().ok_or("a window without end")?;
                    let end: i64 = end.parse().map_err(|_| format!("no time: {end}"))?;
                    (end * MILLISECOND, &values[1..])
                }
            };
            content.add(end, typed(values, &self.plan)?, if *comes { 1 } else { -1 });
        }
        Ok(content)
    }

    /// The same from the oracle.
    fn expected(&self) -> Changes {
        let outcome = oracle::evaluate(&self.plan, &self.history);
        assert!(
            outcome.failure.is_none(),
            "{}: {:?}",
            self.name,
            outcome.failure
        );
        let Some(slide) = slide(&self.plan).filter(|_| self.flink.is_windowed) else {
            return outcome.changes.content();
        };
        if self.plan.shape == Shape::Stream {
            return outcome.changes;
        }
        let mut expected = Changes::default();
        let first = outcome.changes.instants.keys().next().copied();
        // With relations, the result changes also between the ends of windows.
        let mut end = first.map_or(i64::MAX, |first| next_multiple(first, slide));
        while end <= self.history.end {
            for (_, row) in outcome.changes.before(end + 1).content().instants {
                for (row, weight) in row {
                    expected.add(end, row, weight);
                }
            }
            end += slide;
        }
        expected
    }
}

fn typed(values: &[Option<String>], plan: &Plan) -> Result<Row, String> {
    let values = values.iter().enumerate().map(|(at, text)| {
        let Some(text) = text else {
            return Ok(Value::Null);
        };
        let found = match ColumnType::of(plan, at).map_err(|e| e.to_string())? {
            ColumnType::Single(ty) => single(text, ty),
            ColumnType::Tally(ty) => tally(text, ty),
        };
        found.ok_or_else(|| format!("{} is {text}", plan.schema.fields[at].name))
    });
    values.collect()
}

fn single(text: &str, ty: Type) -> Option<Value> {
    match ty {
        Type::Bool => text.parse().ok().map(Value::Bool),
        Type::Int | Type::Time => text.parse().ok().map(Value::Int),
        Type::Float => text.parse().ok().map(Value::Float),
        _ => Some(Value::text(text)),
    }
}

fn tally(text: &str, ty: Type) -> Option<Value> {
    let entries = entries(text).ok()?.into_iter().map(|(value, count)| {
        let value = value.map_or(Some(Value::Null), |value| single(&value, ty));
        Some((value?, count))
    });
    let entries = entries.collect::<Option<Vec<_>>>()?;
    Some(Value::Tally(Arc::new(Tally(entries))))
}
