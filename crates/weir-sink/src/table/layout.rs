//! Formatting of values as cells, and of cells as aligned lines.

use weir_model::{Field, Type, Unit, Value};

use crate::answer::name_with_unit;
use crate::{InstantUnit, ResultSchema, number, text, time};

/// Spaces between two columns.
const GAP: &str = "  ";

/// The columns of a table, as wide as the widest cell so far, so that they stay stable.
pub struct Layout {
    columns: Vec<Column>,
    raw: bool,
}

struct Column {
    header: String,
    field: Field,
    right: bool,
    width: usize,
}

impl Layout {
    /// The columns of `answer`, after a column of instants if `instants` is set.
    pub fn new(answer: &ResultSchema, instants: bool) -> Layout {
        let instant = match answer.clock {
            InstantUnit::Nanoseconds => Field::new("time", Type::Text),
            InstantUnit::Ticks => Field::new("tick", Type::Int),
        };
        let first = instants.then_some(&instant);
        let fields = first.into_iter().chain(&answer.schema.fields);
        let column = |field: &Field| {
            let header = header(field, answer.raw);
            Column {
                width: text::width(&header),
                header,
                right: field.ty.is_numeric(),
                field: field.clone(),
            }
        };
        Layout {
            columns: fields.map(column).collect(),
            raw: answer.raw,
        }
    }

    /// The cells of a row; columns grow to hold them.
    pub fn cells<'v>(
        &mut self,
        instant: Option<String>,
        values: impl IntoIterator<Item = &'v Value>,
    ) -> Vec<String> {
        let own = usize::from(instant.is_some());
        let raw = self.raw;
        let fields = self.columns[own..].iter().map(|c| &c.field);
        let shown = fields.zip(values).map(|(field, v)| cell(v, field, raw));
        let cells: Vec<String> = instant.into_iter().chain(shown).collect();
        for (column, cell) in self.columns.iter_mut().zip(&cells) {
            column.width = column.width.max(text::width(cell));
        }
        cells
    }

    /// The line of headers.
    pub fn header(&self) -> String {
        self.line(self.columns.iter().map(|c| c.header.as_str()))
    }

    /// Cells as a line, without line feed.
    pub fn line<'c>(&self, cells: impl IntoIterator<Item = &'c str>) -> String {
        let mut line = String::new();
        for (i, (column, cell)) in self.columns.iter().zip(cells).enumerate() {
            let padding = " ".repeat(column.width.saturating_sub(text::width(cell)));
            if i > 0 {
                line.push_str(GAP);
            }
            match column.right {
                true => line.extend([padding.as_str(), cell]),
                false => line.extend([cell, padding.as_str()]),
            }
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// A column's name, with the unit if the cells do not have it.
fn header(field: &Field, raw: bool) -> String {
    let name = text::shown(&field.name);
    let in_cells = !raw && number::scaled(0.0, field.unit).is_some();
    match in_cells {
        true => name.into_owned(),
        false => name_with_unit(&name, field),
    }
}

fn cell(value: &Value, field: &Field, raw: bool) -> String {
    if field.ty == Type::Time {
        return match value {
            Value::Int(at) if raw => time::timestamp(*at),
            Value::Int(at) => time::readable(*at),
            other => other.to_string(),
        };
    }
    plain(value, field.unit, raw)
}

fn plain(value: &Value, unit: Unit, raw: bool) -> String {
    let scaled = |x: f64| if raw { None } else { number::scaled(x, unit) };
    match value {
        Value::Int(x) => scaled(*x as f64).unwrap_or_else(|| x.to_string()),
        Value::Float(x) if raw => format!("{x:?}"),
        Value::Float(x) => scaled(*x).unwrap_or_else(|| number::general(*x)),
        Value::Text(x) => text::shown(x.as_str()).into_owned(),
        Value::Tally(tally) => {
            let entry =
                |(value, count): &(Value, i64)| format!("{}: {count}", plain(value, unit, raw));
            let entries: Vec<String> = tally.0.iter().map(entry).collect();
            format!("{{{}}}", entries.join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Bytes(_) => value.to_string(),
    }
}
