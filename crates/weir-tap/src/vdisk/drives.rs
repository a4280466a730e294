//! [`Drives`]: which of the VM's disks a trace event speaks of.
//!
//! A virtio-blk disk is an address in QEMU's memory. There QEMU keeps the device's path in its object
//! tree (`canonical_path` of `DeviceState`, include/hw/qdev-core.h), and reading it makes the disk
//! certain: whatever the layout of that structure, among its first words is a pointer to the very
//! path that `query-block` says, or the disk stays unknown. A SCSI disk is told by target and unit,
//! which QEMU's object tree knows; where two controllers have the same ones, it stays unknown.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};
use weir_model::SECTOR_BYTES;

use super::line::Unit;
use super::pairing::{Named, Which};
use crate::ebpf::privileges;
use crate::qmp::{Monitor, QmpError, Subject, drives};

/// How often QEMU is asked for its disks.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// How long QEMU may take for an answer.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Words at the beginning of a device's structure that are looked at.
const WORDS: usize = 32;

/// The longest path that is compared.
const PATH_BYTES_MAX: usize = 512;

/// The disks that a VM has now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// virtio-blk disks by their path in the object tree.
    pub block: HashMap<String, Named>,
    /// Disks at virtio-scsi controllers by target and unit; `None` where there are several.
    pub scsi: HashMap<Unit, Option<Named>>,
    /// Disks whose requests no trace event tells.
    pub untraced: Vec<String>,
}

/// Knows the disks, and asks again once a second.
#[derive(Debug)]
pub struct Drives {
    /// QEMU's memory, opened while we had the right to.
    memory: Option<File>,
    present: Arc<Mutex<Arc<Present>>>,
    /// The one that `known` was made with.
    used: Arc<Present>,
    /// By the address of a virtio-blk disk.
    known: HashMap<u64, Option<Named>>,
    open: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drives {
    /// Starts to ask. `subject` says, each time anew, what the inventory knows of the VM.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn start(
        memory: Option<File>,
        first: Present,
        subject: Box<dyn Fn() -> Option<Subject> + Send>,
    ) -> std::io::Result<Drives> {
        let used = Arc::new(first);
        let present = Arc::new(Mutex::new(used.clone()));
        let (open, closed) = mpsc::channel::<()>();
        let shared = present.clone();
        let asking = move || {
            // A kernel that does not take rights away leaves them; the answers are the same.
            let _ = privileges::keep_what_asking_takes();
            while let Err(RecvTimeoutError::Timeout) = closed.recv_timeout(ASK_EVERY) {
                let Some(subject) = subject() else {
                    continue;
                };
                // Without an answer what was known stands.
                let asked = subject
                    .address
                    .visit(PATIENCE, |q| Present::ask(q, &subject));
                if let Ok(now) = asked {
                    let mut shared = shared.lock().expect("no panic while held");
                    if **shared != now {
                        *shared = Arc::new(now);
                    }
                }
            }
        };
        let thread = thread::Builder::new().name("disks".into()).spawn(asking)?;
        Ok(Drives {
            memory,
            present,
            used,
            known: HashMap::new(),
            open: Some(open),
            thread: Some(thread),
        })
    }

    /// Looks whether the VM's disks have changed; true if so.
    pub fn refresh(&mut self) -> bool {
        let now = self.present.lock().expect("no panic while held").clone();
        let changed = !Arc::ptr_eq(&now, &self.used);
        self.used = now;
        changed
    }

    /// Forgets which address is which disk, to look again: a disk may have been replaced.
    pub fn forget(&mut self) {
        self.known.clear();
    }

    /// The disk; unknown names are `None` inside, a disk that is not at a virtio-scsi controller is
    /// `None` altogether.
    pub fn name(&mut self, which: Which) -> Option<Named> {
        let unknown = Named {
            vdisk: None,
            image: None,
            block_sectors: None,
        };
        match which {
            Which::Block(address) => {
                let (memory, used) = (&self.memory, &self.used);
                let find = || path_at(memory.as_ref()?, address, &used.block);
                let known = self.known.entry(address).or_insert_with(find);
                Some(known.unwrap_or(unknown))
            }
            Which::Scsi(unit) => match self.used.scsi.get(&unit) {
                Some(named) => Some(named.unwrap_or(unknown)),
                None => Some(unknown),
            },
        }
    }
}

impl Drop for Drives {
    fn drop(&mut self) {
        drop(self.open.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been told on standard error already.
            let _ = thread.join();
        }
    }
}

/// The disk whose path one of the first words at `address` points to.
fn path_at(memory: &File, address: u64, paths: &HashMap<String, Named>) -> Option<Named> {
    let mut words = [0; 8 * WORDS];
    memory.read_exact_at(&mut words, address).ok()?;
    words.chunks_exact(8).find_map(|word| {
        let pointer = u64::from_ne_bytes(word.try_into().expect("a chunk of eight"));
        let mut text = [0; PATH_BYTES_MAX];
        // It may end at the end of a mapping, so less may come.
        let read = memory.read_at(&mut text, pointer).ok()?;
        let end = text[..read].iter().position(|b| *b == 0)?;
        let path = std::str::from_utf8(&text[..end]).ok()?;
        paths.get(path).copied()
    })
}

impl Present {
    /// Asks QEMU.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn ask(qemu: &mut dyn Monitor, subject: &Subject) -> Result<Present, QmpError> {
        let mut present = Present::default();
        for drive in drives(qemu)? {
            let Some(qdev) = &drive.qdev else {
                continue;
            };
            let node = drive.node.as_ref().and_then(|n| n.name.as_deref());
            let disk = subject.disk(Some(qdev), node);
            let named = Named {
                vdisk: disk.map(|d| d.vdisk),
                image: disk.and_then(|d| d.image),
                block_sectors: None,
            };
            let kind = property(qemu, qdev, "type")?;
            match kind.as_str() {
                Some("virtio-blk-device") => {
                    present.block.insert(qdev.clone(), named);
                }
                Some(kind) if kind.starts_with("scsi-") => {
                    let virtio = is_virtio(qemu, qdev)?;
                    if !virtio {
                        present.untraced.push(qdev.clone());
                    }
                    let mut number = |name| Ok::<_, QmpError>(property(qemu, qdev, name)?.as_i64());
                    let block_bytes = number("logical_block_size")?;
                    let unit = number("scsi-id")?.zip(number("lun")?);
                    let named = Named {
                        block_sectors: block_bytes.map(|b| b / SECTOR_BYTES).filter(|s| *s > 0),
                        ..named
                    };
                    // The events do not tell controllers apart, so the same address twice is nobody's.
                    if let Some((target, lun)) = unit {
                        let entry = present.scsi.entry(Unit { target, lun });
                        entry
                            .and_modify(|e| *e = None)
                            .or_insert(virtio.then_some(named));
                    }
                }
                _ => present.untraced.push(qdev.clone()),
            }
        }
        Ok(present)
    }
}

/// Whether a SCSI disk is at a virtio-scsi controller.
fn is_virtio(qemu: &mut dyn Monitor, qdev: &str) -> Result<bool, QmpError> {
    let bus = property(qemu, qdev, "parent_bus")?;
    let Some((controller, _)) = bus.as_str().and_then(|bus| bus.rsplit_once('/')) else {
        return Ok(false);
    };
    let kind = property(qemu, controller, "type")?;
    Ok(kind.as_str() == Some("virtio-scsi-device"))
}

/// A property of an object; null where there is none.
fn property(qemu: &mut dyn Monitor, path: &str, name: &str) -> Result<Value, QmpError> {
    match qemu.execute("qom-get", json!({"path": path, "property": name})) {
        Err(error) if error.is_refusal() => Ok(Value::Null),
        other => other,
    }
}
