//! Killed taps and commands.

use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use weir_testing::is_full;

use crate::machine::{Machine, begin_load, end_load, taps_of, wait_until};
use crate::proxy::{Proxy, Trouble};

/// The QEMU commands at which an insertion is killed: all of them with `cargo xtask test --all`,
/// otherwise every third and the last one.
fn places(commands: usize) -> impl Iterator<Item = usize> {
    let is_tested = move |at: &usize| is_full() || at.is_multiple_of(3) || at + 1 == commands;
    (0..commands).filter(is_tested)
}

fn kill(pid: u32, signal: &str) {
    let kill = Command::new("kill")
        .args(["-s", signal, &pid.to_string()])
        .status();
    assert!(kill.unwrap().success());
}

#[test]
fn a_tap_killed_under_load_is_restarted_or_removed() {
    const TEST: &str = "a_tap_killed_under_load_is_restarted_or_removed";
    let Some(mut machine) = Machine::boot(TEST) else {
        return;
    };
    let before = machine.graph();
    begin_load(&mut machine.guest);
    machine.insert();
    for time in 0..3 {
        thread::sleep(Duration::from_millis(300));
        kill(taps_of(&machine.name)[0], "KILL");
        wait_until("it is dead", || taps_of(&machine.name).is_empty());
        // The guest waits meanwhile.
        thread::sleep(Duration::from_millis(300 * time));
        let again = machine.insert();
        assert_eq!(again["how"], "restarted");
        assert_eq!(taps_of(&machine.name).len(), 1);
    }
    // QEMU reconnects at increasing intervals of up to 16 s.
    let socket = format!("/run/weir-tapdisk/{}.vda/nbd", machine.name);
    wait_until("the guest goes on", || {
        crate::comings::of_all_ops(&crate::comings::status(&socket), "requests") > 0
    });
    kill(taps_of(&machine.name)[0], "KILL");
    wait_until("it is dead", || taps_of(&machine.name).is_empty());
    machine.remove();
    end_load(&mut machine.guest);
    assert_eq!(machine.graph(), before);
    machine.assert_nothing_left();
    machine.finish();
}

#[test]
fn an_insertion_that_is_killed_half_way_is_undone_by_the_next_command() {
    const TEST: &str = "an_insertion_that_is_killed_half_way_is_undone_by_the_next_command";
    let Some(mut machine) = Machine::boot(TEST) else {
        return;
    };
    let before = machine.graph();
    begin_load(&mut machine.guest);
    let commands = Proxy::commands(&machine).len();
    for at in places(commands) {
        for verb in ["remove", "insert"] {
            let proxy = Proxy::start(&machine.guest, Trouble::Hang { at });
            let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"))
                .args(["tapdisk", "insert", "--vm", &machine.name, "--disk", "vda"])
                .args(["--qmp", proxy.path()])
                .stdin(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            wait_until("it has come so far", || proxy.is_hanging());
            weir.kill().unwrap();
            weir.wait().unwrap();
            drop(proxy);
            if verb == "insert" {
                let inserted = machine.insert();
                assert!(["inserted", "already"].contains(&inserted["how"].as_str().unwrap()));
            }
            machine.remove();
            assert_eq!(machine.graph(), before, "{at}, then {verb}");
            machine.assert_nothing_left();
        }
    }
    end_load(&mut machine.guest);
    machine.finish();
}

#[test]
fn ctrl_c_takes_everything_back() {
    let Some(machine) = Machine::boot("ctrl_c_takes_everything_back") else {
        return;
    };
    let before = machine.graph();
    let commands = Proxy::commands(&machine).len();
    for at in places(commands) {
        let pause = Duration::from_millis(1500);
        let proxy = Proxy::start(&machine.guest, Trouble::Pause { at, pause });
        let weir = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(["tapdisk", "insert", "--vm", &machine.name, "--disk", "vda"])
            .args(["--qmp", proxy.path()])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait_until("it has come so far", || proxy.is_hanging());
        kill(weir.id(), "INT");
        let output = weir.wait_with_output().unwrap();
        let printed = String::from_utf8(output.stderr).unwrap();
        // After the last step the insertion is complete, and reported.
        match output.status.code() {
            Some(130) => assert!(printed.contains("interrupted"), "{at}: {printed}"),
            Some(0) if at + 1 >= commands => drop(machine.remove()),
            code => panic!("{at}: {code:?} {printed}"),
        }
        drop(proxy);
        assert_eq!(machine.graph(), before, "{at}");
        machine.assert_nothing_left();
    }
    machine.finish();
}
