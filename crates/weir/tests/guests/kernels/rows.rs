//! The rows that weir reported of a guest's disks, counted.

use std::collections::BTreeMap;

/// Rows that are equal in what the tests count.
#[derive(Debug)]
struct Group {
    count: i64,
    is_request: bool,
    disk: String,
    op: String,
    error: String,
    /// The processor, of rows before the partition of `vdc` only.
    cpu: String,
}

/// All rows.
pub struct Rows(Vec<Group>);

/// The query that reports them.
pub const QUERY: &str = "query -v --no-fold --stacked --format csv \
    'select type, pdisk, op, sector, error, cpu from IOstream'";

/// The sectors of a disk without requests that weir received, and those that only the kernel
/// counted, in the summary of the query; `None` if it has no figure.
pub fn sectors(summary: &str, disk: &str) -> Option<[i64; 2]> {
    let words = summary.lines().map(|line| line.split_whitespace());
    let figure = |text: &[&str]| {
        let mut lines = words.clone().map(Iterator::collect::<Vec<_>>);
        lines.find_map(|words| {
            let at = words.windows(text.len()).position(|w| w == text)?;
            words[at.checked_sub(1)?].parse().ok()
        })
    };
    let disk = format!("/dev/{disk}");
    let seen = figure(&["sectors", "seen", "of", &disk])?;
    let unseen = figure(&["sectors", "on", &format!("{disk}:")]);
    Some([seen, unseen.unwrap_or(0)])
}

/// The first sector of the partition: what is before it belongs to one load.
pub const PART_START: u64 = 2048;

impl Rows {
    /// A command that counts the rows of a file in the guest, whose serial port is slow.
    pub fn command(file: &str) -> String {
        let is_start = format!("$3 == \"/dev/vdc\" && $5 != \"\" && $5 < {PART_START}");
        format!(
            "awk -F, 'NR > 1 {{ n[$2 FS $3 FS $4 FS $6 FS ({is_start} ? $7 : \"\")]++ }} \
             END {{ for (key in n) print n[key] FS key }}' {file}"
        )
    }

    /// The output of that command.
    pub fn parse(text: &str) -> Rows {
        let group = |line: &str| {
            let words: Vec<&str> = line.split(',').collect();
            let [count, kind, pdisk, op, error, cpu] = words[..] else {
                panic!("{line}");
            };
            Group {
                count: count.parse().expect("a number"),
                is_request: kind == "Q",
                disk: pdisk.trim_start_matches("/dev/").to_owned(),
                op: op.to_owned(),
                error: error.to_owned(),
                cpu: cpu.to_owned(),
            }
        };
        Rows(text.lines().map(group).collect())
    }

    fn count(&self, wanted: impl Fn(&&Group) -> bool) -> i64 {
        self.0.iter().filter(wanted).map(|group| group.count).sum()
    }

    /// Finished requests of these disks.
    pub fn finished(&self, disks: &[&str], op: &str) -> i64 {
        self.count(|g| !g.is_request && disks.contains(&g.disk.as_str()) && g.op == op)
    }

    /// Requests of these disks.
    pub fn requests(&self, disks: &[&str], op: &str) -> i64 {
        self.count(|g| g.is_request && disks.contains(&g.disk.as_str()) && g.op == op)
    }

    /// Reads of a disk that finished with this error.
    pub fn failed(&self, disk: &str, error: &str) -> i64 {
        self.count(|g| !g.is_request && g.disk == disk && g.op == "r" && g.error == error)
    }

    /// Requests, or responses, before the partition of `vdc`, by processor.
    pub fn at_start(&self, is_request: bool) -> BTreeMap<&str, i64> {
        let groups = self.0.iter().filter(|g| !g.cpu.is_empty());
        let groups = groups.filter(|g| g.is_request == is_request);
        let mut counts = BTreeMap::new();
        for group in groups {
            *counts.entry(group.cpu.as_str()).or_default() += group.count;
        }
        counts
    }
}
