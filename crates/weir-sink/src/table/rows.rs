//! The rows of a stream as they arrive, aligned, with the time of each.

use weir_model::{Batch, Type};

use super::layout::Layout;
use crate::{InstantUnit, ResultSchema, Sink, SinkError, Target, time};

/// The largest number of lines buffered to determine column widths.
const LINES_MAX: usize = 1_000;

/// On a terminal of unknown height, the header is repeated after this many lines.
const HEADER_EVERY: usize = 50;

pub struct Rows {
    answer: ResultSchema,
    target: Target,
    layout: Layout,
    instants: bool,
    waiting: Vec<Vec<String>>,
    /// Lines since the last header; `None` before the first.
    lines: Option<usize>,
}

impl Rows {
    pub fn new(answer: ResultSchema, target: Target) -> Rows {
        // A row with its own timestamp needs no second one.
        let own_time = |f: &weir_model::Field| f.ty == Type::Time && f.name == "ts";
        let instants = !answer.schema.fields.iter().any(own_time);
        Rows {
            layout: Layout::new(&answer, instants),
            answer,
            target,
            instants,
            waiting: Vec::new(),
            lines: None,
        }
    }

    fn instant(&self, at: i64) -> Option<String> {
        self.instants
            .then(|| match (self.answer.clock, self.answer.raw) {
                (InstantUnit::Nanoseconds, false) => time::time_of_day(at),
                (clock, _) => time::instant(at, clock),
            })
    }

    fn put_waiting(&mut self) -> Result<(), SinkError> {
        for cells in std::mem::take(&mut self.waiting) {
            if self.header_is_due() {
                self.target.put(&(self.layout.header() + "\n"))?;
                self.lines = Some(0);
            }
            let line = self.layout.line(cells.iter().map(|c| c.as_str()));
            self.target.put(&(line + "\n"))?;
            self.lines = self.lines.map(|n| n + 1);
        }
        Ok(())
    }

    /// Once in a pipe; on a terminal once a screen, as vmstat(8) does.
    fn header_is_due(&self) -> bool {
        let Some(lines) = self.lines else { return true };
        self.target.screen().is_some_and(|screen| {
            let (_, height) = (screen.size)();
            let every = if height > 2 { height - 2 } else { HEADER_EVERY };
            lines >= every
        })
    }
}

impl Sink for Rows {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        for row in 0..batch.len() {
            let instant = self.instant(batch.ts[row]);
            let cells = self.layout.cells(instant, &batch.row(row));
            for _ in 0..batch.weight(row) {
                self.waiting.push(cells.clone());
                if self.waiting.len() >= LINES_MAX {
                    self.put_waiting()?;
                }
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.put_waiting()?;
        self.target.flush()
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.put_waiting()?;
        if self.lines.is_none() {
            self.target.put(&(self.layout.header() + "\n"))?;
        }
        self.target.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TerminalTarget;
    use crate::table::FORMAT;
    use crate::target::capture::Captured;
    use std::sync::Arc;
    use weir_model::{Column, Field, Schema, Shape, Unit};

    fn answer(raw: bool) -> ResultSchema {
        ResultSchema {
            schema: Arc::new(Schema::new(vec![
                Field::new("comm", Type::Text),
                Field::new("latency", Type::Int).unit(Unit::Nanoseconds),
                Field::new("seek", Type::Int).unit(Unit::Sectors),
            ])),
            shape: Shape::Stream,
            clock: InstantUnit::Nanoseconds,
            order: vec![],
            raw,
        }
    }

    fn rows(count: usize) -> Batch {
        let comms = (0..count).map(|i| if i % 2 == 0 { "fio" } else { "kworker\x1b" });
        Batch::stream(
            vec![1_000_000_000; count],
            vec![
                Column::texts(comms),
                Column::ints((0..count as i64).map(|i| 1_500 * (i + 1)).collect()),
                Column::ints(vec![-8; count]),
            ],
        )
    }

    #[test]
    fn rows_are_aligned_under_their_header() {
        let out = Captured::default();
        let mut sink = (FORMAT.open)(answer(false), out.target(None)).unwrap();
        sink.write(&rows(2)).unwrap();
        sink.finish().unwrap();
        assert_eq!(
            out.text(),
            "time             comm         latency  seek [sectors]\n\
             00:00:01.000000  fio           1.5 us              -8\n\
             00:00:01.000000  kworker\\x1b   3.0 us              -8\n"
        );
    }

    #[test]
    fn raw_numbers_are_unscaled() {
        let out = Captured::default();
        let mut sink = (FORMAT.open)(answer(true), out.target(None)).unwrap();
        sink.write(&rows(1)).unwrap();
        sink.finish().unwrap();
        let text = out.text();
        assert!(
            text.contains("latency [ns]") && text.contains("  1500  "),
            "{text}"
        );
    }

    #[test]
    fn the_header_repeats_once_per_screen() {
        let screen = TerminalTarget {
            size: || (80, 12),
            live: true,
        };
        let out = Captured::default();
        let mut sink = (FORMAT.open)(answer(false), out.target(Some(screen))).unwrap();
        sink.write(&rows(25)).unwrap();
        sink.finish().unwrap();
        assert_eq!(out.text().matches("comm").count(), 3);
    }
}
