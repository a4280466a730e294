//! `top(x, k)`: the k most frequent values.

use std::cmp::Reverse;
use std::sync::Arc;

use weir_model::{Tally, Type, Value};
use weir_sketch::{Bytes, OrderedCounts};

use super::per_group::{Summary, per_group};
use super::{Aggregate, AggregateCall, AggregateState};
use crate::function::arguments::{argument_error, arity, constant, literal, typed};
use crate::function::element::{Element, Real, Text};
use crate::function::{Argument, ArgumentError, EvalError, Example, FunctionDoc, Returns};

/// `top(x, k)`
pub struct Top;

/// Maximum number of values of a call.
const TOP_MAX: i64 = 10_000;

static DOC: FunctionDoc = FunctionDoc {
    name: "top",
    aliases: &[],
    signature: "top(x, k)",
    summary: "the `k` most frequent values with their counts, most frequent first",
    details: "Exact. `k` is a constant from 1 to 10000. Of equally frequent values the least is first. It stores every distinct value. NULL over no \
              values.",
    examples: &[
        Example::over("top(x, 2)", "8\n4\n8\n16\n4\n8\nNULL", "{8: 3, 4: 2}"),
        Example::over("top(x, 5)", "b\na", "{a: 1, b: 1}"),
        Example::over("top(x, 5)", "", "NULL"),
    ],
};

impl Aggregate for Top {
    fn doc(&self) -> &'static FunctionDoc {
        &DOC
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(DOC.name, args, 2, 2)?;
        let allowed = [Type::Bool, Type::Int, Type::Float, Type::Text, Type::Time];
        typed(DOC.name, args, 0, &allowed, "a single value")?;
        match constant(DOC.name, args, 1, "a number of values")? {
            Value::Int(1..=TOP_MAX) => {}
            _ => {
                return Err(argument_error(
                    1,
                    format!("`top` lists from 1 to {TOP_MAX} values"),
                ));
            }
        }
        Ok(Returns::plain(Type::Tally))
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        let Some(Value::Int(k)) = literal(&call.args[1]) else {
            unreachable!("`check` saw a constant integer");
        };
        match call.args[0].ty() {
            Type::Bool => most_frequent::<bool>(k as usize),
            Type::Float => most_frequent::<Real>(k as usize),
            Type::Text => most_frequent::<Text>(k as usize),
            _ => most_frequent::<i64>(k as usize),
        }
    }
}

fn most_frequent<K: Element>(k: usize) -> Box<dyn AggregateState> {
    per_group(|x: K| x, move |ranking: &Ranking<K>| Ok(ranking.top(k)))
}

/// The count of each value, by value and by count.
pub struct Ranking<K> {
    counts: OrderedCounts<K>,
    /// The values that occur more than once: of many distinct ones, most do not.
    ranks: OrderedCounts<(Reverse<i64>, K)>,
}

impl<K> Default for Ranking<K> {
    fn default() -> Ranking<K> {
        Ranking {
            counts: OrderedCounts::default(),
            ranks: OrderedCounts::default(),
        }
    }
}

impl<K: Element> Ranking<K> {
    /// The most frequent value.
    pub fn first(&self) -> Option<K> {
        let several = self.ranks.iter().next().map(|((_, value), _)| value);
        let mut once = self.counts.iter().filter(|&(_, count)| count == 1);
        several.or_else(|| once.next().map(|(value, _)| value))
    }

    fn top(&self, k: usize) -> Option<Arc<Tally>> {
        let several = self
            .ranks
            .iter()
            .map(|((Reverse(count), value), _)| (value.value(), count));
        let mut entries: Vec<(Value, i64)> = several.take(k).collect();
        let once = self.counts.iter().filter(|&(_, count)| count == 1);
        let once = once.map(|(value, count)| (value.value(), count));
        entries.extend(once.take(k - entries.len()));
        (!entries.is_empty()).then(|| Arc::new(Tally(entries)))
    }
}

impl<K: Element> Summary for Ranking<K> {
    type Value = K;

    fn add(&mut self, value: K, weight: i64) {
        let count = self.counts.add(value, weight);
        let before = count.wrapping_sub(weight);
        if before > 1 {
            self.ranks.add((Reverse(before), value), -1);
        }
        if count > 1 {
            self.ranks.add((Reverse(count), value), 1);
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        self.counts.encode(out);
    }

    fn decode(bytes: &mut Bytes<'_>) -> Result<Ranking<K>, EvalError> {
        let mut ranking = Ranking::default();
        let counts: OrderedCounts<K> = Summary::decode(bytes)?;
        counts
            .iter()
            .for_each(|(value, count)| ranking.add(value, count));
        Ok(ranking)
    }

    fn merge(&mut self, other: Ranking<K>) {
        other
            .counts
            .iter()
            .for_each(|(value, count)| self.add(value, count));
    }

    fn heap_bytes(&self) -> usize {
        self.counts.bytes() + self.ranks.bytes()
    }
}
