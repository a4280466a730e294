//! [`Host`]: a host with its clock, its events, and one agent process after the other.

use fastrand::Rng;
use weir_agent::RowConversion;
use weir_model::{Batch, Column, Nanos, Schema, Symbol, Value};
use weir_wire::{ChannelTally, EarlierProcess};

use crate::process::Process;
use crate::queries::{SOURCES, catalog};
use crate::scenario::Scenario;
use crate::{MS, SECOND};

/// The interval between two steps of a process.
const HEARTBEAT: Nanos = 50 * MS;

/// The column of the request's number.
const REQ_ID: usize = 3;

/// A row that went into an agent's core.
#[derive(Clone, Debug)]
pub struct Row {
    /// The number of the process.
    pub process: usize,
    /// Which of [`SOURCES`].
    pub source: usize,
    /// When, by the monitor's clock as the process knew it.
    pub ts: Nanos,
    /// Inserted or retracted.
    pub weight: i64,
    /// The values.
    pub values: Vec<Value>,
}

/// A host. Its processes are numbered over all hosts.
pub struct Host {
    /// Its name.
    pub name: String,
    /// Its number.
    number: usize,
    /// How far its clock is off when the simulation begins, and how fast it drifts.
    offset_ns: Nanos,
    drift_ppm: i64,
    began: Nanos,
    /// The process that runs, and its number.
    pub process: Option<(usize, Process)>,
    /// When the next process begins.
    pub begins_at: Nanos,
    /// What earlier processes wrote down.
    earlier: Vec<EarlierProcess>,
    /// What went into the cores of its processes.
    pub rows: Vec<Row>,
    /// Requests of stream `s` that the tap lost.
    pub missed: u64,
    /// Where rows of each stream become the monitor's.
    conversions: Vec<RowConversion>,
    schema: Schema,
    /// What relation `r` holds.
    content: Vec<Vec<Value>>,
    /// Up to here, by the host's true time, all rows are in.
    complete_to: Nanos,
    /// The last row's time of each source, by the host's true time.
    last_ts: [Nanos; 3],
    steps_at: Nanos,
    reports_at: Nanos,
    dials_at: Nanos,
}

impl Host {
    /// A host whose first process begins soon.
    pub fn new(number: usize, scenario: &Scenario, now: Nanos, random: &mut Rng) -> Host {
        let offset = scenario.clock_offset_max;
        let drift = scenario.clock_drift_ppm_max;
        Host {
            name: format!("h{number}"),
            number,
            offset_ns: random.i64(-offset..=offset),
            drift_ppm: random.i64(-drift..=drift),
            began: now,
            process: None,
            begins_at: now + random.i64(0..SECOND),
            earlier: Vec::new(),
            rows: Vec::new(),
            missed: 0,
            conversions: Vec::new(),
            schema: (*catalog().declarations[0].schema).clone(),
            content: Vec::new(),
            complete_to: now,
            last_ts: [now; 3],
            steps_at: now,
            reports_at: now,
            dials_at: now,
        }
    }

    /// What its clock shows at the true time `at`.
    pub fn shown(&self, at: Nanos) -> Nanos {
        at + self.offset_ns + (at - self.began) * self.drift_ppm / 1_000_000
    }

    /// Begins process number `number`.
    pub fn begin(&mut self, number: usize, scenario: &Scenario, now: Nanos) {
        let process = Process::new(number as u64 + 1, self.earlier.clone(), scenario);
        self.process = Some((number, process));
        let all: Vec<usize> = (0..self.schema.len()).collect();
        let conversion = |_| {
            let mut conversion = RowConversion::new(Symbol::new(&self.name), &self.schema, &all);
            conversion.first_number = (number as i64 + 1) * 10;
            conversion
        };
        self.conversions = (0..2).map(conversion).collect();
        self.content.clear();
        self.complete_to = now;
        (self.steps_at, self.dials_at, self.reports_at) = (now, now, now);
    }

    /// The process ends at once. What it produced is on disk, and what it had not sent is gone. The
    /// files of earlier processes are gone if the monitor needs them no more.
    pub fn kill(&mut self, begins_at: Nanos) {
        if let Some((_, process)) = self.process.take() {
            if process.has_acks {
                self.earlier.clear();
            }
            let tallies = process.core.tallies();
            let tallies = tallies.filter(|tally| tally.produced > 0 || tally.lost > 0);
            let tallies: Vec<ChannelTally> = tallies.collect();
            if !tallies.is_empty() {
                self.earlier.push(EarlierProcess {
                    instance: process.instance,
                    tallies,
                });
            }
            self.begins_at = begins_at;
        }
    }

    /// True if the process is to dial now.
    pub fn dials(&mut self, now: Nanos, random: &mut Rng) -> bool {
        let is_free = self
            .process
            .as_ref()
            .is_some_and(|(_, p)| p.link().is_none());
        let dials = is_free && self.dials_at <= now;
        if dials {
            self.dials_at = now + random.i64(100 * MS..SECOND);
        }
        dials
    }

    /// One step of the process: orders, rows, messages.
    pub fn run(&mut self, now: Nanos, has_rows: bool, random: &mut Rng) {
        let shown = self.shown(now);
        let Some((_, process)) = &mut self.process else {
            return;
        };
        if !process.clock.is_synchronised() {
            return;
        }
        let was_running = process.is_running();
        let has_started = process.follow_orders(process.clock.to_monitor(shown));
        process.use_disk(random);
        if !was_running || has_started {
            // Fragments see what comes after their start.
            return self.complete(now);
        }
        if self.steps_at > now || process.is_ending {
            return;
        }
        self.steps_at = now + HEARTBEAT / 2 + random.i64(0..HEARTBEAT);
        if has_rows && process.is_running() {
            self.make_rows(now, random);
        }
        self.complete(now - random.i64(0..20) * MS);
        let (_, process) = self.process.as_mut().expect("it runs");
        if self.reports_at <= now {
            self.reports_at = now + SECOND;
            process.report();
        }
    }

    /// All rows up to the true time `at` are in.
    fn complete(&mut self, at: Nanos) {
        self.complete_to = at.max(self.complete_to);
        let shown = self.shown(self.complete_to);
        let (_, process) = self.process.as_mut().expect("it runs");
        let to_monitor = |at| process.clock.to_monitor(at);
        let mut watermark = to_monitor(shown);
        for conversion in &mut self.conversions {
            watermark = watermark.max(conversion.reached(shown, to_monitor));
        }
        process.step(watermark);
    }

    /// The process ends in order.
    pub fn end(&mut self, now: Nanos) {
        if let Some((_, process)) = &self.process
            && process.is_running()
        {
            self.complete(now);
            let shown = self.shown(now);
            let (_, process) = self.process.as_mut().expect("it runs");
            let at = process.clock.to_monitor(shown);
            process.end(at);
        }
    }

    /// Rows of each source since all were in.
    fn make_rows(&mut self, now: Nanos, random: &mut Rng) {
        for source in 0..SOURCES.len() {
            let count = random.usize(0..5).saturating_sub(2);
            let first = self.last_ts[source].max(self.complete_to + 1);
            if count == 0 || first > now {
                continue;
            }
            let mut ts: Vec<Nanos> = (0..count).map(|_| random.i64(first..=now)).collect();
            if random.u32(0..4) == 0 {
                ts.fill(now);
            }
            ts.sort();
            self.last_ts[source] = *ts.last().expect("there are rows");
            let shown: Vec<Nanos> = ts.iter().map(|ts| self.shown(*ts)).collect();
            match source {
                2 => self.change_relation(&shown, random),
                _ => self.push_stream(source, &shown, random),
            }
        }
        if random.u32(0..200) == 0 {
            let requests = random.u64(1..5);
            self.missed += requests;
            let (_, process) = self.process.as_mut().expect("it runs");
            process.core.missed("s", requests, "ring_full");
        }
    }

    fn push_stream(&mut self, source: usize, ts: &[Nanos], random: &mut Rng) {
        let first = self.rows.len();
        let values = (0..)
            .zip(ts)
            .map(|(i, ts)| self.values(first + i, *ts, random));
        let values: Vec<Vec<Value>> = values.collect();
        let (_, process) = self.process.as_ref().expect("it runs");
        let clock = &process.clock;
        let now = clock.to_monitor(*ts.last().expect("there are rows"));
        let batch = batch(&self.schema, ts, &values, None);
        let batch = self.conversions[source].rows(&batch, now, |at| clock.to_monitor(at));
        self.push(source, batch);
    }

    fn change_relation(&mut self, ts: &[Nanos], random: &mut Rng) {
        let (number, process) = self.process.as_ref().expect("it runs");
        let number = *number;
        let ts = process.clock.to_monitor(ts[0]).max(process.core.time() + 1);
        let last = self.rows.iter().rev().find(|row| row.source == 2);
        let ts = last.map_or(ts, |row| ts.max(row.ts));
        let (values, weight) = match random.u32(0..3) {
            0 if !self.content.is_empty() => {
                let gone = random.usize(..self.content.len());
                (self.content.swap_remove(gone), -1)
            }
            _ => {
                let mut values = self.values(self.rows.len(), ts, random);
                // A request is of one process, in all sources.
                values[REQ_ID] = Value::Int((number as i64 + 1) * 10 + random.i64(0..3));
                self.content.push(values.clone());
                (values, 1)
            }
        };
        let batch = batch(&self.schema, &[ts], &[values], Some(weight));
        self.push(2, batch);
    }

    fn push(&mut self, source: usize, batch: Batch) {
        let (number, process) = self.process.as_mut().expect("it runs");
        for row in 0..batch.len() {
            self.rows.push(Row {
                process: *number,
                source,
                ts: batch.ts[row],
                weight: batch.weight(row),
                values: batch.row(row),
            });
        }
        process.core.push(SOURCES[source], batch);
    }

    /// Values of row number `number` of this host.
    fn values(&self, number: usize, ts: Nanos, random: &mut Rng) -> Vec<Value> {
        let maybe =
            |values: &[Value], random: &mut Rng| values[random.usize(..values.len())].clone();
        let ints = [Value::Int(1), Value::Int(0), Value::Int(2), Value::Null];
        let texts = [Value::text("y"), Value::text("h1"), Value::Null];
        let floats = [1.0, 0.5, -2.0].map(Value::Float);
        vec![
            maybe(&ints, random),
            maybe(&texts, random),
            Value::text(&self.name),
            Value::Int(random.i64(0..3)),
            maybe(&floats, random),
            Value::Int(ts + random.i64(-3..3) * SECOND),
            Value::Int(ts),
            Value::Int((self.number * 1_000_000 + number) as i64),
        ]
    }
}

/// Rows as columns.
fn batch(schema: &Schema, ts: &[Nanos], rows: &[Vec<Value>], weight: Option<i64>) -> Batch {
    let column = |at: usize| {
        let values = rows.iter().map(|row| row[at].clone());
        Column::from_values(schema[at].ty, values)
    };
    let batch = Batch::stream(ts.to_vec(), (0..schema.len()).map(column).collect());
    Batch {
        weights: weight.map(|weight| vec![weight; ts.len()].into()),
        ..batch
    }
}
