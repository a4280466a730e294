//! `weir --version`, and with `--verbose` what the program was built from.

use std::path::Path;
use std::process::Command;

use crate::support::run;

#[test]
fn the_version_is_one_line() {
    for option in ["--version", "-V"] {
        let version = run(&[option]).fine();
        assert_eq!(version, concat!("weir ", env!("CARGO_PKG_VERSION"), "\n"));
    }
}

#[test]
fn the_verbose_version_names_what_it_was_built_from() {
    let text = run(&["--version", "--verbose"]).fine();
    assert_eq!(run(&["-vV"]).fine(), text);
    let fields: Vec<(&str, &str)> = text.lines().filter_map(|l| l.split_once(": ")).collect();
    let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    let of_program = ["commit", "target", "features", "libbpf"];
    let expected = [&of_program[..], &["BPF object"; 2]].concat();
    assert_eq!(names, expected, "{text}");
    let commit = fields[0].1;
    let is_hash = commit.len() == 40 && commit.bytes().all(|b| b.is_ascii_hexdigit());
    assert!(commit == "not recorded" || is_hash, "{text}");
    assert!(fields[3].1.starts_with("v1."), "{text}");
    // The hashes are those of the objects in the repository.
    for (at, object) in [(4, "ebpf/tap.bpf.o"), (5, "probe/probe.bpf.o")] {
        let object = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../weir-tap/src")
            .join(object);
        let sum = Command::new("sha256sum")
            .arg(object.file_name().expect("a file"))
            .current_dir(object.parent().expect("a folder"))
            .output()
            .expect("sha256sum runs");
        let sum = String::from_utf8_lossy(&sum.stdout).into_owned();
        assert_eq!(fields[at].1, sum.trim(), "{text}");
    }
}
