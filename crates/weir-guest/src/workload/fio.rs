//! Runs fio: requests of a known size, number and order.

use anyhow::Result;

use crate::run::run;

/// Runs fio past the page cache, always with the same random places. `options` are of a job, those of
/// `whole` hold for every job that they name.
///
/// # Errors
/// When fio is not there or fails.
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
