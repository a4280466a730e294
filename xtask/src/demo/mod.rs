//! `cargo xtask demo`: the main features of weir on real I/O: installs, builds, runs.
//!
//! With root and BPF two small virtual machines are started, and weir shows the I/O of their disks;
//! if QEMU is not available, a file is written and read back instead. Without root or BPF weir
//! shows the recording of the project. `cargo xtask demo --keep` leaves the machines running until
//! Enter is pressed, for the tutorial.

mod work;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, bail};
use weir_testing::kernel::LINUX_6_1;
use weir_testing::{DemoGuests, Kit};

use crate::{build_weir, execute, packages, root};

/// The disk of the guests is a loop device, which weir observes with `--stacked`.
const TOP: [&str; 5] = ["top", "--stacked", "-b", "2", "3"];

const QUESTION: &str = "select vm, vdisk, op, count(*), avg(latency), quantile(latency, 0.99) \
                        from IO [range 5 s slide 5 s] group by vm, vdisk, op";

/// The recording of the project.
const RECORDING: &str = "samples/fio-loop.parquet";

/// The duration of the live query.
const SECONDS: &str = "7s";

/// Builds weir, generates I/O, and shows it.
pub fn run(args: &[String]) -> Result<()> {
    packages::ensure(packages::BUILD)?;
    println!("building weir: about three minutes on two processors, the first time");
    build_weir("demo")?;
    let weir = target().join("demo/weir");
    if !live_works(&weir) {
        println!(
            "live I/O cannot be observed on this host; `{} doctor` reports the reason",
            weir.display()
        );
        println!("reading the bundled recording {RECORDING}\n");
        show(&weir, &["top", "-b", "--from", RECORDING])?;
        return show(&weir, &["query", "--from", RECORDING, "--final", QUESTION]);
    }
    match guests() {
        Ok(_guests) if args.iter().any(|arg| arg == "--keep") => keep(&weir),
        Ok(_guests) => watch(&weir),
        Err(error) => {
            println!("cannot start the guests ({error:#}); showing the I/O of this host\n");
            let work = work::Work::start(&target())?;
            let watched = watch(&weir);
            work.stop()?;
            watched
        }
    }
}

/// Boots the guests.
fn guests() -> Result<DemoGuests> {
    packages::ensure(packages::GUEST)?;
    if !packages::exists("qemu-system-x86_64") {
        bail!("no qemu-system-x86_64");
    }
    DemoGuests::start(&Kit::build(&LINUX_6_1)?)
}

/// Waits for Enter.
fn keep(weir: &Path) -> Result<()> {
    println!(
        "the guests web and db are running; observe them with {}",
        weir.display()
    );
    println!("press Enter to stop them");
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}

fn watch(weir: &Path) -> Result<()> {
    show(weir, &TOP)?;
    show(
        weir,
        &[
            "query",
            "--stacked",
            "--for",
            SECONDS,
            "--format",
            "table",
            QUESTION,
        ],
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
