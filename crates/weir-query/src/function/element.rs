//! Values as functions read them from columns, store them, and append them to results: without an
//! enum around each one.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow_array::BooleanArray;
use arrow_array::builder::{BooleanBufferBuilder, NullBufferBuilder};
use arrow_buffer::NullBuffer;
use weir_model::types::float_order;
use weir_model::{Column, ColumnBuilder, Symbol, Tally, Value};
use weir_sketch::{Bytes, SketchDecodeError, codec};

use crate::function::EvalError;

/// A type that can be read from the first argument of a call.
pub trait Input: Copy {
    /// The column's values, whatever their storage type.
    type Values<'a>;

    /// The values of `column`.
    ///
    /// # Panics
    /// When it has another type, which the checker excludes unless [`only_nulls`] holds.
    fn values(column: &Column) -> Self::Values<'_>;

    /// The value in a row that is not NULL.
    fn read(values: &Self::Values<'_>, row: usize) -> Self;
}

/// A type that can be appended to a column of results.
pub trait Output {
    /// The part of the builder to append to.
    type Sink<'a>;

    /// That part of `builder`.
    ///
    /// # Panics
    /// When it has another type, which the engine excludes.
    fn sink(builder: &mut ColumnBuilder) -> Self::Sink<'_>;

    /// Appends a value, or NULL.
    fn write(sink: &mut Self::Sink<'_>, value: Option<Self>)
    where
        Self: Sized;

    /// As a [`Value`].
    fn value(self) -> Value;
}

/// A type that can be stored, ordered, and sent to another host.
pub trait Element: Input + Output + Ord + Send + 'static {
    /// Appends its bytes.
    fn encode(self, out: &mut Vec<u8>);

    /// Reads what [`Element::encode`] wrote.
    ///
    /// # Errors
    /// When the bytes are malformed, or the symbol table is full.
    fn decode(bytes: &mut Bytes<'_>) -> Result<Self, EvalError>;
}

impl From<SketchDecodeError> for EvalError {
    fn from(e: SketchDecodeError) -> EvalError {
        EvalError::new(format!("a partial aggregate cannot be read: {e}"))
            .help("run the same version of weir on every host")
    }
}

const TYPE_CHECKED: &str = "the checker has settled the argument's type";
const RESULT_CHECKED: &str = "the engine builds a column of the call's type";

/// Any value that is not NULL.
#[derive(Clone, Copy)]
pub struct Present;

impl Input for Present {
    type Values<'a> = ();
    fn values(_: &Column) {}
    #[inline]
    fn read(_: &(), _: usize) -> Present {
        Present
    }
}

/// Which rows of `column` are NULL, where any may be.
pub fn nulls_of(column: &Column) -> Option<NullBuffer> {
    match column {
        Column::Tally(tallies) => Some(
            tallies
                .values()
                .iter()
                .map(Option::is_some)
                .collect::<Vec<bool>>()
                .into(),
        ),
        other => other.nulls().cloned(),
    }
}

/// True when every value of `column` is NULL; its storage type may then differ from the expected
/// one, as for a literal NULL.
pub fn only_nulls(column: &Column) -> bool {
    let nulls = || {
        column
            .nulls()
            .is_some_and(|nulls| nulls.null_count() == nulls.len())
    };
    matches!(column, Column::Nulls(_)) || nulls()
}

impl Input for i64 {
    type Values<'a> = &'a [i64];
    fn values(column: &Column) -> &[i64] {
        let Column::Int(values) = column else {
            panic!("{TYPE_CHECKED}")
        };
        values.values()
    }
    #[inline]
    fn read(values: &&[i64], row: usize) -> i64 {
        values[row]
    }
}

impl Output for i64 {
    type Sink<'a> = (&'a mut Vec<i64>, &'a mut NullBufferBuilder);
    fn sink(builder: &mut ColumnBuilder) -> Self::Sink<'_> {
        let ColumnBuilder::Int(values, nulls) = builder else {
            panic!("{RESULT_CHECKED}")
        };
        (values, nulls)
    }
    #[inline(always)]
    fn write((values, nulls): &mut Self::Sink<'_>, value: Option<i64>) {
        values.push(value.unwrap_or_default());
        nulls.append(value.is_some());
    }
    fn value(self) -> Value {
        Value::Int(self)
    }
}

impl Element for i64 {
    fn encode(self, out: &mut Vec<u8>) {
        codec::put_i64(out, self);
    }
    fn decode(bytes: &mut Bytes<'_>) -> Result<i64, EvalError> {
        Ok(bytes.i64()?)
    }
}

impl Input for f64 {
    type Values<'a> = &'a [f64];
    fn values(column: &Column) -> &[f64] {
        let Column::Float(values) = column else {
            panic!("{TYPE_CHECKED}")
        };
        values.values()
    }
    #[inline]
    fn read(values: &&[f64], row: usize) -> f64 {
        values[row]
    }
}

impl Output for f64 {
    type Sink<'a> = (&'a mut Vec<f64>, &'a mut NullBufferBuilder);
    fn sink(builder: &mut ColumnBuilder) -> Self::Sink<'_> {
        let ColumnBuilder::Float(values, nulls) = builder else {
            panic!("{RESULT_CHECKED}")
        };
        (values, nulls)
    }
    #[inline(always)]
    fn write((values, nulls): &mut Self::Sink<'_>, value: Option<f64>) {
        values.push(value.unwrap_or_default());
        nulls.append(value.is_some());
    }
    fn value(self) -> Value {
        Value::Float(self)
    }
}

/// A float in the order of ORDER BY. There is one zero and one NaN, so that a retraction finds what
/// was inserted.
#[derive(Clone, Copy, Debug)]
pub struct Real(pub f64);

impl Real {
    fn new(x: f64) -> Real {
        Real(if x.is_nan() { f64::NAN } else { x + 0.0 })
    }
}

impl Ord for Real {
    fn cmp(&self, other: &Real) -> Ordering {
        float_order(self.0, other.0)
    }
}

impl PartialOrd for Real {
    fn partial_cmp(&self, other: &Real) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Real {
    fn eq(&self, other: &Real) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Real {}

impl Input for Real {
    type Values<'a> = &'a [f64];
    fn values(column: &Column) -> &[f64] {
        f64::values(column)
    }
    #[inline]
    fn read(values: &&[f64], row: usize) -> Real {
        Real::new(values[row])
    }
}

impl Output for Real {
    type Sink<'a> = <f64 as Output>::Sink<'a>;
    fn sink(builder: &mut ColumnBuilder) -> Self::Sink<'_> {
        f64::sink(builder)
    }
    fn write(sink: &mut Self::Sink<'_>, value: Option<Real>) {
        f64::write(sink, value.map(|x| x.0));
    }
    fn value(self) -> Value {
        Value::Float(self.0)
    }
}

impl Element for Real {
    fn encode(self, out: &mut Vec<u8>) {
        codec::put_f64(out, self.0);
    }
    fn decode(bytes: &mut Bytes<'_>) -> Result<Real, EvalError> {
        Ok(Real::new(bytes.f64()?))
    }
}

impl Input for bool {
    type Values<'a> = &'a BooleanArray;
    fn values(column: &Column) -> &BooleanArray {
        let Column::Bool(values) = column else {
            panic!("{TYPE_CHECKED}")
        };
        values
    }
    #[inline]
    fn read(values: &&BooleanArray, row: usize) -> bool {
        values.value(row)
    }
}

impl Output for bool {
    type Sink<'a> = (&'a mut BooleanBufferBuilder, &'a mut NullBufferBuilder);
    fn sink(builder: &mut ColumnBuilder) -> Self::Sink<'_> {
        let ColumnBuilder::Bool(values, nulls) = builder else {
            panic!("{RESULT_CHECKED}")
        };
        (values, nulls)
    }
    #[inline(always)]
    fn write((values, nulls): &mut Self::Sink<'_>, value: Option<bool>) {
        values.append(value.unwrap_or_default());
        nulls.append(value.is_some());
    }
    fn value(self) -> Value {
        Value::Bool(self)
    }
}

impl Element for bool {
    fn encode(self, out: &mut Vec<u8>) {
        out.push(self.into());
    }
    fn decode(bytes: &mut Bytes<'_>) -> Result<bool, EvalError> {
        Ok(bytes.byte()? != 0)
    }
}

/// A text, ordered by its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    symbol: Symbol,
    /// Stored beside the symbol, so that comparing needs no look-up.
    text: &'static str,
}

impl Text {
    /// The text.
    pub fn as_str(self) -> &'static str {
        self.text
    }

    /// The text behind a symbol.
    pub fn new(symbol: Symbol) -> Text {
        Text {
            symbol,
            text: symbol.as_str(),
        }
    }
}

impl Ord for Text {
    fn cmp(&self, other: &Text) -> Ordering {
        if self.symbol == other.symbol {
            Ordering::Equal
        } else {
            self.text.cmp(other.text)
        }
    }
}

impl PartialOrd for Text {
    fn partial_cmp(&self, other: &Text) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Text) -> bool {
        self.symbol == other.symbol
    }
}

impl Eq for Text {}

impl Input for Text {
    type Values<'a> = &'a [u32];
    fn values(column: &Column) -> &[u32] {
        let Column::Text(values) = column else {
            panic!("{TYPE_CHECKED}")
        };
        values.values()
    }
    #[inline]
    fn read(values: &&[u32], row: usize) -> Text {
        Text::new(Symbol::from_id(values[row]))
    }
}

impl Output for Text {
    type Sink<'a> = (&'a mut Vec<u32>, &'a mut NullBufferBuilder);
    fn sink(builder: &mut ColumnBuilder) -> Self::Sink<'_> {
        let ColumnBuilder::Text(values, nulls) = builder else {
            panic!("{RESULT_CHECKED}")
        };
        (values, nulls)
    }
    #[inline(always)]
    fn write((values, nulls): &mut Self::Sink<'_>, value: Option<Text>) {
        values.push(value.map_or(0, |x| x.symbol.id()));
        nulls.append(value.is_some());
    }
    fn value(self) -> Value {
        Value::Text(self.symbol)
    }
}

impl Element for Text {
    fn encode(self, out: &mut Vec<u8>) {
        codec::put_bytes(out, self.text.as_bytes());
    }
    fn decode(bytes: &mut Bytes<'_>) -> Result<Text, EvalError> {
        let text = std::str::from_utf8(bytes.bytes()?)
            .map_err(|_| SketchDecodeError("a text is not valid UTF-8"))?;
        let symbol = Symbol::try_new(text).map_err(|e| EvalError::new(e.to_string()))?;
        Ok(Text::new(symbol))
    }
}

impl Output for Arc<Tally> {
    type Sink<'a> = &'a mut Vec<Option<Arc<Tally>>>;
    fn sink(builder: &mut ColumnBuilder) -> Self::Sink<'_> {
        let ColumnBuilder::Tally(values) = builder else {
            panic!("{RESULT_CHECKED}")
        };
        values
    }
    fn write(sink: &mut Self::Sink<'_>, value: Option<Arc<Tally>>) {
        sink.push(value);
    }
    fn value(self) -> Value {
        Value::Tally(self)
    }
}
