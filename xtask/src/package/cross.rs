//! Compiling for other targets, in the root of [`CrossRoot`]: its compiler has the standard library
//! for aarch64, and the source of it for musl.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use weir_testing::{CrossRoot, output};

use super::directory;
use crate::execute;

/// Makes a C compiler for musl: gcc with the paths of Debian's musl, the unwinder of gcc under the
/// name that the standard library of Rust links with what it needs of glibc, and the headers of the
/// kernel.
const MUSL: &str = r#"
set -e
rm -rf "/musl/$1"
mkdir -p "/musl/$1"
cd "/musl/$1"
# The functions for atomic operations of gcc on aarch64 are not linked.
[ "$1" = aarch64 ] && flags=-mno-outline-atomics
printf '#!/bin/sh\nexec %s %s "$@" -specs /usr/lib/%s-linux-musl/musl-gcc.specs\n' "$2" "$flags" "$1" >gcc
chmod +x gcc
cp "$($2 -print-file-name=libgcc_eh.a)" libunwind.a
./gcc -O2 -c /weir/packaging/musl/find_object.c
ar r libunwind.a find_object.o
mkdir -p include
ln -sfn /usr/include/linux include/linux
ln -sfn /usr/include/asm-generic include/asm-generic
ln -sfn "/usr/include/$1-linux-gnu/asm" include/asm
cp /weir/packaging/musl/argp.h include/argp.h
"#;

/// Builds the static program for a target, `ARCH-unknown-linux-musl`.
pub fn build(target: &str, profile: &str, commit: &str) -> Result<PathBuf> {
    let arch = target
        .strip_suffix("-unknown-linux-musl")
        .context("a target of musl")?;
    let compiler = compiler(arch);
    let root = CrossRoot::open()?;
    execute(&mut root.command(&[], &["sh", "-c", MUSL, "sh", arch, compiler])?)?;
    let name = target.replace('-', "_");
    let variable = format!("CARGO_TARGET_{}", name.to_uppercase());
    let environment = [
        format!("WEIR_COMMIT={commit}"),
        // Permits -Zbuild-std in a stable compiler.
        "RUSTC_BOOTSTRAP=1".to_owned(),
        format!("CC_{name}=/musl/{arch}/gcc"),
        format!("AR_{name}=ar"),
        format!("CFLAGS_{name}=-g0 -O2 -Wno-error -I/musl/{arch}/include"),
        format!("{variable}_LINKER=/musl/{arch}/gcc"),
        format!(
            "{variable}_RUSTFLAGS=-Clink-self-contained=no -Ctarget-feature=+crt-static -L/musl/{arch}"
        ),
        // Programs of elfutils need these functions, libelf does not.
        "ac_cv_search_argp_parse=none required".to_owned(),
        "ac_cv_search_fts_close=none required".to_owned(),
        "ac_cv_search__obstack_free=none required".to_owned(),
    ];
    let build = ["cargo", "rustc", "-Zbuild-std", "--locked"];
    let program = [
        "--package",
        "weir",
        "--bin",
        "weir",
        "--features",
        "vendored",
    ];
    // At a fixed address: ldd(1) runs a position-independent program instead of reporting that it
    // is no dynamic one.
    let options = [
        "--target",
        target,
        "--profile",
        profile,
        "--",
        "-Crelocation-model=static",
    ];
    let words = [&build[..], &program, &options].concat();
    execute(&mut root.command(&environment, &words)?)?;
    let binary = root.path(&format!("/target/{target}/{}/weir", directory(profile)));
    let headers = output(
        Command::new("readelf")
            .arg("--program-headers")
            .arg(&binary),
    )?;
    ensure!(
        !headers.contains("INTERP"),
        "{} needs libraries",
        binary.display()
    );
    Ok(binary)
}

fn compiler(arch: &str) -> &'static str {
    match arch {
        "aarch64" => "aarch64-linux-gnu-gcc",
        _ => "gcc",
    }
}
