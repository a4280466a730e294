//! The exact reports of sysstat's iostat(1), from two states of the disks' counters, as text or
//! JSON.
//!
//! Layouts and formulas are those of sysstat 12.6; the tests compare with its output for the same
//! counters. The disks of a report are chosen by the caller: the kernel's, or virtual disks.

mod columns;
mod counters;
mod cpu;
mod rates;

use std::fmt::Write;

pub use counters::{BadLine, DiskCounters, OpCounters};
pub use cpu::CpuTimes;

use crate::json::push_text;
use crate::text::shown as printable;
use crate::time::{clock_time, date, split};
use columns::Column;
use rates::Rates;

/// The options of a report.
#[derive(Clone, Debug)]
pub struct Style {
    /// `-x`: all columns.
    pub extended: bool,
    /// `-s`: few columns.
    pub short: bool,
    /// `-k`, `-m`.
    pub unit: VolumeUnit,
    /// `-t`: the time.
    pub timestamp: bool,
    /// `-z`: without idle disks.
    pub active_only: bool,
    /// `-d`: the disks.
    pub disks: bool,
    /// `-c`: the processors.
    pub cpu: bool,
    /// `--dec`: the number of decimal places.
    pub decimals: u8,
    /// `--human`: volumes with the letter of a unit, shares with a percent sign.
    pub human: bool,
    /// `--pretty`: the names of disks at the end of lines, which are short.
    pub pretty: bool,
    /// `--compact`: all columns of `--pretty` in one table.
    pub compact: bool,
    /// `-H`: groups without the lines of their disks.
    pub groups_only: bool,
    /// Disks without any I/O are shown too.
    pub unused: bool,
}

impl Default for Style {
    fn default() -> Style {
        Style {
            extended: false,
            short: false,
            unit: VolumeUnit::default(),
            timestamp: false,
            active_only: false,
            disks: true,
            cpu: true,
            decimals: 2,
            human: false,
            pretty: false,
            compact: false,
            groups_only: false,
            unused: false,
        }
    }
}

/// The unit of volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VolumeUnit {
    /// 1,024 bytes, which sysstat calls kB.
    #[default]
    Kilobytes,
    /// 1,024 kB.
    Megabytes,
}

/// The host of the reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTitle {
    /// `uname -s`
    pub sysname: String,
    /// `uname -n`
    pub nodename: String,
    /// `uname -r`
    pub release: String,
    /// `uname -m`
    pub machine: String,
    /// The number of processors.
    pub processors: usize,
}

/// One report.
pub struct IostatReport<'a> {
    /// Its time in nanoseconds since the Unix epoch; shown in UTC.
    pub at_ns: i64,
    /// Hundredths of a second between the two states of the counters.
    pub interval_cs: u64,
    /// The processor times before and now, if known.
    pub cpu: Option<(CpuTimes, CpuTimes)>,
    /// The disks by group, in display order.
    pub groups: Vec<DiskGroup<'a>>,
}

/// Disks of a report, and their sum.
pub struct DiskGroup<'a> {
    /// The name of the sum; `None`: it is not shown.
    pub name: Option<&'a str>,
    /// Its disks, in display order.
    pub disks: Vec<ReportedDisk<'a>>,
}

/// A disk in a report.
pub struct ReportedDisk<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its counters at the start of the interval; 0 for a new disk.
    pub before: DiskCounters,
    /// Its counters at the end.
    pub now: DiskCounters,
}

impl VolumeUnit {
    fn symbol(self) -> &'static str {
        match self {
            VolumeUnit::Kilobytes => "kB",
            VolumeUnit::Megabytes => "MB",
        }
    }

    fn sectors(self) -> u64 {
        match self {
            VolumeUnit::Kilobytes => 2,
            VolumeUnit::Megabytes => 2_048,
        }
    }
}

/// The first line of the text, and the following empty line.
pub fn heading(host: &HostTitle, at_ns: i64) -> String {
    let HostTitle {
        sysname,
        release,
        nodename,
        machine,
        processors,
    } = host;
    let date = short_date(at_ns);
    format!("{sysname} {release} ({nodename}) \t{date} \t_{machine}_\t({processors} CPU)\n\n")
}

/// A report as text.
pub fn text(report: &IostatReport<'_>, style: &Style) -> String {
    let mut text = String::new();
    if style.timestamp {
        text += &format!("{}\n", timestamp(report.at_ns));
    }
    if let Some((before, now)) = report.cpu.as_ref().filter(|_| style.cpu) {
        text += "avg-cpu:  %user   %nice %system %iowait  %steal   %idle\n       ";
        for share in now.shares(before) {
            write!(text, " {:>7}", columns::percent(share, style)).expect("a String takes all");
        }
        text += "\n\n";
    }
    if style.disks {
        let rows = shown(report, style);
        let tables = match style.pretty {
            true if !style.compact => columns::of_pretty_tables(style.extended, style.short),
            _ => vec![columns::of_table(style.extended, style.short)],
        };
        let tables: Vec<String> = tables
            .iter()
            .map(|table| lines(table, &rows, style))
            .collect();
        text += &tables.join("\n");
    }
    text += "\n\n";
    text
}

/// A table of disks.
fn lines(columns: &[&Column], rows: &[(String, Rates)], style: &Style) -> String {
    let line = |name: &str, cells: &mut dyn Iterator<Item = String>| {
        let cells: String = cells.collect();
        match style.pretty {
            true => format!("{cells} {name}\n"),
            false => format!("{name:<13}{cells}\n"),
        }
    };
    let titles = columns.iter().map(|column| {
        let title = column.title(style.unit);
        format!("{title:>width$}", width = column.width)
    });
    let mut text = line("Device", &mut titles.into_iter());
    for (name, rates) in rows {
        let cells = columns.iter().map(|column| {
            // A value that is too wide is still separated by a space.
            let value = column.text(rates, style);
            format!(" {value:>width$}", width = column.width - 1)
        });
        text += &line(&printable(name), &mut cells.into_iter());
    }
    text
}

/// The start of the JSON document.
pub fn json_heading(host: &HostTitle, at_ns: i64) -> String {
    let member = |name: &str, value: &str| format!("\t\t\t\"{name}\": {},\n", quoted(value));
    let mut text = "{\"sysstat\": {\n\t\"hosts\": [\n\t\t{\n".to_owned();
    text += &member("nodename", &host.nodename);
    text += &member("sysname", &host.sysname);
    text += &member("release", &host.release);
    text += &member("machine", &host.machine);
    text += &format!("\t\t\t\"number-of-cpus\": {},\n", host.processors);
    text += &member("date", &short_date(at_ns));
    text += "\t\t\t\"statistics\": [\n";
    text
}

/// A report as an element of the JSON document, without the line feed, so that a comma or the end
/// can follow.
pub fn json(report: &IostatReport<'_>, style: &Style) -> String {
    let mut members = Vec::new();
    if style.timestamp {
        let at = timestamp(report.at_ns);
        members.push(format!("\t\t\t\t\t\"timestamp\": \"{at}\""));
    }
    if let Some((before, now)) = report.cpu.as_ref().filter(|_| style.cpu) {
        let shares = cpu::NAMES.iter().zip(now.shares(before));
        let shares: Vec<String> = shares.map(|(n, s)| format!("\"{n}\": {s:.2}")).collect();
        members.push(format!("\t\t\t\t\t\"avg-cpu\":  {{{}}}", shares.join(", ")));
    }
    if style.disks {
        let columns = columns::of_json(style.extended, style.short);
        // As in sysstat, numbers are those of the default.
        let numbers = Style {
            unit: style.unit,
            ..Style::default()
        };
        let disk = |(name, rates): &(String, Rates)| {
            let mut object = format!("\t\t\t\t\t\t{{\"disk_device\": {}", quoted(name));
            for column in &columns {
                object += &member(column, rates, &numbers);
            }
            object + "}"
        };
        let disks: Vec<String> = shown(report, style).iter().map(disk).collect();
        let disks = disks.join(",\n");
        members.push(format!("\t\t\t\t\t\"disk\": [\n{disks}\n\t\t\t\t\t]"));
    }
    format!("\t\t\t\t{{\n{}\n\t\t\t\t}}", members.join(",\n"))
}

/// The separator of two reports in the JSON document.
pub const JSON_BETWEEN: &str = ",\n";

/// The end of the JSON document.
pub const JSON_END: &str = "\n\t\t\t]\n\t\t}\n\t]\n}}\n";

/// JSON names have no percent sign.
fn member(column: &Column, rates: &Rates, style: &Style) -> String {
    let name = column.title(style.unit);
    let name = name.trim_start_matches('%');
    format!(", \"{name}\": {}", column.text(rates, style))
}

/// The disks and groups that are shown. The name of a group begins with a space, so that it differs
/// from that of a disk.
fn shown(report: &IostatReport<'_>, style: &Style) -> Vec<(String, Rates)> {
    let mut rows = Vec::new();
    for group in &report.groups {
        let rates = |d: &ReportedDisk<'_>| Rates::new(d.before, d.now, report.interval_cs);
        let disks: Vec<Rates> = group.disks.iter().map(rates).collect();
        if group.name.is_none() || !style.groups_only {
            let names = group.disks.iter().map(|disk| disk.name.to_owned());
            rows.extend(names.zip(disks.iter().copied()));
        }
        if let Some(name) = group.name {
            let sum = match Rates::of_all(disks.iter()) {
                // As in sysstat, a group without disks has a line of zeros, but not with -x.
                None if style.extended => continue,
                None => Rates::new(DiskCounters::default(), DiskCounters::default(), 0),
                Some(sum) => sum,
            };
            rows.push((format!(" {name}"), sum));
        }
    }
    rows.retain(|(_, rates)| style.unused || rates.is_used());
    rows.retain(|(_, rates)| !(style.active_only && rates.idle()));
    rows
}

/// `11/21/26`, as the C locale has it.
fn short_date(at_ns: i64) -> String {
    let (days, _, _) = split(at_ns);
    let (year, month, day) = date(days);
    format!("{month:02}/{day:02}/{:02}", year.rem_euclid(100))
}

/// `11/21/26 06:22:18`
fn timestamp(at_ns: i64) -> String {
    let (_, seconds, _) = split(at_ns);
    let (hour, minute, second) = clock_time(seconds);
    format!("{} {hour:02}:{minute:02}:{second:02}", short_date(at_ns))
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::new();
    push_text(&mut quoted, text);
    quoted
}
