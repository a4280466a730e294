//! [`TallyFile`]: the number of rows that each channel has produced, written to disk before the
//! rows are sent, so that the losses of a killed agent are counted.
//!
//! One file per process, `tally-INSTANCE`. One line of fixed length per channel, so that a change
//! is one write in place:
//!
//! ```text
//! CHANNEL PRODUCED LOST CHECK\n      each 16 digits in base 16
//! ```
//!
//! A line that is partially written because the machine crashed fails its check; the writes of a
//! killed process are complete (write(2) of less than a page).

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use weir_wire::message::{EARLIER_MAX, TALLIES_MAX};
use weir_wire::{ChannelTally, EarlierProcess};

use crate::private;

/// The prefix of the names of these files, before the number of the process.
const NAME: &str = "tally-";

/// Bytes of a line.
const LINE_BYTES: usize = 4 * 17;

/// The tallies of this process.
#[derive(Debug)]
pub struct TallyFile {
    file: File,
    /// The position of each channel's line, and its content.
    lines: HashMap<u64, (usize, ChannelTally)>,
    folder: PathBuf,
    instance: u64,
}

/// The tallies of earlier processes.
#[derive(Debug, Default, PartialEq)]
pub struct Earlier {
    /// Tallies by process, as in a hello; without channels that produced nothing.
    pub reported: Vec<EarlierProcess>,
    /// The processes whose files can be removed after the tallies are reported.
    pub processes: Vec<u64>,
    /// The number of tallies that exceeded the limit.
    pub omitted: usize,
}

impl TallyFile {
    /// Creates a file for this process in `folder`, which is created if it does not exist.
    ///
    /// # Errors
    /// If the folder or the file cannot be created.
    pub fn begin(folder: &Path, instance: u64) -> io::Result<TallyFile> {
        private::directory(folder)?;
        let mut options = File::options();
        let options = options.write(true).create_new(true);
        let file = private::open(options, &folder.join(format!("{NAME}{instance:016x}")))?;
        Ok(TallyFile {
            file,
            lines: HashMap::new(),
            folder: folder.to_owned(),
            instance,
        })
    }

    /// The tallies of earlier processes, as many as a hello may contain: the newest processes
    /// first, and of each the newest channels.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn earlier(&self) -> io::Result<Earlier> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let modified = entry.metadata()?.modified()?;
            let instance = instance_of(&entry.file_name().to_string_lossy());
            let other = instance.filter(|instance| *instance != self.instance);
            files.extend(other.map(|instance| (modified, instance, entry.path())));
        }
        files.sort_by_key(|(modified, ..)| std::cmp::Reverse(*modified));
        let mut earlier = Earlier::default();
        for (_, instance, path) in files {
            earlier.add(instance, read(&fs::read(path)?));
        }
        Ok(earlier)
    }

    /// Removes the files of these processes after the monitor has received them.
    pub fn forget(&self, instances: &[u64]) {
        for instance in instances {
            // A file that cannot be removed is reported again; the monitor ignores the duplicate.
            let _ = fs::remove_file(self.folder.join(format!("{NAME}{instance:016x}")));
        }
    }

    /// Writes the changed tallies. When there are many lines, the line of a channel that is no
    /// longer among `tallies` is reused.
    ///
    /// # Errors
    /// If the disk rejects the write.
    pub fn write(&mut self, tallies: impl Iterator<Item = ChannelTally> + Clone) -> io::Result<()> {
        for tally in tallies.clone() {
            let known = self.lines.get(&tally.channel);
            if known.is_some_and(|(_, written)| *written == tally) {
                continue;
            }
            let line = match known {
                Some((line, _)) => *line,
                None if self.lines.len() < TALLIES_MAX => self.lines.len(),
                None => match self.free_line(tallies.clone()) {
                    Some(line) => line,
                    None => continue,
                },
            };
            let at = (line * LINE_BYTES) as u64;
            self.file.write_all_at(line_of(&tally).as_bytes(), at)?;
            self.lines.insert(tally.channel, (line, tally));
        }
        Ok(())
    }

    /// The line of the oldest channel that is not among `tallies`.
    fn free_line(&mut self, tallies: impl Iterator<Item = ChannelTally>) -> Option<usize> {
        let channels: HashSet<u64> = tallies.map(|tally| tally.channel).collect();
        let over = self
            .lines
            .keys()
            .filter(|channel| !channels.contains(channel));
        let oldest = *over.min()?;
        self.lines.remove(&oldest).map(|(line, _)| line)
    }
}

impl Earlier {
    /// Adds a process, which is older than those already added, if there is room.
    fn add(&mut self, instance: u64, mut tallies: Vec<ChannelTally>) {
        tallies.retain(|tally| tally.produced > 0 || tally.lost > 0);
        let total: usize = self
            .reported
            .iter()
            .map(|process| process.tallies.len())
            .sum();
        let room = match self.reported.len() < EARLIER_MAX {
            true => TALLIES_MAX - total,
            false => 0,
        };
        self.omitted += tallies.len().saturating_sub(room);
        if room == 0 && !tallies.is_empty() {
            // It stays on disk; the next process reports it.
            return;
        }
        self.processes.push(instance);
        if !tallies.is_empty() {
            tallies.sort_unstable_by_key(|tally| std::cmp::Reverse(tally.channel));
            tallies.truncate(room);
            self.reported.push(EarlierProcess { instance, tallies });
        }
    }
}

fn instance_of(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix(NAME)?, 16).ok()
}

fn line_of(tally: &ChannelTally) -> String {
    let ChannelTally {
        channel,
        produced,
        lost,
    } = tally;
    let check = check(*channel, *produced, *lost);
    format!("{channel:016x} {produced:016x} {lost:016x} {check:016x}\n")
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

/// The tallies of complete lines with a correct check.
fn read(bytes: &[u8]) -> Vec<ChannelTally> {
    let tally = |line: &[u8]| {
        let text = std::str::from_utf8(line).ok()?;
        let numbers = text.split_whitespace().map(|n| u64::from_str_radix(n, 16));
        let numbers: Vec<u64> = numbers.collect::<Result<_, _>>().ok()?;
        let [channel, produced, lost, found] = numbers[..] else {
            return None;
        };
        let sound = check(channel, produced, lost) == found;
        sound.then_some(ChannelTally {
            channel,
            produced,
            lost,
        })
    };
    bytes.chunks_exact(LINE_BYTES).filter_map(tally).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(channel: u64, produced: u64, lost: u64) -> ChannelTally {
        ChannelTally {
            channel,
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
        // Simulates a killed process: no destructor runs.
        std::mem::forget(first);
        let second = TallyFile::begin(&folder, 2).unwrap();
        let earlier = second.earlier().unwrap();
        let expected = EarlierProcess {
            instance: 1,
            tallies: vec![tally(6, 1, 0), tally(5, 30, 2)],
        };
        assert_eq!(earlier.reported, [expected]);
        second.forget(&earlier.processes);
        assert_eq!(second.earlier().unwrap(), Earlier::default());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_agent_with_more_channels_than_fit_in_a_hello_starts_again() {
        let folder = folder("many");
        let many = TALLIES_MAX as u64 + 100;
        let mut first = TallyFile::begin(&folder, 1).unwrap();
        // The first hundred have ended and are no longer in the tallies when the last hundred
        // start.
        first
            .write((1..=many - 100).map(|c| tally(c, c, 0)))
            .unwrap();
        first.write((101..=many).map(|c| tally(c, c, 0))).unwrap();
        let mut second = TallyFile::begin(&folder, 2).unwrap();
        // One that produced nothing, and ten more than the limit allows in addition to those of the
        // first.
        second
            .write((0..=10).map(|rows| tally(rows + 1, rows, 0)))
            .unwrap();
        let earlier = TallyFile::begin(&folder, 3).unwrap().earlier().unwrap();
        let total: usize = earlier
            .reported
            .iter()
            .map(|process| process.tallies.len())
            .sum();
        assert_eq!((total, earlier.omitted), (TALLIES_MAX, 10));
        let of = |process| {
            earlier
                .reported
                .iter()
                .find(|earlier| earlier.instance == process)
        };
        let channels = |process| {
            of(process).map(|earlier| (earlier.tallies[0].channel, earlier.tallies.len()))
        };
        let (first, second) = (channels(1), channels(2));
        // The order of the files depends on the file system's clock.
        match second {
            Some(second) => {
                assert_eq!(second, (11, 10));
                assert_eq!(first, Some((many, TALLIES_MAX - 10)));
            }
            None => assert_eq!(first, Some((many, TALLIES_MAX))),
        }
        let hello = weir_wire::Hello {
            host: "h".to_owned(),
            instance: 3,
            earlier: earlier.reported,
            ..weir_wire::Hello::default()
        };
        weir_wire::message::FromAgent::hello(hello).unwrap();
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_process_without_output_is_not_reported() {
        let mut earlier = Earlier::default();
        earlier.add(1, vec![tally(1, 0, 0)]);
        earlier.add(2, Vec::new());
        assert_eq!((earlier.reported.len(), earlier.processes), (0, vec![1, 2]));
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
