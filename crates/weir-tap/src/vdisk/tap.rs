//! [`VdiskTap`]: opens the log, reads it, delivers rows and counts.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use weir_model::{Demand, IoEvent, Nanos};

use super::created::FileLocation;
use super::drives::{Drives, Present, QUERY_TIMEOUT};
use super::guard::{Guard, Task, set_event, started};
use super::line::{BLOCK_EVENTS, Line, SCSI_EVENTS, parse};
use super::log::{DISK_BYTES_MAX, Found, LogFile};
use super::pairing::{Owner, Pairing};
use crate::ebpf::clock;
use crate::format::served::Served;
use crate::inventory::{InventoryWatch, Snapshot};
use crate::qmp::{QemuMonitor, QmpAddress, QmpError, QmpSubject, human};
use crate::{EventCount, Tap, TapError, TapEvent};

/// Maximum reordering of lines from QEMU's threads: a thread may be preempted between reading the
/// clock and writing the line.
const SETTLE_NS: Nanos = 50_000_000;

/// Interval between reads of the log.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Interval between checks that the VM runs and its disks have not changed.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of rows in a batch.
const BATCH_ROWS: usize = 4096;

/// Prefix of the log's name.
const LOG_NAME: &str = "weir-trace-";

/// A source of one VM's requests as its guest issued them.
pub struct VdiskTap {
    owner: Owner,
    started: Option<u64>,
    log: LogFile,
    pairing: Pairing,
    drives: Drives,
    served: Vec<Served>,
    /// Rows held until earlier ones are complete, in timestamp order.
    held: Vec<IoEvent>,
    /// The watermark.
    watermark_ns: Nanos,
    queued: VecDeque<TapEvent>,
    maintained_at: Instant,
    counts: Counts,
    remarks: Vec<String>,
    ended: bool,
    /// Dropped last: until then the log is read.
    guard: Guard,
}

#[derive(Debug, Default)]
struct Counts {
    events: i64,
    lines_lost: i64,
    lines_other: i64,
    late: i64,
    untimed: i64,
}

/// Opens the tap of the VM called `vm`. `guard` is the program, with arguments, that calls
/// [`super::guard::run`].
///
/// # Errors
/// [`TapError::Unavailable`] if there is no such VM, its QEMU cannot be queried, or it is being
/// traced already.
pub fn open(
    vm: &str,
    demands: &[Demand],
    watch: &Arc<InventoryWatch>,
    guard: &[OsString],
) -> Result<VdiskTap, TapError> {
    let subject = subject(&watch.snapshot(), vm)?;
    let pid = subject.pid.ok_or_else(|| {
        let what = format!("VM {vm}: its process is unknown");
        unavailable(what, "run weir on the host that runs the VM")
    })?;
    let (present, events) = ask(&subject)?;
    if events.is_empty() {
        let what = format!("VM {vm} has no virtio-blk or virtio-scsi disk, which QEMU can trace");
        return Err(unavailable(what, "stream `blockstats` counts every disk"));
    }
    let process = watch.inspection().ok_or_else(|| {
        let what = "the privileges of this process are dropped before the disks are queried".into();
        unavailable(what, "observe the host through an inspection process")
    })?;
    let untraced = present.untraced.clone();
    let has_blocks = !present.block.is_empty();
    let drives = Drives::start(process, pid, present).map_err(|error| {
        let what = format!("VM {vm}: the inspection process {error}");
        unavailable(what, "restart weir")
    })?;
    let (guard, file) = switch_on(&subject, pid, &events, guard)?;
    let mut remarks: Vec<String> = Vec::new();
    if !drives.has_memory() && has_blocks {
        remarks.push(format!(
            "VM {vm}: QEMU's memory cannot be read, so virtio-blk disks have no name"
        ));
    }
    let untraced = untraced.iter();
    remarks
        .extend(untraced.map(|qdev| format!("VM {vm}: {qdev} is not a virtio disk; not traced")));
    Ok(VdiskTap {
        owner: Owner {
            vm: subject.vm,
            pid: Some(i64::from(pid)),
        },
        started: started(pid),
        log: LogFile::new(file),
        pairing: Pairing::default(),
        drives,
        served: demands.iter().map(Served::new).collect(),
        held: Vec::new(),
        watermark_ns: Nanos::MIN,
        queued: VecDeque::new(),
        maintained_at: Instant::now(),
        counts: Counts::default(),
        remarks,
        ended: false,
        guard,
    })
}

/// The line of `weir explain` for the tap of a VM.
pub fn description(vm: &str) -> String {
    format!("vdisk: traces the requests of VM {vm} in QEMU while the query runs")
}

fn unavailable(what: String, remedy: &str) -> TapError {
    TapError::Unavailable {
        what,
        remedy: remedy.into(),
    }
}

/// The VM called `vm`, if its QEMU can be queried.
fn subject(snapshot: &Snapshot, vm: &str) -> Result<QmpSubject, TapError> {
    let found = snapshot.vm(vm).map_err(|conflict| {
        let what = conflict.to_string();
        unavailable(what, "name the VM by its process: pid:PID")
    })?;
    let all = QmpSubject::all(snapshot);
    let name = found.map(|at| snapshot.vms[at].name);
    if let Some(subject) = all.iter().find(|s| Some(s.vm) == name) {
        return Ok(subject.clone());
    }
    let known = found.is_some();
    let names: Vec<&str> = all.iter().map(|s| s.vm.as_str()).collect();
    let can = match names.is_empty() {
        true => "no QEMU VM on this host has a QMP socket".into(),
        false => format!("VMs with a QMP socket: {}", names.join(", ")),
    };
    let (what, remedy) = match known {
        true => (
            format!("VM {vm} has no QMP socket; {can}"),
            "start QEMU with -qmp unix:PATH,server=on,wait=off",
        ),
        false => (
            format!("there is no QEMU VM `{vm}`; {can}"),
            "`weir query --for 1s --final 'select vm, kind from vms'` lists the VMs",
        ),
    };
    Err(unavailable(what, remedy))
}

fn refused(error: QmpError) -> TapError {
    unavailable(error.to_string(), "tracing needs QMP")
}

/// Queries the VM's disks, and returns the trace events that cover them.
fn ask(subject: &QmpSubject) -> Result<(Present, Vec<&'static str>), TapError> {
    let vm = subject.vm;
    let asked = subject.address.visit(QUERY_TIMEOUT, |qemu| {
        let present = Present::ask(qemu, subject)?;
        let mut events = Vec::new();
        if !present.block.is_empty() {
            events.extend(BLOCK_EVENTS);
        }
        if present.scsi.values().any(Option::is_some) {
            events.extend(SCSI_EVENTS);
        }
        let mut on = Vec::new();
        for event in &events {
            if is_on(qemu, event)? {
                on.push(*event);
            }
        }
        Ok((present, events, on))
    });
    let (present, events, on) = asked.map_err(refused)?;
    if on.is_empty() {
        return Ok((present, events));
    }
    let what = format!("VM {vm} is traced already ({} on)", on.join(", "));
    Err(unavailable(
        what,
        "wait until the other weir ends, or disable the events with QMP command \
         trace-event-set-state",
    ))
}

fn is_on(qemu: &mut dyn QemuMonitor, event: &str) -> Result<bool, QmpError> {
    let states = qemu.execute("trace-event-get-state", json!({"name": event}))?;
    let states = states.as_array().into_iter().flatten();
    Ok(states.into_iter().any(|s| s["state"] == "enabled"))
}

/// Creates the log, starts the guard, redirects QEMU's log and enables the events. On an error, the
/// guard reverts the steps done.
fn switch_on(
    subject: &QmpSubject,
    pid: u32,
    events: &[&str],
    program: &[OsString],
) -> Result<(Guard, File), TapError> {
    let (restore, logs) = own_log(pid);
    let mut why = Vec::new();
    for folder in folders(&subject.address, pid) {
        let place = FileLocation {
            pid,
            folder,
            name: format!("{LOG_NAME}{pid}-{}.log", std::process::id()),
        };
        let log = match place.create() {
            Ok(log) => log,
            Err(error) => {
                why.push(format!("{}: {error}", place.path().display()));
                continue;
            }
        };
        let task = Task {
            vm: subject.vm.as_str().into(),
            address: subject.address.clone(),
            events: events.iter().map(|e| (*e).into()).collect(),
            pid,
            log_name: place.name.clone(),
            restore: restore.clone(),
            logs,
            stands_in_for: None,
        };
        let guard = Guard::start(program, &task, &log);
        if guard.is_err() {
            let _ = log.remove();
        }
        let guard = guard?;
        let opened = subject.address.visit(QUERY_TIMEOUT, |qemu| {
            let response = human(qemu, &format!("logfile {}", place.path().display()))?;
            if !response.trim().is_empty() || !log.is_open_in(pid) {
                return Ok(Some(response.trim().to_owned()));
            }
            for event in events {
                set_event(qemu, event, true)?;
            }
            Ok(None)
        });
        match opened.map_err(refused)? {
            None => return Ok((guard, log.file)),
            Some(response) => why.push(format!("{}: {response}", place.path().display())),
        }
    }
    Err(unavailable(
        format!("QEMU cannot write its log: {}", why.join("; ")),
        "permit the VM's user and security profile to write to one of these directories",
    ))
}

/// Candidate directories for the log, as QEMU sees them: in memory, beside the QMP socket,
/// world-writable ones.
fn folders(address: &QmpAddress, pid: u32) -> Vec<PathBuf> {
    let mut folders = vec![PathBuf::from("/run")];
    if let QmpAddress::Socket(path) | QmpAddress::Process { path, .. } = address {
        // The inventory may have found the socket through QEMU's own root.
        let root = format!("/proc/{pid}/root");
        let path = path
            .strip_prefix(&root)
            .map_or(path.clone(), |p| Path::new("/").join(p));
        folders.extend(path.parent().filter(|f| f.is_absolute()).map(PathBuf::from));
    }
    folders.extend([PathBuf::from("/tmp"), PathBuf::from("/var/tmp")]);
    folders
}

/// Destination of QEMU's log when it is not traced, from its command line, and whether logging was
/// requested.
fn own_log(pid: u32) -> (String, bool) {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let arguments: Vec<String> = arguments
        .split(|b| *b == 0)
        .map(|a| String::from_utf8_lossy(a).into_owned())
        .collect();
    let is =
        |word: &str, option: &str| word == format!("-{option}") || word == format!("--{option}");
    let behind = |option: &str| {
        let at = arguments.iter().position(|a| is(a, option))?;
        arguments.get(at + 1).cloned()
    };
    let logs = ["d", "D", "trace"].iter().any(|o| behind(o).is_some());
    if let Some(file) = behind("D") {
        return (file, logs);
    }
    let stderr = fs::read_link(format!("/proc/{pid}/fd/2"));
    let nowhere = stderr.as_deref().is_ok_and(|p| p == Path::new("/dev/null"));
    let file = match nowhere {
        true => "/dev/null",
        false => "/dev/stderr",
    };
    (file.into(), logs)
}

impl VdiskTap {
    /// Reads new lines; false if there are none.
    fn read(&mut self) -> Result<bool, TapError> {
        // QEMU's timestamps are of the wall clock. A line may be written between this reading of
        // the clock and the end of the log: its time is known to be past only by a second reading.
        let before = clock::epoch_ns();
        let found = self.log.read().map_err(|error| TapError::File {
            path: PathBuf::from(format!("the log of VM {}", self.owner.vm)),
            error,
        })?;
        let more = !matches!(found, Found::Nothing);
        let upto = match found {
            Found::Nothing => before,
            Found::Skipped(lines) => {
                self.counts.lines_lost += lines;
                self.pairing.forget();
                before
            }
            Found::Lines(lines) => self.take(&lines, clock::epoch_ns()),
        };
        self.emit(upto.saturating_sub(SETTLE_NS));
        Ok(more)
    }

    /// Processes whole lines; returns the timestamp of the last one.
    fn take(&mut self, lines: &str, now: Nanos) -> Nanos {
        let (drives, held) = (&mut self.drives, &mut self.held);
        let mut last = now;
        for line in lines.lines() {
            let Some(line) = parse(line) else {
                self.counts.lines_other += 1;
                continue;
            };
            match line.ts {
                Some(ts) => last = ts,
                None => self.counts.untimed += 1,
            }
            // A timestamp in the future would delay its row until then.
            let line = Line {
                ts: line.ts.map(|ts| ts.min(now)),
                ..line
            };
            let mut name = |which| drives.name(which);
            self.pairing.take(line, now, self.owner, &mut name, held);
        }
        last.min(now)
    }

    /// Delivers all rows up to `upto`, and a heartbeat.
    fn emit(&mut self, upto: Nanos) {
        if upto <= self.watermark_ns {
            return;
        }
        for row in &mut self.held {
            if row.event.ts <= self.watermark_ns {
                row.event.ts = self.watermark_ns + 1;
                self.counts.late += 1;
            }
        }
        self.held.sort_by_key(|row| row.event.ts);
        let ripe = self.held.partition_point(|row| row.event.ts <= upto);
        self.counts.events += ripe as i64;
        let rows: Vec<IoEvent> = self.held.drain(..ripe).collect();
        for rows in rows.chunks(BATCH_ROWS) {
            for (demand, served) in self.served.iter_mut().enumerate() {
                if let Some(batch) = served.batch(rows, false) {
                    self.queued.push_back(TapEvent::Rows { demand, batch });
                }
            }
        }
        self.watermark_ns = upto;
        if !rows.is_empty() {
            self.queued.push_back(TapEvent::Heartbeat(upto));
        }
    }

    /// Checks the VM, its disks and the guard.
    fn run_maintenance(&mut self) -> Result<(), TapError> {
        self.maintained_at = Instant::now();
        if self.drives.refresh() {
            self.pairing.forget_queues();
        }
        self.drives.forget();
        let vm = self.owner.vm;
        let lives =
            self.started.is_some() && started(self.owner.pid.unwrap_or(0) as u32) == self.started;
        match self.guard.event() {
            _ if !lives => self.remarks.push(format!("VM {vm} has ended")),
            Ok(None) => return Ok(()),
            Ok(Some(_)) => self.remarks.push(format!(
                "VM {vm}: tracing was disabled because the unread log exceeded {} MiB",
                DISK_BYTES_MAX >> 20
            )),
            Err(why) => {
                let what = format!("VM {vm}: the guard process has ended: {why}");
                return Err(unavailable(
                    what,
                    "tracing is disabled; restart the command",
                ));
            }
        }
        while self.read()? {}
        self.emit(Nanos::MAX - 1);
        self.ended = true;
        Ok(())
    }
}

impl Tap for VdiskTap {
    fn next(&mut self, timeout: Duration) -> Result<TapEvent, TapError> {
        let until = Instant::now() + timeout;
        loop {
            if let Some(event) = self.queued.pop_front() {
                return Ok(event);
            }
            if self.ended {
                return Ok(TapEvent::End);
            }
            if self.maintained_at.elapsed() >= MAINTENANCE_INTERVAL {
                self.run_maintenance()?;
                continue;
            }
            if self.read()? || !self.queued.is_empty() {
                continue;
            }
            if Instant::now() >= until {
                return Ok(TapEvent::Heartbeat(self.watermark_ns));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn counts(&mut self) -> Vec<EventCount> {
        let (counts, unreported) = (&self.counts, &self.pairing.unreported);
        let all = [
            ("events_in", None, counts.events),
            ("events_late", None, counts.late),
            ("events_lost", Some("slow_consumer"), counts.lines_lost),
            (
                "requests_untracked",
                Some("begun_unseen"),
                unreported.started_unseen,
            ),
            (
                "requests_untracked",
                Some("ended_unseen"),
                unreported.ended_unseen,
            ),
            (
                "requests_untracked",
                Some("table_full"),
                unreported.table_full,
            ),
            ("requests_unreported", Some("discard"), unreported.discards),
            (
                "requests_unreported",
                Some("flush_begin"),
                unreported.flushes_reported_late,
            ),
            ("other_commands", None, unreported.other_commands),
            ("log_lines_other", None, counts.lines_other),
        ];
        let count = |(counter, cause, total)| EventCount::of(counter, cause, total);
        all.into_iter().map(count).collect()
    }

    fn describe(&self) -> Vec<String> {
        vec![description(self.owner.vm.as_str())]
    }

    fn messages(&self) -> Vec<String> {
        let mut messages = self.remarks.clone();
        if self.counts.untimed > 0 {
            messages.push(format!(
                "VM {}: QEMU runs without -msg timestamp=on: timestamps are the times at which its log was read, and latencies are unknown",
                self.owner.vm
            ));
        }
        messages
    }
}
