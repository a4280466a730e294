//! [`TallyFile`]: how many rows each channel has given, on disk before they are said, so that an
//! agent that is killed loses none of them unseen.
//!
//! A file a process, `tally-INSTANCE`. A line a channel, of fixed length, so that a change is one
//! write in place:
//!
//! ```text
//! CHANNEL PRODUCED LOST CHECK\n      each 16 digits in base 16
//! ```
//!
//! A write of one line that is cut short by a crash of the whole machine does not pass its check; a
//! killed process's writes are whole (write(2) of less than a page).

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use weir_wire::{ChannelId, Tally};

/// What files of this kind are called, before the process's number.
const NAME: &str = "tally-";

/// Bytes of a line.
const LINE_BYTES: usize = 4 * 17;

/// Channels of one process whose tallies are kept; those after them are told to the monitor only.
const CHANNELS_MAX: usize = 1 << 16;

/// Files of earlier processes that are read: the newest ones.
const EARLIER_MAX: usize = 64;

/// The tallies of this process.
#[derive(Debug)]
pub struct TallyFile {
    file: File,
    /// Where each channel's line is, and what it says.
    lines: HashMap<ChannelId, (usize, Tally)>,
    folder: PathBuf,
    instance: u64,
}

impl TallyFile {
    /// Begins a file for this process in `folder`, which is made if need be.
    ///
    /// # Errors
    /// When the folder or the file cannot be made.
    pub fn begin(folder: &Path, instance: u64) -> io::Result<TallyFile> {
        fs::create_dir_all(folder)?;
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(folder.join(format!("{NAME}{instance:016x}")))?;
        Ok(TallyFile {
            file,
            lines: HashMap::new(),
            folder: folder.to_owned(),
            instance,
        })
    }

    /// What earlier processes wrote down, by process.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn earlier(&self) -> io::Result<Vec<(u64, Vec<Tally>)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let modified = entry.metadata()?.modified()?;
            let instance = instance_of(&entry.file_name().to_string_lossy());
            let other = instance.filter(|instance| *instance != self.instance);
            files.extend(other.map(|instance| (modified, instance, entry.path())));
        }
        files.sort_by_key(|(modified, ..)| std::cmp::Reverse(*modified));
        let mut earlier = Vec::new();
        for (_, instance, path) in files.into_iter().take(EARLIER_MAX) {
            earlier.push((instance, read(&fs::read(path)?)));
        }
        Ok(earlier)
    }

    /// Removes what these processes wrote down, once the monitor has it.
    pub fn forget(&self, instances: &[u64]) {
        for instance in instances {
            // What cannot be removed is told again, and the monitor knows it.
            let _ = fs::remove_file(self.folder.join(format!("{NAME}{instance:016x}")));
        }
    }

    /// Writes down what has changed.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub fn write(&mut self, tallies: impl Iterator<Item = Tally>) -> io::Result<()> {
        for tally in tallies {
            let next = self.lines.len();
            let known = self.lines.get(&tally.channel);
            if known.is_some_and(|(_, written)| *written == tally)
                || known.is_none() && next >= CHANNELS_MAX
            {
                continue;
            }
            let line = known.map_or(next, |(line, _)| *line);
            let at = (line * LINE_BYTES) as u64;
            self.file.write_all_at(line_of(&tally).as_bytes(), at)?;
            self.lines.insert(tally.channel, (line, tally));
        }
        Ok(())
    }
}

fn instance_of(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix(NAME)?, 16).ok()
}

fn line_of(tally: &Tally) -> String {
    let Tally {
        channel,
        produced,
        lost,
    } = tally;
    let check = check(channel.0, *produced, *lost);
    format!(
        "{:016x} {produced:016x} {lost:016x} {check:016x}\n",
        channel.0
    )
}

fn check(channel: u64, produced: u64, lost: u64) -> u64 {
    let mix = |hash: u64, n: u64| {
        (hash ^ n)
            .wrapping_mul(0x0000_0100_0000_01b3)
            .rotate_left(23)
    };
    [channel, produced, lost]
        .into_iter()
        .fold(0xcbf2_9ce4_8422_2325, mix)
}

/// The tallies of whole lines that are sound.
fn read(bytes: &[u8]) -> Vec<Tally> {
    let tally = |line: &[u8]| {
        let text = std::str::from_utf8(line).ok()?;
        let numbers = text.split_whitespace().map(|n| u64::from_str_radix(n, 16));
        let numbers: Vec<u64> = numbers.collect::<Result<_, _>>().ok()?;
        let [channel, produced, lost, found] = numbers[..] else {
            return None;
        };
        let sound = check(channel, produced, lost) == found;
        sound.then_some(Tally {
            channel: ChannelId(channel),
            produced,
            lost,
        })
    };
    bytes.chunks_exact(LINE_BYTES).filter_map(tally).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(channel: u64, produced: u64, lost: u64) -> Tally {
        Tally {
            channel: ChannelId(channel),
            produced,
            lost,
        }
    }

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("weir-tally-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn what_was_written_last_is_read_by_the_next_process() {
        let folder = folder("next");
        let mut first = TallyFile::begin(&folder, 1).unwrap();
        first
            .write([tally(5, 10, 0), tally(6, 1, 0)].into_iter())
            .unwrap();
        first
            .write([tally(5, 30, 2), tally(6, 1, 0)].into_iter())
            .unwrap();
        // The process is killed: nothing is closed in order.
        std::mem::forget(first);
        let second = TallyFile::begin(&folder, 2).unwrap();
        let earlier = second.earlier().unwrap();
        assert_eq!(earlier, [(1, vec![tally(5, 30, 2), tally(6, 1, 0)])]);
        second.forget(&[1]);
        assert!(second.earlier().unwrap().is_empty());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_line_that_is_not_whole_is_not_believed() {
        let mut bytes = line_of(&tally(1, 2, 3)).into_bytes();
        bytes.extend(line_of(&tally(4, 5, 6)).bytes());
        assert_eq!(read(&bytes).len(), 2);
        bytes[LINE_BYTES + 20] ^= 1;
        assert_eq!(read(&bytes), [tally(1, 2, 3)]);
        assert_eq!(read(&bytes[..LINE_BYTES + 9]), [tally(1, 2, 3)]);
        assert!(read(b"anything at all").is_empty());
    }
}
