//! Counting and printing in the foreground: the default mode of `weir hist`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use weir_model::Symbol;
use weir_tap::ebpf::{self, DeviceChoice, Files};
use weir_workload::{Histograms, Subject};

use super::choice::{HistogramChoice, is_named};
use super::collector::client::{CollectorClient, Remote};
use super::collector::folder::CollectorFolder;
use super::count::Each;
use super::counted::{CountedHistograms, HistogramKey};
use super::disks::{self, Listed, list};
use super::gather::{self, GaugeSchedule};
use super::gauge::Gauge;
use super::kernel::{self, KernelCount};
use super::served::Served;
use super::show::{Compared, Printer};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::names::{self, HostNames};
use weir_runtime::output;
use weir_runtime::run_loop::Stop;
use weir_runtime::run_loop::conclude;
use weir_runtime::source;
use weir_runtime::source::SourceOptions;
use weir_runtime::unobserved::UnobservedDevices;
use weir_tap::source::TAPDISK;

/// The selection and options of a count.
#[derive(Clone, Debug)]
pub struct CountRequest {
    /// The source of events.
    pub source: SourceOptions,
    /// `-w`
    pub vm: Option<String>,
    /// `-i`
    pub disk: Option<String>,
    /// The key of the histograms.
    pub by: HistogramKey,
    /// Read each request.
    pub each: bool,
    /// Background collections may be used.
    pub collected: bool,
    /// The duration, and the interval of the output.
    pub pace: GaugeSchedule,
}

impl CountRequest {
    /// The selection of `-w` and `-i`.
    ///
    /// # Errors
    /// When they match nothing.
    pub fn choice(&self, listed: &[Listed]) -> Result<HistogramChoice, Failure> {
        if self.vm.is_some() && self.by != HistogramKey::Disk {
            let by = self.by;
            return Err(Failure::words(format_args!(
                "-w: with --by {by} the VM is unknown; omit -w or --by"
            )));
        }
        let mut choice = HistogramChoice::new(self.vm.as_deref(), self.disk.as_deref(), listed)?;
        // Histograms have the kernel's names of devices, `/dev/dm-0` for `/dev/mapper/root`.
        if self.source.is_host_only()
            && !listed.iter().any(|l| choice.has(&l.subject()))
            && let Some(disk) = &choice.disk
            && let Some(device) = names::device(disk)
            && !is_named(&device, disk)
        {
            choice.disk = Some(device);
        }
        if !self.each
            && let Some(disk) = disks::with_others_on_its_device(listed, &choice)
        {
            output::notice(format_args!(
                "weir: VM {} has several disks on {}, which the kernel does not distinguish; use \
                 --each",
                disk.vm.map_or("?", Symbol::as_str),
                disk.pdisk.map_or("?", Symbol::as_str)
            ));
        }
        Ok(choice)
    }

    /// The selection if there is no list: names.
    fn names(&self) -> HistogramChoice {
        HistogramChoice {
            vm: self.vm.clone(),
            disk: self.disk.clone(),
        }
    }

    /// The disks, if the source is this host, and the selection among them.
    ///
    /// # Errors
    /// When the host cannot be scanned, or the selection matches nothing.
    pub fn meant(&self) -> Result<(Vec<Listed>, HistogramChoice), Failure> {
        if !self.source.has_host() {
            return Ok((Vec::new(), self.names()));
        }
        let listed = list(&self.source.inventory()?.snapshot());
        let choice = self.choice(&listed)?;
        if let Some(names) = HostNames::of(&self.source)? {
            if let Some(vm) = &choice.vm {
                names.vm("-w", vm)?;
            }
            if let Some(disk) = &choice.disk {
                names.disk("-i", choice.vm.as_deref(), disk)?;
            }
        }
        Ok((listed, choice))
    }

    /// The source, limited to the selected device of the host if one is selected.
    pub fn source_for(&self, choice: &HistogramChoice, listed: &[Listed]) -> SourceOptions {
        let mut source = self.source.clone();
        if let DeviceChoice::Named(names) = kernel::devices(source.devices(), choice, listed) {
            source.device = names;
        }
        source
    }

    /// True if the kernel can count it.
    fn in_kernel(&self) -> bool {
        !self.each && self.source.is_host_only()
    }

    /// The tap in the disk path that can count the selection.
    fn in_tap(&self) -> Option<PathBuf> {
        match &self.source.sources()[..] {
            [name] if !self.each => name.argument(&TAPDISK).map(PathBuf::from),
            _ => None,
        }
    }

    /// The same options with a file as source.
    fn of_file(&self, path: &Path) -> CountRequest {
        let mut wanted = self.clone();
        wanted.source.from = vec![path.display().to_string()];
        wanted
    }
}

/// Counts and prints.
///
/// # Errors
/// When it cannot be counted or printed.
pub fn run(wanted: &CountRequest, mut printer: Printer, verbose: bool) -> Result<Ending, Failure> {
    if let Some(counted) = of_histograms(wanted)? {
        printer.print(&counted)?;
        return Ok(Ending::Done);
    }
    let (listed, choice) = wanted.meant()?;
    if wanted.in_kernel() {
        printer.idle = idle(&listed, &choice, wanted.by);
        printer.listed = listed.clone();
        if let Some(ending) = collected(wanted, &choice, &printer)? {
            return Ok(ending);
        }
    }
    let each = Box::new(move |counted: CountedHistograms| {
        printer.print(&counted)?;
        Ok(true)
    });
    count(wanted, &choice, &listed, each, verbose)
}

/// Counts, and passes on the counts: in the kernel or in the tap if possible, otherwise event by
/// event.
fn count(
    wanted: &CountRequest,
    choice: &HistogramChoice,
    listed: &[Listed],
    each: Each,
    verbose: bool,
) -> Result<Ending, Failure> {
    let stop = Stop::on_signals()?;
    let pace = &wanted.pace;
    if let Some(path) = wanted.in_tap() {
        let mut served = Served::open(&path, choice.clone(), wanted.by)?;
        return watch(&mut served, choice, pace, &stop, each);
    }
    if !wanted.in_kernel() {
        let source = wanted.source_for(choice, listed);
        let report = gather::of_events(&source, choice, wanted.by, pace, &stop, each)?;
        return conclude(report, verbose);
    }
    let mut kernel = open(wanted, choice, listed)?;
    if !wanted.source.keep_privileges {
        ebpf::drop_privileges(Files::Open)?;
    }
    let unobserved = UnobservedDevices::of(&wanted.source_for(choice, listed));
    let ending = watch(&mut kernel, choice, pace, &stop, each)?;
    unobserved.report();
    Ok(ending)
}

/// Reads the gauge until the end.
fn watch(
    gauge: &mut dyn Gauge,
    choice: &HistogramChoice,
    pace: &GaugeSchedule,
    stop: &Stop,
    each: Each,
) -> Result<Ending, Failure> {
    if pace.span.is_none() && pace.interval.is_none() {
        let words = choice.words();
        output::notice(format_args!(
            "weir: counting {words}; press Ctrl-C for the histograms"
        ));
    }
    gather::watch(gauge, pace, stop, pace.counted(each))?;
    Ok(stop.signal().map_or(Ending::Done, Ending::Signal))
}

/// Counts in intervals, for drawing.
///
/// # Errors
/// When it cannot be counted, or `each` fails.
pub fn in_intervals(wanted: &CountRequest, each: Each, verbose: bool) -> Result<Ending, Failure> {
    // A file of histograms has no intervals, which is reported.
    of_histograms(wanted)?;
    let (listed, choice) = wanted.meant()?;
    count(wanted, &choice, &listed, each, verbose)
}

/// Prints two counts side by side: the selection, and a file or another disk of the same source.
///
/// # Errors
/// When one of them cannot be read.
pub fn against(
    wanted: &CountRequest,
    other: &str,
    printer: &Printer,
    verbose: bool,
) -> Result<Ending, Failure> {
    let mut ending = Ending::Done;
    let mut count = |wanted: &CountRequest, choice: &HistogramChoice, listed: &[Listed]| {
        let (counted, ended) = total(wanted, choice, listed, verbose)?;
        printer.report_incomplete(&counted);
        if ended != Ending::Done {
            ending = ended;
        }
        Ok::<CountedHistograms, Failure>(counted)
    };
    let (listed, own) = wanted.meant()?;
    let path = Path::new(other);
    let source = wanted.source.from.join(", ");
    let (both, names) = match path.is_file() {
        true => {
            // The file first: live counting drops the privilege to open it.
            let theirs = count(&wanted.of_file(path), &wanted.names(), &[])?;
            let counted = count(wanted, &own, &listed)?;
            let both = [part(&counted, &own, &source)?, part(&theirs, &own, other)?];
            (both, [source, other.to_owned()])
        }
        false => {
            let number = other.parse::<u64>().is_ok() && !listed.is_empty();
            let theirs = match number {
                true => HistogramChoice::new(None, Some(other), &listed)?,
                false => HistogramChoice::of_text(other),
            };
            let counted = count(wanted, &HistogramChoice::default(), &listed)?;
            let both = [
                part(&counted, &own, &source)?,
                part(&counted, &theirs, &source)?,
            ];
            (both, [own.words(), theirs.words()])
        }
    };
    let names = [names[0].as_str(), names[1].as_str()];
    printer.print_compared(&Compared {
        names,
        both: [&both[0], &both[1]],
    })?;
    Ok(ending)
}

/// The histograms of the selection, the sum of all disks.
fn part(
    counted: &CountedHistograms,
    choice: &HistogramChoice,
    source: &str,
) -> Result<Histograms, Failure> {
    let mut some = counted.clone();
    some.keep(choice);
    if some.subjects.is_empty() {
        return Err(Failure::world(format_args!(
            "{source}: no requests of {}",
            choice.words()
        )));
    }
    Ok(some.together())
}

/// All counts until the end.
fn total(
    wanted: &CountRequest,
    choice: &HistogramChoice,
    listed: &[Listed],
    verbose: bool,
) -> Result<(CountedHistograms, Ending), Failure> {
    if let Some(counted) = of_histograms(wanted)? {
        return Ok((counted, Ending::Done));
    }
    let taken = Arc::new(Mutex::new(None));
    let take = taken.clone();
    let each = Box::new(move |counted: CountedHistograms| {
        *take.lock().expect("no panic while held") = Some(counted);
        Ok(true)
    });
    let ending = count(wanted, choice, listed, each, verbose)?;
    let counted = taken.lock().expect("no panic while held").take();
    let counted = counted.ok_or_else(|| Failure::world("no requests were counted"))?;
    Ok((counted, ending))
}

/// The histograms of the selection in a saved file.
fn of_histograms(wanted: &CountRequest) -> Result<Option<CountedHistograms>, Failure> {
    let sources = wanted.source.sources();
    let [name] = &sources[..] else {
        return Ok(None);
    };
    let Some(path) = name.path() else {
        return Ok(None);
    };
    if path.is_dir() || wanted.source.from_format.is_some() {
        return Ok(None);
    }
    let Some(mut counted) = gather::of_file(path, &wanted.source)? else {
        return Ok(None);
    };
    if wanted.pace.interval.is_some() {
        return Err(Failure::words(format_args!(
            "{}: contains histograms, not requests, and cannot be divided into intervals",
            path.display()
        )));
    }
    counted.keep(&wanted.names());
    counted.sort();
    Ok(Some(counted))
}

fn open(
    wanted: &CountRequest,
    choice: &HistogramChoice,
    listed: &[Listed],
) -> Result<KernelCount, Failure> {
    let devices = kernel::devices(wanted.source.devices(), choice, listed);
    let inventory = wanted.source.inventory()?;
    let kernel = KernelCount::open(choice.clone(), wanted.by, devices, inventory);
    Ok(kernel.map_err(source::unwatched)?)
}

/// Prints the counts of a background collection, running or stopped; `None` if there is none.
fn collected(
    wanted: &CountRequest,
    choice: &HistogramChoice,
    printer: &Printer,
) -> Result<Option<Ending>, Failure> {
    if !wanted.collected || wanted.pace.span.is_some() {
        return Ok(None);
    }
    let Ok(place) = CollectorFolder::of_user() else {
        return Ok(None);
    };
    let client = CollectorClient::new(place.clone());
    if let Some(counted) = client.snapshot(choice, wanted.by)? {
        if wanted.pace.interval.is_none() {
            printer.print(&counted)?;
            return Ok(Some(Ending::Done));
        }
        let mut remote = Remote {
            client,
            choice: choice.clone(),
            by: wanted.by,
        };
        let (printer, stop) = (printer.clone(), Stop::on_signals()?);
        let each = Box::new(move |counted: CountedHistograms| {
            printer.print(&counted)?;
            Ok(true)
        });
        let gauge: &mut dyn Gauge = &mut remote;
        gather::watch(gauge, &wanted.pace, &stop, wanted.pace.counted(each))?;
        return Ok(Some(stop.signal().map_or(Ending::Done, Ending::Signal)));
    }
    if wanted.pace.interval.is_some() {
        return Ok(None);
    }
    let stopped = place.stopped(wanted.by);
    let kept = if stopped.exists() {
        gather::of_file(&stopped, &wanted.source)?
    } else {
        None
    };
    let Some(mut counted) = kept.filter(|counted| counted.has_any(choice)) else {
        return nothing_collected(choice);
    };
    counted.keep(choice);
    output::notice(
        "weir: no collection is running; these are the histograms of a stopped one (--for 10s \
         counts now)",
    );
    counted.sort();
    printer.print(&counted)?;
    Ok(Some(Ending::Done))
}

/// An interactive user can end the count that starts now; a script would wait for ever.
fn nothing_collected(choice: &HistogramChoice) -> Result<Option<Ending>, Failure> {
    if std::io::stdout().is_terminal() {
        return Ok(None);
    }
    Err(Failure::world(format_args!(
        "{}: no collection is running; start one with `weir hist -s`, or count now with `--for \
         10s`",
        choice.words()
    )))
}

/// Disks that vscsiStats' CSV includes even without I/O: those of VMs, and the selected ones.
fn idle(listed: &[Listed], choice: &HistogramChoice, by: HistogramKey) -> Vec<Subject> {
    let wanted = listed.iter().filter(|l| {
        let named = choice.disk.is_some() || l.vm.is_some();
        by == HistogramKey::Disk && named && choice.has(&l.subject())
    });
    wanted.map(Listed::subject).collect()
}
