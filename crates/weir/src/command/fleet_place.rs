//! `weir fleet place`: a standing query at the monitor, or in Flink.

use clap::Args;
use serde_json::json;
use weir_monitor::client::statements;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::source::SourceOptions;
use weir_wire::{Client, Submit};

use super::fleet_flink::{self, FlinkArgs, JobArgs};
use crate::args::{FleetArgs, QueryEngine, QuestionArgs, places};

/// A standing query.
#[derive(Args, Debug)]
pub struct PlaceArgs {
    /// Name of the query
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    question: QuestionArgs,
    /// QueryEngine that merges what agents send
    #[arg(long, value_name = "ENGINE", value_enum, default_value_t = QueryEngine::Monitor)]
    on: QueryEngine,
    /// Placement strategy: agents send rows, partial aggregates, or the results that are local to a
    /// host [default: the strategy with the lowest cost]
    #[arg(long, value_name = "STRATEGY", value_parser = places())]
    place: Option<String>,
    /// Cancel a standing query that has this name and another text
    #[arg(long)]
    replace: bool,
    /// Start the job of Flink only: the monitors have the query in their configuration
    #[arg(long)]
    job_only: bool,
    /// Print JSON
    #[arg(short = 'j', long)]
    json: bool,
    #[command(flatten)]
    flink: FlinkArgs,
    #[command(flatten)]
    job: JobArgs,
    #[command(flatten)]
    fleet: FleetArgs,
}

pub fn place(args: &PlaceArgs) -> Result<Ending, Failure> {
    args.on.refuse(&args.flink, args.job_only)?;
    let question = args.question.read()?;
    let strategy = args.place.as_deref();
    if args.job_only {
        let checked = question.compile_over(&SourceOptions::default())?;
        let query = (&*args.name, &*question.text, &*checked.plan);
        return fleet_flink::place(&args.flink, &args.job, query, strategy, args.json);
    }
    let (checked, mut client) = statements::checked(&question, || args.fleet.connect())?;
    let text = checked.with_views(&question.text);
    if args.on == QueryEngine::Flink {
        // What Flink does not compute is refused before anything is placed.
        let query = (&*args.name, &*text, &*checked.plan);
        fleet_flink::check(&args.flink, &args.job, query, strategy)?;
    }
    let submit = Submit {
        query: text.clone(),
        name: Some(args.name.clone()),
        standing: true,
        place: args.place.clone(),
        script: None,
    };
    let is_new = at_monitor(&mut client, &submit, args.replace)?;
    match args.on {
        QueryEngine::Flink => {
            let query = (&*args.name, &*text, &*checked.plan);
            fleet_flink::place(&args.flink, &args.job, query, strategy, args.json)
        }
        QueryEngine::Monitor => {
            let name = &args.name;
            output::print(&match (args.json, is_new) {
                (true, _) => format!("{}\n", json!({ "query": name, "placed": is_new })),
                (false, true) => format!(
                    "standing query `{name}` was placed; `weir fleet watch {name}` prints its \
                     results\n"
                ),
                (false, false) => format!("standing query `{name}` runs already\n"),
            })?;
            Ok(Ending::Done)
        }
    }
}

/// Places a standing query at a monitor, unless it is there; returns whether it was placed now.
fn at_monitor(client: &mut Client, submit: &Submit, replace: bool) -> Result<bool, Failure> {
    let name = submit.name.as_deref().unwrap_or_default();
    let queries = client.queries()?;
    let mut queries = queries.as_array().into_iter().flatten();
    let existing = queries.find(|query| query["name"] == name);
    if let Some(existing) = existing {
        let text = existing["query"].as_str().unwrap_or_default();
        if text.trim() == submit.query.trim() && existing["standing"] == true {
            return Ok(false);
        }
        if !replace {
            return Err(Failure::world(format_args!(
                "the monitor has a query `{name}` with another text; --replace cancels it:\n  {}",
                weir_sink::text::shown(text.trim())
            )));
        }
        client.cancel(name)?;
    }
    client.submit(submit)?;
    Ok(true)
}
