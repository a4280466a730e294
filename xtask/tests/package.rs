//! The files that `cargo xtask package` writes from the binary of the tests: their contents, their
//! form, and that two runs give the same bytes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use weir_testing::repository::root;
use weir_testing::{Scratch, skip};

/// The maintainer in the packages of this test.
const MAINTAINER: &str = "weir maintainers <maintainers@example.org>";

/// What every package installs, besides manual pages.
const INSTALLED: &[&str] = &[
    "/etc/weir/agent.toml",
    "/etc/weir/monitor.toml",
    "/etc/weir/tapdisk/",
    "/usr/bin/weir",
    "/usr/lib/systemd/system/weir-act.service",
    "/usr/lib/systemd/system/weir-agent.service",
    "/usr/lib/systemd/system/weir-exporter.service",
    "/usr/lib/systemd/system/weir-monitor.service",
    "/usr/lib/systemd/system/weir-tapdisk@.service",
    "/usr/lib/sysusers.d/weir.conf",
    "/usr/lib/tmpfiles.d/weir.conf",
    "/usr/share/bash-completion/completions/weir",
    "/usr/share/fish/vendor_completions.d/weir.fish",
    "/usr/share/doc/weir/examples/tapdisk.toml",
    "/usr/share/doc/weir/examples/flink/weir/flink/Quantile.java",
    "/usr/share/doc/weir/examples/prometheus/weir-dashboard.json",
    "/usr/share/doc/weir/examples/prometheus/weir-fleet-rules.yml",
];

/// The binary of a workspace build, beside xtask's own.
fn weir(test: &str) -> Option<PathBuf> {
    let binary = Path::new(env!("CARGO_BIN_EXE_xtask")).with_file_name("weir");
    match binary.exists() {
        true => Some(binary),
        false => skip(test, "no binary: cargo build --package weir"),
    }
}

/// Standard output of a command that succeeds; `None`, reported, if the tool is not installed.
fn run(test: &str, command: &mut Command) -> Option<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.output() {
        Ok(done) => {
            let printed = String::from_utf8_lossy(&done.stdout).into_owned();
            let errors = String::from_utf8_lossy(&done.stderr);
            assert!(
                done.status.success(),
                "{name}: {}\n{printed}{errors}",
                done.status
            );
            Some(printed)
        }
        Err(why) => skip(test, format!("{name}: {why}")),
    }
}

/// Writes all formats to a directory and returns it.
fn package(test: &str, scratch: &Scratch, name: &str, formats: &str) -> Option<PathBuf> {
    let output = PathBuf::from(scratch.file(name));
    let binary = weir(test)?;
    for tool in ["dh", "rpmbuild", "umoci", "llvm-strip"] {
        Command::new(tool)
            .arg("--version")
            .output()
            .map_or_else(|why| skip(test, format!("{tool}: {why}")), Some)?;
    }
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
    xtask.args([
        "package",
        "--fast",
        "--maintainer",
        MAINTAINER,
        "--format",
        formats,
    ]);
    run(
        test,
        xtask
            .arg("--binary")
            .arg(binary)
            .arg("--output")
            .arg(&output),
    )?;
    Some(output)
}

/// The file in a directory whose name ends so.
fn ending(directory: &Path, end: &str) -> PathBuf {
    let entries = fs::read_dir(directory).expect("the output").flatten();
    let mut found = entries.map(|entry| entry.path());
    let matches = |path: &PathBuf| path.to_string_lossy().ends_with(end);
    found
        .find(matches)
        .unwrap_or_else(|| panic!("no file *{end}"))
}

fn holds_all(listed: &str, what: &str) {
    let lines: Vec<&str> = listed.lines().map(str::trim_end).collect();
    for path in INSTALLED {
        let is_there = |line: &&str| {
            line.trim_end_matches('/')
                .ends_with(path.trim_end_matches('/'))
        };
        assert!(
            lines.iter().any(is_there),
            "{what} has no {path}:\n{listed}"
        );
    }
    let classes = fs::read_dir(root().join("packaging/flink/weir/flink")).expect("the classes");
    for class in classes.flatten() {
        let name = class.file_name().to_string_lossy().into_owned();
        let is_there = |line: &&str| line.ends_with(&format!("/weir/flink/{name}"));
        assert!(
            lines.iter().any(is_there),
            "{what} has no {name}:\n{listed}"
        );
    }
    let pages = lines.iter().filter(|line| line.contains("/man/man1/weir"));
    assert!(pages.count() > 30, "{what} has no manual pages:\n{listed}");
}

#[test]
fn the_packages_are_complete_and_reproducible() {
    let test = "the_packages_are_complete_and_reproducible";
    let scratch = Scratch::new();
    let all = "deb,rpm,tar,image,sbom";
    let Some(first) = package(test, &scratch, "first", all) else {
        return;
    };
    let Some(second) = package(test, &scratch, "second", all) else {
        return;
    };
    let sums = |directory: &Path| fs::read_to_string(directory.join("SHA256SUMS")).expect("sums");
    assert_eq!(
        sums(&first),
        sums(&second),
        "two packagings of one binary differ"
    );
    let check = ["--check", "--strict", "SHA256SUMS"];
    let checked = run(
        test,
        Command::new("sha256sum").args(check).current_dir(&first),
    );
    assert_eq!(checked.map(|lines| lines.lines().count()), Some(5));

    debian_package(test, &ending(&first, ".deb"));
    rpm_package(test, &ending(&first, ".rpm"));
    let archive = ending(&first, "-linux.tar.gz");
    if let Some(listed) = run(test, Command::new("tar").arg("-tf").arg(archive)) {
        holds_all(&listed, "the archive");
    }
    image(test, &first);
    bill_of_materials(&ending(&first, ".cdx.json"));
    units(test, &first.join("work/tree-x86_64"));
}

fn debian_package(test: &str, deb: &Path) {
    let Some(listed) = run(test, Command::new("dpkg-deb").arg("--contents").arg(deb)) else {
        return;
    };
    holds_all(&listed, "the Debian package");
    for file in [
        "copyright",
        "changelog.gz",
        "changelog.Debian.gz",
        "third-party.txt.gz",
    ] {
        assert!(
            listed.contains(&format!("/usr/share/doc/weir/{file}")),
            "no {file}:\n{listed}"
        );
    }
    assert!(
        listed.lines().all(|line| line.contains(" root/root ")),
        "{listed}"
    );
    let field = |name: &str| {
        let mut show = Command::new("dpkg-deb");
        let value = run(test, show.arg("--field").arg(deb).arg(name)).unwrap_or_default();
        value.trim().to_owned()
    };
    assert_eq!(field("Package"), "weir");
    assert_eq!(field("Version"), concat!(env!("CARGO_PKG_VERSION"), "-1"));
    assert_eq!(field("Maintainer"), MAINTAINER);
    let depends = field("Depends");
    for library in ["libc6 ", "libelf1", "zlib1g ", "systemd"] {
        assert!(depends.contains(library), "{library} is not in {depends}");
    }
    let scripts = |name: &str| {
        run(
            test,
            Command::new("dpkg-deb").arg("--info").arg(deb).arg(name),
        )
    };
    let configurations = scripts("conffiles").unwrap_or_default();
    assert_eq!(
        configurations.trim(),
        "/etc/weir/agent.toml\n/etc/weir/monitor.toml"
    );
    let removal = scripts("prerm").unwrap_or_default();
    assert!(removal.contains("deb-systemd-invoke stop"), "{removal}");
    let fail = ["--allow-root", "--fail-on", "error,warning"];
    if let Some(printed) = run(test, Command::new("lintian").args(fail).arg(deb)) {
        assert_eq!(printed, "", "lintian");
    }
}

fn rpm_package(test: &str, rpm: &Path) {
    let query = |what: &str| {
        run(
            test,
            Command::new("rpm").args(["-q", "--package", what]).arg(rpm),
        )
    };
    if let Some(listed) = query("--list") {
        holds_all(&listed, "the RPM package");
    }
    if let Some(files) = query("--configfiles") {
        assert_eq!(files.trim(), "/etc/weir/agent.toml\n/etc/weir/monitor.toml");
    }
    if let Some(requires) = query("--requires") {
        assert!(requires.contains("libelf.so.1"), "{requires}");
    }
    let policy = root().join("packaging/rpmlint.toml");
    let mut rpmlint = Command::new("rpmlint");
    if let Some(printed) = run(test, rpmlint.arg("--config").arg(policy).arg(rpm)) {
        assert!(printed.contains(" 0 errors, 0 warnings"), "{printed}");
    }
}

/// The image is an OCI layout; skopeo reads it, and its labels name the release.
fn image(test: &str, output: &Path) {
    let layout = output.join("layout");
    fs::create_dir(&layout).expect("a directory");
    let archive = ending(output, ".oci.tar");
    let mut unpack = Command::new("tar");
    run(test, unpack.arg("-xf").arg(archive).arg("-C").arg(&layout));
    let name = format!("oci:{}:{}", layout.display(), env!("CARGO_PKG_VERSION"));
    let mut skopeo = Command::new("skopeo");
    let Some(config) = run(test, skopeo.args(["inspect", "--config", &name])) else {
        return;
    };
    let config: Value = serde_json::from_str(&config).expect("JSON");
    assert_eq!(config["architecture"], "amd64");
    assert_eq!(
        config["config"]["Entrypoint"],
        serde_json::json!(["/usr/bin/weir"])
    );
    let version = &config["config"]["Labels"]["org.opencontainers.image.version"];
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
}

fn bill_of_materials(file: &Path) {
    let bill: Value = serde_json::from_str(&fs::read_to_string(file).expect("SBOM")).expect("JSON");
    assert_eq!(bill["bomFormat"], "CycloneDX");
    assert_eq!(bill["metadata"]["component"]["name"], "weir");
    let components = bill["components"].as_array().expect("components");
    let named = |name: &str| components.iter().find(|c| c["name"] == name);
    let libbpf = named("libbpf-sys").expect("libbpf-sys is linked");
    assert_eq!(libbpf["hashes"][0]["alg"], "SHA-256");
    assert!(named("weir-tap").is_some() && named("weir-testing").is_none());
    assert!(
        components
            .iter()
            .all(|c| c["licenses"][0]["expression"] != "")
    );
    let references = bill["dependencies"].as_array().expect("dependencies");
    assert_eq!(references.len(), components.len() + 1);
}

/// systemd accepts the installed units, and their exposure is below 3 of 10.
fn units(test: &str, tree: &Path) {
    for unit in [
        "weir-act",
        "weir-agent",
        "weir-exporter",
        "weir-monitor",
        "weir-tapdisk@",
    ] {
        let file = tree.join(format!("usr/lib/systemd/system/{unit}.service"));
        let threshold = ["security", "--offline=true", "--threshold=29"];
        let mut security = Command::new("systemd-analyze");
        run(test, security.args(threshold).arg(file));
    }
}

#[test]
fn the_crates_can_be_published() {
    let test = "the_crates_can_be_published";
    // Without a build: the files of the crates, and that every dependency has a version.
    let cargo = ["package", "--list", "--allow-dirty", "--workspace"];
    let apart = [
        "--exclude",
        "xtask",
        "--exclude",
        "weir-testing",
        "--exclude",
        "weir-simulation",
    ];
    let mut command = Command::new(env!("CARGO"));
    let listed = run(test, command.args(cargo).args(apart).current_dir(root()));
    let listed = listed.expect("cargo runs");
    for file in [
        "src/main.rs",
        "src/ebpf/tap.bpf.o",
        "README.md",
        "proto/weir.proto",
    ] {
        assert!(
            listed.lines().any(|line| line == file),
            "no {file}:\n{listed}"
        );
    }
    let mut command = Command::new(env!("CARGO"));
    let metadata = ["metadata", "--locked", "--no-deps", "--format-version", "1"];
    let metadata = run(test, command.args(metadata).current_dir(root())).expect("cargo runs");
    let metadata: Value = serde_json::from_str(&metadata).expect("JSON");
    for package in metadata["packages"].as_array().expect("packages") {
        if !package["publish"].is_null() {
            continue;
        }
        let name = package["name"].as_str().expect("a name");
        for key in ["description", "license", "readme", "rust_version"] {
            assert!(package[key].is_string(), "{name} has no {key}");
        }
        for key in ["keywords", "categories"] {
            assert_ne!(package[key], serde_json::json!([]), "{name} has no {key}");
        }
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            // cargo removes those of tests that have a path and no version.
            let is_test = dependency["kind"] == "dev";
            assert!(
                is_test || dependency["req"] != "*",
                "{name}: {dependency} has no version"
            );
        }
    }
}

#[test]
fn the_kernel_programs_are_those_of_every_architecture() {
    // Registers and system calls differ between architectures; tracepoints and types do not.
    let apart = [
        "__TARGET_ARCH",
        "PT_REGS",
        "BPF_KPROBE",
        "pt_regs",
        "SEC(\"kprobe",
        "__x64_",
    ];
    let folder = root().join("crates/weir-tap/src/ebpf");
    let files = fs::read_dir(folder).expect("the sources").flatten();
    let sources = files.map(|entry| entry.path()).filter(|path| {
        let name = path.to_string_lossy().into_owned();
        name.ends_with(".c") || name.ends_with(".h")
    });
    let mut read = 0;
    for path in sources {
        let text = fs::read_to_string(&path).expect("a source");
        let found: Vec<&&str> = apart.iter().filter(|word| text.contains(**word)).collect();
        assert!(found.is_empty(), "{}: {found:?}", path.display());
        read += 1;
    }
    assert!(read > 10, "{read} sources");
}
