//! `weir convert IN OUT`: converts a trace to another format.

use std::path::PathBuf;

use clap::Args;
use weir_tap::format::{self, FORMATS, Format, convert};

use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::quantity;
use weir_runtime::run_loop::{self, Progress, ProgressKind, RunProgress, Stop};
use weir_runtime::source::OpenSources;
use weir_tap::source::file;

/// Convert a trace to another format
///
/// The format of the output is that of --to-format, or of the file's extension. Requests, responses
/// and their columns are converted as far as the format can represent them.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir convert trace.vscsi trace.parquet\n  \
    weir convert recording.parquet replay.iolog --to-format iolog\n  \
    weir convert crashed.parquet whole.parquet\n  \
    ssh host cat trace.vscsi | weir convert - trace.parquet\n\n\
    `weir convert --formats` lists the formats that can be read and written.")]
pub struct ConvertArgs {
    /// The trace to read; `-` reads standard input
    #[arg(value_name = "IN", required_unless_present = "formats")]
    input: Option<PathBuf>,
    /// The file to write
    #[arg(value_name = "OUT", required_unless_present = "formats")]
    output: Option<PathBuf>,
    /// Format of IN [default: detected from its content]
    #[arg(long, value_name = "FORMAT")]
    from_format: Option<String>,
    /// Maximum size of the temporary copy of a recording that is read from a pipe. The copy is made
    /// in TMPDIR, because Parquet is read from its end
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = quantity::size)]
    spool_limit: usize,
    /// Format of OUT [default: by its extension]
    #[arg(long, value_name = "FORMAT")]
    to_format: Option<String>,
    /// Stop at the first invalid record instead of skipping and counting it
    #[arg(long)]
    strict: bool,
    /// Overwrite OUT if it exists
    #[arg(long)]
    force: bool,
    /// List the formats and exit
    #[arg(long)]
    formats: bool,
}

pub fn run(args: &ConvertArgs, verbose: bool) -> Result<Ending, Failure> {
    let (Some(input), Some(out), false) = (&args.input, &args.output, args.formats) else {
        output::print(&list())?;
        return Ok(Ending::Done);
    };
    let to_format = args.to_format.as_deref();
    convert::for_writing(out, to_format)?;
    output::never_overwrite(out, args.force)?;
    output::never_over(out, [&**input])?;
    let options = format::TraceOptions {
        strict: args.strict,
        format: args.from_format.clone(),
        spool_bytes_max: args.spool_limit as u64,
    };
    let stop = Stop::on_signals()?;
    let sources = OpenSources::default();
    sources.end_with(&stop);
    let input = file::input(input, &sources.cancel)?;
    let mut progress = Progress::new(ProgressKind::Files);
    let converted = convert::convert(input, &options, out, to_format, &mut |done| {
        progress.show(|| RunProgress {
            done: Some(done),
            ..RunProgress::default()
        });
        stop.signal().is_none()
    });
    progress.clear();
    let converted = converted?;
    let lines = run_loop::summary(&converted.counts, verbose);
    for line in lines
        .iter()
        .chain(&converted.messages)
        .chain(&converted.remarks)
    {
        output::notice(format_args!("weir: {line}"));
    }
    Ok(stop.signal().map_or(Ending::Done, Ending::Signal))
}

fn list() -> String {
    let row = |f: &Format| {
        let ability = if f.create.is_some() {
            "read, write"
        } else {
            "read"
        };
        vec![f.name.into(), ability.into(), f.doc.into()]
    };
    weir_sink::text::aligned(&FORMATS.iter().map(row).collect::<Vec<_>>())
}
