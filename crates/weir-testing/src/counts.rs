//! The kernel's counters of a disk: `/proc/diskstats`, in the guest or on the host.

use std::collections::BTreeMap;

/// Requests and sectors of one disk, since it was added or since an earlier snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Completed reads.
    pub reads: i64,
    /// Reads that were merged into others before they were issued.
    pub read_merges: i64,
    /// 512-byte sectors read.
    pub read_sectors: i64,
    /// Completed writes; Linux counts a flush without data here as well.
    pub writes: i64,
    /// Writes that were merged.
    pub write_merges: i64,
    /// Sectors written.
    pub write_sectors: i64,
    /// Completed discards.
    pub discards: i64,
    /// Sectors discarded.
    pub discard_sectors: i64,
    /// Flush commands that were sent to the disk. Several fsyncs at once may share one.
    pub flushes: i64,
}

impl Counts {
    /// The difference from an earlier snapshot.
    pub fn since(&self, before: &Counts) -> Counts {
        Counts {
            reads: self.reads - before.reads,
            read_merges: self.read_merges - before.read_merges,
            read_sectors: self.read_sectors - before.read_sectors,
            writes: self.writes - before.writes,
            write_merges: self.write_merges - before.write_merges,
            write_sectors: self.write_sectors - before.write_sectors,
            discards: self.discards - before.discards,
            discard_sectors: self.discard_sectors - before.discard_sectors,
            flushes: self.flushes - before.flushes,
        }
    }

    /// Requests of all kinds.
    pub fn requests(&self) -> i64 {
        self.reads + self.writes + self.discards
    }
}

/// The counters of each disk in the text of `/proc/diskstats`, by the kernel's name of the disk.
/// Columns as in the kernel's Documentation/admin-guide/iostats.rst; those that a kernel before 5.5
/// lacks are 0.
pub fn disk_stats(text: &str) -> BTreeMap<String, Counts> {
    let lines = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let name = words.get(2)?;
        let n = |field: usize| {
            words
                .get(field + 2)
                .and_then(|w| w.parse().ok())
                .unwrap_or(0)
        };
        let counts = Counts {
            reads: n(1),
            read_merges: n(2),
            read_sectors: n(3),
            writes: n(5),
            write_merges: n(6),
            write_sectors: n(7),
            discards: n(12),
            discard_sectors: n(14),
            flushes: n(16),
        };
        Some(((*name).to_owned(), counts))
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_diskstats_is_parsed() {
        let text = " 254 0 vda 11 1 88 5 22 2 176 7 0 12 13 3 0 24 1 4 2\n\
                    8 0 sda 1 0 8 0 0 0 0 0 0 0 0\n";
        let all = disk_stats(text);
        let vda = all["vda"];
        assert_eq!((vda.reads, vda.read_merges, vda.read_sectors), (11, 1, 88));
        assert_eq!(
            (vda.writes, vda.write_merges, vda.write_sectors),
            (22, 2, 176)
        );
        assert_eq!((vda.discards, vda.discard_sectors, vda.flushes), (3, 24, 4));
        assert_eq!(all["sda"].requests(), 1);
        assert_eq!(vda.since(&vda), Counts::default());
    }
}
