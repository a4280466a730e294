//! [`Medium`]: the location of a disk's data, resolved through QEMU's graph of block nodes.
//!
//! Sources: qemu-block-drivers(7), qapi/block-core.json (`BlockdevOptions`).

use std::collections::HashMap;

use super::options::Options;
use crate::inventory::found::{FoundDisk, Layer, Source};

/// Maximum depth of nodes.
const DEPTH_MAX: usize = 32;

/// Drivers that forward all I/O to one child, and the key of that child.
const FILTERS: [(&str, &str); 8] = [
    ("throttle", "file"),
    ("copy-on-read", "file"),
    ("preallocate", "file"),
    ("compress", "file"),
    ("blklogwrites", "file"),
    ("blkdebug", "image"),
    ("blkreplay", "image"),
    ("snapshot-access", "file"),
];

/// Drivers of image formats.
pub const FORMATS: [&str; 14] = [
    "raw",
    "qcow2",
    "qcow",
    "qed",
    "vmdk",
    "vdi",
    "vpc",
    "vhdx",
    "parallels",
    "luks",
    "bochs",
    "cloop",
    "dmg",
    "vvfat",
];

/// What is known of the data of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Medium {
    /// Their location.
    pub source: Source,
    /// Backing images.
    pub backing: Vec<Layer>,
    /// `raw`, `qcow2`, ...; `None` if QEMU detects it.
    pub format: Option<String>,
    /// Method of I/O.
    pub aio: Option<String>,
    /// Whether the page cache is bypassed.
    pub direct: Option<bool>,
    /// Whether the disk is read-only.
    pub read_only: Option<bool>,
    /// Offset of a raw disk in its file.
    pub offset_bytes: u64,
    /// Size of a raw disk in its file.
    pub size_bytes: Option<u64>,
}

impl Medium {
    /// The medium of the node described by `options`.
    pub fn of_node(options: &Options, nodes: &HashMap<String, Options>) -> Medium {
        follow(options, nodes, 0)
    }

    /// The medium of a `-drive`.
    pub fn of_drive(drive: &Options, nodes: &HashMap<String, Options>) -> Medium {
        let mut node = drive.clone();
        let format = drive.get("format").or(drive.get("driver"));
        let format = format.filter(|f| FORMATS.contains(f)).map(str::to_owned);
        let mut medium = match drive.get("file") {
            // `file` is a file name here; in a node it would name another node.
            Some(file) => of_file_name(file),
            None if format.is_some() => {
                node.set("driver", format.as_deref().unwrap_or_default());
                follow(&node, nodes, 0)
            }
            None => follow(&node, nodes, 0),
        };
        if medium.source == Source::Unknown && drive.below("file").is_empty() {
            medium.source = match drive.get("filename") {
                Some(file) => of_file_name(file).source,
                None => Source::Empty,
            };
        }
        medium.format = format.or(medium.format);
        medium.aio = drive.text("aio").or(medium.aio);
        let cache = drive.get("cache");
        let direct = cache.map(|mode| matches!(mode, "none" | "directsync" | "off"));
        medium.direct = drive.flag("cache.direct").or(direct).or(medium.direct);
        medium.read_only = drive
            .flag("read-only")
            .or(drive.flag("readonly"))
            .or(medium.read_only);
        medium.offset_bytes = drive.number("offset").unwrap_or(medium.offset_bytes);
        medium.size_bytes = drive.number("size").or(medium.size_bytes);
        medium
    }

    /// Fills in a disk.
    pub fn fill(self, disk: FoundDisk) -> FoundDisk {
        FoundDisk {
            source: self.source,
            backing: self.backing,
            format: self.format,
            aio: self.aio,
            direct: self.direct,
            read_only: self.read_only.or(disk.read_only),
            offset_bytes: self.offset_bytes,
            size_bytes: self.size_bytes,
            ..disk
        }
    }
}

/// The node and its children.
fn follow(node: &Options, nodes: &HashMap<String, Options>, depth: usize) -> Medium {
    let driver = node.get("driver").unwrap_or_default();
    if depth > DEPTH_MAX {
        return Medium::default();
    }
    let child = |key: &str| match node.get(key) {
        Some(name) => nodes.get(name).map(|n| follow(n, nodes, depth + 1)),
        None => {
            let own = node.below(key);
            (!own.is_empty()).then(|| follow(&own, nodes, depth + 1))
        }
    };
    if let Some((_, key)) = FILTERS.iter().find(|(name, _)| *name == driver) {
        return child(key).unwrap_or_default();
    }
    let read_only = node.flag("read-only");
    if !FORMATS.contains(&driver) {
        return Medium {
            read_only,
            ..of_protocol(driver, node)
        };
    }
    let below = child("file").unwrap_or_default();
    let mut medium = Medium {
        read_only: read_only.or(below.read_only),
        ..below
    };
    if driver == "raw" && medium.format.is_none() {
        medium.offset_bytes = node.number("offset").unwrap_or(0);
        medium.size_bytes = node.number("size");
    }
    if driver != "raw" || medium.format.is_none() {
        medium.format = Some(driver.to_owned());
    }
    if let Some(backing) = child("backing") {
        medium.backing = layers(backing);
    }
    medium
}

/// A protocol node, at the bottom of the graph.
fn of_protocol(driver: &str, node: &Options) -> Medium {
    let path = || node.text("filename").or(node.text("path"));
    let source = match (driver, path()) {
        ("file" | "host_device" | "host_cdrom" | "io_uring", Some(path)) => Source::File(path),
        ("virtio-blk-vhost-user", Some(path)) => Source::Backend(path),
        ("file" | "host_device" | "host_cdrom" | "", _) => Source::Unknown,
        ("quorum" | "blkverify" | "replication", _) => Source::Unknown,
        (driver, _) => Source::Elsewhere(address(driver, node)),
    };
    Medium {
        source,
        aio: node.text("aio"),
        direct: node.flag("cache.direct"),
        ..Medium::default()
    }
}

/// The address of data on another host, as `nbd://host:port/export`, as far as known.
fn address(driver: &str, node: &Options) -> String {
    if let Some(whole) = node.get("filename").or(node.get("url")) {
        return whole.to_owned();
    }
    let any = |keys: &[&str]| keys.iter().find_map(|key| node.get(key));
    let host = any(&[
        "server.host",
        "server.path",
        "server.0.host",
        "portal",
        "host",
        "device",
    ]);
    let port = any(&["server.port", "server.0.port", "port"]).map(|port| format!(":{port}"));
    let place = any(&["export", "image", "path", "target", "volume", "namespace"]);
    let pool = any(&["pool"]).map(|pool| format!("{pool}/"));
    format!(
        "{driver}://{}{}/{}{}",
        host.unwrap_or_default(),
        port.unwrap_or_default(),
        pool.unwrap_or_default(),
        place.unwrap_or_default()
    )
}

/// Parses a file name of `-drive file=`: a path, or `protocol:rest` without a slash before the
/// colon.
pub fn of_file_name(name: &str) -> Medium {
    if let Some(json) = name.strip_prefix("json:") {
        return follow(&Options::parse(json, "driver"), &HashMap::new(), 0);
    }
    let protocol = name.split_once(':').filter(|(p, _)| !p.contains('/'));
    let source = match protocol {
        _ if name.is_empty() => Source::Empty,
        Some(("file" | "host_device", path)) => Source::File(path.to_owned()),
        Some(("blkdebug", rest)) => {
            return of_file_name(rest.split_once(':').map_or(rest, |r| r.1));
        }
        Some(_) => Source::Elsewhere(name.to_owned()),
        None => Source::File(name.to_owned()),
    };
    Medium {
        source,
        ..Medium::default()
    }
}

/// An image and its backing images, as layers.
fn layers(medium: Medium) -> Vec<Layer> {
    let Source::File(path) = medium.source else {
        return Vec::new();
    };
    let first = Layer {
        path,
        format: medium.format,
    };
    std::iter::once(first).chain(medium.backing).collect()
}
