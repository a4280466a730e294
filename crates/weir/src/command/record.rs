//! `weir record`: records events in a Parquet file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use clap::Args;
use rustix::fs::{Mode, OFlags};
use weir_model::event::{IO_PAIRS, io_schema};
use weir_model::{Batch, Capabilities, Catalog};
use weir_query::engine::{Engine, EngineOptions};
use weir_sink::{Sink, SinkError, time};
use weir_tap::ebpf::Files;
use weir_tap::format::{Header, Writer, recording};
use weir_tap::{Count, RECORDING, TapError};

use crate::args::SourceArgs;
use weir_runtime::device_names;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::plans;
use weir_runtime::question::Question;
use weir_runtime::run_loop::conclude;
use weir_runtime::run_loop::{self, Options, Show, Stop, Telling, wall_clock};
use weir_runtime::source;

/// Record events in a Parquet file
///
/// The file contains every request and every response, and in its footer the number of lost events.
/// DuckDB, pandas and Polars can read it. After a crash it is readable except for the last few
/// seconds.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir record -o today.parquet\n  \
    weir record --for 60s --where \"pdisk = '/dev/sda' and op <> 'f'\"\n  \
    weir record --from trace.blktrace.0 -o trace.parquet")]
pub struct RecordArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// File for the recording [default: weir-TIMESTAMP.parquet]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
    /// Record only the events for which this condition is true, as in WHERE
    #[arg(long = "where", value_name = "PREDICATE")]
    predicate: Option<String>,
}

pub fn run(args: &RecordArgs, verbose: bool) -> Result<Ending, Failure> {
    let catalog = Catalog {
        declarations: vec![source::everything()],
    };
    let question = question(args.predicate.as_deref());
    let checked = question.compile(&catalog, args.source.is_live())?;
    let plan = device_names::resolved(&checked.plan, &args.source);
    let path = args.output.clone().unwrap_or_else(default_path);
    output::never_overwrite(&path, args.force)?;
    output::never_over(&path, args.source.files())?;
    let stop = Stop::on_signals()?;
    let mut engine = Engine::new(EngineOptions::default());
    let id = engine.add(&plan);
    // A selection may contain a response without its request.
    let paired = args.predicate.is_none() && args.source.capabilities().pairs(&IO_PAIRS).is_ok();
    let inputs = source::open(
        &args.source,
        &plans::of_rows(&[&plan], &Capabilities::default()),
        &stop,
    )?;
    let header = Header {
        source: args.source.from.join(", "),
        responses_assumed: inputs.iter().any(|i| i.tap.responses_assumed()),
        paired,
    };
    let counts = Arc::new(Mutex::new(Vec::new()));
    let keeper = Keeper {
        name: path.display().to_string(),
        writer: Some(recording::create(&path, &header)?),
        counts: counts.clone(),
        remarks: Vec::new(),
    };
    let options = Options {
        idle: args.source.idle,
        own_stream: false,
        instant_ns: 1,
        telling: Telling::Recording(Arc::new(named(&path)?)),
        whole: None,
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
    if verbose {
        output::say(format_args!("weir: {}", path.display()));
    }
    conclude(report, verbose)
}

fn question(predicate: Option<&str>) -> Question {
    let condition = predicate.map_or(String::new(), |p| format!(" where {p}"));
    Question {
        text: format!("select * from {RECORDING}{condition}"),
        file: None,
    }
}

/// A file that is neither read nor written: its size is read when its directory may no longer be
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
    writer: Option<Box<dyn Writer>>,
    counts: Arc<Mutex<Vec<Count>>>,
    remarks: Vec<String>,
}

impl Keeper {
    fn writer(&mut self) -> &mut dyn Writer {
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
        let columns = io_schema().len();
        let looked = self.writer().write(&Batch::empty(columns));
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
