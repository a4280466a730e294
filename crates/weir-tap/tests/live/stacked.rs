//! Stacked devices: nothing is counted twice unless requested; devices without requests are
//! observed as well.

use std::fs;
use std::process::Command;

use weir_model::event::value;
use weir_model::{Symbol, Test};
use weir_tap::ebpf::{DeviceChoice, LiveOptions};

use crate::watch::{Watch, demand, only};
use crate::{bench, skip};
use weir_testing::LoopDisk;

fn fio_on(device: &str, options: &str) -> i64 {
    let mut fio = Command::new("fio");
    fio.args([
        "--name=stacked",
        "--output-format=terse",
        "--terse-version=3",
    ]);
    fio.arg(format!("--filename={device}"))
        .args(options.split_whitespace());
    let output = fio.output().expect("fio starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let size = options
        .split("--io_size=")
        .nth(1)
        .and_then(|s| s.split('m').next());
    size.and_then(|s| s.parse::<i64>().ok())
        .expect("a size in MiB")
        * 256
}

#[test]
fn a_stacked_device_is_reported_once_by_default() {
    let Some(bench) = bench("a_stacked_device_is_reported_once_by_default", 64) else {
        return;
    };
    let lower = bench.disk.path();
    let upper = LoopDisk::on(lower.as_ref(), &["--direct-io=on"]).unwrap();
    let load =
        "--direct=1 --ioengine=libaio --iodepth=4 --rw=randread --bs=4k --io_size=8m --size=64m";
    let named = vec![Test::In {
        operand: value("pdisk"),
        texts: vec![Symbol::new(upper.path())],
    }];
    let all = LiveOptions {
        devices: DeviceChoice::All,
        ..LiveOptions::default()
    };
    let cases = [
        (
            "by default",
            Vec::new(),
            LiveOptions::default(),
            [true, false],
        ),
        ("all", Vec::new(), all, [true, true]),
        (
            "named in the query",
            named,
            LiveOptions::default(),
            [false, true],
        ),
        (
            "named by option",
            Vec::new(),
            only(upper.path()),
            [false, true],
        ),
    ];
    for (what, tests, options, expected) in cases {
        let watch = Watch::start(vec![demand("IO", "pdisk op service", tests)], &options);
        let ios = fio_on(upper.path(), load);
        let seen = watch.stop();
        let rows = seen.all();
        for (device, expected) in [lower, upper.path()].into_iter().zip(expected) {
            let count = rows.with("pdisk", device).with("op", "r").len() as i64;
            let unseen = seen.count("unseen", None, Some(device));
            let expected_rows = if expected {
                (ios - unseen)..=(ios + 64)
            } else {
                0..=0
            };
            assert!(
                expected_rows.contains(&count),
                "{what}: {device}: {count} of {ios}"
            );
        }
    }
}

/// A disk in compressed memory, which has no requests.
pub struct Zram(String);

impl Zram {
    pub fn new() -> Result<Zram, String> {
        let number = fs::read_to_string("/sys/class/zram-control/hot_add")
            .map_err(|e| format!("no zram: {e}"))?;
        let zram = Zram(number.trim().to_owned());
        fs::write(format!("/sys/block/zram{}/disksize", zram.0), "32M")
            .map_err(|e| format!("zram: {e}"))?;
        Ok(zram)
    }

    pub fn path(&self) -> String {
        format!("/dev/zram{}", self.0)
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let reset = fs::write(format!("/sys/block/zram{}/reset", self.0), "1");
        let removed = fs::write("/sys/class/zram-control/hot_remove", &self.0);
        if let Err(error) = reset.and(removed) {
            eprintln!("cleaning up zram{}: {error}", self.0);
        }
    }
}

#[test]
fn a_device_without_requests_is_seen_by_its_bios() {
    const TEST: &str = "a_device_without_requests_is_seen_by_its_bios";
    let Some(_bench) = bench(TEST, 16) else {
        return;
    };
    let zram = match Zram::new() {
        Ok(zram) => zram,
        Err(why) => {
            skip::<()>(TEST, &why);
            return;
        }
    };
    let load = "--direct=1 --ioengine=psync --rw=randwrite --bs=4k --io_size=4m --size=32m";
    for (stream, columns) in [
        (
            "recording",
            "type op pdisk sectors pid comm wait service latency",
        ),
        ("IO", "type op pdisk sectors comm"),
    ] {
        let watch = Watch::start(
            vec![demand(stream, columns, Vec::new())],
            &only(&zram.path()),
        );
        let ios = fio_on(&zram.path(), load);
        let seen = watch.stop();
        let writes = seen.all().with("op", "w");
        let done = writes.with("type", "R");
        assert_eq!(done.len() as i64, ios, "{stream}: {:?}", seen.counts);
        assert_eq!(done.sum("sectors"), ios * 8);
        assert_eq!(done.texts("pdisk"), [zram.path()]);
        assert_eq!(done.texts("comm"), ["fio"]);
        if stream == "recording" {
            assert_eq!(writes.with("type", "Q").len() as i64, ios);
            assert!(
                done.ints("wait").iter().all(|ns| *ns == 0),
                "there is no queue to wait in"
            );
            assert_eq!(done.ints("latency").len() as i64, ios);
        }
    }
}
