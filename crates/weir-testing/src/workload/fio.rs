//! Runs fio: requests of a known size, number and order.

use anyhow::Result;

use crate::run::run;

/// Runs fio without the page cache, always with the same random offsets. `options` are those of a
/// job, those of `whole` apply to every job in them.
///
/// # Errors
/// When fio is not installed or fails.
pub fn fio(whole: &str, options: &str) -> Result<()> {
    let mut args = vec![
        "--direct=1",
        "--ioengine=libaio",
        "--thread",
        "--norandommap",
        "--randrepeat=1",
        whole,
        "--name=load",
    ];
    args.extend(options.split_whitespace());
    run("fio", &args)?;
    Ok(())
}
