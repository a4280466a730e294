//! A run of rules over rows that a test makes, with the engine and without taps.

use std::sync::{Arc, Mutex};

use weir_alert::board::{AlertConsumer, Board};
use weir_alert::event::{AlertEvent, AlertKey};
use weir_alert::instances::RuleRun;
use weir_alert::machine::SavedMachine;
use weir_model::{Batch, Catalog, Column, Field, NANOS_PER_SECOND, Value};
use weir_query::alert::{AlertRule, compile_alerts};
use weir_query::engine::{Engine, EngineOptions, EngineOutput};
use weir_query::{CheckOptions, Dialect};
use weir_sink::{SinkError, Watermark};

/// A row of a source.
#[derive(Clone, Debug)]
pub struct Row {
    source: &'static str,
    at: i64,
    columns: Vec<(String, Value)>,
    weight: i64,
}

impl Row {
    pub fn with_weight(self, weight: i64) -> Row {
        Row { weight, ..self }
    }
}

/// A row with these columns, NULL in the others.
pub fn row(source: &'static str, at_s: f64, columns: &[(&str, Value)]) -> Row {
    let columns = columns
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()));
    Row {
        source,
        at: ns(at_s),
        columns: columns.collect(),
        weight: 1,
    }
}

/// A completed request of `/dev/sda`.
pub fn io(at_s: f64, columns: &[(&str, Value)]) -> Row {
    let mut all = vec![
        ("pdisk", Value::text("/dev/sda")),
        ("op", Value::text("r")),
        ("type", Value::text("R")),
        ("bytes", Value::Int(4_096)),
        ("in_flight", Value::Int(1)),
        ("wait", Value::Int(10_000)),
        ("service", Value::Int(100_000)),
        ("latency", Value::Int(110_000)),
    ];
    for (name, value) in columns {
        all.retain(|(other, _)| other != name);
        all.push((name, value.clone()));
    }
    row("IO", at_s, &all)
}

/// The state to which an event changes.
pub fn state(line: &str) -> &str {
    line.rsplit("-> ").next().expect("a line has an arrow")
}

fn ns(seconds: f64) -> i64 {
    (seconds * 1e9).round() as i64
}

/// A run that was not started.
pub struct Scenario {
    pub rules: Vec<AlertRule>,
    /// Watermarks beside those of each second.
    pub cuts: Vec<f64>,
    /// Requests missed from a time on.
    pub missed: Vec<(f64, i64)>,
    /// The hosts whose agents are silent from a time on.
    pub silent: Vec<(f64, &'static [&'static str])>,
    pub begin_s: f64,
    /// When the query of a rule ends with an error, and the position of the rule.
    pub failing: Option<(f64, usize)>,
    pub saved: Option<SavedMachine<AlertKey>>,
}

/// What a run gave.
pub struct Outcome {
    /// `seconds alert{labels} from -> to`.
    pub lines: Vec<String>,
    /// The annotations `summary`.
    pub summaries: Vec<String>,
    pub fired_at: Option<i64>,
    pub saved: Option<SavedMachine<AlertKey>>,
}

struct Collector(Arc<Mutex<Vec<AlertEvent>>>);

impl AlertConsumer for Collector {
    fn event(&mut self, event: &AlertEvent) -> Result<(), SinkError> {
        self.0.lock().unwrap().push(event.clone());
        Ok(())
    }
}

impl Scenario {
    pub fn new(text: &str) -> Scenario {
        let options = CheckOptions {
            second: NANOS_PER_SECOND,
            dialect: Dialect::Cql,
            live: true,
        };
        let file = compile_alerts(text, &catalog(), &options);
        Scenario {
            rules: file.expect("valid alerts").rules,
            cuts: Vec::new(),
            missed: Vec::new(),
            silent: Vec::new(),
            begin_s: 0.0,
            saved: None,
            failing: None,
        }
    }

    /// Runs the rows, which need no order, to the end.
    pub fn run(self, rows: &[Row], end_s: f64) -> Outcome {
        let catalog = catalog();
        let mut engine = Engine::new(EngineOptions::default());
        let ids: Vec<_> = self
            .rules
            .iter()
            .map(|rule| engine.add(&rule.plan))
            .collect();
        let mut saved = self.saved;
        let runs = self
            .rules
            .iter()
            .map(|rule| RuleRun::new(rule.clone(), saved.take()));
        let events: Arc<Mutex<Vec<AlertEvent>>> = Arc::default();
        let (board, mut sinks) = Board::new(runs.collect(), Box::new(Collector(events.clone())));
        engine.begin(ns(self.begin_s));
        let mut rows = rows.to_vec();
        rows.sort_by_key(|row| row.at);
        let seconds = (self.begin_s as i64 + 1..=end_s as i64).map(|s| s as f64);
        let mut cuts: Vec<i64> = seconds.chain(self.cuts.iter().copied()).map(ns).collect();
        cuts.retain(|cut| *cut > ns(self.begin_s));
        cuts.sort_unstable();
        let mut next = 0;
        for cut in cuts {
            while let Some(row) = rows.get(next).filter(|row| row.at <= cut) {
                let same = |other: &Row| other.source == row.source && other.at <= cut;
                let run = rows[next..].iter().take_while(|other| same(other)).count();
                engine.push(row.source, batch(&catalog, &rows[next..next + run]));
                next += run;
            }
            engine.heartbeat_all(cut);
            engine.step(&mut |output| match output {
                EngineOutput::Rows { query, batch } => {
                    let sink = ids.iter().position(|id| *id == query).unwrap();
                    sinks[sink].write(&batch).unwrap();
                }
                EngineOutput::Failed { error, .. } => panic!("{error}"),
            });
            let missed = self.missed.iter().filter(|(at, _)| ns(*at) <= cut);
            let watermark = Watermark {
                begin: ns(self.begin_s),
                at: engine.now(),
                missed: missed.map(|(_, count)| count).sum(),
            };
            let silent = self.silent.iter().rfind(|(at, _)| ns(*at) <= cut);
            let silent = silent.map_or(&[][..], |(_, hosts)| hosts);
            let silent = silent.iter().map(|host| (*host).to_owned()).collect();
            let mut board = board.lock().unwrap();
            for rule in board.ids().to_vec() {
                board.set_silent(rule, &silent);
            }
            let has_failed = |rule: usize| {
                let mut failing = self.failing.iter();
                failing.any(|(at, of)| ns(*at) <= cut && *of == rule)
            };
            for (at, rule) in board.ids().to_vec().into_iter().enumerate() {
                if has_failed(at) {
                    board.fail(rule, "too much memory").unwrap();
                }
            }
            drop(board);
            for (rule, sink) in sinks.iter_mut().enumerate() {
                if !has_failed(rule) {
                    sink.advance(&watermark).unwrap();
                }
            }
        }
        let events = events.lock().unwrap();
        let line = |event: &AlertEvent| {
            let (from, to) = (event.from.name(), event.to.name());
            let at = event.at as f64 / 1e9;
            format!("{at:.3} {} {from} -> {to}", event.instance())
        };
        let summary = |event: &AlertEvent| {
            let mut texts = event.annotations.iter();
            texts
                .find(|(name, _)| name == "summary")
                .map(|(_, text)| text.clone())
        };
        Outcome {
            lines: events.iter().map(line).collect(),
            summaries: events.iter().filter_map(summary).collect(),
            fired_at: events.last().and_then(|event| event.fired_at),
            saved: board.lock().unwrap().rules().first().map(RuleRun::saved),
        }
    }
}

/// The streams of a live host.
fn catalog() -> Catalog {
    weir_tap::live::capabilities().catalog()
}

/// Rows of one source.
fn batch(catalog: &Catalog, rows: &[Row]) -> Batch {
    let source = catalog.find(rows[0].source).expect("a built-in source");
    let fields = &source.schema.fields;
    for (name, _) in rows.iter().flat_map(|row| &row.columns) {
        let known = fields.iter().any(|field| field.name == *name);
        assert!(known, "{} has no column {name}", source.name);
    }
    let value = |row: &Row, name: &str| {
        let given = row.columns.iter().find(|(column, _)| column == name);
        match name {
            "ts" => Value::Int(row.at),
            _ => given.map_or(Value::Null, |(_, value)| value.clone()),
        }
    };
    let column = |field: &Field| {
        let values = rows.iter().map(|row| value(row, &field.name));
        Column::from_values(field.ty, values)
    };
    let times: Vec<i64> = rows.iter().map(|row| row.at).collect();
    let weights: Vec<i64> = rows.iter().map(|row| row.weight).collect();
    Batch::deltas(times, weights, fields.iter().map(column).collect())
}
