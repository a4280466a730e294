//! `weir sql`: a prompt for statements in CQL, and the run of a file of them.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output::OutputOptions;
use weir_view::prompt::{self, PromptOptions};

use super::Cli;
use crate::args::{DefinitionArgs, FleetArgs, LimitArgs, RowArgs, SourceArgs};

/// Run statements in CQL that are typed at a prompt, or in a file
///
/// On a terminal, a prompt with history, completion (Tab) and search (Ctrl-R). A statement ends
/// with `;`; its query runs as in `weir query`, until Ctrl-C. `\?` lists the commands of the prompt,
/// Ctrl-D leaves. Without a terminal the statements of standard input run in order; the first one
/// that fails ends the command, with its exit status.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir sql\n  \
    weir sql --from recording.parquet\n  \
    weir sql --monitor monitor.example\n  \
    weir sql --from recording.parquet --format csv < queries.sql\n  \
    weir sql --for 10s --file queries.sql")]
pub struct SqlArgs {
    /// Run the statements of this file instead of a prompt; `-` is standard input
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    define: DefinitionArgs,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    rows: RowArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    fleet: FleetArgs,
}

pub fn run(args: &SqlArgs) -> Result<Ending, Failure> {
    prompt(
        &args.source,
        &args.define,
        &args.fleet,
        &args.rows.clone().into(),
        args.file.clone(),
    )
}

/// Starts the prompt with the options of the command line.
pub fn prompt(
    source: &SourceArgs,
    define: &DefinitionArgs,
    fleet: &FleetArgs,
    output: &OutputOptions,
    file: Option<PathBuf>,
) -> Result<Ending, Failure> {
    let matches = Cli::command().get_matches();
    let (name, given) = matches.subcommand().expect("this command");
    prompt::run(PromptOptions {
        source: (**source).clone(),
        monitor: fleet.monitor.clone(),
        format: output.format.clone(),
        query_options: options(name, given, &["query"]),
        explain_options: options(name, given, &["explain"]),
        fleet_options: options(name, given, &["fleet", "queries"]),
        define: define.define.clone(),
        file,
    })
}

/// Options that the prompt sets itself.
const OF_PROMPT: [&str; 6] = ["from", "monitor", "format", "span", "define", "file"];

/// The given options of command `name` that command `other` has as well, without those that name
/// sources, formats and definitions.
pub fn options(name: &str, given: &ArgMatches, other: &[&str]) -> Vec<OsString> {
    let cli = Cli::command();
    let own = cli.find_subcommand(name).expect("a command");
    let find = |command: &clap::Command, name: &&str| command.find_subcommand(name).cloned();
    let other = other
        .iter()
        .try_fold(cli.clone(), |at, name| find(&at, name));
    let other = other.expect("a command");
    let mut options = Vec::new();
    for arg in own.get_arguments() {
        let id = arg.get_id().as_str();
        let is_set = given.value_source(id) == Some(ValueSource::CommandLine);
        let is_known = other.get_arguments().any(|known| known.get_id() == id);
        let Some(long) = arg.get_long().filter(|_| is_set && is_known) else {
            continue;
        };
        if OF_PROMPT.contains(&id) {
            continue;
        }
        match arg.get_action().takes_values() {
            true => {
                let values = given.get_raw(id).into_iter().flatten();
                let option = |value: &std::ffi::OsStr| [format!("--{long}").into(), value.into()];
                options.extend(values.flat_map(option));
            }
            false => options.push(format!("--{long}").into()),
        }
    }
    if given.get_flag("verbose") {
        options.push("--verbose".into());
    }
    options
}
