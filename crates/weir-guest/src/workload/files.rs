//! Work on files: read in turn, copied, overwritten in place and elsewhere.

use std::fs;
use std::path::Path;

use anyhow::Result;

use super::Job;
use super::fio::fio;
use crate::LoopDisk;
use crate::run::run;

/// The size of a file that is read beside others.
const STREAM_MIB: usize = 6;

/// `count` files, of which each is read in turn.
pub fn in_turn(disk: &LoopDisk, count: usize) -> Result<Job> {
    let files = lay_out(&disk.file_system()?, count)?;
    let files = format!("--filename={}", files.join(":"));
    let size = count * STREAM_MIB;
    let options =
        format!("--rw=read --bs=16k --iodepth=4 --file_service_type=roundrobin --size={size}m");
    Ok(Box::new(move || fio(&files, &options)))
}

/// `count` files, each read by a thread of its own, 6.4 MiB of it a second.
pub fn players(disk: &LoopDisk, count: usize) -> Result<Job> {
    let folder = disk.file_system()?;
    lay_out(&folder, count)?;
    let folder = format!("--directory={}", folder.display());
    // The files have the numbers of the jobs as their names.
    let files = "--filename_format=$jobnum";
    let each = "--rw=read --bs=16k --iodepth=1 --size=6m --rate_iops=400";
    let options = format!("{files} --numjobs={count} {each}");
    Ok(Box::new(move || fio(&folder, &options)))
}

/// Copies a file that is not in memory, and waits until the copy is on the disk.
pub fn copy(disk: &LoopDisk) -> Result<Job> {
    // As of most disks; a loop device of today would read ahead 20 times as much.
    disk.set("read_ahead_kb", "128")?;
    let folder = disk.file_system()?;
    let (from, to) = (path(&folder, "file"), path(&folder, "copy"));
    write(&from, 48)?;
    forget(&from)?;
    Ok(Box::new(move || {
        run("cp", &[&from, &to])?;
        run("sync", &["-f", &to])?;
        Ok(())
    }))
}

/// Overwrites a file at random places.
pub fn overwrite(disk: &LoopDisk, in_place: bool) -> Result<Job> {
    let folder = match in_place {
        true => disk.file_system()?,
        false => disk.copy_on_write()?,
    };
    let file = path(&folder, "file");
    write(&file, 48)?;
    run("sync", &["-f", &file])?;
    Ok(Box::new(move || {
        let options = "--rw=randwrite --bs=8k --iodepth=8 --size=48m --io_size=16m --fsync=256";
        fio(&format!("--filename={file}"), options)
    }))
}

/// Files with content, each in one piece of the disk.
fn lay_out(folder: &Path, count: usize) -> Result<Vec<String>> {
    let files: Vec<String> = (0..count).map(|i| path(folder, &i.to_string())).collect();
    for file in &files {
        write(file, STREAM_MIB)?;
    }
    run("sync", &["-f", &files[0]])?;
    Ok(files)
}

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_string_lossy().into_owned()
}

/// Makes a file of no zeroes.
fn write(file: &str, mebibytes: usize) -> Result<()> {
    fs::write(file, vec![0x11; mebibytes << 20])?;
    Ok(())
}

/// Writes a file out and drops what the kernel keeps of it in memory, so that it is read anew.
fn forget(file: &str) -> Result<()> {
    let of = format!("of={file}");
    run("sync", &["-f", file])?;
    run(
        "dd",
        &[
            &of,
            "oflag=nocache",
            "conv=notrunc",
            "count=0",
            "status=none",
        ],
    )?;
    Ok(())
}
