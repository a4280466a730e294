//! Runs of the binary, and small inputs for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use weir_testing::{LoopDisk, unseen_max};

pub use weir_testing::{Scratch, skipped};

/// Whether all requests were reported, except the completions that no program can observe.
pub fn all_but_missed(reported: u64, made: u64) -> bool {
    reported <= made && made - reported <= unseen_max(made)
}

/// The binary with these arguments.
pub fn weir(args: &[&str]) -> Command {
    // Another build, such as an optimised one whose cost is measured.
    let other = std::env::var_os("WEIR_TEST_PROGRAM");
    let program = other.unwrap_or_else(|| env!("CARGO_BIN_EXE_weir").into());
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    command
}

/// The output of the binary, and its exit code.
pub struct CommandOutput {
    pub out: String,
    pub err: String,
    pub code: i32,
}

impl CommandOutput {
    /// The output of a finished run.
    pub fn of(output: Output) -> CommandOutput {
        CommandOutput {
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
            code: output.status.code().expect("not killed by a signal"),
        }
    }

    /// Standard output, after asserting that the run succeeded.
    pub fn fine(self) -> String {
        assert_eq!(self.code, 0, "{}", self.err);
        self.out
    }
}

/// A link in `/dev/disk/by-id` to a device, which udev does not know.
pub struct DeviceLink(String);

impl DeviceLink {
    /// Makes the link; `name` distinguishes those of one process.
    pub fn new(disk: &LoopDisk, name: &str) -> DeviceLink {
        let link = format!("/dev/disk/by-id/weir-test-{}-{name}", std::process::id());
        fs::create_dir_all("/dev/disk/by-id").unwrap();
        std::os::unix::fs::symlink(disk.path(), &link).unwrap();
        DeviceLink(link)
    }

    pub fn path(&self) -> &str {
        &self.0
    }
}

impl Drop for DeviceLink {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Runs the binary to its end.
pub fn run(args: &[&str]) -> CommandOutput {
    CommandOutput::of(weir(args).output().unwrap())
}

/// Runs the binary to its end in `directory`.
pub fn run_in(directory: &Path, args: &[&str]) -> CommandOutput {
    CommandOutput::of(weir(args).current_dir(directory).output().unwrap())
}

/// `count` requests to one disk as an MSR Cambridge trace: 1 ms apart from 2007-02-22 17:00:03 on,
/// reads of 4 KiB and every fourth a write of 8 KiB, each taking 0.5 ms.
pub fn requests(count: usize) -> String {
    let line = |i: usize| {
        let ts = 128_166_372_030_000_000 + 10_000 * i as u64;
        let (op, size) = if i % 4 == 3 {
            ("Write", 8192)
        } else {
            ("Read", 4096)
        };
        format!("{ts},vm1,0,{op},{},{size},5000\n", 4096 * i)
    };
    (0..count).map(line).collect()
}

/// Sends SIGINT.
pub fn interrupt(child: &Child) {
    let status = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(status.unwrap().success());
}

/// The directory of sample data beside the project; otherwise logs that `test` is skipped.
pub fn shared(test: &str, folder: &str) -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let shared = std::env::var_os("WEIR_SHARED").map_or_else(beside, PathBuf::from);
    let path = shared.join("data").join(folder);
    if path.is_dir() {
        return Some(path.canonicalize().unwrap());
    }
    skipped(test, format!("no sample data at {}", path.display()));
    None
}
