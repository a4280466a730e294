//! Every value of a group in order, with its count: the state of `min`, `max` and `median` where
//! rows may be retracted.

use weir_sketch::{Bytes, OrderedCounts, codec};

use super::per_group::Summary;
use crate::function::EvalError;
use crate::function::element::Element;

impl<K: Element> Summary for OrderedCounts<K> {
    type Value = K;

    fn add(&mut self, value: K, weight: i64) {
        OrderedCounts::add(self, value, weight);
    }

    fn encode(&self, out: &mut Vec<u8>) {
        codec::put_u64(out, self.distinct() as u64);
        for (value, count) in self.iter() {
            value.encode(out);
            codec::put_i64(out, count);
        }
    }

    fn decode(bytes: &mut Bytes<'_>) -> Result<OrderedCounts<K>, EvalError> {
        let mut counts = OrderedCounts::default();
        for _ in 0..bytes.length(2)? {
            let value = K::decode(bytes)?;
            counts.add(value, bytes.i64()?);
        }
        Ok(counts)
    }

    fn merge(&mut self, other: OrderedCounts<K>) {
        OrderedCounts::merge(self, &other);
    }

    fn heap_bytes(&self) -> usize {
        self.bytes()
    }
}
