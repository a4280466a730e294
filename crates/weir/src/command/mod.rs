//! The commands, one per file.

mod act;
mod act_serve;
mod act_test;
mod advise;
mod agent;
mod alert;
mod alert_place;
mod alert_silence;
mod alert_suggest;
mod alert_test;
mod alert_watch;
mod certificates;
mod characterise;
mod check;
mod completions;
mod console;
mod console_source;
mod convert;
mod correlate;
mod diskstats;
mod doctor;
mod explain;
mod explain_flink;
mod exporter;
mod fleet;
mod fleet_backup;
mod fleet_flink;
mod fleet_place;
mod fleet_rows;
mod functions;
mod hist;
mod hist_collector;
mod info;
mod inspection;
mod iostat;
mod iostat_devices;
mod man;
mod monitor;
#[cfg(test)]
mod option_names;
mod outliers;
mod path;
mod probe_cost;
mod probes;
mod qemu_guard;
pub mod query;
mod record;
mod run;
mod sql;
mod streams;
mod tapdisk;
mod tapdisk_insert;
mod tapdisk_remove;
mod tapdisk_status;
mod top;
mod top_run;
mod tune;
mod watch;

use std::io::IsTerminal;

use clap::{CommandFactory, Parser, Subcommand};

use weir_tap::elevation;

use crate::version;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;

/// The order of the parts of `weir --help`; the groups of commands are before the options.
const HELP: &str = "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}Options:\n\
                    {options}{after-help}\n";

/// The exit status of all commands.
pub const EXIT_STATUS: &str = "Exit status:\n  \
    0      success\n  \
    1      runtime error\n  \
    2      usage error or invalid query\n  \
    128+N  ended by signal N, after the output was flushed; 130 for Ctrl-C";

/// The commands to start with.
const FIRST: &str = "Start with:\n  \
    weir doctor\n  \
    weir top\n  \
    weir query \"select op, count(*) from IO [range 5 s slide 1 s] group by op\"\n  \
    weir sql\n  \
    weir record --for 60s -o io.parquet\n  \
    weir characterise --from io.parquet\n";

/// The commands by use.
const GROUPS: &[(&str, &[&str])] = &[
    (
        "Watch",
        &[
            "top",
            "console",
            "path",
            "iostat",
            "hist",
            "diskstats",
            "exporter",
        ],
    ),
    (
        "Query",
        &[
            "query",
            "sql",
            "watch",
            "run",
            "explain",
            "check",
            "streams",
            "functions",
            "probes",
        ],
    ),
    ("Record", &["record", "info", "convert"]),
    (
        "Characterise",
        &["characterise", "outliers", "correlate", "advise", "tune"],
    ),
    ("Alert", &["alert", "act"]),
    ("Fleet", &["agent", "monitor", "fleet", "certificates"]),
    ("Disks", &["tapdisk"]),
    ("Setup", &["doctor", "completions", "man"]),
];

/// The overview of `weir --help`: the commands to start with, and all commands by use.
fn overview() -> String {
    let commands = Command::augment_subcommands(clap::Command::new("weir"));
    let line = |name: &&str| {
        let command = commands.find_subcommand(name).expect("a command");
        let about = command.get_about().map(ToString::to_string);
        format!("  {name:14}{}\n", about.unwrap_or_default())
    };
    let group = |(title, names): &(&str, &[&str])| {
        let lines: String = names.iter().map(line).collect();
        format!("\n{title}:\n{lines}")
    };
    let groups: String = GROUPS.iter().map(group).collect();
    format!("{FIRST}{groups}\n`weir COMMAND --help` describes a command.")
}

/// The command line.
#[derive(Parser, Debug)]
#[command(
    name = "weir",
    disable_version_flag = true,
    about = "Query the block I/O of virtual machines and hosts in CQL, live or from recordings",
    help_template = HELP,
    before_help = overview(),
    after_help = EXIT_STATUS
)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Print more to standard error: all counters and, with an error, the kernel's messages
    #[arg(short, long, global = true)]
    verbose: bool,
    /// Print the version; with --verbose also the commit, features, libbpf and the BPF objects
    #[arg(short = 'V', long)]
    version: bool,
}

impl Cli {
    /// Whether more is printed on standard error.
    pub fn verbose(&self) -> bool {
        self.verbose
    }
}

/// Every command, in the order of [`GROUPS`].
#[derive(Subcommand, Debug)]
enum Command {
    Top(top::TopArgs),
    Console(console::ConsoleArgs),
    Path(path::PathArgs),
    Iostat(iostat::IostatArgs),
    Hist(hist::HistArgs),
    Diskstats(diskstats::DiskstatsArgs),
    Exporter(exporter::ExporterArgs),
    Query(query::QueryArgs),
    Sql(sql::SqlArgs),
    Watch(watch::WatchArgs),
    Run(run::RunArgs),
    Explain(explain::ExplainArgs),
    Check(check::CheckArgs),
    Streams(streams::StreamsArgs),
    Functions(functions::FunctionsArgs),
    Probes(probes::ProbesArgs),
    Record(record::RecordArgs),
    Info(info::InfoArgs),
    Convert(convert::ConvertArgs),
    Characterise(characterise::CharacteriseArgs),
    Outliers(outliers::OutliersArgs),
    Correlate(correlate::CorrelateArgs),
    Advise(advise::AdviseArgs),
    Tune(Box<tune::TuneArgs>),
    Alert(alert::AlertCommand),
    Act(act::ActCommand),
    Agent(agent::AgentArgs),
    Monitor(monitor::MonitorArgs),
    Fleet(fleet::FleetCommand),
    Certificates(certificates::CertificatesArgs),
    Tapdisk(Box<tapdisk::TapdiskArgs>),
    Doctor(doctor::DoctorArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
    #[command(hide = true, name = weir_view::hist::COLLECTOR)]
    HistCollector,
    #[command(hide = true, name = weir_runtime::source::QEMU_GUARD)]
    QemuGuard,
    #[command(hide = true, name = weir_runtime::source::INSPECTION)]
    Inspection,
    #[command(hide = true, name = weir_console::shared_source::COMMAND)]
    ConsoleSource(console_source::ConsoleSourceArgs),
}

impl Command {
    /// Whether it may observe the host's I/O or its VMs. Other commands drop the capabilities of
    /// the binary's file, in particular those that serve images and those that control QEMU.
    fn reads_host(&self) -> bool {
        matches!(
            self,
            Command::Top(_)
                | Command::Path(_)
                | Command::Iostat(_)
                | Command::Hist(_)
                | Command::HistCollector
                | Command::Diskstats(_)
                | Command::Exporter(_)
                | Command::Characterise(_)
                | Command::Outliers(_)
                | Command::Correlate(_)
                | Command::Advise(_)
                | Command::Tune(_)
                | Command::Alert(_)
                | Command::Act(_)
                | Command::Query(_)
                | Command::Sql(_)
                | Command::Watch(_)
                | Command::Run(_)
                | Command::Explain(_)
                | Command::Record(_)
                | Command::Probes(_)
                | Command::Agent(_)
                | Command::Doctor(_)
                | Command::Inspection
                | Command::ConsoleSource(_)
        )
    }
}

/// Runs the command.
///
/// # Errors
/// The error of the command.
pub fn run(cli: Cli) -> Result<Ending, Failure> {
    if cli.version {
        let text = if cli.verbose {
            version::long()
        } else {
            version::short()
        };
        output::print(&text)?;
        return Ok(Ending::Done);
    }
    let Some(command) = cli.command else {
        if std::io::stdout().is_terminal() {
            return run(Cli::parse_from(["weir", "top"]));
        }
        Cli::command().print_help()?;
        return Ok(Ending::Done);
    };
    if !command.reads_host() {
        elevation::give_up()?;
    }
    match command {
        Command::Top(args) => top::run(&args, cli.verbose),
        Command::Console(args) => console::run(&args, cli.verbose),
        Command::Path(args) => path::run(&args, cli.verbose),
        Command::Iostat(args) => iostat::run(&args, cli.verbose),
        Command::Hist(args) => hist::run(&args, cli.verbose),
        Command::Diskstats(args) => diskstats::run(&args, cli.verbose),
        Command::Exporter(args) => exporter::run(&args, cli.verbose),
        Command::Characterise(args) => characterise::run(&args, cli.verbose),
        Command::Outliers(args) => outliers::run(&args, cli.verbose),
        Command::Correlate(args) => correlate::run(&args, cli.verbose),
        Command::Advise(args) => advise::run(&args, cli.verbose),
        Command::Tune(args) => tune::run(&args),
        Command::Alert(args) => alert::run(&args, cli.verbose),
        Command::Act(args) => act::run(&args, cli.verbose),
        Command::Query(args) => query::run(&args, cli.verbose),
        Command::Sql(args) => sql::run(&args),
        Command::Watch(args) => watch::run(&args, cli.verbose),
        Command::Run(args) => run::run(&args, cli.verbose),
        Command::Explain(args) => explain::run(&args),
        Command::Monitor(args) => monitor::run(&args, cli.verbose),
        Command::Fleet(args) => fleet::run(&args),
        Command::Certificates(args) => certificates::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Streams(args) => streams::run(&args),
        Command::Functions(args) => functions::run(&args),
        Command::Probes(args) => probes::run(&args),
        Command::Record(args) => record::run(&args, cli.verbose),
        Command::Info(args) => info::run(&args, cli.verbose),
        Command::Convert(args) => convert::run(&args, cli.verbose),
        Command::Agent(args) => agent::run(&args, cli.verbose),
        Command::Tapdisk(args) => tapdisk::run(&args, cli.verbose),
        Command::Doctor(args) => doctor::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
        Command::HistCollector => hist_collector::run(),
        Command::QemuGuard => qemu_guard::run(),
        Command::Inspection => inspection::run(),
        Command::ConsoleSource(args) => console_source::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_visible_command_is_in_one_group_of_the_help() {
        let commands = Command::augment_subcommands(clap::Command::new("weir"));
        let visible = commands.get_subcommands().filter(|c| !c.is_hide_set());
        let visible: Vec<&str> = visible.map(clap::Command::get_name).collect();
        let grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        assert_eq!(grouped, visible);
        let long = overview();
        let long: Vec<&str> = long.lines().filter(|line| line.len() > 80).collect();
        assert!(long.is_empty(), "{long:?}");
    }

    /// The options and arguments of a command and of its subcommands, with the command's name.
    fn arguments(command: &clap::Command) -> Vec<(String, clap::Arg)> {
        let own = command.get_arguments().filter(|arg| !arg.is_hide_set());
        let name = command.get_name();
        let own = own.map(|arg| (name.to_owned(), arg.clone()));
        let below = command.get_subcommands().flat_map(arguments);
        own.chain(below).collect()
    }

    #[test]
    fn every_option_has_help_and_a_named_value() {
        let mut bad = BTreeSet::new();
        for (command, arg) in arguments(&Cli::command()) {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let is_sentence = help.starts_with(|c: char| c.is_uppercase()) || help.starts_with('`');
            let named = !arg.get_action().takes_values() || arg.get_value_names().is_some();
            if help.len() < 10 || !is_sentence || help.ends_with('.') || !named {
                bad.insert(format!("{command} {}: {help}", arg.get_id()));
            }
        }
        assert!(bad.is_empty(), "{bad:#?}");
    }
}
