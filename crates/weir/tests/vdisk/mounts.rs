//! An unprivileged user mounts other files and directories over those of the trace log, in the
//! mount namespace of a process that is traced as root.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;

use rustix::fs::{FallocateFlags, fallocate};
use weir_tap::qmp::QmpAddress;
use weir_tap::vdisk::created::FileLocation;
use weir_tap::vdisk::guard::{Guard, Task};

use weir_testing::{is_root, skip, wait_until};

/// More bytes than the guard allows for the log.
const VICTIM_BYTES: u64 = 160 << 20;

/// A user with a user namespace and a mount namespace, which mounts one path over another on
/// request.
struct Attacker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

const SCRIPT: &str = "echo ready
while read -r from over; do mount --bind \"$from\" \"$over\" && echo mounted || echo refused; done";

impl Attacker {
    fn start(test: &str) -> Option<Attacker> {
        if !is_root() {
            return skip(test, "it takes root to start processes of other users");
        }
        let user = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
        let namespaces = ["unshare", "--user", "--map-root-user", "--mount"];
        let started = Command::new("setpriv")
            .args(user)
            .args(namespaces)
            .args(["sh", "-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = match started {
            Ok(child) => child,
            Err(error) => return skip(test, format!("setpriv: {error}")),
        };
        let mut attacker = Attacker {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        };
        match attacker.line() == "ready" {
            true => Some(attacker),
            false => skip(test, "users may not create user namespaces"),
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn mount(&mut self, from: &Path, over: &Path) {
        writeln!(self.input, "{} {}", from.display(), over.display()).unwrap();
        assert_eq!(self.line(), "mounted");
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory that all users can read and only root can write.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let folder = format!("weir-{name}-{}", std::process::id());
        let folder = Path::new("/var/tmp").join(folder);
        fs::create_dir(&folder).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn allocated(file: &File) -> u64 {
    file.metadata().unwrap().blocks() * 512
}

#[test]
fn a_file_mounted_over_the_log_is_left_alone() {
    const TEST: &str = "a_file_mounted_over_the_log_is_left_alone";
    let Some(mut attacker) = Attacker::start(TEST) else {
        return;
    };
    let folder = Folder::new("victim");
    let path = folder.0.join("victim");
    let victim = File::create_new(&path).unwrap();
    fallocate(&victim, FallocateFlags::empty(), 0, VICTIM_BYTES).unwrap();
    let before = allocated(&victim);
    let place = FileLocation {
        pid: attacker.child.id(),
        folder: "/var/tmp".into(),
        name: format!("weir-trace-{}-mounts.log", std::process::id()),
    };
    let log = place.create().unwrap();
    fallocate(&log.file, FallocateFlags::empty(), 0, VICTIM_BYTES).unwrap();
    attacker.mount(&path, &place.path());
    let program = [env!("CARGO_BIN_EXE_weir"), "qemu-guard"].map(OsString::from);
    let task = Task {
        vm: "mounts".into(),
        // QEMU does not answer, so the guard bounds the log's size.
        address: QmpAddress::Socket(folder.0.join("qmp")),
        events: Vec::new(),
        pid: place.pid,
        log_name: place.name.clone(),
        restore: "/dev/null".into(),
        logs: false,
        stands_in_for: None,
    };
    let guard = Guard::start(&program, &task, &log).unwrap();
    let ending = thread::spawn(move || drop(guard));
    wait_until("the guard has bounded a file", || {
        allocated(&log.file) == 0 || allocated(&victim) < before
    });
    assert_eq!(allocated(&victim), before, "the victim has lost its blocks");
    drop(attacker);
    ending.join().unwrap();
    wait_until("the log is removed", || !place.path().exists());
}

#[test]
fn a_folder_mounted_over_run_receives_no_file_that_its_user_may_not_create() {
    const TEST: &str = "a_folder_mounted_over_run_receives_no_file_that_its_user_may_not_create";
    let Some(mut attacker) = Attacker::start(TEST) else {
        return;
    };
    let folder = Folder::new("folder");
    attacker.mount(&folder.0, Path::new("/run"));
    let place = FileLocation {
        pid: attacker.child.id(),
        folder: "/run".into(),
        name: format!("weir-trace-{}-folder.log", std::process::id()),
    };
    let error = place.create().unwrap_err();
    assert_eq!(
        error.kind(),
        std::io::ErrorKind::PermissionDenied,
        "{error}"
    );
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
}
