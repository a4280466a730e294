//! `weir record`: records events in a Parquet file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use clap::Args;
use rustix::fs::{Mode, OFlags};
use weir_model::capabilities::recording;
use weir_model::correlation::CORRELATIONS;
use weir_model::event::IO_PAIRS;
use weir_model::suggest::nearest;
use weir_model::{Batch, Catalog, Declaration};
use weir_query::engine::{Engine, EngineOptions};
use weir_sink::{Sink, SinkError, time};
use weir_tap::ebpf::Files;
use weir_tap::format::{Header, TraceWriter, recording};
use weir_tap::{EventCount, TapError};

use crate::args::{DefineArgs, SourceArgs};
use weir_runtime::device_names;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::plans;
use weir_runtime::question::QueryText;
use weir_runtime::run_loop::conclude;
use weir_runtime::run_loop::{self, LoopOptions, ProgressKind, Show, Stop, wall_clock};
use weir_runtime::source;
use weir_view::iostat::output::host;

/// Record events in a Parquet file
///
/// The file contains every request and every response, or the rows of another stream or relation
/// and its description. DuckDB, pandas and Polars can read it; the footer contains the counts of
/// lost events. After a crash, all but the last few seconds can be read.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir record -o today.parquet\n  \
    weir record --for 60s --where \"pdisk = '/dev/sda' and op <> 'f'\"\n  \
    weir record --stream blockstats --for 1h -o counters.parquet\n  \
    weir record --from trace.blktrace.0 -o trace.parquet")]
pub struct RecordArgs {
    #[command(flatten)]
    define: DefineArgs,
    /// File for the recording [default: weir-TIMESTAMP.parquet]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
    /// Record this stream or relation instead of requests and responses; `weir streams` lists them
    #[arg(long, value_name = "NAME")]
    stream: Option<String>,
    /// Record only events that match this predicate, a condition as in WHERE
    #[arg(long = "where", value_name = "PREDICATE")]
    predicate: Option<String>,
    #[command(flatten)]
    source: SourceArgs,
    /// Record the file of each request as well (kernel 6.6 or newer)
    #[arg(long, conflicts_with = "stream")]
    files: bool,
}

/// The columns of `IO` that need the file of each request.
const FILE_COLUMNS: [&str; 2] = ["file", "inode"];

pub fn run(args: &RecordArgs, verbose: bool) -> Result<Ending, Failure> {
    args.define.add_to(&args.source)?;
    let stream = stream(args)?;
    let catalog = Catalog {
        declarations: vec![stream.clone()],
        ..Catalog::default()
    };
    let without_files = args.stream.is_none() && args.source.is_live() && !args.files;
    let question = question(&stream, without_files, args.predicate.as_deref());
    let checked = question.compile(&catalog, args.source.is_live())?;
    let plan = device_names::resolved(&checked.plan, &args.source);
    let path = args.output.clone().unwrap_or_else(default_path);
    output::never_overwrite(&path, args.force)?;
    output::never_over(&path, args.source.files())?;
    let stop = Stop::on_signals()?;
    let mut engine = Engine::new(EngineOptions::default());
    let id = engine.add(&plan);
    // A selection may keep a response and not its request.
    let capabilities = args.source.capabilities()?;
    let is_whole = args.stream.is_none() && args.predicate.is_none();
    let paired = is_whole && capabilities.pairs(&IO_PAIRS).is_ok();
    let placement = plans::of_rows(&[&plan], &capabilities);
    let inputs = source::open(&args.source, &placement, &stop)?;
    let observed = args.source.is_live().then(|| host(0));
    let header = Header {
        source: args.source.from.join(", "),
        host: observed.as_ref().map(|host| host.nodename.clone()),
        kernel: observed.map(|host| host.release),
        responses_assumed: inputs.iter().any(|i| i.tap.responses_assumed()),
        paired,
        stream,
    };
    let counts = Arc::new(Mutex::new(Vec::new()));
    let keeper = Keeper {
        name: path.display().to_string(),
        columns: header.stream.schema.len(),
        writer: Some(recording::create(&path, &header)?),
        counts: counts.clone(),
        remarks: Vec::new(),
    };
    let options = LoopOptions {
        idle: args.source.idle,
        own_stream: plans::read_own_stream(&[&plan]),
        instant_ns: 1,
        progress: ProgressKind::Recording(Arc::new(named(&path)?)),
        whole: None,
        watermarks: false,
        changes: None,
        counts,
    };
    source::drop_privileges(&args.source, &inputs, Files::Open)?;
    let report = run_loop::run(
        engine,
        inputs,
        vec![Show::new(id, Box::new(keeper))],
        options,
        &stop,
    )?;
    if verbose || args.output.is_none() {
        output::notice(format_args!("weir: wrote {}", path.display()));
    }
    conclude(report, verbose)
}

/// The stream or relation to record: of the catalog, or else of the sources.
fn stream(args: &RecordArgs) -> Result<Declaration, Failure> {
    let Some(name) = &args.stream else {
        return Ok(recording());
    };
    if let Some(known) = Catalog::builtin().find(name) {
        if known.name == CORRELATIONS {
            return Err(Failure::words(format_args!(
                "--stream {name}: it is computed from IO: record that, without --stream, and query \
                 the recording"
            )));
        }
        return Ok(known.clone());
    }
    let shipped = args.source.define_shipped_stream(name);
    shipped.map_err(|why| Failure::world(format_args!("--stream {why}")))?;
    let catalog = args.source.capabilities()?.catalog();
    let names = catalog.declarations.iter().map(|d| d.name.as_str());
    let near = nearest(name, names).map_or(String::new(), |n| format!("; did you mean `{n}`?"));
    let found = catalog.find(name).cloned();
    found.ok_or_else(|| {
        Failure::words(format_args!(
            "--stream {name}: the source has no such stream or relation{near}; `weir \
             streams` lists them"
        ))
    })
}

/// All columns. To find the file of each request costs time: without it those columns are NULL.
fn question(stream: &Declaration, without_files: bool, predicate: Option<&str>) -> QueryText {
    let condition = predicate.map_or(String::new(), |p| format!(" where {p}"));
    let columns = match without_files {
        true => {
            let fields = stream.schema.fields.iter();
            let columns = fields.map(|field| match FILE_COLUMNS.contains(&&*field.name) {
                true => format!("cast(null as {}) as {}", field.ty, field.name),
                false => field.name.clone(),
            });
            columns.collect::<Vec<_>>().join(", ")
        }
        false => "*".into(),
    };
    QueryText::new(format!("select {columns} from {}{condition}", stream.name))
}

/// An open file from which only its size is read, later, when its directory may no longer be
/// readable.
fn named(path: &Path) -> Result<File, Failure> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    opened
        .map(File::from)
        .map_err(|error| Failure::world(format_args!("{}: {error}", path.display())))
}

/// `weir-2026-10-19T12-00-01Z.parquet`: some file systems do not permit colons in names.
fn default_path() -> PathBuf {
    let now = time::timestamp(wall_clock());
    let seconds = now.split('.').next().expect("a timestamp has a fraction");
    Path::new(&format!("weir-{}Z.parquet", seconds.replace(':', "-"))).into()
}

/// A recording as a sink.
struct Keeper {
    name: String,
    columns: usize,
    writer: Option<Box<dyn TraceWriter>>,
    counts: Arc<Mutex<Vec<EventCount>>>,
    remarks: Vec<String>,
}

impl Keeper {
    fn writer(&mut self) -> &mut dyn TraceWriter {
        self.writer
            .as_deref_mut()
            .expect("nothing is written after the end")
    }

    fn count(&mut self) {
        let counts = self.counts.lock().expect("no panic while held").clone();
        self.writer().count(counts);
    }

    fn failed(&self, error: TapError) -> SinkError {
        let name = self.name.clone();
        let error = match error {
            TapError::File { error, .. } => error,
            other => std::io::Error::other(other),
        };
        SinkError::Io { name, error }
    }
}

impl Sink for Keeper {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let written = self.writer().write(batch);
        written.map_err(|e| self.failed(e))
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.count();
        let nothing = Batch::empty(self.columns);
        let looked = self.writer().write(&nothing);
        looked.map_err(|e| self.failed(e))
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.count();
        let writer = self.writer.take().expect("a sink is finished once");
        self.remarks = writer.finish().map_err(|e| self.failed(e))?;
        Ok(())
    }

    fn remarks(&self) -> Vec<String> {
        self.remarks.clone()
    }
}
