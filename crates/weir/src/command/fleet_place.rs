//! `weir fleet place`: a standing query at the monitor, or in Flink.

use clap::Args;
use serde_json::json;
use weir_monitor::client::statements;
use weir_query::Plan;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::source::SourceOptions;
use weir_wire::{Client, Submit};

use super::fleet_flink::{FlinkArgs, FlinkPlacement, JobArgs};
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
    /// Cancel a query that has this name and another text, and stop a job of Flink that computes
    /// something else
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
    args.on
        .refuse(&args.flink, Some(&args.job), args.job_only)?;
    let question = args.question.read()?;
    let prepare = |text: &str, plan: &Plan| {
        let (query, place) = ((&*args.name, text, plan), args.place.as_deref());
        FlinkPlacement::prepare(&args.flink, &args.job, query, place, args.replace)
    };
    if args.job.agents && args.fleet.monitor.is_some() {
        return Err(Failure::words(
            "--agents: the agents forward themselves, without the monitor of --monitor; omit one of \
             them",
        ));
    }
    if args.job_only || args.job.agents {
        let checked = question.compile_over(&SourceOptions::default())?;
        let job = prepare(&question.text, &checked.plan)?;
        return job.place(&args.name, args.json);
    }
    let (checked, mut client) = statements::checked(&question, || args.fleet.connect())?;
    let submit = Submit {
        query: checked.with_views(&question.text),
        name: Some(args.name.clone()),
        standing: true,
        place: args.place.clone(),
        script: None,
    };
    let existing = existing(&mut client, &submit, args.replace)?;
    // What Flink refuses, it refuses before anything is changed.
    let mut job = match args.on {
        QueryEngine::Flink => Some(prepare(&submit.query, &checked.plan)?),
        QueryEngine::Monitor => None,
    };
    let is_new = existing != Some(ExistingQuery::Same);
    if is_new {
        if let Some(job) = &mut job {
            job.before_change()?;
        }
        submitted(&mut client, &submit, existing)?;
    }
    if let Some(job) = job {
        return job.place(&args.name, args.json);
    }
    let name = &args.name;
    output::print(&match (args.json, is_new) {
        (true, _) => format!("{}\n", json!({ "query": name, "placed": is_new })),
        (false, true) => format!(
            "standing query `{name}` was placed; `weir fleet watch {name}` prints its results\n"
        ),
        (false, false) => format!("standing query `{name}` runs already\n"),
    })?;
    Ok(Ending::Done)
}

/// A query of the monitor with the same name.
#[derive(Debug, PartialEq, Eq)]
enum ExistingQuery {
    /// It is standing and has the same text.
    Same,
    /// Another one, with this text.
    Other(String),
}

/// The query of the monitor that has the name, if there is one.
///
/// # Errors
/// If it is another one, and `replace` is false.
fn existing(
    client: &mut Client,
    submit: &Submit,
    replace: bool,
) -> Result<Option<ExistingQuery>, Failure> {
    let name = submit.name.as_deref().unwrap_or_default();
    let queries = client.queries()?;
    let mut queries = queries.as_array().into_iter().flatten();
    let Some(existing) = queries.find(|query| query["name"] == name) else {
        return Ok(None);
    };
    let text = existing["query"].as_str().unwrap_or_default();
    let is_standing = existing["standing"] == true;
    if text.trim() == submit.query.trim() && is_standing {
        return Ok(Some(ExistingQuery::Same));
    }
    if !replace {
        let what = match is_standing {
            true => "with another text",
            false => "that is not standing",
        };
        return Err(Failure::world(format_args!(
            "the monitor has a query `{name}` {what}; --replace cancels it:\n  {}",
            weir_sink::text::shown(text.trim())
        )));
    }
    Ok(Some(ExistingQuery::Other(text.to_owned())))
}

/// Submits a standing query in the place of another one.
fn submitted(
    client: &mut Client,
    submit: &Submit,
    existing: Option<ExistingQuery>,
) -> Result<(), Failure> {
    let name = submit.name.as_deref().unwrap_or_default();
    let Some(ExistingQuery::Other(text)) = existing else {
        client.submit(submit)?;
        return Ok(());
    };
    client.cancel(name)?;
    client.submit(submit).map_err(|error| {
        Failure::world(format_args!(
            "{error}; query `{name}` was cancelled before, its text was:\n  {}",
            weir_sink::text::shown(text.trim())
        ))
    })?;
    Ok(())
}
