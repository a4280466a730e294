//! Batch mode: a plain table, or a JSON object, for every interval.

use serde_json::{Map, Value as Json};
use weir_model::Symbol;
use weir_sink::text::{shown, width};
use weir_sink::time;

use super::columns::{COLUMNS, TopColumn};
use super::figures::Figure;
use super::gather::{Key, Tick, TopLine};
use super::levels;
use super::queries::{LOSSES, TOTALS, TopLevel};
use super::state::State;

/// The columns of the tables of a level.
fn columns(state: &State) -> impl Iterator<Item = (&'static TopColumn, usize)> {
    let level = state.columns_level();
    let columns = COLUMNS.iter().enumerate();
    columns.filter_map(move |(i, column)| column.is_of(level).then_some((column, i)))
}

/// The keys of a line, by name.
fn keys(state: &State, line: &TopLine) -> Vec<(&'static str, Json)> {
    let text = |name: Option<Symbol>| name.map_or(Json::Null, |name| name.as_str().into());
    let Key {
        disk,
        file,
        process,
        op,
        ..
    } = line.key;
    let value = |name: &'static str| {
        let value = match (name, file, process) {
            ("pdisk", Some(file), _) => text(file.pdisk),
            ("fs", Some(file), _) => text(file.fs),
            ("path", Some(file), _) => text(file.path),
            ("inode", Some(file), _) => file.inode.into(),
            ("vm", _, Some(process)) => text(process.vm),
            ("pid", _, Some(process)) => process.pid.into(),
            ("comm", _, Some(process)) => text(process.comm),
            ("cgroup", _, Some(process)) => text(process.cgroup),
            ("vm", ..) => text(disk.vm),
            ("vdisk", ..) => text(disk.vdisk),
            ("pdisk", ..) => text(disk.pdisk),
            _ => text(op),
        };
        (name, value)
    };
    names(state.level).iter().map(|name| value(name)).collect()
}

/// The names of the keys of a level. At level `vdisk` the device is unknown.
fn names(level: TopLevel) -> &'static [&'static str] {
    match level {
        TopLevel::Vdisk => levels::keys(TopLevel::Block),
        level => levels::keys(level),
    }
}

/// The current tick as text, sorted as in the state, followed by a blank line.
pub fn text(state: &State) -> String {
    let tick = &state.tick;
    let mut out = format!(
        "weir top  {}  every {:?}\n",
        time::readable(tick.at),
        state.interval
    );
    out += &(summary(tick) + "\n");
    let names = names(state.level);
    let mut header: Vec<String> = names.iter().map(|k| k.to_uppercase()).collect();
    header.extend(columns(state).map(|(c, _)| c.header.to_owned()));
    let lines = state.lines();
    let rows = state.order.iter();
    let rows = rows.map(|&i| cells(state, &lines[i]));
    let rows: Vec<Vec<String>> = std::iter::once(header).chain(rows).collect();
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|c| rows.iter().map(|row| width(&row[c])).max().unwrap_or(0))
        .collect();
    for row in &rows {
        let mut line = String::new();
        for (i, (cell, room)) in row.iter().zip(&widths).enumerate() {
            let padding = " ".repeat(room - width(cell));
            line.extend(match i < names.len() {
                true => [cell, padding.as_str(), "  "],
                false => [padding.as_str(), cell, "  "],
            });
        }
        out += line.trim_end();
        out.push('\n');
    }
    if state.order.is_empty() {
        out += &format!("{}\n", state.why_empty());
    }
    if tick.lines_omitted > 0 {
        out += &format!("... {} more lines\n", tick.lines_omitted);
    }
    out + "\n"
}

fn cells(state: &State, line: &TopLine) -> Vec<String> {
    let lower_bound = state.tick.lower_bound;
    let name = |(_, name): (_, Json)| match name {
        Json::Null => "-".to_owned(),
        Json::String(name) => shown(&name).into_owned(),
        number => number.to_string(),
    };
    let values = columns(state).map(|(c, i)| c.show(line.values[i], lower_bound, ">="));
    keys(state, line)
        .into_iter()
        .map(name)
        .chain(values)
        .collect()
}

fn summary(tick: &Tick) -> String {
    let total = |name: &str| named(&tick.totals, &TOTALS, name);
    let share = |part: &str, all: &str| {
        let share = total(part).zip(total(all)).filter(|(_, all)| *all > 0.0);
        share.map_or("-".into(), |(part, all)| {
            format!("{:.1} %", 100.0 * part / all)
        })
    };
    let least = if tick.lower_bound { ">=" } else { "" };
    let mut text = format!(
        "all: {least}{} IOPS  {least}{}B/s  load {least}{}  latency mean {}  p99 {}   not a VM: {} of IOPS, {} of load",
        Figure::Count.show(total("iops").or(Some(0.0))),
        Figure::Bytes.show(total("throughput").or(Some(0.0))),
        Figure::Ratio.show(total("load").or(Some(0.0))),
        Figure::Span.show(total("mean")),
        Figure::Span.show(total("p99")),
        share("rest_iops", "iops"),
        share("rest_load", "load"),
    );
    let loss = |name: &str| named(&tick.losses, &LOSSES, name);
    if let (Some(seen), Some(missed), Some(late)) = (loss("seen"), loss("missed"), loss("late")) {
        text += &format!("   seen {seen}, missed {missed}, late {late}");
    }
    if let Some(sectors) = loss("sectors_unseen").filter(|sectors| *sectors > 0.0) {
        text += &format!(", {sectors} sectors unseen");
    }
    text
}

/// The current tick as one line of JSON; numbers are in the queries' units (ns, bytes, per second).
pub fn json(state: &State) -> String {
    let tick = &state.tick;
    let lines = state.lines();
    let rows = state.order.iter().map(|&i| object(state, &lines[i]));
    let numbers = |names: &[&str], values: &[Option<f64>]| {
        let pairs = names.iter().zip(values);
        let pairs = pairs.map(|(name, value)| ((*name).to_owned(), Json::from(*value)));
        Json::Object(pairs.collect())
    };
    let mut all = Map::new();
    all.insert("time".into(), time::timestamp(tick.at).into());
    all.insert("interval".into(), state.interval.as_secs_f64().into());
    all.insert("level".into(), state.level.name().into());
    all.insert("totals".into(), numbers(&TOTALS, &tick.totals));
    all.insert("losses".into(), numbers(&LOSSES, &tick.losses));
    all.insert("lower_bound".into(), tick.lower_bound.into());
    all.insert("rows".into(), rows.collect::<Vec<Json>>().into());
    all.insert("rows_omitted".into(), tick.lines_omitted.into());
    Json::Object(all).to_string() + "\n"
}

fn object(state: &State, line: &TopLine) -> Json {
    let names = keys(state, line).into_iter();
    let values = columns(state).map(|(c, i)| (c.name, Json::from(line.values[i])));
    let pairs = names
        .chain(values)
        .map(|(name, value)| (name.to_owned(), value));
    Json::Object(pairs.collect())
}

fn named(values: &[Option<f64>], columns: &[&str], name: &str) -> Option<f64> {
    let at = columns.iter().position(|c| *c == name);
    *values.get(at.expect("a column of the query"))?
}
