//! [`Plan`]: how a tap is put under a disk, and how it is taken out again.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use weir_tap::inventory::NodeOptions;

use super::graph::Claim;
use super::seat::{Below, Seat, TAP_PREFIX};

/// What the names of nodes begin with that only keep others alive.
const HOLD_PREFIX: &str = "weir-hold-";

/// What the names of nodes begin with that hold the lock of an image.
const LOCK_PREFIX: &str = "weir-lock-";

/// Bytes of a node's name at most (`sizeof(bs->node_name)` of QEMU, with a zero).
const NODE_NAME_BYTES_MAX: usize = 31;

/// How long a VM's requests wait for a tap that was killed, seconds: then they fail.
pub const RECONNECT_DELAY_S: u32 = 3600;

/// What is exchanged, and for what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The raw node.
    pub format_node: String,
    /// What it stands on without a tap.
    pub file_node: String,
    /// All options of the raw node but `file`.
    pub options: Map<String, Value>,
    /// The node of the tap.
    pub tap_node: String,
    /// The node that keeps `file_node` alive, if nothing else would.
    pub hold_node: Option<String>,
    /// The node that does with the file what the raw node did: without one QEMU would give up the lock of
    /// the image.
    pub lock_node: String,
    /// What that was.
    pub claim: Claim,
    /// Where the tap listens.
    pub socket: PathBuf,
    /// The name of the disk there.
    pub export: String,
    /// The size of the disk, bytes.
    pub size_bytes: u64,
}

impl Plan {
    /// The plan for a seat without a tap; `None` if there is one already.
    pub fn new(seat: &Seat, told: NodeOptions, socket: PathBuf, export: String) -> Option<Plan> {
        let Below::File { name, node, claim } = &seat.below else {
            return None;
        };
        let format = &seat.format;
        let mut options = Map::new();
        let mut set = |key: &str, value: Value| options.insert(key.to_owned(), value);
        set("driver", json!("raw"));
        set("node-name", json!(seat.format_node));
        set("read-only", json!(format.read_only));
        set(
            "cache",
            json!({"direct": format.direct, "no-flush": format.no_flush}),
        );
        set(
            "discard",
            json!(if told.discard { "unmap" } else { "ignore" }),
        );
        for (key, is_on) in [
            ("auto-read-only", told.auto_read_only),
            ("force-share", told.force_share),
        ] {
            if is_on {
                set(key, json!(true));
            }
        }
        if !format.detect_zeroes.is_empty() {
            set("detect-zeroes", json!(format.detect_zeroes));
        }
        // A node that was not added by itself belongs to its parent, and would go with the last one.
        let is_owned = name.starts_with('#') || told.is_inline;
        Some(Plan {
            format_node: seat.format_node.clone(),
            file_node: name.clone(),
            options,
            tap_node: node_name(TAP_PREFIX, &seat.format_node),
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

    /// Arguments of `blockdev-add` for the node that holds the lock. `blkdebug` is the driver that can be told
    /// what to do with what it stands on.
    pub(super) fn lock_options(&self) -> Value {
        json!({
            "node-name": self.lock_node,
            "driver": "blkdebug",
            "image": self.file_node,
            "take-child-perms": self.claim.takes,
            "unshare-child-perms": self.claim.denies,
        })
    }

    /// Arguments of `blockdev-reopen` that put the raw node on `below`.
    pub(super) fn reopened_on(&self, below: &str) -> Value {
        let mut options = self.options.clone();
        options.insert("file".to_owned(), json!(below));
        json!({"options": [options]})
    }
}

/// A name that QEMU takes and that tells whose it is.
fn node_name(prefix: &str, of: &str) -> String {
    let fits = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let kept: Vec<char> = of.chars().filter(fits).collect();
    // Names that are made up count at their end.
    let from = kept
        .len()
        .saturating_sub(NODE_NAME_BYTES_MAX - prefix.len());
    format!("{prefix}{}", kept[from..].iter().collect::<String>())
}
