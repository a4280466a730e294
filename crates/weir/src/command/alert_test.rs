//! `weir alert test`: when alerts would have fired on a recording, and whether EXPECT is met.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use clap::Args;
use serde_json::{Value, json};
use weir_alert::board::{AlertConsumer, Board};
use weir_alert::event::AlertEvent;
use weir_alert::expectation::{ExpectationResult, StateHistory, seconds};
use weir_alert::machine::AlertState;
use weir_alert::run::{self, AlertRunOptions};
use weir_query::alert::{AlertExpectation, AlertRule};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::run_loop::{ProgressKind, Stop, conclude};
use weir_sink::{SinkError, Watermark, text, time};
use weir_tap::ebpf::Files;

use super::alert::{AlertFileArgs, ReadAlerts};
use crate::args::{LimitArgs, SourceArgs};

/// Maximum number of events that are kept; later ones are counted.
const EVENTS_MAX: usize = 100_000;

/// Run alerts over a recording and compare them with EXPECT
///
/// Prints when each alert would have been pending, fired and cleared, with times since the start of
/// the recording, and whether each EXPECT of the file is met. The exit status is 1 if one is not.
/// With the host as the source, it runs for the time of --for.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir alert test --from recording.parquet\n  \
    weir alert test -f alerts.cql --from recording.parquet\n  \
    weir alert test -f alerts.cql --from trace.csv --json")]
pub struct TestArgs {
    #[command(flatten)]
    file: AlertFileArgs,
    /// Print a JSON object: begin, end, alerts with their events, expectations, ok
    #[arg(short = 'j', long)]
    json: bool,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// What a run gave.
struct TestRun {
    rules: Vec<AlertRule>,
    left_out: Vec<(String, String)>,
    watermark: Option<Watermark>,
    events: Vec<AlertEvent>,
    omitted: usize,
    verdicts: Vec<(AlertExpectation, ExpectationResult)>,
}

pub fn run(args: &TestArgs, verbose: bool) -> Result<Ending, Failure> {
    if args.source.is_live() && args.source.span.is_none() {
        return Err(Failure::words(
            "weir alert test needs a recording with --from, or a time with --for; `weir alert \
             watch` watches this host",
        ));
    }
    let ReadAlerts { file, left_out } = args.file.read(&args.source)?;
    let stop = Stop::on_signals()?;
    let collected: Arc<Mutex<Collected>> = Arc::default();
    let options = AlertRunOptions {
        source: &args.source,
        query_bytes_max: args.limits.limit_memory,
        saved: Default::default(),
        progress: ProgressKind::Files,
        files: Files::Open,
    };
    let consumer = Box::new(CollectedHandle(collected.clone()));
    let (board, report) = run::run(file.rules.clone(), options, consumer, &stop)?;
    let board = board.lock().expect("no panic while held");
    let collected = std::mem::take(&mut *collected.lock().expect("no panic while held"));
    let mut run = TestRun {
        rules: file.rules.clone(),
        left_out,
        watermark: board.watermark(),
        events: collected.events,
        omitted: collected.omitted,
        verdicts: Vec::new(),
    };
    run.judge(&file.expectations, &file.rules, &board);
    match args.json {
        true => output::print(&format!("{}\n", run.json()))?,
        false => output::print(&run.text())?,
    }
    let ending = conclude(report, verbose)?;
    let is_met = run
        .verdicts
        .iter()
        .all(|(_, verdict)| *verdict == ExpectationResult::Met);
    Ok(match ending {
        Ending::Done if !is_met => Ending::Failed,
        ending => ending,
    })
}

#[derive(Default)]
struct Collected {
    events: Vec<AlertEvent>,
    omitted: usize,
}

/// Collects events.
struct CollectedHandle(Arc<Mutex<Collected>>);

impl AlertConsumer for CollectedHandle {
    fn event(&mut self, event: &AlertEvent) -> Result<(), SinkError> {
        let mut collected = self.0.lock().expect("no panic while held");
        match collected.events.len() < EVENTS_MAX {
            true => collected.events.push(event.clone()),
            false => collected.omitted += 1,
        }
        Ok(())
    }
}

impl TestRun {
    fn judge(&mut self, expected: &[AlertExpectation], rules: &[AlertRule], board: &Board) {
        let watermark = self.watermark;
        let history = StateHistory {
            begin: watermark.map_or(0, |w| w.begin),
            end: watermark.map_or(0, |w| w.at),
            events: &self.events,
        };
        let runs = board.rules();
        let judged = expected.iter().map(|expectation| {
            let name = &rules[expectation.rule].name;
            let run = runs.iter().find(|run| run.rule().name == *name);
            let verdict = match (watermark, run.map(|run| run.failure())) {
                (None, _) => ExpectationResult::NotMet("the recording has no events".to_owned()),
                (_, Some(Some(error))) => {
                    ExpectationResult::NotMet(format!("the query failed: {error}"))
                }
                _ if self.omitted > 0 => {
                    ExpectationResult::NotMet(format!("there are more than {EVENTS_MAX} events"))
                }
                _ => history.judge(expectation, rules),
            };
            (expectation.clone(), verdict)
        });
        self.verdicts = judged.collect();
    }

    /// The time of an event since the start.
    fn offset(&self, at: i64) -> String {
        seconds(at - self.watermark.map_or(at, |w| w.begin))
    }

    /// How often each alert fired, in the order of the rules.
    fn fired(&self) -> Vec<(&AlertRule, usize, usize)> {
        let of_rule = |rule| {
            let firing = |event: &&AlertEvent| {
                event.to == AlertState::Firing && event.from != AlertState::Unknown
            };
            let events = self.of(rule).into_iter().filter(firing);
            let mut instances: BTreeMap<String, usize> = BTreeMap::new();
            for event in events {
                *instances.entry(event.instance()).or_default() += 1;
            }
            (rule, instances.values().sum(), instances.len())
        };
        self.rules.iter().map(of_rule).collect()
    }

    fn of(&self, rule: &AlertRule) -> Vec<&AlertEvent> {
        let events = self.events.iter();
        events.filter(|event| event.alert == rule.name).collect()
    }

    fn text(&self) -> String {
        let mut out = match self.watermark {
            Some(w) => format!(
                "from {} to {}, {}\n",
                time::readable(w.begin),
                time::readable(w.at),
                seconds(w.at - w.begin)
            ),
            None => "no events\n".to_owned(),
        };
        for (rule, times, instances) in self.fired() {
            out += &match (times, instances) {
                (0, _) => format!("{}: did not fire\n", rule.name),
                (1, _) => format!("{}: fired once\n", rule.name),
                (n, 1) => format!("{}: fired {n} times\n", rule.name),
                (n, of) => format!("{}: fired {n} times, {of} instances\n", rule.name),
            };
            for event in self.of(rule) {
                let offset = self.offset(event.at);
                out += &format!("  {offset:>12}  {}\n", text::shown(&event.line()));
            }
        }
        for (rule, reason) in &self.left_out {
            out += &format!("{rule}: left out, {reason}\n");
        }
        if self.omitted > 0 {
            out += &format!("{} more events are not listed\n", self.omitted);
        }
        for (expectation, verdict) in &self.verdicts {
            out += &match verdict {
                ExpectationResult::Met => format!("met      {}\n", expectation.text),
                ExpectationResult::NotMet(reason) => {
                    format!("NOT MET  {}: {reason}\n", expectation.text)
                }
            };
        }
        out
    }

    fn json(&self) -> Value {
        let event = |event: &&AlertEvent| {
            let mut json = event.json();
            let begin = self.watermark.map_or(event.at, |w| w.begin);
            json["offset_ns"] = json!(event.at - begin);
            json
        };
        let alert = |(rule, fired, instances): (&AlertRule, usize, usize)| {
            let events: Vec<Value> = self.of(rule).iter().map(event).collect();
            json!({"name": rule.name, "fired": fired, "instances": instances, "events": events})
        };
        let expectation =
            |(expectation, verdict): &(AlertExpectation, ExpectationResult)| match verdict {
                ExpectationResult::Met => json!({"text": expectation.text, "met": true}),
                ExpectationResult::NotMet(reason) => {
                    json!({"text": expectation.text, "met": false, "reason": reason})
                }
            };
        let left_out = self.left_out.iter();
        let left_out = left_out.map(|(rule, reason)| json!({"name": rule, "reason": reason}));
        json!({
            "begin": self.watermark.map(|w| time::timestamp(w.begin)),
            "end": self.watermark.map(|w| time::timestamp(w.at)),
            "alerts": self.fired().into_iter().map(alert).collect::<Vec<_>>(),
            "left_out": left_out.collect::<Vec<_>>(),
            "omitted_events": self.omitted,
            "expectations": self.verdicts.iter().map(expectation).collect::<Vec<_>>(),
            "ok": self.verdicts.iter().all(|(_, verdict)| *verdict == ExpectationResult::Met),
        })
    }
}
