//! Alerts of a monitor that act on the hosts of its agents: `weir monitor`, `weir agent` and `weir
//! act serve`, with two loads on one disk, in groups of cgroup v1 of their own.

use serde_json::Value;

use super::processes::{Monitor, Process, until};
use crate::alert_actions::Load;
use crate::live::watched_disk;
use crate::support::{Scratch, run};
use weir_testing::LoopDisk;

const CONFIG: &str = "[alerts]\nfile = \"HOME/alerts.cql\"\n";

/// The VM with most of the requests of a disk is limited. Before, it has more than the witness
/// accepts.
const NOISY: &str = "create alert noisy as
    select own.host as host, own.vm as vm, own.pdisk as pdisk, own.requests as requests,
           1.0 * own.requests / total.requests as share
    from (select host, vm, pdisk, count(*) as requests from IO [range 1 s slide 250 ms]
          where vm is not null group by host, vm, pdisk) own
         join (select host, pdisk, count(*) as requests from IO [range 1 s slide 250 ms]
               where vm is not null group by host, pdisk) total
         on own.host = total.host and own.pdisk = total.pdisk
    when share > 0.6 and requests > 400 for 500 ms until requests < 20 for 500 ms
    labels host, vm, pdisk
    act limit vm, pdisk as disk, 200 as iops for 5 min witness requests < 300 within 60 s;";

/// A fleet of one host, with two loads on a disk.
struct Scene {
    // In this order they are dropped: the loads end before their disk.
    noisy: Load,
    quiet: Load,
    disk: LoopDisk,
    monitor: Monitor,
    scratch: Scratch,
}

impl Scene {
    fn new(test: &str) -> Option<Scene> {
        let disk = watched_disk(test)?;
        let noisy = Load::start(test, "noisy", &disk, 2_000)?;
        let quiet = Load::start(test, "quiet", &disk, 100)?;
        Some(Scene {
            noisy,
            quiet,
            disk,
            monitor: Monitor::with_files(CONFIG, &[("alerts.cql", NOISY.to_owned())]),
            scratch: Scratch::new(),
        })
    }

    fn path(&self, name: &str) -> String {
        self.scratch.path().join(name).display().to_string()
    }

    fn agent(&self) -> Process {
        let (noisy, quiet) = (self.noisy.declared("noisy"), self.quiet.declared("quiet"));
        let (state, socket) = (self.path("agent"), self.path("act.sock"));
        let args = [
            &["agent", "--monitor", &self.monitor.address, "--host", "a"],
            &["--device", self.disk.path(), "--vm", &noisy][..],
            &["--vm", &quiet, "--state", &state, "--act-socket", &socket],
        ];
        Process::start(&args.concat())
    }

    fn act_serve(&self, more: &[&str]) -> Process {
        let (noisy, quiet) = (self.noisy.declared("noisy"), self.quiet.declared("quiet"));
        let (leases, socket) = (self.path("leases"), self.path("act.sock"));
        let args = [
            &["act", "serve", "--socket", &socket, "--state", &leases][..],
            &["--declare", &noisy, "--declare", &quiet],
            more,
        ];
        Process::start(&args.concat())
    }

    /// The steps in the log of the leases with this stage.
    fn steps(&self, stage: &str) -> Vec<Value> {
        let log = run(&["act", "log", "--json", "--state", &self.path("leases")]).fine();
        let steps = log
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        steps.filter(|step| step["stage"] == stage).collect()
    }

    fn is_limited(&self) -> bool {
        self.noisy.limit().ends_with(" 200\n")
    }

    /// The causes of the ends so far.
    fn causes(&self) -> Vec<String> {
        let ends = self.steps("ended").into_iter();
        ends.map(|step| step["cause"].as_str().unwrap().to_owned())
            .collect()
    }
}

#[test]
fn an_alert_of_the_monitor_acts_on_its_host_and_ends_with_monitor_agent_or_alert() {
    let test = "an_alert_of_the_monitor_acts_on_its_host_and_ends_with_monitor_agent_or_alert";
    let Some(mut scene) = Scene::new(test) else {
        return;
    };
    // The agent comes first: it connects when it needs to.
    let agent = scene.agent();
    let mut serve = scene.act_serve(&["--act", "noi*"]);
    until("the noisy load is limited", || scene.is_limited());
    assert_eq!(scene.quiet.limit(), "");
    until("the witness holds", || !scene.steps("improved").is_empty());
    let applied = scene.steps("applied");
    let alert = applied[0]["alert"].as_str().unwrap();
    assert!(
        alert.starts_with("noisy{host=\"a\", vm=\"noisy\""),
        "{alert}"
    );

    // A killed monitor that is back soon changes nothing; nor does a reload.
    scene.monitor.end("-KILL");
    scene.monitor.again();
    until("the agent is connected again", || {
        agent.printed().matches("connected to the monitor").count() > 2
    });
    scene.monitor.signal("-HUP");
    until("it is reloaded", || {
        scene.monitor.printed().contains("reloaded: ")
    });
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(scene.causes(), [""; 0]);

    // One that stays away for 30 seconds does, and the alert still fires when it is back.
    scene.monitor.end("-KILL");
    until("the limit has ended", || !scene.is_limited());
    assert_eq!(scene.causes(), ["monitor_lost"]);
    scene.monitor.again();
    until("it is limited again", || scene.is_limited());

    // The process that carries out actions ends, and another one begins.
    serve.signal("-TERM");
    assert_eq!(serve.end().0, Some(0));
    assert!(!scene.is_limited());
    let _serve = scene.act_serve(&["--act", "noisy"]);
    until("it is limited by the next process", || scene.is_limited());

    // So does the agent.
    agent.signal("-KILL");
    until("the limit ends with the agent", || !scene.is_limited());
    let agent = scene.agent();
    until("the next agent requests it", || scene.is_limited());
    let causes = ["monitor_lost", "stopped", "stopped"];
    assert_eq!(scene.causes(), causes);

    scene.noisy.end();
    until("the alert has cleared", || scene.causes().len() > 3);
    assert_eq!(scene.causes()[3], "cleared");
    assert_eq!(scene.noisy.limit(), "");
    drop(agent);
}

#[test]
fn without_an_allow_list_an_action_of_the_monitor_is_proposed_and_without_a_process_noted() {
    let test =
        "without_an_allow_list_an_action_of_the_monitor_is_proposed_and_without_a_process_noted";
    let Some(scene) = Scene::new(test) else {
        return;
    };
    let agent = scene.agent();
    until("the agent reports that none carries it out", || {
        agent.printed().contains("actions are not carried out")
    });
    let serve = scene.act_serve(&[]);
    until("it is proposed", || !scene.steps("proposed").is_empty());
    assert_eq!(scene.noisy.limit(), "");
    until("the agent reports it", || {
        agent.printed().contains("action proposed")
    });
    // Without the alert nothing is wanted any more.
    let other = NOISY
        .replace("alert noisy", "alert other")
        .replace("0.6", "6");
    scene.monitor.home.write("alerts.cql", &other);
    scene.monitor.signal("-HUP");
    until("it is reloaded", || {
        scene.monitor.printed().contains("reloaded: ")
    });
    drop(serve);
}
