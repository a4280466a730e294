//! `corr`, `covar_pop`, `covar_samp` and `regr_*`: how two numbers of the same row vary together.

use weir_model::{Column, ColumnBuilder, Type, Unit, Value};
use weir_sketch::{Bytes, CoMoments, ExactNumber, SketchDecodeError};

use super::{Aggregate, AggregateCall, AggregateState, count};
use crate::function::arguments::{arity, number};
use crate::function::element::{Input, nulls_of, only_nulls};
use crate::function::{Argument, ArgumentError, EvalError, FunctionDoc, Returns};

/// An aggregate of pairs (y, x), in the order of SQL: the dependent number first.
pub struct Paired {
    pub doc: &'static FunctionDoc,
    pub unit: UnitOf,
    pub read: Read,
}

/// The unit of the result.
pub enum UnitOf {
    /// That of the first argument.
    Y,
    /// That of the second argument.
    X,
    /// Products and ratios of units have none.
    Plain,
}

/// How the result is computed from the sums.
#[derive(Clone, Copy)]
pub enum Read {
    /// The number of pairs.
    Count,
    /// A float, or NULL.
    Float(fn(&CoMoments) -> Option<f64>),
}

impl Read {
    fn result(self, sums: &CoMoments) -> Result<Value, EvalError> {
        Ok(match self {
            Read::Count => Value::Int(count::counted(sums.count())?),
            Read::Float(read) => read(sums).map_or(Value::Null, Value::Float),
        })
    }
}

impl Aggregate for Paired {
    fn doc(&self) -> &'static FunctionDoc {
        self.doc
    }

    fn check(&self, args: &[Argument]) -> Result<Returns, ArgumentError> {
        arity(self.doc.name, args, 2, 2)?;
        number(self.doc.name, args, 0)?;
        number(self.doc.name, args, 1)?;
        let unit = match self.unit {
            UnitOf::Y => args[0].unit,
            UnitOf::X => args[1].unit,
            UnitOf::Plain => Unit::None,
        };
        Ok(match self.read {
            Read::Count => Returns::plain(Type::Int),
            Read::Float(_) => Returns::new(Type::Float, unit),
        })
    }

    fn state(&self, call: &AggregateCall) -> Box<dyn AggregateState> {
        let is_float = |i: usize| call.args[i].ty() == Type::Float;
        Box::new(PairedState {
            groups: Vec::new(),
            heap_bytes: 0,
            is_float: [is_float(0), is_float(1)],
            read: self.read,
        })
    }
}

/// The first byte of a partial.
const VERSION: u8 = 1;

/// The sums of each group.
struct PairedState {
    groups: Vec<CoMoments>,
    heap_bytes: usize,
    /// Of y and x.
    is_float: [bool; 2],
    read: Read,
}

/// A column of numbers, as its type stores them.
enum Numbers<'a> {
    Int(<i64 as Input>::Values<'a>),
    Float(<f64 as Input>::Values<'a>),
}

impl Numbers<'_> {
    fn of(column: &Column, is_float: bool) -> Numbers<'_> {
        match is_float {
            true => Numbers::Float(f64::values(column)),
            false => Numbers::Int(i64::values(column)),
        }
    }

    fn read(&self, row: usize) -> ExactNumber {
        match self {
            Numbers::Int(values) => ExactNumber::Int(i64::read(values, row)),
            Numbers::Float(values) => ExactNumber::Float(f64::read(values, row)),
        }
    }
}

impl AggregateState for PairedState {
    fn resize(&mut self, groups: usize) {
        if groups > self.groups.len() {
            self.groups.resize_with(groups, CoMoments::default);
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
        let [y, x] = args else {
            unreachable!("`check` saw two arguments");
        };
        let known = (!only_nulls(y) && !only_nulls(x)).then(|| {
            let [y_float, x_float] = self.is_float;
            (Numbers::of(y, y_float), Numbers::of(x, x_float))
        });
        let nulls = [nulls_of(y), nulls_of(x)];
        for (row, &group) in groups.iter().enumerate() {
            let is_known = nulls.iter().flatten().all(|nulls| nulls.is_valid(row));
            if let Some((y, x)) = known.as_ref().filter(|_| is_known) {
                let sums = &mut self.groups[group as usize];
                let before = sums.bytes();
                sums.add(x.read(row), y.read(row), weights[row]);
                self.heap_bytes = self.heap_bytes + sums.bytes() - before;
            }
            if requested[row] {
                out.push(self.result(group)?);
            }
        }
        Ok(())
    }

    fn result(&self, group: u32) -> Result<Value, EvalError> {
        self.read.result(&self.groups[group as usize])
    }

    fn clear(&mut self, group: u32) {
        let sums = &mut self.groups[group as usize];
        self.heap_bytes -= sums.bytes();
        *sums = CoMoments::default();
    }

    fn partial(&self, group: u32, out: &mut Vec<u8>) {
        out.push(VERSION);
        self.groups[group as usize].encode(out);
    }

    fn merge(&mut self, group: u32, partial: &[u8]) -> Result<(), EvalError> {
        let mut bytes = Bytes::new(partial);
        if bytes.byte()? != VERSION {
            return Err(SketchDecodeError("it was written by another version of weir").into());
        }
        let other = CoMoments::decode(&mut bytes)?;
        bytes.end()?;
        let sums = &mut self.groups[group as usize];
        self.heap_bytes -= sums.bytes();
        sums.merge(&other);
        self.heap_bytes += sums.bytes();
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.groups.capacity() * size_of::<CoMoments>() + self.heap_bytes
    }
}
