//! `Istream`, `Dstream`, `Rstream`: a relation's changes, or its content, as a stream.

use std::collections::BTreeSet;
use std::ops::Range;

use weir_model::{Batch, Folded, Schema};

use super::bag::Bag;
use super::consolidate::Consolidate;
use crate::function::EvalError;
use crate::operator::{Operator, Span};
use crate::synopsis::gather::{batch_bytes, take_batch, whole_instants};
use crate::window::{Entrance, round_up};

/// `Istream` and `Dstream`: the net insertions, or retractions, of each instant, with their
/// multiplicity.
pub(super) struct Changes {
    consolidate: Option<Consolidate>,
    sign: i64,
}

impl Changes {
    /// Insertions (`sign` +1) or retractions (-1); `net`: the input's deltas are net already.
    pub(super) fn new(sign: i64, schema: &Schema, net: bool) -> Changes {
        Changes {
            consolidate: (!net).then(|| Consolidate::new(schema)),
            sign,
        }
    }

    fn pick(&self, batch: &Batch) -> Batch {
        let Some(weights) = &batch.weights else {
            return if self.sign > 0 {
                batch.clone()
            } else {
                Batch::empty(batch.columns.len())
            };
        };
        let mut rows = Vec::with_capacity(batch.len());
        for (row, &weight) in weights.iter().enumerate() {
            rows.extend((0..weight.saturating_mul(self.sign)).map(|_| row as u32));
        }
        Batch {
            weights: None,
            ..take_batch(
                &Batch {
                    weights: None,
                    ..batch.clone()
                },
                &rows,
            )
        }
    }
}

impl Operator for Changes {
    fn step(&mut self, inputs: &[&[Batch]], _: Span) -> Result<Vec<Batch>, EvalError> {
        let net = match &mut self.consolidate {
            Some(consolidate) => consolidate.net(inputs[0]),
            None => inputs[0].to_vec(),
        };
        Ok(net
            .iter()
            .map(|b| self.pick(b))
            .filter(|b| !b.is_empty())
            .collect())
    }

    fn bytes(&self) -> usize {
        self.consolidate.as_ref().map_or(0, Consolidate::bytes)
    }
}

/// `Rstream`: all of the relation, at every change or at every multiple of an interval.
pub(super) struct Content {
    consolidate: Option<Consolidate>,
    bag: Bag,
    trigger: Trigger,
}

enum Trigger {
    /// At the multiples of an interval.
    Every(i64),
    /// When the relation changes, and when a row enters it. The inputs after the relation are the
    /// sources below it, each with the entrances of the windows on the way, innermost first.
    Arrivals {
        entrances: Vec<Vec<Entrance>>,
        due: BTreeSet<i64>,
    },
}

/// Bytes of an instant in a tree, with its share of a node.
const DUE_BYTES: usize = 16;

impl Content {
    /// All of a relation of this schema, at the multiples of `every`; `net`: its deltas are net
    /// already.
    pub(super) fn every(every: i64, schema: &Schema, net: bool) -> Content {
        let consolidate = (!net).then(|| Consolidate::new(schema));
        Content {
            consolidate,
            bag: Bag::new(schema),
            trigger: Trigger::Every(every),
        }
    }

    /// All of the relation whenever it changes or a row enters it. The operator's inputs are the
    /// relation and then the sources below it; `entrances` are those of the windows on the way from
    /// each, innermost first.
    pub(super) fn at_arrivals(
        entrances: Vec<Vec<Entrance>>,
        schema: &Schema,
        net: bool,
    ) -> Content {
        Content {
            consolidate: (!net).then(|| Consolidate::new(schema)),
            bag: Bag::new(schema),
            trigger: Trigger::Arrivals {
                entrances,
                due: BTreeSet::new(),
            },
        }
    }

    /// Records when the arrived rows enter, and returns those instants up to `upto`.
    fn take_due(&mut self, inputs: &[&[Batch]], upto: i64) -> Vec<i64> {
        let Trigger::Arrivals { entrances, due } = &mut self.trigger else {
            return Vec::new();
        };
        for (batches, entrances) in inputs.iter().zip(entrances) {
            let mut last = None;
            for ts in batches.iter().flat_map(|b| b.ts.iter().copied()) {
                if last.replace(ts) != Some(ts) {
                    due.insert(enters(ts, entrances));
                }
            }
        }
        let later = due.split_off(&upto.saturating_add(1));
        std::mem::replace(due, later).into_iter().collect()
    }

    /// The relation at each of `ticks`, during which it does not change.
    fn snapshots_at(
        &self,
        ticks: impl Iterator<Item = i64>,
        out: &mut Shown,
        bytes_max: usize,
    ) -> Result<(), EvalError> {
        let rows = self.bag.len();
        if rows == 0 {
            return Ok(());
        }
        let columns = self.bag.rows();
        for tick in ticks {
            let batch = Batch::stream(vec![tick; rows], columns.clone());
            out.bytes += batch_bytes(&batch);
            if out.bytes > bytes_max {
                return Err(EvalError::new(format!(
                    "Rstream produces more than {bytes_max} bytes of rows in one step"
                ))
                .help("use a smaller window, or a longer EVERY"));
            }
            out.batches.push(batch);
        }
        Ok(())
    }
}

struct Shown {
    batches: Vec<Batch>,
    bytes: usize,
}

/// When a row of `ts` enters through windows with these entrances.
fn enters(ts: i64, entrances: &[Entrance]) -> i64 {
    let each = entrances.iter();
    each.fold(ts, |ts, entrance| entrance.of(ts))
}

/// The multiples of `every` in (after, upto], ascending.
fn ticks(after: i64, upto: i64, every: i64) -> impl Iterator<Item = i64> {
    let first = after.checked_add(1).map(|ts| round_up(ts, Some(every)));
    std::iter::successors(first, move |tick| tick.checked_add(every))
        .take_while(move |&tick| tick <= upto)
}

/// The row ranges of a batch's instants.
fn instants(batch: &Batch) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let at = *batch.ts.get(start)?;
        let end = start + batch.ts[start..].iter().take_while(|&&ts| ts == at).count();
        Some(std::mem::replace(&mut start, end)..end)
    })
}

impl Operator for Content {
    /// Groups stand for arrived rows; the windows over them change when their interval ends.
    fn take_folded(&mut self, input: usize, folded: &[Folded]) {
        if let (Trigger::Arrivals { entrances, due }, 1..) = (&mut self.trigger, input) {
            let some = folded.iter().filter(|f| f.groups() > 0);
            due.extend(some.map(|f| enters(f.end, &entrances[input - 1])));
        }
    }

    fn step(&mut self, inputs: &[&[Batch]], span: Span) -> Result<Vec<Batch>, EvalError> {
        let net = match &mut self.consolidate {
            Some(consolidate) => consolidate.net(inputs[0]),
            None => whole_instants(inputs[0]),
        };
        let mut out = Shown {
            batches: Vec::new(),
            bytes: 0,
        };
        let mut due = self
            .take_due(&inputs[1..], span.upto)
            .into_iter()
            .peekable();
        // Ticks up to here are processed.
        let mut done = span.after;
        for batch in &net {
            for rows in instants(batch) {
                let at = batch.ts[rows.start];
                // Until this instant the relation is unchanged.
                match self.trigger {
                    Trigger::Every(every) => {
                        self.snapshots_at(ticks(done, at - 1, every), &mut out, span.bytes_max)?
                    }
                    Trigger::Arrivals { .. } => {
                        let before: Vec<i64> =
                            std::iter::from_fn(|| due.next_if(|&ts| ts < at)).collect();
                        self.snapshots_at(before.into_iter(), &mut out, span.bytes_max)?;
                        due.next_if_eq(&at);
                    }
                }
                done = at - 1;
                self.bag.apply(&batch.slice(rows.start, rows.len()));
                if let Trigger::Arrivals { .. } = self.trigger {
                    self.snapshots_at(std::iter::once(at), &mut out, span.bytes_max)?;
                }
            }
        }
        match self.trigger {
            Trigger::Every(every) => {
                self.snapshots_at(ticks(done, span.upto, every), &mut out, span.bytes_max)?
            }
            Trigger::Arrivals { .. } => self.snapshots_at(due, &mut out, span.bytes_max)?,
        }
        Ok(whole_instants(&out.batches))
    }

    fn bound_span(&self, span: Span, rows_max: usize) -> i64 {
        let (Trigger::Every(every), rows @ 1..) = (&self.trigger, self.bag.len()) else {
            return span.upto;
        };
        let count = i64::try_from((rows_max / rows).max(1)).unwrap_or(i64::MAX);
        span.upto
            .min(span.after.saturating_add(every.saturating_mul(count)))
    }

    fn bytes(&self) -> usize {
        let due = match &self.trigger {
            Trigger::Every(_) => 0,
            // A delay keeps them for long.
            Trigger::Arrivals { due, .. } => due.len() * DUE_BYTES,
        };
        self.bag.bytes() + self.consolidate.as_ref().map_or(0, Consolidate::bytes) + due
    }
}
