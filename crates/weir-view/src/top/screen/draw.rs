//! Drawing of the screen: a function of the state. All output fits into the given buffer, whatever
//! its size.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use weir_sink::text::{fitting, shown, width};
use weir_sink::time;

use super::ink::Styles;
use super::{bars, help, table};
use crate::top::columns::{COLUMNS, TIMES, index};
use crate::top::figures::Figure;
use crate::top::levels::FilesOf;
use crate::top::queries::{LOSSES, TOTALS, TopLevel};
use crate::top::state::{NAMES, State, View, names};
use weir_sink::plot::Ink;

/// Minimum height of a screen with a pane for the selected line.
const DETAIL_FROM: u16 = 18;

/// The same with histograms.
const DETAIL_FROM_OF_BARS: u16 = 28;

/// The height of that pane.
const DETAIL_LINES: u16 = 5;

/// The number of lines above the table.
const SUMMARY_LINES: u16 = 4;

/// The layout of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScreenLayout {
    /// Title, totals, losses, current view.
    pub summary: Rect,
    /// The table, header included, or the histograms.
    pub body: Rect,
    /// The selected line in full; may be empty.
    pub detail: Rect,
    /// The keys.
    pub keys: Rect,
}

impl ScreenLayout {
    /// The layout for a screen of this size. A disk's histograms leave no room for the selected
    /// line, unless the screen is high.
    pub fn new(area: Rect, view: View) -> ScreenLayout {
        let summary = SUMMARY_LINES.min(area.height.saturating_sub(3));
        let keys = u16::from(area.height > summary + 2);
        let detail_from = match view {
            View::Disk(_) => DETAIL_FROM_OF_BARS,
            _ => DETAIL_FROM,
        };
        let detail = match area.height >= detail_from {
            true => DETAIL_LINES,
            false => 0,
        };
        let body = area.height - summary - keys - detail;
        let rows = |y: u16, height: u16| Rect::new(area.x, area.y + y, area.width, height);
        ScreenLayout {
            summary: rows(0, summary),
            body: rows(summary, body),
            detail: rows(summary + body, detail),
            keys: rows(area.height - keys, keys),
        }
    }

    /// The number of lines of the table that fit.
    pub fn page(&self) -> usize {
        usize::from(self.body.height.saturating_sub(1))
    }
}

/// Draws the screen.
pub fn draw(state: &State, ink: Ink, buffer: &mut Buffer) {
    let area = buffer.area;
    if area.width == 0 || area.height == 0 {
        return;
    }
    let layout = ScreenLayout::new(area, state.view());
    if state.help {
        return help::draw(ink, buffer);
    }
    summary(state, ink, layout.summary, buffer);
    match state.view() {
        View::Disk(_) => bars::draw(state, ink, layout.body, buffer),
        _ => table::draw(state, ink, layout.body, buffer),
    }
    detail(state, ink, layout.detail, buffer);
    keys(state, ink, layout.keys, buffer);
}

/// Writes a line from the left, and another one right-aligned if there is room.
fn line(buffer: &mut Buffer, area: Rect, row: u16, left: (&str, Style), right: (&str, Style)) {
    if row >= area.height {
        return;
    }
    let (y, room) = (area.y + row, usize::from(area.width));
    let text = fitting(left.0, room);
    buffer.set_string(area.x, y, text, left.1);
    let (taken, wide) = (width(text), width(right.0));
    if wide > 0 && taken + 2 + wide <= room {
        buffer.set_string(area.x + (room - wide) as u16, y, right.0, right.1);
    }
}

fn summary(state: &State, ink: Ink, area: Rect, buffer: &mut Buffer) {
    let plain = Style::new();
    let at = match state.tick.at {
        0 => "waiting for the first interval".to_owned(),
        at => time::readable(at).chars().take(19).collect(),
    };
    let level = state.level.name();
    let title = format!("weir top  {at}  every {:?}  level {level}", state.interval);
    let source = shown(&state.source).into_owned();
    let standing = match (state.paused, state.ended) {
        (true, _) => format!("PAUSED  {source}"),
        (false, true) => format!("ENDED  {source}"),
        (false, false) => source,
    };
    line(buffer, area, 0, (&title, ink.title()), (&standing, plain));
    let total = |name| value(&state.tick.totals, &TOTALS, name);
    let least = if state.tick.lower_bound { ">=" } else { "" };
    let totals = format!(
        "all: {least}{} IOPS  {least}{}B/s  load {least}{}  latency {}  p99 {}",
        Figure::Count.show(total("iops").or(Some(0.0))),
        Figure::Bytes.show(total("throughput").or(Some(0.0))),
        Figure::Ratio.show(total("load").or(Some(0.0))),
        Figure::Span.show(total("mean")),
        Figure::Span.show(total("p99")),
    );
    let lines = format!("{} of {} lines", state.order.len(), state.lines().len());
    line(buffer, area, 1, (&totals, plain), (&lines, plain));
    let (rest, incomplete) = rest_and_losses(state);
    let style = if incomplete { ink.warning() } else { plain };
    line(buffer, area, 2, (&rest, style), ("", plain));
    let sort = match state.sort.checked_sub(NAMES) {
        None => state.headers()[state.sort],
        Some(column) => COLUMNS[column].header,
    };
    let sort = format!("by {sort} {}", ink.arrow(state.reversed));
    line(
        buffer,
        area,
        3,
        (&view_path(state), ink.title()),
        (&sort, plain),
    );
}

/// The I/O of no VM, and the losses; true when there are losses.
fn rest_and_losses(state: &State) -> (String, bool) {
    let total = |name| value(&state.tick.totals, &TOTALS, name).unwrap_or(0.0);
    let share = |part: f64, all: f64| match all > 0.0 {
        // Zero is not printed as -0.
        true => format!("{:.1} %", 100.0 * part / all + 0.0),
        false => "-".into(),
    };
    let rest = match state.level {
        TopLevel::Block | TopLevel::File | TopLevel::App => format!(
            "not a VM: {} of IOPS, {} of load",
            share(total("rest_iops"), total("iops")),
            share(total("rest_load"), total("load")),
        ),
        TopLevel::Vdisk => "requests of the VMs, counted by QEMU".to_owned(),
    };
    let loss = |name| value(&state.tick.losses, &LOSSES, name).unwrap_or(0.0);
    let (seen, missed, late) = (loss("seen"), loss("missed"), loss("late"));
    let rest = match state.ticks_skipped {
        0 => rest,
        skipped => format!("{rest}   {skipped} intervals not displayed (slow terminal)"),
    };
    if seen + missed + late == 0.0 {
        return (rest, false);
    }
    // Rounded down: only complete results have 100.
    let complete = (100_000.0 * seen / (seen + missed)).floor() / 1_000.0;
    let text = format!("{rest}   seen {complete} %, missed {missed}, late {late}");
    match loss("sectors_unseen") {
        0.0 => (text, missed + late > 0.0),
        sectors => (format!("{text}, {sectors} sectors unseen"), true),
    }
}

/// The path of the current view, the filter, and the notices.
fn view_path(state: &State) -> String {
    if let Some(notice) = &state.notice {
        return shown(notice).into_owned();
    }
    if let Some(unobserved) = state
        .unobserved
        .as_ref()
        .filter(|_| state.tick.lines.is_empty())
    {
        return unobserved.clone();
    }
    let step = |view: &View| match view {
        View::All => "all".to_owned(),
        View::Vm(vm) => shown(vm.as_str()).into_owned(),
        View::Rest => "not a VM".to_owned(),
        View::Disk(disk) => {
            let name = disk.vdisk.or(disk.pdisk).map_or("?", |d| d.as_str());
            shown(name).into_owned()
        }
        View::Files(FilesOf::Disk(disk)) => {
            format!("files of {}", shown(disk.map_or("?", |disk| disk.as_str())))
        }
        View::Files(FilesOf::Process(process)) => {
            let comm = process.comm.map_or("?", |comm| comm.as_str());
            let pid = process.pid.map_or("?".to_owned(), |pid| pid.to_string());
            format!("files of {}[{pid}]", shown(comm))
        }
        View::Processes(file, _) => match file.path {
            Some(path) => format!("processes of {}", shown(path.as_str())),
            None => "processes of a file without a name".to_owned(),
        },
    };
    let steps: Vec<String> = state.views.iter().map(step).collect();
    let mut text = steps.join(" > ");
    if state.typing.is_some() || !state.filter.is_empty() {
        let cursor = if state.typing.is_some() { "_" } else { "" };
        text += &format!("   filter: {}{cursor}", shown(&state.filter));
    }
    text
}

/// The selected line in full: its three times, each with mean, median, 99th percentile, maximum.
fn detail(state: &State, ink: Ink, area: Rect, buffer: &mut Buffer) {
    let Some(selected) = state.selected_line().filter(|_| area.height > 0) else {
        return;
    };
    let [first, second, third] = names(selected);
    let of = |name: &str, rest: &str| match name.is_empty() {
        true => rest.to_owned(),
        false => shown(name).into_owned(),
    };
    let nameless = match (selected.key.file, selected.key.process) {
        (None, None) => "not a VM",
        (Some(_), _) => "no file",
        _ => "?",
    };
    let on = match (selected.key.disk.vdisk, selected.key.disk.pdisk) {
        (Some(_), Some(pdisk)) => format!(" on {}", shown(pdisk.as_str())),
        _ => String::new(),
    };
    let title = format!(
        "{} {}{on} {}",
        of(&first, nameless),
        of(&second, "?"),
        shown(&third)
    );
    let header = format!("{:>8}{:>8}{:>8}{:>8}", "mean", "p50", "p99", "max");
    let left = 10;
    line(buffer, area, 0, ("", Style::new()), ("", Style::new()));
    let y = area.y;
    buffer.set_stringn(
        area.x,
        y,
        "-".repeat(area.width.into()),
        area.width.into(),
        ink.faint(),
    );
    buffer.set_stringn(
        area.x + 2,
        y,
        format!(" {title} "),
        area.width.saturating_sub(4).into(),
        ink.title(),
    );
    line(
        buffer,
        area,
        1,
        (&format!("{:left$}{header}", ""), Style::new()),
        ("", Style::new()),
    );
    for (row, (name, columns)) in (2..).zip(TIMES) {
        let cells = columns.map(|c| format!("{:>8}", Figure::Span.show(selected.values[index(c)])));
        let text = format!("{name:left$}{}", cells.concat());
        line(buffer, area, row, (&text, Style::new()), ("", Style::new()));
    }
    let room = area.width.saturating_sub(46);
    if room >= 16 {
        let x = area.x + 46;
        buffer.set_stringn(
            x,
            y + 1,
            "p99 of the last intervals",
            room.into(),
            Style::new(),
        );
        let spark = ink.spark(&state.history.of(&selected.key, room.into()));
        buffer.set_stringn(x, y + 2, spark, room.into(), ink.bar());
    }
}

fn keys(state: &State, ink: Ink, area: Rect, buffer: &mut Buffer) {
    let keys = match (state.typing.is_some(), state.view()) {
        (true, _) => "type to filter   Enter keep   Esc as before",
        (_, View::Disk(_)) => "q quit  ? help  Tab read/write/..  f files  Space pause  Esc back",
        (_, View::All) => {
            "q quit  ? help  / filter  < > sort  r reverse  Space pause  l level  Enter open"
        }
        (_, View::Processes(..) | View::Files(FilesOf::Process(_))) => {
            "q quit  ? help  / filter  < > sort  r reverse  Space pause  Esc back"
        }
        _ => "q quit  ? help  / filter  < > sort  r reverse  Enter open  Esc back",
    };
    line(buffer, area, 0, (keys, ink.faint()), ("", Style::new()));
}

/// A value by its column's name.
fn value(values: &[Option<f64>], columns: &[&str], name: &str) -> Option<f64> {
    let at = columns.iter().position(|c| *c == name);
    *values.get(at.expect("a column of the query"))?
}
