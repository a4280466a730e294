//! `agg(DISTINCT x)`: counts each value in each group, so that the aggregate receives only the
//! first insertion and the last retraction of a value.

use weir_model::{Column, Type};

use crate::expr::Expr;
use crate::synopsis::keys::KeyPacker;
use crate::synopsis::table::KeyTable;

/// The values in each group.
pub(super) struct DistinctValues {
    packer: KeyPacker,
    table: KeyTable,
    counts: Vec<i64>,
    /// By group: one more than the latest transition in the current batch; 0 for none.
    latest: Vec<u32>,
}

/// The rows of a batch at which a value first appears in its group or disappears from it.
pub(super) struct Transitions {
    /// Their positions in the batch.
    pub rows: Vec<u32>,
    /// Their groups.
    pub groups: Vec<u32>,
    /// +1 or -1.
    pub weights: Vec<i64>,
    /// Which transitions need a result.
    pub selected: Vec<bool>,
    /// For each row of the batch whose group's result is needed: the index of that result, or
    /// `None` when the group has had no transition since the start of the batch.
    pub results: Vec<Option<u32>>,
}

impl DistinctValues {
    /// No values yet, of arguments like these.
    pub(super) fn new(args: &[Expr]) -> DistinctValues {
        let types: Vec<Type> = std::iter::once(Type::Int)
            .chain(args.iter().map(Expr::ty))
            .collect();
        let packer = KeyPacker::new(&types);
        DistinctValues {
            table: KeyTable::new(packer.width()),
            packer,
            counts: Vec::new(),
            latest: Vec::new(),
        }
    }

    /// Adds rows and finds the transitions. `last` marks the rows after which a result is needed.
    pub(super) fn transitions(
        &mut self,
        groups: &[u32],
        weights: &[i64],
        args: &[Column],
        last: &[bool],
    ) -> Transitions {
        let numbers = Column::ints(groups.iter().map(|&g| i64::from(g)).collect());
        let columns: Vec<Column> = std::iter::once(numbers)
            .chain(args.iter().cloned())
            .collect();
        let keys = self.packer.pack(&columns, groups.len());
        let groups_max = groups.iter().max().map_or(0, |&g| g as usize + 1);
        self.latest.resize(self.latest.len().max(groups_max), 0);
        let mut out = Transitions {
            rows: Vec::new(),
            groups: Vec::new(),
            weights: Vec::new(),
            selected: Vec::new(),
            results: Vec::new(),
        };
        // The transition behind each result, until they are numbered below.
        let mut behind: Vec<u32> = Vec::new();
        for row in 0..groups.len() {
            let (number, added) = self.table.find_or_add(&keys, row);
            if self.table.numbers() > self.counts.len() {
                self.counts.resize(self.table.numbers(), 0);
            }
            let count = &mut self.counts[number as usize];
            let before = if added { 0 } else { *count };
            *count = before + weights[row];
            let change = i64::from(*count > 0) - i64::from(before > 0);
            if *count == 0 {
                self.table.remove(number);
            }
            let latest = &mut self.latest[groups[row] as usize];
            if change != 0 {
                out.rows.push(row as u32);
                out.groups.push(groups[row]);
                out.weights.push(change);
                out.selected.push(false);
                *latest = out.rows.len() as u32;
            }
            if last[row] {
                behind.push(*latest);
                if *latest > 0 {
                    out.selected[*latest as usize - 1] = true;
                }
            }
        }
        self.table.recycle();
        for &group in &out.groups {
            self.latest[group as usize] = 0;
        }
        let mut given = 0;
        let numbered: Vec<u32> = out
            .selected
            .iter()
            .map(|&selected| {
                given += u32::from(selected);
                given
            })
            .collect();
        let result = |&latest: &u32| latest.checked_sub(1).map(|at| numbered[at as usize] - 1);
        out.results = behind.iter().map(result).collect();
        out
    }

    /// Approximate size in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.packer.bytes()
            + self.table.bytes()
            + self.counts.capacity() * 8
            + self.latest.capacity() * 4
    }
}
