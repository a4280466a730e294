//! The service that carries out what alerts request: its ends, its cooldown, and clocks that are
//! set meanwhile.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use weir_act::knob::Knob;
use weir_act::limit::Limit;
use weir_act::policy::{ActMode, ActPolicy, ActRequest};
use weir_act::service::{ActMessage, ActService};
use weir_act::store::LeaseStore;
use weir_act::target::LimitTarget;
use weir_model::NANOS_PER_SECOND;
use weir_runtime::run_loop::wall_clock;

const HOUR: i64 = 3_600 * NANOS_PER_SECOND;

/// The files of a group of v1, which have what was written.
fn group(folder: &Path) -> PathBuf {
    let group = folder.join("group");
    fs::create_dir(&group).unwrap();
    for kind in ["read_iops", "write_iops", "read_bps", "write_bps"] {
        let path = group.join(format!("blkio.throttle.{kind}_device"));
        fs::write(path, "7:0 0\n").unwrap();
    }
    group
}

fn reads(group: &Path) -> String {
    let text = fs::read_to_string(group.join("blkio.throttle.read_iops_device"));
    text.unwrap().trim().to_owned()
}

fn service(folder: &Path, group: &Path) -> ActService {
    let group = group.to_owned();
    let store = LeaseStore::open(&folder.join("leases")).unwrap();
    let policy = ActPolicy {
        mode: ActMode::Apply,
        allow: vec!["mail".to_owned()],
        ..ActPolicy::default()
    };
    let find = move |vm: &str, _: Option<&str>, _| {
        Ok(LimitTarget {
            vm: Some(vm.to_owned()),
            disk: "/dev/vda".to_owned(),
            knob: Knob::of_group(&group, "7:0")?,
        })
    };
    ActService::open(store, policy, Box::new(find)).unwrap().0
}

fn act(hold_ns: i64, cooldown_ns: i64) -> ActMessage {
    ActMessage::Act(ActRequest {
        instance: "noisy{}".to_owned(),
        vm: "mail".to_owned(),
        disk: None,
        limit: Limit {
            iops: Some(500),
            ..Limit::default()
        },
        hold_ns,
        cooldown_ns,
    })
}

fn cause(steps: &[Value]) -> &str {
    steps[0]["cause"].as_str().unwrap_or_default()
}

#[test]
fn a_lease_lasts_as_long_as_it_states_although_the_clock_is_set() {
    let folder = tempfile::tempdir().unwrap();
    let group = group(folder.path());
    let mut service = service(folder.path(), &group);
    let now = wall_clock();
    service.receive(&act(HOUR, 0), now);
    assert_eq!(reads(&group), "7:0 500");
    // Ahead and back.
    for step in [0, 10 * HOUR, -10 * HOUR] {
        assert!(service.poll(now + step).is_empty());
        assert_eq!(reads(&group), "7:0 500");
    }
    service.receive(
        &ActMessage::Clear {
            instance: "noisy{}".to_owned(),
        },
        now - HOUR,
    );
    assert_eq!(reads(&group), "7:0 0");
    // A short one ends in its time, wherever the clock is.
    service.receive(&act(1_000_000, 0), now - 20 * HOUR);
    thread::sleep(Duration::from_millis(5));
    assert_eq!(cause(&service.poll(now - 20 * HOUR)), "expired");
    assert_eq!(reads(&group), "7:0 0");
}

#[test]
fn a_cooldown_follows_each_end_but_the_loss_of_the_monitor() {
    let folder = tempfile::tempdir().unwrap();
    let group = group(folder.path());
    let mut service = service(folder.path(), &group);
    let instance = || "noisy{}".to_owned();
    let now = wall_clock();
    service.receive(&act(HOUR, HOUR), now);
    let lost = ActMessage::MonitorLost {
        instance: instance(),
    };
    assert_eq!(cause(&service.receive(&lost, now)), "monitor_lost");
    assert_eq!(reads(&group), "7:0 0");
    let again = service.receive(&act(HOUR, HOUR), now);
    assert_eq!(again[0]["event"], "applied", "{again:?}");
    let failed = ActMessage::DidNotHelp {
        instance: instance(),
        effect: "the witness did not hold".to_owned(),
    };
    assert_eq!(cause(&service.receive(&failed, now)), "did_not_help");
    let refused = service.receive(&act(HOUR, HOUR), now + HOUR / 2);
    assert!(
        cause(&refused).starts_with("its cooldown lasts"),
        "{refused:?}"
    );
    let later = service.receive(&act(HOUR, HOUR), now + HOUR);
    assert_eq!(later[0]["event"], "applied", "{later:?}");
    assert_eq!(cause(&service.close(now + HOUR)), "stopped");
    assert_eq!(reads(&group), "7:0 0");
}
