//! `weir tapdisk insert` and `remove`: inserts a tap below the disk of a running VM, and removes
//! it.
//!
//! 1. [`selected_disk`] finds the VM and its disk, and QEMU's node for it.
//! 2. [`entry`] is a folder for this disk: sockets, log, and a record of the exchange, which is
//!    written before it, so that the next process can undo an interrupted one.
//! 3. [`image`] finds the file that QEMU has open; [`process`] starts the process that serves it.
//! 4. [`exchange`] exchanges the nodes. If that fails everything is undone.

mod entry;
mod error;
pub mod exchange;
mod image;
mod process;
mod selected_disk;

use std::fs;
use std::path::PathBuf;

pub use exchange::RECONNECT_DELAY_S;
use exchange::{Below, ExchangeError, Graph, InsertionPlan, InsertionPoint};
use weir_tap::inventory::NodeOptions;
use weir_tap::qmp::{QemuMonitor, QmpAddress};

use entry::{Entry, Process, Record, remove_stale_folders};
pub use entry::{remove_folder, run_folder};
pub use error::InsertionError;
use selected_disk::{QMP_TIMEOUT, SelectedDisk};

/// Attempts to undo: QEMU may be busy with the failed step.
const UNDO_TRIES: usize = 3;

/// The selection of a disk.
pub struct DiskSelector<'a> {
    /// The VM's name.
    pub vm: &'a str,
    /// The disk's name in the VM, or that of its device or node.
    pub disk: &'a str,
    /// The monitor, if it is not that of the inventory.
    pub monitor: Option<QmpAddress>,
}

/// An inserted tap.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Inserted {
    /// The VM.
    pub vm: String,
    /// The disk.
    pub vdisk: String,
    /// Its control socket.
    pub socket: PathBuf,
    /// Its log.
    pub log: PathBuf,
    /// Its process.
    pub pid: Option<u32>,
    /// How it was inserted.
    pub how: InsertionOutcome,
    /// Warnings for the user.
    pub remarks: Vec<String>,
}

/// How a tap was inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum InsertionOutcome {
    /// By this command.
    Inserted,
    /// It was inserted before, but its process had ended and was restarted.
    Restarted,
    /// It was inserted before.
    #[serde(rename = "already")]
    AlreadyInserted,
}

/// The result of a removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemovalOutcome {
    /// It was removed.
    Removed,
    /// Its VM has ended; its process has ended by now.
    EndedWithVm,
    /// There was none.
    NotInserted,
}

/// Inserts a tap below a disk. `discard` sets what QEMU does not report: whether discards reach the
/// image.
///
/// # Errors
/// When it fails: the disk is then unchanged, or the message states what remains to be done.
pub fn insert(
    which: &DiskSelector,
    discard: Option<bool>,
    interrupted: &dyn Fn() -> bool,
) -> Result<Inserted, InsertionError> {
    remove_stale_folders();
    let selected = SelectedDisk::find(which.vm, which.disk, which.monitor.as_ref())?;
    let selected = selected.ok_or_else(|| no_vm(which.vm))?;
    let entry = Entry::lock(&selected.vm, &selected.vdisk)?;
    let record = record_of_running_vm(&entry)?;
    let point = point(&selected)?;
    let node = match &point.below {
        Below::File { node, .. } => node.clone(),
        Below::Tap { name, socket } => {
            let record = record.filter(|record| record.plan.tap_node == *name);
            let record = record.ok_or_else(|| no_record(&selected, socket.as_deref()))?;
            return already_inserted(&selected, &entry, record, interrupted);
        }
    };
    if let Some(left) = record {
        // From a process that was killed.
        undo(&selected, &left)?;
    }
    let mut remarks = Vec::new();
    let options = options(&selected, &point, discard, &mut remarks);
    let socket = entry.socket();
    let plan = InsertionPlan::new(&point, options, socket.clone(), String::new())
        .expect("a file is below it");
    let (image, identity) = image::image(selected.pid, &node.filename, !point.format.read_only)
        .map_err(|f| failed(&selected, &f.to_string()))?;
    let tap = process::TapParameters {
        image,
        identity,
        vm: &selected.vm,
        vdisk: &selected.vdisk,
        direct: node.direct,
        read_only: point.format.read_only,
        pid: selected.pid,
    };
    let mut record = Record {
        vm: selected.vm.clone(),
        vdisk: selected.vdisk.clone(),
        qemu: Process::of(selected.pid).ok_or_else(|| no_vm(which.vm))?,
        arguments: tap.arguments(&socket),
        plan,
        tap: None,
    };
    let started = process::start(&entry, &mut record, interrupted);
    let inserted = started.and_then(|()| {
        let wanted = || !interrupted();
        let done = query_qemu(&selected, |qemu| {
            exchange::insert(qemu, &record.plan, wanted)
        });
        done.map_err(|error| failed(&selected, &error.to_string()))
    });
    match inserted {
        Ok(more) => {
            remarks.extend(more);
            Ok(inserted_as(
                &selected,
                &entry,
                &record,
                InsertionOutcome::Inserted,
                remarks,
            ))
        }
        Err(failure) => {
            let undone = undo(&selected, &record).and_then(|()| entry.clear());
            Err(match undone {
                Ok(()) => failure,
                Err(undoing) => InsertionError::failed(format_args!(
                    "{}; the rollback failed: {}; retry it with `weir tapdisk remove --vm {} \
                     --disk {}`",
                    failure, undoing, selected.vm, selected.vdisk
                )),
            })
        }
    }
}

/// Removes the tap in any state.
///
/// # Errors
/// When it fails: the tap is then still inserted, and a retry does the remaining steps.
pub fn remove(
    which: &DiskSelector,
    interrupted: &dyn Fn() -> bool,
) -> Result<RemovalOutcome, InsertionError> {
    remove_stale_folders();
    let Some(selected) = SelectedDisk::find(which.vm, which.disk, which.monitor.as_ref())? else {
        return remove_from_gone(which);
    };
    let entry = Entry::lock(&selected.vm, &selected.vdisk)?;
    let Some(mut record) = record_of_running_vm(&entry)? else {
        return match point(&selected) {
            Ok(InsertionPoint {
                below: Below::Tap { socket, .. },
                ..
            }) => Err(no_record(&selected, socket.as_deref())),
            // Nothing can have been inserted.
            _ => entry.clear().map(|()| RemovalOutcome::NotInserted),
        };
    };
    let is_below = |point: &InsertionPoint| matches!(point.below, Below::Tap { .. });
    if point(&selected).is_ok_and(|point| is_below(&point)) && !is_served(&entry, &record) {
        // Requests that wait for it would block the exchange as well.
        process::end(&record);
        process::start(&entry, &mut record, interrupted)?;
    }
    undo(&selected, &record)?;
    entry.clear()?;
    Ok(RemovalOutcome::Removed)
}

/// Removes the remainder of a tap whose VM has ended.
fn remove_from_gone(which: &DiskSelector) -> Result<RemovalOutcome, InsertionError> {
    let entry = Entry::lock(which.vm, which.disk)?;
    let record = entry.record()?;
    if record.as_ref().is_some_and(|record| record.qemu.is_alive()) {
        return Err(no_vm(which.vm));
    }
    if let Some(record) = &record {
        process::end(record);
    }
    entry.clear()?;
    match record {
        Some(_) => Ok(RemovalOutcome::EndedWithVm),
        None => Err(no_vm(which.vm)),
    }
}

/// The record, unless its VM has ended: then the tap ends too.
fn record_of_running_vm(entry: &Entry) -> Result<Option<Record>, InsertionError> {
    let record = entry.record()?;
    match record {
        Some(record) if !record.qemu.is_alive() => {
            process::end(&record);
            Ok(None)
        }
        record => Ok(record),
    }
}

/// A tap is already inserted: it is left unchanged if it runs.
fn already_inserted(
    selected: &SelectedDisk,
    entry: &Entry,
    mut record: Record,
    interrupted: &dyn Fn() -> bool,
) -> Result<Inserted, InsertionError> {
    let how = match is_served(entry, &record) {
        true => InsertionOutcome::AlreadyInserted,
        false => {
            process::end(&record);
            process::start(entry, &mut record, interrupted)
                .map_err(|f| failed(selected, &f.to_string()))?;
            InsertionOutcome::Restarted
        }
    };
    Ok(inserted_as(selected, entry, &record, how, Vec::new()))
}

fn is_served(entry: &Entry, record: &Record) -> bool {
    record.tap.is_some_and(|tap| tap.is_alive()) && process::is_listening(&entry.socket())
}

fn inserted_as(
    selected: &SelectedDisk,
    entry: &Entry,
    record: &Record,
    how: InsertionOutcome,
    remarks: Vec<String>,
) -> Inserted {
    Inserted {
        vm: selected.vm.clone(),
        vdisk: selected.vdisk.clone(),
        socket: entry.socket(),
        log: entry.log(),
        pid: record.tap.map(|tap| tap.pid),
        how,
        remarks,
    }
}

/// Restores the disk, and ends the tap.
fn undo(selected: &SelectedDisk, record: &Record) -> Result<(), InsertionError> {
    let mut tries = 0;
    loop {
        tries += 1;
        match query_qemu(selected, |qemu| exchange::remove(qemu, &record.plan)) {
            Ok(_) => break,
            // All changes have ended with QEMU.
            Err(_) if !record.qemu.is_alive() => break,
            Err(error) if tries == UNDO_TRIES => return Err(failed(selected, &error.to_string())),
            Err(_) => {}
        }
    }
    process::end(record);
    Ok(())
}

/// The insertion point, with or without a tap.
fn point(selected: &SelectedDisk) -> Result<InsertionPoint, InsertionError> {
    let found = query_qemu(selected, |qemu| {
        let Some(root) = selected.root(qemu)? else {
            return Ok(None);
        };
        InsertionPoint::find(&Graph::query(qemu)?, &root).map(Some)
    });
    match found {
        Ok(Some(point)) => Ok(point),
        Ok(None) => Err(failed(
            selected,
            "QEMU's block layer has no image for it: the drive is empty, or a vhost-user back \
             end serves it; if that is a `weir tapdisk`, query it directly",
        )),
        Err(error) => Err(failed(selected, &error.to_string())),
    }
}

/// The options of the raw node from QEMU's start, or from the user.
fn options(
    selected: &SelectedDisk,
    point: &InsertionPoint,
    discard: Option<bool>,
    remarks: &mut Vec<String>,
) -> NodeOptions {
    let line = fs::read(format!("/proc/{}/cmdline", selected.pid)).unwrap_or_default();
    let words = line.split(|byte| *byte == 0);
    let arguments: Vec<String> = words
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    let found = NodeOptions::find(&arguments, &point.format_node, &point.format.filename);
    if found.is_none() && discard.is_none() {
        remarks.push(
            "the disk was hot-plugged, and QEMU does not report whether discards reach the \
             image: from now on they are ignored, also without the tap; use `--discard unmap` if \
             they must reach it"
                .to_owned(),
        );
    }
    let mut options = found.unwrap_or_default();
    options.discard = discard.unwrap_or(options.discard);
    options
}

fn query_qemu<T>(
    selected: &SelectedDisk,
    query: impl FnOnce(&mut dyn QemuMonitor) -> Result<T, ExchangeError>,
) -> Result<T, ExchangeError> {
    let visited = selected
        .address
        .visit(QMP_TIMEOUT, |qemu| match query(qemu) {
            Err(ExchangeError::Qmp(error)) => Err(error),
            other => Ok(other),
        });
    visited?
}

fn failed(selected: &SelectedDisk, what: &str) -> InsertionError {
    InsertionError::failed(format_args!(
        "{} of VM {}: {what}",
        selected.vdisk, selected.vm
    ))
}

fn no_vm(vm: &str) -> InsertionError {
    InsertionError::usage(format_args!(
        "VM {vm} is not running on this host; `weir query --for 1s --final \"select vm, vdisk from \
         disks\"` lists VMs and disks"
    ))
}

fn no_record(selected: &SelectedDisk, socket: Option<&str>) -> InsertionError {
    let at = socket
        .map(|socket| format!(" at {socket}"))
        .unwrap_or_default();
    failed(
        selected,
        &format!(
            "it has a tap{at} without a record in this directory: another user inserted it, or \
             its directory was removed; run the command as that user"
        ),
    )
}
