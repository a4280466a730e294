//! Insertion and removal, against a QEMU that is made up: a graph of nodes that obeys QEMU's rules, and
//! that can be told to refuse.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use weir_tap::inventory::NodeOptions;
use weir_tap::qmp::{Monitor, QmpError};

use super::*;

const SIZE_BYTES: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq)]
struct Block {
    driver: String,
    file: Option<String>,
    /// It was added by itself, and stays when nothing stands on it.
    is_owned: bool,
    options: Value,
}

#[derive(Clone, Debug, Default)]
struct Qemu {
    blocks: BTreeMap<String, Block>,
    /// The node that the disk stands on.
    root: String,
    /// Refuses this command from now on, counted from 0; it may be done all the same.
    refuses: Option<(usize, bool)>,
    asked: usize,
    job_on: Option<String>,
}

impl Qemu {
    /// A disk of two nodes; the file's with a name that QEMU made up, as of a `-drive`, where `made_up`.
    fn new(made_up: bool) -> Qemu {
        let (format, file) = ("n0", if made_up { "#block042" } else { "f0" });
        let mut qemu = Qemu {
            root: format.into(),
            ..Qemu::default()
        };
        let cache = json!({"direct": true, "no-flush": false});
        qemu.add(file, "file", None, !made_up, json!({"cache": cache}));
        let options = json!({"read-only": false, "cache": cache, "detect-zeroes": "unmap", "discard": "unmap"});
        qemu.add(format, "raw", Some(file), true, options);
        qemu
    }

    fn add(
        &mut self,
        name: &str,
        driver: &str,
        file: Option<&str>,
        is_owned: bool,
        options: Value,
    ) {
        let block = Block {
            driver: driver.into(),
            file: file.map(String::from),
            is_owned,
            options,
        };
        assert!(
            self.blocks.insert(name.into(), block).is_none(),
            "{name} twice"
        );
    }

    /// Takes away what nobody stands on and nobody added.
    fn sweep(&mut self) {
        loop {
            let stood_on: Vec<String> = self
                .blocks
                .values()
                .filter_map(|b| b.file.clone())
                .collect();
            let before = self.blocks.len();
            let root = self.root.clone();
            self.blocks
                .retain(|name, b| b.is_owned || *name == root || stood_on.contains(name));
            if self.blocks.len() == before {
                return;
            }
        }
    }

    fn named(&self) -> Value {
        let of = |(name, block): (&String, &Block)| {
            let options = &block.options;
            json!({
                "node-name": name,
                "drv": block.driver,
                "ro": options["read-only"].as_bool().unwrap_or(false),
                "cache": options["cache"],
                "detect_zeroes": options["detect-zeroes"].as_str().unwrap_or("off"),
                "image": {"filename": "/images/a.raw", "virtual-size": SIZE_BYTES},
            })
        };
        self.blocks.iter().map(of).collect()
    }

    fn graph(&self) -> Value {
        let names: Vec<&String> = self.blocks.keys().collect();
        let id = |name: &str| names.iter().position(|n| *n == name).unwrap() + 1;
        let mut nodes: Vec<Value> = names
            .iter()
            .map(|name| json!({"id": id(name), "type": "block-driver", "name": name}))
            .collect();
        nodes.push(json!({"id": 100, "type": "block-backend", "name": "disk0"}));
        let edge = |parent: usize, child: &str, role: &str| {
            json!({
                "parent": parent, "child": id(child), "name": role,
                "perm": ["write", "consistent-read"],
                "shared-perm": ["resize", "write-unchanged", "consistent-read"],
            })
        };
        let files = self.blocks.iter().filter_map(|(name, block)| {
            let file = block.file.as_ref()?;
            Some(edge(id(name), file, "file"))
        });
        let mut edges: Vec<Value> = files.collect();
        edges.push(edge(100, &self.root, "root"));
        if let Some(on) = &self.job_on {
            nodes.push(json!({"id": 101, "type": "block-job", "name": "mirror0"}));
            edges.push(edge(101, on, "main node"));
        }
        json!({"nodes": nodes, "edges": edges})
    }

    /// What a lock asks for is what the raw node had, and only when that has let go.
    fn claim(&self, file: Option<&str>, arguments: &Value) -> Result<(), String> {
        assert_eq!(
            arguments["take-child-perms"],
            json!(["consistent-read", "write"])
        );
        assert_eq!(arguments["unshare-child-perms"], json!(["write"]));
        let is_used = |b: &Block| b.driver == "raw" && b.file.as_deref() == file;
        let writers = self
            .blocks
            .values()
            .filter(|b| is_used(b) && b.options["read-only"] != true);
        match writers.count() {
            0 => Ok(()),
            _ => Err("Permission conflict".into()),
        }
    }

    fn run(&mut self, command: &str, arguments: &Value) -> Result<Value, String> {
        let name = |value: &Value| value.as_str().map(String::from);
        match command {
            "query-named-block-nodes" => return Ok(self.named()),
            "x-debug-query-block-graph" => return Ok(self.graph()),
            "blockdev-add" => {
                let node = name(&arguments["node-name"]).ok_or("no name")?;
                if self.blocks.contains_key(&node) {
                    return Err(format!("Duplicate nodes with node-name='{node}'"));
                }
                let driver = name(&arguments["driver"]).ok_or("no driver")?;
                let file = name(&arguments["file"]).or(name(&arguments["image"]));
                if driver == "blkdebug" {
                    self.claim(file.as_deref(), arguments)?;
                }
                self.add(&node, &driver, file.as_deref(), true, arguments.clone());
            }
            "blockdev-del" => {
                let node = name(&arguments["node-name"]).ok_or("no name")?;
                if self.blocks.values().any(|b| b.file.as_ref() == Some(&node)) {
                    return Err(format!("Node {node} is in use"));
                }
                self.blocks.remove(&node).ok_or("no such node")?;
            }
            "blockdev-reopen" => {
                let options = arguments["options"][0].clone();
                let node = name(&options["node-name"]).ok_or("no name")?;
                let file = name(&options["file"]).ok_or("no file")?;
                let claimed = |b: &Block| b.driver == "blkdebug" && b.file.as_ref() == Some(&file);
                if self.blocks.values().any(claimed) {
                    return Err(format!("Permission conflict on node '{file}'"));
                }
                if !self.blocks.contains_key(&file) {
                    return Err(format!("Cannot find device='' nor node-name='{file}'"));
                }
                let block = self.blocks.get_mut(&node).ok_or("no such node")?;
                block.file = Some(file);
                block.options = options;
            }
            other => return Err(format!("The command {other} has not been found")),
        }
        self.sweep();
        Ok(json!({}))
    }
}

impl Monitor for Qemu {
    fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        let number = self.asked;
        self.asked += 1;
        let refuses = self.refuses.filter(|(at, _)| number >= *at);
        let refused = |reason: String| QmpError::Refused {
            at: "test".into(),
            command: command.into(),
            reason,
        };
        if refuses.is_none_or(|(at, done)| done && number == at) {
            let answer = self.run(command, &arguments).map_err(refused)?;
            if refuses.is_none() {
                return Ok(answer);
            }
        }
        Err(refused("injected".into()))
    }
}

fn seat(qemu: &mut Qemu) -> Result<Seat, ExchangeError> {
    let root = qemu.root.clone();
    Seat::find(&Graph::ask(qemu)?, &root)
}

fn plan(qemu: &mut Qemu) -> Plan {
    let told = NodeOptions {
        discard: true,
        ..NodeOptions::default()
    };
    let seat = seat(qemu).unwrap();
    Plan::new(&seat, told, "/run/t/nbd".into(), "vda".into()).unwrap()
}

#[test]
fn a_tap_comes_between_and_goes_again_without_a_trace() {
    for made_up in [false, true] {
        let mut qemu = Qemu::new(made_up);
        let before = qemu.blocks.clone();
        let plan = plan(&mut qemu);
        insert(&mut qemu, &plan, || true).unwrap();
        let format = &qemu.blocks[&plan.format_node];
        assert_eq!(format.file.as_deref(), Some(&*plan.tap_node));
        assert_eq!(
            qemu.blocks[&plan.tap_node].options["server"]["path"],
            "/run/t/nbd"
        );
        assert!(qemu.blocks.contains_key(&plan.file_node), "it is kept");
        let lock = &qemu.blocks[&plan.lock_node];
        assert_eq!(lock.file.as_ref(), Some(&plan.file_node), "and locked");
        let tapped = seat(&mut qemu).unwrap();
        assert!(matches!(tapped.below, Below::Tap { .. }), "{tapped:?}");
        assert_eq!(
            Plan::new(&tapped, NodeOptions::default(), "/x".into(), "x".into()),
            None
        );
        assert!(remove(&mut qemu, &plan).unwrap());
        assert_as_before(&qemu, &before);
        assert!(
            !remove(&mut qemu, &plan).unwrap(),
            "nothing is left to be done"
        );
    }
}

/// The nodes are those of before, and no option was lost.
fn assert_as_before(qemu: &Qemu, before: &BTreeMap<String, Block>) {
    let names = |blocks: &BTreeMap<String, Block>| blocks.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&qemu.blocks), names(before));
    for (name, block) in before {
        let now = &qemu.blocks[name];
        assert_eq!((&now.driver, &now.file), (&block.driver, &block.file));
        for (key, value) in block.options.as_object().unwrap() {
            assert_eq!(now.options[key], *value, "{name}: {key}");
        }
    }
}

#[test]
fn whichever_step_fails_the_disk_is_as_it_was() {
    for made_up in [false, true] {
        let commands = {
            let mut qemu = Qemu::new(made_up);
            let plan = plan(&mut qemu);
            let before = qemu.asked;
            insert(&mut qemu, &plan, || true).unwrap();
            qemu.asked - before
        };
        assert!(commands >= 7, "{commands}");
        // Refused, or done with the answer lost.
        for (at, done) in (0..commands).flat_map(|at| [(at, false), (at, true)]) {
            let mut qemu = Qemu::new(made_up);
            let before = qemu.blocks.clone();
            let plan = plan(&mut qemu);
            qemu.refuses = Some((qemu.asked + at, done));
            insert(&mut qemu, &plan, || true).unwrap_err();
            qemu.refuses = None;
            remove(&mut qemu, &plan).unwrap();
            assert_as_before(&qemu, &before);
        }
    }
}

#[test]
fn a_qemu_that_cannot_hold_the_lock_is_told_of() {
    let mut qemu = Qemu::new(false);
    let before = qemu.blocks.clone();
    let plan = plan(&mut qemu);
    qemu.add(&plan.lock_node, "blkdebug", None, true, json!({}));
    let remarks = insert(&mut qemu, &plan, || true).unwrap();
    assert!(remarks[0].contains("nobody else writes it"), "{remarks:?}");
    remove(&mut qemu, &plan).unwrap();
    assert_as_before(&qemu, &before);
}

#[test]
fn a_removal_that_fails_is_done_by_the_next() {
    let mut qemu = Qemu::new(true);
    let before = qemu.blocks.clone();
    let plan = plan(&mut qemu);
    insert(&mut qemu, &plan, || true).unwrap();
    let inserted = qemu.clone();
    for (at, done) in (0..6).flat_map(|at| [(at, false), (at, true)]) {
        let mut qemu = inserted.clone();
        qemu.refuses = Some((qemu.asked + at, done));
        remove(&mut qemu, &plan).unwrap_err();
        qemu.refuses = None;
        remove(&mut qemu, &plan).unwrap();
        assert_as_before(&qemu, &before);
    }
}

#[test]
fn who_does_not_want_it_any_more_is_heard_before_each_step() {
    for steps in 0..Step::ALL.len() {
        let mut qemu = Qemu::new(false);
        let before = qemu.blocks.clone();
        let plan = plan(&mut qemu);
        let mut left = steps;
        let wanted = || {
            left = left.wrapping_sub(1);
            left < usize::MAX / 2
        };
        let error = insert(&mut qemu, &plan, wanted).unwrap_err();
        assert!(matches!(error, ExchangeError::Interrupted), "{error}");
        remove(&mut qemu, &plan).unwrap();
        assert_as_before(&qemu, &before);
    }
}

#[test]
fn disks_that_no_tap_fits_under_are_refused_with_a_remedy() {
    let refused = |change: &dyn Fn(&mut Qemu)| {
        let mut qemu = Qemu::new(false);
        change(&mut qemu);
        match seat(&mut qemu) {
            Err(error @ ExchangeError::Unsuited { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let driver = |name: &'static str, driver: &'static str| {
        move |qemu: &mut Qemu| qemu.blocks.get_mut(name).unwrap().driver = driver.into()
    };
    let qcow2 = refused(&driver("n0", "qcow2"));
    assert!(
        qcow2.contains("clusters") && qcow2.contains("qemu:VM"),
        "{qcow2}"
    );
    let network = refused(&driver("f0", "rbd"));
    assert!(network.contains("`rbd`"), "{network}");
    let alone = refused(&|qemu| qemu.root = "f0".into());
    assert!(alone.contains("-blockdev driver=raw"), "{alone}");
    let unnamed = refused(&|qemu| {
        let block = qemu.blocks.remove("n0").unwrap();
        qemu.blocks.insert("#block7".into(), block);
        qemu.root = "#block7".into();
    });
    assert!(unnamed.contains("node-name=NAME"), "{unnamed}");
    let mirrored = refused(&driver("n0", "mirror_top"));
    assert!(
        mirrored.contains("wait until the job has ended"),
        "{mirrored}"
    );
    for node in ["n0", "f0"] {
        let job = refused(&|qemu| qemu.job_on = Some(node.into()));
        assert!(job.contains("`mirror0`"), "{job}");
    }
}

#[test]
fn filters_over_the_raw_node_stay_where_they_are() {
    let mut qemu = Qemu::new(false);
    qemu.add("limit", "throttle", Some("n0"), true, json!({}));
    qemu.root = "limit".into();
    let found = seat(&mut qemu).unwrap();
    assert_eq!(found.format_node, "n0");
}

#[test]
fn a_part_of_a_file_is_no_disk_for_a_tap() {
    let mut graph = json!([
        {"node-name": "f0", "drv": "file", "image": {"filename": "/a"}},
        {"node-name": "n0", "drv": "raw", "image": {"filename": "/a"}},
    ]);
    let edges = json!({
        "nodes": [
            {"id": 1, "type": "block-driver", "name": "n0"},
            {"id": 2, "type": "block-driver", "name": "f0"},
        ],
        "edges": [{"parent": 1, "child": 2, "name": "file"}],
    });
    let find = |named: &Value| Seat::find(&Graph::of(named, &edges), "n0");
    assert!(find(&graph).is_ok());
    graph[1]["image"]["filename"] =
        json!(r#"json:{"driver":"raw","offset":1048576,"file":{"driver":"file","filename":"/a"}}"#);
    let error = find(&graph).unwrap_err().to_string();
    assert!(error.contains("part of a larger file"), "{error}");
    // What `auto-read-only` and the like make of a name is no harm.
    graph[1]["image"]["filename"] =
        json!(r#"json:{"driver":"raw","file":{"driver":"file","filename":"/a"}}"#);
    assert!(find(&graph).is_ok());
}

#[test]
fn a_tap_is_known_by_its_socket() {
    let named = json!([
        {"node-name": "weir-tap-n0", "drv": "nbd",
         "image": {"filename": "nbd+unix:///vda?socket=/run/a%20b/nbd"}},
        {"node-name": "n0", "drv": "raw", "image": {"filename": "nbd+unix:///vda?socket=/run/nbd"}},
    ]);
    let edges = json!({
        "nodes": [
            {"id": 1, "type": "block-driver", "name": "n0"},
            {"id": 2, "type": "block-driver", "name": "weir-tap-n0"},
        ],
        "edges": [{"parent": 1, "child": 2, "name": "file"}],
    });
    let seat = Seat::find(&Graph::of(&named, &edges), "n0").unwrap();
    let expected = Below::Tap {
        name: "weir-tap-n0".into(),
        socket: Some("/run/a b/nbd".into()),
    };
    assert_eq!(seat.below, expected);
}

#[test]
fn names_of_nodes_fit_and_say_whose_they_are() {
    let mut qemu = Qemu::new(false);
    let block = qemu.blocks.remove("n0").unwrap();
    let long = "a-very-long-name-of-a-node-31-b";
    qemu.blocks.insert(long.into(), block);
    qemu.root = long.into();
    let plan = plan(&mut qemu);
    assert!(
        plan.tap_node.len() <= 31 && plan.tap_node.starts_with(TAP_PREFIX),
        "{}",
        plan.tap_node
    );
    assert!(plan.tap_node.ends_with("node-31-b"));
    let written = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&written).unwrap(), plan);
}
