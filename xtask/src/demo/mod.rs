//! `cargo xtask demo`: weir's main job on real I/O, from nothing: installs, builds, shows.
//!
//! With root and BPF two small virtual machines are set to work, and weir shows what their disks
//! do; where QEMU cannot be had, a file is written and read back instead. Without root or BPF weir
//! shows the recording that comes with the project.

mod guests;
mod work;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Result;

use crate::{build_weir, execute, packages, root};

const TOP: [&str; 4] = ["top", "-b", "2", "3"];

const QUESTION: &str = "select vm, vdisk, op, count(*), avg(latency), quantile(latency, 0.99) \
                        from IO [range 5 s slide 5 s] group by vm, vdisk, op";

/// The recording that comes with the project.
const RECORDING: &str = "samples/fio-loop.parquet";

/// How long the live question runs.
const SECONDS: &str = "7s";

/// Builds weir, sees to it that there is I/O, and shows it.
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

/// Runs weir below the command line that does it.
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
