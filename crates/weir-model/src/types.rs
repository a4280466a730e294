//! The content of columns: [`Type`], [`Unit`], and single [`Value`]s.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::Symbol;
use serde::{Deserialize, Serialize};

/// The type of a column or expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Type {
    /// True, false or NULL.
    Bool,
    /// 64-bit signed integer, checked arithmetic.
    Int,
    /// 64-bit IEEE 754 float.
    Float,
    /// Text, interned.
    Text,
    /// A point in time: nanoseconds since the Unix epoch, stored as an integer.
    Time,
    /// A list of (value, count): the buckets of a histogram, a ranking.
    Tally,
    /// The state of an aggregate over some of its rows, as bytes that another engine merges. Used
    /// only in rows between the engines of a fleet; queries cannot name it.
    Partial,
}

impl Type {
    /// True for integers and floats.
    pub fn is_numeric(self) -> bool {
        matches!(self, Type::Int | Type::Float)
    }

    /// The name in CQL, in `CAST` and in schemas.
    pub fn name(self) -> &'static str {
        match self {
            Type::Bool => "boolean",
            Type::Int => "integer",
            Type::Float => "float",
            Type::Text => "text",
            Type::Time => "timestamp",
            Type::Tally => "tally",
            Type::Partial => "partial",
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The unit of a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Unit {
    /// A plain number.
    #[default]
    None,
    /// Nanoseconds.
    Nanoseconds,
    /// Microseconds, as in the thesis.
    Microseconds,
    /// Sectors of 512 bytes.
    Sectors,
    /// Bytes.
    Bytes,
}

/// A dimension: units of one dimension can be converted into each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// A plain number.
    None,
    /// A duration.
    Time,
    /// An amount of data.
    Data,
}

impl Unit {
    /// The dimension of the unit.
    pub fn dimension(self) -> Dimension {
        match self {
            Unit::None => Dimension::None,
            Unit::Nanoseconds | Unit::Microseconds => Dimension::Time,
            Unit::Sectors | Unit::Bytes => Dimension::Data,
        }
    }

    /// The size of this unit in the dimension's smallest unit (nanosecond, byte).
    pub fn scale(self) -> i64 {
        match self {
            Unit::None | Unit::Nanoseconds | Unit::Bytes => 1,
            Unit::Microseconds => crate::NANOS_PER_MICRO,
            Unit::Sectors => crate::SECTOR_BYTES,
        }
    }

    /// The unit with this symbol.
    pub fn from_symbol(symbol: &str) -> Option<Unit> {
        let all = [
            Unit::None,
            Unit::Nanoseconds,
            Unit::Microseconds,
            Unit::Sectors,
            Unit::Bytes,
        ];
        all.into_iter().find(|unit| unit.symbol() == symbol)
    }

    /// The symbol printed after a number, empty for a plain one.
    pub fn symbol(self) -> &'static str {
        match self {
            Unit::None => "",
            Unit::Nanoseconds => "ns",
            Unit::Microseconds => "us",
            Unit::Sectors => "sectors",
            Unit::Bytes => "B",
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.symbol())
    }
}

/// A list of (value, count), in the order of its producer: a histogram's buckets by upper limit, a
/// ranking by count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tally(pub Vec<(Value, i64)>);

impl fmt::Display for Tally {
    /// `{4096: 10, 8192: 2}`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (i, (value, count)) in self.0.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(f, "{comma}{value}: {count}")?;
        }
        f.write_str("}")
    }
}

/// One value, serialised without its type. Columns are arrays of values of one type; this type is
/// for literals, rows of a table and tests.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// SQL's NULL.
    #[default]
    Null,
    /// A [`Type::Bool`].
    Bool(bool),
    /// A [`Type::Int`] or a [`Type::Time`].
    Int(i64),
    /// A [`Type::Float`].
    Float(f64),
    /// A [`Type::Text`].
    Text(Symbol),
    /// A [`Type::Tally`].
    #[serde(skip)]
    Tally(Arc<Tally>),
    /// A [`Type::Partial`].
    #[serde(skip)]
    Bytes(Arc<[u8]>),
}

impl Value {
    /// A text value from our own code.
    pub fn text(text: &str) -> Value {
        Value::Text(Symbol::new(text))
    }

    /// True for [`Value::Null`].
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    fn rank(&self) -> u8 {
        match self {
            Value::Null => 0,
            Value::Bool(_) => 1,
            Value::Int(_) => 2,
            Value::Float(_) => 3,
            Value::Text(_) => 4,
            Value::Tally(_) => 5,
            Value::Bytes(_) => 6,
        }
    }
}

/// The key for equality of floats: one NaN, one zero.
pub fn float_key(x: f64) -> u64 {
    if x == 0.0 {
        0
    } else if x.is_nan() {
        f64::NAN.to_bits()
    } else {
        x.to_bits()
    }
}

/// The total order of floats used by ORDER BY, min and max: NaN last, -0 equal to 0.
pub fn float_order(a: f64, b: f64) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Greater,
        (false, true) => Ordering::Less,
        (false, false) => a.partial_cmp(&b).expect("neither is NaN"),
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Value {}

impl PartialOrd for Value {
    fn partial_cmp(&self, other: &Value) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Value {
    /// The order of ORDER BY within one type: NULL first, texts by their bytes, NaN last.
    fn cmp(&self, other: &Value) -> Ordering {
        match (self, other) {
            (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
            (Value::Int(a), Value::Int(b)) => a.cmp(b),
            (Value::Float(a), Value::Float(b)) => float_order(*a, *b),
            (Value::Text(a), Value::Text(b)) if a == b => Ordering::Equal,
            (Value::Text(a), Value::Text(b)) => a.as_str().cmp(b.as_str()),
            (Value::Tally(a), Value::Tally(b)) => a.cmp(b),
            (Value::Bytes(a), Value::Bytes(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.rank().hash(state);
        match self {
            Value::Null => {}
            Value::Bool(x) => x.hash(state),
            Value::Int(x) => x.hash(state),
            Value::Float(x) => float_key(*x).hash(state),
            Value::Text(x) => x.hash(state),
            Value::Tally(x) => x.hash(state),
            Value::Bytes(x) => x.hash(state),
        }
    }
}

impl fmt::Display for Value {
    /// Plain text, without units: `NULL`, `true`, `12`, `0.5`, `sda`, `{4096: 10}`; bytes in
    /// hexadecimal, as `\x01ff`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.pad("NULL"),
            Value::Bool(x) => write!(f, "{x}"),
            Value::Int(x) => write!(f, "{x}"),
            Value::Float(x) => write!(f, "{x}"),
            Value::Text(x) => write!(f, "{x}"),
            Value::Tally(x) => write!(f, "{x}"),
            Value::Bytes(x) => {
                f.write_str("\\x")?;
                x.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

impl From<i64> for Value {
    fn from(x: i64) -> Value {
        Value::Int(x)
    }
}

impl From<f64> for Value {
    fn from(x: f64) -> Value {
        Value::Float(x)
    }
}

impl From<bool> for Value {
    fn from(x: bool) -> Value {
        Value::Bool(x)
    }
}

impl From<&str> for Value {
    fn from(x: &str) -> Value {
        Value::text(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_order_as_order_by_does() {
        let mut values = [
            Value::Float(f64::NAN),
            Value::Float(1.0),
            Value::Null,
            Value::Float(-0.0),
        ];
        values.sort();
        assert_eq!(values[0], Value::Null);
        assert_eq!(values[1], Value::Float(0.0));
        assert_eq!(values[3], Value::Float(f64::NAN));
        assert!(Value::text("b") > Value::text("a"));
    }

    #[test]
    fn bytes_are_shown_in_hexadecimal() {
        let bytes = Value::Bytes([0x01, 0xff].as_slice().into());
        assert_eq!(bytes.to_string(), "\\x01ff");
        assert!(bytes > Value::Bytes([0x01].as_slice().into()));
    }
}
