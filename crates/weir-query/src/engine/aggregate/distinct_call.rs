//! `agg(DISTINCT x)`: how often each value is in each group, so that the aggregate is told only
//! when the first comes and the last goes.

use weir_model::{Column, Type};

use crate::engine::keys::KeyPacker;
use crate::engine::table::KeyTable;
use crate::expr::Expr;

/// The values in each group.
pub(super) struct DistinctValues {
    packer: KeyPacker,
    table: KeyTable,
    counts: Vec<i64>,
    /// By group: one more than the latest transition in the batch at hand; 0 for none.
    latest: Vec<u32>,
}

/// The rows of a batch at which a value comes into its group or goes for good.
pub(super) struct Transitions {
    /// Their positions in the batch.
    pub rows: Vec<u32>,
    /// Their groups.
    pub groups: Vec<u32>,
    /// +1 or -1.
    pub weights: Vec<i64>,
    /// Those whose result is needed.
    pub wanted: Vec<bool>,
    /// For each row of the batch whose group's result is needed: which of the wanted results that
    /// is, or `None` when nothing has come or gone in its group since the batch began.
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

    /// Takes rows in and finds the transitions. `last` says after which rows a result is needed.
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
            wanted: Vec::new(),
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
                out.wanted.push(false);
                *latest = out.rows.len() as u32;
            }
            if last[row] {
                behind.push(*latest);
                if *latest > 0 {
                    out.wanted[*latest as usize - 1] = true;
                }
            }
        }
        self.table.recycle();
        for &group in &out.groups {
            self.latest[group as usize] = 0;
        }
        let mut given = 0;
        let numbered: Vec<u32> = out
            .wanted
            .iter()
            .map(|&wanted| {
                given += u32::from(wanted);
                given
            })
            .collect();
        let result = |&latest: &u32| latest.checked_sub(1).map(|at| numbered[at as usize] - 1);
        out.results = behind.iter().map(result).collect();
        out
    }

    /// About how many bytes it takes.
    pub(super) fn bytes(&self) -> usize {
        self.packer.bytes()
            + self.table.bytes()
            + self.counts.capacity() * 8
            + self.latest.capacity() * 4
    }
}
