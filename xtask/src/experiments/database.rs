//! PostgreSQL in a guest: its programs on a disk of their own, its data on a part of the disk that
//! is measured, and the transactions of pgbench.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use weir_testing::{Guest, GuestDisk, Scratch, Tools};

/// The data: pgbench's scale, of about 15 MiB each, and the memory of the database, so small that
/// most of the data is not in it.
const SCALE: u32 = 8;
const BUFFERS: &str = "16MB";

/// The clients of pgbench, and the seconds of a measurement.
const CLIENTS: u32 = 8;
const SECONDS: u32 = 6;

/// The time that a step of the preparation may take in emulation.
const TIMEOUT: Duration = Duration::from_secs(600);

/// The programs and files of PostgreSQL for a guest.
pub struct Database {
    tools: Tools,
    /// The folder of its programs, in the guest as on the host: they find their files by it.
    bin: PathBuf,
}

impl Database {
    /// Those that are installed on this host, newest version, in a file of `folder`.
    ///
    /// # Errors
    /// When PostgreSQL is not installed.
    pub fn new(folder: &Scratch) -> Result<Database> {
        let versions = Path::new("/usr/lib/postgresql");
        let entries = fs::read_dir(versions).context("PostgreSQL is not installed")?;
        let installed = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let home = installed.filter(|home| home.join("bin/pgbench").exists());
        let home = home.max().context("PostgreSQL has no pgbench here")?;
        let version = home.file_name().context("a version has a name")?;
        let share = Path::new("/usr/share/postgresql").join(version);
        let bin = home.join("bin");
        let program = |name: &str| bin.join(name).to_string_lossy().into_owned();
        let programs = ["postgres", "initdb", "pg_ctl", "pgbench"].map(program);
        let mut programs: Vec<&str> = programs.iter().map(String::as_str).collect();
        programs.extend(["addpart", "mke2fs"]);
        let image: PathBuf = folder.path().join("database");
        let folders = [&*bin, &*home.join("lib"), &*share];
        Ok(Database {
            tools: Tools::with_folders(&image, &programs, &folders)?,
            bin,
        })
    }

    /// The disk with the programs, which is the guest's second one.
    pub fn disk(&self) -> GuestDisk {
        GuestDisk::new("tools", &self.tools.image().to_string_lossy()).buffered()
    }

    /// Starts the database in the guest, with its data in that part of the first disk.
    pub fn start(&self, guest: &mut Guest, start: u64, bytes: u64) -> Result<()> {
        let (sector, sectors) = (start / 512, bytes / 512);
        let initdb = "initdb -D /data/db --locale=C --encoding=SQL_ASCII --auth=trust --no-sync";
        let settings = format!(
            "shared_buffers={BUFFERS}\\nmax_wal_size=64MB\\nautovacuum=off\\n\
             listen_addresses=\\x27\\x27\\nunix_socket_directories=\\x27/tmp\\x27\\n"
        );
        for line in [
            &Tools::mount("/dev/vdb"),
            "mkdir -p /tmp /data /etc /lib64 /dev/shm && chmod 1777 /tmp",
            "mount -t tmpfs -o mode=1777 shm /dev/shm",
            "ln -s /tools/lib/ld-linux-x86-64.so.2 /lib64/ && ln -s /tools/usr /usr",
            "echo 'postgres:x:100:100::/tmp:/bin/sh' > /etc/passwd",
            "echo 'postgres:x:100:' > /etc/group",
            "export LD_LIBRARY_PATH=/tools/lib",
            &format!("/tools/bin/addpart /dev/vda 1 {sector} {sectors}"),
            "/tools/bin/mke2fs -q -F -t ext4 /dev/vda1",
            "mount -t ext4 /dev/vda1 /data && mkdir /data/db && chown 100:100 /data /data/db",
            &self.as_user(initdb),
            &format!("printf '{settings}' >> /data/db/postgresql.conf"),
            &self.as_user("pg_ctl -D /data/db -w -t 300 -l /data/log start"),
            &self.as_user(&format!("pgbench -h /tmp -i -q -s {SCALE} postgres")),
        ] {
            guest.begin(line)?;
            guest
                .finish_within(TIMEOUT)
                .with_context(|| line.to_owned())?;
        }
        Ok(())
    }

    /// Transactions per second, four of five of which only read, so that the disk limits them and
    /// not the emulated processor; they begin without cached files.
    pub fn transactions(&self, guest: &mut Guest) -> Result<f64> {
        guest.run("sync; echo 3 > /proc/sys/vm/drop_caches")?;
        let mixture = "-b select-only@4 -b tpcb-like@1";
        let pgbench = format!("pgbench -h /tmp -n -c {CLIENTS} -T {SECONDS} {mixture} postgres");
        let printed = guest.run(&self.as_user(&pgbench))?;
        let rate = printed.lines().find_map(|line| line.strip_prefix("tps = "));
        let rate = rate.and_then(|rate| rate.split(' ').next()?.parse().ok());
        match rate {
            Some(rate) if rate > 0.0 => Ok(rate),
            _ => bail!("pgbench: {printed}"),
        }
    }

    /// A command of the database's user: the server refuses to be run by root.
    fn as_user(&self, command: &str) -> String {
        let bin = self.bin.display();
        format!("su postgres -s /bin/sh -c '{bin}/{command}' 2>&1")
    }
}
