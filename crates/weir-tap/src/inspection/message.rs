//! The messages between the two processes. Each request is one of those below: none carries a
//! command for a QEMU or a descriptor, and only [`Begin`] carries a path. It is the first request
//! of the only inventory of a process, sent before the main process drops its privileges.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weir_model::inventory::{BlockDevice, Disk, Vm};
use weir_model::{Nanos, Symbol};

use crate::control::frame;
use crate::inventory::{
    DiskLayout, LaidDisk, NameConflict, PIECES_MAX, Piece, Snapshot, TapdiskKey,
};
use crate::qmp::QmpAddress;
use crate::symbols::AddressSpace;

/// The longest answer. The largest is the list of all VMs and disks.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;

/// The longest request.
pub const REQUEST_BYTES_MAX: usize = 4 << 20;

/// The type of a conversation: the byte that is sent with its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConversationKind {
    /// [`Begin`], then lists of [`crate::inventory::ScanScope`], each answered by [`Sent::write`].
    Inventory,
    /// [`PollsRequest`], then an empty request for each round, answered by [`PollAnswer`]s.
    Polls,
    /// [`OfVm`], then an empty request for each query of the VM's disks.
    Disks,
    /// [`OfVm`], then addresses of virtio-blk devices, each answered by the paths of objects to
    /// which the structure there refers.
    Memory,
    /// [`SymbolsRequest`]s, each answered by the names of the functions.
    Symbols,
}

/// First request of [`ConversationKind::Inventory`]: the content of `WatchOptions`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Begin {
    /// The root of the host's files.
    pub root: PathBuf,
    /// Declared VMs, in the syntax of the command line.
    pub declared: Vec<String>,
}

/// Request of [`ConversationKind::Symbols`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SymbolsRequest {
    /// What the addresses are in.
    pub space: AddressSpace,
    /// At most [`crate::symbols::ADDRESSES_MAX`].
    pub addresses: Vec<u64>,
}

/// First request of [`ConversationKind::Polls`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PollsRequest {
    /// True if latency histograms are enabled.
    pub histograms: bool,
}

/// First request of [`ConversationKind::Disks`] and [`ConversationKind::Memory`]: the process of a
/// VM of the inventory. The first answer reports whether its QEMU can be queried.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfVm {
    /// The process.
    pub pid: u32,
}

/// Part of the answer to a poll.
#[derive(Debug, Serialize, Deserialize)]
pub enum PollAnswer {
    /// The answer of one VM.
    Reading(Box<crate::qmp::poll::VmResponse>),
    /// End of the answer.
    Done,
}

/// Maximum number of layouts sent with one snapshot.
const LAYOUTS_MAX: usize = 1 << 18;

/// A piece of a layout: device, sector, sectors, the VM's sector, shared.
type PieceMessage = (u32, u64, u64, Option<u64>, bool);

/// Part of the answer to a scan.
#[derive(Debug, Serialize, Deserialize)]
enum LookAnswer {
    /// No change since the last answer.
    Unchanged,
    /// A layout to which the following snapshot refers: its pieces, and the devices on which it
    /// grows.
    Layout(Vec<PieceMessage>, Vec<u32>),
    /// The current inventory.
    Snapshot(Box<SnapshotMessage>),
}

/// A [`Snapshot`] without its layouts.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SnapshotMessage {
    taken: Nanos,
    vms: Vec<Vm>,
    disks: Vec<DiskMessage>,
    devices: Vec<BlockDevice>,
    pids: HashMap<u32, u32>,
    servers: HashMap<u32, Vec<u32>>,
    cgroups: HashMap<Symbol, u32>,
    taps: HashMap<Symbol, u32>,
    monitors: HashMap<u32, QmpAddress>,
    conflicts: Vec<NameConflict>,
    remarks: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct DiskMessage {
    disk: Disk,
    vm: u32,
    layout: LayoutAt,
    tapdisk: Option<TapdiskKey>,
    control: Option<Symbol>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum LayoutAt {
    /// The layout of this disk of the previous snapshot.
    Kept(u32),
    /// The layout in this message of those before the snapshot.
    New(u32),
}

/// The sender of snapshots: stores the layouts that the receiver has.
#[derive(Debug, Default)]
pub struct Sent {
    layouts: Vec<Arc<DiskLayout>>,
}

impl Sent {
    /// Sends the answer to a scan; `None` for no change.
    ///
    /// # Errors
    /// If the receiver does not read.
    pub fn write(&mut self, mut to: impl io::Write, seen: Option<&Snapshot>) -> io::Result<()> {
        let mut answer = |answer: &LookAnswer| frame::write(&mut to, answer, ANSWER_BYTES_MAX);
        let Some(snapshot) = seen else {
            return answer(&LookAnswer::Unchanged);
        };
        let kept = self.layouts.iter().enumerate();
        let kept = kept.map(|(at, layout)| (Arc::as_ptr(layout), LayoutAt::Kept(at as u32)));
        let mut places: HashMap<*const DiskLayout, LayoutAt> = kept.collect();
        let mut new = 0;
        let mut disks = Vec::with_capacity(snapshot.disks.len());
        for laid in &snapshot.disks {
            let pointer = Arc::as_ptr(&laid.layout);
            let layout = match places.get(&pointer) {
                Some(place) => *place,
                None => {
                    let grows_on = laid.layout.grows_on.clone();
                    answer(&LookAnswer::Layout(pieces(&laid.layout), grows_on))?;
                    let place = LayoutAt::New(new);
                    new += 1;
                    places.insert(pointer, place);
                    place
                }
            };
            disks.push(DiskMessage {
                disk: laid.disk.clone(),
                vm: laid.vm,
                layout,
                tapdisk: laid.tapdisk,
                control: laid.control,
            });
        }
        let message = SnapshotMessage {
            taken: snapshot.taken,
            vms: snapshot.vms.clone(),
            disks,
            devices: snapshot.devices.clone(),
            pids: snapshot.pids.clone(),
            servers: snapshot.servers.clone(),
            cgroups: snapshot.cgroups.clone(),
            taps: snapshot.taps.clone(),
            monitors: snapshot.monitors.clone(),
            conflicts: snapshot.conflicts.clone(),
            remarks: snapshot.remarks.clone(),
        };
        self.layouts.clear();
        match answer(&LookAnswer::Snapshot(Box::new(message))) {
            // Names are correct or absent: if not all VMs can be sent, none is.
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                answer(&LookAnswer::Snapshot(Box::new(nothing(snapshot.taken))))
            }
            other => {
                let layouts = snapshot.disks.iter().map(|laid| laid.layout.clone());
                self.layouts = layouts.collect();
                other
            }
        }
    }
}

/// An empty snapshot, sent if the VMs and disks exceed the size of a message.
fn nothing(taken: Nanos) -> SnapshotMessage {
    let remark = format!(
        "the description of VMs and disks exceeds {} MiB; none is reported",
        ANSWER_BYTES_MAX >> 20
    );
    SnapshotMessage {
        taken,
        vms: Vec::new(),
        disks: Vec::new(),
        devices: Vec::new(),
        pids: HashMap::new(),
        servers: HashMap::new(),
        cgroups: HashMap::new(),
        taps: HashMap::new(),
        monitors: HashMap::new(),
        conflicts: Vec::new(),
        remarks: vec![remark],
    }
}

/// The result of a scan.
#[derive(Debug, PartialEq)]
pub enum Seen {
    /// No change.
    Unchanged,
    /// A new snapshot.
    Snapshot(Box<Snapshot>),
}

/// The receiver of snapshots: stores the layouts of the last one.
#[derive(Debug, Default)]
pub struct SnapshotReceiver {
    layouts: Vec<Arc<DiskLayout>>,
}

impl SnapshotReceiver {
    /// Receives the answer to a scan.
    ///
    /// # Errors
    /// If the sender has ended, or sends an invalid message.
    pub fn read(&mut self, mut from: impl io::Read) -> io::Result<Seen> {
        let mut new = Vec::new();
        loop {
            let answer = frame::read(&mut from, ANSWER_BYTES_MAX)?;
            match answer.ok_or(io::ErrorKind::UnexpectedEof)? {
                LookAnswer::Unchanged if new.is_empty() => return Ok(Seen::Unchanged),
                LookAnswer::Layout(pieces, grows_on) if new.len() < LAYOUTS_MAX => {
                    new.push(Arc::new(layout(&pieces, grows_on)?));
                }
                LookAnswer::Snapshot(message) => {
                    let snapshot = self.snapshot(*message, &new)?;
                    let layouts = snapshot.disks.iter().map(|laid| laid.layout.clone());
                    self.layouts = layouts.collect();
                    return Ok(Seen::Snapshot(Box::new(snapshot)));
                }
                LookAnswer::Unchanged | LookAnswer::Layout(..) => {
                    return Err(invalid("layouts without a snapshot"));
                }
            }
        }
    }

    fn snapshot(&self, message: SnapshotMessage, new: &[Arc<DiskLayout>]) -> io::Result<Snapshot> {
        let vms = message.vms.len();
        let servers = message.servers.values().flatten();
        let positions = message.disks.iter().map(|disk| &disk.vm);
        let mut positions = positions
            .chain(message.pids.values())
            .chain(servers)
            .chain(message.cgroups.values())
            .chain(message.taps.values())
            .chain(message.monitors.keys());
        if positions.any(|vm| *vm as usize >= vms) {
            return Err(invalid("a VM that is not in the list"));
        }
        let laid = |disk: DiskMessage| {
            let layout = match disk.layout {
                LayoutAt::Kept(at) => self.layouts.get(at as usize),
                LayoutAt::New(at) => new.get(at as usize),
            };
            Ok(LaidDisk {
                layout: layout
                    .ok_or_else(|| invalid("a layout that was not sent"))?
                    .clone(),
                disk: disk.disk,
                vm: disk.vm,
                tapdisk: disk.tapdisk,
                control: disk.control,
            })
        };
        Ok(Snapshot {
            generation: 0,
            taken: message.taken,
            vms: message.vms,
            disks: message
                .disks
                .into_iter()
                .map(laid)
                .collect::<io::Result<_>>()?,
            devices: message.devices,
            pids: message.pids,
            servers: message.servers,
            cgroups: message.cgroups,
            taps: message.taps,
            monitors: message.monitors,
            conflicts: message.conflicts,
            remarks: message.remarks,
        })
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("it sent {what}"))
}

fn pieces(layout: &DiskLayout) -> Vec<PieceMessage> {
    let message = |p: &Piece| (p.device, p.sector, p.sectors, p.vsector, p.shared);
    layout.pieces.iter().map(message).collect()
}

/// The layout, if its pieces are in order. Pieces that overlap are cut, so there may be twice as
/// many as an image has.
fn layout(pieces: &[PieceMessage], grows_on: Vec<u32>) -> io::Result<DiskLayout> {
    let piece = |&(device, sector, sectors, vsector, shared): &PieceMessage| Piece {
        device,
        sector,
        sectors,
        vsector,
        shared,
    };
    let pieces: Vec<Piece> = pieces.iter().map(piece).collect();
    let is_whole = |p: &Piece| {
        let ends = p.sector.checked_add(p.sectors);
        ends.is_some() && p.vsector.is_none_or(|v| v.checked_add(p.sectors).is_some())
    };
    let in_order = pieces.is_sorted_by_key(|p| (p.device, p.sector));
    match in_order && pieces.len() <= 2 * PIECES_MAX && pieces.iter().all(is_whole) {
        true => Ok(DiskLayout { pieces, grows_on }),
        false => Err(invalid("pieces of a disk that are out of order")),
    }
}

impl ConversationKind {
    const ALL: [(ConversationKind, u8); 5] = [
        (ConversationKind::Inventory, b'I'),
        (ConversationKind::Polls, b'P'),
        (ConversationKind::Disks, b'D'),
        (ConversationKind::Memory, b'M'),
        (ConversationKind::Symbols, b'S'),
    ];

    /// The byte that identifies this kind.
    pub fn byte(self) -> u8 {
        let found = ConversationKind::ALL
            .into_iter()
            .find(|(kind, _)| *kind == self);
        found.expect("all kinds are listed").1
    }

    /// The kind that a byte identifies.
    pub fn of_byte(byte: u8) -> Option<ConversationKind> {
        let found = ConversationKind::ALL.into_iter().find(|(_, b)| *b == byte);
        found.map(|(kind, _)| kind)
    }
}

#[cfg(test)]
mod tests {
    use weir_model::inventory::{FoundBy, VmKind};

    use super::*;
    use crate::inventory::{Claim, NameRank};

    fn laid(vdisk: &str, layout: &Arc<DiskLayout>) -> LaidDisk {
        LaidDisk {
            disk: Disk {
                image: Some(Symbol::new("/images/ä\n.raw")),
                direct: Some(true),
                ..Disk::new("web", vdisk, FoundBy::Extents, "qemu")
            },
            vm: 0,
            layout: layout.clone(),
            tapdisk: Some(TapdiskKey { pid: 9, disk: 11 }),
            control: Some(Symbol::new("/run/a.sock.tap")),
        }
    }

    fn snapshot() -> Snapshot {
        let piece = |sector| Piece {
            device: 8 << 20,
            sector,
            sectors: 8,
            vsector: Some(sector - 8),
            shared: sector == 16,
        };
        let pieces = vec![piece(8), piece(16)];
        let layout = Arc::new(DiskLayout {
            pieces,
            grows_on: vec![7 << 20],
        });
        let claim = Claim {
            vm: Symbol::new("web"),
            pid: Some(7),
            uid: None,
            standing: NameRank::Root,
        };
        Snapshot {
            taken: 7,
            vms: vec![Vm {
                pid: Some(7),
                ..Vm::new("web", VmKind::Qemu, "qemu")
            }],
            disks: vec![laid("/dev/vda", &layout), laid("/dev/vdb", &Arc::default())],
            pids: HashMap::from([(7, 0)]),
            servers: HashMap::from([(8, vec![0])]),
            cgroups: HashMap::from([(Symbol::new("/machine/web"), 0)]),
            taps: HashMap::from([(Symbol::new("vnet0"), 0)]),
            monitors: HashMap::from([(
                0,
                QmpAddress::Process {
                    path: "/proc/7/root/run/qmp".into(),
                    pid: 7,
                },
            )]),
            conflicts: vec![NameConflict {
                name: Symbol::new("web"),
                claims: vec![claim],
                ambiguous: true,
            }],
            remarks: vec!["/proc/9: permission denied".into()],
            ..Snapshot::default()
        }
    }

    #[test]
    fn a_snapshot_arrives_whole_and_layouts_once() {
        let (mut sent, mut received) = (Sent::default(), SnapshotReceiver::default());
        let mut first = snapshot();
        let mut bytes = Vec::new();
        sent.write(&mut bytes, Some(&first)).unwrap();
        let seen = received.read(bytes.as_slice()).unwrap();
        assert_eq!(seen, Seen::Snapshot(Box::new(first.clone())));

        first.disks.swap(0, 1);
        let mut again = Vec::new();
        sent.write(&mut again, Some(&first)).unwrap();
        assert!(!String::from_utf8_lossy(&again).contains("Layout"));
        let Seen::Snapshot(second) = received.read(again.as_slice()).unwrap() else {
            panic!("a snapshot");
        };
        assert_eq!(*second, first);

        let mut nothing = Vec::new();
        sent.write(&mut nothing, None).unwrap();
        assert_eq!(received.read(nothing.as_slice()).unwrap(), Seen::Unchanged);
    }

    #[test]
    fn positions_and_layouts_that_are_not_there_are_refused() {
        let refused = |change: fn(&mut Snapshot)| {
            let mut wrong = snapshot();
            change(&mut wrong);
            let mut bytes = Vec::new();
            Sent::default().write(&mut bytes, Some(&wrong)).unwrap();
            let error = SnapshotReceiver::default()
                .read(bytes.as_slice())
                .unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            error.to_string()
        };
        let vm = "it sent a VM that is not in the list";
        assert_eq!(refused(|s| s.pids.extend([(9, 1)])), vm);
        assert_eq!(refused(|s| s.servers.extend([(9, vec![0, 1])])), vm);
        assert_eq!(refused(|s| s.cgroups.extend([(Symbol::new("/x"), 1)])), vm);
        assert_eq!(refused(|s| s.disks[1].vm = 1), vm);
        assert_eq!(refused(|s| s.taps.extend([(Symbol::new("x"), 1)])), vm);
        assert_eq!(refused(|s| s.vms.clear()), vm);
        let pieces = "it sent pieces of a disk that are out of order";
        assert_eq!(
            refused(|s| Arc::make_mut(&mut s.disks[0].layout).pieces.reverse()),
            pieces
        );
        assert_eq!(
            refused(|s| Arc::make_mut(&mut s.disks[0].layout).pieces[1].sectors = u64::MAX),
            pieces
        );
        // The second snapshot refers to layouts of the first, which this side does not have.
        let mut sent = Sent::default();
        sent.write(io::sink(), Some(&snapshot())).unwrap();
        let mut known = snapshot();
        for (disk, layout) in known.disks.iter_mut().zip(&sent.layouts) {
            disk.layout = layout.clone();
        }
        let mut bytes = Vec::new();
        sent.write(&mut bytes, Some(&known)).unwrap();
        let error = SnapshotReceiver::default()
            .read(bytes.as_slice())
            .unwrap_err();
        assert_eq!(error.to_string(), "it sent a layout that was not sent");
    }

    #[test]
    fn kinds_have_bytes_of_their_own() {
        for (kind, byte) in ConversationKind::ALL {
            assert_eq!(
                (ConversationKind::of_byte(byte), kind.byte()),
                (Some(kind), byte)
            );
        }
        assert_eq!(ConversationKind::of_byte(0), None);
    }
}
