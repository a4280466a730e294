//! What agents publish of a query, merged by Flink, has the result of the oracle: partial
//! aggregates, rows and contents of relations of three hosts, some of them twice, with watermarks
//! between them, in topics of their own or among the rows of other queries. A relation `hosts` is
//! published by the monitor.

use std::collections::BTreeMap;
use std::fmt::Write;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use weir_model::inventory::Row as _;
use weir_model::{Declaration, Host, Shape, Value};
use weir_query::flink::{FlinkQuery, FlinkTable, TopicContent, translate_published};
use weir_query::place::fleet::published::{PublishedRows, WindowEnds, cut_to_publish};
use weir_query::place::fleet::{Cut, CutOptions, PlacementStrategy};
use weir_query::plan::Plan;

use crate::support::Row;
use crate::support::case;
use crate::support::changes::Changes;
use crate::support::feed::Random;
use crate::support::fleet::{Deal, Fleet, Life, is_by_arrival};
use crate::support::history::Element;
use crate::support::run::batch;
use crate::{
    Flink, NOT_PLANNED, SHARE, Translated, flink, is_full, next_multiple, none, of_case, of_seed,
};

/// The number of random queries, and with `WEIR_TESTS=all`.
const RANDOM: [usize; 2] = [9, 180];

/// The hosts that rows are distributed over.
const HOSTS: u64 = 3;

/// A query over what agents publish.
pub struct Published {
    case: Translated,
    cut: Cut,
    /// The lines of each fragment's table.
    messages: Vec<String>,
}

impl Published {
    /// The query of a case, if what its agents send is translated; its rows are distributed by
    /// `seed`, which also selects what their topics have.
    pub fn of(case: Translated, seed: u64) -> Option<Published> {
        let topic = match seed % 2 {
            0 => TopicContent::OneFragment,
            _ => TopicContent::Several,
        };
        let optimized = &case.optimized;
        let mut instants = case.history.sources.values().flatten().map(|row| row.ts);
        // The division of Flink rounds towards zero.
        if is_by_arrival(optimized) || instants.any(|ts| ts <= 1) {
            return None;
        }
        let cut = cut_all(optimized);
        let topics = topics(&cut);
        let flink = translate_published(&cut, &topics, topic).ok()?;
        let mut random = Random::new(seed);
        let deal = Deal::new(&case.sources, &case.history, HOSTS, false, &mut random);
        let fleet = Fleet {
            cut: &cut,
            sources: &case.sources,
            monitor_sources: &[Host::RELATION.to_owned()],
            agents: HOSTS,
        };
        let life = |agent| Life {
            agent,
            from: i64::MIN,
            to: i64::MAX,
            killed: None,
        };
        let lives: Vec<Life> = (0..HOSTS).map(life).collect();
        let agent = |source: usize, element: &Element| deal.agent(source, element);
        let emitted = fleet.emitted(&lives, &case.history, &agent, &mut random);
        let mut emitted = emitted.ok()?;
        if let Some(hosts) = cut.hosts() {
            let is_it = |declaration: &Declaration| declaration.name == hosts.name;
            let source = case.sources.iter().position(is_it).unwrap();
            let rows = case.history.source(&hosts.name).iter();
            // A message has the rows of one of them.
            let rows = rows.map(|row| (deal.agent(source, row) as usize, row.clone()));
            emitted.push(rows.collect());
        }
        let messages = emitted.into_iter().enumerate().map(|(at, rows)| {
            let name = (topic == TopicContent::Several).then(|| &*topics[at]);
            match PublishedRows::of(&cut, at).unwrap().content_at {
                None => messages(&cut, at, rows, name, &mut random),
                Some(ends) => contents(&cut, at, (ends, case.history.end), rows, name, &mut random),
            }
        });
        let messages = messages.collect();
        Some(Published {
            case: Translated { flink, ..case },
            cut,
            messages,
        })
    }

    /// What it publishes.
    pub fn kind(&self) -> Kind {
        let mut published = (0..self.cut.published_count()).map(|at| self.cut.published(at));
        match self.cut.strategy {
            _ if published.any(|plan| plan.shape == Shape::Relation) => Kind::Contents,
            PlacementStrategy::Rows => Kind::Rows,
            _ => Kind::Partials,
        }
    }

    /// The difference of both results, if there is one.
    pub fn difference(&self, flink: &mut Flink) -> Option<String> {
        let topics = topics(&self.cut);
        let lines = |table: &FlinkTable| {
            let at = topics.iter().position(|topic| *topic == table.stream);
            self.messages[at.unwrap()].clone()
        };
        let found = self.case.found_over(flink, &lines);
        let agrees = |found: Changes| self.case.expected().agree(&found, ["oracle", "Flink"]);
        let difference = found.and_then(agrees).err()?;
        let (name, select) = (&self.case.name, &self.case.flink.select);
        Some(format!("== {name}\n{difference}\n{select}\n"))
    }
}

/// What a query publishes: partial aggregates, rows, or contents of relations beside these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Partials,
    Rows,
    Contents,
}

fn cut_all(plan: &Plan) -> Cut {
    let options = CutOptions {
        monitor_sources: vec![Host::RELATION.to_owned()],
        ..CutOptions::default()
    };
    cut_to_publish(plan, &options).unwrap()
}

/// The translation over what agents publish.
fn published(plan: &Plan) -> Option<FlinkQuery> {
    let cut = cut_all(plan);
    translate_published(&cut, &topics(&cut), TopicContent::OneFragment).ok()
}

fn topics(cut: &Cut) -> Vec<String> {
    (0..cut.published_count())
        .map(|at| format!("topic.{at}"))
        .collect()
}

/// The messages of a fragment as JSON: in the order of time, some of them again later, and before
/// some of them a watermark. With a name of the rows, they are among those of others.
fn messages(
    cut: &Cut,
    fragment: usize,
    mut rows: Vec<(usize, Element)>,
    name: Option<&str>,
    random: &mut Random,
) -> String {
    rows.sort_by_key(|(_, element)| element.ts);
    let rows: Vec<(usize, Element)> = rows
        .into_iter()
        .flat_map(|(host, e)| (0..e.weight).map(move |_| (host, e.clone())))
        .collect();
    let declaration = cut.declaration(fragment, "rows");
    let elements: Vec<Element> = rows.iter().map(|(_, element)| element.clone()).collect();
    let published = PublishedRows::of(cut, fragment).unwrap();
    let columns = published
        .columns_of(&batch(&declaration, &elements))
        .unwrap();
    let mut lines = String::new();
    let mut again: Vec<(i64, String)> = Vec::new();
    for (at, (host, element)) in rows.iter().enumerate() {
        let ts = element.ts;
        if random.once_in(3) {
            // A message that is sent again may be late.
            again.drain(..).for_each(|(_, line)| lines += &line);
            writeln!(lines, "{{\"ts\": {}, \"lost\": 0}}", ts - 1).unwrap();
        }
        let mut line = format!(
            "{{\"host\": \"h{host}\", \"epoch\": 1, \"sequence\": {at}, \"position\": 0, \"ts\": {ts}"
        );
        if let Some(name) = name {
            // A row of another query has columns of the same names, and of other types.
            let first = published.columns.first().map_or("vm", |c| &c.field.name);
            for other in ["other", "topic"] {
                let row = format!("{{\"{first}\": [{at}, {{}}]}}");
                writeln!(lines, "{line}, \"query\": {other:?}, {other:?}: {row}}}").unwrap();
            }
            write!(line, ", \"query\": {name:?}, {name:?}: {{\"of\": {at}").unwrap();
        }
        for (column, values) in published.columns.iter().zip(&columns) {
            let value = json(&values.value(at));
            write!(line, ", {:?}: {value}", column.field.name).unwrap();
        }
        line += if name.is_some() { "}}\n" } else { "}\n" };
        lines += &line;
        if random.once_in(4) {
            again.push((ts, line));
        }
    }
    again.into_iter().for_each(|(_, line)| lines += &line);
    lines
}

/// A value in a message.
pub fn json(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Text(text) => format!("{:?}", text.as_str()),
        Value::Bytes(bytes) => format!("\"{}\"", BASE64_STANDARD.encode(bytes)),
        other => other.to_string(),
    }
}

/// The contents of a relation as JSON, of each host that had rows, at the ends of windows up to
/// `last`: some of them again after other ones, which they replace.
fn contents(
    cut: &Cut,
    fragment: usize,
    (ends, last): (WindowEnds, i64),
    mut changes: Vec<(usize, Element)>,
    name: Option<&str>,
    random: &mut Random,
) -> String {
    changes.sort_by_key(|(_, element)| element.ts);
    let published = PublishedRows::of(cut, fragment).unwrap();
    let names: Vec<&str> = published.columns.iter().map(|c| &*c.field.name).collect();
    let Some((_, first)) = changes.first() else {
        return String::new();
    };
    let mut end = next_multiple(first.ts, ends.slide);
    let mut hosts: BTreeMap<usize, Vec<(Row, i64)>> = BTreeMap::new();
    let mut changes = changes.into_iter().peekable();
    let mut lines = String::new();
    let line = |host: usize, end: i64, rows: &[String]| {
        let (query, field) = match name {
            None => (String::new(), "content"),
            Some(name) => (format!("\"query\": {name:?}, "), name),
        };
        let rows = rows.join(", ");
        format!("{{\"host\": \"h{host}\", \"ts\": {end}, {query}{field:?}: [{rows}]}}\n")
    };
    while end <= last {
        while let Some((host, change)) = changes.next_if(|(_, change)| change.ts <= end) {
            let rows = hosts.entry(host).or_default();
            match rows.iter_mut().find(|(row, _)| *row == change.row) {
                Some((_, count)) => *count += change.weight,
                None => rows.push((change.row, change.weight)),
            }
        }
        for (host, rows) in &hosts {
            let row = |row: &Row| {
                let values = names.iter().zip(row);
                let values = values.map(|(name, value)| format!("{name:?}: {}", json(value)));
                format!("{{{}}}", values.collect::<Vec<_>>().join(", "))
            };
            let copies = |(values, count): &(Row, i64)| vec![row(values); *count as usize];
            let rows: Vec<String> = rows.iter().flat_map(copies).collect();
            if random.once_in(4) {
                // As a monitor had it that was killed.
                lines += &line(*host, end, &[&rows[rows.len() / 2..], &rows].concat());
            }
            lines += &line(*host, end, &rows);
        }
        writeln!(lines, "{{\"ts\": {end}, \"lost\": 0}}").unwrap();
        end += ends.slide;
    }
    lines
}

/// The differences of cases, and how many were of each kind.
fn differences(
    cases: impl Iterator<Item = Published>,
    flink: &mut Flink,
) -> (Vec<String>, [usize; 3]) {
    let (mut differ, mut counts) = (Vec::new(), [0; 3]);
    for case in cases {
        counts[case.kind() as usize] += 1;
        match case.difference(flink) {
            Some(difference) if difference.contains(NOT_PLANNED) => {}
            difference => differ.extend(difference),
        }
    }
    (differ, counts)
}

#[test]
fn what_agents_publish_for_golden_cases_has_the_same_result_in_flink() {
    let test = "what_agents_publish_for_golden_cases_has_the_same_result_in_flink";
    let Some(mut flink) = flink(test) else {
        return;
    };
    let cases = case::files()
        .into_iter()
        .zip(0..)
        .filter_map(|(file, seed)| {
            let case = of_case(&file, &published)?;
            Published::of(case, seed)
        });
    let cases: Vec<Published> = cases.collect();
    assert!(cases.len() > 20, "{} cases are published", cases.len());
    let share = if is_full() { 1 } else { SHARE };
    // Few have partial aggregates or relations.
    let is_run = |(at, case): &(usize, Published)| at % share == 0 || case.kind() != Kind::Rows;
    let cases = cases.into_iter().enumerate().filter(is_run);
    let (differ, counts) = differences(cases.map(|(_, case)| case), &mut flink);
    println!("{counts:?} of partial aggregates, of rows, and with contents of relations");
    none(&differ);
}

#[test]
fn what_agents_publish_for_random_queries_has_the_same_result_in_flink() {
    let test = "what_agents_publish_for_random_queries_has_the_same_result_in_flink";
    let Some(mut flink) = flink(test) else {
        return;
    };
    let count = RANDOM[usize::from(is_full())];
    let mut wanted = [count / 3; 3];
    let cases = (0..100_000).filter_map(|seed| {
        let case = of_seed(seed, &published)?;
        let case = Published::of(case, seed)?;
        // As many of each kind.
        let left = &mut wanted[case.kind() as usize];
        *left = left.checked_sub(1)?;
        Some(case)
    });
    let (differ, counts) = differences(cases.take(count / 3 * 3), &mut flink);
    println!("{counts:?} of partial aggregates, of rows, and with contents of relations");
    none(&differ);
}
