//! [`run`]: asks the queries of a source and hands what comes to a reader.

use std::sync::{Arc, Mutex};

use weir_model::Catalog;
use weir_query::Plan;
use weir_sink::Sink;
use weir_tap::Count;

use super::ledger::{Ledger, Reader};
use super::questions::{Questions, Wanted};
use super::totals::Totals;
use crate::command::query::LimitArgs;
use crate::failure::Failure;
use crate::question::Question;
use crate::run_loop::{self, Options, Report, Show, Stop, Telling};
use crate::source::SourceArgs;
use crate::{plans, source};

/// Asks until the source ends, the reader wants no more, or `stop`. The taps' own counts are kept
/// in `counts`.
///
/// # Errors
/// When the source cannot be opened or read, or the reader fails.
pub fn run(
    args: &SourceArgs,
    limits: &LimitArgs,
    wanted: &Wanted,
    totals: Arc<Mutex<Totals>>,
    reader: Box<dyn Reader>,
    counts: Arc<Mutex<Vec<Count>>>,
    stop: &Stop,
) -> Result<Report, Failure> {
    let questions = Questions::new(wanted);
    let compile = |text: String| {
        let question = Question { text, file: None };
        question.compile(&Catalog::builtin(), wanted.live)
    };
    let counters = compile(questions.counters)?;
    let spans = questions.spans.map(compile).transpose()?;
    let mut engine = limits.engine();
    let sinks = Ledger::sinks(wanted, totals, reader);
    let [span_sink, counter_sink] = sinks;
    let mut asked: Vec<(&Plan, Box<dyn Sink>)> = Vec::new();
    if let Some(spans) = &spans {
        asked.push((&spans.plan, span_sink));
    }
    asked.push((&counters.plan, counter_sink));
    let (asked, sinks): (Vec<&Plan>, Vec<Box<dyn Sink>>) = asked.into_iter().unzip();
    let placement = plans::placed(&asked, args);
    let placed = placement.plans.iter().zip(sinks);
    let shows = placed
        .map(|(plan, sink)| Show::new(engine.add(plan), sink))
        .collect();
    let inputs = source::open(args, &placement, stop)?;
    let options = Options {
        idle: args.idle,
        own_stream: false,
        instant_ns: 1,
        telling: Telling::Nothing,
        changes: None,
        counts,
    };
    source::drop_privileges(args, &inputs)?;
    run_loop::run(engine, inputs, shows, options, stop)
}
