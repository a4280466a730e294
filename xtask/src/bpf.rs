//! `cargo xtask bpf`: compiles the kernel programs of the live tap into the object in the
//! repository.
//!
//! With `--check` it compares instead of writing, byte by byte: two compilations by the same clang
//! are equal. Needs clang and llvm.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{execute, root};

/// The directory of the sources and the object.
const FOLDER: &str = "crates/weir-tap/src/ebpf";

/// The object in the repository.
const OBJECT: &str = "tap.bpf.o";

/// Compiles the object, or with `--check` compares it with that of the sources.
///
/// # Errors
/// When a tool is missing or fails, or the object differs from its sources.
pub fn run(options: &[String]) -> Result<()> {
    let check = match options {
        [] => false,
        [option] if option == "--check" => true,
        _ => bail!("usage: cargo xtask bpf [--check]"),
    };
    let folder = root().join(FOLDER);
    let built = root().join("target").join(OBJECT);
    compile(&folder, &built)?;
    let held = folder.join(OBJECT);
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

fn compile(folder: &Path, object: &Path) -> Result<()> {
    if let Some(target) = object.parent() {
        fs::create_dir_all(target).with_context(|| format!("cannot make {}", target.display()))?;
    }
    // The prefix map keeps the directory out of the object, so that it does not depend on where it
    // is built.
    let map = format!("-ffile-prefix-map={}=.", folder.display());
    let warnings = ["-Wall", "-Wextra", "-Werror"];
    let target = ["-target", "bpf", "-mcpu=v3", "-O2", "-g"];
    execute(
        Command::new("clang")
            .current_dir(folder)
            .args(target)
            .args(warnings)
            .args([&map, "-fdebug-compilation-dir=.", "-c", "tap.bpf.c", "-o"])
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
