//! `--format delta`: one readable line per delta.
//!
//! ```text
//! [2026-10-19T12:00:01.000000000Z]:+:r, 1523, 81230.5
//! [2026-10-19T12:00:02.000000000Z]:-:r, 1523, 81230.5
//! ```
//!
//! `+` inserted, `-` retracted, `+3` inserted three times. Numbers are in the column's own unit; a
//! text is quoted where it would be ambiguous.

use weir_model::{Batch, Type, Value};

use crate::line::{TextForms, Timestamps, is_plain, push, push_int};
use crate::{ResultSchema, Sink, SinkError, SinkFormat, Target, json, text};

/// `--format delta`.
pub static FORMAT: SinkFormat = SinkFormat {
    name: "delta",
    doc: "one line per inserted or retracted row, `[instant]:+:values`",
    open,
    resume: Some(open),
};

fn open(answer: ResultSchema, target: Target) -> Result<Box<dyn Sink>, SinkError> {
    Ok(Box::new(Deltas {
        answer,
        target,
        line: String::new(),
        timestamps: Timestamps::default(),
        forms: TextForms::default(),
    }))
}

struct Deltas {
    answer: ResultSchema,
    target: Target,
    line: String,
    timestamps: Timestamps,
    forms: TextForms,
}

impl Deltas {
    fn compose(&mut self, batch: &Batch, row: usize) {
        self.line.clear();
        self.line.push('[');
        let (at, clock) = (batch.ts[row], self.answer.clock);
        self.timestamps.push_instant(&mut self.line, at, clock);
        self.line.push_str("]:");
        match batch.weight(row) {
            1 => self.line.push('+'),
            -1 => self.line.push('-'),
            weight => push(&mut self.line, format_args!("{weight:+}")),
        }
        self.line.push(':');
        for (i, column) in batch.columns.iter().enumerate() {
            if i > 0 {
                self.line.push_str(", ");
            }
            match column.value(row) {
                Value::Null => self.line.push_str("NULL"),
                Value::Int(x) if self.answer.schema[i].ty == Type::Time => {
                    self.timestamps.push(&mut self.line, x)
                }
                Value::Int(x) => push_int(&mut self.line, x),
                Value::Float(x) => push(&mut self.line, format_args!("{x:?}")),
                Value::Text(x) => self.forms.push(&mut self.line, x, push_text),
                value => self.line.push_str(&text::shown(&value.to_string())),
            }
        }
        self.line.push('\n');
    }
}

impl Sink for Deltas {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        for row in 0..batch.len() {
            self.compose(batch, row);
            self.target.put(&self.line)?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.target.flush()
    }
}

/// Appends a text, quoted where it would be ambiguous.
fn push_text(line: &mut String, text: &str) {
    match () {
        () if needs_quotes(text) => json::push_text(line, text),
        () if is_plain(text, b"") => line.push_str(text),
        () => line.push_str(&text::shown(text)),
    }
}

fn needs_quotes(text: &str) -> bool {
    text.is_empty()
        || text == "NULL"
        || text.contains([',', '"'])
        || text.starts_with(' ')
        || text.ends_with(' ')
        || text.chars().any(text::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::InstantUnit;
    use crate::target::capture::Captured;
    use std::sync::Arc;
    use weir_model::{Column, Field, Schema, Shape};

    #[test]
    fn a_delta_is_a_line() {
        let fields = vec![Field::new("comm", Type::Text), Field::new("n", Type::Float)];
        let answer = ResultSchema {
            schema: Arc::new(Schema::new(fields)),
            shape: Shape::Relation,
            clock: InstantUnit::Nanoseconds,
            order: vec![],
            raw: false,
        };
        let batch = Batch::deltas(
            vec![0, 1, 1],
            vec![1, -1, 3],
            vec![
                Column::texts(["fio", "a, b", "x\x1b"]),
                Column::floats(vec![0.5, 2.0, 1e300]),
            ],
        );
        assert_eq!(
            Captured::output(&FORMAT, answer, &batch),
            "[1970-01-01T00:00:00.000000000Z]:+:fio, 0.5\n\
             [1970-01-01T00:00:00.000000001Z]:-:\"a, b\", 2.0\n\
             [1970-01-01T00:00:00.000000001Z]:+3:\"x\\u001b\", 1e300\n"
        );
    }
}
