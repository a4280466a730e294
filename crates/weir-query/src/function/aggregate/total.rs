//! How many values and their exact sum: what `sum` and `avg` keep of a group.

use weir_model::Kept;
use weir_sketch::{Bytes, ExactSum, codec};

use super::per_group::{Summary, partial_of};
use crate::function::EvalError;

/// Of integers. 128 bits hold the sum of 2^63 of them; what goes beyond on the way comes back.
#[derive(Default)]
pub struct IntTotal {
    pub sum: i128,
    pub count: i64,
}

impl IntTotal {
    /// The partial of what a source kept of integers.
    pub fn partial_of(kept: &Kept) -> Option<Vec<u8>> {
        let Kept::Moments { count, sum, .. } = *kept else {
            return None;
        };
        let count = i64::try_from(count).ok()?;
        Some(partial_of(&IntTotal { sum, count }))
    }
}

impl Summary for IntTotal {
    type Value = i64;

    fn add(&mut self, value: i64, weight: i64) {
        self.sum = self
            .sum
            .wrapping_add(i128::from(value) * i128::from(weight));
        self.count = self.count.wrapping_add(weight);
    }

    fn encode(&self, out: &mut Vec<u8>) {
        codec::put_i64(out, self.count);
        out.extend(self.sum.to_le_bytes());
    }

    fn decode(bytes: &mut Bytes<'_>) -> Result<IntTotal, EvalError> {
        let count = bytes.i64()?;
        let sum = i128::from_le_bytes(bytes.array()?);
        Ok(IntTotal { sum, count })
    }

    fn merge(&mut self, other: IntTotal) {
        self.sum = self.sum.wrapping_add(other.sum);
        self.count = self.count.wrapping_add(other.count);
    }
}

/// Of floats.
#[derive(Default)]
pub struct FloatTotal {
    pub sum: ExactSum,
    pub count: i64,
}

impl Summary for FloatTotal {
    type Value = f64;

    fn add(&mut self, value: f64, weight: i64) {
        self.sum.add(value, weight);
        self.count = self.count.wrapping_add(weight);
    }

    fn encode(&self, out: &mut Vec<u8>) {
        codec::put_i64(out, self.count);
        self.sum.encode(out);
    }

    fn decode(bytes: &mut Bytes<'_>) -> Result<FloatTotal, EvalError> {
        let count = bytes.i64()?;
        let sum = ExactSum::decode(bytes)?;
        Ok(FloatTotal { sum, count })
    }

    fn merge(&mut self, other: FloatTotal) {
        self.sum.merge(&other.sum);
        self.count = self.count.wrapping_add(other.count);
    }

    fn heap_bytes(&self) -> usize {
        self.sum.bytes()
    }
}
