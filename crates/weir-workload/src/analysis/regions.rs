//! [`Regions`]: which parts of the disk are accessed, and how concentrated the access is.
//!
//! The disk is divided into cells of equal length; touched cells are counted. Cells start at 64 KiB
//! and double when there are too many, so memory is bounded and counts are exact for the reported
//! length.

use serde::Serialize;
use weir_model::{Op, SECTOR_BYTES};

use crate::id_map::IdMap;
use crate::track::Step;

/// The largest number of cells.
const CELLS_MAX: usize = 4_096;

/// The shortest cell: 64 KiB.
const CELL_SECTORS_MIN: i64 = 128;

/// The largest number of cells that one request touches; a longer one doubles the cell length.
const SPANNED_MAX: i64 = 64;

/// The number of reported regions.
const HOTTEST_MAX: usize = 8;

/// Shares of the touched space for which the share of I/O is reported.
const SPACE_SHARES: [f64; 6] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5];

/// The distribution of reads and writes over the disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Regions {
    /// The length of a cell.
    pub cell_bytes: i64,
    /// First byte of the first cell that was touched.
    pub first_byte: i64,
    /// From there to the end of the last.
    pub span_bytes: i64,
    /// The touched cells in bytes, an upper bound of the touched bytes.
    pub touched_bytes: i64,
    /// Cells that were both read and written, as a share of those touched, from 0 to 1.
    pub read_and_written_share: Option<f64>,
    /// The share of I/O, by bytes, of the hottest cells: the larger, the more effective a cache or
    /// a fast tier.
    pub concentration: Vec<Concentration>,
    /// The hottest regions, the hottest first; neighbouring cells of equal heat are merged. Empty
    /// if no region is hotter than four times the mean.
    pub hottest: Vec<Region>,
}

/// The share of I/O of the hottest part of the touched space.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Concentration {
    /// The part, from 0 to 1.
    pub space_share: f64,
    /// Its share of the I/O, by bytes, from 0 to 1.
    pub access_share: f64,
}

/// A region of the disk.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Region {
    /// Its start.
    pub first_byte: i64,
    /// Its length.
    pub bytes: i64,
    /// Requests that touched it; one that touches several cells counts in each.
    pub requests: u64,
    /// Its share of the I/O, by bytes, from 0 to 1.
    pub access_share: f64,
    /// Bytes read there among those read and written, from 0 to 1.
    pub read_share: f64,
}

/// Counts requests.
#[derive(Clone, Debug)]
pub struct RegionTally {
    cell_sectors: i64,
    /// By number.
    cells: IdMap<i64, Cell>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    requests: u64,
    read_sectors: u64,
    written_sectors: u64,
}

impl Cell {
    fn sectors(&self) -> u64 {
        self.read_sectors + self.written_sectors
    }

    fn merge(&mut self, other: &Cell) {
        self.requests += other.requests;
        self.read_sectors += other.read_sectors;
        self.written_sectors += other.written_sectors;
    }
}

impl Default for RegionTally {
    fn default() -> RegionTally {
        RegionTally {
            cell_sectors: CELL_SECTORS_MIN,
            cells: IdMap::default(),
        }
    }
}

impl RegionTally {
    /// Adds a step.
    pub fn take(&mut self, step: &Step) {
        let Step::Issued(issue) = step else { return };
        let request = &issue.request;
        let Some(first) = request.sector else { return };
        if !matches!(request.op, Op::Read | Op::Write) || request.sectors <= 0 {
            return;
        }
        let end = first.saturating_add(request.sectors);
        while self.number(end - 1) - self.number(first) >= SPANNED_MAX {
            self.lengthen();
        }
        let mut at = first;
        while at < end {
            let number = self.number(at);
            let next = number
                .saturating_add(1)
                .saturating_mul(self.cell_sectors)
                .min(end);
            let cell = self.cells.entry(number).or_default();
            cell.requests += 1;
            match request.op {
                Op::Read => cell.read_sectors += (next - at) as u64,
                _ => cell.written_sectors += (next - at) as u64,
            }
            if next <= at {
                break;
            }
            at = next;
        }
        while self.cells.len() > CELLS_MAX {
            self.lengthen();
        }
    }

    /// The number of the cell of a sector.
    fn number(&self, sector: i64) -> i64 {
        // The length is a power of two: a shift rounds down, and is faster than a division.
        sector >> self.cell_sectors.trailing_zeros()
    }

    fn lengthen(&mut self) {
        self.cell_sectors *= 2;
        for (number, cell) in std::mem::take(&mut self.cells) {
            let doubled = self.cells.entry(number.div_euclid(2)).or_default();
            doubled.merge(&cell);
        }
    }

    /// The result.
    pub fn result(&self) -> Regions {
        let cells = self.cells.iter();
        let mut cells: Vec<(i64, Cell)> = cells.map(|(number, cell)| (*number, *cell)).collect();
        cells.sort_unstable_by_key(|(number, _)| *number);
        let (Some(&(first, _)), Some(&(last, _))) = (cells.first(), cells.last()) else {
            return Regions::default();
        };
        let cell_bytes = self.cell_sectors * SECTOR_BYTES;
        let both = |c: &&Cell| c.read_sectors > 0 && c.written_sectors > 0;
        let both = self.cells.values().filter(both).count();
        Regions {
            cell_bytes,
            first_byte: first.saturating_mul(cell_bytes),
            span_bytes: (last - first + 1).saturating_mul(cell_bytes),
            touched_bytes: (self.cells.len() as i64).saturating_mul(cell_bytes),
            read_and_written_share: Some(both as f64 / self.cells.len() as f64),
            concentration: self.concentration(),
            hottest: hottest(&cells, cell_bytes),
        }
    }

    fn concentration(&self) -> Vec<Concentration> {
        let mut heats: Vec<u64> = self.cells.values().map(Cell::sectors).collect();
        heats.sort_unstable_by_key(|heat| std::cmp::Reverse(*heat));
        let all: u64 = heats.iter().sum();
        let space_shares = SPACE_SHARES.iter();
        // A share of less than one cell cannot be reported.
        let space_shares = space_shares.filter(|share| *share * heats.len() as f64 >= 1.0);
        space_shares
            .map(|&space_share| {
                let cells = (space_share * heats.len() as f64) as usize;
                let there: u64 = heats[..cells].iter().sum();
                Concentration {
                    space_share,
                    access_share: there as f64 / all.max(1) as f64,
                }
            })
            .collect()
    }
}

/// The hottest regions of the cells, which are in order.
fn hottest(cells: &[(i64, Cell)], cell_bytes: i64) -> Vec<Region> {
    let all: u64 = cells.iter().map(|(_, cell)| cell.sectors()).sum();
    let hot = 4 * all / cells.len() as u64;
    let mut regions: Vec<(i64, i64, Cell)> = Vec::new();
    for (number, cell) in cells.iter().filter(|(_, c)| c.sectors() > hot) {
        match regions.last_mut() {
            Some((_, end, region)) if end == number => {
                *end += 1;
                region.merge(cell);
            }
            _ => regions.push((*number, number + 1, *cell)),
        }
    }
    regions.sort_by_key(|(_, _, cell)| std::cmp::Reverse(cell.sectors()));
    let regions = regions.into_iter().take(HOTTEST_MAX);
    regions
        .map(|(first, end, cell)| Region {
            first_byte: first.saturating_mul(cell_bytes),
            bytes: (end - first).saturating_mul(cell_bytes),
            requests: cell.requests,
            access_share: cell.sectors() as f64 / all as f64,
            read_share: cell.read_sectors as f64 / cell.sectors() as f64,
        })
        .collect()
}
