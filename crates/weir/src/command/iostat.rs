//! `weir iostat`: the reports of sysstat's iostat, one row per VM and disk.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use clap::Args;
use clap::builder::PossibleValuesParser;
use weir_model::{NANOS_PER_SECOND, Nanos};
use weir_sink::iostat::{CpuTimes, Style, VolumeUnit};
use weir_tap::ebpf::Files;

use crate::args::LimitArgs;
use crate::args::SourceArgs;
use crate::command::iostat_devices::DeviceArgs;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::names::{self, HostNames};
use weir_runtime::output;
use weir_runtime::run_loop::conclude;
use weir_runtime::run_loop::{Stop, wall_clock};
use weir_runtime::unobserved::UnobservedDevices;
use weir_tap::source::SourceName;
use weir_view::disk_totals::{self, CounterSelection, Devices, Questions, SLIDES_MS, Totals};
use weir_view::iostat::names::DeviceNames;
use weir_view::iostat::output::{Output, host};
use weir_view::iostat::reports::{self, Reports};
use weir_view::iostat::selection::{DeviceArgument, DeviceSelection};
use weir_view::iostat::trees::{self, Tree};

/// Disks beyond this number are counted in one row.
const DISKS_MAX: usize = 10_000;

/// The observation time of live I/O if no interval is given.
const INTERVAL_DEFAULT_S: f64 = 1.0;

/// Print reports as sysstat's iostat does, one row per VM and disk
///
/// Row `web:vda` is disk /dev/vda of VM web. Row `web@sda` is the I/O of VM web on the host's sda
/// outside its known disks. Row `sda` is the I/O of sda that belongs to no VM. Columns, units and
/// rounding are those of sysstat.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir iostat -x 1                    all columns, every second\n  \
    weir iostat -dxz -w web 5 12        the disks of VM web for a minute\n  \
    weir iostat -x -o JSON web:vda 10   one disk, as JSON\n  \
    weir iostat -g db db:vda db:vdb -g web web:vda 5   two groups with their sums\n  \
    weir iostat -x --from recording.parquet 1\n  \
    weir iostat -x --from before/ --from after/\n\n\
    Counters start at zero with the command: the first report covers the first interval, not the time \
    since boot. Without an interval, one report of one second is printed, or one report of a whole \
    recording.\n\n\
    A directory given with --from contains the files diskstats and uptime, directly or below proc/. \
    Several directories are snapshots: each report covers the time between two of them.")]
pub struct IostatArgs {
    #[command(flatten)]
    devices: DeviceArgs,
    /// Print extended statistics: all columns
    #[arg(short = 'x')]
    extended: bool,
    /// Print a short report: few columns
    #[arg(short = 's')]
    short: bool,
    /// Print the processor utilization only
    #[arg(short = 'c')]
    cpu: bool,
    /// Print the disk utilization only
    #[arg(short = 'd')]
    disks: bool,
    /// Print volumes in kilobytes of 1,024 bytes; the default
    #[arg(short = 'k', conflicts_with = "megabytes")]
    kilobytes: bool,
    /// Print volumes in megabytes of 1,024 kilobytes
    #[arg(short = 'm')]
    megabytes: bool,
    /// Print the time of each report (UTC)
    #[arg(short = 't')]
    timestamp: bool,
    /// Omit the first report, which covers the time since boot; only directories have one
    #[arg(short = 'y')]
    omit_first: bool,
    /// Omit disks without I/O in the interval
    #[arg(short = 'z')]
    active_only: bool,
    /// Print the names of device-mapper devices, such as vg-root for dm-0
    #[arg(short = 'N')]
    mapped_names: bool,
    /// Print persistent names of devices: ID, LABEL, PATH, UUID or another of the directories
    /// /dev/disk/by-* [default: the names of the kernel]
    #[arg(short = 'j', value_name = "KIND")]
    persistent: Option<String>,
    /// Print the sums of groups without their devices
    #[arg(short = 'H', requires = "group")]
    groups_only: bool,
    /// Number of decimal places: 0, 1 or 2
    #[arg(long = "dec", value_name = "COUNT", default_value_t = 2, require_equals = true,
          value_parser = clap::value_parser!(u8).range(0..=2))]
    decimals: u8,
    /// Print volumes with the letter of their unit, such as 1.5M, and shares with a percent sign
    #[arg(long)]
    human: bool,
    /// Print short lines, each with the name of its device at the end
    #[arg(long)]
    pretty: bool,
    /// Print all columns of --pretty in one table
    #[arg(long)]
    compact: bool,
    /// Show only this VM
    #[arg(short = 'w', long = "only-vm", value_name = "VM")]
    only_vm: Option<String>,
    /// Output format; JSON is that of sysstat [default: text]
    #[arg(short = 'o', value_name = "FORMAT", value_parser = PossibleValuesParser::new(["JSON"]))]
    format: Option<String>,
    /// Print the queries of this command and exit
    #[arg(long)]
    show_query: bool,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// What the arguments without an option select.
#[derive(Debug, PartialEq)]
struct Words {
    devices: Vec<DeviceArgument>,
    interval_s: Option<f64>,
    reports_max: Option<usize>,
}

pub fn run(args: &IostatArgs, verbose: bool) -> Result<Ending, Failure> {
    let words = Words::new(&args.devices.arguments)?;
    let mut selection = DeviceSelection::new(&words.devices);
    let names = names(args)?;
    let trees: Vec<PathBuf> = directories(&args.source);
    if !trees.is_empty() {
        return report_trees(args, &trees, words.interval_s, &selection, &names);
    }
    let live = args.source.is_live();
    let wanted = CounterSelection {
        live,
        // Without an interval, the only report is not to wait for the beginning of a long slice.
        slide_ms: match words.interval_s {
            Some(s) => disk_totals::slide_ms(nanos(s)),
            None => SLIDES_MS[0],
        },
        vm: args.only_vm.clone(),
        busy: args.extended,
        limits_ns: Vec::new(),
        devices: match (live, selection.has_devices()) {
            (false, _) => Devices::AsReported,
            (true, false) => Devices::Whole,
            (true, true) => Devices::WholeAndPartitions,
        },
    };
    if args.show_query {
        output::print(&Questions::new(&wanted).text())?;
        return Ok(Ending::Done);
    }
    let source = with_names(args, &mut selection)?;
    let stop = Stop::on_signals()?;
    let unobserved = UnobservedDevices::of(&source);
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let reports = Reports::new(
        options(&words, live, selection.clone(), names),
        begin(args, &selection, CpuTimes::processors(&stat))?,
    );
    let opened = disk_totals::open(
        &source,
        args.limits.engine(),
        &wanted,
        Arc::new(Mutex::new(Totals::new(DISKS_MAX))),
        Box::new(reports),
        Arc::default(),
        &stop,
    )?;
    opened.drop_privileges(&source, Files::Open)?;
    let report = opened.run(&stop)?;
    unobserved.report();
    conclude(report, verbose)
}

/// The source, including the stacked devices that are named. In `selection`, devices get their
/// kernel names. Names that do not exist on this host are rejected.
fn with_names(args: &IostatArgs, selection: &mut DeviceSelection) -> Result<SourceArgs, Failure> {
    let mut source = args.source.clone();
    let devices: Vec<String> = selection.devices().map(str::to_owned).collect();
    let named = !devices.is_empty() || args.only_vm.is_some();
    let Some(host) = (match named {
        true => HostNames::of(&source)?,
        false => None,
    }) else {
        return Ok(source);
    };
    if let Some(vm) = &args.only_vm {
        host.vm("-w", vm)?;
    }
    for device in devices {
        // The link of a device may have a colon, as those of /dev/disk/by-path.
        let (vm, disk) = match device.split_once([':', '@']) {
            Some((vm, disk)) if names::device(&device).is_none() => (Some(vm), disk),
            _ => (None, device.as_str()),
        };
        if let Some(vm) = vm {
            host.vm("device", vm)?;
        }
        let found = host.disk("device", vm, disk)?;
        if found.is_device {
            let owner = device.strip_suffix(disk).unwrap_or_default();
            let kernel = found.path.strip_prefix("/dev/").unwrap_or(&found.path);
            selection.rename(&device, &format!("{owner}{kernel}"));
            source.also.push(found.path);
        }
    }
    Ok(source)
}

fn options(
    words: &Words,
    live: bool,
    selection: DeviceSelection,
    names: DeviceNames,
) -> reports::ReportOptions {
    let default = live.then_some(INTERVAL_DEFAULT_S);
    let interval_s = words.interval_s.or(default);
    let once = words.interval_s.is_none();
    reports::ReportOptions {
        interval_ns: interval_s.map(nanos),
        reports_max: if once { Some(1) } else { words.reports_max },
        live,
        selection,
        names,
    }
}

fn report_trees(
    args: &IostatArgs,
    directories: &[PathBuf],
    interval_s: Option<f64>,
    selection: &DeviceSelection,
    names: &DeviceNames,
) -> Result<Ending, Failure> {
    if args.only_vm.is_some() || args.show_query {
        return Err(Failure::words(
            "a directory contains the kernel's counters, without VMs and queries; omit -w and --show-query",
        ));
    }
    let read = |dir: &PathBuf| Tree::read(dir);
    let trees = directories
        .iter()
        .map(read)
        .collect::<Result<Vec<Tree>, Failure>>()?;
    let mut output = begin(args, selection, trees[0].processors)?;
    // As in sysstat, a single report is not omitted.
    let omit_first = args.omit_first && (interval_s.is_some() || trees.len() > 1);
    trees::report(
        &trees,
        selection,
        names,
        omit_first,
        wall_clock(),
        &mut output,
    )?;
    Ok(Ending::Done)
}

/// The output, with its heading.
fn begin(
    args: &IostatArgs,
    selection: &DeviceSelection,
    processors: usize,
) -> Result<Output, Failure> {
    // -c alone prints no disks, unless another option asks for them.
    let disks = args.disks || !args.cpu || args.extended || selection.has_devices();
    let style = Style {
        extended: args.extended,
        short: args.short,
        unit: if args.megabytes {
            VolumeUnit::Megabytes
        } else {
            VolumeUnit::Kilobytes
        },
        timestamp: args.timestamp,
        active_only: args.active_only,
        disks,
        cpu: args.cpu || !args.disks,
        decimals: args.decimals,
        human: args.human,
        // As in sysstat: persistent names are long.
        pretty: args.pretty || args.persistent.is_some(),
        compact: args.compact,
        groups_only: args.groups_only,
        // Only the kernel's counters include devices without any I/O.
        unused: selection.unused_too() || directories(&args.source).is_empty(),
    };
    let (target, host) = (output::standard_output(false)?, host(processors));
    let json = args.format.is_some();
    Ok(Output::begin(target, style, json, &host, wall_clock()))
}

/// The sources, if all of them are directories.
fn directories(source: &SourceArgs) -> Vec<PathBuf> {
    let directory = |name: &SourceName| {
        let path = name.path().filter(|path| path.is_dir())?;
        Some(path.to_path_buf())
    };
    let directories: Option<Vec<PathBuf>> = source.sources().iter().map(directory).collect();
    directories.unwrap_or_default()
}

fn names(args: &IostatArgs) -> Result<DeviceNames, Failure> {
    let mut names = DeviceNames::default();
    if let Some(kind) = &args.persistent {
        let folder = format!("/dev/disk/by-{}", kind.to_lowercase());
        if kind.contains('/') || !names.add_persistent(Path::new(&folder)) {
            return Err(Failure::words(format_args!(
                "-j {kind}: {folder} does not exist; `ls -d /dev/disk/by-*` lists the kinds"
            )));
        }
    }
    if args.mapped_names {
        names.add_mapped(Path::new("/sys/block"));
    }
    Ok(names)
}

impl Words {
    /// As in sysstat, numbers are the interval and the number of reports wherever they stand, also
    /// after `-p`.
    fn new(arguments: &[DeviceArgument]) -> Result<Words, Failure> {
        let (mut devices, mut numbers) = (Vec::new(), Vec::new());
        for argument in arguments {
            match argument {
                DeviceArgument::Device(word) if seconds(word).is_some() => numbers.push(word),
                DeviceArgument::Partitions(Some(word)) if seconds(word).is_some() => {
                    numbers.push(word);
                    devices.push(DeviceArgument::Partitions(None));
                }
                argument => devices.push(argument.clone()),
            }
        }
        if let Some(excess) = numbers.get(2) {
            return Err(Failure::words(format_args!(
                "`{excess}`: unexpected argument after the interval and the number of reports"
            )));
        }
        let interval_s = numbers.first().and_then(|text| seconds(text));
        let slice_s = SLIDES_MS[0] as f64 / 1e3;
        if let Some(short) = interval_s.filter(|s| *s < slice_s) {
            return Err(Failure::words(format_args!(
                "interval {short} s is too short; the minimum is {slice_s} s"
            )));
        }
        let count = |text: &&String| match text.parse::<usize>() {
            Ok(n) if n > 0 => Ok(n),
            _ => Err(Failure::words(format_args!(
                "`{text}` is not a number of reports; it must be a positive integer"
            ))),
        };
        Ok(Words {
            devices,
            interval_s,
            reports_max: numbers.get(1).map(count).transpose()?,
        })
    }
}

fn nanos(seconds: f64) -> Nanos {
    (seconds * NANOS_PER_SECOND as f64).round() as Nanos
}

/// A number of seconds, such as 5 or 0.5.
fn seconds(text: &str) -> Option<f64> {
    let digits = |c: char| c.is_ascii_digit() || c == '.';
    let number = text.chars().all(digits).then(|| text.parse::<f64>().ok());
    number.flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Result<Words, Failure> {
        let words = text.split_whitespace().map(str::to_owned);
        let words: Vec<DeviceArgument> = words.map(DeviceArgument::Device).collect();
        Words::new(&words)
    }

    #[test]
    fn numbers_at_the_end_are_interval_and_count() {
        let all = words("web:vda sda 0.5 3").unwrap();
        let devices = ["web:vda", "sda"].map(|name| DeviceArgument::Device(name.to_owned()));
        let devices = devices.to_vec();
        assert_eq!(
            all,
            Words {
                devices,
                interval_s: Some(0.5),
                reports_max: Some(3)
            }
        );
        assert_eq!(words("").unwrap().interval_s, None);
        for bad in ["1 2 3", "0", "1 0", "1 1.5", "0.01"] {
            assert!(words(bad).is_err(), "{bad}");
        }
    }
}
