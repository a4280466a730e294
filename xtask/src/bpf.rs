//! `cargo xtask bpf`: compiles the kernel programs into the objects in the repository.
//!
//! With `--check` it compares instead of writing, byte by byte: two compilations by the same clang
//! are equal. Needs clang and llvm.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{execute, root};

/// The headers that programs share.
const HEADERS: &str = "crates/weir-tap/src/ebpf";

/// Every program, compiled into an object beside it: `NAME.bpf.c` into `NAME.bpf.o`.
const PROGRAMS: &[&str] = &[
    "crates/weir-tap/src/ebpf/tap",
    "crates/weir-tap/src/ebpf/tap_file",
    "crates/weir-tap/src/ebpf/cost/floor",
    "crates/weir-tap/src/probe/probe",
    "crates/weir-tap/src/ebpf/streams/fileio/fileio",
    "crates/weir-tap/src/ebpf/streams/iopath/iopath",
    "crates/weir-tap/src/ebpf/streams/pagecache/pagecache",
    "crates/weir-runtime/tests/streams/switches/switches",
];

/// Compiles the objects, or with `--check` compares them with those of the sources.
///
/// # Errors
/// When a tool is missing or fails, or an object differs from its sources.
pub fn run(options: &[String]) -> Result<()> {
    let check = match options {
        [] => false,
        [option] if option == "--check" => true,
        _ => bail!("usage: cargo xtask bpf [--check]"),
    };
    PROGRAMS.iter().try_for_each(|path| update(path, check))
}

fn update(path: &str, check: bool) -> Result<()> {
    let source = root().join(format!("{path}.bpf.c"));
    let held = source.with_extension("o");
    let built = root().join("target").join("program.bpf.o");
    compile(&source, &built)?;
    let new = fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
    let same = fs::read(&held).is_ok_and(|old| old == new);
    if check && !same {
        bail!(
            "{} is not what its sources compile to; run `cargo xtask bpf` with clang 14 and commit the object",
            held.display()
        );
    }
    if !same {
        fs::write(&held, &new).with_context(|| format!("cannot write {}", held.display()))?;
    }
    println!(
        "{}: {} bytes, {}",
        held.display(),
        new.len(),
        if same { "as before" } else { "new" }
    );
    Ok(())
}

fn compile(source: &Path, object: &Path) -> Result<()> {
    let (folder, name) = (source.parent(), source.file_name());
    let (folder, name) = folder.zip(name).context("a program is in a directory")?;
    if let Some(target) = object.parent() {
        fs::create_dir_all(target).with_context(|| format!("cannot make {}", target.display()))?;
    }
    // The prefix map keeps the directory out of the object, so that it does not depend on where it
    // is built.
    let headers = root().join(HEADERS);
    let maps = [folder, &headers].map(|from| format!("-ffile-prefix-map={}=.", from.display()));
    let warnings = ["-Wall", "-Wextra", "-Werror"];
    let target = ["-target", "bpf", "-mcpu=v3", "-O2", "-g"];
    execute(
        Command::new("clang")
            .current_dir(folder)
            .args(target)
            .args(warnings)
            .args(maps)
            .arg("-I")
            .arg(&headers)
            .args(["-fdebug-compilation-dir=.", "-c"])
            .arg(name)
            .arg("-o")
            .arg(object),
    )?;
    // Only the sections that the loader reads stay: programs, tables, types and line numbers, no
    // DWARF.
    execute(Command::new("llvm-strip").arg("-g").arg(object))?;
    let sections = [".rel.BTF", ".rel.BTF.ext", ".llvm_addrsig"];
    let remove = sections.map(|section| format!("--remove-section={section}"));
    execute(
        Command::new("llvm-objcopy")
            .args(remove)
            .arg("--discard-all")
            .arg(object),
    )
}
