//! Processes of other users whose command lines claim the name and the QMP socket of a VM.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use weir_testing::{Scratch, is_root, skip, wait_until};

use crate::guests::{CommandOutput, Weir};

/// A directory that only root can read, inside a directory that every user can read.
fn folder() -> Scratch {
    let folder = Scratch::new();
    let private = folder.path().join("private");
    fs::create_dir(&private).unwrap();
    fs::set_permissions(&private, fs::Permissions::from_mode(0o700)).unwrap();
    folder
}

/// A shell with the name and the arguments of QEMU, run by an unprivileged user.
struct Fake(Child);

impl Fake {
    fn start(folder: &Scratch, uid: &str, arguments: &[&str]) -> Fake {
        let program = folder.file("qemu-system-x86_64");
        if !Path::new(&program).exists() {
            fs::copy("/bin/bash", &program).unwrap();
        }
        let user = ["--reuid", uid, "--regid", uid, "--clear-groups"];
        let mut command = Command::new("setpriv");
        command.args(user).args([&program, "-c", "read -r line"]);
        let child = command.args(arguments).stdin(Stdio::piped()).spawn();
        let fake = Fake(child.unwrap());
        let exe = format!("/proc/{}/exe", fake.0.id());
        wait_until("setpriv has become the shell", || {
            fs::read_link(&exe).is_ok_and(|path| path == Path::new(&program))
        });
        fake
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A QEMU in the background, without a guest.
struct Qemu {
    pid: u32,
}

impl Qemu {
    fn start(folder: &Scratch, name: &str, socket: &str) -> Qemu {
        let image = folder.file("private/image.raw");
        fs::write(&image, vec![0; 1 << 20]).unwrap();
        let pid_file = folder.file("private/pid");
        let monitor = format!("unix:{socket},server=on,wait=off");
        let blockdev = format!("driver=raw,node-name=n0,file.driver=file,file.filename={image}");
        let started = Command::new("qemu-system-x86_64")
            .args([
                "-M",
                "pc,accel=tcg",
                "-display",
                "none",
                "-nodefaults",
                "-S",
            ])
            .args(["-m", "64", "-msg", "timestamp=on", "-name", name])
            .args([
                "-blockdev",
                &blockdev,
                "-device",
                "virtio-blk-pci,drive=n0,id=d0",
            ])
            .args(["-qmp", &monitor, "-daemonize", "-pidfile", &pid_file])
            .status();
        assert!(started.unwrap().success());
        let pid = fs::read_to_string(pid_file).unwrap().trim().parse();
        Qemu { pid: pid.unwrap() }
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.pid.to_string()).status();
    }
}

fn can_try(test: &str) -> bool {
    let found = |tool: &str| Command::new(tool).arg("--version").output().is_ok();
    let why = match () {
        () if !is_root() => "only root can start processes of other users",
        () if !found("qemu-system-x86_64") => "qemu-system-x86_64 is not installed",
        () if !found("setpriv") => "setpriv is not installed",
        () if !Path::new("/bin/bash").exists() => "there is no /bin/bash",
        () => return true,
    };
    skip::<()>(test, why);
    false
}

fn weir(args: &[&str]) -> CommandOutput {
    Weir::start(args).finish()
}

fn logs_of(pid: u32) -> usize {
    let names = fs::read_dir("/run").unwrap().flatten();
    let own = format!("weir-trace-{pid}-");
    let is_own = |name: &fs::DirEntry| name.file_name().to_string_lossy().starts_with(&own);
    names.filter(is_own).count()
}

#[test]
fn a_vm_keeps_its_name_and_its_socket_from_a_process_that_claimed_them_first() {
    const TEST: &str = "a_vm_keeps_its_name_and_its_socket_from_a_process_that_claimed_them_first";
    if !can_try(TEST) {
        return;
    }
    let folder = folder();
    let name = format!("victim{}", std::process::id());
    let (socket, log) = (folder.file("private/qmp"), folder.file("private/log"));
    let monitor = format!("unix:{socket},server=on,wait=off");
    let claims = ["-name", &name, "-qmp", &monitor, "-D", &log];
    let fake = Fake::start(&folder, "65534", &claims);
    let qemu = Qemu::start(&folder, &name, &socket);
    let fake_pid = fake.0.id();

    let query = format!("select vm, pid, uid from vms where vm like '{name}%'");
    let printed = weir(&["query", "--for", "1s", "--final", "--format", "csv", &query]);
    assert_eq!(printed.code, Some(0), "{}", printed.err);
    let mut rows: Vec<String> = printed.rows().iter().map(|row| row.join(",")).collect();
    rows.sort_unstable();
    let expected = [
        format!("{name},{},0", qemu.pid),
        format!("{name}-{fake_pid},{fake_pid},65534"),
    ];
    assert_eq!(rows, expected, "{}", printed.err);
    let conflict = format!("VM name {name} is claimed by processes of several users");
    assert!(printed.err.contains(&conflict), "{}", printed.err);

    let from = |vm: &str| format!("qemu:{vm}");
    let traced = |vm: &str| {
        let from = from(vm);
        weir(&[
            "query",
            "--from",
            &from,
            "--for",
            "1s",
            "select op from IOstream",
        ])
    };
    let printed = traced(&name);
    assert_eq!(printed.code, Some(0), "{}", printed.err);
    assert_eq!(logs_of(qemu.pid), 0);
    let printed = traced(&format!("pid:{fake_pid}"));
    assert_eq!(printed.code, Some(1), "{}", printed.err);
    let foreign = format!("this QMP socket belongs to process {}", qemu.pid);
    assert!(printed.err.contains(&foreign), "{}", printed.err);
    assert!(
        !Path::new(&log).exists(),
        "QEMU logs to the file of the fake"
    );
}

#[test]
fn a_name_that_users_claim_with_equal_right_stands_for_none() {
    const TEST: &str = "a_name_that_users_claim_with_equal_right_stands_for_none";
    if !can_try(TEST) {
        return;
    }
    let folder = folder();
    let name = format!("twin{}", std::process::id());
    let one = Fake::start(&folder, "65534", &["-name", &name]);
    let _other = Fake::start(&folder, "65533", &["-name", &name]);
    let from = format!("qemu:{name}");
    let query = ["query", "--from", &from, "select op from IOstream"];
    let insert = ["tapdisk", "insert", "--vm", &name, "--disk", "/dev/vda"];
    let remove = ["tapdisk", "remove", "--vm", &name, "--disk", "/dev/vda"];
    for args in [&query[..], &insert, &remove] {
        let printed = weir(args);
        assert_eq!(printed.code, Some(1), "{args:?}: {}", printed.err);
        assert!(
            printed.err.contains("the name identifies none of them"),
            "{}",
            printed.err
        );
        let first = format!("(pid:{}, uid 65534)", one.0.id());
        assert!(printed.err.contains(&first), "{}", printed.err);
    }
}
