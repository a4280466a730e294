//! `--format json`: one JSON object per line, valid wherever the output ends.
//!
//! ```json
//! {"instant":"2026-10-19T12:00:01.000000000Z","weight":1,"op":"r","avg(latency)":81230.5}
//! ```
//!
//! `instant` is the time of insertion or retraction (RFC 3339 in UTC, nanoseconds; in a script the
//! tick, a number); deltas of a relation have `weight`, the number of copies inserted (> 0) or
//! retracted (< 0). Then the columns, numbers as numbers in the column's own unit, timestamps as
//! texts like `instant`, tallies as lists of `[value, count]`. A float that JSON cannot represent
//! (NaN, infinite) is null.
//!
//! If the input ended within a slide of the query's window, the rows of that slide end with
//! `"incomplete":{"covers":4000000000,"of":10000000000}`: how much of the slide the input covers,
//! in nanoseconds (in a script in ticks).

use weir_model::{Batch, Shape, Type, Value};

use crate::line::{TextForms, Timestamps, is_plain, push, push_int};
use crate::{Incomplete, InstantUnit, ResultSchema, Sink, SinkError, SinkFormat, Target, text};

/// `--format json`.
pub static FORMAT: SinkFormat = SinkFormat {
    name: "json",
    doc: "one JSON object per line, with `instant`, `weight` (for relations) and the columns",
    open,
    resume: Some(open),
};

fn open(answer: ResultSchema, target: Target) -> Result<Box<dyn Sink>, SinkError> {
    Ok(Box::new(Json::new(answer, target)))
}

struct Json {
    answer: ResultSchema,
    /// `,"name":` for each column.
    keys: Vec<String>,
    target: Target,
    line: String,
    timestamps: Timestamps,
    forms: TextForms,
    /// The end of each line.
    end: String,
}

impl Json {
    fn new(answer: ResultSchema, target: Target) -> Json {
        let names = answer.unique_names(&["instant", "weight", "incomplete"]);
        let key = |name: &String| {
            let mut key = String::from(",");
            push_text(&mut key, name);
            key + ":"
        };
        Json {
            keys: names.iter().map(key).collect(),
            answer,
            target,
            line: String::new(),
            timestamps: Timestamps::default(),
            forms: TextForms::default(),
            end: "}\n".to_owned(),
        }
    }

    fn compose(&mut self, batch: &Batch, row: usize) {
        self.line.clear();
        self.line.push_str("{\"instant\":");
        match self.answer.clock {
            InstantUnit::Nanoseconds => self.push_timestamp(batch.ts[row]),
            InstantUnit::Ticks => push_int(&mut self.line, batch.ts[row]),
        }
        if self.answer.shape == Shape::Relation {
            self.line.push_str(",\"weight\":");
            push_int(&mut self.line, batch.weight(row));
        }
        for (i, column) in batch.columns.iter().enumerate() {
            self.line.push_str(&self.keys[i]);
            match column.value(row) {
                Value::Int(x) if self.answer.schema[i].ty == Type::Time => self.push_timestamp(x),
                Value::Text(x) => self.forms.push(&mut self.line, x, push_text),
                value => push_value(&mut self.line, &value),
            }
        }
        self.line.push_str(&self.end);
    }
}

impl Json {
    fn push_timestamp(&mut self, at_ns: i64) {
        self.line.push('"');
        self.timestamps.push(&mut self.line, at_ns);
        self.line.push('"');
    }
}

impl Sink for Json {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        for row in 0..batch.len() {
            self.compose(batch, row);
            let lines = self.answer.lines(batch.weight(row));
            self.target.put_times(&self.line, lines)?;
        }
        Ok(())
    }

    fn incomplete(&mut self, slide: Incomplete) {
        let Incomplete { covers, slide } = slide;
        self.end = format!(",\"incomplete\":{{\"covers\":{covers},\"of\":{slide}}}}}\n");
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.target.flush()
    }
}

/// A value other than a timestamp.
fn push_value(line: &mut String, value: &Value) {
    match value {
        Value::Null => line.push_str("null"),
        Value::Bool(x) => push(line, x),
        Value::Int(x) => push_int(line, *x),
        Value::Float(x) if x.is_finite() => push(line, format_args!("{x:?}")),
        Value::Float(_) => line.push_str("null"),
        Value::Text(x) => push_text(line, x.as_str()),
        Value::Tally(tally) => {
            line.push('[');
            for (i, (value, count)) in tally.0.iter().enumerate() {
                line.push_str(if i > 0 { ",[" } else { "[" });
                push_value(line, value);
                push(line, format_args!(",{count}]"));
            }
            line.push(']');
        }
        Value::Bytes(_) => push_text(line, &value.to_string()),
    }
}

/// Appends `text` as a JSON string (RFC 8259, section 7), with all terminal control characters
/// escaped as well.
pub(crate) fn push_text(line: &mut String, text: &str) {
    line.push('"');
    if is_plain(text, b"\"\\") {
        line.push_str(text);
        line.push('"');
        return;
    }
    for c in text.chars() {
        match c {
            '"' => line.push_str("\\\""),
            '\\' => line.push_str("\\\\"),
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            '\t' => line.push_str("\\t"),
            c if text::is_control(c) => push(line, format_args!("\\u{:04x}", c as u32)),
            c => line.push(c),
        }
    }
    line.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::capture::Captured;
    use std::sync::Arc;
    use weir_model::{Column, Field, Schema, Tally};

    #[test]
    fn each_line_is_an_object_with_typed_columns() {
        let columns = [
            (
                Field::new("comm", Type::Text),
                Value::text("a\"\x1b[2J\u{9b}"),
            ),
            (Field::new("ts", Type::Time), Value::Int(1)),
            (Field::new("x", Type::Float), Value::Float(2.0)),
            (Field::new("x", Type::Float), Value::Float(f64::NAN)),
            (
                Field::new("h", Type::Tally),
                Value::Tally(Arc::new(Tally(vec![(Value::Int(4096), 2)]))),
            ),
        ];
        let answer = ResultSchema {
            schema: Arc::new(Schema::new(columns.iter().map(|c| c.0.clone()).collect())),
            shape: Shape::Relation,
            clock: InstantUnit::Nanoseconds,
            order: vec![],
            raw: false,
        };
        let batch = Batch::deltas(
            vec![5],
            vec![-2],
            columns
                .iter()
                .map(|(f, v)| Column::from_values(f.ty, [v.clone()]))
                .collect(),
        );
        let output = Captured::output(&FORMAT, answer, &batch);
        let line: serde_json::Value = serde_json::from_str(&output).unwrap();
        let expected = serde_json::json!({
            "instant": "1970-01-01T00:00:00.000000005Z", "weight": -2, "comm": "a\"\x1b[2J\u{9b}",
            "ts": "1970-01-01T00:00:00.000000001Z", "x": 2.0, "x_2": null, "h": [[4096, 2]],
        });
        assert_eq!(line, expected);
        assert!(!output.trim_end().chars().any(text::is_control));
    }
}
