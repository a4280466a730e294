//! [`Locations`]: the file or device with the data of a virtual disk, as its VM's process has it
//! open.
//!
//! A path is resolved as in that process: in its mount namespace, below its root; the file may have
//! been renamed or deleted since. Therefore the open files of the process take precedence over the
//! path.

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

/// A location is determined again once in this many scans.
const LOOKS_KEPT: u32 = 16;

/// Maximum number of open files of a process that are examined.
const OPEN_FILES_MAX: usize = 1 << 14;

/// Maximum depth of backing images.
const CHAIN_MAX: usize = 64;

/// The location of the data of a virtual disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskLocation {
    /// Its files and devices, the active one first, by their paths in this process.
    pub images: Vec<Image>,
    /// The whole device that contains the active image, or is it.
    pub pdisk: Option<Symbol>,
    /// Size of the disk, as far as file and format define it.
    pub bytes: Option<i64>,
}

/// The locations of all disks, cached for some scans.
#[derive(Debug, Default)]
pub struct Locations {
    kept: HashMap<Key, CachedLocation>,
    looks: u32,
    devices: HashMap<u32, (Symbol, i64)>,
}

/// A cached location.
#[derive(Debug)]
struct CachedLocation {
    /// The scan that found it.
    look: u32,
    place: DiskLocation,
    /// Identity of the file or device of each image.
    nodes: Vec<Node>,
}

/// Identity of the file or device of a path: file system, inode and, for a device, its number.
type Node = Option<(u64, u64, u64)>;

/// A disk of a process: number and start of the process, and the known fields of the disk.
type Key = (Option<(u32, u64)>, Source, Vec<Layer>, Option<String>, u64);

impl Locations {
    /// Begins a scan with the host's devices. Old locations are discarded, and all of them if
    /// devices have changed.
    pub fn begin(&mut self, devices: &[BlockDevice], changed: bool) {
        self.looks = self.looks.wrapping_add(1);
        let looks = self.looks;
        self.kept
            .retain(|_, kept| !changed && looks.wrapping_sub(kept.look) < LOOKS_KEPT);
        let row = |d: &BlockDevice| (number_of(d), (d.disk, d.bytes));
        self.devices = devices.iter().map(row).collect();
    }

    /// The location of the data of `disk`, which `process` has open.
    pub fn of(&mut self, host: &Host, process: Option<&Process>, disk: &FoundDisk) -> DiskLocation {
        let Source::File(path) = &disk.source else {
            return DiskLocation::default();
        };
        let key = (
            process.map(|p| (p.pid, p.start_ticks)),
            disk.source.clone(),
            disk.backing.clone(),
            disk.format.clone(),
            disk.offset_bytes,
        );
        // An emulator that starts opens its images several times, so that a descriptor number may
        // soon be another file, or closed.
        if let Some(kept) = self.kept.get(&key)
            && !kept.nodes.is_empty()
            && !kept.nodes.contains(&None)
            && kept.nodes == nodes(&kept.place)
        {
            return kept.place.clone();
        }
        let place = self.find(&Open::new(host, process), disk, path);
        let kept = CachedLocation {
            look: self.looks,
            nodes: nodes(&place),
            place: place.clone(),
        };
        self.kept.insert(key, kept);
        place
    }

    fn find(&self, open: &Open, disk: &FoundDisk, path: &str) -> DiskLocation {
        // The configuration of a back end may be older than its open files.
        let found = match disk.holder {
            Some(_) => open.opened(path),
            None => open.file(path),
        };
        let Some((opened, meta)) = found else {
            return DiskLocation::default();
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
        let backing = disk.backing.iter().cloned();
        let below = match (disk.backing.is_empty(), disk.format.as_deref()) {
            (false, _) => backing.take(CHAIN_MAX).collect(),
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
        DiskLocation {
            images,
            pdisk: device.map(|(disk, _)| *disk),
            bytes,
        }
    }
}

fn nodes(place: &DiskLocation) -> Vec<Node> {
    let node = |image: &Image| {
        let meta = fs::metadata(&image.path).ok()?;
        Some((meta.dev(), meta.ino(), meta.rdev()))
    };
    place.images.iter().map(node).collect()
}

/// The size of a raw disk in a file of `all` bytes.
fn raw_bytes(all: i64, disk: &FoundDisk) -> i64 {
    let rest = all.saturating_sub(i64::try_from(disk.offset_bytes).unwrap_or(i64::MAX));
    let size = disk.size_bytes.and_then(|size| i64::try_from(size).ok());
    size.map_or(rest, |size| size.min(rest)).max(0)
}

/// The backing images of an image, from the headers.
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
    // An image may name the protocol by which it is opened; only files are searched.
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
    /// Path in this process, metadata and name of each.
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

    /// The file at `path` in the process, if the process has it open.
    fn opened(&self, path: &str) -> Option<(PathBuf, Metadata)> {
        let (opened, meta) = self.file(path)?;
        let is_open = self.files.iter().any(|(file, ..)| *file == opened);
        is_open.then_some((opened, meta))
    }

    /// The file at `path` in the process: the open file, otherwise the file below its root folder.
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
        let called = |name: &Path| name == full || name.as_os_str() == deleted.as_str();
        let found = self.files.iter().find(|(_, meta, _)| same(meta));
        let found = found.or_else(|| self.files.iter().find(|(.., name)| called(name)));
        // A daemonized process has left the working directory of its relative paths.
        let tail = format!("/{path}");
        let ends = |name: &Path| !path.starts_with('/') && ends_with(name, &tail);
        let mut alike = self.files.iter().filter(|(.., name)| ends(name));
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
