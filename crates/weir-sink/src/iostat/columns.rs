//! The columns of sysstat's reports: names, widths and units.

use super::rates::{ALL, Kind, Rates};
use super::{Style, VolumeUnit};

/// One column of a table and one member of a JSON object.
pub(super) struct Column {
    /// Its name; `kB` stands for the unit in use.
    pub name: &'static str,
    /// Characters of the table's column, the space before it included.
    pub width: usize,
    /// Its value.
    pub cell: Cell,
}

/// The value of a column.
pub(super) enum Cell {
    /// A number.
    Number(fn(&Rates) -> f64),
    /// A share in percent.
    Percent(fn(&Rates) -> f64),
    /// A size in kilobytes, whatever the unit in use.
    Size(fn(&Rates) -> f64),
    /// Sectors a second, in the unit in use.
    SectorRate(&'static [Kind]),
    /// Sectors in the interval, in the unit in use, without decimal places.
    SectorTotal(&'static [Kind]),
}

use Cell::{Number, Percent, SectorRate, SectorTotal, Size};
use Kind::{Discard, Read, Write};

const fn column(name: &'static str, width: usize, cell: Cell) -> Column {
    Column { name, width, cell }
}

/// `iostat`
static PLAIN: &[Column] = &[
    column("tps", 9, Number(|r| r.ios(ALL))),
    column("kB_read/s", 13, SectorRate(&[Read])),
    column("kB_wrtn/s", 13, SectorRate(&[Write])),
    column("kB_dscd/s", 13, SectorRate(&[Discard])),
    column("kB_read", 11, SectorTotal(&[Read])),
    column("kB_wrtn", 11, SectorTotal(&[Write])),
    column("kB_dscd", 11, SectorTotal(&[Discard])),
];

/// `iostat -s`
static SHORT: &[Column] = &[
    column("tps", 9, Number(|r| r.ios(ALL))),
    column("kB_read/s", 13, SectorRate(&[Read])),
    column("kB_w+d/s", 13, SectorRate(&[Write, Discard])),
    column("kB_read", 11, SectorTotal(&[Read])),
    column("kB_w+d", 11, SectorTotal(&[Write, Discard])),
];

/// `iostat -x`
static EXTENDED: &[Column] = &[
    column("r/s", 8, Number(|r| r.ios(&[Read]))),
    column("rkB/s", 10, SectorRate(&[Read])),
    column("rrqm/s", 9, Number(|r| r.merges(&[Read]))),
    column("%rrqm", 7, Percent(|r| r.merged_percent(Read))),
    column("r_await", 8, Number(|r| r.await_ms(&[Read]))),
    column("rareq-sz", 9, Size(|r| r.size_kb(&[Read]))),
    column("w/s", 8, Number(|r| r.ios(&[Write]))),
    column("wkB/s", 10, SectorRate(&[Write])),
    column("wrqm/s", 9, Number(|r| r.merges(&[Write]))),
    column("%wrqm", 7, Percent(|r| r.merged_percent(Write))),
    column("w_await", 8, Number(|r| r.await_ms(&[Write]))),
    column("wareq-sz", 9, Size(|r| r.size_kb(&[Write]))),
    column("d/s", 8, Number(|r| r.ios(&[Discard]))),
    column("dkB/s", 10, SectorRate(&[Discard])),
    column("drqm/s", 9, Number(|r| r.merges(&[Discard]))),
    column("%drqm", 7, Percent(|r| r.merged_percent(Discard))),
    column("d_await", 8, Number(|r| r.await_ms(&[Discard]))),
    column("dareq-sz", 9, Size(|r| r.size_kb(&[Discard]))),
    column("f/s", 8, Number(Rates::flushes)),
    column("f_await", 8, Number(Rates::flush_await_ms)),
    column("aqu-sz", 8, Number(Rates::queue)),
    column("%util", 7, Percent(Rates::busy_percent)),
];

/// `iostat -x -s`
static EXTENDED_SHORT: &[Column] = &[
    column("tps", 9, Number(|r| r.ios(ALL))),
    column("kB/s", 10, SectorRate(ALL)),
    column("rqm/s", 9, Number(|r| r.merges(ALL))),
    column("await", 8, Number(|r| r.await_ms(ALL))),
    column("areq-sz", 9, Size(|r| r.size_kb(ALL))),
    column("aqu-sz", 8, Number(Rates::queue)),
    column("%util", 7, Percent(Rates::busy_percent)),
];

/// sysstat's order of the members of `iostat -x -o JSON`.
const EXTENDED_JSON: [&str; 22] = [
    "r/s", "w/s", "d/s", "f/s", "rkB/s", "wkB/s", "dkB/s", "rrqm/s", "wrqm/s", "drqm/s", "%rrqm",
    "%wrqm", "%drqm", "r_await", "w_await", "d_await", "f_await", "rareq-sz", "wareq-sz",
    "dareq-sz", "aqu-sz", "%util",
];

/// The columns of the table.
pub(super) fn of_table(extended: bool, short: bool) -> Vec<&'static Column> {
    match (extended, short) {
        (false, false) => PLAIN,
        (false, true) => SHORT,
        (true, false) => EXTENDED,
        (true, true) => EXTENDED_SHORT,
    }
    .iter()
    .collect()
}

/// The columns of each table of `--pretty`: those of `-x` are too many for a line.
pub(super) fn of_pretty_tables(extended: bool, short: bool) -> Vec<Vec<&'static Column>> {
    let columns = of_table(extended, short);
    if !extended || short {
        return vec![columns];
    }
    // Reads, writes, discards, and the rest.
    columns.chunks(6).map(<[_]>::to_vec).collect()
}

/// The members of the JSON object, in their order. As in sysstat, `-s` changes them with `-x` only.
pub(super) fn of_json(extended: bool, short: bool) -> Vec<&'static Column> {
    let columns = of_table(extended, extended && short);
    if !extended || short {
        return columns;
    }
    let named = |name: &&str| {
        let column = columns.iter().copied().find(|c| c.name == *name);
        column.expect("each name is one of a column")
    };
    EXTENDED_JSON.iter().map(named).collect()
}

impl Column {
    /// Its name with the unit in use.
    pub fn title(&self, unit: VolumeUnit) -> String {
        self.name.replace("kB", unit.symbol())
    }

    /// Its value for a disk.
    pub fn text(&self, rates: &Rates, style: &Style) -> String {
        let number = |value: f64| format!("{value:.0$}", style.decimals.into());
        let volume = |sectors: f64| match style.human {
            true => scaled(sectors / 2.0, style),
            false => number(sectors / style.unit.sectors() as f64),
        };
        match self.cell {
            Number(value) => number(value(rates)),
            Percent(value) => percent(value(rates), style),
            Size(value) if style.human => scaled(value(rates), style),
            Size(value) => number(value(rates)),
            SectorRate(kinds) => volume(rates.sectors(kinds)),
            SectorTotal(kinds) if style.human => volume(rates.sectors_total(kinds) as f64),
            SectorTotal(kinds) => (rates.sectors_total(kinds) / style.unit.sectors()).to_string(),
        }
    }
}

/// A share in percent, with its sign if it is to be read by humans.
pub(super) fn percent(value: f64, style: &Style) -> String {
    match style.human {
        true => format!("{value:.0$}%", style.decimals.min(1).into()),
        false => format!("{value:.0$}", style.decimals.into()),
    }
}

/// Kilobytes with the letter of the largest unit that is not larger.
fn scaled(mut kilobytes: f64, style: &Style) -> String {
    let mut letters = ["k", "M", "G", "T", "P"].into_iter();
    let mut letter = letters.next().unwrap_or_default();
    while kilobytes >= 1024.0
        && let Some(next) = letters.next()
    {
        kilobytes /= 1024.0;
        letter = next;
    }
    format!("{kilobytes:.0$}{letter}", style.decimals.min(1).into())
}
