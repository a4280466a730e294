//! `weir info FILE`: the contents of a recording or trace.

use std::path::PathBuf;

use clap::Args;
use weir_tap::format::TraceOptions;

use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::quantity;
use weir_runtime::run_loop::{self, Progress, ProgressKind, RunProgress, Stop};
use weir_runtime::source::OpenSources;
use weir_tap::source::file;
use weir_view::contents;

/// Describe a recording or trace: interval, disks, losses, origin
///
/// The file is read once. The operations and disks are those of the completed requests, as stream
/// IO has them. The losses are those that occurred when the file was recorded, and what cannot be
/// read of it.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir info recording.parquet\n  \
    weir info --json trace.vscsi\n  \
    ssh host cat recording.parquet | weir info -")]
pub struct InfoArgs {
    /// The file to describe; `-` reads standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Format of the files, as listed by `weir convert --formats` [default: detected from their
    /// content]
    #[arg(long, value_name = "FORMAT")]
    from_format: Option<String>,
    /// Maximum size of the temporary copy of a recording that is read from a pipe. The copy is made
    /// in TMPDIR, because Parquet is read from its end
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = quantity::size)]
    spool_limit: usize,
    /// Print one JSON object for each file
    #[arg(short = 'j', long)]
    json: bool,
}

pub fn run(args: &InfoArgs, verbose: bool) -> Result<Ending, Failure> {
    let options = TraceOptions {
        format: args.from_format.clone(),
        spool_bytes_max: args.spool_limit as u64,
        ..TraceOptions::default()
    };
    let stop = Stop::on_signals()?;
    let sources = OpenSources::default();
    sources.end_with(&stop);
    let mut progress = Progress::new(ProgressKind::Files);
    for (number, path) in args.files.iter().enumerate() {
        let input = file::input(path, &sources.cancel)?;
        let found = contents::read(input, &options, &mut |done| {
            progress.show(|| RunProgress {
                done: Some(done),
                ..RunProgress::default()
            });
            stop.signal().is_none()
        });
        progress.clear();
        let found = found?;
        if let Some(signal) = stop.signal() {
            return Ok(Ending::Signal(signal));
        }
        let text = match args.json {
            true => format!("{}\n", found.json()),
            false => found.text(&run_loop::summary(&found.counts, true)),
        };
        let separator = if number > 0 && !args.json { "\n" } else { "" };
        output::print(&format!("{separator}{text}"))?;
        for line in found.messages.iter().filter(|_| verbose || !args.json) {
            output::notice(format_args!("weir: {line}"));
        }
    }
    Ok(Ending::Done)
}
