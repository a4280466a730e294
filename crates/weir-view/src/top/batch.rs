//! Batch mode: a plain table, or a JSON object, for every interval.

use serde_json::{Map, Value as Json};
use weir_sink::text::{shown, width};
use weir_sink::time;

use super::columns::COLUMNS;
use super::figures::Figure;
use super::gather::{Tick, TopLine};
use super::queries::{LOSSES, TOTALS};
use super::state::State;

/// The keys of a line.
const KEYS: [&str; 4] = ["vm", "vdisk", "pdisk", "op"];

/// The current tick as text, sorted as in the state, followed by a blank line.
pub fn text(state: &State) -> String {
    let tick = &state.tick;
    let mut out = format!(
        "weir top  {}  every {:?}\n",
        time::readable(tick.at),
        state.interval
    );
    out += &(summary(tick) + "\n");
    let mut header: Vec<String> = KEYS.iter().map(|k| k.to_uppercase()).collect();
    header.extend(COLUMNS.iter().map(|c| c.header.to_owned()));
    let lines = state.lines();
    let rows = state.order.iter();
    let rows = rows.map(|&i| cells(&lines[i], tick.lower_bound));
    let rows: Vec<Vec<String>> = std::iter::once(header).chain(rows).collect();
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|c| rows.iter().map(|row| width(&row[c])).max().unwrap_or(0))
        .collect();
    for row in &rows {
        let mut line = String::new();
        for (i, (cell, room)) in row.iter().zip(&widths).enumerate() {
            let padding = " ".repeat(room - width(cell));
            let names = i < KEYS.len();
            line.extend(match names {
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

fn cells(line: &TopLine, lower_bound: bool) -> Vec<String> {
    let disk = line.key.disk;
    let names = [disk.vm, disk.vdisk, disk.pdisk, line.key.op];
    let names = names.map(|n| n.map_or("-".into(), |n| shown(n.as_str()).into_owned()));
    let values = COLUMNS.iter().zip(&line.values);
    names
        .into_iter()
        .chain(values.map(|(column, value)| column.show(*value, lower_bound, ">=")))
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
    if tick.single_paused {
        text += "   QD, SEQ paused";
    }
    text
}

/// The current tick as one line of JSON; numbers are in the queries' units (ns, bytes, per second).
pub fn json(state: &State) -> String {
    let tick = &state.tick;
    let lines = state.lines();
    let rows = state.order.iter().map(|&i| Json::Object(object(&lines[i])));
    let numbers = |names: &[&str], values: &[Option<f64>]| {
        let pairs = names.iter().zip(values);
        let pairs = pairs.map(|(name, value)| ((*name).to_owned(), Json::from(*value)));
        Json::Object(pairs.collect())
    };
    let mut all = Map::new();
    all.insert("time".into(), time::timestamp(tick.at).into());
    all.insert("interval".into(), state.interval.as_secs_f64().into());
    all.insert("totals".into(), numbers(&TOTALS, &tick.totals));
    all.insert("losses".into(), numbers(&LOSSES, &tick.losses));
    all.insert("lower_bound".into(), tick.lower_bound.into());
    all.insert("rows".into(), rows.collect::<Vec<Json>>().into());
    all.insert("rows_omitted".into(), tick.lines_omitted.into());
    Json::Object(all).to_string() + "\n"
}

fn object(line: &TopLine) -> Map<String, Json> {
    let disk = line.key.disk;
    let names = [disk.vm, disk.vdisk, disk.pdisk, line.key.op];
    let names = names.map(|name| name.map_or(Json::Null, |n| n.as_str().into()));
    let names = KEYS.iter().zip(names).map(|(k, v)| ((*k).to_owned(), v));
    let columns = COLUMNS.iter().zip(&line.values);
    let columns = columns.map(|(c, value)| (c.name.to_owned(), Json::from(*value)));
    names.chain(columns).collect()
}

fn named(values: &[Option<f64>], columns: &[&str], name: &str) -> Option<f64> {
    let at = columns.iter().position(|c| *c == name);
    *values.get(at.expect("a column of the query"))?
}
