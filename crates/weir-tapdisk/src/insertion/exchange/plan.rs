//! [`InsertionPlan`]: the node names and options to insert a tap below a disk, and to remove it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use weir_tap::inventory::NodeOptions;

use super::graph::NodePermissions;
use super::point::{Below, InsertionPoint, TAP_PREFIX};

/// The prefix of nodes that only keep others alive.
const HOLD_PREFIX: &str = "weir-hold-";

/// The prefix of nodes that hold the lock of an image.
const LOCK_PREFIX: &str = "weir-lock-";

/// Maximum length of a node's name in bytes (`sizeof(bs->node_name)` of QEMU, without its zero).
const NODE_NAME_BYTES_MAX: usize = 31;

/// How long a VM's requests wait for a killed tap, in seconds, before they fail.
pub const RECONNECT_DELAY_S: u32 = 3600;

/// The nodes to exchange.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InsertionPlan {
    /// The raw node.
    pub format_node: String,
    /// Its child without a tap.
    pub file_node: String,
    /// All options of the raw node but `file`.
    pub options: Map<String, Value>,
    /// The node of the tap.
    pub tap_node: String,
    /// The node that keeps `file_node` alive, if nothing else would.
    pub hold_node: Option<String>,
    /// The node that takes the permissions of the raw node on the file: without one QEMU would
    /// release the lock of the image.
    pub lock_node: String,
    /// Those permissions.
    pub claim: NodePermissions,
    /// The tap's socket.
    pub socket: PathBuf,
    /// The name of the disk there.
    pub export: String,
    /// The size of the disk in bytes.
    pub size_bytes: u64,
}

impl InsertionPlan {
    /// The plan for an insertion point without a tap; `None` if there is one already.
    pub fn new(
        point: &InsertionPoint,
        options_of_node: NodeOptions,
        socket: PathBuf,
        export: String,
    ) -> Option<InsertionPlan> {
        let Below::File { name, node, claim } = &point.below else {
            return None;
        };
        let format = &point.format;
        let mut options = Map::new();
        let mut set = |key: &str, value: Value| options.insert(key.to_owned(), value);
        set("driver", json!("raw"));
        set("node-name", json!(point.format_node));
        set("read-only", json!(format.read_only));
        set(
            "cache",
            json!({"direct": format.direct, "no-flush": format.no_flush}),
        );
        set(
            "discard",
            json!(if options_of_node.discard {
                "unmap"
            } else {
                "ignore"
            }),
        );
        for (key, is_on) in [
            ("auto-read-only", options_of_node.auto_read_only),
            ("force-share", options_of_node.force_share),
        ] {
            if is_on {
                set(key, json!(true));
            }
        }
        if !format.detect_zeroes.is_empty() {
            set("detect-zeroes", json!(format.detect_zeroes));
        }
        // A node that was added with its parent belongs to it and is removed with the last
        // one.
        let is_owned = name.starts_with('#') || options_of_node.is_inline;
        Some(InsertionPlan {
            format_node: point.format_node.clone(),
            file_node: name.clone(),
            options,
            tap_node: node_name(TAP_PREFIX, &point.format_node),
            hold_node: is_owned.then(|| node_name(HOLD_PREFIX, name)),
            lock_node: node_name(LOCK_PREFIX, name),
            claim: claim.clone(),
            socket,
            export,
            size_bytes: node.size_bytes,
        })
    }

    /// Arguments of `blockdev-add` for the tap's node.
    pub(super) fn tap_options(&self) -> Value {
        json!({
            "node-name": self.tap_node,
            "driver": "nbd",
            "server": {"type": "unix", "path": self.socket},
            "export": self.export,
            "reconnect-delay": RECONNECT_DELAY_S,
            "read-only": self.options.get("read-only"),
            "cache": self.options.get("cache"),
            "discard": self.options.get("discard"),
        })
    }

    /// Arguments of `blockdev-add` for the node that keeps the file's alive.
    pub(super) fn hold_options(&self) -> Option<Value> {
        let name = self.hold_node.as_ref()?;
        Some(json!({
            "node-name": name,
            "driver": "raw",
            "file": self.file_node,
            "read-only": true,
        }))
    }

    /// Arguments of `blockdev-add` for the node that holds the lock. `blkdebug` is the driver whose
    /// permissions on its child can be set.
    pub(super) fn lock_options(&self) -> Value {
        json!({
            "node-name": self.lock_node,
            "driver": "blkdebug",
            "image": self.file_node,
            "take-child-perms": self.claim.takes,
            "unshare-child-perms": self.claim.denies,
        })
    }

    /// Arguments of `blockdev-reopen` that make `below` the child of the raw node.
    pub(super) fn reopened_on(&self, below: &str) -> Value {
        let mut options = self.options.clone();
        options.insert("file".to_owned(), json!(below));
        json!({"options": [options]})
    }
}

/// A valid node name that contains the name of its owner.
fn node_name(prefix: &str, of: &str) -> String {
    let fits = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let kept: Vec<char> = of.chars().filter(fits).collect();
    // Generated names differ at their end.
    let from = kept
        .len()
        .saturating_sub(NODE_NAME_BYTES_MAX - prefix.len());
    format!("{prefix}{}", kept[from..].iter().collect::<String>())
}
