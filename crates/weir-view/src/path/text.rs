//! Tables of `weir path`, and waterfalls of single requests.

use weir_model::{Nanos, Symbol, Unit};
use weir_sink::number::scaled;
use weir_sink::text::{shown, width};
use weir_sink::time;

use super::row::PathRow;
use super::selection::LEVELS;
use super::table::{PathTable, Times};

const HEADER: [&str; 9] = [
    "VM", "VDISK", "DISK", "LEVEL", "REQUESTS", "SHARE", "MEAN", "P50", "P99",
];

/// The columns of [`HEADER`] with names, which are aligned to the left.
const NAMES: usize = 4;

/// The characters of the longest bar of a waterfall.
const BAR: usize = 50;

/// The requests from `begin` to `end`, followed by a blank line.
pub fn text(begin: Nanos, end: Nanos, table: &PathTable) -> String {
    let [from, until] = [begin, end].map(time::readable);
    let mut out = format!("weir path  {from}  to  {until}\n");
    let mut rows = vec![HEADER.map(str::to_owned)];
    let mut notes = String::new();
    for (disk, all) in table.disks() {
        let [vm, vdisk, pdisk] = [disk.vm, disk.vdisk, disk.pdisk].map(name);
        for (level, times, share) in all.named() {
            rows.push([
                vm.clone(),
                vdisk.clone(),
                pdisk.clone(),
                level.to_owned(),
                times.count().to_string(),
                share.map_or("-".into(), |share| format!("{:.1} %", 100.0 * share)),
                duration(times.mean_ns()),
                quantile(times, 0.5),
                quantile(times, 0.99),
            ]);
        }
        if let Some((level, share)) = all.dominant() {
            let percent = 100.0 * share;
            notes += &format!("{vm} {vdisk} {pdisk}: most of the time: {level} ({percent:.1} %)\n");
        }
        if !all.untied.is_empty() {
            let causes = all.untied.iter();
            let causes = causes.map(|(cause, requests)| format!("{cause} {requests}"));
            let causes: Vec<String> = causes.collect();
            notes += &format!("{vm} {vdisk} {pdisk}: untied: {}\n", causes.join(", "));
        }
    }
    out += &aligned(&rows);
    out += &notes;
    if table.beyond > 0 {
        out += &format!("{} requests of further disks\n", table.beyond);
    }
    for (number, row) in table.slowest.iter().enumerate() {
        out += &format!("\n{}. {}", number + 1, waterfall(row));
    }
    out + "\n"
}

fn name(symbol: Option<Symbol>) -> String {
    symbol.map_or("-".into(), |name| shown(name.as_str()).into_owned())
}

fn duration(time_ns: Option<f64>) -> String {
    let text = time_ns.and_then(|ns| scaled(ns, Unit::Nanoseconds));
    text.unwrap_or("-".into())
}

fn quantile(times: &Times, q: f64) -> String {
    duration(times.quantile_ns(q).map(|ns| ns as f64))
}

fn aligned(rows: &[[String; HEADER.len()]]) -> String {
    let widths: [usize; HEADER.len()] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| width(&row[column]));
        cells.max().unwrap_or(0)
    });
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let padding = " ".repeat(widths[column] - width(cell));
            line.extend(match column < NAMES {
                true => [cell, padding.as_str(), "  "],
                false => [padding.as_str(), cell, "  "],
            });
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

/// A request, and a bar for each level that it crossed: from when, and how long.
fn waterfall(row: &PathRow) -> String {
    let mut title = vec![
        duration(Some(row.latency_ns as f64)),
        name(row.disk.vm),
        name(row.disk.vdisk),
        name(row.disk.pdisk),
    ];
    if let Some(identity) = &row.identity {
        let bytes = |bytes: Option<i64>| {
            let text = bytes.and_then(|bytes| scaled(bytes as f64, Unit::Bytes));
            text.unwrap_or("-".into())
        };
        title.push(format!("{} {}", name(identity.op), bytes(identity.bytes)));
        title.push(match (identity.path, row.untied) {
            (Some(path), _) => format!("{} at {}", shown(path.as_str()), bytes(identity.offset)),
            (None, Some(cause)) => format!("untied: {cause}"),
            (None, None) => "no path".to_owned(),
        });
        let pid = identity.pid.map_or("-".into(), |pid| pid.to_string());
        title.push(format!("{}[{pid}]", name(identity.comm)));
        title.extend(identity.user_data.map(|n| format!("user_data {n}")));
    }
    let mut out = format!("{}\n", title.join("  "));
    let mut begin_ns = 0;
    for (level, time_ns) in LEVELS.iter().zip(row.levels_ns) {
        let Some(time_ns) = time_ns else { continue };
        let bar = bar(begin_ns, time_ns, row.latency_ns);
        begin_ns += time_ns;
        let line = format!(
            "   {level:<10}  {:>9}  {bar}",
            duration(Some(time_ns as f64))
        );
        out += line.trim_end();
        out.push('\n');
    }
    out
}

/// The part of a line that the time takes; any time has at least one character.
fn bar(begin_ns: i64, time_ns: i64, all_ns: i64) -> String {
    if time_ns <= 0 || all_ns <= 0 {
        return String::new();
    }
    let at = |ns: i64| (ns as f64 / all_ns as f64 * BAR as f64).round() as usize;
    let begin = at(begin_ns).min(BAR - 1);
    let end = at(begin_ns + time_ns).clamp(begin + 1, BAR);
    " ".repeat(begin) + &"#".repeat(end - begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_adjacent_and_within_the_line() {
        let bars = [(0, 500), (500, 1), (501, 499), (1_000, 0)].map(|(b, t)| bar(b, t, 1_000));
        let spaces = " ".repeat(25);
        assert_eq!(bars[0], "#".repeat(25));
        assert_eq!(bars[1], format!("{spaces}#"));
        assert_eq!(bars[2], format!("{spaces}{}", "#".repeat(25)));
        assert_eq!(bars[3], "");
        assert_eq!(bar(999, 1, 1_000), format!("{}#", " ".repeat(BAR - 1)));
        assert_eq!(bar(0, 5, 0), "");
    }
}
