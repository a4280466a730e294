//! [`Drives`]: maps trace events to the disks of the VM.
//!
//! A virtio-blk disk is identified by an address in QEMU's memory. There QEMU stores the device's
//! path in its object tree (`canonical_path` of `DeviceState`, include/hw/qdev-core.h), and reading
//! it identifies the disk: whatever the layout of that structure, one of its first words is a
//! pointer to the path that `query-block` reports; otherwise the disk is unknown. A SCSI disk is
//! identified by target and unit, which are in QEMU's object tree; if two controllers have the same
//! ones, it is unknown.
//!
//! The inspection process queries QEMU and reads its memory ([`Present::asked_of`], [`paths_at`]).

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use weir_model::SECTOR_BYTES;

use super::line::Unit;
use super::pairing::{Named, Which};
use crate::ebpf::privileges;
use crate::inspection::message::{ConversationKind, OfVm};
use crate::inspection::{Closer, Conversation, Inspection};
use crate::qmp::{QemuMonitor, QmpError, QmpSubject, drives};

/// Interval between queries of QEMU's disks.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Timeout of an answer from QEMU.
pub const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// Timeout of the inspection process: the answers for all disks take far less, unless QEMU hangs.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Timeout for reading a few words of QEMU's memory.
const MEMORY_MAX: Duration = Duration::from_secs(5);

/// Prefix of an object's path.
const OBJECT: &str = "/machine/";

/// Number of words at the beginning of a device's structure that are examined.
const WORDS: usize = 32;

/// The longest path that is compared.
const PATH_BYTES_MAX: usize = 512;

/// The current disks of a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Present {
    /// virtio-blk disks by their path in the object tree.
    pub block: HashMap<String, Named>,
    /// Disks at virtio-scsi controllers by target and unit; `None` if there are several.
    #[serde(with = "pairs")]
    pub scsi: HashMap<Unit, Option<Named>>,
    /// Disks whose requests are not covered by trace events.
    pub untraced: Vec<String>,
}

/// Serializes a map whose keys are not text as a list of pairs.
mod pairs {
    use serde::{Deserializer, Serializer};

    use super::*;

    type Map = HashMap<Unit, Option<Named>>;

    pub fn serialize<S: Serializer>(map: &Map, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Map, D::Error> {
        let pairs = Vec::<(Unit, Option<Named>)>::deserialize(deserializer)?;
        Ok(pairs.into_iter().collect())
    }
}

/// The known disks, updated once a second.
#[derive(Debug)]
pub struct Drives {
    /// Reads QEMU's memory, if it is accessible.
    memory: Option<Conversation>,
    present: Arc<Mutex<Arc<Present>>>,
    /// The disks from which `known` was computed.
    used: Arc<Present>,
    /// Disks by the address of a virtio-blk device.
    known: HashMap<u64, Option<Named>>,
    open: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Cancels the wait for an answer.
    closer: Closer,
}

impl Drives {
    /// Starts the periodic queries of the QEMU with process id `pid`.
    ///
    /// # Errors
    /// If the inspection process has ended, or the system cannot create a thread.
    pub fn start(process: &Arc<Inspection>, pid: u32, first: Present) -> io::Result<Drives> {
        let of_vm = OfVm { pid };
        let mut memory = process.converse(ConversationKind::Memory, &of_vm, Some(MEMORY_MAX))?;
        let is_readable: bool = memory.answer()?;
        let mut disks = process.converse(ConversationKind::Disks, &of_vm, Some(ANSWER_MAX))?;
        if !disks.answer::<bool>()? {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "does not know the VM",
            ));
        }
        let closer = disks.closer()?;
        let used = Arc::new(first);
        let present = Arc::new(Mutex::new(used.clone()));
        let (open, closed) = mpsc::channel::<()>();
        let shared = present.clone();
        let asking = move || {
            while let Err(RecvTimeoutError::Timeout) = closed.recv_timeout(ASK_EVERY) {
                let asked = disks.request(&()).and_then(|()| disks.answer());
                let Ok(asked) = asked else {
                    // The inventory's thread reports the end of the process.
                    return;
                };
                // Without an answer from QEMU, the previous disks remain.
                let mut shared = shared.lock().expect("no panic while held");
                if let Some(now) = asked
                    && **shared != now
                {
                    *shared = Arc::new(now);
                }
            }
        };
        Ok(Drives {
            memory: is_readable.then_some(memory),
            present,
            used,
            known: HashMap::new(),
            open: Some(open),
            thread: Some(privileges::spawn_reduced("disks", asking)?),
            closer,
        })
    }

    /// True if QEMU's memory can be read, so that virtio-blk disks have names.
    pub fn has_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// Checks whether the VM's disks have changed; true if so.
    pub fn refresh(&mut self) -> bool {
        let now = self.present.lock().expect("no panic while held").clone();
        let changed = !Arc::ptr_eq(&now, &self.used);
        self.used = now;
        changed
    }

    /// Discards the mapping of addresses to disks: a disk may have been replaced.
    pub fn forget(&mut self) {
        self.known.clear();
    }

    /// The disk, with `None` for unknown names; `None` for a disk that is not at a virtio-scsi
    /// controller.
    pub fn name(&mut self, which: Which) -> Option<Named> {
        let unknown = Named {
            vdisk: None,
            image: None,
            block_sectors: None,
        };
        match which {
            Which::Block(address) => {
                let known = self.known.get(&address).copied();
                let known = known.unwrap_or_else(|| self.find(address));
                Some(known.unwrap_or(unknown))
            }
            Which::Scsi(unit) => match self.used.scsi.get(&unit) {
                Some(named) => Some(named.unwrap_or(unknown)),
                None => Some(unknown),
            },
        }
    }
}

impl Drives {
    /// The disk to whose path one of the first words at `address` points.
    fn find(&mut self, address: u64) -> Option<Named> {
        let memory = self.memory.as_mut();
        let asked = memory.map(|m| m.request(&address).and_then(|()| m.answer::<Vec<String>>()));
        let paths = asked.transpose().unwrap_or_else(|_| {
            // The inventory's thread reports the end of the process.
            self.memory = None;
            None
        });
        let mut paths = paths.iter().flatten();
        let named = paths.find_map(|path| self.used.block.get(path).copied());
        self.known.insert(address, named);
        named
    }
}

impl Drop for Drives {
    fn drop(&mut self) {
        drop(self.open.take());
        // The guard disables tracing after this, so there is no wait.
        self.closer.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed on standard error.
            let _ = thread.join();
        }
    }
}

/// Paths of objects in QEMU's memory to which the first words at `address` point.
pub fn paths_at(memory: &File, address: u64) -> Vec<String> {
    let mut words = [0; 8 * WORDS];
    if memory.read_exact_at(&mut words, address).is_err() {
        return Vec::new();
    }
    let path = |word: &[u8]| {
        let pointer = u64::from_ne_bytes(word.try_into().expect("a chunk of eight"));
        let mut text = [0; PATH_BYTES_MAX];
        // The string may be at the end of a mapping, so the read may be short.
        let read = memory.read_at(&mut text, pointer).ok()?;
        let end = text[..read].iter().position(|b| *b == 0)?;
        let path = std::str::from_utf8(&text[..end]).ok()?;
        // Other content of the VM's memory is not sent out of the inspection process.
        path.starts_with(OBJECT).then(|| path.to_owned())
    };
    words.chunks_exact(8).filter_map(path).collect()
}

impl Present {
    /// Queries the QEMU of a VM.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn asked_of(subject: &QmpSubject) -> Result<Present, QmpError> {
        subject
            .address
            .visit(QUERY_TIMEOUT, |qemu| Present::ask(qemu, subject))
    }

    /// Queries QEMU.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn ask(qemu: &mut dyn QemuMonitor, subject: &QmpSubject) -> Result<Present, QmpError> {
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
                    // The events do not contain the controller, so a duplicate address is
                    // ambiguous.
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

/// True if a SCSI disk is at a virtio-scsi controller.
fn is_virtio(qemu: &mut dyn QemuMonitor, qdev: &str) -> Result<bool, QmpError> {
    let bus = property(qemu, qdev, "parent_bus")?;
    let Some((controller, _)) = bus.as_str().and_then(|bus| bus.rsplit_once('/')) else {
        return Ok(false);
    };
    let kind = property(qemu, controller, "type")?;
    Ok(kind.as_str() == Some("virtio-scsi-device"))
}

/// A property of an object; null if it does not exist.
fn property(qemu: &mut dyn QemuMonitor, path: &str, name: &str) -> Result<Value, QmpError> {
    match qemu.execute("qom-get", json!({"path": path, "property": name})) {
        Err(error) if error.is_refusal() => Ok(Value::Null),
        other => other,
    }
}
