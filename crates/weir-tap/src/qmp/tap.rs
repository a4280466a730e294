//! [`QmpTap`]: the live tap of QEMU's own counters, streams `blockstats` and `blocklatency`.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use weir_model::capabilities::Rate;
use weir_model::qemu::{
    BlockLatency, BlockStat, Polled, QemuOpCounts, blocklatency_batch, blockstats_batch,
};
use weir_model::{Capabilities, Demand, Nanos, Op, Symbol};

use super::poll::{ListVms, PollFailure, PollResults, PolledDrive, Poller, VmResponse};
use super::subject::device_id;
use super::{BlockStats, Cause, LatencyHistogram, OpStats};
use crate::ebpf::clock;
use crate::live::{LiveTap, inventory_of};
use crate::{EventCount, Tap, TapError, TapEvent};

/// The live tap of QEMU's counters.
pub static TAP: LiveTap = LiveTap {
    name: "qmp",
    streams: STREAMS,
    open: |demands, options| {
        let watch = inventory_of(options)?;
        // The first poll is of the VMs of the first scan.
        watch.ready()?;
        let every = options.qmp_every;
        let tap = match watch.inspection() {
            Some(process) => opened(demands, every, |histograms| {
                Poller::inspected(process, every, histograms)
            }),
            None => open(demands, Box::new(move || watch.snapshot()), every),
        };
        Ok(Box::new(tap?))
    },
    capabilities: || Capabilities::of_rows(STREAMS, Rate::Polled, "what is polled is not folded"),
    needs_inventory: |_| true,
};

const STREAMS: &[&str] = &["blockstats", "blocklatency"];

/// Number of first failures that are reported with their text.
const MESSAGES_MAX: usize = 20;

/// A source of QEMU's counters.
#[derive(Debug)]
pub struct QmpTap {
    demands: Vec<Stream>,
    poller: Poller,
    every: Duration,
    epoch_offset_ns: Nanos,
    /// No row has an earlier timestamp.
    watermark_ns: Nanos,
    queued: VecDeque<TapEvent>,
    before: HashMap<DiskKey, Before>,
    /// How many VMs responded to the last poll, and how many did not.
    answered: (usize, usize),
    polls: i64,
    events: i64,
    resets: i64,
    failures: HashMap<(Symbol, Cause), i64>,
    messages: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    Stats,
    Latencies,
}

/// A disk with the same counters: one process of one VM.
type DiskKey = (Symbol, Option<u32>, String);

/// A disk at the previous poll.
#[derive(Debug)]
struct Before {
    at_ns: Nanos,
    stats: BlockStats,
}

/// Opens the tap, which queries the VMs itself: `look` returns the current VMs at each poll.
///
/// # Errors
/// If the system cannot create a thread.
pub fn open(demands: &[Demand], look: ListVms, every: Duration) -> Result<QmpTap, TapError> {
    opened(demands, every, |histograms| {
        Poller::start(look, every, histograms)
    })
}

fn opened(
    demands: &[Demand],
    every: Duration,
    start: impl FnOnce(bool) -> io::Result<Poller>,
) -> Result<QmpTap, TapError> {
    let stream = |d: &Demand| match d.stream.eq_ignore_ascii_case("blockstats") {
        true => Stream::Stats,
        false => Stream::Latencies,
    };
    let demands: Vec<Stream> = demands.iter().map(stream).collect();
    let histograms = demands.contains(&Stream::Latencies);
    let poller = start(histograms).map_err(|e| TapError::Unavailable {
        what: format!("the thread that polls QEMU cannot be started: {e}"),
        remedy: "increase the process limit of the user (ulimit -u)".into(),
    })?;
    Ok(QmpTap {
        demands,
        poller,
        every,
        epoch_offset_ns: clock::epoch_offset_ns(),
        watermark_ns: Nanos::MIN,
        queued: VecDeque::new(),
        before: HashMap::new(),
        answered: (0, 0),
        polls: 0,
        events: 0,
        resets: 0,
        failures: HashMap::new(),
        messages: Vec::new(),
    })
}

impl QmpTap {
    /// The current time, later than any previous timestamp.
    fn now_ns(&mut self) -> Nanos {
        let now = clock::monotonic_ns() as i64 + self.epoch_offset_ns;
        self.watermark_ns = now.max(self.watermark_ns.saturating_add(1));
        self.watermark_ns
    }

    /// Queues the rows of a round.
    fn take(&mut self, round: PollResults) {
        let ts = self.now_ns();
        self.polls += 1;
        self.answered = (0, 0);
        let mut stats = Vec::new();
        let mut latencies = Vec::new();
        let mut now = HashMap::new();
        for reading in round {
            let VmResponse { vm, pid, at_ns, .. } = reading;
            match reading.drives {
                Err(failure) => self.fail(vm, pid, &failure, &mut now),
                Ok(drives) => {
                    self.answered.0 += 1;
                    for drive in drives {
                        let Some(key) = key(vm, pid, &drive.stats) else {
                            continue;
                        };
                        let before = self.before.get(&key);
                        let row = CounterRow::new(ts, vm, &drive, at_ns, before);
                        row.stats(&mut stats, &mut self.resets);
                        row.latencies(&mut latencies);
                        let stats = drive.stats;
                        now.insert(key, Before { at_ns, stats });
                    }
                }
            }
        }
        self.before = now;
        for (demand, stream) in self.demands.iter().enumerate() {
            let batch = match stream {
                Stream::Stats => blockstats_batch(&stats),
                Stream::Latencies => blocklatency_batch(&latencies),
            };
            if !batch.is_empty() {
                self.events += batch.len() as i64;
                self.queued.push_back(TapEvent::Rows { demand, batch });
            }
        }
        self.queued.push_back(TapEvent::Heartbeat(ts));
    }

    /// Counts a VM that did not respond. Its counters continue, so its state is kept.
    fn fail(
        &mut self,
        vm: Symbol,
        pid: Option<u32>,
        failure: &PollFailure,
        now: &mut HashMap<DiskKey, Before>,
    ) {
        self.answered.1 += 1;
        let failures = self.failures.entry((vm, failure.cause)).or_default();
        *failures += 1;
        if *failures == 1 && self.messages.len() < MESSAGES_MAX {
            self.messages.push(format!("{vm}: {}", failure.text));
        }
        let same = |key: &DiskKey| key.0 == vm && key.1 == pid;
        let kept = self.before.extract_if(|key, _| same(key));
        now.extend(kept);
    }
}

impl Tap for QmpTap {
    fn next(&mut self, timeout: Duration) -> Result<TapEvent, TapError> {
        let until = Instant::now() + timeout;
        loop {
            if let Some(event) = self.queued.pop_front() {
                return Ok(event);
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.poller.rounds.recv_timeout(left) {
                Ok(round) => self.take(round),
                Err(RecvTimeoutError::Timeout) => return Ok(TapEvent::Heartbeat(self.now_ns())),
                Err(RecvTimeoutError::Disconnected) => {
                    return match self.poller.lost.get() {
                        Some(why) => Err(TapError::Unavailable {
                            what: format!(
                                "QEMU's counters are no longer polled: the inspection process {why}"
                            ),
                            remedy: "restart weir".into(),
                        }),
                        None => Ok(TapEvent::End),
                    };
                }
            }
        }
    }

    fn counts(&mut self) -> Vec<EventCount> {
        let count = |counter, cause, device, total| EventCount {
            counter,
            cause,
            device,
            total,
        };
        let mut counts = vec![
            count("events_in", None, None, self.events),
            count("polls", None, None, self.polls),
            count("counters_reset", None, None, self.resets),
        ];
        let failures = self.failures.iter();
        counts.extend(failures.map(|((vm, cause), total)| {
            count("polls_failed", Some(cause.as_str()), Some(*vm), *total)
        }));
        counts
    }

    fn describe(&self) -> Vec<String> {
        let histograms = self.demands.contains(&Stream::Latencies);
        let what = match histograms {
            true => "query-blockstats, with latency histograms enabled",
            false => "query-blockstats",
        };
        vec![format!(
            "qmp: sends {what} to each QEMU every {:?}; VMs are not affected",
            self.every
        )]
    }

    fn messages(&self) -> Vec<String> {
        self.messages.clone()
    }
}

/// Identifies a disk of a VM: the device, otherwise the drive or node.
fn key(vm: Symbol, pid: Option<u32>, disk: &BlockStats) -> Option<DiskKey> {
    let name = disk.qdev.as_ref().or(disk.drive.as_ref());
    let name = name.or(disk.node.as_ref())?;
    Some((vm, pid, name.clone()))
}

/// A disk at two consecutive polls.
struct CounterRow<'a> {
    of: Polled,
    disk: &'a BlockStats,
    before: Option<&'a BlockStats>,
}

impl<'a> CounterRow<'a> {
    fn new(
        ts: Nanos,
        vm: Symbol,
        drive: &'a PolledDrive,
        at_ns: Nanos,
        before: Option<&'a Before>,
    ) -> CounterRow<'a> {
        let disk = &drive.stats;
        let symbol = |text: &Option<String>| Symbol::try_new(text.as_deref()?).ok();
        let id = disk.qdev.as_deref().map(device_id);
        let id = id.and_then(|id| Symbol::try_new(id).ok());
        let of = Polled {
            ts,
            vm,
            vdisk: drive.vdisk,
            // The same name as in relation disks, so that the two can be joined.
            device: id.or(symbol(&disk.drive)),
            node: symbol(&disk.node),
            op: Op::Read,
            interval_ns: before.map(|b| at_ns - b.at_ns),
        };
        CounterRow {
            of,
            disk,
            before: before.map(|b| &b.stats),
        }
    }

    fn stats(&self, rows: &mut Vec<BlockStat>, resets: &mut i64) {
        type Get = fn(&BlockStats) -> &OpStats;
        let ops: [(Op, Get); 4] = [
            (Op::Read, |s| &s.read),
            (Op::Write, |s| &s.write),
            (Op::Flush, |s| &s.flush),
            (Op::Discard, |s| &s.discard),
        ];
        for (op, get) in ops {
            let total = totals(get(self.disk));
            let since = match self.before {
                None => QemuOpCounts::default(),
                Some(before) => since(&total, &totals(get(before))).unwrap_or_else(|| {
                    *resets += 1;
                    QemuOpCounts::default()
                }),
            };
            let of = Polled { op, ..self.of };
            rows.push(BlockStat { of, since, total });
        }
    }

    fn latencies(&self, rows: &mut Vec<BlockLatency>) {
        type Get = fn(&BlockStats) -> Option<&LatencyHistogram>;
        let ops: [(Op, Get); 3] = [
            (Op::Read, |s| s.latencies.read.as_ref()),
            (Op::Write, |s| s.latencies.write.as_ref()),
            (Op::Flush, |s| s.latencies.flush.as_ref()),
        ];
        for (op, get) in ops {
            // The times of the requests before the first poll are unknown; later requests are from
            // the time since the previous poll, even if the histogram was started in between.
            let Some((histogram, before)) = get(self.disk).zip(self.before) else {
                continue;
            };
            let before = get(before).filter(|b| continues(histogram, b));
            for (bin, &total) in histogram.bins.iter().enumerate() {
                let operations = total - before.map_or(0, |b| b.bins[bin]);
                if operations == 0 {
                    continue;
                }
                let boundary = |at: usize| histogram.boundaries_ns.get(at).copied();
                rows.push(BlockLatency {
                    of: Polled { op, ..self.of },
                    low_ns: bin.checked_sub(1).and_then(boundary).unwrap_or(0),
                    high_ns: boundary(bin),
                    operations,
                    operations_total: total,
                });
            }
        }
    }
}

/// True if `now` continues `before`: the same bins, none of which has decreased.
fn continues(now: &LatencyHistogram, before: &LatencyHistogram) -> bool {
    now.boundaries_ns == before.boundaries_ns
        && now.bins.iter().zip(&before.bins).all(|(n, b)| n >= b)
}

fn totals(stats: &OpStats) -> QemuOpCounts {
    QemuOpCounts {
        operations: stats.operations,
        bytes: stats.bytes,
        time_ns: stats.time_ns,
        failed: stats.failed,
        invalid: stats.invalid,
        merged: stats.merged,
    }
}

/// The increments; `None` if a counter has decreased, since it was reset.
fn since(now: &QemuOpCounts, before: &QemuOpCounts) -> Option<QemuOpCounts> {
    let fields: [fn(&QemuOpCounts) -> Option<i64>; 6] = [
        |c| c.operations,
        |c| c.bytes,
        |c| c.time_ns,
        |c| c.failed,
        |c| c.invalid,
        |c| c.merged,
    ];
    let gone = |get: &fn(&QemuOpCounts) -> Option<i64>| get(now) < get(before);
    if fields.iter().any(gone) {
        return None;
    }
    let came =
        |get: fn(&QemuOpCounts) -> Option<i64>| get(now).zip(get(before)).map(|(n, b)| n - b);
    let [operations, bytes, time_ns, failed, invalid, merged] = fields.map(came);
    Some(QemuOpCounts {
        operations,
        bytes,
        time_ns,
        failed,
        invalid,
        merged,
    })
}
