//! Options that several commands share.
//!
//! Crates below take plain structures ([`SourceOptions`], [`OutputOptions`]); what clap parses is
//! turned into them here.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgMatches, Args, Command, Error, FromArgMatches};
use tracing::Level;
use weir_query::engine::{Engine, EngineOptions};
use weir_query::place::fleet::PlacementStrategy;
use weir_runtime::failure::Failure;
use weir_runtime::log;
use weir_runtime::output::OutputOptions;
use weir_runtime::quantity;
use weir_runtime::question::Question;
use weir_runtime::source::{Declarations, LIVE, SourceOptions, declarations, device};
use weir_sink::SINKS;
use weir_wire::{Client, Dial, read_token};

/// Parses `$line`, a clap structure, and is used as `$options`, what `$line` is turned into.
macro_rules! parsed {
    ($(#[$doc:meta])* $name:ident: $line:ident => $options:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name($options);

        impl Deref for $name {
            type Target = $options;

            fn deref(&self) -> &$options {
                &self.0
            }
        }

        impl DerefMut for $name {
            fn deref_mut(&mut self) -> &mut $options {
                &mut self.0
            }
        }

        impl FromArgMatches for $name {
            fn from_arg_matches(matches: &ArgMatches) -> Result<$name, Error> {
                Ok($name($line::from_arg_matches(matches)?.into()))
            }

            fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
                *self = $name::from_arg_matches(matches)?;
                Ok(())
            }
        }

        impl Args for $name {
            fn augment_args(command: Command) -> Command {
                $line::augment_args(command)
            }

            fn augment_args_for_update(command: Command) -> Command {
                $line::augment_args_for_update(command)
            }
        }
    };
}

parsed! {
    /// Options of every command that reads events.
    SourceArgs: SourceLine => SourceOptions
}

parsed! {
    /// Options of every command that shows answers.
    OutputArgs: OutputLine => OutputOptions
}

#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Source")]
struct SourceLine {
    /// Where events come from: `live`, `tapdisk:PATH` for the requests of the disks that a `weir
    /// tapdisk` serves, `qemu:VM` for those of a VM as its guest makes them (traced in QEMU
    /// meanwhile), or a file or pipe in any trace format that weir knows, `-` for standard input;
    /// several are merged by time. The files of a blktrace, one for each CPU, are one source: name
    /// any of them
    #[arg(long, value_name = "SOURCE", default_value = LIVE)]
    from: Vec<String>,
    /// The format of the files, where their first bytes do not show it
    #[arg(long, value_name = "FORMAT")]
    from_format: Option<String>,
    /// How much of a recording that comes through a pipe may be copied to a temporary file (in
    /// TMPDIR): Parquet is read from its end
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = quantity::size)]
    spool_limit: usize,
    /// Watch this device only, as /dev/sda; may be repeated (live)
    #[arg(long, value_name = "DEV", value_parser = device)]
    device: Vec<String>,
    /// Watch dm, md and loop devices as well as the devices below them, which counts their I/O
    /// twice (live)
    #[arg(long, conflicts_with = "device")]
    stacked: bool,
    /// Treat processes as a VM: NAME=pid:N, NAME=comm:TEXT, NAME=cgroup:PATH, or @FILE with one of
    /// these a line; may be repeated (live)
    #[arg(long, value_name = "NAME=WHICH", value_parser = declarations)]
    vm: Vec<Declarations>,
    /// Keep all privileges after the probes are attached; otherwise they are dropped (live)
    #[arg(long)]
    keep_privileges: bool,
    /// Transfer every request from the kernel, even where the kernel could aggregate them (live)
    #[arg(long)]
    no_fold: bool,
    /// Join requests with their responses, also where the source has paired them already
    #[arg(long)]
    no_pairing: bool,
    /// End at the first bad record instead of skipping and counting it (files)
    #[arg(long)]
    strict: bool,
    /// How long a silent live source may hold the others back
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = quantity::span)]
    idle: Duration,
    /// How long to watch; of a file, how much of it from its first event on
    #[arg(long = "for", value_name = "TIME", value_parser = quantity::span)]
    span: Option<Duration>,
}

impl From<SourceLine> for SourceOptions {
    fn from(line: SourceLine) -> SourceOptions {
        let mut options = SourceOptions::default();
        options.from = line.from;
        options.from_format = line.from_format;
        options.spool_limit = line.spool_limit;
        options.device = line.device;
        options.stacked = line.stacked;
        options.vm = line.vm;
        options.keep_privileges = line.keep_privileges;
        options.no_fold = line.no_fold;
        options.no_pairing = line.no_pairing;
        options.strict = line.strict;
        options.idle = line.idle;
        options.span = line.span;
        options
    }
}

#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Output")]
struct OutputLine {
    /// How answers are shown: on a terminal as table, otherwise as delta, unless the file's name
    /// ends in a format
    #[arg(long, value_name = "FORMAT", value_parser = formats())]
    format: Option<String>,
    /// Write to this file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Show what the relation holds at the end only, without instants of coming and going
    #[arg(long = "final")]
    last: bool,
    /// Show plain numbers in tables, not 1.2 ms or 4.0 KiB
    #[arg(long)]
    raw: bool,
}

impl From<OutputLine> for OutputOptions {
    fn from(line: OutputLine) -> OutputOptions {
        OutputOptions {
            format: line.format,
            output: line.output,
            last: line.last,
            raw: line.raw,
        }
    }
}

fn formats() -> PossibleValuesParser {
    let value = |f: &&weir_sink::Format| clap::builder::PossibleValue::new(f.name).help(f.doc);
    PossibleValuesParser::new(SINKS.iter().map(value))
}

/// A query on the command line.
#[derive(Args, Debug, Clone)]
pub struct QuestionArgs {
    /// The query; `-` reads it from standard input
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    pub query: Option<String>,
    /// Read the query from this file
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

impl QuestionArgs {
    /// The query's text.
    ///
    /// # Errors
    /// When the file or standard input cannot be read or is not UTF-8.
    pub fn read(&self) -> Result<Question, Failure> {
        match (&self.query, &self.file) {
            (Some(text), _) if text != "-" => Ok(Question {
                text: text.clone(),
                file: None,
            }),
            (_, Some(path)) => Question::read(path),
            _ => Question::read(Path::new("-")),
        }
    }
}

/// Bounds of what queries may take.
#[derive(Args, Debug, Clone)]
pub struct LimitArgs {
    /// End a query that needs more memory than this
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = quantity::size)]
    pub limit_memory: usize,
}

impl LimitArgs {
    /// An engine with these bounds.
    pub fn engine(&self) -> Engine {
        Engine::new(EngineOptions {
            query_bytes_max: self.limit_memory,
            ..EngineOptions::default()
        })
    }
}

/// What a service logs on standard error.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Log")]
pub struct LogArgs {
    /// Log events of this severity and above [default: those of WEIR_LOG, otherwise info; with -v,
    /// debug]
    #[arg(long, value_name = "LEVEL", value_parser = levels())]
    log_level: Option<Level>,
}

fn levels() -> impl TypedValueParser<Value = Level> {
    PossibleValuesParser::new(log::LEVELS).map(|name| name.parse().expect("a name of a level"))
}

impl LogArgs {
    /// Opens the log of this process.
    ///
    /// # Errors
    /// When WEIR_LOG is no filter.
    pub fn open(&self, verbose: bool) -> Result<(), Failure> {
        let usual = if verbose { Level::DEBUG } else { Level::INFO };
        log::open(self.log_level, usual)
    }
}

/// The variable that names the monitor.
const MONITOR_VARIABLE: &str = "WEIR_MONITOR";

/// The variable that names the file with the token.
const TOKEN_VARIABLE: &str = "WEIR_TOKEN_FILE";

/// The monitor unless another is named: the one of this host, at its default socket.
const MONITOR_DEFAULT: &str = "unix:";

/// How a monitor is reached.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Fleet")]
pub struct FleetArgs {
    /// Query the fleet of this monitor: HOST or HOST:PORT, https://HOST for TLS, or unix:PATH
    /// (unix: alone for the default socket of this host)
    #[arg(long, value_name = "ADDRESS")]
    pub monitor: Option<String>,
    /// The file with your token, which other users may not read [default: that of WEIR_TOKEN_FILE]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Use TLS, and trust monitors whose certificate this authority signed (PEM)
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Your certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "key")]
    pub certificate: Option<PathBuf>,
    /// The key that goes with your certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub key: Option<PathBuf>,
    /// The name in the monitor's certificate, where it is not HOST
    #[arg(long, value_name = "NAME")]
    pub server_name: Option<String>,
}

impl FleetArgs {
    /// Connects to the monitor: of `--monitor`, else of `WEIR_MONITOR`, else of this host.
    ///
    /// # Errors
    /// When the address or a file is wrong, or the monitor cannot be reached.
    pub fn connect(&self) -> Result<Client, Failure> {
        Ok(Client::connect(self.dial()?)?)
    }

    /// The way to the monitor.
    ///
    /// # Errors
    /// When the address or a file is wrong.
    pub fn dial(&self) -> Result<Dial, Failure> {
        let named = self.monitor.clone();
        let named = named.or_else(|| std::env::var(MONITOR_VARIABLE).ok());
        let address = named.as_deref().unwrap_or(MONITOR_DEFAULT).parse()?;
        let by_variable = std::env::var_os(TOKEN_VARIABLE).map(PathBuf::from);
        let token_file = self.token_file.clone().or(by_variable);
        Ok(Dial {
            token: token_file.as_deref().map(read_token).transpose()?,
            authority: self.ca.clone(),
            identity: self.certificate.clone().zip(self.key.clone()),
            server_name: self.server_name.clone(),
            ..Dial::new(address)
        })
    }
}

/// The placement strategies, as values of an option.
pub fn places() -> PossibleValuesParser {
    PossibleValuesParser::new(PlacementStrategy::ALL.map(PlacementStrategy::name))
}

/// Refuses the choice of a source where the agents choose.
///
/// # Errors
/// When one was chosen.
pub fn agents_choose(source: &SourceOptions) -> Result<(), Failure> {
    match source.is_usual() {
        true => Ok(()),
        false => Err(Failure::words(
            "--monitor: its agents choose what they watch; leave out --from, --device, --stacked and --vm",
        )),
    }
}
