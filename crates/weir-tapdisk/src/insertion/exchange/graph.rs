//! [`Graph`]: QEMU's block nodes and their relations.
//!
//! Source: `BlockDeviceInfo` and `XDbgBlockGraph` of qapi/block-core.json of QEMU.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use weir_tap::qmp::{QemuMonitor, QmpError};

/// A snapshot of the graph.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: HashMap<String, BlockNode>,
    edges: Vec<Edge>,
}

/// A node and its options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockNode {
    /// `raw`, `file`, `nbd`, ...
    pub driver: String,
    /// Writes are forbidden.
    pub read_only: bool,
    /// The host's page cache is bypassed.
    pub direct: bool,
    /// Flushes are ignored.
    pub no_flush: bool,
    /// `on`, `off` or `unmap`: how written zeroes are treated.
    pub detect_zeroes: String,
    /// The file or device, as named by QEMU; options that a name cannot express make it
    /// `json:{..}`.
    pub filename: String,
    /// Its size in bytes.
    pub size_bytes: u64,
}

#[derive(Clone, Debug)]
struct Edge {
    parent: Parent,
    child: String,
    /// The parent's name of the relation: `file`, `backing`, ...
    role: String,
    claim: NodePermissions,
}

/// The permissions of a parent on a node, which determine the locks that QEMU holds on a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePermissions {
    /// The permissions that it has: `consistent-read`, `write`, ...
    pub takes: Vec<String>,
    /// The permissions that it denies to others.
    pub denies: Vec<String>,
}

/// The permissions on a node (`BlockPermission`, as in `take-child-perms` of blkdebug).
const PERMISSIONS: [&str; 4] = ["consistent-read", "write", "write-unchanged", "resize"];

/// A user of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parent {
    /// Another node.
    Node(String),
    /// A device or an export.
    User(String),
    /// A block job.
    Job(String),
}

impl Graph {
    /// Queries QEMU.
    ///
    /// # Errors
    /// When it does not answer, or does not support the query: before QEMU 4.0.
    pub fn query(qemu: &mut dyn QemuMonitor) -> Result<Graph, QmpError> {
        let named = qemu.execute("query-named-block-nodes", json!({"flat": true}))?;
        let graph = qemu.execute("x-debug-query-block-graph", Value::Null)?;
        Ok(Graph::of(&named, &graph))
    }

    pub(super) fn of(named: &Value, graph: &Value) -> Graph {
        let entries = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let nodes = entries(named).into_iter().filter_map(|info| {
            let name = info["node-name"].as_str()?.to_owned();
            Some((name, node(&info)))
        });
        let by_id: HashMap<i64, Parent> = entries(&graph["nodes"])
            .iter()
            .filter_map(|entry| {
                let name = entry["name"].as_str().unwrap_or_default().to_owned();
                let parent = match entry["type"].as_str()? {
                    "block-driver" => Parent::Node(name),
                    "block-job" => Parent::Job(name),
                    _ => Parent::User(name),
                };
                Some((entry["id"].as_i64()?, parent))
            })
            .collect();
        let edge = |entry: &Value| {
            let end = |key: &str| by_id.get(&entry[key].as_i64()?).cloned();
            let Some(Parent::Node(child)) = end("child") else {
                return None;
            };
            Some(Edge {
                parent: end("parent")?,
                child,
                role: entry["name"].as_str().unwrap_or_default().to_owned(),
                claim: claim(entry),
            })
        };
        Graph {
            nodes: nodes.collect(),
            edges: entries(&graph["edges"]).iter().filter_map(edge).collect(),
        }
    }

    /// A node by its name.
    pub fn node(&self, name: &str) -> Option<&BlockNode> {
        self.nodes.get(name)
    }

    /// The child of a node with this role, such as its `file`.
    pub fn child(&self, name: &str, role: &str) -> Option<&str> {
        self.edge(name, role).map(|edge| edge.child.as_str())
    }

    /// The permissions of a node on its child with this role.
    pub fn claim(&self, name: &str, role: &str) -> Option<&NodePermissions> {
        self.edge(name, role).map(|edge| &edge.claim)
    }

    fn edge(&self, name: &str, role: &str) -> Option<&Edge> {
        let is_it = |edge: &&Edge| edge.role == role && edge.parent == Parent::Node(name.into());
        self.edges.iter().find(is_it)
    }

    /// The users of a node.
    pub fn parents(&self, name: &str) -> impl Iterator<Item = &Parent> {
        let edges = self.edges.iter().filter(move |edge| edge.child == name);
        edges.map(|edge| &edge.parent)
    }
}

fn claim(edge: &Value) -> NodePermissions {
    let named = |key: &str, name: &str| {
        let names = edge[key].as_array();
        names.is_some_and(|names| names.iter().any(|n| n == name))
    };
    let those = |is_it: &dyn Fn(&str) -> bool| {
        let names = PERMISSIONS.into_iter().filter(|name| is_it(name));
        names.map(String::from).collect()
    };
    NodePermissions {
        takes: those(&|name| named("perm", name)),
        denies: those(&|name| !named("shared-perm", name)),
    }
}

fn node(info: &Value) -> BlockNode {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let flag = |value: &Value| value.as_bool().unwrap_or(false);
    BlockNode {
        driver: text(&info["drv"]),
        read_only: flag(&info["ro"]),
        direct: flag(&info["cache"]["direct"]),
        no_flush: flag(&info["cache"]["no-flush"]),
        detect_zeroes: text(&info["detect_zeroes"]),
        filename: text(&info["image"]["filename"]),
        size_bytes: info["image"]["virtual-size"].as_u64().unwrap_or(0),
    }
}
