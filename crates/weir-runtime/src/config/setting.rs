//! Types of settings that are texts in a file, and whole numbers within bounds.

use std::fmt;
use std::time::Duration;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::quantity;

/// An amount of data, bytes: `"16 MiB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub usize);

/// A duration: `"50 ms"`, `"forever"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Duration);

/// Deserializes a text that `parse` accepts.
///
/// # Errors
/// Those of `parse`, or when the value is not a text.
pub fn text<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    parse: fn(&str) -> Result<T, String>,
) -> Result<T, D::Error> {
    deserializer.deserialize_str(Text(parse))
}

struct Text<T>(fn(&str) -> Result<T, String>);

impl<T> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quoted text with a number and its unit")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.0)(text).map_err(E::custom)
    }
}

/// Deserializes a whole number from 1 to `MAX`.
///
/// # Errors
/// When the value is not such a number.
pub fn count<'de, D: Deserializer<'de>, const MAX: usize>(
    deserializer: D,
) -> Result<usize, D::Error> {
    let number = i64::deserialize(deserializer)?;
    let count = usize::try_from(number)
        .ok()
        .filter(|n| (1..=MAX).contains(n));
    count.ok_or_else(|| {
        let expected = format!("a whole number from 1 to {MAX}");
        D::Error::invalid_value(Unexpected::Signed(number), &expected.as_str())
    })
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        text(deserializer, quantity::size).map(Size)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&quantity::size_text(self.0))
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        text(deserializer, quantity::span).map(Time)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&quantity::span_text(self.0))
    }
}
