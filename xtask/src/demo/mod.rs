//! `cargo xtask demo`: the main features of weir on real I/O: installs, builds, runs.
//!
//! With root and BPF two small virtual machines are started, and weir shows the I/O of their disks;
//! if QEMU is not available, a file is written and read back instead. Without root or BPF weir
//! shows the recording of the project.

mod guests;
mod work;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Result;

use crate::{build_weir, execute, packages, root};

const TOP: [&str; 4] = ["top", "-b", "2", "3"];

const QUESTION: &str = "select vm, vdisk, op, count(*), avg(latency), quantile(latency, 0.99) \
                        from IO [range 5 s slide 5 s] group by vm, vdisk, op";

/// The recording of the project.
const RECORDING: &str = "samples/fio-loop.parquet";

/// The duration of the live query.
const SECONDS: &str = "7s";

/// Builds weir, generates I/O, and shows it.
pub fn run(_args: &[String]) -> Result<()> {
    packages::ensure(packages::BUILD)?;
    println!("building weir: on two processors some five minutes, the first time");
    build_weir("demo")?;
    let weir = target().join("demo/weir");
    if !live_works(&weir) {
        println!(
            "live I/O cannot be seen here (`{} doctor` says why):",
            weir.display()
        );
        println!("showing the recording that comes with weir, {RECORDING}\n");
        show(&weir, &["top", "-b", "--from", RECORDING])?;
        return show(&weir, &["query", "--from", RECORDING, "--final", QUESTION]);
    }
    match guests::Guests::start(&target()) {
        Ok(_guests) => watch(&weir),
        Err(error) => {
            println!("no virtual machines to show ({error:#}); this host's own I/O then\n");
            let work = work::Work::start(&target())?;
            let watched = watch(&weir);
            work.stop()?;
            watched
        }
    }
}

fn watch(weir: &Path) -> Result<()> {
    show(weir, &TOP)?;
    show(
        weir,
        &["query", "--for", SECONDS, "--format", "table", QUESTION],
    )
}

/// Prints a command line of weir and runs it.
fn show(weir: &Path, args: &[&str]) -> Result<()> {
    let quoted = args.iter().map(|arg| match arg.contains(' ') {
        true => format!("\"{arg}\""),
        false => (*arg).to_owned(),
    });
    println!("\n$ weir {}", quoted.collect::<Vec<_>>().join(" "));
    execute(Command::new(weir).args(args).current_dir(root()))
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

fn live_works(weir: &Path) -> bool {
    let doctor = Command::new(weir)
        .arg("doctor")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    doctor.is_ok_and(|status| status.success())
}
