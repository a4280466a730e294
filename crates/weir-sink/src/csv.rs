//! `--format csv`: comma-separated values with a header, quoted as in RFC 4180, lines ended by a
//! line feed. `--format csv-safe`: the same for spreadsheet programs, which evaluate a field that
//! starts like a formula: such a text (a process name, for example) is prefixed with an apostrophe.
//!
//! The first column is `instant` (RFC 3339 in UTC, or a script's tick); deltas of a relation have
//! `weight` next. NULL is an empty field, an empty text is `""`. Numbers are in the column's own
//! unit.

use weir_model::{Batch, Shape, Type, Value};

use crate::line::{TextForms, Timestamps, is_plain, push, push_int};
use crate::{ResultSchema, Sink, SinkError, SinkFormat, Target, text};

/// `--format csv`.
pub static FORMAT: SinkFormat = SinkFormat {
    name: "csv",
    doc: "comma-separated values with a header (RFC 4180): `instant`, `weight` (for relations) \
          and the columns",
    open: |answer, target| Ok(Box::new(Csv::open(answer, target, Formulas::Kept)?)),
    resume: Some(|answer, target| Ok(Box::new(Csv::resume(answer, target, Formulas::Kept)))),
};

/// `--format csv-safe`.
pub static SAFE_FORMAT: SinkFormat = SinkFormat {
    name: "csv-safe",
    doc: "csv for spreadsheets: a text that a spreadsheet would evaluate as a formula gets a \
          leading apostrophe",
    open: |answer, target| Ok(Box::new(Csv::open(answer, target, Formulas::Quoted)?)),
    resume: Some(|answer, target| Ok(Box::new(Csv::resume(answer, target, Formulas::Quoted)))),
};

/// How to treat texts that spreadsheet programs interpret as formulas.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Formulas {
    Kept,
    Quoted,
}

struct Csv {
    answer: ResultSchema,
    target: Target,
    formulas: Formulas,
    line: String,
    timestamps: Timestamps,
    forms: TextForms,
}

impl Csv {
    fn open(
        answer: ResultSchema,
        mut target: Target,
        formulas: Formulas,
    ) -> Result<Csv, SinkError> {
        let first: &[&str] = match answer.shape {
            Shape::Relation => &["instant", "weight"],
            Shape::Stream => &["instant"],
        };
        let names = answer.unique_names(first);
        let all = first
            .iter()
            .copied()
            .chain(names.iter().map(|n| n.as_str()));
        let header: Vec<String> = all.map(|name| formulas.field(name)).collect();
        target.put(&(header.join(",") + "\n"))?;
        target.flush()?;
        Ok(Csv::resume(answer, target, formulas))
    }

    /// Continues output that already has a header.
    fn resume(answer: ResultSchema, target: Target, formulas: Formulas) -> Csv {
        Csv {
            answer,
            target,
            formulas,
            line: String::new(),
            timestamps: Timestamps::default(),
            forms: TextForms::default(),
        }
    }

    fn compose(&mut self, batch: &Batch, row: usize) {
        self.line.clear();
        let (at, clock) = (batch.ts[row], self.answer.clock);
        self.timestamps.push_instant(&mut self.line, at, clock);
        if self.answer.shape == Shape::Relation {
            self.line.push(',');
            push_int(&mut self.line, batch.weight(row));
        }
        for (i, column) in batch.columns.iter().enumerate() {
            self.line.push(',');
            match column.value(row) {
                Value::Null => {}
                Value::Int(x) if self.answer.schema[i].ty == Type::Time => {
                    self.timestamps.push(&mut self.line, x)
                }
                Value::Int(x) => push_int(&mut self.line, x),
                Value::Float(x) => push(&mut self.line, format_args!("{x:?}")),
                Value::Text(x) => {
                    let (formulas, is_screen) = (self.formulas, self.target.screen().is_some());
                    let write = |line: &mut String, text: &str| match is_screen {
                        true => formulas.push(line, &text::shown(text)),
                        false => formulas.push(line, text),
                    };
                    self.forms.push(&mut self.line, x, write);
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
            let lines = self.answer.lines(batch.weight(row));
            self.target.put_times(&self.line, lines)?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.target.flush()
    }
}

impl Formulas {
    /// Appends a text as a field.
    fn push(self, line: &mut String, text: &str) {
        match is_a_field(text) {
            true => line.push_str(text),
            false => line.push_str(&self.field(text)),
        }
    }

    /// A text as a field. A leading tab or line break is skipped by some programs before they look
    /// for a formula (OWASP, "CSV Injection").
    fn field(self, text: &str) -> String {
        let begins = ['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠'];
        match self == Formulas::Quoted && text.starts_with(begins) {
            true => quoted(&format!("'{text}")),
            false => quoted(text),
        }
    }
}

/// Whether a text is a field as it is, in all forms.
fn is_a_field(text: &str) -> bool {
    !text.is_empty() && !text.starts_with(['=', '+', '-', '@']) && is_plain(text, b"\",")
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
    use crate::InstantUnit;
    use crate::target::capture::Captured;
    use std::sync::Arc;
    use weir_model::{Column, Field, Schema};

    fn answer(columns: &[(&str, Type)]) -> ResultSchema {
        let fields = columns.iter().map(|(name, ty)| Field::new(*name, *ty));
        ResultSchema {
            schema: Arc::new(Schema::new(fields.collect())),
            shape: Shape::Stream,
            clock: InstantUnit::Ticks,
            order: vec![],
            raw: false,
        }
    }

    #[test]
    fn formulas_are_neutralised_on_request() {
        let texts = [
            "=cmd|' /C calc'!A0",
            "+1",
            "-1,5",
            "@SUM(A1)",
            "\t=1",
            "a=1",
        ];
        let columns = [("-x", Type::Text), ("n", Type::Int)];
        let column = Column::from_values(Type::Int, (-3..3).map(Value::Int));
        let batch = Batch::stream(
            (1..7).collect::<Vec<i64>>(),
            vec![Column::texts(texts), column],
        );
        let written = |format| Captured::output(format, answer(&columns), &batch);
        assert_eq!(
            written(&SAFE_FORMAT),
            "instant,'-x,n\n1,'=cmd|' /C calc'!A0,-3\n2,'+1,-2\n3,\"'-1,5\",-1\n4,'@SUM(A1),0\n\
             5,'\t=1,1\n6,a=1,2\n"
        );
        assert!(written(&FORMAT).contains("\n1,=cmd|' /C calc'!A0,-3\n2,+1,-2\n"));
    }

    #[test]
    fn fields_are_quoted_where_they_must_be() {
        let answer = answer(&[("count(*)", Type::Text), ("top(x, 2)", Type::Text)]);
        let second = Column::from_values(Type::Text, [Value::text(""), Value::Null]);
        let batch = Batch::stream(vec![1, 2], vec![Column::texts(["a\"b", "x"]), second]);
        assert_eq!(
            Captured::output(&FORMAT, answer, &batch),
            "instant,count(*),\"top(x, 2)\"\n1,\"a\"\"b\",\"\"\n2,x,\n"
        );
    }
}
