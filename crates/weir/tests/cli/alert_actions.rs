//! `weir alert watch` with ACT: two loads on one disk, in groups of cgroup v1 of their own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;
use weir_testing::{LoopDisk, wait_until};

use crate::live::watched_disk;
use crate::support::{Scratch, interrupt, run, skipped, weir};

/// A group of the blkio controller with a load; both end with the test.
pub struct Load {
    group: PathBuf,
    child: Child,
}

impl Load {
    /// Writes so many blocks at random per second, until the test ends. The rate is bounded, as the
    /// requests of VMs that share a disk are transferred one by one: a loss makes alerts unknown.
    pub fn start(test: &str, name: &str, disk: &LoopDisk, per_second: u32) -> Option<Load> {
        let name = format!("weir-{name}-{}-{test}", std::process::id());
        let group = PathBuf::from("/sys/fs/cgroup/blkio").join(name);
        if let Err(error) = fs::create_dir(&group) {
            skipped(test, format!("{}: {error}", group.display()));
            return None;
        }
        let script = "echo $$ > \"$0/cgroup.procs\" && exec setpriv --pdeathsig KILL fio \"$@\"";
        let child = Command::new("sh")
            .args(["-c", script])
            .arg(&group)
            .args([
                "--name=load",
                "--thread",
                "--direct=1",
                "--rw=randwrite",
                "--bs=4k",
            ])
            .args(["--ioengine=libaio", "--time_based", "--runtime=300"])
            .args([
                "--iodepth=32".to_owned(),
                format!("--rate_iops={per_second}"),
            ])
            .arg(format!("--filename={}", disk.path()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Some(Load {
            group,
            child: child.unwrap(),
        })
    }

    /// The declaration of its process as a VM.
    pub fn declared(&self, vm: &str) -> String {
        format!("{vm}=pid:{}", self.child.id())
    }

    /// The limits of writes per second, a line for each device.
    pub fn limit(&self) -> String {
        fs::read_to_string(self.group.join("blkio.throttle.write_iops_device")).unwrap()
    }

    pub fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.end();
        let _ = fs::remove_dir(&self.group);
    }
}

/// The VM with most of the requests is limited. Before, it has more than the witness accepts.
const NOISY: &str = "create alert noisy as
    select own.vm as vm, own.pdisk as pdisk, own.requests as requests,
           1.0 * own.requests / total.requests as share
    from (select vm, pdisk, count(*) as requests from IO [range 1 s slide 250 ms]
          where vm is not null group by vm, pdisk) own
         join (select pdisk, count(*) as requests from IO [range 1 s slide 250 ms]
               where vm is not null group by pdisk) total
         on own.pdisk = total.pdisk
    when share > 0.6 and requests > 400 for 500 ms until requests < 20 for 500 ms
    labels vm, pdisk
    act limit vm, pdisk as disk, 200 as iops for 1 min cooldown 1 min
        witness requests < 300 within 30 s;";

/// A run of `weir alert watch` and its lines.
struct Watch {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Watch {
    fn start(args: &[&str]) -> Watch {
        let args = [&["alert", "watch", "--json"], args].concat();
        let mut child = weir(&args).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Watch { child, lines }
    }

    /// The next step of an action with this name.
    fn step(&mut self, event: &str) -> Value {
        loop {
            let mut line = String::new();
            assert!(
                self.lines.read_line(&mut line).unwrap() > 0,
                "no step {event}"
            );
            let line: Value = serde_json::from_str(&line).unwrap();
            if line["action"]["event"] == event {
                return line["action"].clone();
            }
        }
    }

    fn end(mut self) -> Option<i32> {
        interrupt(&self.child);
        self.child.wait().unwrap().code()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two loads on a disk, and the options of a run over them.
struct Scene {
    // In this order they are dropped: the loads end before their disk.
    noisy: Load,
    quiet: Load,
    disk: LoopDisk,
    scratch: Scratch,
    file: String,
    leases: String,
}

impl Scene {
    fn new(test: &str) -> Option<Scene> {
        let disk = watched_disk(test)?;
        let noisy = Load::start(test, "noisy", &disk, 2_000)?;
        let quiet = Load::start(test, "quiet", &disk, 100)?;
        let scratch = Scratch::new();
        Some(Scene {
            file: scratch.write("alerts.cql", NOISY),
            leases: scratch.path().join("leases").display().to_string(),
            disk,
            noisy,
            quiet,
            scratch,
        })
    }

    fn watch(&self, more: &[&str]) -> Watch {
        let (noisy, quiet) = (self.noisy.declared("noisy"), self.quiet.declared("quiet"));
        let args = [
            &["-f", &self.file, "--device", self.disk.path()],
            &["--vm", &noisy, "--vm", &quiet, "--act-state", &self.leases][..],
        ];
        Watch::start(&[&args.concat(), more].concat())
    }
}

#[test]
fn an_alert_limits_the_noisy_vm_and_undoes_it_when_it_clears() {
    let test = "an_alert_limits_the_noisy_vm_and_undoes_it_when_it_clears";
    let Some(mut scene) = Scene::new(test) else {
        return;
    };
    let alerts = scene.scratch.path().join("alerts").display().to_string();
    let mut watch = scene.watch(&["--act", "noi*", "--state", &alerts]);
    let applied = watch.step("applied");
    assert_eq!(applied["vm"], "noisy", "{applied}");
    assert_eq!(applied["limit"]["wiops"], 200, "{applied}");
    let limit = scene.noisy.limit();
    assert!(limit.ends_with(" 200\n"), "{limit}");
    assert_eq!(scene.quiet.limit(), "");
    let improved = watch.step("improved");
    assert!(
        improved["effect"].as_str().unwrap().contains("held after"),
        "{improved}"
    );

    // The relations of this host, as other queries read them.
    let rows = |directory: &str, query: &str| {
        let from = format!("journal:{directory}");
        let args = [
            "query", "--from", &from, "--for", "1s", "--final", "--format", "csv", query,
        ];
        run(&args).fine()
    };
    wait_until("the alert is in the relation, firing", || {
        let states = rows(&alerts, "select alert, state, vm from alert_states");
        states.contains("noisy,firing,noisy")
    });
    let leases = rows(&scene.leases, "select vm, before, setting from leases");
    assert!(
        leases.contains("noisy,no limit,riops=200 wiops=200"),
        "{leases}"
    );

    scene.noisy.end();
    let ended = watch.step("ended");
    assert_eq!(
        (&ended["cause"], &ended["outcome"]),
        (&"cleared".into(), &"restored".into())
    );
    assert_eq!(scene.noisy.limit(), "");
    assert_eq!(watch.end(), Some(130));
}

#[test]
fn without_an_allow_list_an_action_is_proposed_only() {
    let test = "without_an_allow_list_an_action_is_proposed_only";
    let Some(scene) = Scene::new(test) else {
        return;
    };
    let mut watch = scene.watch(&[]);
    let proposed = watch.step("proposed");
    let command = proposed["command"].as_str().unwrap();
    assert!(
        command.contains("blkio.throttle.write_iops_device"),
        "{proposed}"
    );
    assert_eq!(scene.noisy.limit(), "");
    let log = run(&["act", "log", "--json", "--state", &scene.leases]).fine();
    assert!(log.contains("\"stage\":\"proposed\""), "{log}");
}

#[test]
fn an_action_is_undone_when_the_process_that_watches_is_killed() {
    let test = "an_action_is_undone_when_the_process_that_watches_is_killed";
    let Some(mut scene) = Scene::new(test) else {
        return;
    };
    let mut watch = scene.watch(&["--act", "noisy"]);
    watch.step("applied");
    assert_ne!(scene.noisy.limit(), "");
    watch.child.kill().unwrap();
    wait_until("the limit is undone", || scene.noisy.limit().is_empty());

    // Its cooldown lasts, although no process knows it any more.
    let mut watch = scene.watch(&["--act", "noisy"]);
    let refused = watch.step("refused");
    let cause = refused["cause"].as_str().unwrap();
    assert!(cause.starts_with("its cooldown lasts "), "{refused}");
    drop(watch);

    // The process that carries out actions is killed as well: the next command undoes it.
    scene.leases = scene.scratch.path().join("others").display().to_string();
    let mut watch = scene.watch(&["--act", "noisy"]);
    watch.step("applied");
    let holder = run(&["act", "log", "--json", "--state", &scene.leases]).fine();
    assert!(holder.contains("\"stage\":\"applied\""), "{holder}");
    let children = format!("/proc/{0}/task/{0}/children", watch.child.id());
    let children = fs::read_to_string(children).unwrap();
    let is_serve = |pid: &&str| {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.split('\0').any(|arg| arg == "serve")
    };
    let serve = children
        .split_whitespace()
        .find(is_serve)
        .expect("it carries out actions");
    let killed = Command::new("kill")
        .args(["-KILL", serve])
        .status()
        .unwrap();
    assert!(killed.success());
    assert_eq!(watch.child.wait().unwrap().code(), Some(1));
    assert_ne!(scene.noisy.limit(), "");
    let undone = run(&["act", "undo", "--all", "--json", "--state", &scene.leases]).fine();
    assert!(undone.contains("restored to no limit"), "{undone}");
    assert_eq!(scene.noisy.limit(), "");
}

#[test]
fn a_recording_shows_when_an_alert_would_have_acted() {
    let line = |i: u64| {
        let ts = 128_166_372_030_000_000 + 1_000_000 * i;
        let latency = if (200..400).contains(&i) {
            500_000
        } else {
            10_000
        };
        format!("{ts},vm1,0,Read,{},4096,{latency}\n", 4096 * i)
    };
    let scratch = Scratch::new();
    let trace: String = (0..600).map(line).collect();
    let trace = scratch.write("trace.csv", &trace);
    let alert = "create alert slow as
        select vm, avg(latency) as mean from IO [range 1 s slide 1 s] group by vm
        when mean > 20 ms for 5 s until mean < 10 ms for 3 s
        act limit vm, 20 as iops for 10 min;";
    let file = scratch.write("alerts.cql", alert);
    let test = |more: &[&str]| {
        let args = [&["act", "test", "-f", &file, "--from", &trace], more].concat();
        run(&args)
    };
    let text = test(&[]).fine();
    assert!(
        text.contains("slow{vm=\"vm1\"} would limit vm1: iops=50\n"),
        "{text}"
    );
    assert!(
        text.contains("would undo vm1: the alert has cleared"),
        "{text}"
    );
    let json: Value = serde_json::from_str(&test(&["--json"]).fine()).unwrap();
    let steps: Vec<&str> = json["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step["step"].as_str().unwrap())
        .collect();
    assert_eq!(steps, ["act", "end"]);
    let other = test(&["--allow", "vm2"]).fine();
    assert!(other.contains("would propose for vm1"), "{other}");
    let none = scratch.write(
        "none.cql",
        &alert.replace("act limit vm, 20 as iops for 10 min", ""),
    );
    let none = run(&["act", "test", "-f", &none, "--from", &trace]);
    assert!(
        none.code == 2 && none.err.contains("no alert has ACT"),
        "{}",
        none.err
    );
}
