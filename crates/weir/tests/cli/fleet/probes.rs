//! Streams of probes on a fleet: those that agents define, hosts that lack them, and what the owner
//! of a VM may read of them.

use std::process::{Child, Command};

use super::processes::{Process, until};
use super::views::{by, content, monitor, place};
use crate::live::watchable;
use crate::support::requests;

/// Calls of umask, which few processes make.
const MASKS: &str = "create stream masks as probe 'tp:syscalls:sys_enter_umask' \
    (mask, pid vm as vm) limit 10000;\n\
    create stream hidden as probe 'tp:syscalls:sys_enter_umask' (mask);";

/// A shell that calls umask some hundred times a second, until it is dropped.
struct Caller(Child);

impl Caller {
    fn start(mask: &str) -> Caller {
        let script = format!("while :; do umask {mask}; sleep 0.005; done");
        let child = Command::new("sh").args(["-c", &script]).spawn();
        Caller(child.expect("sh"))
    }

    /// The declaration of a VM that is this process.
    fn vm(&self, name: &str) -> String {
        format!("{name}=pid:{}", self.0.id())
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        // It runs until it is killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_fleet_reads_probes_of_its_agents_and_a_vm_its_own_rows() {
    if !watchable("probes of a fleet") {
        return;
    }
    let monitor = monitor();
    let callers = [Caller::start("0022"), Caller::start("0077")];
    let define = monitor.home.write("probes.cql", MASKS);
    let trace = monitor.home.write("trace.csv", &requests(10));
    let token = monitor.home.path().join("agents");
    let token = ["--token-file", token.to_str().unwrap()];
    // A shell also reads its mask, by a call with mask 0. Host a replays a recording, so it has no
    // probes.
    let _a = monitor.agents_with(std::slice::from_ref(&trace), &token);
    let state = monitor.home.path().join("of_b");
    let b = [
        "agent",
        "--host",
        "b",
        "--state",
        state.to_str().unwrap(),
        "--monitor",
        &monitor.address,
        "--define",
        &define,
    ];
    let vms = [callers[0].vm("vm1"), callers[1].vm("vm2")];
    let vms = ["--vm", &vms[0], "--vm", &vms[1]];
    let _b = Process::start(&[&b[..], &vms, &token].concat());
    let by_vm = "select host, vm, mask, count(*) > 0 from masks \
        where mask > 0 group by host, vm, mask";
    until("host b offers its streams", || {
        let show = by(&monitor, "placer", &["query", "show streams"]);
        show.out.contains("masks") && show.out.contains("run_queue")
    });

    place(&monitor, "placer", "all", by_vm);
    place(&monitor, "tenant", "own", by_vm);
    place(
        &monitor,
        "tenant",
        "attack",
        "create view rows as select vm, mask from masks; select vm, count(*) > 0 from ( \
           select vm from rows [range 1 hour] where mask = 63 or vm <> 'vm1' or 1 = 1 \
           union all select a.vm from masks [range 1 s] as a join masks [range 1 s] as b \
             on a.mask <> b.mask) as u group by vm",
    );
    let has = |who: &str, name: &str, row: &str| {
        content(&monitor, who, name)
            .iter()
            .any(|found| found == row)
    };
    until("the calls of both VMs have arrived", || {
        has("placer", "all", "b,vm1,18,true") && has("placer", "all", "b,vm2,63,true")
    });
    until("the VM's own have", || {
        has("tenant", "own", "b,vm1,18,true")
    });
    assert_eq!(content(&monitor, "tenant", "own"), ["b,vm1,18,true"]);
    let attacked = content(&monitor, "tenant", "attack");
    assert!(
        attacked.iter().all(|row| row.starts_with("vm1,")),
        "{attacked:?}"
    );

    // The host that lacks the probe is named; the other one answers.
    let queries = by(&monitor, "placer", &["fleet", "queries", "--json"]).fine();
    let queries: Vec<serde_json::Value> = serde_json::from_str(&queries).unwrap();
    let all = queries.iter().find(|query| query["name"] == "all").unwrap();
    assert_eq!(all["responded"], "1/2", "{all}");
    let watch = ["fleet", "watch", "all", "--final", "--for", "300ms"];
    let watched = by(&monitor, "placer", &watch);
    assert!(watched.err.contains('a'), "{}", watched.err);

    // Probes are placed by administrators of hosts, and without column `vm` they have no rows that
    // the owner of a VM may read.
    for (who, query, why) in [
        (
            "placer",
            format!("{MASKS} select * from masks"),
            "weir agent --define",
        ),
        (
            "tenant",
            format!("{MASKS} select * from masks"),
            "weir agent --define",
        ),
        ("tenant", "select mask from hidden".into(), "unknown"),
        (
            "tenant",
            "select m.mask from masks [now] as m, hidden [now] as h".into(),
            "unknown",
        ),
        ("tenant", "select * from tcp_retransmits".into(), "unknown"),
    ] {
        let refused = by(&monitor, who, &["query", "--for", "1ms", &query]);
        assert_ne!(refused.code, 0, "{who}: {query}");
        assert!(refused.err.contains(why), "{who}: {query}: {}", refused.err);
    }
    let shown = by(&monitor, "tenant", &["query", "show streams"]).fine();
    assert!(
        shown.contains("masks") && !shown.contains("hidden"),
        "{shown}"
    );
    let described = by(&monitor, "tenant", &["query", "describe hidden"]);
    assert_ne!(described.code, 0, "{}", described.out);
}
