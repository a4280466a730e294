//! `--format stream`: the output format of the Stanford STREAM prototype 0.6, exactly.
//!
//! ```text
//! [3]:+:3, 0.333333, abc
//! [3]:-:1, 1.1, abd
//! ```
//!
//! The instant as an integer, one line per inserted or retracted copy, integers in decimal, floats
//! as C's `%g`, texts unquoted.

use std::fmt::Write;

use weir_model::{Batch, Value};

use crate::{ResultSchema, Sink, SinkError, SinkFormat, Target, number, text};

/// `--format stream`.
pub static FORMAT: SinkFormat = SinkFormat {
    name: "stream",
    doc: "the format of the Stanford STREAM prototype, as written by `weir run`",
    open,
    resume: Some(open),
};

fn open(_: ResultSchema, target: Target) -> Result<Box<dyn Sink>, SinkError> {
    Ok(Box::new(Stream {
        target,
        line: String::new(),
    }))
}

struct Stream {
    target: Target,
    line: String,
}

impl Sink for Stream {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        for row in 0..batch.len() {
            let weight = batch.weight(row);
            let sign = if weight < 0 { '-' } else { '+' };
            self.line.clear();
            write!(self.line, "[{}]:{sign}:", batch.ts[row]).expect("a String takes everything");
            for (i, column) in batch.columns.iter().enumerate() {
                if i > 0 {
                    self.line.push_str(", ");
                }
                match column.value(row) {
                    Value::Float(x) => self.line.push_str(&number::general(x)),
                    value => self.line.push_str(&text::shown(&value.to_string())),
                }
            }
            self.line.push('\n');
            self.target.put_times(&self.line, weight.saturating_abs())?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.target.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::capture::Captured;
    use crate::{InstantUnit, ResultSchema};
    use std::sync::Arc;
    use weir_model::{Column, Field, Schema, Shape, Type};

    #[test]
    fn lines_match_stream_output() {
        let fields = vec![
            Field::new("A", Type::Int),
            Field::new("B", Type::Float),
            Field::new("C", Type::Text),
        ];
        let answer = ResultSchema {
            schema: Arc::new(Schema::new(fields)),
            shape: Shape::Relation,
            clock: InstantUnit::Ticks,
            order: vec![],
            raw: false,
        };
        let batch = Batch::deltas(
            vec![1, 2],
            vec![2, -1],
            vec![
                Column::ints(vec![1, 2]),
                Column::floats(vec![1.1, 1.0 / 3.0]),
                Column::texts(["abc", "bcd"]),
            ],
        );
        assert_eq!(
            Captured::output(&FORMAT, answer, &batch),
            "[1]:+:1, 1.1, abc\n[1]:+:1, 1.1, abc\n[2]:-:2, 0.333333, bcd\n"
        );
    }
}
