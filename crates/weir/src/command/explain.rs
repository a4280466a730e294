//! `weir explain QUERY`: the plan of a query, and where each part of it runs. `weir explain W0103`:
//! the meaning of a diagnostic code.

use std::sync::Arc;

use clap::Args;
use serde_json::json;
use weir_forward::KafkaUrl;
use weir_model::NANOS_PER_SECOND;
use weir_query::diagnostic::codes;
use weir_query::physical::physical;
use weir_query::{Plan, place};
use weir_wire::Submit;

use super::explain_flink::{self, ForwardedBy};
use crate::args::QuestionArgs;
use crate::args::SourceArgs;
use crate::args::{self, DefinitionArgs, FleetArgs, OwnerArgs};
use weir_monitor::client;
use weir_monitor::client::Answers;
use weir_runtime::device_names;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::plans;
use weir_runtime::run_loop::Stop;
use weir_runtime::source;

/// Print the plan of a query, or the meaning of a diagnostic code
///
/// The plan contains each operator with the place where it runs: the kernel, this process, an agent
/// or the monitor. The query is not run, except with --analyze.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir explain \"select count(*) from IO [range 1 s] where op = 'r' and latency > 1 ms\"\n  \
    weir explain --analyze --for 5s \"select vm, count(*) from IO [range 1 s slide 1 s] group by vm\"\n  \
    weir explain --fleet \"select vm, count(*) from IO [range 10 s slide 1 s] group by vm\"\n  \
    weir explain --fleet --analyze --from recording.parquet \"select vm, count(*) from IO [range 10 s slide 1 s] group by vm\"\n  \
    weir explain --flink \"select vm, count(*), max(latency) from IO [range 10 s slide 1 s] group by vm\"\n  \
    weir explain --flink --forward kafka://kafka1:9092 --name load \"select vm, count(*) from IO [range 10 s slide 1 s] group by vm\"\n  \
    weir explain W0103")]
pub struct ExplainArgs {
    #[command(flatten)]
    question: QuestionArgs,
    #[command(flatten)]
    define: DefinitionArgs,
    /// Print JSON
    #[arg(short = 'j', long)]
    json: bool,
    /// Run the query for the time of --for [default: 5s] and print its rows and processor time
    #[arg(long)]
    analyze: bool,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    owner: OwnerArgs,
    #[command(flatten)]
    fleet: FleetArgs,
    /// Print how the query is split between agents and monitor, and the cost of each placement
    /// strategy for an agent on a host like this one; with --analyze, each strategy is run here
    #[arg(long = "fleet", help_heading = "Fleet", conflicts_with = "monitor")]
    for_fleet: bool,
    /// Number of hosts of the fleet
    #[arg(long, help_heading = "Fleet", value_name = "COUNT", default_value = "10", requires = "for_fleet",
        value_parser = clap::value_parser!(u32).range(1..))]
    hosts: u32,
    /// Placement strategy: agents send rows, partial aggregates, or the results that are local to a
    /// host [default: the strategy with the lowest cost]
    #[arg(long, help_heading = "Fleet", value_name = "STRATEGY", value_parser = args::places())]
    place: Option<String>,
    /// Print the query in Flink SQL with the tables that it reads, or why Flink cannot answer it
    #[arg(long, help_heading = "Flink", conflicts_with_all = ["monitor", "for_fleet", "analyze"])]
    flink: bool,
    /// Option of the tables' connector or format, such as
    /// properties.bootstrap.servers=kafka1:9092; `{stream}` stands for the name of the stream; may
    /// be repeated; with connector=NAME the defaults do not apply [default: topic weir.{stream} of
    /// Kafka at localhost:9092, as JSON]
    #[arg(long = "flink-with", help_heading = "Flink", value_name = "KEY=VALUE", requires = "flink",
        value_parser = explain_flink::option)]
    flink_with: Vec<(String, String)>,
    /// Jar with weir's functions, as Flink finds it [default: they are in Flink's class path]
    #[arg(
        long = "flink-jar",
        help_heading = "Flink",
        value_name = "PATH",
        requires = "flink"
    )]
    flink_jar: Option<String>,
    #[command(flatten)]
    forwarded: ForwardedArgs,
}

/// Over what the agents of a fleet send, which is forwarded.
#[derive(Args, Debug)]
struct ForwardedArgs {
    /// Read what agents send for the standing query of --name, which a monitor forwards to this
    /// URL (`weir monitor --forward`), or with --agents the agents themselves [default: read the
    /// rows of streams]
    #[arg(long, help_heading = "Flink", value_name = "URL", requires_all = ["flink", "name"])]
    forward: Option<KafkaUrl>,
    /// Name of the standing query whose rows are forwarded
    #[arg(
        long,
        help_heading = "Flink",
        value_name = "NAME",
        requires = "forward"
    )]
    name: Option<String>,
    /// The agents forward the rows, each to topics of its host (`weir agent --forward`)
    #[arg(long, help_heading = "Flink", requires = "forward")]
    agents: bool,
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
    if is_code(question.text.trim()) {
        return Err(Failure::words(format_args!(
            "unknown diagnostic code `{}`; docs/reference/diagnostics.md lists the codes",
            question.text.trim()
        )));
    }
    let question = args.define.before(question, &args.source)?;
    if args.fleet.monitor.is_some() {
        args.owner.refuse_at_monitor()?;
        let submit = Submit {
            query: question.text,
            place: args.place.clone(),
            ..Submit::default()
        };
        let span = args.source.span.unwrap_or(client::SPAN);
        let analyze = args.analyze.then_some(span);
        return super::fleet::explain(&args.fleet, &submit, analyze, args.json);
    }
    if args.place.is_some() && !args.for_fleet && args.forwarded.forward.is_none() {
        let why = "--place requires --fleet, --forward or --monitor";
        return Err(Failure::words(why));
    }
    let checked = question.compile_over(&args.source)?;
    let plan = args.owner.restricted(checked.plan)?;
    if args.flink {
        let flink = match (&args.forwarded.forward, &args.forwarded.name) {
            (Some(url), Some(name)) => {
                let by = ForwardedBy::agents(args.forwarded.agents);
                explain_flink::of_forwarded(&plan, url, name, args.place.as_deref(), by)?
            }
            _ => explain_flink::of_streams(&plan)?,
        };
        let jar = args.flink_jar.as_deref();
        output::print(&explain_flink::text(
            &flink,
            &args.flink_with,
            jar,
            args.json,
        ))?;
        return Ok(Ending::Done);
    }
    if args.for_fleet {
        let paired = plans::paired(&plan, &args.source.capabilities()?);
        let place = args.place.as_deref();
        let explained =
            client::explain(&paired.plan, args.hosts, place, &args.source, args.analyze)?;
        output::print(&match args.json {
            true => format!("{}\n", explained.to_json()?),
            false => explained.text(),
        })?;
        return Ok(explained.ending);
    }
    of_this_host(args, &device_names::resolved(&plan, &args.source))
}

/// Whether `text` has the form of a diagnostic code: `W` and four digits.
fn is_code(text: &str) -> bool {
    let digits = text.strip_prefix(['W', 'w']);
    digits.is_some_and(|d| d.len() == 4 && d.bytes().all(|b| b.is_ascii_digit()))
}

fn of_this_host(args: &ExplainArgs, plan: &Arc<Plan>) -> Result<Ending, Failure> {
    let capabilities = args.source.capabilities()?;
    let paired = plans::paired(plan, &capabilities);
    let mut placement = plans::placed(&[&paired.plan], &capabilities);
    placement.add_reasons(paired.reasons);
    let explanation = place::explain_placed(&paired.plan, &placement, NANOS_PER_SECOND);
    let explanation = explanation.at_source(args.source.part());
    let (source, measured, ending) = match args.analyze {
        false => (
            source::describe(&args.source, &placement.demands),
            None,
            None,
        ),
        true => {
            let stop = Stop::on_signals()?;
            let inputs = source::open(&args.source, &placement, &stop)?;
            let source = inputs.iter().flat_map(|i| i.tap.describe()).collect();
            let (plans, from) = ([&*paired.plan], &args.source);
            let (measured, ending) =
                client::measure(&plans, &placement, from, inputs, Answers::Dropped, &stop)?;
            (source, Some(measured), Some(ending))
        }
    };
    let span = |instants| weir_query::place::span_text(instants, NANOS_PER_SECOND);
    let operators = physical(&Arc::new(placement.plans[0].clone())).operators(&span);
    let text = match args.json {
        true => {
            let plan: serde_json::Value =
                serde_json::from_str(&explanation.to_json()).map_err(Failure::world)?;
            let operators = operators.iter();
            let operators: Vec<_> = operators
                .map(|(depth, title)| json!({ "depth": depth, "operator": title }))
                .collect();
            let mut json = json!({ "plan": plan, "operators": operators, "source": source });
            if let Some(measured) = measured {
                json["measured"] = measured.to_json();
            }
            format!("{json}\n")
        }
        false => {
            let source: String = source.iter().map(|line| format!("{line}\n")).collect();
            let measured = measured.map_or(String::new(), |m| format!("\n{m}"));
            let operators = operators.iter();
            let operators: String = operators
                .map(|(depth, title)| format!("  {:1$}{title}\n", "", 2 * depth))
                .collect();
            format!("{explanation}\noperators of the engine:\n{operators}\n{source}{measured}")
        }
    };
    output::print(&text)?;
    Ok(ending.unwrap_or(Ending::Done))
}
