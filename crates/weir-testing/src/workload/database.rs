//! PostgreSQL under pgbench: a server of the test, on the test's disk.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Job;
use crate::LoopDisk;
use crate::run::run;

/// The scale factor of pgbench, of 15 MB each.
const SCALE: &str = "4";

/// Four clients, 250 transactions each.
const LOAD: [&str; 6] = ["-c", "4", "-j", "1", "-t", "250"];

/// A server, which is stopped at the end.
struct Server {
    programs: PathBuf,
    folder: String,
    data: String,
}

/// A database on `disk`; the job runs transactions on it and ends with a checkpoint.
pub fn bench(disk: &LoopDisk) -> Result<Job> {
    let folder = disk.file_system()?;
    let programs = programs()?;
    let user = fs::read_to_string("/etc/passwd")?;
    let user = user.lines().find_map(|l| l.strip_prefix("postgres:x:"));
    let user = user.context("there is no user postgres (package postgresql)")?;
    let mut numbers = user.split(':').map(|n| n.parse::<u32>().ok());
    chown(&folder, numbers.next().flatten(), numbers.next().flatten())?;
    let folder = folder.to_string_lossy().into_owned();
    let data = format!("{folder}/data");
    let initdb = programs.join("initdb");
    as_postgres(&initdb, &["-D", &data, "-A", "trust", "--no-sync"])?;
    let server = Server {
        programs,
        folder,
        data,
    };
    server.start()?;
    server.run("pgbench", &["-q", "-i", "-s", SCALE, "postgres"])?;
    // All data are on the disk, and none in memory: a fresh mount reads them again.
    server.stop()?;
    run("umount", &[&server.folder])?;
    run("mount", &["-o", "noatime", disk.path(), &server.folder])?;
    server.start()?;
    Ok(Box::new(move || {
        server.run("pgbench", &[&LOAD[..], &["-n", "postgres"]].concat())?;
        server.run("psql", &["-c", "checkpoint", "postgres"])
    }))
}

impl Server {
    /// Listens in its folder only. Its memory is small, so that most pages are cached by the
    /// kernel.
    fn start(&self) -> Result<()> {
        let options = format!(
            "-k {} -c listen_addresses= -c shared_buffers=1MB",
            self.folder
        );
        let log = format!("{}/log", self.folder);
        let start = ["-D", &self.data, "-w", "-l", &log, "-o", &options, "start"];
        as_postgres(&self.programs.join("pg_ctl"), &start)
    }

    fn stop(&self) -> Result<()> {
        let stop = ["-D", &self.data, "-w", "-m", "fast", "stop"];
        as_postgres(&self.programs.join("pg_ctl"), &stop)
    }

    /// Runs a client of this server.
    fn run(&self, program: &str, args: &[&str]) -> Result<()> {
        let args = [&["-h", &self.folder], args].concat();
        as_postgres(&self.programs.join(program), &args)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("cleaning up: {error:#}");
        }
    }
}

/// The folder of the server's programs: those of the newest version, as installed by Debian.
fn programs() -> Result<PathBuf> {
    let all = fs::read_dir("/usr/lib/postgresql").context("there is no PostgreSQL")?;
    let versions = all.filter_map(|version| {
        let path = version.ok()?.path();
        let number: u32 = path.file_name()?.to_str()?.parse().ok()?;
        Some((number, path.join("bin")))
    });
    let newest = versions.max().context("there is no PostgreSQL")?;
    Ok(newest.1)
}

/// Runs the server and its tools as an unprivileged user, since they refuse to run as root.
fn as_postgres(program: &Path, args: &[&str]) -> Result<()> {
    let program = program.to_string_lossy();
    run(
        "runuser",
        &[&["-u", "postgres", "--", &program], args].concat(),
    )?;
    Ok(())
}
