//! [`HistTables`]: the tables that hold the histograms, and [`Setup`]: their sizes.

use std::sync::atomic::Ordering;

use super::layout::{self, Config};
use super::{By, HistOptions};
use crate::TapError;
use crate::ebpf::layout::KNOWN_BYTES;
use crate::ebpf::order;
use crate::shared::Shared;

/// The sizes of the tables, and the configuration of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The configuration of the programs.
    pub config: Config,
    /// Entries of the table of owners, a power of two.
    pub owners: u32,
}

/// Entries of the table of owners, each for four processes or cgroups.
const OWNERS: u32 = 1 << 10;

/// The tables, mapped.
#[derive(Debug)]
pub struct HistTables {
    /// Bins.
    pub blocks: Shared,
    /// The positions of the blocks of each subject and processor.
    pub blocks_of: Shared,
    /// The subjects.
    pub subjects: Shared,
    /// The owners of processes, cgroups and devices.
    pub owners: Shared,
    /// Counts of requests that were not entered.
    pub not_entered: Shared,
    /// State that changes while the programs run.
    pub state: Shared,
}

impl Setup {
    /// The sizes for these options and number of processors; `clauses` are those of the histograms.
    pub fn new(options: &HistOptions, processors: u32, clauses: u8, waits: bool) -> Setup {
        let subjects = options.entries_max as u32;
        // Half full at most.
        let buckets = (subjects * 2).div_ceil(layout::WAYS as u32);
        let needed = options.entries_max * processors as usize * (layout::OPS + 1);
        let blocks = (options.bins_bytes_max / layout::BLOCK_BYTES).min(needed + 1);
        Setup {
            config: Config {
                bucket_mask: buckets.next_power_of_two() - 1,
                owner_mask: OWNERS - 1,
                processors,
                subjects_max: subjects,
                blocks_max: blocks as u32,
                closest_of: options.closest_of as u32,
                on: true,
                by: match options.by {
                    By::Disk if options.inventory.is_some() => 1,
                    By::Disk | By::Device => 0,
                    By::Process => 2,
                    By::Cgroup => 3,
                },
                waits,
                clauses,
            },
            owners: OWNERS,
        }
    }

    /// The sizes without histograms.
    pub fn off() -> Setup {
        Setup {
            config: Config {
                bucket_mask: 0,
                owner_mask: 0,
                processors: 1,
                subjects_max: 0,
                blocks_max: 0,
                closest_of: 1,
                on: false,
                by: 0,
                waits: false,
                clauses: 0,
            },
            owners: 1,
        }
    }

    /// Number of values of the table of that name; none if it is not one of these.
    pub fn values(&self, table: &str) -> Option<u32> {
        let config = &self.config;
        let subjects = config.subjects_max.max(1);
        Some(match table {
            "hist_blocks" => config.blocks_max.max(1),
            "hist_blocks_of" => subjects * config.processors,
            "hist_subjects" => subjects,
            "hist_pasts" => subjects * config.processors * 2,
            "hist_names" => config.bucket_mask + 1,
            "hist_owners" => self.owners,
            "hist_not_entered" => config.processors,
            "hist_state" => 1,
            _ => return None,
        })
    }

    /// Size of all tables in bytes.
    pub fn bytes(&self) -> u64 {
        let tables = [
            ("hist_blocks", layout::BLOCK_BYTES),
            ("hist_blocks_of", layout::BLOCKS_OF_BYTES),
            ("hist_subjects", layout::SUBJECT_BYTES),
            ("hist_pasts", layout::PAST_BYTES),
            ("hist_names", layout::BUCKET_BYTES),
            ("hist_owners", KNOWN_BYTES),
            ("hist_not_entered", layout::NOT_ENTERED_BYTES),
            ("hist_state", layout::STATE_BYTES),
        ];
        let bytes =
            |(table, bytes): (&str, usize)| self.values(table).map_or(0, u64::from) * bytes as u64;
        tables.into_iter().map(bytes).sum()
    }
}

impl HistTables {
    /// Maps the tables; `map` maps the table of that name, with values of that size in bytes.
    ///
    /// # Errors
    /// The error of `map`.
    pub fn map(
        setup: &Setup,
        map: &dyn Fn(&str, usize, usize) -> Result<Shared, TapError>,
    ) -> Result<HistTables, TapError> {
        let map = |table: &str, bytes: usize| {
            let values = setup.values(table).expect("a table of the histograms");
            map(table, bytes, values as usize)
        };
        let pasts = map("hist_pasts", layout::PAST_BYTES)?;
        begin_pasts(&pasts, setup.config.processors as usize);
        Ok(HistTables {
            blocks: map("hist_blocks", layout::BLOCK_BYTES)?,
            blocks_of: map("hist_blocks_of", layout::BLOCKS_OF_BYTES)?,
            subjects: map("hist_subjects", layout::SUBJECT_BYTES)?,
            owners: map("hist_owners", KNOWN_BYTES)?,
            not_entered: map("hist_not_entered", layout::NOT_ENTERED_BYTES)?,
            state: map("hist_state", layout::STATE_BYTES)?,
        })
    }

    /// The number of subjects.
    pub fn subjects(&self) -> usize {
        let given = self.state.words()[layout::state::SUBJECTS].load(Ordering::Acquire);
        (given as usize).min(self.subjects.words().len() / (layout::SUBJECT_BYTES / 8))
    }

    /// A word of a subject.
    pub fn subject(&self, number: usize, word: usize) -> u64 {
        self.subjects.words()[number * layout::SUBJECT_BYTES / 8 + word].load(Ordering::Acquire)
    }

    /// Decrements the requests in flight of the subject whose number + 1 is `number`, after the
    /// removal of an entry.
    pub fn forget(&self, number: usize) {
        if number > 0 {
            let at = (number - 1) * layout::SUBJECT_BYTES / 8 + layout::subject::ORDER;
            order::forget(&self.subjects.words()[at]);
        }
    }

    /// The blocks of a subject on processor `cpu`: one for each operation, and the last of all
    /// operations. `None` if nothing was entered yet.
    pub fn blocks(
        &self,
        number: usize,
        cpu: usize,
        processors: usize,
    ) -> impl Iterator<Item = Option<usize>> {
        let at = (number * processors + cpu) * layout::BLOCKS_OF_BYTES / 8;
        let words = &self.blocks_of.words()[at..][..layout::BLOCKS_OF_BYTES / 8];
        (0..=layout::OPS).map(move |which| {
            let word = words[which / 2].load(Ordering::Acquire);
            let block = (word >> (32 * (which % 2))) as u32 as usize;
            (block > 0).then_some(block)
        })
    }

    /// The words of a block.
    pub fn block(&self, block: usize) -> &[std::sync::atomic::AtomicU64] {
        const WORDS: usize = layout::BLOCK_BYTES / 8;
        &self.blocks.words()[block * WORDS..][..WORDS]
    }

    /// A count of requests that were not entered, over all processors.
    pub fn not_entered(&self, word: usize) -> u64 {
        let rows = self
            .not_entered
            .words()
            .chunks_exact(layout::NOT_ENTERED_BYTES / 8);
        rows.map(|row| row[word].load(Ordering::Relaxed)).sum()
    }
}

/// Initializes the past of each subject: no requests.
fn begin_pasts(pasts: &Shared, processors: usize) {
    const WORDS: usize = layout::PAST_BYTES / 8;
    for of_subject in pasts.words().chunks_exact(WORDS * processors * 2) {
        for word in &of_subject[layout::PAST_SECTORS] {
            word.store(layout::NO_SECTOR, Ordering::Relaxed);
        }
    }
}
