//! `weir advise` on devices that serve one request at a time, in a guest: what it predicts for a
//! move is compared with what happens after the move.

use serde_json::Value;
use weir_testing::kernel::LINUX_6_1;
use weir_testing::{DiskLoad, GuestDisk, Scratch, is_full};

use crate::kit_of;
use crate::with_weir::{WEIR, WeirGuest};

/// The time of a request on a device: 250 requests per second.
const SERVICE_NS: u64 = 4_000_000;

/// The loads, which are declared as VMs: their requests per second. The first two are too many for
/// one device without queues.
const LOADS: [(&str, u64); 3] = [("web", 125), ("db", 110), ("log", 30)];

/// The seconds of a recording, and of the loads, which begin before it and end after it.
const RECORDED: u64 = 20;
const LOADED: u64 = 30;

impl WeirGuest {
    /// Records the loads, each on the device of this number.
    fn record(&mut self, devices: &[String], placement: [usize; 3], file: &str) {
        let mut declared = String::new();
        for (at, (name, rate)) in LOADS.iter().enumerate() {
            let load = DiskLoad {
                rate: *rate,
                count: rate * LOADED,
                depth: 8,
                span: 4 << 20,
                seed: at as u64,
                ..DiskLoad::on(&devices[placement[at]])
            };
            let pid = self.run(&format!("load {load} > /tmp/{name} 2>&1 & echo $!"));
            declared += &format!(" --vm {name}=pid:{}", pid.unwrap().trim());
        }
        let devices = devices.join(" --device ");
        let record = format!(
            "{WEIR} record --for {RECORDED}s -o {file} --device {devices}{declared} 2> {file}.err"
        );
        self.run(&record)
            .unwrap_or_else(|error| panic!("{record}: {error:#}"));
        self.run("wait").unwrap();
    }

    /// The mean latency of all requests of a recording in ns.
    fn mean(&mut self, file: &str) -> f64 {
        let query = "select avg(latency) as mean from IO";
        let query = format!("{WEIR} query --from {file} --final --format csv '{query}'");
        let printed = self.run(&query).unwrap();
        printed.trim().rsplit(',').next().unwrap().parse().unwrap()
    }
}

#[test]
fn what_is_predicted_for_two_devices_happens_after_the_move() {
    const TEST: &str = "what_is_predicted_for_two_devices_happens_after_the_move";
    if !is_full() {
        return;
    }
    let Some((kit, _turn)) = kit_of(TEST, &LINUX_6_1) else {
        return;
    };
    let folder = Scratch::new();
    std::fs::File::create(folder.path().join("unused"))
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    let unused = GuestDisk::new("unused", &folder.file("unused")).buffered();
    let mut args = ["-m", "1024", "-smp", "2"].map(str::to_owned).to_vec();
    args.extend(unused.args());
    let mut guest = WeirGuest::boot(&kit, TEST, "merging", folder, &args).unwrap();
    let module = format!(
        "load_module scsi_debug add_host=2 per_host_store=1 dev_size_mb=8 \
         ndelay={SERVICE_NS}"
    );
    guest.run(&module).unwrap();
    guest
        .run("for depth in /sys/block/sd*/device/queue_depth; do echo 1 > $depth; done")
        .unwrap();
    let devices = guest
        .run("for disk in /sys/block/sd*; do echo ${disk##*/}; done")
        .unwrap();
    let devices: Vec<String> = devices.lines().map(|name| format!("/dev/{name}")).collect();
    assert_eq!(devices.len(), 2, "{devices:?}");

    guest.record(&devices, [0, 0, 1], "/tmp/before.parquet");
    let advise = format!("{WEIR} advise --from /tmp/before.parquet --json");
    let report: Value = serde_json::from_str(&guest.run(&advise).unwrap()).unwrap();
    assert_eq!(report["outcome"]["kind"], "recommended", "{report}");
    let mut placement = [0, 0, 1];
    for change in report["moves"].as_array().unwrap() {
        let vm = change["disk"]["vm"].as_str().unwrap();
        let at = LOADS.iter().position(|(name, _)| *name == vm).unwrap();
        let to = change["to"]["device"].as_str().unwrap();
        placement[at] = devices.iter().position(|device| device == to).unwrap();
    }
    assert_ne!(placement[0], placement[1], "{report}");

    guest.record(&devices, placement, "/tmp/after.parquet");
    let happened = guest.mean("/tmp/after.parquet");
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{report}"));
    let [low, high] = [0, 1].map(|at| number(&report["predicted"]["interval_ns"][at]));
    println!(
        "recorded {:.2} ms; predicted {}; happened {:.2} ms",
        number(&report["recorded_ns"]) / 1e6,
        report["predicted"],
        happened / 1e6,
    );
    assert!(
        happened < number(&report["recorded_ns"]),
        "{happened} {report}"
    );
    assert!(low < happened && happened < high, "{happened} {report}");
}
