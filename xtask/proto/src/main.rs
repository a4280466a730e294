//! Generates the messages of the protocol: `cargo xtask proto` runs this program in the repository.
//!
//! The generated files are committed, so that a build of weir needs no compiler of `.proto` files.
//! With `--check` they are compared instead of written.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// The directory of the `.proto` files.
const PROTO: &str = "crates/weir-wire/proto";

/// A file, what is generated from it, and what that is, for its first line.
const FILES: &[(&str, &str, &str)] = &[
    (
        "weir.proto",
        "crates/weir-wire/src/proto.rs",
        "The messages of the protocol between agents and monitor.",
    ),
    (
        "previous/weir-4.1.proto",
        "crates/weir-simulation/src/bin/previous_version/proto.rs",
        "The messages of the previous minor version of the protocol.",
    ),
];

fn main() -> Result<()> {
    let check = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--check") => true,
        Some(_) => bail!("usage: cargo xtask proto [--check]"),
    };
    for (proto, generated, about) in FILES {
        let text = generate(proto, about).with_context(|| format!("{PROTO}/{proto}"))?;
        if check {
            let committed = std::fs::read_to_string(generated).with_context(|| *generated)?;
            ensure!(
                committed == text,
                "{generated} is not what {PROTO}/{proto} gives; run `cargo xtask proto`"
            );
        } else {
            std::fs::write(generated, text).with_context(|| *generated)?;
        }
    }
    Ok(())
}

/// The Rust source of one file.
fn generate(proto: &str, about: &str) -> Result<String> {
    let descriptors = protox::compile([Path::new(PROTO).join(proto)], [PROTO])?;
    let directory = Path::new("target/proto");
    std::fs::create_dir_all(directory)?;
    let mut config = prost_build::Config::new();
    config.out_dir(directory);
    config.compile_fds(descriptors.clone())?;
    let package = descriptors.file[0].package();
    let source = std::fs::read_to_string(directory.join(format!("{package}.rs")))?;
    // prost-build's own first line is a plain comment.
    let source = source.split_once('\n').map_or("", |(_, rest)| rest);
    let header = format!(
        "//! {about}\n//!\n//! Generated from `{proto}` by `cargo xtask proto`; change that file instead.\n\n"
    );
    formatted(&format!("{header}{source}"))
}

/// The source as rustfmt writes it.
fn formatted(source: &str) -> Result<String> {
    let mut rustfmt = Command::new("rustfmt")
        .args(["--edition", "2024", "--config-path", "rustfmt.toml"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start rustfmt")?;
    let mut input = rustfmt.stdin.take().context("rustfmt has an input")?;
    input.write_all(source.as_bytes())?;
    drop(input);
    let output = rustfmt.wait_with_output()?;
    ensure!(output.status.success(), "rustfmt ended with {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}
