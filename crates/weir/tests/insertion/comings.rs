//! Taps that are inserted and removed while a guest does I/O.

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::process::Command;

use serde_json::Value;
use weir_testing::DiskLoad;

use crate::machine::{Machine, PATIENT, begin_load, end_load, taps_of, wait_until, weir};

/// The number of insertions and removals under load.
const TIMES: usize = 100;

#[test]
fn a_hundred_taps_come_and_go_under_load() {
    let Some(mut machine) = Machine::boot("a_hundred_taps_come_and_go_under_load") else {
        return;
    };
    let before = machine.graph();
    begin_load(&mut machine.guest);
    let mut requests = 0;
    for time in 0..TIMES {
        let inserted = machine.insert();
        assert_eq!(inserted["how"], "inserted", "{time}");
        let socket = inserted["socket"].as_str().unwrap();
        wait_until("the tap sees the guest's requests", || {
            let seen = of_all_ops(&status(socket), "requests");
            requests += seen;
            seen > 0
        });
        machine.remove();
    }
    end_load(&mut machine.guest);
    assert!(requests >= TIMES as u64);
    assert_eq!(
        machine.graph(),
        before,
        "every node and option is unchanged"
    );
    machine.assert_nothing_left();
    machine.finish();
}

/// The output of `weir tapdisk status`.
pub fn status(socket: &str) -> Value {
    let printed = weir(&["tapdisk", "status", "--json", socket]);
    assert_eq!(printed.code, Some(0), "{printed:?}");
    serde_json::from_str(&printed.out).unwrap()
}

/// A counter of the only disk of a tap, over all operations.
pub fn of_all_ops(status: &Value, counter: &str) -> u64 {
    ["r", "w", "f", "d", "z"]
        .iter()
        .map(|op| of_op(status, op, counter))
        .sum()
}

fn of_op(status: &Value, op: &str, counter: &str) -> u64 {
    let found = find(status, "ops").and_then(Value::as_array);
    let ops = found.unwrap_or_else(|| panic!("no operations: {status}"));
    let of_op = ops.iter().find(|o| o["op"] == op);
    of_op.and_then(|o| o[counter].as_u64()).unwrap_or(0)
}

/// The first value with that name.
fn find<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    match value {
        Value::Object(fields) => fields
            .get(name)
            .or_else(|| fields.values().find_map(|field| find(field, name))),
        Value::Array(items) => items.iter().find_map(|item| find(item, name)),
        _ => None,
    }
}

#[test]
fn the_tap_sees_what_the_guest_did_and_nothing_else() {
    let Some(mut machine) = Machine::boot("the_tap_sees_what_the_guest_did_and_nothing_else")
    else {
        return;
    };
    let inserted = machine.insert();
    let socket = inserted["socket"].as_str().unwrap().to_owned();
    let before = (status(&socket), machine.guest.disk_stats().unwrap());
    let load: DiskLoad = "disk=/dev/vda,read=60,write=40,count=800,depth=4,fsync=50"
        .parse()
        .unwrap();
    machine.guest.load(&[load]).unwrap();
    let after = (status(&socket), machine.guest.disk_stats().unwrap());
    let guest = after.1["vda"].since(&before.1["vda"]);
    let tap = |op, counter| of_op(&after.0, op, counter) - of_op(&before.0, op, counter);
    assert_eq!(tap("r", "requests") as i64, guest.reads);
    assert_eq!(tap("r", "bytes") as i64, 512 * guest.read_sectors);
    assert_eq!(tap("w", "requests") as i64, guest.writes - guest.flushes);
    assert_eq!(tap("w", "bytes") as i64, 512 * guest.write_sectors);
    assert_eq!(tap("f", "requests") as i64, guest.flushes);
    assert_eq!(of_all_ops(&after.0, "errors"), 0);
    // No other process may write the image meanwhile.
    let image = machine.image.to_str().unwrap();
    let other = Command::new("qemu-io")
        .args(["-f", "raw", "-c", "write 0 512", image])
        .output();
    let printed = String::from_utf8(other.unwrap().stderr).unwrap();
    assert!(printed.contains("lock"), "{printed}");
    machine.remove();
    machine.finish();
}

#[test]
fn what_is_there_already_is_left_alone_and_what_is_not_there_is_no_failure() {
    const TEST: &str = "what_is_there_already_is_left_alone_and_what_is_not_there_is_no_failure";
    let Some(machine) = Machine::boot(TEST) else {
        return;
    };
    let nothing = machine.remove();
    assert!(
        nothing.err.contains("no tap is inserted"),
        "{}",
        nothing.err
    );
    machine.assert_nothing_left();
    let printed = machine.tapdisk("insert", &[]);
    assert_eq!((printed.code, printed.out.as_str()), (Some(0), ""));
    for hint in [
        "weir query --from tapdisk:/run/",
        "weir tapdisk remove --vm",
    ] {
        assert!(printed.err.contains(hint), "{}", printed.err);
    }
    let pids = taps_of(&machine.name);
    assert_eq!(pids.len(), 1);
    // A disk is found by the name of the device and by those of its nodes.
    for name in ["/dev/vda", "d0", "d0-format"] {
        let args = [
            "tapdisk",
            "insert",
            "--vm",
            &machine.name,
            "--disk",
            name,
            "--json",
        ];
        let again = weir(&args);
        let json: Value = serde_json::from_str(&again.out).unwrap();
        assert_eq!(
            (again.code, &json["how"]),
            (Some(0), &"already".into()),
            "{again:?}"
        );
    }
    assert_eq!(taps_of(&machine.name), pids, "the same process");
    let gone = machine.remove();
    assert!(gone.err.contains("tap removed"), "{}", gone.err);
    machine.assert_nothing_left();
}

#[test]
fn an_inserted_tap_has_no_capability_and_serves_its_vm_alone() {
    let test = "an_inserted_tap_has_no_capability_and_serves_its_vm_alone";
    let Some(machine) = Machine::boot(test) else {
        return;
    };
    machine.insert();
    let pids = taps_of(&machine.name);
    assert_eq!(pids.len(), 1, "{pids:?}");
    let mut threads = 0;
    for task in fs::read_dir(format!("/proc/{}/task", pids[0])).unwrap() {
        // A thread may end meanwhile.
        let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else {
            continue;
        };
        let field = |key: &str| {
            let mut lines = status.lines();
            let line = lines.find_map(|l| l.strip_prefix(key));
            line.unwrap_or_else(|| panic!("{key} in {status}"))
                .trim()
                .to_owned()
        };
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            let set = u64::from_str_radix(&field(set), 16).unwrap();
            assert_eq!(set, 0, "{status}");
        }
        assert_eq!(
            (field("NoNewPrivs:"), field("Seccomp:")),
            ("1".into(), "2".into())
        );
        threads += 1;
    }
    assert!(threads > 1, "it has a thread for each client");
    // Root may connect to the socket, but is not the VM: the server sends no handshake.
    let socket = format!("/run/weir-tapdisk/{}.vda/nbd", machine.name);
    let mut stranger = UnixStream::connect(socket).unwrap();
    stranger.set_read_timeout(Some(PATIENT)).unwrap();
    let mut greeting = Vec::new();
    let _ = stranger.read_to_end(&mut greeting);
    assert_eq!(greeting, b"", "no other process is served");
    machine.remove();
    machine.assert_nothing_left();
    machine.finish();
}

#[test]
fn a_tap_ends_with_its_vm() {
    let Some(machine) = Machine::boot("a_tap_ends_with_its_vm") else {
        return;
    };
    machine.insert();
    let Machine {
        name, guest, image, ..
    } = &machine;
    let (name, image) = (name.clone(), image.clone());
    let kill = Command::new("kill")
        .args(["-9", &guest.pid().to_string()])
        .status();
    assert!(kill.unwrap().success());
    wait_until("the tap ends", || taps_of(&name).is_empty());
    let folder = format!("/run/weir-tapdisk/{name}.vda");
    assert!(!fs::exists(&folder).unwrap(), "{folder} is removed with it");
    let printed = weir(&["tapdisk", "remove", "--vm", &name, "--disk", "vda"]);
    assert_ne!(printed.code, Some(0), "{printed:?}");
    assert!(printed.err.contains("is not running"), "{}", printed.err);
    assert!(!fs::exists(&folder).unwrap(), "{folder} stays away");
    drop(machine);
    assert!(!image.exists());
}
