//! [`ProcessSymbols`]: the functions at addresses of processes, by their mappings and files.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};

use super::file::FileSymbols;
use super::readable;

/// Maximum number of processes and of files whose mappings and symbols are kept.
const PROCESSES_MAX: usize = 1024;
const FILES_MAX: usize = 256;

/// Maximum size of the symbols of all files that are kept.
const SYMBOLS_BYTES_MAX: usize = 512 << 20;

/// Maximum number of bytes of a list of mappings.
const MAPS_BYTES_MAX: u64 = 16 << 20;

/// Mappings of this age are read again: the process may have loaded a library, or run a program.
const MAPPINGS_AGE_MAX: Duration = Duration::from_secs(1);

/// The mappings of processes, and the functions of their files.
#[derive(Debug, Default)]
pub struct ProcessSymbols {
    mappings: HashMap<u32, Mappings>,
    files: HashMap<MappedFile, Arc<FileSymbols>>,
}

/// The executable mappings of a process.
#[derive(Debug)]
struct Mappings {
    read: Instant,
    list: Vec<Mapping>,
}

/// A line of `/proc/PID/maps`.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    /// The offset of its beginning in the file.
    offset: u64,
    file: MappedFile,
}

/// A file as `/proc/PID/maps` identifies it. The path is empty for memory without a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct MappedFile {
    device: String,
    inode: u64,
    path: String,
}

impl ProcessSymbols {
    /// The name of the function at each address of a process.
    pub fn names(&mut self, pid: u32, addresses: &[u64]) -> Vec<String> {
        let is_current = self.mappings.get(&pid).is_some_and(|known| {
            known.read.elapsed() < MAPPINGS_AGE_MAX
                && addresses.iter().all(|address| known.at(*address).is_some())
        });
        if !is_current {
            self.read(pid);
        }
        let name = |address: &u64| {
            let (file, offset) = self.mappings.get(&pid)?.at(*address)?;
            Some((file.clone(), offset))
        };
        let located: Vec<_> = addresses.iter().map(name).collect();
        let name = |located: Option<(MappedFile, u64)>| {
            let (file, offset) = located?;
            let known = self.functions_of(pid, &file).and_then(|functions| {
                let name = functions.name(offset)?;
                Some(readable(name))
            });
            known.or_else(|| file.label())
        };
        let names = located.into_iter().map(name);
        let names: Vec<Option<String>> = names.collect();
        let unknown = || "[unknown]".to_owned();
        names
            .into_iter()
            .map(|name| name.unwrap_or_else(unknown))
            .collect()
    }

    /// Reads the mappings of a process. Those of a process that has ended are kept until its number
    /// is used again, so that its last stacks have names.
    fn read(&mut self, pid: u32) {
        let mut text = Vec::new();
        let read = File::open(format!("/proc/{pid}/maps"))
            .and_then(|file| file.take(MAPS_BYTES_MAX).read_to_end(&mut text));
        if read.is_err() || text.is_empty() {
            return;
        }
        if self.mappings.len() >= PROCESSES_MAX && !self.mappings.contains_key(&pid) {
            self.mappings.clear();
        }
        let text = String::from_utf8_lossy(&text);
        let mappings = Mappings {
            read: Instant::now(),
            list: text.lines().filter_map(Mapping::of_line).collect(),
        };
        self.mappings.insert(pid, mappings);
    }

    /// The functions of a file of a process; `None` if it has no file, or it cannot be read.
    fn functions_of(&mut self, pid: u32, file: &MappedFile) -> Option<Arc<FileSymbols>> {
        if let Some(known) = self.files.get(file) {
            return Some(known.clone());
        }
        if file.inode == 0 {
            return None;
        }
        let read = file.open(pid).and_then(|file| FileSymbols::read(&file));
        let read = match read {
            // It may be readable in the next process that has it, or never.
            Err(_) if !Path::new(&format!("/proc/{pid}")).exists() => return None,
            read => Arc::new(read.unwrap_or_default()),
        };
        let kept: usize = self.files.values().map(|file| file.bytes()).sum();
        if self.files.len() >= FILES_MAX || kept + read.bytes() > SYMBOLS_BYTES_MAX {
            self.files.clear();
        }
        self.files.insert(file.clone(), read.clone());
        Some(read)
    }
}

impl Mappings {
    /// The file at an address, and the offset in it.
    fn at(&self, address: u64) -> Option<(&MappedFile, u64)> {
        let after = self.list.partition_point(|one| one.start <= address);
        let one = self.list[..after].last().filter(|one| address < one.end)?;
        Some((&one.file, address - one.start + one.offset))
    }
}

impl Mapping {
    /// `55d0-55d8 r-xp 00002000 fd:01 1234    /usr/bin/x`, if it is executable.
    fn of_line(line: &str) -> Option<Mapping> {
        let mut parts = line.splitn(6, ' ');
        let (start, end) = parts.next()?.split_once('-')?;
        let mode = parts.next()?;
        let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
        let offset = hexadecimal(parts.next()?)?;
        let device = parts.next()?.to_owned();
        let inode = parts.next()?.parse().ok()?;
        let path = parts.next().unwrap_or_default().trim_start().to_owned();
        let mapping = Mapping {
            start: hexadecimal(start)?,
            end: hexadecimal(end)?,
            offset,
            file: MappedFile {
                device,
                inode,
                path,
            },
        };
        mode.contains('x').then_some(mapping)
    }
}

/// What follows the path of a file that has been removed.
const DELETED: &str = " (deleted)";

impl MappedFile {
    /// The name in place of a function's: that of the file in brackets.
    fn label(&self) -> Option<String> {
        let path = self.path.strip_suffix(DELETED).unwrap_or(&self.path);
        match path.rsplit('/').next().unwrap_or_default() {
            "" => None,
            name if name.starts_with('[') => Some(readable(name)),
            name => Some(format!("[{}]", readable(name))),
        }
    }

    /// Opens the file as the process sees it; its program also if it has been replaced.
    fn open(&self, pid: u32) -> io::Result<File> {
        let program = format!("/proc/{pid}/exe");
        let path = match fs::read_link(&program) {
            Ok(path) if path == Path::new(&self.path) => return self.checked(File::open(program)?),
            _ => &self.path,
        };
        let directory = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
        let root = openat(CWD, format!("/proc/{pid}/root"), directory, Mode::empty())?;
        // A path may have become that of a pipe, which must not be waited for.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = openat2(
            root,
            path.as_str(),
            flags,
            Mode::empty(),
            ResolveFlags::IN_ROOT,
        )?;
        self.checked(opened.into())
    }

    /// The file, if it is the one that is mapped: another one may have its path since. File systems
    /// such as btrfs show other devices in the list of mappings, but the same inode.
    fn checked(&self, file: File) -> io::Result<File> {
        let status = file.metadata()?;
        match status.is_file() && status.ino() == self.inode {
            true => Ok(file),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_mappings_are_read() {
        let line =
            "55d0-55d8 r-xp 00002000 fd:01 1234                       /usr/bin/a b (deleted)";
        let mapping = Mapping::of_line(line).unwrap();
        assert_eq!(
            (mapping.start, mapping.end, mapping.offset),
            (0x55d0, 0x55d8, 0x2000)
        );
        assert_eq!((mapping.file.inode, &*mapping.file.device), (1234, "fd:01"));
        assert_eq!(mapping.file.label().as_deref(), Some("[a b]"));
        let mappings = Mappings {
            read: Instant::now(),
            list: vec![mapping],
        };
        assert_eq!(mappings.at(0x55d4).unwrap().1, 0x2004);
        assert!(mappings.at(0x55d8).is_none() && mappings.at(0x55cf).is_none());
        assert_eq!(Mapping::of_line(&line.replace("r-xp", "rw-p")), None);
        let without = Mapping::of_line("7f00-7f10 r-xp 00000000 00:00 0 ").unwrap();
        assert_eq!(without.file.label(), None);
    }
}
