//! The current content of a relation: redrawn in place while it changes, or printed once at the
//! end.

use std::fmt::Write;

use weir_model::{Batch, Value};

use super::layout::Layout;
use crate::{RelationView, ResultSchema, Sink, SinkError, Target, text};

/// The assumed height of a terminal.
const HEIGHT_DEFAULT: usize = 24;

/// The assumed width of a terminal.
const WIDTH_DEFAULT: usize = 80;

pub struct Snapshot {
    answer: ResultSchema,
    target: Target,
    layout: Layout,
    view: RelationView,
    changed: bool,
    /// The number of lines on the screen.
    drawn: usize,
}

impl Snapshot {
    pub fn new(answer: ResultSchema, target: Target) -> Snapshot {
        Snapshot {
            layout: Layout::new(&answer, false),
            answer,
            target,
            view: RelationView::default(),
            changed: true,
            drawn: 0,
        }
    }

    /// The cells of the first `rows_max` distinct rows, each with its count.
    fn cells(&mut self, rows_max: usize) -> Vec<(Vec<String>, i64)> {
        let answer = &self.answer;
        let rows = self.view.first(rows_max, |a, b| answer.compare(a, b));
        let cells = |(row, times): (&[Value], i64)| (self.layout.cells(None, row), times);
        rows.into_iter().map(cells).collect()
    }

    fn line(&self, cells: &[String]) -> String {
        self.layout.line(cells.iter().map(|c| c.as_str()))
    }

    /// The relation as at most `lines_max` lines, header first; the last one has the number of
    /// omitted rows.
    fn lines(&mut self, lines_max: usize) -> Vec<String> {
        let total = self.view.len();
        let cut = total >= lines_max as i64;
        let shown = lines_max - 1 - usize::from(cut);
        let cells = self.cells(shown);
        let repeated = cells
            .iter()
            .flat_map(|(row, times)| std::iter::repeat_n(row, *times as usize));
        let mut lines = vec![self.layout.header()];
        lines.extend(repeated.take(shown).map(|row| self.line(row)));
        if cut {
            lines.push(format!("... {} more rows", total - shown as i64));
        }
        lines
    }

    /// Redraws the screen in a single write, to avoid flicker.
    fn draw(&mut self, size: (usize, usize)) -> Result<(), SinkError> {
        let known = |n: usize, default| if n > 0 { n } else { default };
        let (width, height) = (known(size.0, WIDTH_DEFAULT), known(size.1, HEIGHT_DEFAULT));
        let lines = self.lines(height.saturating_sub(1).max(2));
        let mut picture = String::new();
        if self.drawn > 0 {
            // To the first line of the previous output (ECMA-48: CUU).
            write!(picture, "\x1b[{}A\r", self.drawn).expect("a String takes everything");
        }
        for line in &lines {
            // Erased before it is written: after a full line the cursor still stands on the last
            // character.
            picture.push_str("\x1b[2K");
            picture.push_str(text::fitting(line, width));
            picture.push('\n');
        }
        picture.push_str("\x1b[J");
        self.target.put(&picture)?;
        self.target.flush()?;
        self.drawn = lines.len();
        self.changed = false;
        Ok(())
    }
}

impl Sink for Snapshot {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        self.changed |= !batch.is_empty();
        self.view.apply(batch);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        match self.target.screen() {
            Some(screen) if screen.live && self.changed => self.draw((screen.size)()),
            _ => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        if self.target.screen().is_some_and(|s| s.live) {
            return self.flush();
        }
        let cells = self.cells(usize::MAX);
        self.target.put(&(self.layout.header() + "\n"))?;
        for (row, times) in cells {
            let line = self.line(&row) + "\n";
            for _ in 0..times {
                self.target.put(&line)?;
            }
        }
        self.target.flush()
    }

    fn remarks(&self) -> Vec<String> {
        self.view.remarks()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::FORMAT;
    use crate::target::capture::Captured;
    use crate::{InstantUnit, SortKey, TerminalTarget};
    use std::sync::Arc;
    use weir_model::{Column, Field, Schema, Shape, Type};

    fn answer() -> ResultSchema {
        ResultSchema {
            schema: Arc::new(Schema::new(vec![
                Field::new("op", Type::Text),
                Field::new("count(*)", Type::Int),
            ])),
            shape: Shape::Relation,
            clock: InstantUnit::Ticks,
            order: vec![SortKey {
                column: 1,
                descending: true,
                nulls_first: false,
            }],
            raw: false,
        }
    }

    fn deltas(rows: &[(i64, &str, i64)]) -> Batch {
        Batch::deltas(
            vec![1; rows.len()],
            rows.iter().map(|r| r.0).collect::<Vec<_>>(),
            vec![
                Column::texts(rows.iter().map(|r| r.1)),
                Column::ints(rows.iter().map(|r| r.2).collect()),
            ],
        )
    }

    #[test]
    fn a_pipe_gets_the_final_state_once_in_order() {
        let out = Captured::default();
        let mut sink = (FORMAT.open)(answer(), out.target(None)).unwrap();
        sink.write(&deltas(&[(1, "r", 1), (1, "w", 7)])).unwrap();
        sink.flush().unwrap();
        sink.write(&deltas(&[(-1, "r", 1), (2, "r", 10)])).unwrap();
        sink.finish().unwrap();
        assert_eq!(
            out.text(),
            "op  count(*)\nr         10\nr         10\nw          7\n"
        );
    }

    #[test]
    fn a_terminal_is_redrawn_in_place_within_its_height() {
        let screen = TerminalTarget {
            size: || (10, 4),
            live: true,
        };
        let out = Captured::default();
        let mut sink = (FORMAT.open)(answer(), out.target(Some(screen))).unwrap();
        sink.write(&deltas(&[(1, "r", 1), (1, "w", 7)])).unwrap();
        sink.flush().unwrap();
        let first = out.text().len();
        sink.flush().unwrap();
        assert_eq!(out.text().len(), first, "without change nothing is drawn");
        sink.write(&deltas(&[(1, "d", 3), (1, "z", 2)])).unwrap();
        sink.finish().unwrap();
        let text = out.text();
        assert!(
            text[..first].starts_with("\x1b[2Kop  count(\n\x1b[2Kw         \n\x1b[2Kr "),
            "{text:?}"
        );
        let second = &text[first..];
        assert!(second.starts_with("\x1b[3A\r"), "{second:?}");
        assert_eq!(second.matches('\n').count(), 3);
        assert!(second.contains("... 3 more"), "{second:?}");
    }
}
