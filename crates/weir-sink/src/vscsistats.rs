//! The CSV of VMware's `vscsiStats -p .. -c`, line for line, so that existing scripts can parse it.
//!
//! The layout is that of a real output of ESX: for each histogram a title with the numbers of VM
//! and disk, four lines `min` to `count`, a header, and a line `frequency,limit` for each bucket.
//! The last limit occurs twice: the second line counts the values above it. Times are in whole
//! microseconds, the mean is truncated to an integer, lines end with a line feed.
//!
//! vscsiStats reports reads, writes and the latency that the VM observes. weir's additional
//! sections, wait and service, follow the same pattern and are printed only on request.

use std::fmt::Write;

use weir_model::{NANOS_PER_MICRO, Op};
use weir_workload::{Class, Distribution, Histograms, Metric, MetricUnit};

use crate::text::shown;

/// The disk in the titles of sections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskTitle {
    /// Takes the place of the number of the VM's world group.
    pub world_group: u64,
    /// Takes the place of the handle of the virtual disk.
    pub handle: u64,
    /// The name of the disk in the VM, in parentheses behind it: `scsi0:0` on ESX.
    pub name: String,
}

/// One histogram in vscsiStats' units: bytes, sectors, requests, microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// The metric.
    pub metric: Metric,
    /// The class of requests: all, reads or writes.
    pub class: Class,
    /// The least value; 0 without values, as the others.
    pub min: i64,
    /// The greatest.
    pub max: i64,
    /// The mean, truncated.
    pub mean: i64,
    /// The number of values.
    pub count: u64,
    /// The counts under each limit, and last above all.
    pub frequencies: Vec<u64>,
}

/// The metrics of `-p all`, in the order in which vscsiStats prints them.
pub const ALL: [Metric; 6] = [
    Metric::Length,
    Metric::Seek,
    Metric::SeekClosest,
    Metric::Latency,
    Metric::Outstanding,
    Metric::Interarrival,
];

/// The classes of requests that a metric has sections for, in the order of vscsiStats.
const CLASSES: [Class; 3] = [Class::All, Class::Of(Op::Read), Class::Of(Op::Write)];

impl Section {
    /// From one distribution of a disk.
    pub fn new(class: Class, of: &Distribution) -> Section {
        let unit = i128::from(unit(of.metric));
        let shown = |value: i128| i64::try_from(value / unit).unwrap_or(i64::MAX);
        let (min, max, mean) = match of.count {
            0 => (0, 0, 0),
            count => (of.min.into(), of.max.into(), of.sum / i128::from(count)),
        };
        Section {
            metric: of.metric,
            class,
            min: shown(min),
            max: shown(max),
            mean: shown(mean),
            count: of.count,
            frequencies: of.bins.clone(),
        }
    }
}

/// The sections of `metrics`: all, reads and writes of each, if vscsiStats has them.
pub fn sections(histograms: &Histograms, metrics: &[Metric]) -> Vec<Section> {
    let of = |metric: &Metric| {
        let metric = *metric;
        CLASSES
            .into_iter()
            .filter(move |class| metric.is_of(*class))
            .map(move |class| Section::new(class, histograms.of(metric, class)))
    };
    metrics.iter().flat_map(of).collect()
}

/// The text of a section. `closest_of` is the number of previous requests for the closest distance:
/// 16 on ESX.
pub fn text(disk: &DiskTitle, section: &Section, closest_of: usize) -> String {
    let mut text = String::new();
    let title = title(section.metric, section.class, closest_of);
    let name = shown(&disk.name).replace(',', "\\x2c");
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "Histogram: {title},virtual machine worldGroupID,{},virtual disk handleID,{} ({name})",
        disk.world_group, disk.handle,
    );
    let Section {
        min,
        max,
        mean,
        count,
        ..
    } = section;
    let _ = writeln!(text, "min,{min}\nmax,{max}\nmean,{mean}\ncount,{count}");
    let _ = writeln!(text, "Frequency,Histogram Bucket Limit");
    let limits = section.metric.limits();
    let last = limits.last().expect("every metric has limits");
    for (frequency, limit) in section.frequencies.iter().zip(limits.iter().chain([last])) {
        let _ = writeln!(text, "{frequency},{}", limit / unit(section.metric));
    }
    text
}

/// The factor from a unit of vscsiStats to the metric's own.
fn unit(metric: Metric) -> i64 {
    match metric.measure() {
        MetricUnit::Nanoseconds => NANOS_PER_MICRO,
        MetricUnit::Bytes | MetricUnit::Sectors | MetricUnit::Requests => 1,
    }
}

fn title(metric: Metric, class: Class, closest_of: usize) -> String {
    let kind = match class {
        Class::All => "",
        Class::Of(Op::Read) => "Read",
        Class::Of(Op::Write) => "Write",
        Class::Of(Op::Flush) => "Flush",
        Class::Of(Op::Discard) => "Discard",
        Class::Of(Op::WriteZeroes) => "Write Zeroes",
    };
    // With the space that follows it, or nothing.
    let of = match kind {
        "" => String::new(),
        kind => format!("{kind} "),
    };
    match metric {
        Metric::Length => format!("IO lengths of {of}commands"),
        Metric::Seek => format!("distance (in LBNs) between successive {of}commands"),
        Metric::SeekClosest => format!(
            "distance (in LBNs) between each command from the closest of previous {closest_of}"
        ),
        Metric::Latency => format!("latency of {of}IOs in Microseconds (us)"),
        Metric::Wait => format!("wait of {of}IOs in Microseconds (us)"),
        Metric::Service => format!("service of {of}IOs in Microseconds (us)"),
        Metric::Outstanding => {
            format!("number of outstanding {of}IOs when a new {of}IO is issued")
        }
        Metric::Interarrival => match kind {
            "" => "latency of IO interarrival time in Microseconds (us)".into(),
            kind => format!("latency of IO interarrival time for {kind}s in Microseconds (us)"),
        },
    }
}
