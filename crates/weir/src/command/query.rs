//! `weir query`: runs a continuous query and prints its result.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use weir_model::Shape;
use weir_sink::{InstantUnit, ResultSchema, Sink};
use weir_tap::ebpf::Files;
use weir_wire::Submit;

use super::sql;
use crate::args::OutputArgs;
use crate::args::QuestionArgs;
use crate::args::SourceArgs;
use crate::args::{self, DefinitionArgs, FleetArgs, LimitArgs, OwnerArgs};
use weir_monitor::client::show::{self, PrintOptions};
use weir_monitor::client::statements;
use weir_query::library::{self, TextKind};
use weir_runtime::device_names;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::inspection;
use weir_runtime::output;
use weir_runtime::plans;
use weir_runtime::question::QueryText;
use weir_runtime::run_loop::conclude;
use weir_runtime::run_loop::{self, LoopOptions, Show, Stop, wall_clock};
use weir_runtime::source;
use weir_runtime::unobserved::UnobservedDevices;
use weir_runtime::views;
use weir_view::prompt;

/// Run a query on live I/O, on a recording or on a fleet
///
/// The query runs until Ctrl-C, for the time of --for, or until the end of the recording. On a
/// terminal, a relation (the result of a query with a window or an aggregate) is redrawn in place;
/// elsewhere its insertions and retractions are printed. With --monitor, the query runs on the
/// hosts of a fleet.
///
/// DESCRIBE and SHOW list what queries can use. CREATE VIEW and DROP VIEW without a query change
/// the stored views.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir query \"select op, count(*), avg(latency), quantile(latency, 0.99) from IO [range 5 s slide 1 s] group by op\"\n  \
    weir query --for 10s \"select comm, sum(bytes) from IO group by comm order by 2 desc limit 10\"\n  \
    weir query --from recording.parquet --final --format json \"select op, count(*) from IO group by op\"\n  \
    weir query --device /dev/sda \"select * from IO where latency > 10 ms\"\n  \
    weir query --for 10s \"create stream woken as probe 'tp:sched:sched_wakeup' (prio); \\\n    \
      select cpu, count(*) from woken group by cpu\"\n  \
    weir query --monitor monitor.example \"select host, count(*) from IO [range 10 s slide 10 s] group by host\"\n\n\
    `weir streams` lists the streams and relations that a query can read, `weir functions` the functions.")]
pub struct QueryArgs {
    #[command(flatten)]
    host: HostQueryArgs,
    #[command(flatten)]
    fleet: FleetArgs,
    #[command(flatten)]
    placing: PlacingArgs,
    #[command(flatten)]
    standing: StandingArgs,
}

/// A query on one host.
#[derive(Args, Debug)]
pub struct HostQueryArgs {
    #[command(flatten)]
    pub question: QuestionArgs,
    #[command(flatten)]
    define: DefinitionArgs,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    owner: OwnerArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// How a query is placed at a monitor.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Fleet")]
pub struct PlacingArgs {
    /// Name of the query at the monitor [default: chosen by the monitor]
    #[arg(long, value_name = "NAME", requires = "monitor")]
    pub name: Option<String>,
    /// Placement strategy: agents send rows, partial aggregates, or the results that are local to a
    /// host [default: the strategy with the lowest cost]
    #[arg(long, value_name = "STRATEGY", requires = "monitor", value_parser = args::places())]
    pub place: Option<String>,
}

/// Whether a query at a monitor needs clients.
#[derive(Args, Debug, Clone, Copy, Default)]
#[command(next_help_heading = "Fleet")]
pub struct StandingArgs {
    /// Keep the query running without clients, also across restarts of the monitor, until `weir
    /// fleet cancel`
    #[arg(long, requires = "monitor")]
    pub standing: bool,
}

pub fn run(args: &QueryArgs, verbose: bool) -> Result<Ending, Failure> {
    let host = &args.host;
    if host.question.is_missing() && host.output.output.is_none() && prompt::is_interactive() {
        return sql::prompt(&host.source, &host.define, &args.fleet, &host.output, None);
    }
    let question = host.question.read()?;
    if args.fleet.monitor.is_some() {
        return at_monitor(args, question);
    }
    match library::kind(&question.text) {
        TextKind::Query => on_host(host, question, verbose, None),
        TextKind::CatalogQuery(inspection) => {
            let question = host.define.before(question, &host.source)?;
            let listing = inspection::listing(&question, &inspection, &host.source)?;
            listing.write(&host.output)?;
            Ok(Ending::Done)
        }
        TextKind::Changes => {
            let (changes, file) = views::change(&question, &host.source)?;
            for change in changes {
                output::notice(format_args!("weir: {change} in {}", file.display()));
            }
            Ok(Ending::Done)
        }
    }
}

/// A sink that passes some rows to another one, and may end the run.
pub type SinkWrap<'a> = &'a dyn Fn(Box<dyn Sink>, Stop) -> Box<dyn Sink>;

/// Runs a query on this host. With `wrap` the rows of its result are written by that sink, as those
/// of a stream.
pub fn on_host(
    args: &HostQueryArgs,
    question: QueryText,
    verbose: bool,
    wrap: Option<SinkWrap>,
) -> Result<Ending, Failure> {
    let live = args.source.is_live();
    let question = args.define.before(question, &args.source)?;
    args.owner.refuse_definitions(&question)?;
    let checked = question.compile_over(&args.source)?;
    let plan = args.owner.restricted(checked.plan)?;
    let plan = device_names::resolved(&plan, &args.source);
    let capabilities = args.source.capabilities()?;
    let paired = plans::paired(&plan, &capabilities);
    let plan = &*paired.plan;
    let mut engine = args.limits.engine();
    let placement = plans::placed(&[plan], &capabilities);
    let id = match wrap.is_none() && args.output.is_final_only(live) {
        true => engine.add_final(&placement.plans[0]),
        false => engine.add(&placement.plans[0]),
    };
    let stop = Stop::on_signals()?;
    let answer = plans::answer(
        plan,
        InstantUnit::Nanoseconds,
        args.output.raw,
        args.output.last,
    );
    let answer = match wrap {
        Some(_) => as_stream(answer),
        None => answer,
    };
    let progress = args.output.progress(answer.shape);
    if let Some(path) = &args.output.output {
        output::never_over(path, args.source.files())?;
    }
    let sink = args.output.open(answer, live)?;
    let sink = match wrap {
        Some(wrap) => wrap(sink, stop.clone()),
        None => sink,
    };
    let unobserved = UnobservedDevices::of(&args.source);
    let inputs = source::open(&args.source, &placement, &stop)?;
    let options = LoopOptions {
        idle: args.source.idle,
        own_stream: plans::read_own_stream(&[plan]),
        instant_ns: 1,
        progress,
        changes: None,
        whole: Some(placement.plans[0].clone().into()),
        watermarks: false,
        counts: Arc::default(),
    };
    source::drop_privileges(&args.source, &inputs, Files::Open)?;
    let report = run_loop::run(engine, inputs, vec![Show::new(id, sink)], options, &stop)?;
    let mut streams = placement.demands.iter().map(|demand| &demand.stream);
    if streams.any(|name| capabilities.is_of_requests(name)) {
        unobserved.report();
    }
    conclude(report, verbose)
}

/// Runs a statement at a monitor.
fn at_monitor(args: &QueryArgs, question: QueryText) -> Result<Ending, Failure> {
    match library::kind(&question.text) {
        TextKind::Query => {
            let standing = args.standing.standing;
            on_fleet(
                &args.host,
                question,
                &args.fleet,
                &args.placing,
                standing,
                None,
            )
        }
        TextKind::CatalogQuery(inspection) => {
            let question = args.host.define.before(question, &args.host.source)?;
            let mut client = args.fleet.connect()?;
            let listing = statements::listing(&mut client, &question, &inspection)?;
            listing.write(&args.host.output)?;
            Ok(Ending::Done)
        }
        TextKind::Changes => {
            let mut client = args.fleet.connect()?;
            let changes = client.change_views(&question.text)?;
            for change in changes.as_array().into_iter().flatten() {
                let change = change.as_str().unwrap_or_default();
                output::notice(format_args!("weir: {change} at the monitor"));
            }
            Ok(Ending::Done)
        }
    }
}

/// Runs a query at a monitor; `wrap` as in [`on_host`]. Errors in the query are reported before it is
/// submitted.
pub fn on_fleet(
    args: &HostQueryArgs,
    question: QueryText,
    fleet: &FleetArgs,
    placing: &PlacingArgs,
    standing: bool,
    wrap: Option<SinkWrap>,
) -> Result<Ending, Failure> {
    args::agents_choose(&args.source)?;
    args.owner.refuse_at_monitor()?;
    if !args.define.define.is_empty() || question.defines_streams() {
        return Err(Failure::words(
            "a query of a fleet reads the streams of probes that its agents have, and defines none: \
             define them there (`weir agent --define FILE`), where an administrator decides what is \
             attached",
        ));
    }
    let stop = Stop::on_signals()?;
    let (checked, mut client) = statements::checked(&question, || fleet.connect())?;
    let placed = client.submit(&Submit {
        query: checked.with_views(&question.text),
        name: placing.name.clone(),
        standing,
        place: placing.place.clone(),
        script: None,
    })?;
    let answer = show::answer(&placed, args.output.raw)?;
    if standing {
        show::print_standing(&placed);
    }
    let sink = match wrap {
        Some(wrap) => wrap(
            args.output.open(as_stream(answer.clone()), true)?,
            stop.clone(),
        ),
        None => args.output.open(answer.clone(), true)?,
    };
    let options = PrintOptions {
        query: &placed,
        standing,
        duration: args.source.span,
        instant_ns: 1,
    };
    let ending = show::print_results(&mut client, &options, &answer, sink, &stop)?;
    let found = stop.is_abandoned();
    let open = checked.plan.open_slide(wall_clock());
    if let (Some(_), Some(open), false) = (args.source.span, open, found) {
        let slide = Duration::from_nanos((open.end - open.after).max(0) as u64);
        output::notice(format_args!(
            "weir: the last slide of {slide:?} is incomplete and is not printed; a monitor sends a slide at its end"
        ));
    }
    Ok(ending)
}

/// The same rows as those of a stream.
fn as_stream(answer: ResultSchema) -> ResultSchema {
    ResultSchema {
        shape: Shape::Stream,
        order: Vec::new(),
        ..answer
    }
}
