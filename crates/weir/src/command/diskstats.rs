//! `weir diskstats DIR`: maintains a directory for the unmodified `iostat -f DIR`.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Args;
use weir_model::Nanos;
use weir_sink::SinkError;
use weir_sink::diskstats_tree::DiskstatsTree;
use weir_tap::ebpf::Files;

use crate::args::LimitArgs;
use crate::args::SourceArgs;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::names;
use weir_runtime::output;
use weir_runtime::quantity;
use weir_runtime::run_loop::Stop;
use weir_runtime::run_loop::conclude;
use weir_view::disk_totals::{self, CounterSelection, Devices, LedgerReader, Questions, Totals};

/// The default directory.
const DIRECTORY: &str = "/run/weir/diskstats";

/// Disks beyond this number are counted in one row.
const DISKS_MAX: usize = 10_000;

/// Maintain the statistics files that sysstat's `iostat -f` reads
///
/// The directory has the layout that iostat(1) expects: block/NAME/stat as in /sys, diskstats as in
/// /proc. Names are those of `weir iostat`. The directory is removed at the end.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir diskstats &\n  \
    iostat -f /run/weir/diskstats -x 1\n\n\
    Counters start at zero with the command. Use `iostat -y` to omit the first report, which divides \
    them by the time since boot.")]
pub struct DiskstatsArgs {
    /// Directory for the files; it must be empty or written by an earlier `weir diskstats`
    #[arg(value_name = "DIR", default_value = DIRECTORY)]
    directory: PathBuf,
    /// Interval at which the files are written
    #[arg(long, value_name = "DURATION", default_value = "200ms", value_parser = quantity::span)]
    every: Duration,
    /// Show only this VM
    #[arg(short = 'w', long = "only-vm", value_name = "VM")]
    only_vm: Option<String>,
    /// Print the queries of this command and exit
    #[arg(long)]
    show_query: bool,
    /// Keep the directory at the end instead of removing it
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// Writes the files at each interval.
struct Writer {
    /// `None` after it was removed.
    tree: Option<DiskstatsTree>,
    every_ns: Nanos,
    written: Option<Nanos>,
    keep: bool,
}

pub fn run(args: &DiskstatsArgs, verbose: bool) -> Result<Ending, Failure> {
    if !args.show_query {
        names::find(&mut args.source.clone(), args.only_vm.as_deref(), &mut None)?;
    }
    let wanted = CounterSelection {
        live: args.source.is_live(),
        slide_ms: disk_totals::slide_ms(quantity::nanos(args.every)),
        vm: args.only_vm.clone(),
        busy: true,
        limits_ns: Vec::new(),
        devices: match args.source.is_live() {
            true => Devices::Whole,
            false => Devices::AsReported,
        },
    };
    if args.show_query {
        output::print(&Questions::new(&wanted).text())?;
        return Ok(Ending::Done);
    }
    let stop = Stop::on_signals()?;
    let writer = Writer {
        tree: Some(DiskstatsTree::create(&args.directory)?),
        every_ns: quantity::nanos(args.every),
        written: None,
        keep: args.keep,
    };
    let opened = disk_totals::open(
        &args.source,
        args.limits.engine(),
        &wanted,
        Arc::new(Mutex::new(Totals::new(DISKS_MAX))),
        Box::new(writer),
        Arc::default(),
        &stop,
    )?;
    // The tree's files are replaced by name.
    opened.drop_privileges(&args.source, Files::Named)?;
    let report = opened.run(&stop)?;
    conclude(report, verbose)
}

impl Writer {
    fn write(&mut self, totals: &Totals) -> Result<(), SinkError> {
        let disks = totals.disks().into_iter();
        let disks: Vec<_> = disks
            .map(|(key, disk)| (key.name(), disk.counters()))
            .collect();
        let disks = disks
            .iter()
            .map(|(name, counters)| (name.as_str(), *counters));
        self.tree.as_mut().map_or(Ok(()), |tree| tree.write(disks))
    }
}

impl LedgerReader for Writer {
    fn whole(&mut self, totals: &mut Totals, at: Nanos) -> Result<(), SinkError> {
        let due = self
            .written
            .is_none_or(|before| at - before >= self.every_ns);
        if due {
            self.write(totals)?;
            self.written = Some(at);
        }
        Ok(())
    }

    fn finish(&mut self, totals: &mut Totals, _: Option<Nanos>) -> Result<(), SinkError> {
        self.write(totals)?;
        match (self.tree.take(), self.keep) {
            (Some(tree), false) => tree.remove(),
            _ => Ok(()),
        }
    }
}

impl Drop for Writer {
    /// Removes the directory also after an error: outdated files would be mistaken for current
    /// ones.
    fn drop(&mut self) {
        if let (Some(tree), false) = (self.tree.take(), self.keep) {
            let _ = tree.remove();
        }
    }
}
