//! [`Graph`]: QEMU's block nodes, and what stands on what.
//!
//! Source: `BlockDeviceInfo` and `XDbgBlockGraph` of qapi/block-core.json of QEMU.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use weir_tap::qmp::{Monitor, QmpError};

/// The graph at one time.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: HashMap<String, Node>,
    edges: Vec<Edge>,
}

/// A node and how it is open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// `raw`, `file`, `nbd`, ...
    pub driver: String,
    /// Writing is forbidden.
    pub read_only: bool,
    /// The host's page cache is passed by.
    pub direct: bool,
    /// Flushes are ignored.
    pub no_flush: bool,
    /// `on`, `off` or `unmap`: what becomes of zeroes that are written.
    pub detect_zeroes: String,
    /// The file or device, as QEMU names it; options that a name cannot hold make it `json:{..}`.
    pub filename: String,
    /// Its size, bytes.
    pub size_bytes: u64,
}

#[derive(Clone, Debug)]
struct Edge {
    parent: Parent,
    child: String,
    /// What the parent calls it: `file`, `backing`, ...
    role: String,
    claim: Claim,
}

/// What a parent does with a node, and so which locks QEMU holds on a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// What it does itself: `consistent-read`, `write`, ...
    pub takes: Vec<String>,
    /// What nobody else may do meanwhile.
    pub denies: Vec<String>,
}

/// What can be done with a node (`BlockPermission`, as `take-child-perms` of blkdebug has it).
const PERMISSIONS: [&str; 4] = ["consistent-read", "write", "write-unchanged", "resize"];

/// What stands on a node.
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
    /// Asks QEMU.
    ///
    /// # Errors
    /// When it does not answer, or knows no graph: before QEMU 4.0.
    pub fn ask(qemu: &mut dyn Monitor) -> Result<Graph, QmpError> {
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
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name)
    }

    /// What a node calls `role`, as the `file` that it stands on.
    pub fn child(&self, name: &str, role: &str) -> Option<&str> {
        self.edge(name, role).map(|edge| edge.child.as_str())
    }

    /// What a node does with what it calls `role`.
    pub fn claim(&self, name: &str, role: &str) -> Option<&Claim> {
        self.edge(name, role).map(|edge| &edge.claim)
    }

    fn edge(&self, name: &str, role: &str) -> Option<&Edge> {
        let is_it = |edge: &&Edge| edge.role == role && edge.parent == Parent::Node(name.into());
        self.edges.iter().find(is_it)
    }

    /// What stands on a node.
    pub fn parents(&self, name: &str) -> impl Iterator<Item = &Parent> {
        let edges = self.edges.iter().filter(move |edge| edge.child == name);
        edges.map(|edge| &edge.parent)
    }
}

fn claim(edge: &Value) -> Claim {
    let named = |key: &str, name: &str| {
        let names = edge[key].as_array();
        names.is_some_and(|names| names.iter().any(|n| n == name))
    };
    let those = |is_it: &dyn Fn(&str) -> bool| {
        let names = PERMISSIONS.into_iter().filter(|name| is_it(name));
        names.map(String::from).collect()
    };
    Claim {
        takes: those(&|name| named("perm", name)),
        denies: those(&|name| !named("shared-perm", name)),
    }
}

fn node(info: &Value) -> Node {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let flag = |value: &Value| value.as_bool().unwrap_or(false);
    Node {
        driver: text(&info["drv"]),
        read_only: flag(&info["ro"]),
        direct: flag(&info["cache"]["direct"]),
        no_flush: flag(&info["cache"]["no-flush"]),
        detect_zeroes: text(&info["detect_zeroes"]),
        filename: text(&info["image"]["filename"]),
        size_bytes: info["image"]["virtual-size"].as_u64().unwrap_or(0),
    }
}
