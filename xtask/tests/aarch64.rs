//! The workspace compiles for aarch64: the crates with kernel programs, system calls and memory
//! shared with other processes, and with `WEIR_TESTS=all` all of them. `cargo check` needs no
//! libraries of that architecture: only the standard library that rustup offers, a C compiler and
//! the headers of libelf and zlib.

use std::fs;
use std::path::Path;
use std::process::Command;

use weir_testing::repository::root;
use weir_testing::{is_full, output, skipped};

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// The crates that are most likely to depend on the architecture.
const DEPENDENT: &[&str] = &["--package", "weir-tap", "--package", "weir-tapdisk"];

const COMPILER: &str = "aarch64-linux-gnu-gcc";

/// The headers of the host, which are the same for each architecture. Its other headers are not.
const HEADERS: &[&str] = &["libelf.h", "gelf.h", "zlib.h", "zconf.h"];

/// Where Debian has them.
const FOLDERS: &[&str] = &["/usr/include", "/usr/include/x86_64-linux-gnu"];

/// Adds the standard library of the target to the toolchain, if it lacks it.
fn add_target() -> anyhow::Result<()> {
    let toolchain = output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let library = Path::new(toolchain.trim()).join("lib/rustlib").join(TARGET);
    if !library.exists() {
        output(Command::new("rustup").args(["target", "add", TARGET]))?;
    }
    Ok(())
}

#[test]
fn the_workspace_compiles_for_aarch64() {
    const TEST: &str = "the_workspace_compiles_for_aarch64";
    let prepared = output(Command::new(COMPILER).arg("--version")).and_then(|_| add_target());
    if let Err(why) = prepared {
        skipped(TEST, format_args!("{why:#}"));
        return;
    }
    // The path stays the same: build scripts run again when their flags change.
    let headers = root().join("target/aarch64-headers");
    fs::create_dir_all(&headers).unwrap();
    for name in HEADERS {
        let mut found = FOLDERS.iter().map(|folder| Path::new(folder).join(name));
        let Some(header) = found.find(|path| path.exists()) else {
            skipped(TEST, format_args!("no {name}"));
            return;
        };
        let content = fs::read(header).unwrap();
        if fs::read(headers.join(name)).ok().as_ref() != Some(&content) {
            fs::write(headers.join(name), content).unwrap();
        }
    }
    let packages: &[&str] = match is_full() {
        true => &["--workspace"],
        false => DEPENDENT,
    };
    let name = TARGET.replace('-', "_");
    let checked = Command::new(env!("CARGO"))
        .current_dir(root())
        .args(["check", "--quiet", "--locked", "--target", TARGET])
        .args(packages)
        .env(format!("CC_{name}"), COMPILER)
        .env(format!("CFLAGS_{name}"), format!("-I{}", headers.display()))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{errors}");
}
