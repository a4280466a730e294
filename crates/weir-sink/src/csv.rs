//! `--format csv`: comma-separated values with a header, quoted as in RFC 4180, lines ended by a
//! line feed.
//!
//! The first column is `instant` (RFC 3339 in UTC, or a script's tick); deltas of a relation have
//! `weight` next. NULL is an empty field, an empty text is `""`. Numbers are in the column's own
//! unit.

use weir_model::{Batch, Shape, Type, Value};

use crate::{Answer, Format, Sink, SinkError, Target, text, time};

/// `--format csv`.
pub static FORMAT: Format = Format {
    name: "csv",
    doc: "comma-separated values with a header (RFC 4180), `instant` first, then `weight` (of a relation's deltas)",
    open: |answer, target| Ok(Box::new(Csv::open(answer, target)?)),
    resume: Some(|answer, target| Ok(Box::new(Csv::resume(answer, target)))),
};

struct Csv {
    answer: Answer,
    target: Target,
    line: String,
}

impl Csv {
    fn open(answer: Answer, mut target: Target) -> Result<Csv, SinkError> {
        let first: &[&str] = match answer.shape {
            Shape::Relation => &["instant", "weight"],
            Shape::Stream => &["instant"],
        };
        let names = answer.unique_names(first);
        let all = first
            .iter()
            .copied()
            .chain(names.iter().map(|n| n.as_str()));
        let header: Vec<String> = all.map(quoted).collect();
        target.put(&(header.join(",") + "\n"))?;
        target.flush()?;
        Ok(Csv::resume(answer, target))
    }

    /// One whose header is there already.
    fn resume(answer: Answer, target: Target) -> Csv {
        Csv {
            answer,
            target,
            line: String::new(),
        }
    }

    fn compose(&mut self, batch: &Batch, row: usize) {
        self.line.clear();
        self.line
            .push_str(&time::instant(batch.ts[row], self.answer.clock));
        if self.answer.shape == Shape::Relation {
            self.line.push(',');
            self.line.push_str(&batch.weight(row).to_string());
        }
        for (i, column) in batch.columns.iter().enumerate() {
            self.line.push(',');
            match column.value(row) {
                Value::Null => {}
                Value::Int(x) if self.answer.schema[i].ty == Type::Time => {
                    self.line.push_str(&time::timestamp(x))
                }
                Value::Float(x) => self.line.push_str(&format!("{x:?}")),
                Value::Text(x) if self.target.screen().is_some() => {
                    self.line.push_str(&quoted(&text::shown(x.as_str())))
                }
                value => self.line.push_str(&quoted(&value.to_string())),
            }
        }
        self.line.push('\n');
    }
}

impl Sink for Csv {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        for row in 0..batch.len() {
            self.compose(batch, row);
            for _ in 0..self.answer.lines(batch.weight(row)) {
                self.target.put(&self.line)?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.target.flush()
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.target.flush()
    }
}

/// `field` in quotes where it needs them (RFC 4180, section 2, rules 5 to 7).
fn quoted(field: &str) -> String {
    match field.is_empty() || field.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Clock;
    use crate::target::capture::Captured;
    use std::sync::Arc;
    use weir_model::{Column, Field, Schema};

    #[test]
    fn fields_are_quoted_where_they_must_be() {
        let names = ["count(*)", "top(x, 2)"];
        let answer = Answer {
            schema: Arc::new(Schema::new(
                names.map(|n| Field::new(n, Type::Text)).to_vec(),
            )),
            shape: Shape::Stream,
            clock: Clock::Ticks,
            order: vec![],
            raw: false,
        };
        let second = Column::from_values(Type::Text, [Value::text(""), Value::Null]);
        let batch = Batch::stream(vec![1, 2], vec![Column::texts(["a\"b", "x"]), second]);
        let out = Captured::default();
        let mut sink = (FORMAT.open)(answer, out.target(None)).unwrap();
        sink.write(&batch).unwrap();
        sink.finish().unwrap();
        assert_eq!(
            out.text(),
            "instant,count(*),\"top(x, 2)\"\n1,\"a\"\"b\",\"\"\n2,x,\n"
        );
    }
}
