//! Tables of `weir path`, and waterfalls of single requests.

use weir_model::{Nanos, Symbol, Unit};
use weir_sink::number::scaled;
use weir_sink::text::{shown, width};
use weir_sink::time;

use super::row::PathRow;
use super::selection::LevelStream;
use super::table::{PathTable, Times};

const HEADER: [&str; 9] = [
    "VM", "VDISK", "DISK", "LEVEL", "REQUESTS", "SHARE", "MEAN", "P50", "P99",
];

/// The columns of [`HEADER`] with names, which are aligned to the left.
const NAMES: usize = 4;

/// The column of the place of a disk.
const PLACE: usize = 2;

/// The characters of the longest bar of a waterfall.
const BAR: usize = 50;

/// The requests from `begin` to `end`, followed by a blank line.
pub fn text(begin: Nanos, end: Nanos, table: &PathTable) -> String {
    let [from, until] = [begin, end].map(time::readable);
    let mut out = format!("weir path  {from}  to  {until}\n");
    let stream = table.stream;
    let mut header = HEADER;
    header[PLACE] = stream.heading;
    let mut rows = vec![header.map(str::to_owned)];
    let mut notes = String::new();
    for (disk, all) in table.disks() {
        let [vm, vdisk, place] = [disk.vm, disk.vdisk, disk.place].map(name);
        for (level, times, share) in all.named(stream) {
            rows.push([
                vm.clone(),
                vdisk.clone(),
                place.clone(),
                level.to_owned(),
                times.count().to_string(),
                share.map_or("-".into(), |share| format!("{:.1} %", 100.0 * share)),
                duration(times.mean_ns()),
                quantile(times, 0.5),
                quantile(times, 0.99),
            ]);
        }
        if let Some((level, share)) = all.dominant(stream) {
            let percent = 100.0 * share;
            notes += &format!("{vm} {vdisk} {place}: most of the time: {level} ({percent:.1} %)\n");
        }
        if !all.causes.is_empty() {
            let causes = all.causes.iter();
            let causes = causes.map(|(cause, requests)| format!("{cause} {requests}"));
            let causes: Vec<String> = causes.collect();
            let (cause, causes) = (stream.cause, causes.join(", "));
            notes += &format!("{vm} {vdisk} {place}: {cause}: {causes}\n");
        }
    }
    out += &aligned(&rows);
    out += &notes;
    if table.beyond > 0 {
        out += &format!("{} requests of further disks\n", table.beyond);
    }
    if table.late > 0 {
        let late = table.late;
        out += &format!("{late} requests came after the tables of their intervals\n");
    }
    for (number, row) in table.slowest.iter().enumerate() {
        out += &format!("\n{}. {}", number + 1, waterfall(stream, row));
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
fn waterfall(stream: &LevelStream, row: &PathRow) -> String {
    let mut title = vec![
        duration(Some(row.latency_ns as f64)),
        name(row.disk.vm),
        name(row.disk.vdisk),
        name(row.disk.place),
    ];
    if let Some(identity) = &row.identity {
        let bytes = |bytes: Option<i64>| {
            let text = bytes.and_then(|bytes| scaled(bytes as f64, Unit::Bytes));
            text.unwrap_or("-".into())
        };
        title.push(format!("{} {}", name(identity.op), bytes(identity.bytes)));
        title.extend(identity.sector.map(|sector| format!("at sector {sector}")));
        title.extend(match (identity.path, row.cause) {
            (Some(path), _) => {
                let path = shown(path.as_str());
                Some(format!("{path} at {}", bytes(identity.offset)))
            }
            (None, Some(cause)) => Some(format!("{}: {cause}", stream.cause)),
            (None, None) if stream.identity.contains(&"path") => Some("no path".to_owned()),
            (None, None) => None,
        });
        let pid = identity.pid.map_or("-".into(), |pid| pid.to_string());
        title.push(format!("{}[{pid}]", name(identity.comm)));
        let number = stream.identity.last().zip(identity.number);
        title.extend(number.map(|(name, number)| format!("{name} {number}")));
    }
    let mut out = format!("{}\n", title.join("  "));
    let mut begin_ns = 0;
    let widest = stream.levels.iter().map(|level| level.len()).max();
    let width = widest.unwrap_or(0);
    for (level, time_ns) in stream.levels.iter().zip(row.levels_ns) {
        let Some(time_ns) = time_ns else { continue };
        let bar = bar(begin_ns, time_ns, row.latency_ns);
        begin_ns += time_ns;
        let line = format!(
            "   {level:<width$}  {:>9}  {bar}",
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
    use super::super::row::{Identity, PathDisk};
    use super::super::selection::GUEST_LEVELS;
    use super::*;

    #[test]
    fn a_table_of_guests_has_their_levels_and_the_host() {
        let names = ["web", "/dev/vda", "h1"].map(|name| Some(Symbol::new(name)));
        let [vm, vdisk, place] = names;
        let mut table = PathTable::new(&GUEST_LEVELS, 1);
        for cause in [None, Some(Symbol::new("missing"))] {
            let known = |ns| cause.is_none().then_some(ns);
            table.add(&PathRow {
                ts: 0,
                disk: PathDisk { vm, vdisk, place },
                cause,
                latency_ns: 100_000,
                levels_ns: [
                    Some(10_000),
                    known(20_000),
                    known(5_000),
                    known(50_000),
                    known(15_000),
                    None,
                ],
                identity: Some(Identity {
                    op: Some(Symbol::new("w")),
                    bytes: Some(4096),
                    path: None,
                    offset: None,
                    sector: Some(264),
                    flags: None,
                    pid: Some(7),
                    comm: Some(Symbol::new("fio")),
                    number: Some(42),
                }),
            });
        }
        let text = text(0, 1_000_000_000, &table);
        let expected = "\
weir path  1970-01-01 00:00:00.000000  to  1970-01-01 00:00:01.000000
VM   VDISK     HOST  LEVEL          REQUESTS    SHARE      MEAN       P50       P99
web  /dev/vda  h1    guest_wait            2   10.0 %   10.0 us   10.0 us   10.0 us
web  /dev/vda  h1    guest_queue           1   10.0 %   20.0 us   20.0 us   20.0 us
web  /dev/vda  h1    vdisk_wait            1    2.5 %    5.0 us    5.0 us    5.0 us
web  /dev/vda  h1    vdisk_service         1   25.0 %   50.0 us   50.0 us   50.0 us
web  /dev/vda  h1    guest_return          1    7.5 %   15.0 us   15.0 us   15.0 us
web  /dev/vda  h1    total                 2  100.0 %  100.0 us  100.0 us  100.0 us
web /dev/vda h1: most of the time: vdisk_service (25.0 %)
web /dev/vda h1: unmatched: missing 1

1. 100.0 us  web  /dev/vda  h1  w 4.0 KiB  at sector 264  fio[7]  req_id 42
   guest_wait       10.0 us  #####
   guest_queue      20.0 us       ##########
   vdisk_wait        5.0 us                 ###
   vdisk_service    50.0 us                    #########################
   guest_return     15.0 us                                             #######

";
        assert_eq!(text, expected, "{text}");
    }

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
