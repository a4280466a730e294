//! `max_by` and `min_by`: a value of the row in which another value is the greatest or the least.

use weir_model::{Column, ColumnBuilder, Type, Value};
use weir_sketch::{Bytes, OrderedCounts, SketchDecodeError, codec};

use super::{Aggregate, AggregateCall, AggregateState};
use crate::function::arguments::{arity, typed};
use crate::function::element::{Element, Real, Text, nulls_of, only_nulls};
use crate::function::{Argument, ArgumentError, EvalError, FunctionDoc, Returns};

/// `max_by` or `min_by`.
pub struct By {
    pub doc: &'static FunctionDoc,
    pub is_least: bool,
}

impl Aggregate for By {
    fn doc(&self) -> &'static FunctionDoc {
        self.doc
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(self.doc.name, args, 2, 2)?;
        for i in 0..2 {
            let allowed = [Type::Bool, Type::Int, Type::Float, Type::Text, Type::Time];
            typed(self.doc.name, args, i, &allowed, "a single value")?;
        }
        Ok(args[0].returned())
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        match call.args[0].ty() {
            Type::Bool => self.keyed::<bool>(call),
            Type::Float => self.keyed::<Real>(call),
            Type::Text => self.keyed::<Text>(call),
            _ => self.keyed::<i64>(call),
        }
    }
}

impl By {
    fn keyed<V: Element>(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        match call.args[1].ty() {
            Type::Bool => self.pairs::<bool, V>(),
            Type::Float => self.pairs::<Real, V>(),
            Type::Text => self.pairs::<Text, V>(),
            _ => self.pairs::<i64, V>(),
        }
    }

    fn pairs<K: Element, V: Element>(&self) -> Box<dyn AggregateState> {
        Box::new(Pairs::<K, V> {
            groups: Vec::new(),
            heap_bytes: 0,
            is_least: self.is_least,
        })
    }
}

/// The first byte of a partial.
const VERSION: u8 = 1;

/// The keys and values of each group, in order.
struct Pairs<K, V> {
    groups: Vec<OrderedCounts<(K, V)>>,
    heap_bytes: usize,
    is_least: bool,
}

impl<K: Element, V: Element> Pairs<K, V> {
    fn add(&mut self, group: u32, pair: (K, V), weight: i64) {
        let group = &mut self.groups[group as usize];
        let before = group.bytes();
        group.add(pair, weight);
        self.heap_bytes = self.heap_bytes + group.bytes() - before;
    }
}

impl<K: Element, V: Element> AggregateState for Pairs<K, V> {
    fn resize(&mut self, groups: usize) {
        if groups > self.groups.len() {
            self.groups.resize_with(groups, OrderedCounts::default);
        }
    }

    fn update(
        &mut self,
        groups: &[u32],
        weights: &[i64],
        args: &[Column],
        requested: &[bool],
        out: &mut ColumnBuilder,
    ) -> Result<(), EvalError> {
        let [values, keys] = args else {
            unreachable!("`check` saw two arguments");
        };
        let known = (!only_nulls(values) && !only_nulls(keys))
            .then(|| (K::values(keys), V::values(values)));
        let nulls = [nulls_of(values), nulls_of(keys)];
        for (row, &group) in groups.iter().enumerate() {
            let is_known = nulls.iter().flatten().all(|nulls| nulls.is_valid(row));
            if let Some((keys, values)) = known.as_ref().filter(|_| is_known) {
                let pair = (K::read(keys, row), V::read(values, row));
                self.add(group, pair, weights[row]);
            }
            if requested[row] {
                out.push(self.result(group)?);
            }
        }
        Ok(())
    }

    fn result(&self, group: u32) -> Result<Value, EvalError> {
        let pairs = &self.groups[group as usize];
        let end = match self.is_least {
            true => pairs.first(),
            false => pairs.last(),
        };
        Ok(end.map_or(Value::Null, |(_, value)| value.value()))
    }

    fn clear(&mut self, group: u32) {
        let group = &mut self.groups[group as usize];
        self.heap_bytes -= group.bytes();
        *group = OrderedCounts::default();
    }

    fn partial(&self, group: u32, out: &mut Vec<u8>) {
        let pairs = &self.groups[group as usize];
        out.push(VERSION);
        codec::put_u64(out, pairs.distinct() as u64);
        for ((key, value), count) in pairs.iter() {
            key.encode(out);
            value.encode(out);
            codec::put_i64(out, count);
        }
    }

    fn merge(&mut self, group: u32, partial: &[u8]) -> Result<(), EvalError> {
        let mut bytes = Bytes::new(partial);
        if bytes.byte()? != VERSION {
            return Err(SketchDecodeError("it was written by another version of weir").into());
        }
        let mut pairs = Vec::new();
        for _ in 0..bytes.length(3)? {
            let pair = (K::decode(&mut bytes)?, V::decode(&mut bytes)?);
            pairs.push((pair, bytes.i64()?));
        }
        bytes.end()?;
        for (pair, count) in pairs {
            self.add(group, pair, count);
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.groups.capacity() * size_of::<OrderedCounts<(K, V)>>() + self.heap_bytes
    }
}
