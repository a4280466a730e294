//! Workloads of files: sequential reads, copies, overwriting in place and elsewhere.

use std::fs;
use std::path::Path;

use anyhow::Result;

use super::Job;
use super::fio::fio;
use crate::LoopDisk;
use crate::run::run;

/// The size of a file that is read concurrently with others.
const STREAM_MIB: usize = 6;

/// `count` files, each of which is read in turn.
pub fn in_turn(disk: &LoopDisk, count: usize) -> Result<Job> {
    let files = create_files(&disk.file_system()?, count)?;
    let files = format!("--filename={}", files.join(":"));
    let size = count * STREAM_MIB;
    let options =
        format!("--rw=read --bs=16k --iodepth=4 --file_service_type=roundrobin --size={size}m");
    Ok(Box::new(move || fio(&files, &options)))
}

/// `count` files, each read by a thread of its own at 6.4 MiB per second.
pub fn players(disk: &LoopDisk, count: usize) -> Result<Job> {
    let folder = disk.file_system()?;
    create_files(&folder, count)?;
    let folder = format!("--directory={}", folder.display());
    // The files are named by the numbers of the jobs.
    let files = "--filename_format=$jobnum";
    let each = "--rw=read --bs=16k --iodepth=1 --size=6m --rate_iops=400";
    let options = format!("{files} --numjobs={count} {each}");
    Ok(Box::new(move || fio(&folder, &options)))
}

/// Copies a file that is not cached, and waits until the copy is on the disk.
pub fn copy(disk: &LoopDisk) -> Result<Job> {
    // As for most disks; a current loop device would read ahead 20 times as much.
    disk.set("read_ahead_kb", "128")?;
    let folder = disk.file_system()?;
    let (from, to) = (path(&folder, "file"), path(&folder, "copy"));
    write(&from, 48)?;
    drop_cache(&from)?;
    Ok(Box::new(move || {
        run("cp", &[&from, &to])?;
        run("sync", &["-f", &to])?;
        Ok(())
    }))
}

/// Overwrites a file at random offsets.
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

/// Creates files with content, each in one extent of the disk.
fn create_files(folder: &Path, count: usize) -> Result<Vec<String>> {
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

/// Creates a file without zeroes.
fn write(file: &str, mebibytes: usize) -> Result<()> {
    fs::write(file, vec![0x11; mebibytes << 20])?;
    Ok(())
}

/// Writes a file back and drops its page cache, so that it is read again.
fn drop_cache(file: &str) -> Result<()> {
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
