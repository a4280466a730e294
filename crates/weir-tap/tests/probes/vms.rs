//! Fields of type `vm`: the VMs of processes, of the process that hits, and of network devices, in
//! rows and in groups, by an inventory of the test.

use std::collections::{BTreeMap, HashMap};
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use weir_model::inventory::{Vm, VmKind};
use weir_model::{Demand, ProbeDefinition, ProbeField, ProbeType, Symbol, Value};
use weir_tap::ebpf::LiveOptions;
use weir_tap::inventory::{InventoryWatch, Snapshot};
use weir_tap::probe::ProbeStream;
use weir_tap::{Tap, TapEvent};

use super::{definition, sleeper, watch};

/// An inventory with this process and the loopback device as parts of VM `web`.
fn inventory() -> Arc<InventoryWatch> {
    let snapshot = Snapshot {
        taken: 1,
        vms: vec![Vm::new("web", VmKind::Qemu, "test")],
        pids: HashMap::from([(std::process::id(), 0)]),
        taps: HashMap::from([(Symbol::new("lo"), 0)]),
        ..Snapshot::default()
    };
    let mut first = Some(snapshot);
    let watch = InventoryWatch::by(Duration::from_millis(50), move |_| first.take());
    watch.expect("a thread")
}

fn field(path: &str, name: &str, ty: Option<ProbeType>) -> ProbeField {
    ProbeField {
        name: Some(name.into()),
        ty,
        ..ProbeField::new(path)
    }
}

/// The opened stream of `definition` with the inventory, and the positions of columns; `None` where
/// probes cannot be attached.
fn open(definition: &ProbeDefinition, columns: &[&str]) -> Option<(Box<dyn Tap>, Vec<usize>)> {
    // Skips the test where it must be.
    drop(watch("vms", definition, super::all)?);
    let stream = ProbeStream::new(definition).expect("as before");
    let declaration = stream.capabilities().declaration;
    let demand = Demand::whole(&declaration);
    assert!(stream.needs_inventory(&demand));
    let options = LiveOptions {
        inventory: Some(inventory()),
        ..LiveOptions::default()
    };
    let tap = stream.open(&[demand], &options).expect("as before");
    let positions = columns.iter().map(|name| declaration.schema.index(name));
    Some((tap, positions.collect()))
}

/// The rows of the next half second.
fn rows(mut tap: Box<dyn Tap>) -> Vec<Vec<Value>> {
    let mut rows = Vec::new();
    let mut heartbeats = 0;
    while heartbeats < 25 {
        match tap.next(Duration::from_millis(20)).expect("the tap runs") {
            TapEvent::Rows { batch, .. } => {
                rows.extend((0..batch.len()).map(|row| batch.row(row)));
            }
            TapEvent::Heartbeat(_) => heartbeats += 1,
            _ => (),
        }
    }
    rows
}

#[test]
fn rows_have_the_vms_of_their_processes() {
    let fields = vec![
        field("prev.pid", "thread", None),
        field("prev.tgid", "process", None),
        field("prev.tgid", "vm", Some(ProbeType::Vm)),
        field("pid", "current", Some(ProbeType::Vm)),
    ];
    let definition = ProbeDefinition {
        fields,
        ..definition("tp_btf:sched_switch")
    };
    let columns = ["thread", "process", "vm", "current"];
    let Some((tap, at)) = open(&definition, &columns) else {
        return;
    };
    let (tid, start, thread) = sleeper(50);
    start.send(()).expect("the thread waits");
    thread.join().expect("it ends");
    let (own, mut others) = (i64::from(std::process::id()), 0);
    let mut of_thread = 0;
    for row in rows(tap) {
        let vm = match row[at[1]] == Value::Int(own) {
            true => Value::text("web"),
            false => Value::Null,
        };
        others += i64::from(vm == Value::Null);
        of_thread += i64::from(row[at[0]] == Value::Int(tid));
        // The thread that leaves the processor is the current one.
        assert_eq!((&row[at[2]], &row[at[3]]), (&vm, &vm), "{row:?}");
    }
    assert!(of_thread >= 25 && others > 0, "{of_thread} {others}");
}

#[test]
fn rows_have_the_vms_of_their_network_devices() {
    let fields = vec![
        field("name", "device", None),
        field("name", "vm", Some(ProbeType::Vm)),
    ];
    let definition = ProbeDefinition {
        fields,
        ..definition("tp:net:net_dev_start_xmit")
    };
    let Some((tap, at)) = open(&definition, &["device", "vm"]) else {
        return;
    };
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = socket.local_addr().expect("an address");
    for _ in 0..10 {
        socket
            .send_to(b"packet", address)
            .expect("the loopback device");
    }
    let mut counts: BTreeMap<String, i64> = BTreeMap::new();
    for row in rows(tap) {
        let vm = match row[at[0]] == Value::text("lo") {
            true => Value::text("web"),
            false => Value::Null,
        };
        assert_eq!(row[at[1]], vm, "{row:?}");
        *counts.entry(format!("{vm:?}")).or_default() += 1;
    }
    assert!(
        counts[&format!("{:?}", Value::text("web"))] >= 10,
        "{counts:?}"
    );
}

#[test]
fn only_the_type_gives_a_field_the_name_vm() {
    let named = |ty| ProbeDefinition {
        fields: vec![field("prev.tgid", "vm", ty)],
        ..definition("tp_btf:sched_switch")
    };
    let error = ProbeStream::new(&named(None)).expect_err("a number is no VM");
    // Without type information of the kernel, the probe itself is refused.
    if !error.message.contains("no type information") {
        assert!(error.message.contains("column `vm`"), "{}", error.message);
        ProbeStream::new(&named(Some(ProbeType::Vm))).expect("it is one");
    }
}
