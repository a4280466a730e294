//! `weir characterise`: the workload of each disk, and advice on its storage.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use clap::Args;
use weir_sink::report;
use weir_workload::files::FileCharacteriser;

use crate::args::SourceArgs;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::names;
use weir_runtime::output;
use weir_runtime::quantity;
use weir_runtime::run_loop::conclude;
use weir_runtime::run_loop::{ProgressKind, Stop};
use weir_runtime::source;
use weir_runtime::source::SourceOptions;
use weir_view::workload::{DividedCharacteriser, EventFeed, WorkloadSelection, files, json};

/// Characterise the workload of each disk and advise on its storage
///
/// The report contains, for each virtual disk: the mix of reads and writes, sizes, sequential runs
/// and interleaved streams, arrivals, queue depth, latency by load, and the working set; and
/// advice, with the evidence for it. Events are analysed as they arrive, in bounded memory.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir characterise --for 30s\n  \
    weir characterise -w web1 --for 5m --json > web1.json\n  \
    weir characterise --from recording.parquet\n  \
    weir characterise --from trace.vscsi -i /dev/sda --for 10m\n  \
    weir characterise --from recording.parquet --html report.html\n  \
    weir characterise --by-file -i sda --for 30s --html report.html\n\n\
    The report is printed at Ctrl-C, after the time of --for, or at the end of the recording.")]
pub struct CharacteriseArgs {
    /// Report only this VM
    #[arg(short = 'w', long = "only-vm", value_name = "VM")]
    only_vm: Option<String>,
    /// Report only this disk, by its name in the VM (/dev/vda) or on the host (/dev/sda)
    #[arg(short = 'i', short_alias = 'd', long = "only-disk", value_name = "DISK", value_parser = source::disk)]
    only_disk: Option<String>,
    /// Memory per disk for the blocks from which miss ratios are computed, 256KiB to 4GiB; if a
    /// disk has more blocks, a sample of them is used
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = memory)]
    memory: usize,
    /// Also report how the files of each disk are accessed, from stream FileIO (kernel 6.6 or
    /// newer); a recording of FileIO is always reported by file
    #[arg(long)]
    by_file: bool,
    /// Print the report as one JSON object
    #[arg(short = 'j', long)]
    json: bool,
    /// Also write the report to this file as an HTML page with plots; the page loads no other files
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    source: SourceArgs,
}

/// Less memory contains no useful sample; more is not addressable.
const MEMORY_BYTES: std::ops::RangeInclusive<usize> = 256 << 10..=4 << 30;

fn memory(text: &str) -> Result<usize, String> {
    let bytes = quantity::size(text)?;
    match MEMORY_BYTES.contains(&bytes) {
        true => Ok(bytes),
        false => Err("expected a size from 256KiB to 4GiB".to_owned()),
    }
}

pub fn run(args: &CharacteriseArgs, verbose: bool) -> Result<Ending, Failure> {
    let (mut source, mut disk) = (args.source.clone(), args.only_disk.clone());
    names::find(&mut source, args.only_vm.as_deref(), &mut disk)?;
    let selection = WorkloadSelection {
        vm: args.only_vm.clone(),
        disk,
        with_process: false,
    };
    let files = by_file(args, &source)?.then(Arc::<Mutex<FileCharacteriser>>::default);
    let stop = Stop::on_signals()?;
    let feed = EventFeed::open_with_files(&source, &selection, files.clone(), &stop)?;
    // The page is created first, since an error at the end would discard the whole measurement. It
    // is created after the source is opened, so that an error of the source does not erase an old
    // page.
    let page = match &args.html {
        Some(path) => {
            output::never_over(path, args.source.files())?;
            Some(output::file(path)?)
        }
        None => None,
    };
    if args.source.is_live() && args.source.span.is_none() && std::io::stderr().is_terminal() {
        output::notice("weir: observing; press Ctrl-C for the report");
    }
    let characteriser = match args.source.is_live() {
        true => DividedCharacteriser::in_one_thread(args.memory),
        false => DividedCharacteriser::in_two_threads(args.memory)?,
    };
    let reader = Arc::new(Mutex::new(characteriser));
    let ran = feed.run(&reader, ProgressKind::Files, &stop);
    let report = reader.lock().expect("no panic while held").report();
    let files = files.map(|files| files.lock().expect("no panic while held").report());
    let files = files.as_ref();
    let is_empty = report.requests == 0 && files.is_none_or(|files| files.requests == 0);
    let ran = match ran {
        // The requests before a failure of a source are reported nevertheless.
        Err(error) if is_empty => return Err(error),
        ran => ran,
    };
    if let Some(mut page) = page {
        page.put(&report::html::html_with_files(&report, files))?;
        page.flush()?;
    }
    match args.json {
        true => output::print(&format!("{}\n", json::report(&report, files)?))?,
        false => {
            let disks = match files {
                // A recording may have the requests of files only.
                Some(_) if report.profiles.is_empty() => String::new(),
                _ => report::text::text(&report),
            };
            output::print(&(disks + &files.map(report::files::text).unwrap_or_default()))?;
        }
    }
    conclude(ran?, verbose)
}

/// Whether files are reported: as requested, or because a recording has them.
fn by_file(args: &CharacteriseArgs, source: &SourceOptions) -> Result<bool, Failure> {
    if source.is_live() {
        return Ok(args.by_file);
    }
    let has_files = source.capabilities()?.stream(files::FILES).is_some();
    if args.by_file && !has_files {
        return Err(Failure::words(format_args!(
            "--by-file: {} has no stream {}; `weir record --stream {}` records it",
            source.from.join(", "),
            files::FILES,
            files::FILES
        )));
    }
    Ok(has_files)
}
