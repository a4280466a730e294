//! An image has one writer: this process, another tapdisk, or QEMU.
#![allow(unsafe_code)] // An I/O queue receives memory by its address.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use weir_model::Op;
use weir_tapdisk::{
    Completion, DiskError, DiskOptions, IoQueue, IoQueueOptions, Outcome, Request, ServedDisk,
};
use weir_testing::{LoopDisk, skipped};

/// A 1 MiB image in a folder that is removed at the end of the test. The folder is on the disk of
/// the build, because locks of files in memory differ.
struct Image(PathBuf, #[expect(dead_code)] TempDir);

impl Image {
    fn new() -> Image {
        let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = folder.path().join("disk.raw");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        Image(path, folder)
    }
}

fn options(path: &Path) -> DiskOptions {
    DiskOptions {
        lock_wait: Duration::ZERO,
        ..DiskOptions::new(path)
    }
}

fn read_only(path: &Path) -> DiskOptions {
    DiskOptions {
        read_only: true,
        ..options(path)
    }
}

/// Opens an image that is not locked, or will not be locked once the kernel has released the lock
/// of the previous owner.
fn opened(mut options: DiskOptions) -> Arc<ServedDisk> {
    options.lock_wait = Duration::from_secs(120);
    ServedDisk::open(options).unwrap()
}

fn in_use(options: DiskOptions) -> String {
    match ServedDisk::open(options) {
        Err(error @ DiskError::InUse { .. }) => error.to_string(),
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("it was opened"),
    }
}

#[test]
fn a_second_writer_is_rejected_until_the_first_has_ended() {
    let image = Image::new();
    let first = opened(options(&image.0));
    let error = in_use(options(&image.0));
    assert!(
        error.starts_with(&format!("{}: in use: ", image.0.display())),
        "{error}"
    );
    assert!(error.contains("stop that program"), "{error}");
    in_use(read_only(&image.0));
    drop(first);
    opened(options(&image.0));
}

#[test]
fn readers_share_an_image_and_exclude_writers() {
    let image = Image::new();
    let first = opened(read_only(&image.0));
    let second = opened(read_only(&image.0));
    in_use(options(&image.0));
    drop((first, second));
    opened(options(&image.0));
}

#[test]
fn an_io_queue_holds_the_lock_as_long_as_it_may_write() {
    let image = Image::new();
    let disk = opened(options(&image.0));
    let queue_options = weir_tapdisk::IoQueueOptions { queue: 0, depth: 8 };
    let io_queue = weir_tapdisk::IoQueue::new(&disk, queue_options).unwrap();
    drop(disk);
    in_use(options(&image.0));
    drop(io_queue);
    opened(options(&image.0));
}

#[test]
fn without_the_lock_other_writers_are_not_excluded() {
    let image = Image::new();
    let _first = opened(options(&image.0));
    let without = DiskOptions {
        lock: false,
        ..options(&image.0)
    };
    opened(without);
}

#[test]
fn the_lock_is_waited_for() {
    let image = Image::new();
    let first = opened(options(&image.0));
    let path = image.0.clone();
    let waiting = std::thread::spawn(move || {
        ServedDisk::open(DiskOptions {
            lock_wait: Duration::from_secs(120),
            ..options(&path)
        })
    });
    drop(first);
    waiting.join().unwrap().unwrap();
}

#[test]
fn a_device_in_use_is_rejected() {
    let test = "a_device_in_use_is_rejected";
    let device = match LoopDisk::new(16) {
        Ok(device) => device,
        Err(why) => return skipped(test, format!("{why:#}")),
    };
    let path = Path::new(device.path());
    let first = opened(options(path));
    in_use(options(path));
    drop(first);
    device.file_system().unwrap();
    assert!(in_use(options(path)).contains("mounted or claimed"));
}

/// A QEMU tool that keeps an image open until it is terminated.
struct Qemu(Child);

impl Qemu {
    fn open(path: &Path, options: &[&str]) -> Option<Qemu> {
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw"]).args(options).arg(path);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().ok()?;
        // Its response shows that it has opened the image.
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"length\n").unwrap();
        child.stdin = Some(input);
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        while !line.contains("MiB") {
            line.clear();
            assert!(
                output.read_line(&mut line).unwrap() > 0,
                "qemu-io has ended"
            );
        }
        Some(Qemu(child))
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The output of qemu-io for an attempt to read or write, and whether it succeeded; `None` without
/// qemu-io.
fn qemu_io(path: &Path, options: &[&str], command: &str) -> Option<(bool, String)> {
    let mut qemu = Command::new("qemu-io");
    qemu.args(["-f", "raw"])
        .args(options)
        .args(["-c", command])
        .arg(path);
    let output = qemu.output().ok()?;
    let output_text = [output.stdout, output.stderr].concat();
    let output_text = String::from_utf8_lossy(&output_text).into_owned();
    Some((output.status.success(), output_text))
}

#[test]
fn qemu_cannot_open_a_locked_image() {
    let image = Image::new();
    let disk = opened(options(&image.0));
    let Some((done, message)) = qemu_io(&image.0, &[], "write 0 512") else {
        return skipped(
            "qemu_cannot_open_a_locked_image",
            "no qemu-io here (package qemu-utils)",
        );
    };
    assert!(!done && message.contains("lock"), "{message}");
    // A copy of an image excludes writers.
    let copy = image.0.with_extension("copy");
    let mut convert = Command::new("qemu-img");
    convert
        .args(["convert", "-f", "raw", "-O", "raw"])
        .args([&image.0, &copy]);
    let output = convert.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && stderr.contains("lock"),
        "{stderr}"
    );
    drop(disk);
    // While a reader has the image open, QEMU may read it but not write it.
    let reader = opened(read_only(&image.0));
    let (done, message) = qemu_io(&image.0, &["-r"], "read 0 512").unwrap();
    assert!(done, "{message}");
    let (done, message) = qemu_io(&image.0, &[], "write 0 512").unwrap();
    assert!(!done && message.contains("lock"), "{message}");
    drop(reader);
    let (done, message) = qemu_io(&image.0, &[], "write 0 512").unwrap();
    assert!(done, "{message}");
}

#[test]
fn an_image_locked_by_qemu_is_rejected_with_its_name() {
    let image = Image::new();
    let Some(qemu) = Qemu::open(&image.0, &[]) else {
        let test = "an_image_locked_by_qemu_is_rejected_with_its_name";
        return skipped(test, "no qemu-io here (package qemu-utils)");
    };
    let error = in_use(options(&image.0));
    assert!(
        error.contains(&format!("qemu-io, pid {}", qemu.0.id())),
        "{error}"
    );
    in_use(read_only(&image.0));
    let without = DiskOptions {
        lock: false,
        ..options(&image.0)
    };
    opened(without);
    drop(qemu);
    opened(options(&image.0));
    let reader = Qemu::open(&image.0, &["-r"]).unwrap();
    opened(read_only(&image.0));
    drop(reader);
}

const BLOCK: usize = 4096;

/// Fills an image with a byte, many requests at a time, while `again` returns true.
fn fill(disk: &Arc<ServedDisk>, byte: u8, again: impl Fn() -> bool) {
    let depth = (disk.size_bytes() / BLOCK as u64) as u32;
    let mut io_queue = IoQueue::new(disk, IoQueueOptions { queue: 0, depth }).unwrap();
    let mut memory = vec![byte; 2 * BLOCK];
    let start = memory.as_ptr().align_offset(BLOCK);
    let buffer = libc::iovec {
        iov_base: memory[start..].as_mut_ptr().cast(),
        iov_len: BLOCK,
    };
    let mut done: Vec<Completion> = Vec::new();
    loop {
        for block in 0..u64::from(depth) {
            let request = Request {
                op: Op::Write,
                sector: block * 8,
                skip_bytes: 0,
                bytes: BLOCK as u64,
                fua: false,
                unmap: false,
            };
            // SAFETY: the memory is only read, and lasts until the I/O queue is gone.
            unsafe { io_queue.enqueue(request, &[buffer], block) };
        }
        io_queue.drain(&mut done).unwrap();
        assert!(done.drain(..).all(|done| done.outcome == Outcome::Done));
        if !again() {
            return;
        }
    }
}

/// The environment variable with the path of the image of [`killed_writer_process`].
const VICTIM: &str = "WEIR_TEST_KILLED_WRITERS_IMAGE";

#[test]
#[ignore = "another test runs it, to kill it"]
fn killed_writer_process() {
    if let Some(image) = std::env::var_os(VICTIM) {
        let disk = opened(options(Path::new(&image)));
        println!("writing");
        fill(&disk, 1, || true);
    }
}

#[test]
fn writes_of_a_killed_writer_never_overwrite_newer_data() {
    for _ in 0..5 {
        let image = Image::new();
        let mut victim = Command::new(std::env::current_exe().unwrap());
        victim.args([
            "--ignored",
            "--exact",
            "--nocapture",
            "killed_writer_process",
        ]);
        victim.env(VICTIM, &image.0).stdout(Stdio::piped());
        let mut victim = victim.spawn().unwrap();
        let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("writing")));
        // The process is writing once its data appear in the image.
        while !std::fs::read(&image.0).unwrap().contains(&1) {
            assert!(victim.try_wait().unwrap().is_none(), "it ended early");
        }
        in_use(options(&image.0));
        victim.kill().unwrap();
        let disk = opened(options(&image.0));
        fill(&disk, 2, || false);
        victim.wait().unwrap();
        let data = std::fs::read(&image.0).unwrap();
        assert!(data.iter().all(|byte| *byte == 2));
    }
}
