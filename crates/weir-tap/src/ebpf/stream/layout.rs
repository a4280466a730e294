//! Data structures shared with the programs of a kernel stream, as defined in `stream.h`.

use crate::ebpf::fold::layout::FOLDS;

/// Bytes of `struct event`, the head of each event.
pub const HEAD_BYTES: usize = 24;

/// Maximum size of an event in bytes, unless its programs raise it.
pub const EVENT_BYTES_MAX: usize = 128;

/// Maximum size of an event of a stream whose programs raise the limit, in bytes.
pub const LONG_EVENT_BYTES_MAX: usize = 208;

/// Position of the processor in an event, in bytes.
pub const CPU_OFFSET: usize = 16;

/// Position of the time in an event, in 8-byte words.
pub const TIME_WORD: usize = 1;

/// The word of an event with its clauses and folds, and the positions of those.
pub const MARKS_WORD: usize = 2;
/// See [`MARKS_WORD`].
pub const CLAUSES_SHIFT: u32 = 16;
/// See [`MARKS_WORD`].
pub const FOLDED_SHIFT: u32 = 24;

/// Maximum number of clauses of all demands.
pub const CLAUSES: usize = 8;

/// Maximum number of columns: the programs receive a mask of 64 bits of those that are read.
pub const COLUMNS_MAX: usize = u64::BITS as usize;

/// Maximum number of tests of a clause.
pub const TESTS: usize = 4;

/// Maximum number of texts or numbers of a test.
pub const TEXTS: usize = 8;

/// Bytes of a text that is tested or grouped by.
pub const TEXT_BYTES: usize = 16;

/// Words of a group's key.
pub const KEY_WORDS: usize = 4;

/// Values that folds keep.
pub const MEASURES: usize = 8;

/// Bytes of `struct stream_counts`: the numbers of lost events and of events that were not tested,
/// and, in its second half, the stream's own counters.
pub const COUNTS_BYTES: usize = 128;

/// Maximum number of a stream's own counters.
pub const COUNTERS_MAX: usize = COUNTS_BYTES / 16;

/// Bytes of `struct stream_state`, whose first word activates the programs.
pub const STATE_BYTES: usize = 16;

const SLOT_BYTES: usize = 16;
const TEST_BYTES: usize = SLOT_BYTES + 16 * TEXTS + 8;
const CLAUSE_BYTES: usize = TESTS * TEST_BYTES + 8;

/// `enum test`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestKind {
    /// Between the first two values.
    Range = 0,
    /// The sampling number is.
    Sample = 1,
    /// One of the values.
    Numbers = 2,
    /// A text: one of the pairs of values.
    Texts = 3,
}

/// `struct slot`: where a number is in an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// In bytes.
    pub offset: u16,
    /// 1, 2, 4 or 8.
    pub bytes: u8,
    /// Negative numbers are possible.
    pub is_signed: bool,
    /// The number that stands for NULL.
    pub null: Option<u64>,
}

/// `struct test_of`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// The number, or the beginning of the text.
    pub slot: Slot,
    /// The kind of test.
    pub kind: TestKind,
    /// The values: at most 2 * [`TEXTS`].
    pub values: Vec<u64>,
}

/// `struct stream_config`: constants set before the programs are loaded.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The tests of each clause; an event must pass all tests of one.
    pub clauses: Vec<Vec<Test>>,
    /// The values that folds keep.
    pub measures: Vec<Slot>,
    /// The words of each fold's keys.
    pub keys: [Vec<Slot>; FOLDS],
    /// Records per processor, a power of two.
    pub ring_slots: u32,
    /// Tasks and bios are in the same hierarchy of cgroups.
    pub unified: bool,
    /// The columns that a demand reads, one bit each.
    pub columns: u64,
}

impl Slot {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.offset.to_ne_bytes());
        let nullable = self.null.is_some().into();
        out.extend([self.bytes, self.is_signed.into(), nullable, 0, 0, 0]);
        out.extend(self.null.unwrap_or(0).to_ne_bytes());
    }
}

impl Test {
    fn encode(&self, out: &mut Vec<u8>) {
        self.slot.encode(out);
        let values = self.values.iter().copied().chain(std::iter::repeat(0));
        for value in values.take(2 * TEXTS) {
            out.extend(value.to_ne_bytes());
        }
        let count = match self.kind {
            TestKind::Texts => self.values.len() / 2,
            _ => self.values.len(),
        };
        out.extend([self.kind as u8, count as u8, 0, 0, 0, 0, 0, 0]);
    }
}

impl Config {
    /// The bytes of `.rodata`.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        // Items, and zeros for those that are not in use.
        let mut end = 0;
        let mut fill = |out: &mut Vec<u8>, bytes: usize| {
            end += bytes;
            assert!(out.len() <= end, "the limits of stream.h hold");
            out.resize(end, 0);
        };
        for clause in &self.clauses {
            clause.iter().for_each(|test| test.encode(&mut out));
            let tests = clause.len() as u8;
            fill(&mut out, CLAUSE_BYTES - 8);
            out.push(tests);
            fill(&mut out, 8);
        }
        fill(&mut out, (CLAUSES - self.clauses.len()) * CLAUSE_BYTES);
        self.measures.iter().for_each(|slot| slot.encode(&mut out));
        fill(&mut out, MEASURES * SLOT_BYTES);
        for words in &self.keys {
            words.iter().for_each(|slot| slot.encode(&mut out));
            fill(&mut out, KEY_WORDS * SLOT_BYTES);
        }
        out.extend((self.clauses.len() as u32).to_ne_bytes());
        out.extend(self.ring_slots.to_ne_bytes());
        out.push(self.measures.len() as u8);
        out.extend(self.keys.iter().map(|words| words.len() as u8));
        out.push(cfg!(any(target_arch = "x86", target_arch = "x86_64")).into());
        out.extend([self.unified.into(), 0, 0, 0]);
        out.extend(self.columns.to_ne_bytes());
        fill(&mut out, 24);
        out
    }
}

const _: () = assert!(TEST_BYTES == 152, "struct test_of of stream.h");
const _: () = assert!(CLAUSE_BYTES == 616, "struct clause of stream.h");
const _: () = assert!(FOLDS == 2, "struct stream_config of stream.h");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_has_the_size_of_the_structure() {
        let slot = Slot {
            bytes: 8,
            ..Slot::default()
        };
        let test = Test {
            slot,
            kind: TestKind::Texts,
            values: vec![1; 2 * TEXTS],
        };
        let full = Config {
            clauses: vec![vec![test; TESTS]; CLAUSES],
            measures: vec![slot; MEASURES],
            keys: [vec![slot; KEY_WORDS], vec![slot]],
            ring_slots: 4,
            unified: true,
            columns: u64::MAX,
        };
        let bytes = CLAUSES * CLAUSE_BYTES + (MEASURES + FOLDS * KEY_WORDS) * SLOT_BYTES + 24;
        for config in [Config::default(), full] {
            assert_eq!(config.bytes().len(), bytes);
        }
    }
}
