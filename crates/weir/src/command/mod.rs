//! The commands, one a file.

mod agent;
mod certificates;
mod characterise;
mod check;
mod completions;
mod convert;
mod diskstats;
mod doctor;
mod explain;
mod exporter;
mod fleet;
mod functions;
mod hist;
mod hist_collector;
mod inspection;
mod iostat;
mod man;
mod monitor;
mod qemu_guard;
pub mod query;
mod record;
mod run;
mod streams;
mod tapdisk;
mod tapdisk_insert;
mod tapdisk_remove;
mod tapdisk_status;
mod top;

use std::io::IsTerminal;

use clap::{CommandFactory, Parser, Subcommand};

use weir_tap::elevation;

use weir_runtime::failure::{Ending, Failure};

/// The command line.
#[derive(Parser, Debug)]
#[command(
    name = "weir",
    version,
    about = "Ask a host's block I/O anything, in CQL, live and from recordings",
    after_help = "Begin with `weir doctor` (what works on this host) and\n  \
        weir query \"select op, count(*), avg(latency) from IO [range 5 s slide 1 s] group by op\"\n\n\
        Exit codes: 0 success, 1 runtime error, 2 usage or query error, 130 interrupted (after flushing)."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Write more to standard error: all counters, and the kernel's own words where it refuses
    /// something
    #[arg(short, long, global = true)]
    verbose: bool,
}

impl Cli {
    /// Whether more is to be written to standard error.
    pub fn verbose(&self) -> bool {
        self.verbose
    }
}

/// Every command, in the order the help lists them.
#[derive(Subcommand, Debug)]
enum Command {
    Top(top::TopArgs),
    Iostat(iostat::IostatArgs),
    Hist(hist::HistArgs),
    Diskstats(diskstats::DiskstatsArgs),
    Exporter(exporter::ExporterArgs),
    Characterise(characterise::CharacteriseArgs),
    Query(query::QueryArgs),
    Run(run::RunArgs),
    Explain(explain::ExplainArgs),
    Monitor(monitor::MonitorArgs),
    Fleet(fleet::FleetCommand),
    Certificates(certificates::CertificatesArgs),
    Check(check::CheckArgs),
    Streams(streams::StreamsArgs),
    Functions(functions::FunctionsArgs),
    Record(record::RecordArgs),
    Convert(convert::ConvertArgs),
    Agent(agent::AgentArgs),
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
}

impl Command {
    /// Whether it may read the host's I/O or its VMs. Other commands have no use for capabilities
    /// of the binary's file, above all those that serve images and those that drive QEMU.
    fn reads_host(&self) -> bool {
        matches!(
            self,
            Command::Top(_)
                | Command::Iostat(_)
                | Command::Hist(_)
                | Command::HistCollector
                | Command::Diskstats(_)
                | Command::Exporter(_)
                | Command::Characterise(_)
                | Command::Query(_)
                | Command::Run(_)
                | Command::Explain(_)
                | Command::Record(_)
                | Command::Agent(_)
                | Command::Doctor(_)
                | Command::Inspection
        )
    }
}

/// Runs the command.
///
/// # Errors
/// As the command says.
pub fn run(cli: Cli) -> Result<Ending, Failure> {
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
        Command::Iostat(args) => iostat::run(&args, cli.verbose),
        Command::Hist(args) => hist::run(&args, cli.verbose),
        Command::Diskstats(args) => diskstats::run(&args, cli.verbose),
        Command::Exporter(args) => exporter::run(&args, cli.verbose),
        Command::Characterise(args) => characterise::run(&args, cli.verbose),
        Command::Query(args) => query::run(&args, cli.verbose),
        Command::Run(args) => run::run(&args, cli.verbose),
        Command::Explain(args) => explain::run(&args),
        Command::Monitor(args) => monitor::run(&args, cli.verbose),
        Command::Fleet(args) => fleet::run(&args),
        Command::Certificates(args) => certificates::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Streams(args) => streams::run(&args),
        Command::Functions(args) => functions::run(&args),
        Command::Record(args) => record::run(&args, cli.verbose),
        Command::Convert(args) => convert::run(&args, cli.verbose),
        Command::Agent(args) => agent::run(&args, cli.verbose),
        Command::Tapdisk(args) => tapdisk::run(&args, cli.verbose),
        Command::Doctor(args) => doctor::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
        Command::HistCollector => hist_collector::run(),
        Command::QemuGuard => qemu_guard::run(),
        Command::Inspection => inspection::run(),
    }
}
