//! Advice on the placement of disks, against devices that are simulated here by other means, so
//! that what happens after a move is known.

use weir_model::{Nanos, Op};
use weir_workload::colocation::{
    ColocationOptions, ColocationReport, DiskStreams, LatencyObjective, PlacementOutcome,
    RecordedRequest, SharingAdvice, StreamCollector, advise,
};
use weir_workload::{HostedDisk, SubjectName};

const SECOND: Nanos = 1_000_000_000;
const SECONDS: Nanos = 40;

/// A request before it is served.
#[derive(Clone, Copy, Debug)]
struct Planned {
    arrival_ns: Nanos,
    sector: i64,
    sectors: i64,
    op: Op,
}

/// Requests at random times, as many per second as `rate` gives for the second.
fn load(seed: u64, sequential: bool, rate: impl Fn(Nanos) -> f64) -> Vec<Planned> {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut at, mut next, mut requests) = (0, 0, Vec::new());
    while at < SECONDS * SECOND {
        let rate = rate(at / SECOND);
        at += (-random.f64().max(1e-12).ln() / rate.max(0.5) * 1e9) as Nanos;
        let sector = if sequential {
            next
        } else {
            8 * random.i64(0..1_000_000)
        };
        next = sector + 8;
        if rate > 0.0 {
            requests.push(Planned {
                arrival_ns: at,
                sector,
                sectors: 8,
                op: if random.f64() < 0.7 {
                    Op::Read
                } else {
                    Op::Write
                },
            });
        }
    }
    requests
}

/// A device with heads, each of which serves a request at a time: a seek takes random time.
#[derive(Clone, Copy)]
struct Device {
    heads: usize,
    seek_us: i64,
}

const HARD_DISK: Device = Device {
    heads: 1,
    seek_us: 2_000,
};

const FLASH: Device = Device {
    heads: 4,
    seek_us: 400,
};

impl Device {
    /// The completed requests of each load.
    fn serve(self, loads: &[&[Planned]], seed: u64) -> Vec<Vec<RecordedRequest>> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut all: Vec<(usize, Planned)> = Vec::new();
        for (number, load) in loads.iter().enumerate() {
            all.extend(load.iter().map(|planned| (number, *planned)));
        }
        all.sort_by_key(|(_, planned)| planned.arrival_ns);
        let mut free = vec![0; self.heads];
        let mut head = None;
        let mut served = vec![Vec::new(); loads.len()];
        for (number, planned) in all {
            let jitter = random.i64(500..1_500);
            let service_us = match head == Some((number, planned.sector)) {
                true => 50,
                false => self.seek_us,
            };
            head = Some((number, planned.sector + planned.sectors));
            let next = free.iter_mut().min().expect("a device has a head");
            let end = (*next).max(planned.arrival_ns) + service_us * jitter;
            *next = end;
            served[number].push(RecordedRequest {
                arrival_ns: planned.arrival_ns,
                latency_ns: end - planned.arrival_ns,
                wait_ns: None,
                op: planned.op,
                sector: Some(planned.sector),
                sectors: planned.sectors,
            });
        }
        served
    }
}

/// Disks, each a load on one of the devices `/dev/sda`, `/dev/sdb`, ..
struct Recording {
    device: Device,
    loads: Vec<Vec<Planned>>,
}

impl Recording {
    /// The requests of each disk, when the disks are on these devices.
    fn served(&self, placement: &[usize], seed: u64) -> Vec<Vec<RecordedRequest>> {
        let mut served = vec![Vec::new(); self.loads.len()];
        for device in 0..=*placement.iter().max().unwrap() {
            let disks: Vec<usize> = (0..placement.len())
                .filter(|disk| placement[*disk] == device)
                .collect();
            let loads: Vec<&[Planned]> = disks.iter().map(|disk| &self.loads[*disk][..]).collect();
            let of = self.device.serve(&loads, seed + device as u64);
            for (disk, requests) in disks.into_iter().zip(of) {
                served[disk] = requests;
            }
        }
        served
    }

    fn streams(&self, placement: &[usize], seed: u64) -> DiskStreams {
        let mut collector = StreamCollector::default();
        for (disk, requests) in self.served(placement, seed).into_iter().enumerate() {
            for request in requests {
                collector.add(name(disk, placement[disk]), Some(request));
            }
        }
        collector.finish()
    }

    fn advice(&self, placement: &[usize], seed: u64) -> ColocationReport {
        self.advice_on(placement, seed, LatencyObjective::Mean)
    }

    fn advice_on(
        &self,
        placement: &[usize],
        seed: u64,
        objective: LatencyObjective,
    ) -> ColocationReport {
        let options = ColocationOptions {
            objective,
            changes_max: 3,
        };
        advise(self.streams(placement, seed), Vec::new(), options)
    }

    /// The mean latency of the second half, when the disks are on these devices.
    fn mean_of_second_half(&self, placement: &[usize], seed: u64) -> f64 {
        let served = self.served(placement, seed);
        let second = served.iter().flatten();
        let second = second.filter(|r| r.arrival_ns >= SECONDS * SECOND / 2);
        let latencies: Vec<f64> = second.map(|r| r.latency_ns as f64).collect();
        latencies.iter().sum::<f64>() / latencies.len() as f64
    }
}

const VMS: [&str; 5] = ["vm0", "vm1", "vm2", "vm3", "vm4"];
const DEVICES: [&str; 3] = ["/dev/sda", "/dev/sdb", "/dev/sdc"];

fn name(disk: usize, device: usize) -> HostedDisk {
    HostedDisk::from(SubjectName {
        vm: Some(VMS[disk]),
        vdisk: Some("/dev/vda"),
        pdisk: Some(DEVICES[device]),
    })
}

/// The placement after the moves of a report.
fn after(report: &ColocationReport, placement: &[usize]) -> Vec<usize> {
    let mut placement = placement.to_vec();
    for change in &report.moves {
        let disk = VMS.iter().position(|vm| change.disk.name.vm == Some(*vm));
        let device = DEVICES
            .iter()
            .position(|device| change.to.device == *device);
        placement[disk.unwrap()] = device.unwrap();
    }
    placement
}

/// Two disks that are busy together on one device, and one that is busy in between on the other.
fn crowded(seed: u64, device: Device) -> Recording {
    let scale = 2_000.0 * device.heads as f64 / device.seek_us as f64;
    let busy = move |second: Nanos| {
        if second % 4 < 2 {
            220.0 * scale
        } else {
            15.0 * scale
        }
    };
    let idle = move |second: Nanos| {
        if second % 4 < 2 {
            10.0 * scale
        } else {
            150.0 * scale
        }
    };
    Recording {
        device,
        loads: vec![
            load(seed, false, busy),
            load(seed + 1, false, busy),
            load(seed + 2, false, idle),
        ],
    }
}

#[test]
fn a_recommendation_and_its_interval_hold_on_the_second_half() {
    let placement = [0, 0, 1];
    for device in [HARD_DISK, FLASH] {
        for seed in (0..50).step_by(10) {
            let recording = crowded(seed, device);
            let report = recording.advice(&placement, seed);
            assert_eq!(
                report.outcome,
                PlacementOutcome::Recommended,
                "{seed} {report:#?}"
            );
            let advised = after(&report, &placement);
            assert_ne!(advised[0], advised[1], "{advised:?}");
            let before = recording.mean_of_second_half(&placement, seed);
            // What happens after the move, with other random numbers than those recorded.
            let happened = recording.mean_of_second_half(&advised, seed + 1_000);
            let predicted = report.predicted.unwrap();
            let [low, high] = predicted.interval_ns;
            assert!(happened < before, "{happened} {before}");
            assert!(
                low < happened && happened < high,
                "{happened} {predicted:?}"
            );
            let error = (predicted.value_ns / happened).ln().abs();
            assert!(error < 0.15, "{seed}: {happened} {predicted:?}");
            let recorded = report.recorded_ns.unwrap();
            assert!(
                (recorded / before - 1.0).abs() < 0.01,
                "{recorded} {before}"
            );
        }
    }
}

#[test]
fn the_number_of_heads_is_found_where_requests_queue() {
    for (device, heads) in [(HARD_DISK, 1), (FLASH, 4)] {
        let report = crowded(3, device).advice(&[0, 0, 1], 3);
        let busy = &report.devices[0];
        // More channels may explain it as well, fewer do not.
        assert_eq!(busy.channels[0], Some(heads), "{:?}", busy.channels);
        assert!(
            busy.accuracy.unwrap().mean_factor < 1.4,
            "{:?}",
            busy.accuracy
        );
    }
}

#[test]
fn equal_disks_on_equal_devices_stay_where_they_are() {
    let placement = [0, 0, 1, 1];
    let mut recommended = 0;
    for seed in 0..20 {
        let rate = |_| 80.0;
        let recording = Recording {
            device: HARD_DISK,
            loads: (0..4)
                .map(|disk| load(100 * seed + disk, false, rate))
                .collect(),
        };
        let report = recording.advice(&placement, seed);
        recommended += u32::from(report.outcome == PlacementOutcome::Recommended);
    }
    assert_eq!(recommended, 0);
}

#[test]
fn a_sequential_disk_is_separated_from_a_random_one() {
    // Each alone uses a fraction of the device; together each sequential request is a seek.
    let recording = Recording {
        device: HARD_DISK,
        loads: vec![
            load(1, true, |_| 330.0),
            load(2, false, |_| 110.0),
            load(3, false, |second| if second % 2 == 0 { 100.0 } else { 1.0 }),
        ],
    };
    let placement = [0, 0, 1];
    let report = recording.advice(&placement, 7);
    assert_eq!(report.outcome, PlacementOutcome::Recommended, "{report:#?}");
    let advised = after(&report, &placement);
    assert_ne!(advised[0], advised[1], "{advised:?}");
    let happened = recording.mean_of_second_half(&advised, 1_007);
    let [low, high] = report.predicted.unwrap().interval_ns;
    assert!(
        low < happened && happened < high,
        "{happened} {:?}",
        report.predicted
    );
    let pair = |a: &str, b: &str| {
        let found = report.sharing.iter().find(|shared| {
            let vms = shared.disks.each_ref().map(|disk| disk.name.vm.unwrap());
            vms == [a, b] || vms == [b, a]
        });
        found.unwrap().clone()
    };
    let apart = pair("vm0", "vm1");
    assert_eq!(apart.advice, SharingAdvice::Separate, "{apart:?}");
    assert!(apart.affinity.sequential_difference > 0.5, "{apart:?}");
}

#[test]
fn the_99th_percentile_is_an_objective() {
    let placement = [0, 0, 1];
    let recording = crowded(5, HARD_DISK);
    let report = recording.advice_on(&placement, 5, LatencyObjective::P99);
    assert_eq!(report.outcome, PlacementOutcome::Recommended, "{report:#?}");
    let mut happened: Vec<Nanos> = recording
        .served(&after(&report, &placement), 1_005)
        .into_iter()
        .flatten()
        .filter(|request| request.arrival_ns >= SECONDS * SECOND / 2)
        .map(|request| request.latency_ns)
        .collect();
    happened.sort_unstable();
    let happened = happened[happened.len() * 99 / 100] as f64;
    let [low, high] = report.predicted.unwrap().interval_ns;
    assert!(
        low < happened && happened < high,
        "{happened} {:?}",
        report.predicted
    );
}

#[test]
fn what_cannot_be_predicted_is_not_recommended() {
    let none = advise(
        DiskStreams::default(),
        Vec::new(),
        ColocationOptions {
            objective: LatencyObjective::Mean,
            changes_max: 3,
        },
    );
    assert_eq!(none.outcome, PlacementOutcome::NoRequests);
    let recording = crowded(1, HARD_DISK);
    assert_eq!(
        recording.advice(&[0, 0, 0], 1).outcome,
        PlacementOutcome::OneDevice
    );
    // The second device only ever had small requests, the others are of 256 KiB.
    let mut large = crowded(1, HARD_DISK);
    for load in &mut large.loads[..2] {
        load.iter_mut().for_each(|planned| planned.sectors = 512);
    }
    let report = large.advice(&[0, 0, 1], 1);
    let unmeasured = matches!(report.outcome, PlacementOutcome::UnmeasuredRequests(_));
    assert!(unmeasured, "{:?}", report.outcome);
}

#[test]
fn a_closed_loop_is_slowed_by_its_neighbour_and_not_the_recorded_rate() {
    // One request in flight on a device of its own, 20 us after each completion; and a disk with
    // requests at random times on another one.
    let mut random = fastrand::Rng::with_seed(4);
    let mut collector = StreamCollector::default();
    let mut at = 0;
    while at < 20 * SECOND {
        let latency_ns = 2_000 * random.i64(500..1_500);
        let request = RecordedRequest {
            arrival_ns: at,
            latency_ns,
            wait_ns: None,
            op: Op::Read,
            sector: Some(8 * random.i64(0..1_000_000)),
            sectors: 8,
        };
        collector.add(name(0, 0), Some(request));
        at += latency_ns + 20_000;
    }
    let mut open = load(5, false, |_| 100.0);
    open.retain(|planned| planned.arrival_ns < 20 * SECOND);
    open.iter_mut().for_each(|planned| planned.op = Op::Read);
    for request in &HARD_DISK.serve(&[&open], 6)[0] {
        collector.add(name(1, 1), Some(*request));
    }
    let options = ColocationOptions {
        objective: LatencyObjective::Mean,
        changes_max: 3,
    };
    let report = advise(collector.finish(), Vec::new(), options);
    assert!(report.disks[0].shape.closed_loop && !report.disks[1].shape.closed_loop);
    assert_ne!(report.outcome, PlacementOutcome::Recommended);
    // With one head, the closed loop alone occupies the device: a request of the other disk waits
    // for the one that is served, and the other way round. With several heads neither waits.
    let shared = &report.sharing[0];
    assert!(
        shared.slowdown_interval[0] < 1.1 && shared.slowdown < 2.5,
        "{shared:?}"
    );
}
