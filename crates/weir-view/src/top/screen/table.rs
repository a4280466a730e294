//! The table: as many columns as fit, the visible lines, and a sparkline of each.

use std::borrow::Cow;

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};
use weir_sink::text::{fitting, shown, width};

use super::ink::Styles;
use crate::top::columns::{COLUMNS, SPARK_RANK, SPARK_WIDTH};
use crate::top::gather::{Key, TopLine};
use crate::top::queries::TopLevel;
use crate::top::state::{NAMES, State, names};
use weir_sink::plot::Ink;

/// Minimum width of the name of a VM and of a disk.
const NAME_MIN: u16 = 8;

/// Maximum width of such a name.
const NAME_MAX: u16 = 32;

/// Maximum width of a path.
const PATH_MAX: u16 = 64;

/// The width before a line: the mark of the selected one, and a space.
const MARGIN: u16 = 2;

/// The widths of the third name: an op, a file system, a VM.
const THIRD_WIDTHS: [(&str, u16); 3] = [("OP", 2), ("FS", 5), ("VM", 8)];

/// The columns that fit.
#[derive(Debug, PartialEq, Eq)]
pub struct Fit {
    /// Of the names.
    pub names: [u16; NAMES],
    /// The indexes in [`COLUMNS`], in order.
    pub columns: Vec<usize>,
    /// Whether there is a sparkline.
    pub spark: bool,
}

impl Fit {
    /// The columns of a level that fit into `room`, with the wanted widths of the names under
    /// `headers`. The sort column is always included.
    pub fn new(
        room: u16,
        level: TopLevel,
        headers: &[&str; NAMES],
        wanted: [u16; 2],
        sort: usize,
    ) -> Fit {
        let sorted = sort.checked_sub(NAMES);
        let first = |i: usize| match sorted == Some(i) {
            true => 0,
            false => 1 + COLUMNS[i].rank_at(level),
        };
        let mut candidates: Vec<(u8, Option<usize>)> = (0..COLUMNS.len())
            .filter(|&i| COLUMNS[i].is_of(level))
            .map(|i| (first(i), Some(i)))
            .collect();
        candidates.push((1 + SPARK_RANK, None));
        candidates.sort_unstable();
        // On a narrow screen names have limited width.
        let most = |first: bool| match headers[0] {
            // Paths are longer than other names.
            "FILE" if first => (room / 3).clamp(NAME_MIN, PATH_MAX),
            _ => (room / 5).clamp(NAME_MIN, NAME_MAX),
        };
        let third = THIRD_WIDTHS.iter().find(|(name, _)| *name == headers[2]);
        let names = [
            wanted[0].clamp(NAME_MIN, most(true)),
            wanted[1].clamp(NAME_MIN, most(false)),
            third.map_or(0, |(_, width)| *width),
        ];
        let mut left = room.saturating_sub(MARGIN + names[0] + 1 + names[1] + 1 + names[2]);
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
            *most = (*most).max(u16::try_from(width(&shown(&name))).unwrap_or(u16::MAX));
        }
    }
    let (level, headers) = (state.columns_level(), state.headers());
    let fit = Fit::new(area.width, level, headers, wanted, state.sort);
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
    let omitted = state.omitted();
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
    let headers = state.headers();
    let mut pen = Pen::new(buffer, area, area.y);
    pen.skip(MARGIN);
    for (i, (name, width)) in headers.iter().zip(fit.names).enumerate() {
        pen.skip(u16::from(i > 0));
        pen.left(&marked(i, name, width), width, style(i));
    }
    for &i in &fit.columns {
        let (column, sort) = (&COLUMNS[i], NAMES + i);
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
    let [vm, disk, op] = &names(line);
    pen.left(if selected { ">" } else { "" }, MARGIN, base);
    let name = |name: &str| match name.is_empty() {
        true => "-".to_owned(),
        false => shown(name).into_owned(),
    };
    let first = name(vm);
    let first = match line.key.file {
        Some(_) => end(&first, fit.names[0].into()),
        None => first.into(),
    };
    pen.left(&first, fit.names[0], base.patch(ink.vm()));
    pen.skip(1);
    pen.left(&name(disk), fit.names[1], base);
    pen.skip(1);
    let third = match line.key {
        Key {
            file: None,
            process: None,
            ..
        } => base.patch(ink.op(op)),
        _ => base,
    };
    pen.left(&name(op), fit.names[2], third);
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

/// The end of a text that is too long, after a mark: of a path the file is more important than the
/// folders.
fn end(text: &str, columns: usize) -> Cow<'_, str> {
    let mut room = columns.saturating_sub(1);
    if width(text) <= columns {
        return text.into();
    }
    let fits = |c: &(usize, char)| {
        let own = width(c.1.encode_utf8(&mut [0; 4]));
        let has_room = own <= room;
        room = room.saturating_sub(own);
        has_room
    };
    let from = text.char_indices().rev().take_while(fits).last();
    format!("<{}", from.map_or("", |(at, _)| &text[at..])).into()
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
