//! [`TickAssembler`]: combines the results of the queries, instant by instant.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use weir_model::{Batch, Column, Nanos, Schema, Symbol, Value};
use weir_sink::{Sink, SinkError};

use super::columns::{COLUMNS, index};
use super::levels::{TopFile, TopProcess};
use super::queries::{ANY_DISK, LOSSES, TOTALS, TopDisk};

/// Maximum number of lines of one instant; further ones are counted.
pub const LINES_MAX: usize = 10_000;

/// A line of the table: the requests of one op to one disk, of a file, or of a process.
#[derive(Clone, Debug, PartialEq)]
pub struct TopLine {
    /// Its key.
    pub key: Key,
    /// The values of the columns, as in [`COLUMNS`].
    pub values: Vec<Option<f64>>,
}

/// The key of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The disk; empty for lines of files and processes.
    pub disk: TopDisk,
    /// The file, of lines of files.
    pub file: Option<TopFile>,
    /// The process, of lines of processes.
    pub process: Option<TopProcess>,
    /// The command that submitted them, if it is requested.
    pub comm: Option<Symbol>,
    /// The op.
    pub op: Option<Symbol>,
}

impl Key {
    /// The key of nothing.
    pub const EMPTY: Key = Key {
        disk: ANY_DISK,
        file: None,
        process: None,
        comm: None,
        op: None,
    };
}

/// The histograms of one op for the selected disk.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// The op.
    pub op: Option<Symbol>,
    /// The number of requests.
    pub requests: Option<f64>,
    /// For each of the histograms, the upper limits (the last bucket has none) and the counts.
    pub histograms: Vec<Vec<(Option<f64>, i64)>>,
}

/// The data of one interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tick {
    /// The end of the interval.
    pub at: Nanos,
    /// The table.
    pub lines: Vec<TopLine>,
    /// The number of lines beyond the maximum.
    pub lines_omitted: usize,
    /// Requests were lost: rates and sums are lower bounds.
    pub lower_bound: bool,
    /// The columns of the totals; empty until the first request.
    pub totals: Vec<Option<f64>>,
    /// The columns of the losses; empty until something was counted.
    pub losses: Vec<Option<f64>>,
    /// What the page cache did for files.
    pub cached: Vec<TopLine>,
    /// The lines of the current view, if it has a query of its own: submitters, files, processes.
    pub details: Vec<TopLine>,
    /// The number of those beyond the maximum.
    pub details_omitted: usize,
    /// Those of the selected disk.
    pub bars: Vec<Bars>,
}

impl Tick {
    /// Adds what the page cache did to the lines of the files. A file of which it served
    /// everything has a line without requests.
    fn with_cached(mut self) -> Tick {
        let cached = std::mem::take(&mut self.cached).into_iter();
        let mut cached: HashMap<Key, TopLine> = cached.map(|line| (line.key, line)).collect();
        for line in &mut self.lines {
            for (own, other) in line.values.iter_mut().zip(
                cached
                    .remove(&line.key)
                    .into_iter()
                    .flat_map(|line| line.values),
            ) {
                *own = own.or(other);
            }
        }
        let served = |line: &TopLine| line.values[index("cache")].is_some_and(|bytes| bytes > 0.0);
        let mut rest: Vec<TopLine> = cached.into_values().filter(served).collect();
        rest.iter_mut().for_each(|line| {
            for name in ["iops", "throughput", "load"] {
                line.values[index(name)] = Some(0.0);
            }
        });
        let room = LINES_MAX.saturating_sub(self.lines.len());
        self.lines_omitted += rest.len().saturating_sub(room);
        rest.truncate(room);
        self.lines.append(&mut rest);
        self
    }
}

/// The query of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryPart {
    /// The table.
    Lines,
    /// The totals.
    Totals,
    /// The observed and missed events.
    Losses,
    /// What the page cache did for files.
    Cached,
    /// The lines of a view that has a query of its own.
    Details,
    /// A disk's histograms.
    Bars,
}

/// Receives complete ticks; returns false to end.
pub type TickHandler = Box<dyn FnMut(Tick) -> Result<bool, SinkError> + Send>;

/// The ticks that are being assembled.
pub struct TickAssembler {
    ticks: BTreeMap<Nanos, Tick>,
    handler: TickHandler,
}

impl TickAssembler {
    /// Passes complete ticks to `handler`, in order.
    pub fn new(handler: TickHandler) -> Arc<Mutex<TickAssembler>> {
        Arc::new(Mutex::new(TickAssembler {
            ticks: BTreeMap::new(),
            handler,
        }))
    }

    fn add(&mut self, part: QueryPart, columns: &ColumnPositions, batch: &Batch) {
        for row in 0..batch.len() {
            let at = batch.ts[row];
            let tick = self.ticks.entry(at).or_default();
            tick.at = at;
            match part {
                QueryPart::Lines if tick.lines.len() >= LINES_MAX => tick.lines_omitted += 1,
                QueryPart::Lines => tick.lines.push(columns.line(batch, row)),
                QueryPart::Cached if tick.cached.len() >= LINES_MAX => {}
                QueryPart::Cached => tick.cached.push(columns.line(batch, row)),
                QueryPart::Details if tick.details.len() >= LINES_MAX => tick.details_omitted += 1,
                QueryPart::Details => tick.details.push(columns.line(batch, row)),
                QueryPart::Totals => tick.totals = columns.numbers(batch, row),
                QueryPart::Losses => tick.losses = columns.numbers(batch, row),
                QueryPart::Bars => tick.bars.push(bars(batch, row)),
            }
        }
    }

    /// Passes on complete ticks. Called between instants, when every query has passed those that
    /// were reported.
    fn pass_complete(&mut self) -> Result<(), SinkError> {
        for (_, tick) in std::mem::take(&mut self.ticks) {
            // The losses are reported before the first result for the disks.
            let tick = match tick.cached.is_empty() {
                true => tick,
                false => tick.with_cached(),
            };
            if !(self.handler)(tick)? {
                return Err(SinkError::Closed {
                    name: "the table".into(),
                });
            }
        }
        Ok(())
    }
}

/// The sink of one query.
pub struct PartSink {
    part: QueryPart,
    /// Earlier results cover less than an interval.
    since: Nanos,
    columns: ColumnPositions,
    gather: Arc<Mutex<TickAssembler>>,
}

impl PartSink {
    /// Adds a result with columns as in `schema`, from instant `since` on, to `gather`.
    pub fn boxed(
        part: QueryPart,
        schema: &Schema,
        since: Nanos,
        gather: &Arc<Mutex<TickAssembler>>,
    ) -> Box<dyn Sink> {
        Box::new(PartSink {
            part,
            since,
            columns: ColumnPositions::new(part, schema),
            gather: gather.clone(),
        })
    }

    fn gather(&self) -> std::sync::MutexGuard<'_, TickAssembler> {
        self.gather.lock().expect("no panic while locked")
    }
}

impl Sink for PartSink {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let mut gather = self.gather.lock().expect("no panic while locked");
        let from = batch.ts.partition_point(|&ts| ts < self.since);
        let whole = batch.slice(from, batch.len() - from);
        gather.add(self.part, &self.columns, &whole);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.gather().pass_complete()
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        // A query that was ended does not complete the instant of the others.
        match self.part {
            QueryPart::Details | QueryPart::Bars => Ok(()),
            _ => self.gather().pass_complete(),
        }
    }
}

/// The positions of a part's columns in a result; not every query has all of them.
struct ColumnPositions {
    keys: [Option<usize>; 10],
    values: Vec<Option<usize>>,
}

impl ColumnPositions {
    fn new(part: QueryPart, schema: &Schema) -> ColumnPositions {
        let position = |name: &str| schema.find(name).map(|(at, _)| at);
        let columns: Vec<&str> = COLUMNS.iter().map(|c| c.name).collect();
        let values = match part {
            QueryPart::Lines | QueryPart::Cached | QueryPart::Details => &columns[..],
            QueryPart::Totals => &TOTALS,
            QueryPart::Losses => &LOSSES,
            QueryPart::Bars => &[],
        };
        ColumnPositions {
            keys: [
                "vm", "vdisk", "pdisk", "comm", "op", "fs", "path", "inode", "pid", "cgroup",
            ]
            .map(position),
            values: values.iter().map(|name| position(name)).collect(),
        }
    }

    fn line(&self, batch: &Batch, row: usize) -> TopLine {
        let value = |at: Option<usize>| batch.columns[at?].value(row).into();
        let text = |at: Option<usize>| match value(at) {
            Some(Value::Text(symbol)) => Some(symbol),
            _ => None,
        };
        let int = |at: Option<usize>| match value(at) {
            Some(Value::Int(number)) => Some(number),
            _ => None,
        };
        let [vm, vdisk, pdisk, comm, op, fs, path, inode, pid, cgroup] = self.keys;
        let file = inode.map(|_| TopFile {
            pdisk: text(pdisk),
            fs: text(fs),
            path: text(path),
            inode: int(inode),
        });
        let process = pid.map(|_| TopProcess {
            vm: text(vm),
            pid: int(pid),
            comm: text(comm),
            cgroup: text(cgroup),
        });
        let key = match (file, process) {
            (None, None) => Key {
                disk: TopDisk {
                    vm: text(vm),
                    vdisk: text(vdisk),
                    pdisk: text(pdisk),
                },
                comm: text(comm),
                op: text(op),
                ..Key::EMPTY
            },
            _ => Key {
                file,
                process,
                ..Key::EMPTY
            },
        };
        TopLine {
            key,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_cache_is_joined_by_file() {
        let file = |path: &str, columns: &[(&str, f64)]| {
            let mut values = vec![None; COLUMNS.len()];
            for (name, value) in columns {
                values[index(name)] = Some(*value);
            }
            let key = Key {
                file: Some(TopFile {
                    pdisk: Some(Symbol::new("/dev/sda")),
                    fs: Some(Symbol::new("ext4")),
                    path: Some(Symbol::new(path)),
                    inode: Some(path.len() as i64),
                }),
                ..Key::EMPTY
            };
            TopLine { key, values }
        };
        let tick = Tick {
            lines: vec![file("/a", &[("iops", 5.0)]), file("/bb", &[("iops", 7.0)])],
            cached: vec![
                file("/bb", &[("cached", 25.0), ("cache", 4096.0)]),
                file("/ccc", &[("cached", 100.0), ("cache", 8192.0)]),
                file("/dddd", &[("cached", 0.0), ("cache", 0.0)]),
            ],
            ..Tick::default()
        };
        let tick = tick.with_cached();
        let seen = tick.lines.iter().map(|line| {
            let value = |name| line.values[index(name)];
            let path = line.key.file.unwrap().path.unwrap();
            (path.as_str(), value("iops"), value("cached"))
        });
        let seen: Vec<_> = seen.collect();
        assert_eq!(
            seen,
            [
                ("/a", Some(5.0), None),
                ("/bb", Some(7.0), Some(25.0)),
                ("/ccc", Some(0.0), Some(100.0)),
            ]
        );
    }
}
