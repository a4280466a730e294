//! Recordings of weir in the format of blktrace: btt and blkparse give the figures of queries.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use weir_testing::{LoopDisk, wait_until};

use crate::live::watched_disk;
use crate::support::{Scratch, run, skipped, weir};

/// The output of a program in a directory; `None` if it is not installed.
fn output(program: &str, args: &[&str], directory: &Path) -> Option<String> {
    let output = Command::new(program)
        .args(args)
        .current_dir(directory)
        .output();
    let output = output.ok()?;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{program} {args:?}: {text}");
    Some(text)
}

/// Mean in seconds and count of a line of btt.
fn line_of(text: &str, name: &str) -> (f64, u64) {
    let line = text
        .lines()
        .find(|l| l.split_whitespace().next() == Some(name));
    let line = line.unwrap_or_else(|| panic!("{name} in {text}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    (words[2].parse().unwrap(), words[4].parse().unwrap())
}

/// A number of the last row of a query.
fn number(from: &str, query: &str) -> f64 {
    let args = ["query", "--from", from, "--format", "csv", "--final", query];
    let out = run(&args).fine();
    let row = out.lines().last().unwrap();
    let value = row.rsplit(',').next().unwrap();
    value.parse().unwrap_or_else(|_| panic!("{query}: {out}"))
}

/// Records what reads and writes of each block once, and writes through the page cache, do to a
/// device.
fn recorded(disk: &LoopDisk, scratch: &Scratch, name: &str) -> String {
    let path = scratch.file(name);
    let args = [
        "record",
        "--device",
        disk.path(),
        "--for",
        "60s",
        "-o",
        &path,
    ];
    let child = weir(&args).stderr(Stdio::null()).spawn().unwrap();
    let block = |i: usize| {
        let (to, seek) = (format!("of={}", disk.path()), format!("seek={i}"));
        let args = [
            "if=/dev/zero",
            &to,
            &seek,
            "bs=4k",
            "count=1",
            "oflag=direct",
            "conv=notrunc",
        ];
        weir_testing::run("dd", &args).unwrap();
    };
    wait_until("the recording has rows", || {
        block(7);
        fs::metadata(&path).is_ok_and(|file| file.len() > 4)
    });
    let file = format!("--filename={}", disk.path());
    let fio = [
        "--name=x",
        &file,
        "--rw=randrw",
        "--bs=4k",
        "--size=8m",
        "--offset=1m",
    ];
    let engine = [
        "--direct=1",
        "--ioengine=libaio",
        "--iodepth=8",
        "--minimal",
    ];
    weir_testing::run("fio", &[&fio[..], &engine].concat()).unwrap();
    let to = format!("of={}", disk.path());
    let buffered = [
        "if=/dev/zero",
        &to,
        "bs=4k",
        "count=512",
        "seek=4096",
        "conv=fsync,notrunc",
    ];
    weir_testing::run("dd", &buffered).unwrap();
    crate::support::interrupt(&child);
    child.wait_with_output().unwrap();
    path
}

#[test]
fn btt_and_blkparse_give_the_figures_of_a_recording() {
    let test = "btt_and_blkparse_give_the_figures_of_a_recording";
    let Some(disk) = watched_disk(test) else {
        return;
    };
    for scheduler in ["none", "mq-deadline"] {
        let scratch = Scratch::new();
        if fs::write(disk.sysfs().join("queue/scheduler"), scheduler).is_err() {
            skipped(test, format!("no scheduler {scheduler}"));
            continue;
        }
        let from = recorded(&disk, &scratch, "x.parquet");
        run(&["convert", &from, &scratch.file("x.blktrace.0")]).fine();
        let Some(text) = output("btt", &["-i", "x.blktrace.0"], scratch.path()) else {
            return skipped(test, "needs btt of package blktrace");
        };
        let timed = "from IO where wait is not null and service is not null and op <> 'f'";
        let of = |expression: &str| number(&from, &format!("select {expression} {timed}"));
        // btt counts D2C of each bio, and I2D of each request. Its Q2C depends on the Q that it
        // finds for a flush, which has no sector.
        let bios = of("sum(merges + 1)");
        for (line, mean_ns, count) in [
            ("I2D", of("avg(wait)"), of("count(*)")),
            (
                "M2D",
                of("sum(wait * merges)") / of("sum(merges)"),
                of("sum(merges)"),
            ),
            ("D2C", of("sum(service * (merges + 1))") / bios, bios),
            // btt prints 1 ns for equal times.
            ("Q2G", 1.0, of("count(*)")),
            ("G2I", 1.0, of("count(*)")),
        ] {
            let (mean_s, number) = line_of(&text, line);
            assert_eq!(number as f64, count, "{scheduler} {line}: {text}");
            assert!(
                (1e9 * mean_s - mean_ns).abs() <= 1.0,
                "{scheduler} {line} {mean_ns}: {text}"
            );
        }
        assert!(
            of("sum(merges)") > 100.0 && of("count(*)") > 2_000.0,
            "{text}"
        );
        // Of a page cache of 2 MiB, in bios of 4 KiB.
        let args = ["-i", "x", "-q", "-f", "%a\n"];
        let actions = output("blkparse", &args, scratch.path()).expect("of the same package");
        let merges = actions.lines().filter(|action| *action == "M").count();
        assert_eq!(merges as f64, of("sum(merges)"));
    }
}
