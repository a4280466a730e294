//! `weir console`: serves a page and an HTTP API on this host.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, CommandFactory};
use weir_console::{Console, ConsoleOptions, Program};

use super::{Cli, sql};
use crate::args::{DefinitionArgs, LimitArgs, LogArgs, SourceArgs};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::private;
use weir_runtime::run_loop::Stop;

/// This executable, also when its file has been replaced.
const PROGRAM: &str = "/proc/self/exe";

/// The wait between two checks for a signal is bounded by this.
const WAIT: Duration = Duration::from_secs(3600);

/// Serve a page in the browser, and queries over HTTP
///
/// Prints a link, which signs in one browser; then the next one. The page has the disks by load,
/// latency and size heat maps, and an editor for queries. The console listens on the loopback
/// interface only; from another host, forward its port: ssh -L 19350:127.0.0.1:19350 HOST.
///
/// Each query is a process. They drop their privileges as `weir query` does.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir console\n  \
    weir console --from recording.parquet\n  \
    weir console --write-token ~/.weir-token")]
pub struct ConsoleArgs {
    /// Address of the loopback interface: IP:PORT; port 0 selects any port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:19350")]
    listen: SocketAddr,
    /// Write the token for `curl -H 'Authorization: Bearer TOKEN'` to this file, which only its
    /// owner can read [default: no file]
    #[arg(long, value_name = "FILE")]
    write_token: Option<PathBuf>,
    /// Maximum number of queries that run at a time
    #[arg(long, value_name = "COUNT", default_value = "32", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    queries_max: u16,
    #[command(flatten)]
    define: DefinitionArgs,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    log: LogArgs,
}

pub fn run(args: &ConsoleArgs, verbose: bool) -> Result<Ending, Failure> {
    args.log.open(verbose)?;
    let stop = Stop::on_signals()?;
    let console = Console::start(ConsoleOptions {
        listen: args.listen,
        program: program(args),
        queries_max: args.queries_max.into(),
        on_link: Box::new(|link| {
            // Without a reader of standard output, the console still serves its clients.
            let _ = output::print(&format!("{link}\n"));
        }),
    })?;
    if let Some(path) = &args.write_token {
        write_token(path, console.token())?;
    }
    match args.source.span {
        Some(span) => drop(stop.wait(span)),
        None => while stop.wait(WAIT) {},
    }
    drop(console);
    Ok(stop.signal().map_or(Ending::Done, Ending::Signal))
}

/// The processes of queries, with the options of this command line.
fn program(args: &ConsoleArgs) -> Program {
    let matches = Cli::command().get_matches();
    let (name, given) = matches.subcommand().expect("this command");
    let from = args.source.from.iter();
    let from = from.flat_map(|name| ["--from".into(), name.into()]);
    let define = args.define.define.iter();
    let define = define.flat_map(|file| ["--define".into(), file.into()]);
    Program {
        executable: PROGRAM.into(),
        sources: from.chain(define).collect(),
        query_options: sql::options(name, given, &["query"]),
        explain_options: sql::options(name, given, &["explain"]),
        live: args.source.is_live(),
    }
}

fn write_token(path: &Path, token: &str) -> Result<(), Failure> {
    let failed = |e| Failure::world(format!("{}: {e}", path.display()));
    let mut options = OpenOptions::new();
    let file = private::open(options.write(true).create(true).truncate(true), path);
    writeln!(file.map_err(failed)?, "{token}").map_err(failed)
}
