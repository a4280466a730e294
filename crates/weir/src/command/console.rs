//! `weir console`: serves a page and an HTTP API on this host.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{Args, CommandFactory};
use weir_console::lease_api::LeasePermissions;
use weir_console::shared_source::COMMAND;
use weir_console::{Console, ConsoleOptions, Program};

use super::act::DIRECTORY;
use super::{Cli, sql};
use crate::args::{
    DefinitionArgs, FleetArgs, LimitArgs, LogArgs, RecentArgs, SourceArgs, agents_choose,
};
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
/// heat maps of their requests, an editor for queries, recordings, alerts and leases. The console
/// listens on the loopback interface only; from another host, forward its port: ssh -L
/// 19350:127.0.0.1:19350 HOST.
///
/// Live queries of requests run in one process, which also retains the requests of the last
/// minutes; other queries are a process each. They drop their privileges as `weir query` does. With
/// --monitor, the page is that of a fleet, with the rights of the given token or certificate.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir console\n  \
    weir console --from recording.parquet\n  \
    weir console --recordings /var/lib/weir/recordings\n  \
    weir console --monitor monitor.example\n  \
    weir console --act 'batch-*'\n  \
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
    /// Folder of recordings that the page lists, compares and opens [default: none]
    #[arg(long, value_name = "DIR")]
    recordings: Option<PathBuf>,
    /// File with the alerts of the page [default: the rules that come with weir]
    #[arg(long, value_name = "FILE")]
    alerts: Option<PathBuf>,
    /// Permit clients to end leases of `weir act`
    #[arg(long)]
    end_leases: bool,
    /// Permit clients to limit the disks of these VMs for some time, and to end leases: a name, in
    /// which * stands for any text; may be repeated [default: clients limit nothing]
    #[arg(long, value_name = "VM")]
    act: Vec<String>,
    /// Directory of the leases
    #[arg(long, value_name = "DIR", default_value = DIRECTORY)]
    act_state: PathBuf,
    #[command(flatten)]
    recent: RecentArgs,
    #[command(flatten)]
    fleet: FleetArgs,
    /// The console of a VM's owner: queries read the rows of this VM only, and there are neither
    /// alerts nor leases; with --monitor, a token with role vm:NAME does the same
    #[arg(short = 'w', long, value_name = "VM",
          conflicts_with_all = ["monitor", "alerts", "end_leases", "act"])]
    only_vm: Option<String>,
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
    if args.fleet.monitor.is_some() {
        agents_choose(&args.source)?;
    }
    if let Some(folder) = &args.recordings {
        let listed = std::fs::read_dir(folder);
        let name = folder.display();
        listed.map_err(|e| Failure::words(format_args!("--recordings {name}: {e}")))?;
    }
    let stop = Stop::on_signals()?;
    let console = Console::start(ConsoleOptions {
        listen: args.listen,
        program: program(args),
        queries_max: args.queries_max.into(),
        recordings: args.recordings.clone(),
        only_vm: args.only_vm.clone(),
        leases: LeasePermissions {
            ends: args.end_leases,
            limits: args.act.clone(),
            options: vec!["--state".into(), args.act_state.clone().into()],
        },
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
    let named = |option: &str, values: &[PathBuf]| -> Vec<OsString> {
        let pairs = values.iter().map(|value| [option.into(), value.into()]);
        pairs.flatten().collect()
    };
    let from: Vec<PathBuf> = args.source.from.iter().map(PathBuf::from).collect();
    // The default is not an option: with a monitor, the agents choose.
    let is_given = given.value_source("from") == Some(ValueSource::CommandLine);
    let from = named("--from", if is_given { &from } else { &[] });
    let define = named("--define", &args.define.define);
    let of_source = |command: &str| sql::options(name, given, &[command]);
    let shared_options = [&from[..], &define, &of_source(COMMAND)].concat();
    let alerts: Vec<PathBuf> = args.alerts.clone().into_iter().collect();
    let alert_options = sql::options(name, given, &["alert", "watch"]);
    Program {
        executable: PROGRAM.into(),
        query_options: of_source("query"),
        explain_options: of_source("explain"),
        recording_options: vec![
            "--limit-memory".into(),
            args.limits.limit_memory.to_string().into(),
        ],
        owner_options: {
            let vm = args.only_vm.iter();
            vm.map(|vm| OsString::from(format!("--only-vm={vm}")))
                .collect()
        },
        alert_options: [&alert_options[..], &named("--file", &alerts), &from].concat(),
        monitor: args.fleet.monitor.as_ref().map(OsString::from),
        fleet_options: sql::options(name, given, &["fleet", "hosts"]),
        live: args.source.is_live(),
        from,
        define,
        shared_options,
    }
}

fn write_token(path: &Path, token: &str) -> Result<(), Failure> {
    let failed = |e| Failure::world(format!("{}: {e}", path.display()));
    let mut options = OpenOptions::new();
    let file = private::open(options.write(true).create(true).truncate(true), path);
    writeln!(file.map_err(failed)?, "{token}").map_err(failed)
}
