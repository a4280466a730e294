//! Recordings of weir in the format of blktrace: btt and blkparse give the figures of queries.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

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

/// The completed requests of a trace.
const REQUESTS: &str = "select ts - timestamp '1970-01-01 00:00:00' as at, sector, wait, service, \
    merges from IO";

/// A trace that Linux 6.18 wrote, of two processors, in the order of time.
fn traced() -> Vec<u8> {
    let packed = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../weir-tap/tests/traces/mq-deadline.blktrace.gz"
    );
    let zcat = Command::new("zcat")
        .stdin(fs::File::open(packed).unwrap())
        .output();
    zcat.unwrap().stdout
}

/// The events of a trace, each with its processor.
fn events(trace: &[u8]) -> Vec<(u32, &[u8])> {
    let (mut events, mut rest) = (Vec::new(), trace);
    while rest.len() >= 48 {
        let u32_at = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
        let (cpu, length) = (u32_at(40), 48 + (u32_at(44) >> 16) as usize);
        events.push((cpu, &rest[..length]));
        rest = &rest[length..];
    }
    events
}

/// Starts a query of completed requests over a trace on standard input.
fn streamed() -> (std::process::Child, ChildStdin, BufReader<ChildStdout>) {
    let mut child = weir(&["query", "--from", "-", "--format", "csv", REQUESTS])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let input = child.stdin.take().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (child, input, out)
}

#[test]
fn rows_of_a_trace_in_a_pipe_appear_before_its_writer_ends() {
    let scratch = Scratch::new();
    let trace = traced();
    let file = scratch.file("x.blktrace.0");
    fs::write(&file, &trace).unwrap();
    let whole = run(&["query", "--from", &file, "--format", "csv", REQUESTS]).fine();
    // As blktrace -o - writes: what each processor has, one after the other.
    for chunk_events in [40, 150] {
        let (mut child, mut input, mut out) = streamed();
        let all = events(&trace);
        let half = all.len() / 2 / chunk_events * chunk_events;
        let send = |input: &mut ChildStdin, events: &[(u32, &[u8])]| {
            for chunk in events.chunks(chunk_events) {
                for cpu in [1, 0] {
                    let own = chunk.iter().filter(|(of, _)| *of == cpu);
                    let bytes: Vec<u8> = own.flat_map(|(_, event)| event.to_vec()).collect();
                    input.write_all(&bytes).unwrap();
                }
            }
        };
        send(&mut input, &all[..half]);
        // The pipe is open: these rows are of the first half.
        let mut lines = Vec::new();
        for _ in 0..20 {
            let mut line = String::new();
            assert!(out.read_line(&mut line).unwrap() > 0);
            lines.push(line);
        }
        assert!(child.try_wait().unwrap().is_none());
        send(&mut input, &all[half..]);
        drop(input);
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(lines.concat() + &rest, whole, "{chunk_events}");
    }
}

#[test]
fn a_slow_trace_in_a_pipe_is_read_as_it_comes() {
    let trace = traced();
    let (mut child, mut input, mut out) = streamed();
    let (send, sent) = std::sync::mpsc::channel::<()>();
    let writer = std::thread::spawn(move || {
        // An event and a half at a time, fewer than a block of memory, then silence. True if the
        // rows were read meanwhile.
        for part in trace[..48 * 60].chunks(72) {
            if sent.recv_timeout(Duration::from_millis(5)).is_ok() {
                return true;
            }
            input.write_all(part).unwrap();
            input.flush().unwrap();
        }
        sent.recv_timeout(Duration::from_secs(60)).is_ok()
    });
    let mut line = String::new();
    for _ in 0..5 {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0);
    }
    // Without a receiver the writer has ended, and the rows came after that.
    let _ = send.send(());
    assert!(writer.join().unwrap(), "rows before the end of the pipe");
    child.wait().unwrap();
}
