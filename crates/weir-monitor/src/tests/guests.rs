//! Stream `GuestIO`: requests of a guest are tied to those of its virtual disk on a host.

use weir_model::inventory::{Vm, VmKind, changes};
use weir_model::{Batch, Catalog, Column, Field, Nanos, Symbol, Value};
use weir_query::place::fleet::PlacementStrategy;

use super::super::MonitorOptions;
use super::fleet::{Fleet, Results};
use super::host::Host;

const US: Nanos = 1_000;
const MS: Nanos = 1_000 * US;

/// Of the load: its number of requests, and its first and last lost ones on each side.
const REQUESTS: i64 = 40;
const NO_VDISK: [i64; 2] = [3, 20];
const NO_GUEST: [i64; 2] = [7, 39];

/// How far the guest's clock is ahead.
const AHEAD: Nanos = 300 * US;

const QUERY: &str = "select sector, vm, host, vdisk, guest, guest_disk, comm, latency, guest_wait, \
                     guest_queue, vdisk_wait, vdisk_service, guest_return, clock_error, unmatched \
                     from GuestIO";

/// Rows of `IO` with these values.
fn requests(rows: &[Vec<(&str, Value)>]) -> Batch {
    let catalog = Catalog::builtin();
    let schema = &catalog.find("IO").expect("it is built in").schema;
    let value = |row: &Vec<(&str, Value)>, field: &Field| {
        let found = row.iter().find(|(name, _)| *name == field.name);
        found.map_or(Value::Null, |(_, value)| value.clone())
    };
    let column = |field: &Field| {
        let values = rows.iter().map(|row| value(row, field));
        Column::from_values(field.ty, values)
    };
    let ts = rows.iter().map(|row| match row[0].1 {
        Value::Int(ts) => ts,
        _ => unreachable!("the first value is the time"),
    });
    let ts: Vec<Nanos> = ts.collect();
    Batch::stream(ts, schema.fields.iter().map(column).collect())
}

fn int(value: i64) -> Value {
    Value::Int(value)
}

/// Request number `i` as the guest reports it: 20 us of wait, 325 us of service.
fn in_guest(i: i64) -> Vec<(&'static str, Value)> {
    vec![
        ("ts", int(issued(i) + 325 * US + AHEAD)),
        ("host", "inside".into()),
        ("level", "guest".into()),
        ("vm", "AB-1".into()),
        ("pdisk", "/dev/vda".into()),
        ("op", "r".into()),
        ("sector", int(i * 8)),
        ("sectors", int(8)),
        ("wait", int(20 * US)),
        ("service", int(325 * US)),
        ("latency", int(345 * US)),
        ("req_id", int(100 + i)),
        ("comm", "fio".into()),
    ]
}

/// The same as the virtual disk reports it: received 50 us after it was issued, 5 us of wait and
/// 200 us of service. It returns to the guest within 70 us.
fn in_vdisk(i: i64) -> Vec<(&'static str, Value)> {
    vec![
        ("ts", int(issued(i) + 255 * US)),
        ("host", "h1".into()),
        ("level", "vdisk".into()),
        ("vm", "web".into()),
        ("vdisk", "/dev/vdx".into()),
        ("op", "r".into()),
        ("sector", int(i * 8)),
        ("sectors", int(8)),
        ("wait", int(5 * US)),
        ("service", int(200 * US)),
        ("latency", int(205 * US)),
        ("req_id", int(500 + i)),
    ]
}

fn issued(i: i64) -> Nanos {
    (400 + i) * MS
}

/// A VM of host `h1`.
fn vm() -> Vm {
    Vm {
        uuid: Some(Symbol::new("ab-1")),
        ..Vm::new("web", VmKind::Qemu, "test")
    }
}

/// The results of queries over both sides, six seconds later. Each query starts at a step; the VM is
/// known from step 2 on, and requests follow at step 8.
fn results<const N: usize>(queries: [(i64, &str); N]) -> [Results; N] {
    let mut fleet = Fleet::new(MonitorOptions::default());
    let mut results = [const { None }; N];
    let mut start = |step: i64, fleet: &mut Fleet| {
        let due = queries.iter().zip(&mut results);
        for ((_, text), result) in due.filter(|((at, _), _)| *at == step) {
            *result = Some(fleet.query(text, PlacementStrategy::Rows).1);
        }
    };
    start(0, &mut fleet);
    let mut hosts = [Host::new("h1", 1), Host::new("inside", 2)];
    for host in &mut hosts {
        host.join(&mut fleet);
        host.live(None, 10 * MS);
        host.deliver(1_000, &mut fleet);
    }
    fleet.tick(20 * MS);
    let given = |all: &dyn Fn(i64) -> Vec<(&'static str, Value)>, lost: [i64; 2]| {
        let rows = (0..REQUESTS).filter(|i| !lost.contains(i)).map(all);
        requests(&rows.collect::<Vec<_>>())
    };
    for step in 2..120 {
        let now = step * 50 * MS;
        start(step, &mut fleet);
        let [h1, inside] = &mut hosts;
        if step == 2 {
            let host = Some(Symbol::new("h1"));
            h1.push("vms", changes(now - 40 * MS, host, &[], &[vm()]));
        }
        if step == 8 {
            h1.push("IO", given(&in_vdisk, NO_VDISK));
            inside.push("IO", given(&in_guest, NO_GUEST));
        }
        for host in &mut hosts {
            host.live(None, now);
            host.deliver(1_000, &mut fleet);
        }
        fleet.tick(now + MS);
    }
    results.map(|result| result.expect("it was started"))
}

#[test]
fn requests_of_a_guest_are_tied_to_those_of_its_virtual_disk() {
    let [results] = results([(0, QUERY)]);
    check_tied(&results);
}

#[test]
fn the_vms_of_hosts_are_shared_with_other_queries() {
    const VMS: &str = "select host, vm, uuid from vms";
    for [of_vms, of_guests] in [[0, 3], [3, 0]] {
        let [vms, guests] = results([(of_vms, VMS), (of_guests, QUERY)]);
        let rows: Vec<Vec<Value>> = vms.net().into_iter().map(|(_, row, _)| row).collect();
        assert_eq!(rows, [["h1", "web", "ab-1"].map(Value::text)]);
        check_tied(&guests);
    }
}

/// Checks the results of [`QUERY`].
fn check_tied(results: &Results) {
    let rows: Vec<Vec<Value>> = results.net().into_iter().map(|(_, row, _)| row).collect();
    let sectors = (0..REQUESTS).filter(|i| !NO_GUEST.contains(i));
    let mut expected: Vec<i64> = sectors.map(|i| i * 8).collect();
    let number = |value: &Value| match value {
        Value::Int(number) => *number,
        other => panic!("a number, not {other}"),
    };
    for row in &rows {
        let [
            sector,
            vm,
            host,
            vdisk,
            guest,
            disk,
            comm,
            times @ ..,
            unmatched,
        ] = &row[..]
        else {
            panic!("{row:?}");
        };
        let sector = number(sector);
        expected.retain(|other| *other != sector);
        assert_eq!(
            [vm, host, vdisk].map(Value::to_string),
            ["web", "h1", "/dev/vdx"]
        );
        assert_eq!(
            [guest, disk, comm].map(Value::to_string),
            ["inside", "/dev/vda", "fio"]
        );
        if NO_VDISK.contains(&(sector / 8)) {
            assert_eq!(*unmatched, Value::text("missing"));
            assert!(times[2..].iter().all(Value::is_null), "{row:?}");
            continue;
        }
        assert!(unmatched.is_null(), "{row:?}");
        let times: Vec<i64> = times.iter().map(number).collect();
        let [latency, wait, queue, vdisk_wait, service, back, error] = times[..] else {
            panic!("{row:?}");
        };
        assert_eq!((latency, wait), (345 * US, 20 * US));
        assert_eq!((vdisk_wait, service), (5 * US, 200 * US));
        assert_eq!(wait + queue + vdisk_wait + service + back, latency);
        // There and back take 120 us together, so that the offset is known to 60 us.
        assert!((60 * US..65 * US).contains(&error), "{error}");
        assert!((queue - 50 * US).abs() <= error, "{queue}");
    }
    assert_eq!(expected, [0; 0], "each request of the guest has a row");
}

#[test]
fn the_agents_run_two_more_fragments() {
    let fragments = super::super::guest::fragments();
    let sources = fragments.iter().flat_map(|f| f.plan.sources());
    let names: Vec<&str> = sources.map(|d| d.name.as_str()).collect();
    assert_eq!(names, ["IO", "vms"]);
}
