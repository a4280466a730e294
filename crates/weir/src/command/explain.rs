//! `weir explain QUERY`: the plan, and where each part of it runs. `weir explain W0103`: what a
//! diagnostic means.

use clap::Args;
use serde_json::json;
use weir_model::{Catalog, NANOS_PER_SECOND};
use weir_query::diagnostic::codes;
use weir_query::place;

use crate::failure::{Ending, Failure};
use crate::fleet::FleetArgs;
use crate::question::QuestionArgs;
use crate::source::SourceArgs;
use crate::{output, plans, source};

/// Show a query's plan and where each part runs, or what a diagnostic code means
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir explain \"select count(*) from IO [range 1 s] where op = 'r' and latency > 1 ms\"\n  \
    weir explain W0103")]
pub struct ExplainArgs {
    #[command(flatten)]
    question: QuestionArgs,
    #[command(flatten)]
    source: SourceArgs,
    /// As JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    fleet: FleetArgs,
}

pub fn run(args: &ExplainArgs) -> Result<Ending, Failure> {
    let question = args.question.read()?;
    if let Some(code) = codes::find(question.text.trim()) {
        let text = match args.json {
            true => format!(
                "{}\n",
                json!({ "code": code.code, "title": code.title, "explanation": code.explanation })
            ),
            false => format!("{}: {}\n\n{}\n", code.code, code.title, code.explanation),
        };
        output::print(&text)?;
        return Ok(Ending::Done);
    }
    if args.fleet.monitor.is_some() {
        return super::fleet::explain(&args.fleet, &question, None, args.json);
    }
    let checked = question.compile(&Catalog::builtin(), args.source.is_live())?;
    let paired = plans::paired(&checked.plan, &args.source);
    let mut placement = plans::placed(&[&paired.plan], &args.source);
    placement.remember(paired.whys);
    let explanation = place::explain_placed(&paired.plan, &placement, NANOS_PER_SECOND);
    let source = source::describe(&args.source, &placement.demands);
    let text = match args.json {
        true => {
            let plan: serde_json::Value =
                serde_json::from_str(&explanation.to_json()).map_err(Failure::world)?;
            format!("{}\n", json!({ "plan": plan, "source": source }))
        }
        false => {
            let source: String = source.iter().map(|line| format!("{line}\n")).collect();
            format!("{explanation}\n{source}")
        }
    };
    output::print(&text)?;
    Ok(Ending::Done)
}
