//! [`Places`]: the file or device that holds the data of a virtual disk, as its VM's process has it
//! open.
//!
//! A path means what it means to that process: in its mount namespace, below its root, and it may
//! since have been renamed or deleted. So what the process has open goes before what the path says.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use weir_model::Symbol;
use weir_model::inventory::BlockDevice;

use super::devices::number_of;
use super::found::{FoundDisk, Layer, Source};
use super::host::Host;
use super::layout::Image;
use super::process::Process;
use super::qcow::Header;
use crate::ebpf::devices::number;

/// A place is found anew once in so many looks.
const LOOKS_KEPT: u32 = 16;

/// Most open files of a process that are looked at.
const OPEN_FILES_MAX: usize = 1 << 14;

/// Images below images are followed this far.
const CHAIN_MAX: usize = 64;

/// Where the data of a virtual disk are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The files and devices that hold them, the active one first, as they are reached from here.
    pub images: Vec<Image>,
    /// The whole device that the active one lies on, or is.
    pub pdisk: Option<Symbol>,
    /// Size of the disk, as far as file and format tell.
    pub bytes: Option<i64>,
}

/// The places of all disks, kept for some looks.
#[derive(Debug, Default)]
pub struct Places {
    kept: HashMap<Key, Kept>,
    looks: u32,
    devices: HashMap<u32, (Symbol, i64)>,
}

/// A place that was found.
#[derive(Debug)]
struct Kept {
    /// The look that found it.
    look: u32,
    place: Place,
    /// Which file or device each of its images was.
    nodes: Vec<Node>,
}

/// Which file or device a path leads to: file system, inode and, of a device, its number.
type Node = Option<(u64, u64, u64)>;

/// A disk of a process: number and start of that, and what is known of the disk.
type Key = (Option<(u32, u64)>, Source, Vec<Layer>, Option<String>, u64);

impl Places {
    /// A look begins: these are the host's devices. What was found some looks ago is forgotten, and
    /// everything if devices have changed.
    pub fn begin(&mut self, devices: &[BlockDevice], changed: bool) {
        self.looks = self.looks.wrapping_add(1);
        let looks = self.looks;
        self.kept
            .retain(|_, kept| !changed && looks.wrapping_sub(kept.look) < LOOKS_KEPT);
        let row = |d: &BlockDevice| (number_of(d), (d.disk, d.bytes));
        self.devices = devices.iter().map(row).collect();
    }

    /// Where the data of `disk` are, which `process` has open.
    pub fn of(&mut self, host: &Host, process: Option<&Process>, disk: &FoundDisk) -> Place {
        let Source::File(path) = &disk.source else {
            return Place::default();
        };
        let key = (
            process.map(|p| (p.pid, p.start_ticks)),
            disk.source.clone(),
            disk.backing.clone(),
            disk.format.clone(),
            disk.offset_bytes,
        );
        // An emulator that starts opens its images several times, so that an open file of some
        // number may soon be another one, or none.
        if let Some(kept) = self.kept.get(&key)
            && !kept.nodes.is_empty()
            && !kept.nodes.contains(&None)
            && kept.nodes == nodes(&kept.place)
        {
            return kept.place.clone();
        }
        let place = self.find(&Open::new(host, process), disk, path);
        let kept = Kept {
            look: self.looks,
            nodes: nodes(&place),
            place: place.clone(),
        };
        self.kept.insert(key, kept);
        place
    }

    fn find(&self, open: &Open, disk: &FoundDisk, path: &str) -> Place {
        // A back end's own words may be older than what is there now.
        let found = match disk.holder {
            Some(_) => open.opened(path),
            None => open.file(path),
        };
        let Some((opened, meta)) = found else {
            return Place::default();
        };
        let is_device = meta.file_type().is_block_device();
        let dev = if is_device { meta.rdev() } else { meta.dev() };
        let number = number(libc::major(dev), libc::minor(dev));
        let device = self.devices.get(&number);
        let length = match is_device {
            true => device.map(|(_, bytes)| *bytes),
            false => i64::try_from(meta.len()).ok(),
        };
        let header = Header::read(&opened);
        let bytes = match (disk.format.as_deref(), &header) {
            (Some("raw"), _) => length.map(|all| raw_bytes(all, disk)),
            (_, Some(header)) => i64::try_from(header.bytes).ok(),
            _ => None,
        };
        let mut images = vec![Image {
            path: opened,
            raw: disk.format.as_deref() == Some("raw"),
            offset_bytes: disk.offset_bytes,
            bytes: disk.size_bytes,
        }];
        let told = disk.backing.iter().cloned();
        let below = match (disk.backing.is_empty(), disk.format.as_deref()) {
            (false, _) => told.take(CHAIN_MAX).collect(),
            (true, Some("raw")) => Vec::new(),
            (true, _) => chain(open, path, header),
        };
        for layer in below {
            images.extend(open.file(&layer.path).map(|(path, _)| Image {
                path,
                raw: layer.format.as_deref() == Some("raw"),
                offset_bytes: 0,
                bytes: None,
            }));
        }
        Place {
            images,
            pdisk: device.map(|(disk, _)| *disk),
            bytes,
        }
    }
}

fn nodes(place: &Place) -> Vec<Node> {
    let node = |image: &Image| {
        let meta = fs::metadata(&image.path).ok()?;
        Some((meta.dev(), meta.ino(), meta.rdev()))
    };
    place.images.iter().map(node).collect()
}

/// What of a file of so many bytes a raw disk is.
fn raw_bytes(all: i64, disk: &FoundDisk) -> i64 {
    let rest = all.saturating_sub(i64::try_from(disk.offset_bytes).unwrap_or(i64::MAX));
    let size = disk.size_bytes.and_then(|size| i64::try_from(size).ok());
    size.map_or(rest, |size| size.min(rest)).max(0)
}

/// The images below an image, as the headers say.
fn chain(open: &Open, path: &str, header: Option<Header>) -> Vec<Layer> {
    let mut layers: Vec<Layer> = Vec::new();
    let (mut above, mut header) = (path.to_owned(), header);
    while let Some(backing) = header.take().and_then(|h| h.backing) {
        let path = beside(&above, &backing.path);
        if layers.len() >= CHAIN_MAX || layers.iter().any(|l| l.path == path) {
            break;
        }
        let raw = backing.format.as_deref() == Some("raw");
        if !raw && let Some((opened, _)) = open.file(&path) {
            header = Header::read(&opened);
        }
        above.clone_from(&path);
        layers.push(Layer {
            path,
            format: backing.format,
        });
    }
    layers
}

/// The path of a backing file, which is relative to the folder of the image above.
fn beside(above: &str, backing: &str) -> String {
    // An image may say by which protocol it is opened; only files are looked for.
    let backing = backing.strip_prefix("file:").unwrap_or(backing);
    match (backing.starts_with('/'), above.rsplit_once('/')) {
        (false, Some((folder, _))) => format!("{folder}/{backing}"),
        _ => backing.to_owned(),
    }
}

/// The files that a process has open.
struct Open<'a> {
    host: &'a Host,
    folder: Option<PathBuf>,
    /// How each is reached, what it is and what it is called.
    files: Vec<(PathBuf, Metadata, PathBuf)>,
}

impl<'a> Open<'a> {
    fn new(host: &'a Host, process: Option<&Process>) -> Open<'a> {
        let folder = process.map(|p| PathBuf::from(format!("/proc/{}", p.pid)));
        let mut files = Vec::new();
        if let Some(folder) = &folder {
            let folder = folder.join("fd");
            let names = host.names_of(&folder, "the open files of other users' processes");
            let file = |name: String| {
                let link = folder.join(name);
                let opened = host.path(&link);
                let meta = fs::metadata(&opened).ok()?;
                let kind = meta.file_type();
                let holds_data = kind.is_file() || kind.is_block_device();
                holds_data.then(|| (opened, meta, host.link(&link).unwrap_or_default()))
            };
            files = names
                .into_iter()
                .take(OPEN_FILES_MAX)
                .filter_map(file)
                .collect();
        }
        Open {
            host,
            folder,
            files,
        }
    }

    /// The file that `path` means to the process and that it has open.
    fn opened(&self, path: &str) -> Option<(PathBuf, Metadata)> {
        let (opened, meta) = self.file(path)?;
        let is_open = self.files.iter().any(|(file, ..)| *file == opened);
        is_open.then_some((opened, meta))
    }

    /// The file that `path` means to the process: that which it has open, otherwise that which is
    /// there below its root folder.
    fn file(&self, path: &str) -> Option<(PathBuf, Metadata)> {
        let Some(folder) = &self.folder else {
            let path = self.host.path(path);
            let meta = fs::metadata(&path).ok()?;
            return Some((path, meta));
        };
        let (below, full) = match path.strip_prefix('/') {
            Some(relative) => (folder.join("root").join(relative), PathBuf::from(path)),
            None => {
                let cwd = self.host.link(folder.join("cwd")).unwrap_or_default();
                (folder.join("cwd").join(path), cwd.join(path))
            }
        };
        let below = self.host.path(below);
        let named = fs::metadata(&below).ok();
        let id = |m: &Metadata| (m.dev(), m.ino());
        let same = |meta: &Metadata| named.as_ref().is_some_and(|n| id(n) == id(meta));
        let deleted = format!("{} (deleted)", full.display());
        let called = |says: &Path| says == full || says.as_os_str() == deleted.as_str();
        let found = self.files.iter().find(|(_, meta, _)| same(meta));
        let found = found.or_else(|| self.files.iter().find(|(.., says)| called(says)));
        // Who has gone to the background has left the folder that its paths began in.
        let tail = format!("/{path}");
        let ends = |says: &Path| !path.starts_with('/') && ends_with(says, &tail);
        let mut alike = self.files.iter().filter(|(.., says)| ends(says));
        let found = found.or_else(|| alike.next().filter(|_| alike.next().is_none()));
        match found {
            Some((opened, meta, _)) => Some((opened.clone(), meta.clone())),
            None => named.map(|meta| (below, meta)),
        }
    }
}

fn ends_with(path: &Path, tail: &str) -> bool {
    path.to_str().is_some_and(|path| path.ends_with(tail))
}
