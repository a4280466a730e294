//! The commands on background collections: `weir hist -l`, `-s`, `-x` and `-r`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use weir_model::{Symbol, Unit};
use weir_sink::number::scaled;
use weir_sink::text::shown;
use weir_sink::time::timestamp_to;
use weir_tap::ebpf::{self, DeviceChoice};
use weir_tap::inventory::{Declared, InventoryWatch, WatchOptions};

use super::COLLECTOR;
use super::choice::HistogramChoice;
use super::collector::client::CollectorClient;
use super::collector::folder::CollectorFolder;
use super::collector::messages::{Collecting, CollectionRequest};
use super::collector::server;
use super::counted::HistogramKey;
use super::disks::{Listed, list};
use super::foreground::CountRequest;
use super::kernel::{self, KernelCount};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::quantity::CENTURY;
use weir_runtime::source;

/// The default duration of a collection: as in vscsiStats.
const SPAN: Duration = Duration::from_secs(30 * 60);

/// The command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `-l`
    List,
    /// `-s`
    Start,
    /// `-x`
    Stop,
    /// `-r`
    Reset,
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verb::List => "-l",
            Verb::Start => "-s",
            Verb::Stop => "-x",
            Verb::Reset => "-r",
        })
    }
}

/// Runs a command.
///
/// # Errors
/// When the host cannot be scanned, or the collector rejects the command.
pub fn run(verb: Verb, wanted: &CountRequest, as_json: bool) -> Result<Ending, Failure> {
    let listed = list(&wanted.source.inventory()?.snapshot());
    let choice = wanted.choice(&listed)?;
    let client = CollectorClient::new(CollectorFolder::of_user()?);
    match verb {
        Verb::List => {
            let running = client.status()?;
            output::print(&match as_json {
                true => json_list(&listed, &choice, &running),
                false => table(&listed, &choice, &running),
            })?;
        }
        Verb::Start => {
            let started = client.start(&order(wanted, choice, &listed), COLLECTOR)?;
            output::notice(started_words(&started));
            if let Some(vm) = started.choice.vm.as_deref()
                && !listed.iter().any(|l| l.is_of(vm))
            {
                output::notice(format_args!(
                    "weir: VM {vm} does not exist now; it is collected when it starts"
                ));
            }
            if chosen(&listed, &started.choice).next().is_none()
                && let Some(disk) = started.choice.disk.as_deref()
            {
                output::notice(format_args!(
                    "weir: disk {} does not exist now; it is collected when it appears (`weir \
                     hist -l` lists the disks)",
                    shown(disk)
                ));
            }
        }
        Verb::Stop => {
            let stopped = client.stop(&choice)?;
            for one in &stopped {
                let words = one.choice.words();
                output::notice(format_args!(
                    "weir: {words}: stopped; `weir hist -p all` still prints the histograms"
                ));
            }
            none_of(&stopped, &choice);
        }
        Verb::Reset => {
            let reset = client.reset(&choice)?;
            for one in &reset {
                output::notice(format_args!("weir: {}: reset", one.choice.words()));
            }
            none_of(&reset, &choice);
        }
    }
    Ok(Ending::Done)
}

/// Runs the collector, until nothing is collected any more.
///
/// # Errors
/// When it cannot be started.
pub fn collect() -> Result<(), Failure> {
    // Before any thread starts: later collections open further taps.
    ebpf::keep_what_collecting_takes()?;
    server::run(&CollectorFolder::of_user()?, open)
}

/// Opens a gauge in the kernel, with an inventory of its own, as VMs may be declared differently.
fn open(order: &CollectionRequest) -> Result<KernelCount, Failure> {
    let declared = order.declared.iter().map(|text| text.parse());
    let declared: Result<Vec<Declared>, String> = declared.collect();
    let inventory = InventoryWatch::start(&WatchOptions {
        declared: declared.map_err(Failure::words)?,
        inspector: Some(source::inspector()),
        ..WatchOptions::default()
    })?;
    let devices = match (order.devices.is_empty(), order.stacked) {
        (false, _) => DeviceChoice::Named(order.devices.clone()),
        (true, true) => DeviceChoice::All,
        (true, false) => DeviceChoice::Leaves,
    };
    let inventory: Arc<InventoryWatch> = inventory;
    let kernel = KernelCount::open(order.choice.clone(), order.by, devices, inventory);
    Ok(kernel.map_err(source::unwatched)?)
}

fn order(wanted: &CountRequest, choice: HistogramChoice, listed: &[Listed]) -> CollectionRequest {
    let devices = kernel::devices(wanted.source.devices(), &choice, listed);
    let span = wanted.source.span.unwrap_or(SPAN);
    CollectionRequest {
        by: wanted.by,
        span: (span < CENTURY).then_some(span),
        stacked: matches!(devices, DeviceChoice::All),
        devices: match devices {
            DeviceChoice::Named(names) => names,
            _ => Vec::new(),
        },
        declared: wanted
            .source
            .declared()
            .iter()
            .map(Declared::to_string)
            .collect(),
        choice,
    }
}

fn started_words(started: &Collecting) -> String {
    let until = match started.until {
        Some(until) => format!("until {}", timestamp_to(until, 0)),
        None => "until it is stopped".to_owned(),
    };
    format!(
        "weir: {}: collected since {}, {until}; `weir hist -p all` prints the histograms, `weir \
         hist -x` stops the collection",
        started.choice.words(),
        timestamp_to(started.since, 0)
    )
}

fn none_of(done: &[Collecting], choice: &HistogramChoice) {
    if done.is_empty() {
        output::notice(format_args!(
            "weir: {}: no collection is running",
            choice.words()
        ));
    }
}

/// The collection of a disk, if any.
fn collecting<'c>(disk: &Listed, running: &'c [Collecting]) -> Option<&'c Collecting> {
    let has = |c: &&Collecting| c.choice.has(&disk.subject());
    // Collections by process or cgroup have no disks to mark.
    let by_disk = |c: &&Collecting| matches!(c.by, HistogramKey::Disk | HistogramKey::Device);
    running.iter().filter(by_disk).find(has)
}

fn chosen<'l>(
    listed: &'l [Listed],
    choice: &'l HistogramChoice,
) -> impl Iterator<Item = &'l Listed> {
    listed.iter().filter(|l| choice.has(&l.subject()))
}

fn table(listed: &[Listed], choice: &HistogramChoice, running: &[Collecting]) -> String {
    let head = ["VM", "ID", "N", "DISK", "ON", "SIZE", "COLLECTED"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let text =
        |symbol: Option<Symbol>| symbol.map_or("-".into(), |s| shown(s.as_str()).into_owned());
    for disk in chosen(listed, choice) {
        let size = disk.bytes.and_then(|b| scaled(b as f64, Unit::Bytes));
        let below = disk.pdisk.filter(|_| disk.vm.is_some()).or(disk.image);
        rows.push(vec![
            text(disk.vm),
            disk.world_group.to_string(),
            disk.handle.to_string(),
            text(Some(disk.disk())),
            text(below),
            size.unwrap_or("-".into()),
            collecting(disk, running).map_or("-".into(), when),
        ]);
    }
    let mut text = weir_sink::text::aligned(&rows);
    let shown_by_disk =
        |c: &&Collecting| !listed.iter().any(|l| collecting(l, running) == Some(*c));
    for other in running.iter().filter(shown_by_disk) {
        text += &format!(
            "{} by {}: {}\n",
            shown(&other.choice.words()),
            other.by,
            when(other)
        );
    }
    text
}

fn when(collecting: &Collecting) -> String {
    let until = collecting.until.map(|at| timestamp_to(at, 0));
    let until = until.map_or("until stopped".into(), |until| format!("until {until}"));
    format!("since {}, {until}", timestamp_to(collecting.since, 0))
}

fn json_list(listed: &[Listed], choice: &HistogramChoice, running: &[Collecting]) -> String {
    let text = |symbol: Option<Symbol>| symbol.map(Symbol::as_str);
    let line = |disk: &Listed| {
        let collected = collecting(disk, running);
        let line = json!({
            "vm": text(disk.vm),
            "vm_id": disk.world_group,
            "disk_id": disk.handle,
            "vdisk": text(disk.vdisk),
            "pdisk": text(disk.pdisk),
            "image": text(disk.image),
            "bytes": disk.bytes,
            "collected": collected.map(|c| json!({"since_ns": c.since, "until_ns": c.until})),
        });
        format!("{line}\n")
    };
    chosen(listed, choice).map(line).collect()
}
