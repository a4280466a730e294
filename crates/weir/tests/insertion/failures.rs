//! Every step of an insertion fails once.

use crate::machine::{Machine, begin_load, end_load};
use crate::proxy::{Proxy, Trouble};

#[test]
fn after_a_failed_step_the_disk_is_unchanged_and_the_guest_continues() {
    const TEST: &str = "after_a_failed_step_the_disk_is_unchanged_and_the_guest_continues";
    let Some(mut machine) = Machine::boot(TEST) else {
        return;
    };
    let before = machine.graph();
    begin_load(&mut machine.guest);
    let names = Proxy::commands(&machine);
    let has = |name: &str| names.iter().any(|n| n == name);
    assert!(has("blockdev-reopen") && names.len() >= 3, "{names:?}");
    for (at, name) in names.iter().enumerate() {
        for trouble in [Trouble::Refuse { at }, Trouble::Lose { at }] {
            let proxy = Proxy::start(&machine.guest, trouble);
            let printed = machine.tapdisk("insert", &["--qmp", proxy.path()]);
            drop(proxy);
            let is_lock = name == "blockdev-add" && at + 1 == names.len();
            if is_lock && matches!(trouble, Trouble::Refuse { .. }) {
                // Without the lock the insertion continues, with a warning.
                assert_eq!(printed.code, Some(0), "{printed:?}");
                assert!(
                    printed.err.contains("no other program writes it"),
                    "{printed:?}"
                );
                machine.remove();
            } else {
                assert_eq!(printed.code, Some(1), "{trouble:?}: {printed:?}");
            }
            assert_eq!(machine.graph(), before, "{trouble:?}: {printed:?}");
            machine.assert_nothing_left();
        }
    }
    end_load(&mut machine.guest);
    machine.finish();
}

#[test]
fn a_removal_that_fails_leaves_a_tap_that_works_and_is_tried_again() {
    const TEST: &str = "a_removal_that_fails_leaves_a_tap_that_works_and_is_tried_again";
    let Some(mut machine) = Machine::boot(TEST) else {
        return;
    };
    let before = machine.graph();
    begin_load(&mut machine.guest);
    machine.insert();
    let proxy = Proxy::start(&machine.guest, Trouble::RefuseAll);
    let printed = machine.tapdisk("remove", &["--qmp", proxy.path()]);
    drop(proxy);
    assert_eq!(printed.code, Some(1), "{printed:?}");
    assert!(printed.err.contains("injected"), "{printed:?}");
    let again = machine.insert();
    assert_eq!(again["how"], "already");
    machine.remove();
    end_load(&mut machine.guest);
    assert_eq!(machine.graph(), before);
    machine.assert_nothing_left();
    machine.finish();
}
