//! `weir run SCRIPT`: runs a script in the format of the Stanford STREAM prototype.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use weir_model::NANOS_PER_MICRO;
use weir_query::place::pairing::pair;
use weir_query::plan::{Node, ToStream};
use weir_query::{CheckOptions, Plan, Script, compile_script_as, stream_definitions};
use weir_sink::{InstantUnit, ResultSchema, Sink, stream};
use weir_tap::ebpf::Files;
use weir_wire::{Client, OfScript, Submit, SubmittedQuery};

use crate::args::LimitArgs;
use crate::args::SourceArgs;
use crate::args::{self, DefineArgs, FleetArgs};
use crate::command::query::{PlacingArgs, StandingArgs};
use weir_monitor::client;
use weir_monitor::client::show::{self, PrintOptions};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::plans;
use weir_runtime::question::QueryText;
use weir_runtime::run_loop::conclude;
use weir_runtime::run_loop::{self, LoopOptions, ProgressKind, Show, Stop};
use weir_runtime::script_sources;
use weir_runtime::source;

/// Run a script in the format of the Stanford STREAM prototype
///
/// Paths in the script are relative to the working directory. A `source :` is a STREAM source file,
/// a trace in any supported format, or `tap:live`; the timestamps of traces and of `tap:live` are
/// in microseconds. `IOstream` need not be declared; it is read from --from. Results are written to
/// the file of `dest :`, or to standard output.
///
/// With --monitor, each query runs on the hosts of a fleet, and each `source :` must be `tap:live`.
/// A query is named after the script's file, with its number appended if there are several. The
/// queries end with this command; with --standing they remain at the monitor, and `weir fleet
/// watch` prints their results.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir run test/scripts/test1\n  \
    weir run --from recording.parquet thesis-query-8.cql\n  \
    weir run --for 10s --out-dir results thesis-query-4.cql\n  \
    weir run --monitor monitor.example --out-dir results thesis-query-10.cql\n  \
    weir run --monitor monitor.example --standing thesis-query-10.cql")]
pub struct RunArgs {
    /// File with the script; `-` reads it from standard input
    #[arg(value_name = "SCRIPT")]
    script: PathBuf,
    /// Directory for the files of `dest :` [default: the working directory]
    #[arg(long, value_name = "DIR", conflicts_with = "standing")]
    out_dir: Option<PathBuf>,
    #[command(flatten)]
    define: DefineArgs,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    fleet: FleetArgs,
    #[command(flatten)]
    placing: PlacingArgs,
    #[command(flatten)]
    standing: StandingArgs,
}

/// The length of a tick of the thesis's scripts.
const TICK_NS: u32 = 1_000;

pub fn run(args: &RunArgs, verbose: bool) -> Result<Ending, Failure> {
    let question = QueryText::read(&args.script)?;
    if args.fleet.monitor.is_some() {
        return at_monitor(args, &question);
    }
    args.define.add_to(&args.source)?;
    args.source
        .define(&question, &stream_definitions(&question.text))?;
    let compile = || {
        compile_script_as(
            &question.text,
            CheckOptions::script(),
            &args.source.defined(),
        )
    };
    let script = match compile() {
        Err(found) if args.source.define_shipped(&question, &found)? => compile(),
        script => script,
    };
    let script = script.map_err(|d| question.failure(&d))?;
    question.warn(&script.warnings);
    each_dest_once(&script)?;
    let capabilities = script_sources::capabilities(&script, &args.source)?;
    let pairings = script_sources::pairings(&script, &args.source, &capabilities)?;
    let paired = script.queries.iter().map(|q| pair(&q.plan, &pairings).plan);
    let paired: Vec<Arc<Plan>> = paired.collect();
    let plans: Vec<&Plan> = paired.iter().map(|plan| &**plan).collect();
    let mut engine = args.limits.engine();
    let ids: Vec<_> = plans.iter().map(|plan| engine.add(plan)).collect();
    let stop = Stop::on_signals()?;
    let demands = plans::demands(&plans, &capabilities);
    let inputs = script_sources::open(&script, &question, &demands, &args.source, &stop)?;
    let mut shows = Vec::new();
    for (query, id) in script.queries.iter().zip(ids) {
        shows.push(Show {
            id,
            sink: sink(
                plans::answer(&query.plan, InstantUnit::Ticks, true, false),
                query.dest.as_deref(),
                &script,
                args,
            )?,
            name: None,
            last_instant_open: is_rstream(&query.plan),
        });
    }
    let options = LoopOptions {
        idle: args.source.idle,
        own_stream: plans::read_own_stream(&plans),
        instant_ns: NANOS_PER_MICRO,
        progress: match script.queries.iter().all(|q| q.dest.is_some()) {
            true => ProgressKind::Files,
            false => ProgressKind::Nothing,
        },
        whole: None,
        watermarks: false,
        changes: None,
        counts: Arc::default(),
    };
    source::drop_privileges(&args.source, &inputs, Files::Open)?;
    let report = run_loop::run(engine, inputs, shows, options, &stop)?;
    conclude(report, verbose)
}

/// Runs the queries of a script at a monitor. Errors in the script are reported before the monitor
/// is contacted.
fn at_monitor(args: &RunArgs, question: &QueryText) -> Result<Ending, Failure> {
    args::agents_choose(&args.source)?;
    let script = client::script::compile(question, TICK_NS)?;
    question.warn(&script.warnings);
    each_dest_once(&script)?;
    let stop = Stop::on_signals()?;
    let mut placed = Vec::new();
    for submit in submits(args, question, script.queries.len()) {
        let client = args.fleet.connect();
        let query = client.and_then(|mut client| Ok((client.submit(&submit)?, client)));
        match query {
            Ok(query) => placed.push(query),
            Err(failure) => {
                withdraw(placed);
                return Err(failure);
            }
        }
    }
    if args.standing.standing {
        for (query, _) in placed {
            show::print_standing(&query);
        }
        return Ok(Ending::Done);
    }
    let ending = show_all(args, &script, &mut placed, &stop);
    withdraw(placed);
    ending
}

/// The requests to the monitor: the script's queries in order, each with its own name.
fn submits(args: &RunArgs, question: &QueryText, queries: usize) -> impl Iterator<Item = Submit> {
    let stem = args.script.file_stem().filter(|stem| *stem != "-");
    let stem = stem.map_or("script".into(), |stem| stem.to_string_lossy());
    let base = args.placing.name.clone().unwrap_or(stem.into_owned());
    (1..).take(queries).map(move |number: u32| Submit {
        query: question.text.clone(),
        name: Some(match queries {
            1 => base.clone(),
            _ => format!("{base}-{number}"),
        }),
        standing: args.standing.standing,
        place: args.placing.place.clone(),
        script: Some(OfScript {
            query: number,
            tick_ns: TICK_NS,
        }),
    })
}

/// Writes the results of all queries, each to its `dest :`, until they end. An error of one query
/// ends all of them.
fn show_all(
    args: &RunArgs,
    script: &Script,
    placed: &mut [(SubmittedQuery, Client)],
    stop: &Stop,
) -> Result<Ending, Failure> {
    let mut shown = Vec::new();
    for ((query, client), part) in placed.iter_mut().zip(&script.queries) {
        let answer = ResultSchema {
            clock: InstantUnit::Ticks,
            ..show::answer(query, true)?
        };
        let sink = sink(answer.clone(), part.dest.as_deref(), script, args)?;
        shown.push((query, client, answer, sink));
    }
    let endings: Vec<Result<Ending, Failure>> = std::thread::scope(|scope| {
        let show = |(query, client, answer, sink): (&mut SubmittedQuery, &mut Client, _, _)| {
            let options = PrintOptions {
                query,
                standing: false,
                duration: args.source.span,
                instant_ns: TICK_NS.into(),
            };
            let ending = show::print_results(client, &options, &answer, sink, stop);
            if ending.is_err() {
                stop.abandon();
            }
            ending
        };
        let threads = shown.into_iter().map(|one| scope.spawn(move || show(one)));
        let threads: Vec<_> = threads.collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let endings = endings.into_iter().collect::<Result<Vec<_>, _>>()?;
    let other = endings.into_iter().find(|ending| *ending != Ending::Done);
    Ok(other.unwrap_or(Ending::Done))
}

/// Cancels queries whose results are no longer read.
fn withdraw(placed: Vec<(SubmittedQuery, Client)>) {
    for (query, mut client) in placed {
        // If this fails, the query has ended, or ends some seconds later without clients.
        let _ = client.cancel(&query.name);
    }
}

/// Rejects a script that writes two results to one file.
fn each_dest_once(script: &Script) -> Result<(), Failure> {
    let dests: Vec<&String> = script
        .queries
        .iter()
        .filter_map(|q| q.dest.as_ref())
        .collect();
    let twice = (1..dests.len()).find(|&i| dests[..i].contains(&dests[i]));
    match twice {
        Some(i) => Err(Failure::words(format!(
            "dest : {}: used by two queries; give each query its own file",
            dests[i]
        ))),
        None => Ok(()),
    }
}

/// STREAM's Rstream emits the rows of an instant at the start of the next one, so it emits nothing
/// for the last instant of its sources.
fn is_rstream(plan: &Plan) -> bool {
    let kind = ToStream::Rstream { every: None };
    matches!(&plan.node, Node::ToStream { kind: k, .. } if *k == kind)
}

/// The sink of a query's result.
fn sink(
    answer: ResultSchema,
    dest: Option<&str>,
    script: &Script,
    args: &RunArgs,
) -> Result<Box<dyn Sink>, Failure> {
    let target = match dest {
        None => output::standard_output(false)?,
        Some(dest) => {
            let path = args.out_dir.as_deref().unwrap_or(Path::new("")).join(dest);
            if let Some(directory) = path.parent() {
                fs::create_dir_all(directory)
                    .map_err(|e| Failure::world(format!("{}: {e}", directory.display())))?;
            }
            let named = script.tables.iter().map(|t| &t.source);
            let named = named.chain(&script.iostream_source).map(PathBuf::from);
            let named = named.chain([args.script.clone()]);
            output::never_over(&path, named.chain(args.source.files()))?;
            output::file(&path)?
        }
    };
    Ok((stream::FORMAT.open)(answer, target)?)
}
