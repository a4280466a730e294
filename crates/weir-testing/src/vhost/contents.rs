//! [`Contents`]: the expected content of a disk, block by block. Each block contains its own
//! address, its generation and a checksum, so a wrong one shows its origin.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::plan::scrambled;

/// The expected content of the blocks of a disk.
#[derive(Clone, Debug)]
pub struct Contents {
    block_bytes: usize,
    blocks: Vec<Expected>,
    /// The last generation that was written.
    generation: u32,
}

/// The expected content of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// Unknown: it was never written, or a write to it failed.
    Anything,
    Zeroes,
    Written(u32),
    /// It was discarded: the disk may have kept it or not.
    WrittenOrZeroes(u32),
}

/// A block with wrong content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Its first sector.
    pub sector: u64,
    expected: Expected,
    found: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch {
            sector,
            expected,
            found,
        } = self;
        write!(
            f,
            "sector {sector} holds {found}, but must hold {expected:?}"
        )
    }
}

impl std::error::Error for Mismatch {}

impl Contents {
    /// A disk of unknown content, in blocks of `block_bytes` bytes.
    pub fn unknown(sectors: u64, block_bytes: usize) -> Contents {
        Contents::all(sectors, block_bytes, Expected::Anything)
    }

    /// A disk of zeroes.
    pub fn zeroes(sectors: u64, block_bytes: usize) -> Contents {
        Contents::all(sectors, block_bytes, Expected::Zeroes)
    }

    fn all(sectors: u64, block_bytes: usize, expected: Expected) -> Contents {
        assert!(
            block_bytes >= 512 && block_bytes.is_multiple_of(512),
            "blocks are whole sectors"
        );
        let blocks = sectors / (block_bytes as u64 / 512);
        Contents {
            block_bytes,
            blocks: vec![expected; usize::try_from(blocks).expect("a disk for tests is small")],
            generation: 0,
        }
    }

    /// Size of a block in bytes.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Compares an image with the expected content; it must not be written meanwhile.
    pub fn check_image(&self, image: &Path) -> Result<()> {
        let shown = || image.display().to_string();
        let file = File::open(image).with_context(shown)?;
        let mut block = vec![0; self.block_bytes];
        for (i, expected) in self.blocks.iter().enumerate() {
            file.read_exact_at(&mut block, (i * self.block_bytes) as u64)
                .with_context(shown)?;
            let sector = (i * self.block_bytes / 512) as u64;
            checked(&block, sector, *expected).with_context(shown)?;
        }
        Ok(())
    }

    /// The number of blocks with written content.
    pub fn written(&self) -> usize {
        let written = |e: &&Expected| matches!(e, Expected::Written(_));
        self.blocks.iter().filter(written).count()
    }

    /// The areas of `parts` of the disk, which do not overlap, in order.
    pub(super) fn areas(&mut self, parts: &[Part]) -> Result<Vec<Area<'_>>> {
        let (block_bytes, generation) = (self.block_bytes, self.generation);
        let blocks_of = |sectors: u64| (sectors * 512) as usize / block_bytes;
        let (mut rest, mut at) = (&mut self.blocks[..], 0);
        let mut areas = Vec::new();
        for part in parts {
            let (first, length) = (blocks_of(part.first_sector), blocks_of(part.sectors));
            let Some(from_here) = rest.get_mut(first - at..) else {
                bail!("the disk is larger than what is known of its contents");
            };
            let Some((blocks, after)) = from_here.split_at_mut_checked(length) else {
                bail!("the disk is larger than what is known of its contents");
            };
            (rest, at) = (after, first + length);
            areas.push(Area {
                first_sector: part.first_sector,
                block_bytes,
                blocks,
                generation,
            });
        }
        Ok(areas)
    }

    /// Marks generations as used.
    pub(super) fn used(&mut self, generation: u32) {
        self.generation = self.generation.max(generation);
    }
}

/// A part of a disk, which only one queue uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub first_sector: u64,
    pub sectors: u64,
}

/// The expected content of a part of a disk.
pub(super) struct Area<'a> {
    first_sector: u64,
    block_bytes: usize,
    blocks: &'a mut [Expected],
    pub generation: u32,
}

impl Area<'_> {
    fn range(&mut self, sector: u64, bytes: usize) -> &mut [Expected] {
        let from = (sector - self.first_sector) as usize * 512 / self.block_bytes;
        &mut self.blocks[from..from + bytes / self.block_bytes]
    }

    /// Generates the data of a new write; returns its generation.
    pub fn fill(&mut self, sector: u64, data: &mut [u8]) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        for (i, block) in data.chunks_exact_mut(self.block_bytes).enumerate() {
            stamp(
                block,
                sector + (i * self.block_bytes / 512) as u64,
                self.generation,
            );
        }
        self.generation
    }

    /// Records a successful write.
    pub fn written(&mut self, sector: u64, bytes: usize, generation: u32) {
        self.range(sector, bytes)
            .fill(Expected::Written(generation));
    }

    /// Records a failed write: it is unknown how much of it was done.
    pub fn failed(&mut self, sector: u64, bytes: usize) {
        self.range(sector, bytes).fill(Expected::Anything);
    }

    /// Records a write of zeroes.
    pub fn zeroed(&mut self, sector: u64, bytes: usize) {
        self.range(sector, bytes).fill(Expected::Zeroes);
    }

    /// Records a discard, successful or not.
    pub fn discarded(&mut self, sector: u64, bytes: usize) {
        for block in self.range(sector, bytes) {
            if let Expected::Written(generation) = *block {
                *block = Expected::WrittenOrZeroes(generation);
            }
        }
    }

    /// Compares data that were read.
    pub fn check(&mut self, sector: u64, data: &[u8]) -> Result<(), Mismatch> {
        let block_bytes = self.block_bytes;
        let expected = self.range(sector, data.len());
        for (i, block) in data.chunks_exact(block_bytes).enumerate() {
            checked(block, sector + (i * block_bytes / 512) as u64, expected[i])?;
        }
        Ok(())
    }
}

fn checked(block: &[u8], sector: u64, expected: Expected) -> Result<(), Mismatch> {
    let is_zero = || block.iter().all(|byte| *byte == 0);
    let right = match expected {
        Expected::Anything => true,
        Expected::Zeroes => is_zero(),
        Expected::Written(generation) => is_stamped(block, sector, generation),
        Expected::WrittenOrZeroes(generation) => is_zero() || is_stamped(block, sector, generation),
    };
    if right {
        return Ok(());
    }
    Err(Mismatch {
        sector,
        expected,
        found: described(block),
    })
}

/// Words of 8 bytes: the sector, the generation, the checksum of both, followed by numbers derived
/// from the checksum.
fn stamp(block: &mut [u8], sector: u64, generation: u32) {
    for (word, value) in block.chunks_exact_mut(8).zip(words(sector, generation)) {
        word.copy_from_slice(&value.to_le_bytes());
    }
}

fn is_stamped(block: &[u8], sector: u64, generation: u32) -> bool {
    let mut words = block.chunks_exact(8).zip(words(sector, generation));
    words.all(|(word, value)| word == value.to_le_bytes())
}

fn words(sector: u64, generation: u32) -> impl Iterator<Item = u64> {
    let sum = scrambled(sector ^ scrambled(generation.into()));
    let rest = (1..).map(move |i: u64| sum.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    [sector, generation.into(), sum].into_iter().chain(rest)
}

fn described(block: &[u8]) -> String {
    let word = |i: usize| u64::from_le_bytes(block[i * 8..i * 8 + 8].try_into().expect("8 bytes"));
    if block.iter().all(|byte| *byte == 0) {
        return "zeroes".into();
    }
    let (sector, generation) = (word(0), word(1));
    let Ok(generation) = u32::try_from(generation) else {
        return "something that was never written to it".into();
    };
    let wrong = (0..block.len() / 8).zip(words(sector, generation));
    match wrong
        .filter(|(i, value)| word(*i) != *value)
        .map(|(i, _)| i * 8)
        .next()
    {
        None => format!("generation {generation} of sector {sector}"),
        Some(16) => "something that was never written to it".into(),
        Some(byte) => format!("generation {generation} of sector {sector}, torn at byte {byte}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Part = Part {
        first_sector: 0,
        sectors: 64,
    };

    fn wrong(contents: &mut Contents, sector: u64, data: &[u8]) -> String {
        let mut areas = contents.areas(&[ALL]).unwrap();
        areas[0].check(sector, data).unwrap_err().to_string()
    }

    #[test]
    fn an_old_misplaced_or_torn_block_is_reported() {
        let mut contents = Contents::zeroes(64, 512);
        let (mut old, mut new) = ([0; 1024], [0; 1024]);
        let mut areas = contents.areas(&[ALL]).unwrap();
        areas[0].fill(8, &mut old);
        let generation = areas[0].fill(8, &mut new);
        areas[0].written(8, 1024, generation);
        areas[0].check(8, &new).unwrap();
        areas[0].check(10, &[0; 512]).unwrap();

        assert_eq!(
            wrong(&mut contents, 8, &old),
            "sector 8 holds generation 1 of sector 8, but must hold Written(2)"
        );
        assert_eq!(
            wrong(&mut contents, 8, &new[512..]),
            "sector 8 holds generation 2 of sector 9, but must hold Written(2)"
        );
        assert!(wrong(&mut contents, 9, &[0; 512]).contains("sector 9 holds zeroes"));
        let mut torn = new;
        torn[256..].copy_from_slice(&old[256..]);
        assert!(wrong(&mut contents, 8, &torn).contains("torn at byte 256"));
        torn.fill(0x55);
        assert!(wrong(&mut contents, 8, &torn).contains("never written"));
        assert!(wrong(&mut contents, 12, &new).contains("must hold Zeroes"));
    }

    #[test]
    fn discarded_data_are_unchanged_or_zero() {
        let mut contents = Contents::unknown(64, 4096);
        let mut data = [0; 4096];
        let half = |first_sector| Part {
            first_sector,
            sectors: 32,
        };
        let mut areas = contents.areas(&[half(0), half(32)]).unwrap();
        let area = &mut areas[1];
        area.check(32, &[9; 4096]).unwrap();
        let generation = area.fill(32, &mut data);
        area.written(32, 4096, generation);
        area.discarded(32, 4096);
        area.check(32, &data).unwrap();
        area.check(32, &[0; 4096]).unwrap();
        area.check(32, &[9; 4096]).unwrap_err();
        area.zeroed(32, 4096);
        area.check(32, &data).unwrap_err();
        area.failed(32, 4096);
        area.check(32, &[9; 4096]).unwrap();
    }
}
