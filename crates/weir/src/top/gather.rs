//! [`Gather`]: puts the answers of the queries together again, instant by instant.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use weir_model::{Batch, Column, Nanos, Schema, Symbol, Value};
use weir_sink::{Sink, SinkError};

use super::columns::COLUMNS;
use super::queries::{Disk, LOSSES, TOTALS};

/// Lines of one instant that are kept; more are counted.
pub const LINES_MAX: usize = 10_000;

/// A line of the table: one kind of requests to one disk.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Whose they are.
    pub key: Key,
    /// The columns' values, as in [`COLUMNS`].
    pub values: Vec<Option<f64>>,
}

/// Whose requests a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The disk.
    pub disk: Disk,
    /// The command that submitted them, where that was asked.
    pub comm: Option<Symbol>,
    /// What they do.
    pub op: Option<Symbol>,
}

/// The histograms of one kind of requests to the disk that is looked into.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// What they do.
    pub op: Option<Symbol>,
    /// How many.
    pub requests: Option<f64>,
    /// For each of the histograms, the upper limits (the last bucket has none) and the counts.
    pub histograms: Vec<Vec<(Option<f64>, i64)>>,
}

/// Everything that is known of one interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tick {
    /// The end of the interval.
    pub at: Nanos,
    /// The table.
    pub lines: Vec<Line>,
    /// How many lines had no room.
    pub lines_left_out: usize,
    /// The columns of the totals; empty as long as there was no request.
    pub totals: Vec<Option<f64>>,
    /// The columns of the losses; empty as long as nothing was counted.
    pub losses: Vec<Option<f64>>,
    /// Of what is looked into: who does it, where that is not a VM.
    pub submitters: Vec<Line>,
    /// Of the disk that is looked into.
    pub bars: Vec<Bars>,
}

/// Which question an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The table.
    Lines,
    /// The totals.
    Totals,
    /// What was seen and missed.
    Losses,
    /// Who does what is no VM's.
    Submitters,
    /// A disk's histograms.
    Bars,
}

/// Takes ticks as they are complete; false when no more are wanted.
pub type Take = Box<dyn FnMut(Tick) -> Result<bool, SinkError> + Send>;

/// The ticks that are being put together.
pub struct Gather {
    ticks: BTreeMap<Nanos, Tick>,
    take: Take,
}

impl Gather {
    /// Gives complete ticks to `take`, in order.
    pub fn new(take: Take) -> Arc<Mutex<Gather>> {
        Arc::new(Mutex::new(Gather {
            ticks: BTreeMap::new(),
            take,
        }))
    }

    fn add(&mut self, part: Part, places: &Places, batch: &Batch) {
        for row in 0..batch.len() {
            let at = batch.ts[row];
            let tick = self.ticks.entry(at).or_default();
            tick.at = at;
            match part {
                Part::Lines if tick.lines.len() >= LINES_MAX => tick.lines_left_out += 1,
                Part::Lines => tick.lines.push(places.line(batch, row)),
                Part::Submitters if tick.submitters.len() >= LINES_MAX => {}
                Part::Submitters => tick.submitters.push(places.line(batch, row)),
                Part::Totals => tick.totals = places.numbers(batch, row),
                Part::Losses => tick.losses = places.numbers(batch, row),
                Part::Bars => tick.bars.push(bars(batch, row)),
            }
        }
    }

    /// Hands on what is complete. Called between instants, when every query has passed those that
    /// were told.
    fn hand_on(&mut self) -> Result<(), SinkError> {
        for (_, tick) in std::mem::take(&mut self.ticks) {
            // The losses tell the time before anything was asked of the disks.
            if !(self.take)(tick)? {
                return Err(SinkError::Closed {
                    name: "the table".into(),
                });
            }
        }
        Ok(())
    }
}

/// The sink of one question.
pub struct PartSink {
    part: Part,
    /// Earlier answers are about less than an interval.
    since: Nanos,
    places: Places,
    gather: Arc<Mutex<Gather>>,
}

impl PartSink {
    /// Adds an answer with columns as in `schema`, from instant `since` on, to what `gather` puts
    /// together.
    pub fn boxed(
        part: Part,
        schema: &Schema,
        since: Nanos,
        gather: &Arc<Mutex<Gather>>,
    ) -> Box<dyn Sink> {
        Box::new(PartSink {
            part,
            since,
            places: Places::new(part, schema),
            gather: gather.clone(),
        })
    }

    fn gather(&self) -> std::sync::MutexGuard<'_, Gather> {
        self.gather.lock().expect("no panic while held")
    }
}

impl Sink for PartSink {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let mut gather = self.gather.lock().expect("no panic while held");
        let from = batch.ts.partition_point(|&ts| ts < self.since);
        let whole = batch.slice(from, batch.len() - from);
        gather.add(self.part, &self.places, &whole);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.gather().hand_on()
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        // A question that is given up does not complete the instant of the others.
        match self.part {
            Part::Submitters | Part::Bars => Ok(()),
            _ => self.gather().hand_on(),
        }
    }
}

/// Where an answer has the columns of its part; not every question asks for all of them.
struct Places {
    keys: [Option<usize>; 5],
    values: Vec<Option<usize>>,
}

impl Places {
    fn new(part: Part, schema: &Schema) -> Places {
        let place = |name: &str| schema.find(name).map(|(at, _)| at);
        let columns: Vec<&str> = COLUMNS.iter().map(|c| c.name).collect();
        let values = match part {
            Part::Lines | Part::Submitters => &columns[..],
            Part::Totals => &TOTALS,
            Part::Losses => &LOSSES,
            Part::Bars => &[],
        };
        Places {
            keys: ["vm", "vdisk", "pdisk", "comm", "op"].map(place),
            values: values.iter().map(|name| place(name)).collect(),
        }
    }

    fn line(&self, batch: &Batch, row: usize) -> Line {
        let text = |at: Option<usize>| match batch.columns[at?].value(row) {
            Value::Text(symbol) => Some(symbol),
            _ => None,
        };
        let [vm, vdisk, pdisk, comm, op] = self.keys.map(text);
        let disk = Disk { vm, vdisk, pdisk };
        Line {
            key: Key { disk, comm, op },
            values: self.numbers(batch, row),
        }
    }

    fn numbers(&self, batch: &Batch, row: usize) -> Vec<Option<f64>> {
        let values = self.values.iter();
        values
            .map(|at| number(&batch.columns[(*at)?], row))
            .collect()
    }
}

fn number(column: &Column, row: usize) -> Option<f64> {
    as_number(&column.value(row))
}

fn as_number(value: &Value) -> Option<f64> {
    match value {
        Value::Int(x) => Some(*x as f64),
        Value::Float(x) => Some(*x),
        _ => None,
    }
}

fn bars(batch: &Batch, row: usize) -> Bars {
    let tally = |column: &Column| match column.value(row) {
        Value::Tally(tally) => {
            let buckets = tally.0.iter();
            buckets.map(|(limit, n)| (as_number(limit), *n)).collect()
        }
        _ => Vec::new(),
    };
    Bars {
        op: match batch.columns[0].value(row) {
            Value::Text(op) => Some(op),
            _ => None,
        },
        requests: number(&batch.columns[1], row),
        histograms: batch.columns[2..].iter().map(tally).collect(),
    }
}
