//! STREAM source files: a type line, then one row per line, for the streams and relations that a
//! script declares.
//!
//! ```text
//! i,i,f,b,c4
//! 1,1,1.1,a,abc
//! 2,2,2.2,b,bcd
//! ```
//!
//! The first field is the timestamp, an integer tick; the second field of a relation is `+` or `-`.
//! The type line has the timestamp's type, then one per column: `i` integer, `f` float, `b` a
//! single character, `c<n>` text. That of a relation may also have the sign's, `b` (Stanford STREAM
//! prototype 0.6, source files of its tests).

use weir_model::{Batch, ColumnBuilder, Schema, Shape, Symbol, Type, Value};

use super::Faults;
use super::lines::excerpt;
use super::source::Input;
use crate::TapError;

/// A source file, read batch by batch.
pub struct StreamSource {
    input: Input,
    faults: Faults,
    types: Vec<Type>,
    shape: Shape,
    last_ts: Option<i64>,
}

/// Reads a source file for a stream or relation with the columns of `schema`, which do not include
/// the timestamp. A `strict` reader stops at the first bad line.
///
/// # Errors
/// If the file cannot be read, or its type line does not match the schema.
pub fn open(
    mut input: Input,
    schema: &Schema,
    shape: Shape,
    strict: bool,
) -> Result<StreamSource, TapError> {
    let path = input.path().to_path_buf();
    let types: Vec<Type> = schema.fields.iter().map(|f| f.ty).collect();
    let malformed = |reason: String| TapError::Malformed {
        path: path.clone(),
        offset: 0,
        reason,
    };
    let line = input.line()?.and_then(|l| l.bytes);
    let line = line.and_then(|bytes| std::str::from_utf8(bytes).ok());
    let line =
        line.ok_or_else(|| malformed("the type line, such as `i,i,f,b,c4`, is missing".into()))?;
    check_types(line, &types, shape).map_err(malformed)?;
    Ok(StreamSource {
        faults: Faults::new(&path, strict),
        input,
        types,
        shape,
        last_ts: None,
    })
}

/// Whether `head` begins with a type line, as a source file does: a list of two types or more. No
/// trace has such a first line.
pub fn has_type_line(head: &[u8]) -> bool {
    let first = head.split(|&b| b == b'\n').next().unwrap_or_default();
    let Ok(line) = std::str::from_utf8(first) else {
        return false;
    };
    let types: Vec<Option<Type>> = line.trim().split(',').map(type_of).collect();
    types.len() > 1 && types.iter().all(Option::is_some)
}

fn type_of(text: &str) -> Option<Type> {
    let text = text.trim();
    match text {
        "i" => Some(Type::Int),
        "f" => Some(Type::Float),
        "b" => Some(Type::Text),
        _ => text
            .strip_prefix('c')?
            .parse::<u32>()
            .ok()
            .map(|_| Type::Text),
    }
}

/// Checks a type line; the error is a message.
fn check_types(line: &str, columns: &[Type], shape: Shape) -> Result<(), String> {
    let mut types = Vec::new();
    for text in line.trim().split(',') {
        types.push(type_of(text).ok_or_else(|| {
            format!(
                "the type `{}` is none of i, f, b and c<n>",
                excerpt(text.trim())
            )
        })?);
    }
    if types.first() != Some(&Type::Int) {
        return Err("the type line must start with i, the type of the timestamp".into());
    }
    let signed = shape == Shape::Relation && types.len() == columns.len() + 2;
    let given = &types[if signed { 2 } else { 1 }..];
    if given.len() != columns.len() {
        let (given, declared) = (given.len(), columns.len());
        return Err(format!(
            "the type line has {given} columns, but {declared} are declared"
        ));
    }
    let same = |given: Type, declared: Type| {
        given == declared || (given == Type::Int && declared == Type::Time)
    };
    match (0..given.len()).find(|&i| !same(given[i], columns[i])) {
        Some(i) => Err(format!(
            "column {} is {} in the type line, but declared as {}",
            i + 1,
            given[i],
            columns[i]
        )),
        None => Ok(()),
    }
}

impl StreamSource {
    /// The next rows, about `rows_max` of them, or `None` at the end. For a relation the weights
    /// mark insertions and retractions.
    ///
    /// # Errors
    /// If the file cannot be read, or a line is bad and the reader strict.
    pub fn next_batch(&mut self, rows_max: usize) -> Result<Option<Batch>, TapError> {
        let mut rows = RowsBuilder::new(&self.types);
        while rows.ts.len() < rows_max {
            let Some(line) = self.input.line()? else {
                break;
            };
            let offset = line.offset;
            let row = match line.text() {
                Ok(text) if text.trim().is_empty() => continue,
                text => text.and_then(|text| parse(text, &self.types, self.shape)),
            };
            match row {
                Ok(row) if self.last_ts.is_some_and(|last| row.ts < last) => {
                    self.faults
                        .bad(offset, format!("the timestamp decreases to {}", row.ts))?;
                }
                Ok(row) => {
                    self.last_ts = Some(row.ts);
                    rows.push(row);
                }
                Err(reason) => self.faults.bad(offset, reason)?,
            }
        }
        Ok((!rows.ts.is_empty()).then(|| rows.finish(self.shape)))
    }

    /// The bad lines so far: their number, and the first ones as text.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Progress through the file, from 0 to 1.
    pub fn progress(&self) -> f64 {
        self.input.progress()
    }
}

struct Row {
    ts: i64,
    weight: i64,
    values: Vec<Value>,
}

fn parse(line: &str, types: &[Type], shape: Shape) -> Result<Row, String> {
    let mut fields = line.split(',').map(str::trim);
    let time = fields.next().unwrap_or_default();
    let ts = time
        .parse()
        .map_err(|_| format!("the time `{}` is not an integer", excerpt(time)))?;
    let weight = match shape {
        Shape::Stream => 1,
        Shape::Relation => match fields.next() {
            Some("+") => 1,
            Some("-") => -1,
            _ => return Err("the second field is neither + nor -".into()),
        },
    };
    let mut values = Vec::with_capacity(types.len());
    for (i, &ty) in types.iter().enumerate() {
        let field = fields
            .next()
            .ok_or_else(|| format!("{i} values, expected {}", types.len()))?;
        values.push(value(field, ty)?);
    }
    match fields.count() {
        0 => Ok(Row { ts, weight, values }),
        more => Err(format!("{more} values too many")),
    }
}

fn value(field: &str, ty: Type) -> Result<Value, String> {
    let bad = || format!("`{}` is not of type {ty}", excerpt(field));
    match ty {
        Type::Int | Type::Time => field.parse().map(Value::Int).map_err(|_| bad()),
        Type::Float => field.parse().map(Value::Float).map_err(|_| bad()),
        Type::Text => Symbol::try_new(field)
            .map(Value::Text)
            .map_err(|full| full.to_string()),
        Type::Bool | Type::Tally | Type::Partial => Err(bad()),
    }
}

struct RowsBuilder {
    ts: Vec<i64>,
    weights: Vec<i64>,
    columns: Vec<ColumnBuilder>,
}

impl RowsBuilder {
    fn new(types: &[Type]) -> RowsBuilder {
        RowsBuilder {
            ts: Vec::new(),
            weights: Vec::new(),
            columns: types.iter().map(|&ty| ColumnBuilder::new(ty, 0)).collect(),
        }
    }

    fn push(&mut self, row: Row) {
        self.ts.push(row.ts);
        self.weights.push(row.weight);
        for (column, value) in self.columns.iter_mut().zip(row.values) {
            column.push(value);
        }
    }

    fn finish(mut self, shape: Shape) -> Batch {
        let columns = self.columns.iter_mut().map(ColumnBuilder::finish).collect();
        match shape {
            Shape::Stream => Batch::stream(self.ts, columns),
            Shape::Relation => Batch::deltas(self.ts, self.weights, columns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::TraceInput;
    use super::*;
    use weir_model::Field;

    fn schema(types: &[Type]) -> Schema {
        let fields = types.iter().enumerate();
        Schema::new(
            fields
                .map(|(i, &ty)| Field::new(format!("c{i}"), ty))
                .collect(),
        )
    }

    /// A row as (ts, weight, values).
    type Signed = (i64, i64, Vec<Value>);

    /// The rows of `text`, and the messages about bad lines.
    fn read(text: &str, types: &[Type], shape: Shape) -> (Vec<Signed>, Vec<String>) {
        let input = Input::open(&TraceInput::bytes(text)).unwrap();
        let mut source = open(input, &schema(types), shape, false).unwrap();
        let mut rows = Vec::new();
        while let Some(batch) = source.next_batch(2).unwrap() {
            rows.extend((0..batch.len()).map(|i| (batch.ts[i], batch.weight(i), batch.row(i))));
        }
        (rows, source.faults().messages().to_vec())
    }

    #[test]
    fn a_stream_has_a_timestamp_and_values() {
        let types = [Type::Int, Type::Float, Type::Text, Type::Text];
        let text = "i,i,f,b,c4\n1,1,1.1,a,abc\r\n2,2,2.2,b,bcd";
        let (rows, bad) = read(text, &types, Shape::Stream);
        assert_eq!(rows.len(), 2);
        let values = vec![
            Value::Int(2),
            Value::Float(2.2),
            Value::text("b"),
            Value::text("bcd"),
        ];
        assert_eq!(rows[1], (2, 1, values));
        assert!(bad.is_empty());
    }

    #[test]
    fn a_relation_has_signs() {
        for types in ["i,i", "i,b,i"] {
            let (rows, _) = read(
                &format!("{types}\n1,+,7\n1,+,8\n3,-,7\n"),
                &[Type::Int],
                Shape::Relation,
            );
            let weights: Vec<_> = rows.iter().map(|(ts, weight, _)| (*ts, *weight)).collect();
            assert_eq!(weights, [(1, 1), (1, 1), (3, -1)]);
        }
    }

    #[test]
    fn a_bad_line_is_reported_with_its_offset_and_skipped() {
        let (rows, bad) = read(
            "i,i\n1,1\nx,1\n2\n3,1,1\n3,zz\n2,2\n1,9\n",
            &[Type::Int],
            Shape::Stream,
        );
        assert_eq!(rows.iter().map(|r| r.0).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(bad.len(), 5);
        assert_eq!(bad[0], "<bytes>: offset 8: the time `x` is not an integer");
        assert_eq!(bad[4], "<bytes>: offset 29: the timestamp decreases to 1");
    }

    #[test]
    fn a_type_line_that_does_not_fit_is_an_error() {
        let open = |text: &str| {
            let schema = schema(&[Type::Int]);
            let input = Input::open(&TraceInput::bytes(text)).unwrap();
            super::open(input, &schema, Shape::Stream, false)
                .err()
                .unwrap()
                .to_string()
        };
        assert!(open("").contains("type line"));
        assert!(open("i,i,i\n").contains("has 2 columns, but 1 are declared"));
        assert!(
            open("i,f\n").contains("column 1 is float in the type line, but declared as integer")
        );
        assert!(open("i,q\n").contains("`q` is none of"));
        assert!(open("f,i\n").contains("must start with i"));
    }

    #[test]
    fn a_type_line_is_recognised() {
        assert!(has_type_line(b"i,i,f,b,c4\n1,1"));
        assert!(has_type_line(b"i,i,i,i,i\r\n1,1,1,1,1\r\n"));
        assert!(has_type_line(b"f,i\n"), "wrong, but no trace");
        assert!(!has_type_line(b"1,2,3\n"));
        assert!(!has_type_line(b"i\n"));
    }
}
