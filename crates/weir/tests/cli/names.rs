//! Names of VMs, disks and devices: those that do not exist on this host, and those of devices that
//! are observed only when they are named.

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::Duration;

use weir_testing::{LoopDisk, wait_until};

use crate::live::{loop_disk, on_disk, watchable};
use crate::refusals::{run_time, while_read};
use crate::support::{CommandOutput, DeviceLink, Scratch, run, skipped, weir};

#[test]
fn a_name_that_this_host_does_not_have_is_an_error() {
    for line in [
        "top -b -n 1 -d /dev/nosuch",
        "top -b -n 1 -w nosuchvm",
        "top -b -n 1 -w web --vm web1=comm:nosuch",
        "iostat nosuch 1 1",
        "iostat nosuchvm:vda 1 1",
        "iostat -p nosuch 1 1",
        "hist --for 1s -i nosuch",
        "hist --for 1s -w nosuchvm",
        "exporter -w nosuchvm --listen 127.0.0.1:0",
        "characterise --for 1s -d nosuch",
        "characterise --for 1s -i nosuch",
        "outliers --for 1s -i nosuch",
        "outliers --for 1s -w nosuchvm",
    ] {
        let args: Vec<&str> = line.split_whitespace().collect();
        let output = run(&args);
        assert_eq!(
            (output.code, output.out.as_str()),
            (2, ""),
            "{line}: {}",
            output.err
        );
        assert!(output.err.contains("no such"), "{line}: {}", output.err);
        if line.contains("web1") {
            assert!(
                output.err.contains("did you mean `web1`?"),
                "{}",
                output.err
            );
        }
    }
    // A recording may contain any name.
    let empty = Scratch::new();
    let trace = empty.write("t.csv", &crate::support::requests(3));
    run(&["top", "-b", "-w", "nosuchvm", "--from", &trace]).fine();
}

/// Runs `weir ARGS`, which must end without a signal, while the device is written to.
fn under_writes(args: &[&str], device: &str) -> CommandOutput {
    let mut command = weir(args);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The command drops its privileges after the probes are attached.
    let status = format!("/proc/{}/status", child.id());
    wait_until("it watches", || {
        fs::read_to_string(&status).is_ok_and(|text| text.contains("NoNewPrivs:\t1"))
    });
    // About half of the five seconds, whether they begin at the attachment or at the first batch.
    std::thread::sleep(Duration::from_secs(2));
    let target = format!("of={device}");
    let written = Command::new("dd")
        .args([
            "if=/dev/zero",
            &target,
            "bs=64k",
            "count=64",
            "oflag=direct",
        ])
        .stderr(Stdio::null())
        .status();
    assert!(written.unwrap().success());
    CommandOutput::of(child.wait_with_output().unwrap())
}

#[test]
fn a_stacked_device_is_watched_when_it_is_named_and_mentioned_when_it_is_not() {
    let test = "a_stacked_device_is_watched_when_it_is_named_and_mentioned_when_it_is_not";
    let scratch = Scratch::new();
    if !watchable(test) || !on_disk(test, scratch.path()) {
        return;
    }
    let image = scratch.path().join("image");
    File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let disk = match LoopDisk::on(&image, &["--direct-io=on"]) {
        Ok(disk) => disk,
        Err(why) => return skipped(test, format!("{why:#}")),
    };
    let path = disk.path();
    let name = path.trim_start_matches("/dev/");

    let count = "select count(*) as n from IO [range 1 h slide 1 h] where op = 'write'";
    let query = ["query", "--for", "5s", "--final", "--format", "csv", count];
    let output = under_writes(&query, path);
    assert!(
        output.err.contains("not observed separately"),
        "{}",
        output.err
    );
    assert!(output.err.contains(path), "{}", output.err);

    // The slide of an hour is incomplete at the end of the run; groups of the kernel and rows
    // agree.
    for rest in [&["--device", path][..], &["--device", path, "--no-fold"]] {
        let output = under_writes(&[&query[..], rest].concat(), path);
        assert!(
            output.err.contains("the last slide is incomplete"),
            "{}",
            output.err
        );
        assert!(
            !output.err.contains("not observed separately"),
            "{}",
            output.err
        );
        let out = output.fine();
        let writes = out.trim_end().rsplit(',').next().unwrap();
        let writes: u64 = writes.parse().unwrap();
        // The completion of some requests cannot be observed by any program.
        assert!((1..=64).contains(&writes), "{rest:?}: {out}");
    }

    let stdout = under_writes(&["iostat", "-d", name, "5", "1"], path).fine();
    let row = stdout.lines().find(|line| line.starts_with(name));
    let row: Vec<&str> = row.expect(&stdout).split_whitespace().collect();
    let written: u64 = row[6].parse().unwrap();
    assert!((64..=4_096).contains(&written), "kilobytes: {stdout}");
}

/// A zram device, removed when this is dropped.
struct Zram(String);

impl Zram {
    fn add(mebibytes: u64) -> std::io::Result<Zram> {
        let number = fs::read_to_string("/sys/class/zram-control/hot_add")?;
        let zram = Zram(number.trim().to_owned());
        let size = format!("/sys/block/zram{}/disksize", zram.0);
        fs::write(size, format!("{mebibytes}M"))?;
        Ok(zram)
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let _ = fs::write(format!("/sys/block/zram{}/reset", self.0), "1");
        let _ = fs::write("/sys/class/zram-control/hot_remove", &self.0);
    }
}

#[test]
fn a_device_without_requests_that_is_added_later_is_reported_as_not_observed() {
    let test = "a_device_without_requests_that_is_added_later_is_reported_as_not_observed";
    // A device that exists already is observed, and with it the one that is added.
    let is_bio_based = |disk: &fs::DirEntry| {
        let size = fs::read_to_string(disk.path().join("size")).unwrap_or_default();
        !disk.path().join("mq").exists() && size.trim() != "0"
    };
    let mut disks = fs::read_dir("/sys/block").unwrap().flatten();
    if !watchable(test) || disks.any(|disk| is_bio_based(&disk)) {
        return skipped(test, "this host has a device without requests");
    }
    let mut command = weir(&["query", "--for", "5s", "select op from IO"]);
    let command = command.stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    wait_until("it watches", || {
        fs::read_to_string(&status).is_ok_and(|text| text.contains("NoNewPrivs:\t1"))
    });
    let added = Zram::add(8);
    let output = child.wait_with_output().unwrap();
    let zram = match added {
        Ok(zram) => zram,
        Err(error) => return skipped(test, format!("no zram device: {error}")),
    };
    let err = String::from_utf8(output.stderr).unwrap();
    let expected = format!("not observed: /dev/zram{}, added after", zram.0);
    assert!(err.contains(&expected), "{err}");
}

/// The commands that take the name of a device accept a link in `/dev/disk` for it.
#[test]
fn a_link_names_a_device_in_each_command() {
    let test = "a_link_names_a_device_in_each_command";
    let Some(disk) = watchable(test).then(|| loop_disk(test)).flatten() else {
        return;
    };
    let link = DeviceLink::new(&disk, "cli");
    let scratch = Scratch::new();
    let recording = scratch.path().join("io.parquet").display().to_string();
    let device = format!("pdisk = '{}'", link.path());
    let name = disk.path().trim_start_matches("/dev/");
    let query = format!("select pdisk from IO where {device}");
    let commands: &[&[&str]] = &[
        &["query", &query],
        &["query", "--device", link.path(), "select pdisk from IO"],
        &["top", "-b", "-d", link.path()],
        &["iostat", link.path(), "0.5"],
        &["hist", "--json", "-i", link.path()],
        &["characterise", "-d", link.path()],
        &["record", "-o", &recording, "--where", &device],
        &[
            "record",
            "-o",
            &recording,
            "--force",
            "--device",
            link.path(),
        ],
    ];
    while_read(&disk, || {
        for args in commands {
            let output = run(&[args, &["--for", run_time(args[0])][..]].concat());
            let err = output.err.clone();
            let found = match args[0] {
                "record" => {
                    output.fine();
                    let recorded = "select pdisk from IO";
                    run(&["query", "--from", &recording, recorded]).fine()
                }
                _ => output.fine(),
            };
            assert!(found.contains(name), "{args:?}: {found}{err}");
            assert!(!found.contains("vda"), "{args:?}: {found}");
        }
    });
}
