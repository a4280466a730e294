//! [`InsertionPoint`]: the insertion point for a tap below a disk: between the raw format node and
//! its file.

use serde_json::Value;

use super::ExchangeError;
use super::graph::{BlockNode, Graph, NodePermissions, Parent};

/// Maximum depth of nodes that are followed.
const DEPTH_MAX: usize = 32;

/// The prefix of our nodes.
pub const TAP_PREFIX: &str = "weir-tap-";

/// Drivers that pass requests to `file` unchanged.
const FILTERS: [&str; 5] = [
    "throttle",
    "copy-on-read",
    "blkdebug",
    "blklogwrites",
    "compress",
];

/// Drivers that QEMU inserts below a disk for a job.
const JOBS: [&str; 4] = [
    "mirror_top",
    "commit_top",
    "backup-top",
    "copy-before-write",
];

/// Drivers whose sectors are those of a file or device of this host.
const FILES: [&str; 2] = ["file", "host_device"];

/// An insertion point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InsertionPoint {
    /// The raw node.
    pub format_node: String,
    /// Its options.
    pub format: BlockNode,
    /// Its child.
    pub below: Below,
}

/// The child of a raw node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Below {
    /// A file or device.
    File {
        /// Its node.
        name: String,
        /// Its options.
        node: BlockNode,
        /// The permissions of the raw node on it.
        claim: NodePermissions,
    },
    /// A tap that was inserted.
    Tap {
        /// Its node.
        name: String,
        /// The socket of the tap.
        socket: Option<String>,
    },
}

impl InsertionPoint {
    /// The insertion point below the disk whose root node is `root`.
    ///
    /// # Errors
    /// [`ExchangeError::Unsuitable`] when there is none, with the reason and the remedy.
    pub fn find(graph: &Graph, root: &str) -> Result<InsertionPoint, ExchangeError> {
        let mut name = root;
        for _ in 0..DEPTH_MAX {
            let node = graph.node(name).ok_or_else(|| ExchangeError::NodeMissing {
                node: name.to_owned(),
            })?;
            no_job(graph, name)?;
            match node.driver.as_str() {
                "raw" => return InsertionPoint::at(graph, name, node),
                driver if FILTERS.contains(&driver) => {
                    name = match graph.child(name, "file").or(graph.child(name, "image")) {
                        Some(below) => below,
                        None => {
                            return Err(unsuitable(
                                name,
                                "stands on nothing",
                                "examine it with QEMU's tools",
                            ));
                        }
                    };
                }
                driver => return Err(of_driver(name, driver)),
            }
        }
        Err(unsuitable(
            root,
            "stands on too many nodes",
            "a tap fits under a plain raw disk",
        ))
    }

    fn at(graph: &Graph, name: &str, format: &BlockNode) -> Result<InsertionPoint, ExchangeError> {
        let Some(below) = graph.child(name, "file") else {
            return Err(unsuitable(
                name,
                "stands on nothing",
                "examine it with QEMU's tools",
            ));
        };
        let node = graph
            .node(below)
            .ok_or_else(|| ExchangeError::NodeMissing {
                node: below.to_owned(),
            })?;
        no_job(graph, below)?;
        if name.starts_with('#') {
            let reason = "has a name that QEMU generated, by which it cannot be changed";
            let remedy =
                "start the VM with -blockdev, or with -drive ..,node-name=NAME; libvirt does";
            return Err(unsuitable(name, reason, remedy));
        }
        let below = match node.driver.as_str() {
            driver if FILES.contains(&driver) => Below::File {
                name: below.to_owned(),
                node: node.clone(),
                claim: graph.claim(name, "file").cloned().unwrap_or_default(),
            },
            "nbd" if below.starts_with(TAP_PREFIX) => Below::Tap {
                name: below.to_owned(),
                socket: socket_of(&node.filename),
            },
            driver => {
                let reason = format!(
                    "stands on `{driver}`, whose data this host does not have as a file or device"
                );
                let remedy = "a tap fits over file and host_device; QEMU's own view is `weir query --from qemu:VM`";
                return Err(unsuitable(name, reason, remedy));
            }
        };
        if matches!(below, Below::File { .. }) && has_offset(&format.filename) {
            let reason = "is a part of a larger file: the tap would record the sectors of the file, not of the disk";
            let remedy = "QEMU's own view is `weir query --from qemu:VM`";
            return Err(unsuitable(name, reason, remedy));
        }
        Ok(InsertionPoint {
            format_node: name.to_owned(),
            format: format.clone(),
            below,
        })
    }
}

/// A job copies the nodes that it found at its start, and would not notice the exchange.
fn no_job(graph: &Graph, name: &str) -> Result<(), ExchangeError> {
    let job = graph.parents(name).find_map(|parent| match parent {
        Parent::Job(job) => Some(job),
        _ => None,
    });
    match job {
        Some(job) => {
            let reason = format!("is in the hands of block job `{job}`");
            Err(unsuitable(
                name,
                reason,
                "wait until the job has ended, or cancel it",
            ))
        }
        None => Ok(()),
    }
}

/// Why a disk whose root node has this driver has no insertion point.
fn of_driver(name: &str, driver: &str) -> ExchangeError {
    if FILES.contains(&driver) {
        let reason =
            "is the file itself, with no raw node over it that could change what it stands on";
        let remedy = "start the VM with two nodes, -blockdev driver=raw,file=NODE over this one, as libvirt does";
        return unsuitable(name, reason, remedy);
    }
    if JOBS.contains(&driver) {
        let reason = format!("is in the hands of a block job (`{driver}`)");
        return unsuitable(name, reason, "wait until the job has ended, or cancel it");
    }
    let reason = format!(
        "has format `{driver}`: below it the tap would record clusters and tables of the format, not the guest's sectors"
    );
    let remedy =
        "the guest's own requests are in `weir query --from qemu:VM`, or convert the image to raw";
    unsuitable(name, reason, remedy)
}

fn unsuitable(node: &str, reason: impl Into<String>, remedy: &'static str) -> ExchangeError {
    ExchangeError::Unsuitable {
        node: node.to_owned(),
        reason: reason.into(),
        remedy,
    }
}

/// Whether a raw node covers only a part of its child: QEMU shows such options in a `json:` name.
fn has_offset(filename: &str) -> bool {
    let Some(text) = filename.strip_prefix("json:") else {
        return false;
    };
    // A name that cannot be parsed is not assumed to be harmless.
    let Ok(Value::Object(options)) = serde_json::from_str(text) else {
        return true;
    };
    let is_set = |key: &str| options.get(key).is_some_and(|v| *v != 0 && *v != "0");
    options.get("driver").is_some_and(|d| d == "raw") && (is_set("offset") || is_set("size"))
}

/// The path in `nbd+unix:///EXPORT?socket=PATH`.
fn socket_of(filename: &str) -> Option<String> {
    let (_, query) = filename.strip_prefix("nbd+unix://")?.split_once('?')?;
    let mut parts = query.split('&');
    let path = parts.find_map(|part| part.strip_prefix("socket="))?;
    let mut decoded = Vec::new();
    let mut bytes = path.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let digits = [bytes.next()?, bytes.next()?];
        let digits = std::str::from_utf8(&digits).ok()?.to_owned();
        decoded.push(u8::from_str_radix(&digits, 16).ok()?);
    }
    String::from_utf8(decoded).ok()
}
