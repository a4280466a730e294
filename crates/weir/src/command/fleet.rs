//! `weir fleet`: the queries and hosts of a monitor.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use weir_sink::{text, time};
use weir_wire::Submit;

use crate::args::OutputArgs;
use crate::args::QuestionArgs;
use crate::args::{FleetArgs, QueryEngine, places};
use crate::command::fleet_backup::{self, BackupArgs, RestoreArgs};
use crate::command::fleet_flink::{self, FlinkArgs};
use crate::command::fleet_place::{self, PlaceArgs};
use weir_monitor::client::show::{self, PrintOptions};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::quantity;
use weir_runtime::run_loop::Stop;

/// List and manage the queries and hosts of a fleet
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir fleet queries\n  \
    weir fleet hosts --monitor monitor.example\n  \
    weir fleet watch load --format json\n  \
    weir fleet cancel load\n  \
    weir fleet backup -o queries.json\n  \
    weir fleet explain \"select vm, count(*) from IO [range 10 s slide 10 s] group by vm\"\n\n\
    The monitor is that of --monitor, otherwise that of WEIR_MONITOR, otherwise that of this host, \
    at unix:/run/weir-monitor/monitor.sock.")]
pub struct FleetCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Place a standing query: at the monitor, or in Flink over what monitors forward to Kafka
    ///
    /// A query that runs already is left as it is, so that the command can be repeated. In Flink,
    /// a job with another text is replaced by one that continues it.
    #[command(after_help = "Examples:\n  \
        weir fleet place load \"select vm, count(*) from IO [range 10 s slide 1 s] group by vm\"\n  \
        weir fleet place load --on flink --forward kafka://kafka1:9092/weir \\\n    \
        --gateway http://flink:8083 \"select vm, count(*) from IO [range 10 s slide 1 s] group by vm\"")]
    Place(PlaceArgs),
    /// List the running queries
    #[command(
        after_help = "Examples:\n  weir fleet queries\n  weir fleet queries --json\n  \
        weir fleet queries --on flink --gateway http://flink:8083"
    )]
    Queries(QueriesArgs),
    /// List the hosts
    #[command(after_help = "Examples:\n  weir fleet hosts --monitor monitor.example")]
    Hosts(ListArgs),
    /// Print the results of a running query
    #[command(
        after_help = "Examples:\n  weir fleet watch load\n  weir fleet watch load --format json --for 1m\n  \
        weir fleet watch load --on flink --forward kafka://kafka1:9092/weir"
    )]
    Watch(WatchArgs),
    /// Cancel a query
    #[command(after_help = "Examples:\n  weir fleet cancel load\n  \
        weir fleet cancel load --on flink --forward kafka://kafka1:9092/weir")]
    Cancel(CancelArgs),
    /// Print where each part of a query would run, and its cost
    #[command(after_help = "Examples:\n  \
        weir fleet explain \"select vm, count(*) from IO [range 10 s slide 10 s] group by vm\"")]
    Explain(ExplainArgs),
    /// Save the standing queries, stored views and placed alerts of the monitor
    ///
    /// Queries of the monitor's configuration, and those of the owners of VMs, are not included; the
    /// command names them.
    #[command(after_help = "Examples:\n  weir fleet backup -o queries.json")]
    Backup(BackupArgs),
    /// Place the standing queries and stored views of a backup
    ///
    /// What has the name of an existing query or view is not changed.
    #[command(
        after_help = "Examples:\n  weir fleet restore queries.json\n  weir fleet restore queries.json --check"
    )]
    Restore(RestoreArgs),
}

/// A list of queries or hosts.
#[derive(Args, Debug)]
struct ListArgs {
    /// Print JSON
    #[arg(short = 'j', long)]
    json: bool,
    #[command(flatten)]
    fleet: FleetArgs,
}

/// A list of queries.
#[derive(Args, Debug)]
struct QueriesArgs {
    #[command(flatten)]
    list: ListArgs,
    /// QueryEngine whose queries are listed
    #[arg(long, value_name = "ENGINE", value_enum, default_value_t = QueryEngine::Monitor)]
    on: QueryEngine,
    #[command(flatten)]
    flink: FlinkArgs,
}

#[derive(Args, Debug)]
struct WatchArgs {
    /// Name of the query, as listed by `weir fleet queries`
    #[arg(value_name = "NAME")]
    name: String,
    /// Stop after this time, such as 30s or 5m [default: until Ctrl-C or the end of the query]
    #[arg(long = "for", value_name = "DURATION", value_parser = quantity::span)]
    span: Option<Duration>,
    /// QueryEngine that runs the query
    #[arg(long, value_name = "ENGINE", value_enum, default_value_t = QueryEngine::Monitor)]
    on: QueryEngine,
    /// Print all results that Kafka has, and then the next ones
    #[arg(long)]
    from_start: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    flink: FlinkArgs,
    #[command(flatten)]
    fleet: FleetArgs,
}

#[derive(Args, Debug)]
struct CancelArgs {
    /// Name of the query, as listed by `weir fleet queries`
    #[arg(value_name = "NAME")]
    name: String,
    /// QueryEngine that runs the query
    #[arg(long, value_name = "ENGINE", value_enum, default_value_t = QueryEngine::Monitor)]
    on: QueryEngine,
    /// End the job of Flink only, and not the standing query of the monitor
    #[arg(long)]
    job_only: bool,
    /// The job reads what agents forward themselves, as with `fleet place --agents`: the monitor
    /// has no standing query for it
    #[arg(long)]
    agents: bool,
    /// Print the response as JSON
    #[arg(short = 'j', long)]
    json: bool,
    #[command(flatten)]
    flink: FlinkArgs,
    #[command(flatten)]
    fleet: FleetArgs,
}

#[derive(Args, Debug)]
struct ExplainArgs {
    #[command(flatten)]
    question: QuestionArgs,
    /// Placement strategy: agents send rows, partial aggregates, or the results that are local to a
    /// host [default: the strategy with the lowest cost]
    #[arg(long, value_name = "STRATEGY", value_parser = places())]
    place: Option<String>,
    /// Print JSON
    #[arg(short = 'j', long)]
    json: bool,
    #[command(flatten)]
    fleet: FleetArgs,
}

pub fn run(args: &FleetCommand) -> Result<Ending, Failure> {
    match &args.action {
        Action::Place(args) => fleet_place::place(args),
        Action::Queries(QueriesArgs { list, on, flink }) => {
            on.refuse(flink, None, false)?;
            if *on == QueryEngine::Flink {
                return listed(&fleet_flink::jobs(flink)?, list.json, JOBS);
            }
            let queries = list.fleet.connect()?.queries()?;
            listed(&queries, list.json, QUERIES)
        }
        Action::Hosts(args) => {
            let hosts = args.fleet.connect()?.hosts()?;
            listed(&hosts, args.json, HOSTS)
        }
        Action::Watch(args) => watch(args),
        Action::Backup(args) => fleet_backup::backup(args),
        Action::Restore(args) => fleet_backup::restore(args),
        Action::Cancel(args) => {
            let job_only = args.job_only || args.agents;
            args.on.refuse(&args.flink, None, job_only)?;
            let mut answer = json!({});
            let jobs = match args.on {
                QueryEngine::Flink => Some(fleet_flink::cancel(&args.flink, &args.name)?),
                QueryEngine::Monitor => None,
            };
            if !job_only {
                answer = args.fleet.connect()?.cancel(&args.name)?;
            }
            if let Some(jobs) = jobs {
                answer["jobs"] = json!(jobs);
            }
            if args.json {
                output::print(&format!("{answer}\n"))?;
            }
            Ok(Ending::Done)
        }
        Action::Explain(args) => {
            let question = args.question.read()?;
            let submit = Submit {
                query: question.text,
                place: args.place.clone(),
                ..Submit::default()
            };
            explain(&args.fleet, &submit, None, args.json)
        }
    }
}

fn watch(args: &WatchArgs) -> Result<Ending, Failure> {
    args.on.refuse(&args.flink, None, args.from_start)?;
    if args.on == QueryEngine::Flink {
        let WatchArgs { name, output, .. } = args;
        return fleet_flink::watch(&args.flink, name, output, args.span, args.from_start);
    }
    let stop = Stop::on_signals()?;
    let mut client = args.fleet.connect()?;
    let placed = client.describe(&args.name)?;
    let answer = show::answer(&placed, args.output.raw)?;
    let sink = args.output.open(answer.clone(), true)?;
    // A client that only watches does not end the query.
    let options = PrintOptions {
        query: &placed,
        standing: true,
        duration: args.span,
        instant_ns: 1,
    };
    show::print_results(&mut client, &options, &answer, sink, &stop)
}

/// Prints where each part of a query would run in a monitor's fleet; with `analyze`, after it has
/// run there for this time.
///
/// # Errors
/// When the monitor rejects the query or cannot be reached.
pub fn explain(
    fleet: &FleetArgs,
    submit: &Submit,
    analyze: Option<Duration>,
    json: bool,
) -> Result<Ending, Failure> {
    let mut client = fleet.connect()?;
    let mut ending = Ending::Done;
    let mut ran = None;
    if let Some(span) = analyze {
        let stop = Stop::on_signals()?;
        let placed = client.submit(submit)?;
        // A query without clients ends.
        let watch = client.watch(&placed.name)?;
        stop.wait(span);
        ending = stop.signal().map_or(Ending::Done, Ending::Signal);
        ran = Some((placed.name, watch));
    }
    let explained = client.explain(submit);
    if let Some((name, _watch)) = ran {
        // If this fails, the query ends some seconds later without clients.
        let _ = client.cancel(&name);
    }
    let explained = explained?;
    let text = explained["text"].as_str().unwrap_or_default();
    output::print(&match json {
        true => format!("{}\n", explained["plan"]),
        false => format!("{}\n", text.trim_end()),
    })?;
    Ok(ending)
}

/// A column of a list: its title, the key in the monitor's JSON, and how its value is shown.
type Column = (&'static str, &'static str, fn(&Value) -> String);

/// The columns of the list of queries.
const QUERIES: &[Column] = &[
    ("NAME", "name", plain),
    ("PLACED BY", "owner", plain),
    ("SINCE", "since", instant),
    ("STANDING", "standing", plain),
    ("STRATEGY", "strategy", plain),
    ("CLIENTS", "clients", plain),
    ("ROWS OUT", "rows_out", plain),
    ("FAILED", "failed", plain),
    ("RESPONDED", "responded", plain),
    ("LOST", "rows_lost", plain),
    ("LATE", "rows_late", plain),
    ("QUERY", "query", plain),
];

/// The columns of the list of jobs.
const JOBS: &[Column] = &[
    ("RESULTS", "results", plain),
    ("STATE", "state", plain),
    ("SINCE", "since", plain),
    ("JOB", "job", plain),
    ("NUMBER", "number", plain),
];

/// The columns of the list of hosts.
const HOSTS: &[Column] = &[
    ("HOST", "host", plain),
    ("ADDRESS", "address", plain),
    ("STATE", "state", plain),
    ("SINCE", "since", instant),
    ("OFFSET", "offset_ns", nanos),
    ("ERROR", "offset_error_ns", nanos),
    ("LAG", "lag_ns", nanos),
    ("ROWS", "rows_in", plain),
    ("LOST", "rows_lost", plain),
    ("LATE", "rows_late", plain),
    ("WAITING", "waiting_bytes", plain),
    ("KEPT", "kept_share", plain),
    ("SELF-TEST", "self_test", plain),
    ("VERSION", "version", plain),
];

/// Prints a list as JSON or as a table.
fn listed(list: &Value, json: bool, columns: &[Column]) -> Result<Ending, Failure> {
    if json {
        output::print(&format!("{list}\n"))?;
        return Ok(Ending::Done);
    }
    let mut rows = vec![columns.iter().map(|c| c.0.to_owned()).collect::<Vec<_>>()];
    for item in list.as_array().into_iter().flatten() {
        rows.push(
            columns
                .iter()
                .map(|(_, key, show)| show(&item[*key]))
                .collect(),
        );
    }
    output::print(&weir_sink::text::aligned(&rows))?;
    Ok(Ending::Done)
}

/// A value as text. Control characters are escaped, since names and queries come from other users.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Bool(flag) => if *flag { "yes" } else { "no" }.to_owned(),
        Value::String(words) => {
            let line: Vec<&str> = words.split_whitespace().collect();
            text::shown(&line.join(" ")).to_string()
        }
        other => other.to_string(),
    }
}

fn instant(value: &Value) -> String {
    value.as_i64().map_or("-".to_owned(), time::timestamp)
}

fn nanos(value: &Value) -> String {
    let ms = |ns: i64| format!("{:.3} ms", ns as f64 / 1e6);
    value.as_i64().map_or("-".to_owned(), ms)
}
