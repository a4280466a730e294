//! A process that ends at any point of a lease leaves a knob that the next one restores.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use weir_act::knob::{Knob, KnobSetting};
use weir_act::lease::{
    EndCause, EndOutcome, Holder, Lease, LeasePoint, LeaseStage, VERSION, recover, this_process,
};
use weir_act::limit::Limit;
use weir_act::store::LeaseStore;
use weir_runtime::boot::boot_id;

/// A group of v1 in a folder: files that have what was written, as the kernel's have for a device.
fn group(folder: &Path, riops: u64) -> Knob {
    for kind in ["read_iops", "write_iops", "read_bps", "write_bps"] {
        let limit = if kind == "read_iops" { riops } else { 0 };
        let path = folder.join(format!("blkio.throttle.{kind}_device"));
        fs::write(path, format!("7:0 {limit}\n")).unwrap();
    }
    Knob::of_group(folder, "7:0").unwrap()
}

fn lease(knob: &Knob, holder: Holder) -> Lease {
    let before = knob.read().unwrap();
    let limit = Limit {
        iops: Some(500),
        bytes: Some(2 << 20),
        weight: None,
    };
    Lease {
        version: VERSION,
        id: "mail-1".to_owned(),
        vm: Some("mail".to_owned()),
        disk: "/dev/vda".to_owned(),
        ours: limit.setting(knob, &before),
        before,
        knob: knob.clone(),
        begins: 0,
        ends: i64::MAX,
        holder,
        boot: boot_id(),
        alert: None,
        cooldown_ns: 0,
        effect: None,
        stage: LeaseStage::Announced,
    }
}

/// A process that does not run any more.
fn ended() -> Holder {
    Holder {
        pid: std::process::id(),
        started: 1,
    }
}

const POINTS: [LeasePoint; 7] = [
    LeasePoint::Announced,
    LeasePoint::Written,
    LeasePoint::ReadBack,
    LeasePoint::Applied,
    LeasePoint::Compared,
    LeasePoint::Restored,
    LeasePoint::RestoredReadBack,
];

#[test]
fn a_kill_at_any_point_leaves_what_the_next_process_restores() {
    for kill in POINTS {
        let folder = tempfile::tempdir().unwrap();
        let knob = group(folder.path(), 900);
        let before = knob.read().unwrap();
        let store = LeaseStore::open(&folder.path().join("leases")).unwrap();
        let mut lease = lease(&knob, ended());
        let mut end_at = |point: LeasePoint| assert!(point != kill, "killed");
        let killed = catch_unwind(AssertUnwindSafe(|| {
            lease.apply(&store, &mut end_at).unwrap();
            lease.end(&store, EndCause::Stopped, &mut end_at).unwrap();
        }));
        assert!(killed.is_err(), "{kill:?} is a point of every lease");
        let recovered = recover(&store, &mut |_| {}).unwrap();
        assert_eq!(recovered.len(), 1, "{kill:?}");
        assert_eq!(
            *recovered[0].1.as_ref().unwrap(),
            EndOutcome::Restored,
            "{kill:?}"
        );
        assert!(knob.read().unwrap().is(&before), "{kill:?}");
        assert!(store.all().unwrap().is_empty(), "{kill:?}");
        // And once more: there is nothing to do.
        assert!(recover(&store, &mut |_| {}).unwrap().is_empty());
    }
}

#[test]
fn a_kill_between_two_files_of_a_group_is_restored() {
    for written in 0..4 {
        let folder = tempfile::tempdir().unwrap();
        let knob = group(folder.path(), 900);
        let store = LeaseStore::open(&folder.path().join("leases")).unwrap();
        let lease = lease(&knob, ended());
        store.put(&lease).unwrap();
        let names = ["riops", "wiops", "rbps", "wbps"];
        let partial = names[..written]
            .iter()
            .fold(lease.before.clone(), |setting, name| {
                setting.with(name, lease.ours.get(name))
            });
        knob.write(&partial).unwrap();
        let recovered = recover(&store, &mut |_| {}).unwrap();
        assert_eq!(*recovered[0].1.as_ref().unwrap(), EndOutcome::Restored);
        assert!(knob.read().unwrap().is(&lease.before), "{written}");
    }
}

#[test]
fn a_value_of_another_program_stays() {
    let folder = tempfile::tempdir().unwrap();
    let knob = group(folder.path(), 900);
    let store = LeaseStore::open(&folder.path().join("leases")).unwrap();
    let mut lease = lease(&knob, ended());
    lease.apply(&store, &mut |_| {}).unwrap();
    knob.write(&lease.ours.clone().with("wiops", 77)).unwrap();
    // The other limits are still those of the lease.
    let foreign = lease.before.clone().with("wiops", 77);
    let recovered = recover(&store, &mut |_| {}).unwrap();
    let found = EndOutcome::ChangedByAnother {
        found: foreign.clone(),
    };
    assert_eq!(*recovered[0].1.as_ref().unwrap(), found);
    assert!(knob.read().unwrap().is(&foreign));
    assert!(store.all().unwrap().is_empty());
}

#[test]
fn a_group_that_is_gone_and_a_restarted_host_need_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = LeaseStore::open(&folder.path().join("leases")).unwrap();
    let place = folder.path().join("group");
    fs::create_dir(&place).unwrap();
    let knob = group(&place, 0);
    let mut gone = lease(&knob, ended());
    gone.apply(&store, &mut |_| {}).unwrap();
    fs::remove_dir_all(&place).unwrap();
    let recovered = recover(&store, &mut |_| {}).unwrap();
    assert!(matches!(recovered[0].1, Ok(EndOutcome::Gone { .. })));

    fs::create_dir(&place).unwrap();
    let knob = group(&place, 0);
    let mut earlier = lease(&knob, ended());
    earlier.apply(&store, &mut |_| {}).unwrap();
    earlier.boot = "another".to_owned();
    store.put(&earlier).unwrap();
    let recovered = recover(&store, &mut |_| {}).unwrap();
    assert_eq!(*recovered[0].1.as_ref().unwrap(), EndOutcome::Restarted);
    assert!(
        knob.read().unwrap().is(&earlier.ours),
        "another boot's knob is not touched"
    );
}

#[test]
fn the_lease_of_a_process_that_runs_stays() {
    let folder = tempfile::tempdir().unwrap();
    let knob = group(folder.path(), 0);
    let store = LeaseStore::open(&folder.path().join("leases")).unwrap();
    let mut held = lease(&knob, this_process());
    held.apply(&store, &mut |_| {}).unwrap();
    assert!(recover(&store, &mut |_| {}).unwrap().is_empty());
    assert_eq!(store.active().unwrap(), [held.clone()]);
    assert!(knob.read().unwrap().is(&held.ours));
    assert_eq!(
        held.end(&store, EndCause::Undone, &mut |_| {}).unwrap(),
        EndOutcome::Restored
    );
    let stages: Vec<String> = store
        .log()
        .unwrap()
        .iter()
        .map(|e| e["stage"].to_string())
        .collect();
    assert_eq!(stages, ["\"announced\"", "\"applied\"", "\"ended\""]);
    assert_eq!(
        store.log().unwrap()[2]["before"],
        serde_json::json!({"rbps": 0, "riops": 0, "wbps": 0, "wiops": 0})
    );
}

#[test]
fn a_knob_that_keeps_another_value_ends_the_lease() {
    // The kernel rounds, or the file is on a read-only file system: what is read back differs.
    let folder = tempfile::tempdir().unwrap();
    let knob = group(folder.path(), 0);
    let store = LeaseStore::open(&folder.path().join("leases")).unwrap();
    let mut lease = lease(&knob, this_process());
    let path = folder.path().join("blkio.throttle.write_iops_device");
    let mut overwrite = |point: LeasePoint| {
        if point == LeasePoint::Written {
            fs::write(&path, "7:0 0\n").unwrap();
        }
    };
    let error = lease.apply(&store, &mut overwrite).unwrap_err();
    assert!(
        error.to_string().contains("was read back instead of"),
        "{error}"
    );
    assert!(knob.read().unwrap().is(&KnobSetting::default()));
    assert!(store.all().unwrap().is_empty());
}
