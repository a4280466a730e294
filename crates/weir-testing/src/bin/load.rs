//! `load LOAD..`: reads and writes disks according to its arguments, with a known number of
//! requests, and prints the result.
//!
//! ```text
//! load disk=/dev/vda,read=70,write=30,count=1000,depth=4 disk=/dev/vdb,count=50,bytes=65536
//! {"disk":"/dev/vda","reads":702,"read_bytes":2875392,"writes":298,"write_bytes":1220608,"fsyncs":0}
//! {"disk":"/dev/vdb","reads":50,"read_bytes":3276800,"writes":0,"write_bytes":0,"fsyncs":0}
//! ```
//!
//! All loads run concurrently. Each line counts the completed requests. `cargo xtask guest` links
//! it statically for the guest, with nothing but the standard library.

#[path = "../plan.rs"]
#[allow(dead_code)]
mod plan;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use plan::DiskLoad;

fn main() -> ExitCode {
    let loads: Result<Vec<DiskLoad>, String> =
        std::env::args().skip(1).map(|a| a.parse()).collect();
    let loads = match loads {
        Ok(loads) if !loads.is_empty() => loads,
        Ok(_) => return ended(2, "usage: load disk=PATH[,KEY=VALUE..].."),
        Err(error) => return ended(2, &error),
    };
    let mut failed = None;
    thread::scope(|scope| {
        let running: Vec<_> = loads.iter().map(|l| (l, scope.spawn(|| run(l)))).collect();
        for (load, thread) in running {
            match thread.join().expect("errors are returned") {
                Ok(done) => println!("{}", done.json(&load.disk)),
                Err(error) => failed = Some(format!("load `{load}`: {error}")),
            }
        }
    });
    failed.map_or(ExitCode::SUCCESS, |error| ended(1, &error))
}

fn ended(code: u8, why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::from(code)
}

/// The result of a load.
#[derive(Default)]
struct Done {
    reads: u64,
    read_bytes: u64,
    writes: u64,
    write_bytes: u64,
    fsyncs: u64,
}

impl Done {
    fn json(&self, disk: &str) -> String {
        format!(
            "{{\"disk\":\"{disk}\",\"reads\":{},\"read_bytes\":{},\"writes\":{},\
             \"write_bytes\":{},\"fsyncs\":{}}}",
            self.reads, self.read_bytes, self.writes, self.write_bytes, self.fsyncs
        )
    }

    fn add(&mut self, other: &Done) {
        self.reads += other.reads;
        self.read_bytes += other.read_bytes;
        self.writes += other.writes;
        self.write_bytes += other.write_bytes;
        self.fsyncs += other.fsyncs;
    }
}

/// `O_DIRECT` of Linux: `arch/arm64/include/uapi/asm/fcntl.h`, and asm-generic for x86.
const O_DIRECT: i32 = if cfg!(target_arch = "aarch64") {
    0o200000
} else {
    0o40000
};

/// Runs a load.
fn run(load: &DiskLoad) -> io::Result<Done> {
    let file = OpenOptions::new()
        .read(true)
        .write(load.write > 0)
        .custom_flags(if load.direct { O_DIRECT } else { 0 })
        .open(&load.disk)?;
    let mut all = Done::default();
    let started = Instant::now();
    thread::scope(|scope| {
        let file = &file;
        let threads: Vec<_> = (0..load.depth)
            .map(|t| scope.spawn(move || work(load, file, t, started)))
            .collect();
        for thread in threads {
            all.add(&thread.join().expect("errors are returned")?);
        }
        io::Result::Ok(())
    })?;
    if load.syncs_at_end() {
        file.sync_all()?;
        all.fsyncs += 1;
    }
    Ok(all)
}

/// The alignment of a buffer for direct I/O, for any sector size up to a page.
const ALIGNMENT: usize = 4096;

/// Thread `t` executes every `depth`th request.
fn work(load: &DiskLoad, file: &File, t: u64, started: Instant) -> io::Result<Done> {
    let bytes = usize::try_from(load.bytes).expect("a request fits into memory");
    let mut memory = vec![0; bytes + ALIGNMENT];
    let at = memory.as_ptr().align_offset(ALIGNMENT);
    let buffer = &mut memory[at..at + bytes];
    let mut done = Done::default();
    for i in (t..load.count).step_by(usize::try_from(load.depth).expect("it is small")) {
        let request = load.request(i);
        if load.rate > 0 {
            let due = Duration::from_millis(load.due_ms(i));
            thread::sleep(due.saturating_sub(started.elapsed()));
        }
        if request.op == 'r' {
            file.read_exact_at(buffer, request.sector * 512)?;
            done.reads += 1;
            done.read_bytes += load.bytes;
        } else {
            // Each write differs, so that no layer can treat it as zeroes or as a repetition.
            buffer.fill(0x77);
            buffer[..8].copy_from_slice(&(i ^ load.seed).to_le_bytes());
            file.write_all_at(buffer, request.sector * 512)?;
            done.writes += 1;
            done.write_bytes += load.bytes;
        }
        if load.fsync > 0 && (i + 1).is_multiple_of(load.fsync) {
            file.sync_all()?;
            done.fsyncs += 1;
        }
    }
    Ok(done)
}
