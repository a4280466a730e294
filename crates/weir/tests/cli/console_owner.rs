//! `weir console --only-vm`: the console of a VM's owner.

use serde_json::json;

use super::Console;
use crate::support::{Scratch, run};

#[test]
fn the_console_of_a_vms_owner_has_its_rows_alone() {
    let scratch = Scratch::new();
    let line = |i: u64| {
        let (ts, vm) = (
            128_166_372_030_000_000 + 10_000 * i,
            if i.is_multiple_of(3) { "app" } else { "db" },
        );
        format!("{ts},{vm},0,Read,{},4096,1000\n", 4096 * i)
    };
    let sample = scratch.write("trace.csv", &(0..300).map(line).collect::<String>());
    let counts = "select vm, count(*) as n from IO group by vm order by vm";
    let all = Console::of(&sample).query(counts, "").rows();
    let folder = scratch.path().join("recordings");
    std::fs::create_dir(&folder).unwrap();
    let recording = folder.join("both.parquet");
    run(&["convert", &sample, recording.to_str().unwrap()]).fine();
    let folder = folder.to_str().unwrap();
    let args = [
        "--from",
        &sample,
        "--recordings",
        folder,
        "--only-vm",
        "app",
    ];
    let own = Console::start(&args);
    let rows = own.query(counts, "").rows();
    let of_app = all.iter().find(|row| row["vm"] == "app").unwrap();
    assert!(all.len() > 1, "{all:?}");
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(
        (&rows[0]["vm"], &rows[0]["n"]),
        (&of_app["vm"], &of_app["n"])
    );
    // Whatever the query, rows of others are not read.
    for query in [
        "select vm, count(*) as n from IO where vm <> 'app' group by vm",
        "select a.vm, count(*) as n from (select vm from IO where vm = 'db') a group by a.vm",
        "select vm, n from (select vm, count(*) as n from IO group by vm) x where vm <> 'app'",
    ] {
        let reply = own.query(query, "");
        assert_eq!(
            (reply.status, reply.rows().len()),
            (200, 0),
            "{query}: {}",
            reply.body
        );
    }
    // So it is with the recordings of the folder.
    let recorded = own.query(counts, "&source=recording:both.parquet").rows();
    assert_eq!(
        (recorded.len(), &recorded[0]["n"]),
        (1, &of_app["n"]),
        "{recorded:?}"
    );
    let probe = "create stream p as probe 'tp:sched:sched_switch' (prev_pid); select * from p";
    let refused = own.query(probe, "");
    assert!(refused.status >= 400, "{}", refused.body);
    let refused = own.query("select count(*) from devices", "");
    assert!(
        refused.body.contains("only rows of VM `app`"),
        "{}",
        refused.body
    );
    for path in ["/api/v1/alerts", "/api/v1/leases", "/api/v1/info"] {
        let reply = own.get(path);
        assert!(
            reply.status == 403 && reply.body.contains("VM app only"),
            "{path}: {}",
            reply.body
        );
    }
    let limit = own.post("/api/v1/leases", &json!({ "vm": "app", "iops": 100 }));
    assert_eq!(limit.status, 403);
    // The report of a disk is that of the owner's requests.
    let other = own.get("/api/v1/characterise?vm=db&disk=0");
    let report = own.get("/api/v1/characterise?disk=0");
    assert_eq!((other.status, &other.body), (report.status, &report.body));
    let plan = own.post("/api/v1/explain", &json!({ "q": counts }));
    assert!(plan.body.contains("'app'"), "{}", plan.body);
    assert_eq!(own.get("/api/v1/status").json()["only_vm"], "app");
}
