//! `weir characterise`: what kind of workload each disk has, and what follows for storage.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use clap::Args;
use weir_sink::report;
use weir_workload::{Characteriser, Event, Subject};

use crate::args::SourceArgs;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::names;
use weir_runtime::output;
use weir_runtime::quantity;
use weir_runtime::run_loop::conclude;
use weir_runtime::run_loop::{Stop, Telling};
use weir_view::workload::{Feed, Reader, Selection, json};

/// Say what kind of workload each disk has, and what follows for storage
///
/// For each virtual disk: reads and writes, sizes, how sequential and in how many interleaved
/// streams, how requests arrive, how many are in flight, latency against load, where they go; and
/// advice with its evidence, where the data carry it. Works as events come, in bounded memory.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir characterise --for 30s\n  \
    weir characterise -w web1 --for 5m --json > web1.json\n  \
    weir characterise --from recording.parquet\n  \
    weir characterise --from trace.vscsi -d /dev/sda --for 10m\n  \
    weir characterise --from recording.parquet --html report.html\n\n\
    Ctrl-C ends it with the report of what was seen. Without --for a live report needs it.")]
pub struct CharacteriseArgs {
    /// This VM only
    #[arg(short = 'w', long = "only-vm", value_name = "VM")]
    only_vm: Option<String>,
    /// This disk only, as the VM (/dev/vda) or as the host (/dev/sda) names it
    #[arg(short = 'd', long = "only-disk", value_name = "DISK")]
    only_disk: Option<String>,
    /// Memory for the blocks of a disk that are followed, from which miss ratios come; where it
    /// does not suffice for all of them, a sample is followed
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = memory)]
    memory: usize,
    /// Write the report as one JSON object
    #[arg(long)]
    json: bool,
    /// Write the report as one page with its plots, which needs nothing else and loads nothing
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    source: SourceArgs,
}

/// Less holds no useful sample, and more than so much no address.
const MEMORY_BYTES: std::ops::RangeInclusive<usize> = 256 << 10..=4 << 30;

fn memory(text: &str) -> Result<usize, String> {
    let bytes = quantity::size(text)?;
    match MEMORY_BYTES.contains(&bytes) {
        true => Ok(bytes),
        false => Err("it takes 256 KiB at least and 4 GiB at most".to_owned()),
    }
}

pub fn run(args: &CharacteriseArgs, verbose: bool) -> Result<Ending, Failure> {
    let (mut source, mut disk) = (args.source.clone(), args.only_disk.clone());
    names::find(&mut source, args.only_vm.as_deref(), &mut disk)?;
    let selection = Selection {
        vm: args.only_vm.clone(),
        disk,
    };
    let stop = Stop::on_signals()?;
    let feed = Feed::open(&source, &selection, &stop)?;
    // A page that cannot be written is told before the hours that it would tell of; and an earlier
    // page stays when there is nothing to make another of.
    let page = match &args.html {
        Some(path) => {
            output::never_over(path, args.source.files())?;
            Some(output::file(path)?)
        }
        None => None,
    };
    if args.source.is_live() && args.source.span.is_none() && std::io::stderr().is_terminal() {
        output::say("weir: watching; Ctrl-C ends it with the report");
    }
    let reader = Arc::new(Mutex::new(Follower(Characteriser::new(args.memory))));
    let ran = feed.run(&reader, Telling::Files, &stop);
    let follower = reader.lock().expect("nobody panics while reading");
    let report = follower.0.report();
    let ran = match ran {
        // What was seen before a source failed is told all the same.
        Err(error) if report.requests == 0 => return Err(error),
        ran => ran,
    };
    if let Some(mut page) = page {
        page.put(&report::html::html(&report))?;
        page.flush()?;
    }
    match args.json {
        true => output::print(&format!("{}\n", json::report(&report)?))?,
        false => output::print(&report::text::text(&report))?,
    }
    conclude(ran?, verbose)
}

/// Characterises what it reads.
struct Follower(Characteriser);

impl Reader for Follower {
    fn take(&mut self, subject: Subject, event: Event) -> bool {
        self.0.take(&subject, &event);
        true
    }
}
