//! The QMP queries of weir, and the parsed responses.
//!
//! Structures from qapi/block-core.json, qapi/machine.json and qapi/misc.json of QEMU.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{QemuMonitor, QmpError};

/// The run state of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunState {
    /// `running`, `paused`, `prelaunch`, ...
    pub status: String,
    /// Whether its processors run.
    pub running: bool,
}

/// A disk or drive of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drive {
    /// The path of the device in QEMU's object tree, as `/machine/peripheral/disk0/virtio-backend`.
    pub qdev: Option<String>,
    /// The name in `-drive`; `-blockdev` has none.
    pub drive: Option<String>,
    /// Whether the medium can be changed.
    pub removable: bool,
    /// The top node; `None` for an empty drive.
    pub node: Option<QmpNode>,
}

/// A block node: a file, a format on a file, a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QmpNode {
    /// Its name; QEMU generates one, as `#block149`, if the user specified none.
    pub name: Option<String>,
    /// `raw`, `qcow2`, `file`, `host_device`, `nbd`, ...
    pub driver: Option<String>,
    /// The file or device, as configured; for a chain of images the top one.
    pub file: Option<String>,
    /// The backing image, if there is one.
    pub backing_file: Option<String>,
    /// Whether the node is read-only.
    pub read_only: Option<bool>,
    /// Whether the host's page cache is bypassed. QEMU reports it for the bottom node, the file.
    pub direct: Option<bool>,
    /// The image.
    pub image: QmpImage,
}

/// The image of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QmpImage {
    /// The size that the guest sees.
    pub virtual_bytes: Option<i64>,
    /// The size allocated on the host.
    pub actual_bytes: Option<i64>,
}

/// Counters of a drive since it was plugged in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockStats {
    /// As [`Drive::qdev`].
    pub qdev: Option<String>,
    /// As [`Drive::drive`].
    pub drive: Option<String>,
    /// The name of the top node.
    pub node: Option<String>,
    /// Reads.
    pub read: OpStats,
    /// Writes.
    pub write: OpStats,
    /// Flushes.
    pub flush: OpStats,
    /// Discards.
    pub discard: OpStats,
    /// Latencies, while histograms are on.
    pub latencies: Latencies,
}

/// Counters of one operation; `None` if this QEMU does not count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpStats {
    /// Requests that succeeded.
    pub operations: Option<i64>,
    /// Their bytes.
    pub bytes: Option<i64>,
    /// The sum of their latencies.
    pub time_ns: Option<i64>,
    /// Requests that failed.
    pub failed: Option<i64>,
    /// Invalid requests, as beyond the disk's end.
    pub invalid: Option<i64>,
    /// Requests that were merged into others before they were counted.
    pub merged: Option<i64>,
}

/// Latencies of a drive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latencies {
    /// Of reads.
    pub read: Option<LatencyHistogram>,
    /// Of writes.
    pub write: Option<LatencyHistogram>,
    /// Of flushes.
    pub flush: Option<LatencyHistogram>,
}

/// Counts by latency: bin `i` contains those at or above boundary `i - 1` and below boundary `i`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyHistogram {
    /// Ascending.
    pub boundaries_ns: Vec<i64>,
    /// One more than boundaries.
    pub bins: Vec<i64>,
}

/// The run state of the VM.
///
/// # Errors
/// As [`QemuMonitor::execute`], here and below.
pub fn status(qemu: &mut dyn QemuMonitor) -> Result<RunState, QmpError> {
    let answer = qemu.execute("query-status", Value::Null)?;
    Ok(RunState {
        status: text(&answer, "status").unwrap_or_default(),
        running: flag(&answer, "running").unwrap_or(false),
    })
}

/// The name from `-name`.
pub fn name(qemu: &mut dyn QemuMonitor) -> Result<Option<String>, QmpError> {
    let answer = qemu.execute("query-name", Value::Null)?;
    Ok(text(&answer, "name"))
}

/// The UUID; `None` if none was specified.
pub fn uuid(qemu: &mut dyn QemuMonitor) -> Result<Option<String>, QmpError> {
    let answer = qemu.execute("query-uuid", Value::Null)?;
    let given = |uuid: &String| uuid.chars().any(|c| c != '0' && c != '-');
    Ok(text(&answer, "UUID").filter(given))
}

/// The guest's disks and drives, including empty ones.
pub fn drives(qemu: &mut dyn QemuMonitor) -> Result<Vec<Drive>, QmpError> {
    let answer = qemu.execute("query-block", Value::Null)?;
    let drive = |entry: &Value| Drive {
        qdev: text(entry, "qdev"),
        drive: text(entry, "device"),
        removable: flag(entry, "removable").unwrap_or(false),
        node: entry.get("inserted").map(node),
    };
    Ok(entries(&answer).map(drive).collect())
}

/// The counters of all drives of a guest; nodes without a device are omitted.
pub fn block_stats(qemu: &mut dyn QemuMonitor) -> Result<Vec<BlockStats>, QmpError> {
    let answer = qemu.execute("query-blockstats", Value::Null)?;
    let drive = |entry: &Value| {
        let stats = entry.get("stats")?;
        Some(BlockStats {
            qdev: text(entry, "qdev"),
            drive: text(entry, "device"),
            node: text(entry, "node-name"),
            read: op_stats(stats, "rd"),
            write: op_stats(stats, "wr"),
            flush: op_stats(stats, "flush"),
            discard: op_stats(stats, "unmap"),
            latencies: Latencies {
                read: histogram(stats, "rd_latency_histogram"),
                write: histogram(stats, "wr_latency_histogram"),
                flush: histogram(stats, "flush_latency_histogram"),
            },
        })
    };
    Ok(entries(&answer).filter_map(drive).collect())
}

/// Switches the latency histograms of the drive at `qdev` on, or off with `None`. Switching on
/// resets them to zero. `qdev` is the path in the object tree, as [`Drive::qdev`]: for a virtio-blk
/// disk QEMU does not accept the plain id.
pub fn set_latency_histogram(
    qemu: &mut dyn QemuMonitor,
    qdev: &str,
    boundaries_ns: Option<&[i64]>,
) -> Result<(), QmpError> {
    let mut arguments = json!({"id": qdev});
    if let Some(boundaries_ns) = boundaries_ns {
        arguments["boundaries"] = json!(boundaries_ns);
    }
    qemu.execute("block-latency-histogram-set", arguments)?;
    Ok(())
}

/// Executes a command of the human monitor and returns its output.
pub fn human(qemu: &mut dyn QemuMonitor, line: &str) -> Result<String, QmpError> {
    let answer = qemu.execute("human-monitor-command", json!({"command-line": line}))?;
    Ok(answer.as_str().unwrap_or_default().into())
}

fn node(entry: &Value) -> QmpNode {
    let image = entry.get("image");
    let bytes = |key| image.and_then(|i| number(i, key));
    QmpNode {
        name: text(entry, "node-name"),
        driver: text(entry, "drv"),
        file: text(entry, "file"),
        backing_file: text(entry, "backing_file"),
        read_only: flag(entry, "ro"),
        direct: entry.get("cache").and_then(|c| flag(c, "direct")),
        image: QmpImage {
            virtual_bytes: bytes("virtual-size"),
            actual_bytes: bytes("actual-size"),
        },
    }
}

fn op_stats(stats: &Value, op: &str) -> OpStats {
    OpStats {
        operations: number(stats, &format!("{op}_operations")),
        bytes: number(stats, &format!("{op}_bytes")),
        time_ns: number(stats, &format!("{op}_total_time_ns")),
        failed: number(stats, &format!("failed_{op}_operations")),
        invalid: number(stats, &format!("invalid_{op}_operations")),
        merged: number(stats, &format!("{op}_merged")),
    }
}

/// A histogram, if it is valid: one more bin than boundaries.
fn histogram(stats: &Value, key: &str) -> Option<LatencyHistogram> {
    let entry = stats.get(key)?;
    let numbers = |key| {
        let list = entry.get(key)?.as_array()?;
        list.iter().map(Value::as_i64).collect::<Option<Vec<i64>>>()
    };
    let histogram = LatencyHistogram {
        boundaries_ns: numbers("boundaries")?,
        bins: numbers("bins")?,
    };
    let whole = histogram.bins.len() == histogram.boundaries_ns.len() + 1
        && histogram.boundaries_ns.is_sorted();
    whole.then_some(histogram)
}

fn entries(answer: &Value) -> impl Iterator<Item = &Value> {
    answer.as_array().into_iter().flatten()
}

/// A non-empty text.
fn text(entry: &Value, key: &str) -> Option<String> {
    let text = entry.get(key)?.as_str()?;
    (!text.is_empty()).then(|| text.into())
}

fn number(entry: &Value, key: &str) -> Option<i64> {
    entry.get(key)?.as_i64()
}

fn flag(entry: &Value, key: &str) -> Option<bool> {
    entry.get(key)?.as_bool()
}
