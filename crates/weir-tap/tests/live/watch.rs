//! [`Watch`]: a live tap read by a separate thread while a test generates load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use weir_model::event::{io_schema, iostream_schema};
use weir_model::{Batch, Demand, Folded, Predicate, Schema, Test, Value};
use weir_tap::ebpf::{self, BlockTap, LiveOptions};
use weir_tap::{EventCount, Tap, TapEvent};

/// A tap that is being read.
pub struct Watch {
    stop: Arc<AtomicBool>,
    reader: JoinHandle<(BlockTap, Seen)>,
}

/// The output of the tap.
pub struct Seen {
    /// The rows of each demand.
    pub rows: Vec<Rows>,
    /// Groups, by demand.
    pub folded: Vec<(usize, Folded)>,
    /// The last heartbeat.
    pub upto: i64,
    /// The counts at the end.
    pub counts: Vec<EventCount>,
    /// Its description of itself.
    pub described: Vec<String>,
}

/// Rows of one stream.
pub struct Rows {
    schema: Schema,
    rows: Vec<Vec<Value>>,
}

/// A demand for these columns (all, if none are named) of the rows that pass the tests.
pub fn demand(stream: &str, columns: &str, tests: Vec<Test>) -> Demand {
    let schema = schema(stream);
    let named: Vec<usize> = columns
        .split_whitespace()
        .map(|c| schema.index(c))
        .collect();
    let columns = if named.is_empty() {
        (0..schema.len()).collect()
    } else {
        named
    };
    let clauses = vec![weir_model::Clause { tests }];
    Demand {
        stream: stream.into(),
        columns,
        predicate: Predicate { clauses },
        fold: None,
    }
}

fn schema(stream: &str) -> Schema {
    if stream == "IOstream" {
        iostream_schema()
    } else {
        io_schema()
    }
}

/// Options for one device only.
pub fn only(device: &str) -> LiveOptions {
    LiveOptions {
        devices: ebpf::DeviceChoice::Named(vec![device.into()]),
        ..LiveOptions::default()
    }
}

impl Watch {
    /// Opens a tap and reads it from now on.
    pub fn start(demands: Vec<Demand>, options: &LiveOptions) -> Watch {
        let tap = ebpf::open(&demands, options).unwrap_or_else(|e| panic!("{e}"));
        Watch::read(tap, &demands)
    }

    /// Reads an open tap from now on.
    pub fn read(tap: BlockTap, demands: &[Demand]) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let schemas = demands.iter().map(|d| schema(&d.stream)).collect();
        Watch {
            stop,
            reader: thread::spawn(move || read(tap, schemas, &stopped)),
        }
    }

    /// Reads until the tap's watermark has passed all events so far.
    pub fn stop(self) -> Seen {
        self.stop_open().1
    }

    /// The same, and returns the tap, which is still open.
    pub fn stop_open(self) -> (BlockTap, Seen) {
        self.stop.store(true, Ordering::Release);
        self.reader.join().expect("reading does not fail")
    }
}

fn read(mut tap: BlockTap, schemas: Vec<Schema>, stop: &AtomicBool) -> (BlockTap, Seen) {
    let empty = |schema| Rows {
        schema,
        rows: Vec::new(),
    };
    let mut rows: Vec<Rows> = schemas.into_iter().map(empty).collect();
    let mut batches: Vec<(usize, Batch)> = Vec::new();
    let mut groups = Vec::new();
    let mut until = None;
    let mut watermark = i64::MIN;
    loop {
        match tap
            .next(Duration::from_millis(20))
            .expect("a live tap goes on")
        {
            TapEvent::Rows { demand, batch } => {
                assert!(batch.ts.is_sorted(), "rows are in order of time");
                assert!(
                    batch.ts[0] > watermark,
                    "no row is older than what was passed"
                );
                batches.push((demand, batch));
            }
            TapEvent::Heartbeat(at) => {
                assert!(at >= watermark, "time does not go back");
                watermark = at;
                if until.is_some_and(|until| at > until) {
                    break;
                }
            }
            TapEvent::Folded { demand, folded } => {
                assert!(
                    folded.end > watermark,
                    "no group is of an interval that is over"
                );
                groups.push((demand, folded));
            }
            other => panic!("a live tap does not say {other:?}"),
        }
        if until.is_none() && stop.load(Ordering::Acquire) {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            until = Some(now.expect("after 1970").as_nanos() as i64);
        }
    }
    for (demand, batch) in batches {
        let more = (0..batch.len()).map(|row| batch.row(row));
        rows[demand].rows.extend(more);
    }
    let seen = Seen {
        rows,
        folded: groups,
        upto: watermark,
        counts: tap.counts(),
        described: tap.describe(),
    };
    (tap, seen)
}

impl Seen {
    /// A count; summed over causes and devices that are `None`.
    pub fn count(&self, counter: &str, cause: Option<&str>, device: Option<&str>) -> i64 {
        let of = |c: &&EventCount| {
            c.counter == counter
                && (cause.is_none() || c.cause == cause)
                && (device.is_none() || c.device.map(|d| d.as_str()) == device)
        };
        self.counts.iter().filter(of).map(|c| c.total).sum()
    }

    /// The rows of the only demand, after a check that nothing was lost.
    pub fn all(&self) -> &Rows {
        assert_eq!(
            self.count("events_lost", None, None),
            0,
            "{:?}",
            self.counts
        );
        assert_eq!(self.rows.len(), 1, "there is one demand");
        &self.rows[0]
    }
}

impl Rows {
    /// Each row, column by column.
    pub fn iter(&self) -> impl Iterator<Item = &[Value]> {
        self.rows.iter().map(Vec::as_slice)
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// The rows in which a column has this text.
    pub fn with(&self, column: &str, text: &str) -> Rows {
        self.filter(column, |value| *value == Value::text(text))
    }

    /// The rows in which a column has a value that passes.
    pub fn filter(&self, column: &str, passes: impl Fn(&Value) -> bool) -> Rows {
        let at = self.schema.index(column);
        let rows = self.rows.iter().filter(|r| passes(&r[at]));
        Rows {
            schema: self.schema.clone(),
            rows: rows.cloned().collect(),
        }
    }

    /// One value.
    pub fn value(&self, row: usize, column: &str) -> Value {
        self.rows[row][self.schema.index(column)].clone()
    }

    /// The values of a column.
    pub fn column(&self, column: &str) -> Vec<Value> {
        let at = self.schema.index(column);
        self.rows.iter().map(|r| r[at].clone()).collect()
    }

    /// The integers of a column that are not NULL.
    pub fn ints(&self, column: &str) -> Vec<i64> {
        let values = self.column(column).into_iter();
        let ints = values.filter_map(|v| match v {
            Value::Int(x) => Some(x),
            _ => None,
        });
        ints.collect()
    }

    /// The distinct texts of a column, in order.
    pub fn texts(&self, column: &str) -> Vec<String> {
        let mut texts: Vec<String> = self.column(column).iter().map(Value::to_string).collect();
        texts.sort();
        texts.dedup();
        texts
    }

    /// The sum of a column.
    pub fn sum(&self, column: &str) -> i64 {
        self.ints(column).into_iter().sum()
    }
}
