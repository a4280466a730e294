//! `cargo xtask guest`: the small Linux guest that tests run in QEMU, built if it is not there yet or
//! was made of something else.
//!
//! It lies in `target/guest`: a kernel from Debian, a file system in memory with busybox, and a load
//! program that counts what it does.

use anyhow::Result;
use weir_guest::Kit;

use crate::packages;

/// Installs what it needs and builds it.
pub fn run(_args: &[String]) -> Result<()> {
    packages::ensure(packages::GUEST)?;
    let kit = Kit::build()?;
    println!("guest: {}", kit.kernel().with_file_name("").display());
    Ok(())
}
