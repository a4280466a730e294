//! `weir act test`: which actions the alerts of a file would have carried out over a recording.

use std::sync::{Arc, Mutex};

use clap::Args;
use serde_json::{Value, json};
use weir_act::backtest::{BackTest, TestStep};
use weir_act::limit::IOPS_FLOOR;
use weir_act::policy::{ActMode, ActPolicy, TARGETS_MAX};
use weir_alert::board::AlertConsumer;
use weir_alert::event::AlertEvent;
use weir_alert::expectation::seconds;
use weir_alert::instances::RuleRun;
use weir_alert::machine::AlertState;
use weir_alert::run::{self, AlertRunOptions};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::run_loop::{ProgressKind, Stop, conclude};
use weir_sink::{SinkError, Watermark, text, time};
use weir_tap::ebpf::Files;

use super::alert::{AlertFileArgs, ReadAlerts};
use crate::args::{LimitArgs, SourceArgs};

/// Print which actions alerts would have carried out over a recording
///
/// Prints when an alert with ACT would have set what of which VM, and when that would have ended.
/// A recording shows no effect of an action: its witness is not judged.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir act test -f alerts.cql --from recording.parquet\n  \
    weir act test -f alerts.cql --from recording.parquet --allow 'batch-*' --json")]
pub struct ActTestArgs {
    #[command(flatten)]
    file: AlertFileArgs,
    /// VMs that may be limited: a name, in which * stands for any text; may be repeated [default:
    /// all]
    #[arg(long, value_name = "PATTERN")]
    allow: Vec<String>,
    /// Lowest limit of requests per second; a lower one is raised to it
    #[arg(long, value_name = "COUNT", default_value_t = IOPS_FLOOR)]
    floor: u64,
    /// Maximum number of actions at a time
    #[arg(long, value_name = "COUNT", default_value_t = TARGETS_MAX)]
    targets: usize,
    /// Print a JSON object: begin, end, steps
    #[arg(short = 'j', long)]
    json: bool,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

pub fn run(args: &ActTestArgs, verbose: bool) -> Result<Ending, Failure> {
    if args.source.is_live() && args.source.span.is_none() {
        return Err(Failure::words(
            "weir act test needs a recording with --from, or a time with --for",
        ));
    }
    let ReadAlerts { file, .. } = args.file.read(&args.source)?;
    if !file.rules.iter().any(|rule| rule.act.is_some()) {
        return Err(Failure::words(
            "no alert has ACT; write, for example, ACT LIMIT vm, 500 AS iops FOR 10 m at its end",
        ));
    }
    let policy = ActPolicy {
        mode: ActMode::Apply,
        allow: match args.allow.is_empty() {
            true => vec!["*".to_owned()],
            false => args.allow.clone(),
        },
        iops_floor: args.floor,
        targets_max: args.targets,
    };
    let stop = Stop::on_signals()?;
    let test = Arc::new(Mutex::new(BackTest::new(policy)));
    let options = AlertRunOptions {
        source: &args.source,
        query_bytes_max: args.limits.limit_memory,
        saved: Default::default(),
        progress: ProgressKind::Files,
        files: Files::Open,
    };
    let consumer = Box::new(TestConsumer(test.clone()));
    let (board, report) = run::run(file.rules, options, consumer, &stop)?;
    let watermark = board.lock().expect("no panic while held").watermark();
    let test = test.lock().expect("no panic while held");
    match args.json {
        true => output::print(&format!("{}\n", object(watermark, &test)))?,
        false => output::print(&lines(watermark, &test))?,
    }
    conclude(report, verbose)
}

/// Passes firings and their ends to the test.
struct TestConsumer(Arc<Mutex<BackTest>>);

impl AlertConsumer for TestConsumer {
    fn event(&mut self, event: &AlertEvent) -> Result<(), SinkError> {
        let mut test = self.0.lock().expect("no panic while held");
        match (&event.action, event.to) {
            (Some(request), _) => test.request(request, event.at),
            (None, AlertState::Clear) => test.clear(&event.instance(), event.at),
            _ => {}
        }
        Ok(())
    }

    fn advance(&mut self, watermark: &Watermark, _: &[RuleRun]) -> Result<(), SinkError> {
        self.0
            .lock()
            .expect("no panic while held")
            .advance(watermark.at);
        Ok(())
    }
}

fn lines(watermark: Option<Watermark>, test: &BackTest) -> String {
    let (steps, omitted) = test.steps();
    let mut out = match watermark {
        Some(w) => format!(
            "from {} to {}, {}\n",
            time::readable(w.begin),
            time::readable(w.at),
            seconds(w.at - w.begin)
        ),
        None => "no events\n".to_owned(),
    };
    for step in steps {
        let offset = seconds(step.at - watermark.map_or(step.at, |w| w.begin));
        let target = [step.vm.as_str(), step.disk.as_deref().unwrap_or("")].join(" ");
        let what = match step.step {
            "act" => format!("would limit {}: {}", target.trim(), step.detail),
            "propose" => format!("would propose for {}: {}", target.trim(), step.detail),
            "refuse" => format!("would refuse {}: {}", target.trim(), step.detail),
            _ => format!("would undo {}: {}", target.trim(), step.detail),
        };
        out += &format!(
            "{offset:>12}  {} {}\n",
            text::shown(&step.instance),
            text::shown(&what)
        );
    }
    if steps.is_empty() {
        out += "no action\n";
    }
    if omitted > 0 {
        out += &format!("{omitted} more steps are not listed\n");
    }
    out
}

fn object(watermark: Option<Watermark>, test: &BackTest) -> Value {
    let (steps, omitted) = test.steps();
    let step = |step: &TestStep| {
        let mut json = json!(step);
        json["at"] = json!(time::timestamp(step.at));
        json["offset_ns"] = json!(step.at - watermark.map_or(step.at, |w| w.begin));
        json
    };
    json!({
        "begin": watermark.map(|w| time::timestamp(w.begin)),
        "end": watermark.map(|w| time::timestamp(w.at)),
        "steps": steps.iter().map(step).collect::<Vec<_>>(),
        "omitted_steps": omitted,
    })
}
