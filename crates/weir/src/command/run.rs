//! `weir run SCRIPT`: a script in STREAM's format.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use weir_model::NANOS_PER_MICRO;
use weir_query::place::pairing::pair;
use weir_query::plan::{Node, ToStream};
use weir_query::{Plan, Script, compile_script};
use weir_sink::{Clock, Sink, stream};

use crate::command::query::LimitArgs;
use crate::failure::{Ending, Failure};
use crate::question::Question;
use crate::run_loop::{self, Options, Show, Stop, Telling};
use crate::source::SourceArgs;
use crate::{output, plans, script_sources, source};

/// Run a script in the format of the Stanford STREAM prototype
///
/// Paths in it are relative to the working directory. A `source :` is a STREAM source file, a trace
/// in any format that weir knows, or `tap:live`; there the instants are microseconds, as in the
/// thesis. `IOstream` is there without being declared and comes from --from. Results go where
/// `dest :` says, or to standard output.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir run test/scripts/test1\n  \
    weir run --from recording.parquet thesis-query-8.cql\n  \
    weir run --for 10s --out-dir results thesis-query-4.cql")]
pub struct RunArgs {
    /// The script; `-` reads it from standard input
    script: PathBuf,
    /// Write the files that `dest :` names below this directory
    #[arg(long, value_name = "DIR")]
    out_dir: Option<PathBuf>,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

pub fn run(args: &RunArgs, verbose: bool) -> Result<Ending, Failure> {
    let question = Question::read(&args.script)?;
    let script = compile_script(&question.text).map_err(|d| question.failure(&d))?;
    question.warn(&script.warnings);
    each_dest_once(&script)?;
    let pairings = script_sources::pairings(&script, &args.source);
    let paired = script.queries.iter().map(|q| pair(&q.plan, &pairings).plan);
    let paired: Vec<Arc<Plan>> = paired.collect();
    let plans: Vec<&Plan> = paired.iter().map(|plan| &**plan).collect();
    let mut engine = args.limits.engine();
    let ids: Vec<_> = plans.iter().map(|plan| engine.add(plan)).collect();
    let stop = Stop::on_signals()?;
    let demands = plans::demands(&plans);
    let inputs = script_sources::open(&script, &question, &demands, &args.source, &stop)?;
    let mut shows = Vec::new();
    for (query, id) in script.queries.iter().zip(ids) {
        shows.push(Show {
            id,
            sink: sink(&query.plan, query.dest.as_deref(), &script, args)?,
            name: None,
            last_instant_open: is_rstream(&query.plan),
        });
    }
    let options = Options {
        idle: args.source.idle,
        own_stream: plans::read_own_stream(&plans),
        instant_ns: NANOS_PER_MICRO,
        telling: match script.queries.iter().all(|q| q.dest.is_some()) {
            true => Telling::Files,
            false => Telling::Nothing,
        },
        changes: None,
        counts: Arc::default(),
    };
    source::drop_privileges(&args.source, &inputs)?;
    let report = run_loop::run(engine, inputs, shows, options, &stop)?;
    super::conclude(report, verbose)
}

/// Two results in one file would write over each other.
fn each_dest_once(script: &Script) -> Result<(), Failure> {
    let dests: Vec<&String> = script
        .queries
        .iter()
        .filter_map(|q| q.dest.as_ref())
        .collect();
    let twice = (1..dests.len()).find(|&i| dests[..i].contains(&dests[i]));
    match twice {
        Some(i) => Err(Failure::words(format!(
            "dest : {}: is the dest of two queries; give each its own",
            dests[i]
        ))),
        None => Ok(()),
    }
}

/// STREAM's Rstream tells what an instant held when the next one begins, so that of the last
/// instant of its sources it tells nothing.
fn is_rstream(plan: &Plan) -> bool {
    let kind = ToStream::Rstream { every: None };
    matches!(&plan.node, Node::ToStream { kind: k, .. } if *k == kind)
}

/// Where a query's result goes.
fn sink(
    plan: &Plan,
    dest: Option<&str>,
    script: &Script,
    args: &RunArgs,
) -> Result<Box<dyn Sink>, Failure> {
    let target = match dest {
        None => output::standard_output(false),
        Some(dest) => {
            let path = args.out_dir.as_deref().unwrap_or(Path::new("")).join(dest);
            if let Some(directory) = path.parent() {
                fs::create_dir_all(directory)
                    .map_err(|e| Failure::world(format!("{}: {e}", directory.display())))?;
            }
            let named = script.tables.iter().map(|t| &t.source);
            let named = named.chain(&script.iostream_source).map(Path::new);
            output::never_over(
                &path,
                named.chain(args.source.files()).chain([&*args.script]),
            )?;
            output::file(&path)?
        }
    };
    let answer = plans::answer(plan, Clock::Ticks, true, false);
    Ok((stream::FORMAT.open)(answer, target)?)
}
