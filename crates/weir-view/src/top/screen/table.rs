//! The table: as many columns as fit, the visible lines, and a sparkline of each.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};
use weir_sink::text::{fitting, shown, width};

use super::ink::Styles;
use crate::top::columns::{COLUMNS, SPARK_RANK, SPARK_WIDTH};
use crate::top::gather::TopLine;
use crate::top::state::{NAMES, State, View, names};
use weir_sink::plot::Ink;

/// Minimum width of the name of a VM and of a disk.
const NAME_MIN: u16 = 8;

/// Maximum width of such a name.
const NAME_MAX: u16 = 32;

/// The width before a line: the mark of the selected one, and a space.
const MARGIN: u16 = 2;

/// The width of the op's column.
const OP_WIDTH: u16 = 2;

/// The columns that fit.
#[derive(Debug, PartialEq, Eq)]
pub struct Fit {
    /// Of the VM and of the disk.
    pub names: [u16; 2],
    /// The indexes in [`COLUMNS`], in order.
    pub columns: Vec<usize>,
    /// Whether there is a sparkline.
    pub spark: bool,
}

impl Fit {
    /// The columns that fit into `room`, with the wanted widths of names. The sort column is always
    /// included.
    pub fn new(room: u16, wanted: [u16; 2], sort: usize) -> Fit {
        let sorted = sort.checked_sub(NAMES.len());
        let first = |i: usize| match sorted == Some(i) {
            true => 0,
            false => 1 + COLUMNS[i].rank,
        };
        let mut candidates: Vec<(u8, Option<usize>)> =
            (0..COLUMNS.len()).map(|i| (first(i), Some(i))).collect();
        candidates.push((1 + SPARK_RANK, None));
        candidates.sort_unstable();
        // On a narrow screen names have limited width.
        let most = (room / 5).clamp(NAME_MIN, NAME_MAX);
        let names = wanted.map(|w| w.clamp(NAME_MIN, most));
        let mut left = room.saturating_sub(MARGIN + names[0] + 1 + names[1] + 1 + OP_WIDTH);
        let mut fit = Fit {
            names,
            columns: Vec::new(),
            spark: false,
        };
        for (_, column) in candidates {
            let width = 1 + column.map_or(SPARK_WIDTH, |i| COLUMNS[i].width);
            if width > left {
                break;
            }
            left -= width;
            match column {
                Some(column) => fit.columns.push(column),
                None => fit.spark = true,
            }
        }
        fit.columns.sort_unstable();
        fit
    }
}

/// Draws header and lines.
pub fn draw(state: &State, ink: Ink, area: Rect, buffer: &mut Buffer) {
    if area.height == 0 {
        return;
    }
    let lines = state.lines();
    let page = usize::from(area.height - 1);
    let seen = state.order.iter().skip(state.first).take(page);
    let seen: Vec<&TopLine> = seen.map(|&i| &lines[i]).collect();
    let mut wanted = [0, 0];
    for line in &seen {
        let [vm, disk, _] = names(line);
        for (most, name) in wanted.iter_mut().zip([vm, disk]) {
            *most = (*most).max(width(&shown(name)) as u16);
        }
    }
    let fit = Fit::new(area.width, wanted, state.sort);
    header(state, ink, &fit, area, buffer);
    for (y, line) in (area.y + 1..).zip(&seen) {
        let mut pen = Pen::new(buffer, area, y);
        draw_line(state, ink, &fit, line, &mut pen);
    }
    if seen.is_empty() && area.height > 1 {
        let why = state.why_empty();
        buffer.set_stringn(
            area.x + MARGIN,
            area.y + 1,
            why,
            area.width.saturating_sub(MARGIN).into(),
            ink.faint(),
        );
    }
    let omitted = state.tick.lines_omitted;
    if omitted > 0 && area.height > 1 {
        let text = format!("{omitted} lines omitted; use -w or -d to select VMs or disks");
        buffer.set_stringn(
            area.x,
            area.bottom() - 1,
            text,
            area.width.into(),
            ink.warning(),
        );
    }
}

fn header(state: &State, ink: Ink, fit: &Fit, area: Rect, buffer: &mut Buffer) {
    let whole = Rect::new(area.x, area.y, area.width, 1);
    buffer.set_style(whole, ink.header());
    let style = |sort: usize| match sort == state.sort {
        true => ink.sorted(),
        false => ink.header(),
    };
    let marked = |sort: usize, text: &str, width: u16| match sort == state.sort {
        // The mark needs space; the header may lose its last letter.
        true => format!(
            "{}{}",
            fitting(text, usize::from(width) - 1),
            ink.arrow(state.reversed)
        ),
        false => text.to_owned(),
    };
    let who = match state.view() {
        View::Rest => "COMMAND",
        _ => NAMES[0],
    };
    let mut pen = Pen::new(buffer, area, area.y);
    pen.skip(MARGIN);
    pen.left(&marked(0, who, fit.names[0]), fit.names[0], style(0));
    pen.skip(1);
    pen.left(&marked(1, NAMES[1], fit.names[1]), fit.names[1], style(1));
    pen.skip(1);
    pen.left(&marked(2, NAMES[2], OP_WIDTH), OP_WIDTH, style(2));
    for &i in &fit.columns {
        let (column, sort) = (&COLUMNS[i], NAMES.len() + i);
        pen.skip(1);
        pen.right(
            &marked(sort, column.header, column.width),
            column.width,
            style(sort),
        );
    }
    if fit.spark {
        pen.skip(1);
        pen.left("P99 PAST", SPARK_WIDTH, ink.header());
    }
}

fn draw_line(state: &State, ink: Ink, fit: &Fit, line: &TopLine, pen: &mut Pen<'_>) {
    let selected = state.selected == Some(line.key);
    let base = if selected {
        ink.selected()
    } else {
        Style::new()
    };
    let [vm, disk, op] = names(line);
    pen.left(if selected { ">" } else { "" }, MARGIN, base);
    let name = |name: &str| match name.is_empty() {
        true => "-".to_owned(),
        false => shown(name).into_owned(),
    };
    pen.left(&name(vm), fit.names[0], base.patch(ink.vm()));
    pen.skip(1);
    pen.left(&name(disk), fit.names[1], base);
    pen.skip(1);
    pen.left(&name(op), OP_WIDTH, base.patch(ink.op(op)));
    for &i in &fit.columns {
        let column = &COLUMNS[i];
        pen.skip(1);
        // A column has space for one more character.
        let cell = column.show(line.values[i], state.tick.lower_bound, ">");
        pen.right(&cell, column.width, base);
    }
    if fit.spark {
        pen.skip(1);
        let past = state.history.of(&line.key, SPARK_WIDTH.into());
        pen.left(
            &ink.spark(&past),
            SPARK_WIDTH,
            ink.bar().remove_modifier(Modifier::BOLD),
        );
    }
}

/// Writes cells in sequence into a line.
struct Pen<'b> {
    buffer: &'b mut Buffer,
    x: u16,
    end: u16,
    y: u16,
}

impl<'b> Pen<'b> {
    fn new(buffer: &'b mut Buffer, area: Rect, y: u16) -> Pen<'b> {
        Pen {
            buffer,
            x: area.x,
            end: area.right(),
            y,
        }
    }

    fn skip(&mut self, columns: u16) {
        self.x = self.x.saturating_add(columns);
    }

    fn left(&mut self, text: &str, columns: u16, style: Style) {
        self.put(text, 0, columns, style);
    }

    fn right(&mut self, text: &str, columns: u16, style: Style) {
        let indent = columns.saturating_sub(width(text) as u16);
        self.put(text, indent, columns, style);
    }

    fn put(&mut self, text: &str, indent: u16, columns: u16, style: Style) {
        let x = self.x + indent;
        if x < self.end && self.y < self.buffer.area.bottom() {
            let room = (columns - indent).min(self.end - x);
            self.buffer.set_stringn(x, self.y, text, room.into(), style);
        }
        self.x = self.x.saturating_add(columns);
    }
}
