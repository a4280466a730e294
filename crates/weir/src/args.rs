//! Options that several commands share.
//!
//! Crates below take plain structures ([`SourceOptions`], [`OutputOptions`]); what clap parses is
//! turned into them here.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgMatches, Args, Command, Error, FromArgMatches};
use tracing::Level;
use weir_forward::KafkaUrl;
use weir_query::engine::{Engine, EngineOptions};
use weir_query::optimize::optimize;
use weir_query::place::fleet::PlacementStrategy;
use weir_query::plan::{Plan, restricted};
use weir_runtime::failure::Failure;
use weir_runtime::log;
use weir_runtime::output::OutputOptions;
use weir_runtime::quantity;
use weir_runtime::question::QueryText;
use weir_runtime::source::{Declarations, SourceOptions, declarations, device};
use weir_sink::SINKS;
use weir_tap::source::{KINDS, LIVE, SourceKind};
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
    /// Options of every command that prints results.
    OutputArgs: OutputLine => OutputOptions
}

#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Source")]
struct SourceLine {
    #[arg(long, value_name = "SOURCE", default_value = LIVE.name, help = SOURCES,
        long_help = sources())]
    from: Vec<String>,
    /// Format of the trace files, as listed by `weir convert --formats` [default: detected from
    /// their content]
    #[arg(long, value_name = "FORMAT")]
    from_format: Option<String>,
    /// Maximum size of the temporary copy of a recording that is read from a pipe. The copy is made
    /// in TMPDIR, because Parquet is read from its end
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = quantity::size)]
    spool_limit: usize,
    /// Observe only this device, such as /dev/sda; may be repeated [default: all disks, without dm,
    /// md and loop devices] (live only)
    #[arg(long, value_name = "DEVICE", value_parser = device)]
    device: Vec<String>,
    /// Also observe dm, md and loop devices; their I/O is then counted twice, there and at the
    /// devices below them (live only)
    #[arg(long, conflicts_with = "device")]
    stacked: bool,
    /// Declare processes to be a VM: NAME=pid:PID, NAME=comm:COMMAND or NAME=cgroup:PATH, or @FILE
    /// with one declaration per line; may be repeated (live only)
    #[arg(long, value_name = "NAME=PROCESSES", value_parser = declarations)]
    vm: Vec<Declarations>,
    /// Keep all privileges; by default they are dropped when the probes are attached (live only)
    #[arg(long)]
    keep_privileges: bool,
    /// Transfer every request to user space, even where the kernel could aggregate them (live only)
    #[arg(long)]
    no_fold: bool,
    /// Join requests with their responses in the query, even where the source has paired them
    #[arg(long)]
    no_pairing: bool,
    /// Stop at the first invalid record instead of skipping and counting it (files only)
    #[arg(long)]
    strict: bool,
    /// Time without events after which a live source no longer delays the other sources
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = quantity::span)]
    idle: Duration,
    /// Stop after this time, such as 500ms, 30s, 5m or 1h. For a file, stop at the event that is
    /// this much later than its first event [default: until Ctrl-C or the end of the file]
    #[arg(long = "for", value_name = "DURATION", value_parser = quantity::span)]
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

/// How rows are printed.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Output")]
pub struct RowArgs {
    /// Output format [default: by the extension of the output file, otherwise table on a terminal
    /// and delta elsewhere]
    #[arg(long, value_name = "FORMAT", value_parser = formats())]
    pub format: Option<String>,
    /// Print only the content of the relation at the end, without instants
    #[arg(long = "final")]
    last: bool,
    /// Print numbers in tables without units and unrounded: 1234567 instead of 1.2 ms
    #[arg(long)]
    raw: bool,
    /// Add the unit of each column to its name, as in `latency [ns]`; tables print units anyway
    #[arg(long)]
    units: bool,
}

#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Output")]
struct OutputLine {
    #[command(flatten)]
    rows: RowArgs,
    /// Write the result to this file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl From<RowArgs> for OutputOptions {
    fn from(args: RowArgs) -> OutputOptions {
        OutputOptions {
            format: args.format,
            output: None,
            last: args.last,
            raw: args.raw,
            units: args.units,
        }
    }
}

impl From<OutputLine> for OutputOptions {
    fn from(line: OutputLine) -> OutputOptions {
        OutputOptions {
            output: line.output,
            ..line.rows.into()
        }
    }
}

/// The short help of `--from`.
const SOURCES: &str = "Source of the events: live (this host), a file, - (standard input), qemu:VM, \
    tapdisk:PATH or journal:DIR; may be repeated";

/// The help of `--from`.
fn sources() -> String {
    let kind = |kind: &&SourceKind| format!("{}: {}", kind.usage(), kind.doc);
    let kinds: Vec<String> = KINDS.iter().map(kind).collect();
    format!(
        "Source of the events; may be repeated: the events of several sources are merged in \
         timestamp order\n\n{}",
        kinds.join("\n\n")
    )
}

fn formats() -> PossibleValuesParser {
    let value = |f: &&weir_sink::SinkFormat| clap::builder::PossibleValue::new(f.name).help(f.doc);
    PossibleValuesParser::new(SINKS.iter().map(value))
}

/// A query on the command line.
#[derive(Args, Debug, Clone)]
pub struct QuestionArgs {
    /// The query in CQL; `-` reads it from standard input
    #[arg(conflicts_with = "file")]
    pub query: Option<String>,
    /// Read the query from this file
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

impl QuestionArgs {
    /// Whether neither a query nor its file was given.
    pub fn is_missing(&self) -> bool {
        self.query.is_none() && self.file.is_none()
    }

    /// The query's text.
    ///
    /// # Errors
    /// When the file or standard input cannot be read or is not UTF-8.
    pub fn read(&self) -> Result<QueryText, Failure> {
        match (&self.query, &self.file) {
            (Some(text), _) if text != "-" => Ok(QueryText::new(text)),
            (_, Some(path)) => QueryText::read(path),
            (Some(_), _) => QueryText::read(Path::new("-")),
            (None, None) => Err(Failure::words(
                "no query; give it as an argument, or its file with --file",
            )),
        }
    }
}

/// Definitions for a query.
#[derive(Args, Debug, Clone)]
pub struct DefinitionArgs {
    /// Read definitions of streams and views (CREATE STREAM, CREATE VIEW) from this file; may be
    /// repeated
    #[arg(long, value_name = "FILE")]
    pub define: Vec<PathBuf>,
}

impl DefinitionArgs {
    /// The query after the definitions.
    ///
    /// # Errors
    /// When a file cannot be read, its syntax errors, or those of the streams in it.
    pub fn before(&self, query: QueryText, source: &SourceOptions) -> Result<QueryText, Failure> {
        let mut query = query;
        for path in self.define.iter().rev() {
            let definitions = QueryText::read(path)?;
            definitions.define_streams(source)?;
            query = query.after(definitions)?;
        }
        Ok(query)
    }
}

/// Definitions of streams.
#[derive(Args, Debug, Clone)]
pub struct DefineArgs {
    /// Read definitions of streams (CREATE STREAM) from this file; may be repeated
    #[arg(long, value_name = "FILE")]
    pub define: Vec<PathBuf>,
}

impl DefineArgs {
    /// Adds the streams to those of the host.
    ///
    /// # Errors
    /// When a file cannot be read, or the errors in it.
    pub fn add_to(&self, source: &SourceOptions) -> Result<(), Failure> {
        let mut files = self.define.iter();
        files.try_for_each(|path| QueryText::read(path)?.define(source))
    }
}

/// Limits of the resources of queries.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Limits")]
pub struct LimitArgs {
    /// Memory limit of a query; a query that exceeds it fails
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = quantity::size)]
    pub limit_memory: usize,
}

impl LimitArgs {
    /// An engine with these limits.
    pub fn engine(&self) -> Engine {
        Engine::new(EngineOptions {
            query_bytes_max: self.limit_memory,
            ..EngineOptions::default()
        })
    }
}

/// The requests that a console retains.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Recent requests")]
pub struct RecentArgs {
    /// Retain the requests of this time, for selections on a heat map (live only)
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = quantity::span)]
    pub recent: Duration,
    /// Maximum memory of the retained requests; the oldest ones are removed first
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = quantity::size)]
    pub recent_memory: usize,
}

/// What a service logs on standard error.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Log")]
pub struct LogArgs {
    /// Lowest severity of the events that are logged [default: the value of WEIR_LOG, otherwise
    /// debug with -v and info without]
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
    /// When WEIR_LOG is not a valid filter.
    pub fn open(&self, verbose: bool) -> Result<(), Failure> {
        let usual = if verbose { Level::DEBUG } else { Level::INFO };
        log::open(self.log_level, usual)
    }
}

/// The environment variable that names the monitor.
const MONITOR_VARIABLE: &str = "WEIR_MONITOR";

/// The environment variable that names the file with the token.
const TOKEN_VARIABLE: &str = "WEIR_TOKEN_FILE";

/// The default monitor: the one of this host, at its default socket.
const MONITOR_DEFAULT: &str = "unix:";

/// The engine that merges what the agents of a fleet send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum QueryEngine {
    /// The monitor.
    Monitor,
    /// Flink, over what monitors forward to Kafka.
    Flink,
}

/// How a monitor is reached.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Fleet")]
pub struct FleetArgs {
    /// Address of the fleet's monitor: HOST or HOST:PORT (default port 7733), https://HOST for TLS,
    /// or unix:PATH; unix: without a path is the default socket of this host. With standbys, the
    /// addresses of all monitors, separated by commas
    #[arg(long, value_name = "ADDRESS")]
    pub monitor: Option<String>,
    /// File with the client's token, readable by its owner only [default: the value of
    /// WEIR_TOKEN_FILE]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Use TLS and verify the monitor's certificate with the certificate of this authority (PEM)
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Certificate of the client (PEM)
    #[arg(long, value_name = "FILE", requires = "key")]
    pub certificate: Option<PathBuf>,
    /// Private key of the client's certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub key: Option<PathBuf>,
    /// Name that the monitor's certificate must contain [default: HOST of the address]
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

    /// Connects to the monitor of `--monitor`; without that option, the command is for this host.
    ///
    /// # Errors
    /// As [`FleetArgs::connect`].
    pub fn given_client(&self) -> Result<Option<Client>, Failure> {
        let is_given = self.monitor.is_some();
        is_given.then(|| self.connect()).transpose()
    }

    /// How to connect to the monitor.
    ///
    /// # Errors
    /// When the address or a file is wrong.
    pub fn dial(&self) -> Result<Dial, Failure> {
        let named = self.monitor.clone();
        let named = named.or_else(|| std::env::var(MONITOR_VARIABLE).ok());
        let addresses = Dial::to(named.as_deref().unwrap_or(MONITOR_DEFAULT))?;
        let by_variable = std::env::var_os(TOKEN_VARIABLE).map(PathBuf::from);
        let token_file = self.token_file.clone().or(by_variable);
        Ok(Dial {
            token: token_file.as_deref().map(read_token).transpose()?,
            authority: self.ca.clone(),
            identity: self.certificate.clone().zip(self.key.clone()),
            server_name: self.server_name.clone(),
            ..addresses
        })
    }
}

/// Which rows queries may read.
#[derive(Args, Clone, Debug, Default)]
pub struct OwnerArgs {
    /// Read the rows of this VM only: every source is restricted where it is read, and one without
    /// a column vm is refused [default: all rows]
    #[arg(short = 'w', long, value_name = "VM")]
    pub only_vm: Option<String>,
}

impl OwnerArgs {
    /// The plan over the rows that may be read.
    ///
    /// # Errors
    /// A source whose rows have no VM.
    pub fn restricted(&self, plan: Arc<Plan>) -> Result<Arc<Plan>, Failure> {
        match &self.only_vm {
            Some(vm) => Ok(optimize(&restricted(&plan, vm).map_err(Failure::words)?)),
            None => Ok(plan),
        }
    }

    /// Rejects a query that defines streams of probes: the owner of a VM attaches none.
    ///
    /// # Errors
    /// When it does, and the rows of one VM may be read only.
    pub fn refuse_definitions(&self, question: &QueryText) -> Result<(), Failure> {
        match self.only_vm.is_some() && question.defines_streams() {
            true => Err(Failure::words(
                "a query of one VM's rows defines no streams of probes; give --define FILE",
            )),
            false => Ok(()),
        }
    }

    /// Rejects the option in a query of a fleet.
    ///
    /// # Errors
    /// When it was given.
    pub fn refuse_at_monitor(&self) -> Result<(), Failure> {
        match self.only_vm {
            Some(_) => Err(Failure::words(
                "--only-vm is for this host; at a monitor, use a token with role vm:NAME, or the \
                 condition vm = 'NAME'",
            )),
            None => Ok(()),
        }
    }
}

/// A URL of Kafka to forward to, as it was written.
///
/// # Errors
/// If it is none.
pub fn forward_url(text: &str) -> Result<String, String> {
    text.parse::<KafkaUrl>()?;
    Ok(text.to_owned())
}

/// The placement strategies, as values of an option.
pub fn places() -> PossibleValuesParser {
    PossibleValuesParser::new(PlacementStrategy::ALL.map(PlacementStrategy::name))
}

/// Rejects source options in a query of a fleet: the agents determine what they observe.
///
/// # Errors
/// When a source option was given.
pub fn agents_choose(source: &SourceOptions) -> Result<(), Failure> {
    match source.is_usual() {
        true => Ok(()),
        false => Err(Failure::words(
            "--monitor: the agents determine what they observe; omit --from, --device, --stacked and --vm",
        )),
    }
}
