//! `cargo xtask guest`: the small Linux guests that tests run in QEMU, built if they do not exist
//! or their inputs have changed.
//!
//! One for each kernel of `weir_testing::kernel`, in `target/guest*`: the kernel from Debian, a
//! file system in memory with busybox, and a load program that counts what it does. For the guest
//! of another architecture, weir is compiled as a static program.

use anyhow::Result;
use weir_testing::Kit;
use weir_testing::kernel::{GuestKernel, KERNELS};

use crate::{package, packages};

/// Installs the required packages and builds them: those of the usual tests, with `--all` each. One
/// that is not available does not stop the others.
pub fn run(args: &[String]) -> Result<()> {
    let is_full = args.iter().any(|arg| arg == "--all");
    packages::ensure(packages::GUEST)?;
    if is_full {
        packages::ensure(packages::FOREIGN_GUEST)?;
    }
    let wanted = KERNELS.iter().filter(|kernel| kernel.is_usual || is_full);
    let built: Vec<Result<Kit>> = wanted.map(|kernel| build(kernel)).collect();
    for kit in built {
        let kit = kit?;
        println!("guest: {}", kit.kernel().with_file_name("").display());
    }
    Ok(())
}

fn build(kernel: &GuestKernel) -> Result<Kit> {
    let kit = Kit::build(kernel)?;
    let arch = kernel.architecture.name;
    if arch != std::env::consts::ARCH {
        package::static_program(arch)?;
    }
    Ok(kit)
}
