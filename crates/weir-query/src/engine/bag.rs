//! [`Bag`]: the current rows of a relation, each distinct row once with its multiplicity.

use std::collections::HashMap;

use weir_model::{Batch, Column, Schema, Type};

use crate::synopsis::gather::{take_batch, take_columns};
use crate::synopsis::keys::KeyPacker;
use crate::synopsis::slots::Slots;
use crate::synopsis::table::KeyTable;

/// The rows of a relation.
#[derive(Debug)]
pub(super) struct Bag {
    packer: KeyPacker,
    table: KeyTable,
    /// The row of each number in the table.
    rows: Slots,
    counts: Vec<i64>,
    total: i64,
}

impl Bag {
    /// An empty relation of this schema.
    pub(super) fn new(schema: &Schema) -> Bag {
        let types: Vec<Type> = schema.fields.iter().map(|f| f.ty).collect();
        let packer = KeyPacker::new(&types);
        Bag {
            table: KeyTable::new(packer.width()),
            packer,
            rows: Slots::new(schema),
            counts: Vec::new(),
            total: 0,
        }
    }

    /// How many rows there are.
    pub(super) fn len(&self) -> usize {
        usize::try_from(self.total).unwrap_or(0)
    }

    /// Applies the rows of a batch and returns what was applied: the retraction of an absent row is
    /// dropped.
    pub(super) fn apply_possible(&mut self, batch: &Batch) -> Batch {
        let keys = self.packer.pack(&batch.columns, batch.len());
        let mut pending: HashMap<&[u64], i64> = HashMap::new();
        let mut weights = Vec::with_capacity(batch.len());
        for row in 0..batch.len() {
            let held = self
                .table
                .find(&keys, row)
                .map_or(0, |n| self.counts[n as usize]);
            let pending = pending.entry(keys.row(row)).or_default();
            let weight = batch.weight(row).max(-(held + *pending));
            *pending += weight;
            weights.push(weight);
        }
        let rows: Vec<u32> = (0..batch.len() as u32)
            .filter(|&r| weights[r as usize] != 0)
            .collect();
        weights.retain(|&w| w != 0);
        let possible = take_batch(
            &Batch {
                weights: None,
                ..batch.clone()
            },
            &rows,
        );
        let possible = Batch {
            weights: Some(weights.into()),
            ..possible
        };
        self.apply(&possible);
        possible
    }

    /// Applies the insertions and retractions of a batch.
    pub(super) fn apply(&mut self, batch: &Batch) {
        let keys = self.packer.pack(&batch.columns, batch.len());
        let (mut new, mut numbers) = (Vec::new(), Vec::new());
        for row in 0..batch.len() {
            let weight = batch.weight(row);
            let (number, added) = self.table.find_or_add(&keys, row);
            if self.table.numbers() > self.counts.len() {
                self.counts.resize(self.table.numbers(), 0);
            }
            if added {
                new.push(row as u32);
                numbers.push(number);
            }
            let count = &mut self.counts[number as usize];
            *count += weight;
            self.total += weight;
            if *count == 0 {
                self.table.remove(number);
            }
        }
        self.rows.grow_to(self.counts.len());
        self.rows
            .write(&numbers, &take_columns(&batch.columns, &new));
        self.table.recycle();
    }

    /// All rows, each as often as its multiplicity.
    pub(super) fn rows(&self) -> Vec<Column> {
        let mut numbers = Vec::with_capacity(self.len());
        for (number, &count) in self.counts.iter().enumerate() {
            numbers.extend((0..count).map(|_| number as u32));
        }
        self.rows.gather(&numbers)
    }

    /// Approximate size in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.packer.bytes() + self.table.bytes() + self.rows.bytes() + self.counts.capacity() * 8
    }
}
