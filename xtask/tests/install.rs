//! The Debian package in a clean root with systemd: installed, used, upgraded, removed and purged.
//!
//! It takes minutes, so it runs with `cargo xtask test --all` only. The root is made by mmdebstrap
//! and booted by systemd-nspawn.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use weir_testing::{Scratch, is_full, is_root, skip};

/// The packages of the root besides the essential ones: systemd, and what weir depends on, so that
/// apt needs no mirror; udev makes the group kvm.
const PACKAGES: &str = "--include=systemd,systemd-sysv,dbus,udev,libelf1,zlib1g";

/// Directories whose files change without weir.
const VOLATILE: &[&str] = &[
    "/dev",
    "/proc",
    "/sys",
    "/run",
    "/tmp",
    "/root",
    "/var/cache",
    "/var/log",
    "/var/tmp",
    "/var/lib/apt",
    "/var/lib/dpkg",
    "/var/lib/systemd/timers",
    "/var/lib/systemd/random-seed",
];

/// The capabilities of the agent and the exporter: CAP_DAC_READ_SEARCH (bit 2), CAP_SYS_PTRACE
/// (19), CAP_PERFMON (38) and CAP_BPF (39).
const OBSERVING: &str = "000000c000080004";

/// Those of `weir act serve`: CAP_CHOWN (bit 0), CAP_DAC_OVERRIDE (1), CAP_DAC_READ_SEARCH (2) and
/// CAP_SYS_PTRACE (19).
const ACTING: &str = "0000000000080007";

/// Starts a tapdisk with the example of the package, for an image where libvirt keeps them.
const TAPDISK: &str = "
set -e
images=/var/lib/libvirt/images
mkdir -p $images && truncate -s 64M $images/web.raw
chgrp kvm $images/web.raw && chmod 660 $images/web.raw
cp /usr/share/doc/weir/examples/tapdisk.toml /etc/weir/tapdisk/web.toml
systemctl start weir-tapdisk@web";

/// Waits at most so many seconds for a condition, and returns it.
fn within(seconds: u64, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(seconds);
    while !condition() {
        if Instant::now() > end {
            return false;
        }
        sleep(Duration::from_millis(200));
    }
    true
}

/// A booted root.
struct Root {
    directory: PathBuf,
    nspawn: Child,
    /// The process number of its systemd on this host.
    init: String,
}

impl Root {
    /// Makes a root of Debian 12 and boots it; `None`, reported, where that is not possible.
    fn boot(test: &str, directory: PathBuf) -> Option<Self> {
        let mut make = Command::new("mmdebstrap");
        make.args(["--variant=apt", PACKAGES, "bookworm"])
            .arg(&directory);
        let made = make
            .output()
            .map_or_else(|why| skip(test, format!("mmdebstrap: {why}")), Some)?;
        if !made.status.success() {
            let errors = String::from_utf8_lossy(&made.stderr).into_owned();
            return skip(
                test,
                format!("mmdebstrap: {}", errors.lines().last().unwrap_or_default()),
            );
        }
        // It may do what weir needs; the units restrict it.
        let capabilities = "--capability=CAP_BPF,CAP_PERFMON,CAP_SYS_PTRACE,CAP_SYS_RESOURCE";
        let calls = "--system-call-filter=bpf perf_event_open io_uring_setup io_uring_enter \
                     io_uring_register";
        let options = [
            "--register=no",
            "--keep-unit",
            "--boot",
            "--console=pipe",
            capabilities,
            calls,
        ];
        let mut nspawn = Command::new("systemd-nspawn");
        nspawn.args(options).arg("--directory").arg(&directory);
        nspawn.env("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY", "1");
        let quiet = nspawn
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let nspawn = quiet
            .spawn()
            .map_or_else(|why| skip(test, format!("systemd-nspawn: {why}")), Some)?;
        let mut root = Self {
            directory,
            nspawn,
            init: String::new(),
        };
        let pid = root.nspawn.id();
        let children = format!("/proc/{pid}/task/{pid}/children");
        let is_booted = within(120, || {
            let found = fs::read_to_string(&children).unwrap_or_default();
            root.init = found.split_whitespace().next().unwrap_or("0").to_owned();
            let state = root.output("systemctl is-system-running");
            ["running\n", "degraded\n"].contains(&&*String::from_utf8_lossy(&state.stdout))
        });
        match is_booted {
            true => Some(root),
            false => skip(
                test,
                "the root does not boot in systemd-nspawn on this host",
            ),
        }
    }

    /// Runs a script in the root.
    fn output(&self, script: &str) -> Output {
        let environment = [
            "-i",
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            "DEBIAN_FRONTEND=noninteractive",
        ];
        let mut command = Command::new("nsenter");
        command.args([
            "--target", &self.init, "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup",
        ]);
        command
            .args(["--root", "--wd", "--", "env"])
            .args(environment);
        command
            .args(["LC_ALL=C", "sh", "-c", script])
            .output()
            .expect("nsenter runs")
    }

    /// Standard output of a script that succeeds.
    fn run(&self, script: &str) -> String {
        let done = self.output(script);
        let printed = String::from_utf8_lossy(&done.stdout).into_owned();
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(
            done.status.success(),
            "{script}: {}\n{printed}{errors}",
            done.status
        );
        printed
    }

    fn property(&self, service: &str, name: &str) -> String {
        let value = self.run(&format!(
            "systemctl show --value --property {name} {service}"
        ));
        value.trim().to_owned()
    }

    /// Every file except volatile ones.
    fn files(&self) -> BTreeSet<String> {
        let prune: Vec<String> = VOLATILE
            .iter()
            .map(|path| format!("-path {path} -prune -o"))
            .collect();
        let found = self.run(&format!("find / -xdev {} -print", prune.join(" ")));
        found.lines().map(str::to_owned).collect()
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // The end of its first process ends all others; nspawn then removes the mounts.
        let _ = self.output("systemctl poweroff --force --force");
        let has_ended = within(30, || {
            self.nspawn.try_wait().is_ok_and(|status| status.is_some())
        });
        if !has_ended {
            let _ = self.nspawn.kill();
            let _ = self.nspawn.wait();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The Debian package of the tests' binary with a version, copied to `/root` of a root.
fn package(root: &Root, scratch: &Scratch, version: &str) -> String {
    let binary = Path::new(env!("CARGO_BIN_EXE_xtask")).with_file_name("weir");
    let output = PathBuf::from(scratch.file(version));
    let options = [
        "--fast",
        "--format",
        "deb",
        "--maintainer",
        "weir <weir@example.org>",
    ];
    let done = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .arg("package")
        .args(options)
        .args(["--version", version])
        .arg("--binary")
        .arg(binary)
        .arg("--output")
        .arg(&output)
        .output()
        .expect("xtask runs");
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    let name = format!("weir_{version}-1_amd64.deb");
    fs::copy(output.join(&name), root.directory.join("root").join(&name)).expect("the package");
    format!("/root/{name}")
}

#[test]
fn the_package_installs_upgrades_and_leaves_nothing() {
    let test = "the_package_installs_upgrades_and_leaves_nothing";
    if !is_full() {
        return;
    }
    if !is_root() {
        return weir_testing::skipped(test, "not root");
    }
    let scratch = Scratch::new();
    let Some(root) = Root::boot(test, PathBuf::from(scratch.file("root"))) else {
        return;
    };
    let first = package(&root, &scratch, env!("CARGO_PKG_VERSION"));
    let second = package(&root, &scratch, "99.0.0");
    let before = root.files();

    root.run(&format!(
        "apt-get install -y {first} && weir doctor && weir top -b -n 1"
    ));
    root.run("getent group weir && man=/usr/share/man/man1/weir-top.1.gz && test -s $man");
    for service in ["weir-act", "weir-agent", "weir-monitor", "weir-exporter"] {
        assert_eq!(
            root.property(service, "ActiveState"),
            "inactive",
            "{service}"
        );
        assert_eq!(
            root.property(service, "UnitFileState"),
            "disabled",
            "{service}"
        );
    }
    root.run("cd /usr/lib/systemd/system && systemd-analyze verify --man=no ./weir-*.service");

    root.run("systemctl start weir-act weir-monitor weir-agent weir-exporter");
    root.run(TAPDISK);
    services_have_only_their_rights(&root);
    let status = root.run("weir tapdisk status --json /run/weir-tapdisk/web/vda.tap");
    assert!(status.contains("\"web\""), "{status}");
    root.run("systemctl reload weir-monitor weir-agent");
    let host = root.run("hostname");
    let hosts = || String::from_utf8_lossy(&root.output("weir fleet hosts").stdout).into_owned();
    let is_connected = within(20, || hosts().contains(host.trim()));
    assert!(
        is_connected,
        "{}{}",
        hosts(),
        root.run("journalctl --no-pager -u 'weir-*'")
    );

    root.run("echo '# changed here' >>/etc/weir/agent.toml");
    let agent = root.property("weir-agent", "MainPID");
    let tapdisk = root.property("weir-tapdisk@web", "MainPID");
    root.run(&format!("apt-get install -y {second}"));
    root.run("weir --version | grep -q weir && grep -q 'changed here' /etc/weir/agent.toml");
    assert_eq!(root.property("weir-agent", "ActiveState"), "active");
    assert_ne!(
        root.property("weir-agent", "MainPID"),
        agent,
        "the upgrade restarts the agent"
    );
    // A VM would lose its disk.
    assert_eq!(
        root.property("weir-tapdisk@web", "MainPID"),
        tapdisk,
        "the upgrade does not restart the tapdisk"
    );
    root.run(
        "systemctl stop weir-tapdisk@web && rm -r /etc/weir/tapdisk/web.toml /var/lib/libvirt",
    );

    root.run("apt-get remove -y weir");
    assert_eq!(
        root.run("pgrep weir || true"),
        "",
        "the removal stops the services"
    );
    root.run("test ! -e /usr/bin/weir && test -e /etc/weir/agent.toml");
    root.run("apt-get purge -y weir");
    let after = root.files();
    let left: Vec<&String> = after.difference(&before).collect();
    assert!(left.is_empty(), "purge leaves {left:#?}");
    assert!(
        !root.output("getent group weir").status.success(),
        "purge leaves the group"
    );
}

/// Each service runs as a dynamic user, only `weir act serve` as root, with the capabilities of its
/// unit in effect and no others.
fn services_have_only_their_rights(root: &Root) {
    let expected = [
        ("weir-act", ACTING),
        ("weir-agent", OBSERVING),
        ("weir-monitor", "0000000000000000"),
        ("weir-exporter", OBSERVING),
        ("weir-tapdisk@web", "0000000000000000"),
    ];
    for (service, bounding) in expected {
        let log = || root.run(&format!("journalctl --no-pager -u {service}"));
        assert_eq!(root.property(service, "ActiveState"), "active", "{}", log());
        let pid = root.property(service, "MainPID");
        let status = root.run(&format!("cat /proc/{pid}/status"));
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim().to_owned()
        };
        assert_eq!(field("CapBnd:"), bounding, "{service}\n{status}");
        let user: u32 = field("Uid:")
            .split_whitespace()
            .next()
            .unwrap_or("0")
            .parse()
            .unwrap();
        match service {
            "weir-act" => assert_eq!(user, 0),
            service => assert!(
                (61_184..=65_519).contains(&user),
                "{service} runs as user {user}"
            ),
        }
        assert_eq!(field("NoNewPrivs:"), "1", "{service}");
    }
}
