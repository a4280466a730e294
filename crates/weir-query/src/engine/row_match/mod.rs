//! `MATCH_RECOGNIZE`: the matches of a pattern in the rows of a stream, see [`RowMatch`].
//!
//! Conditions that read only the current row and rows at a fixed distance before it are evaluated
//! for whole batches. A row is stored while an attempt that can contain it is open. Where matches
//! do not overlap, one attempt is open per partition; the next one begins when it is decided, and
//! reads the stored rows again.

mod attempt;
mod automaton;
mod partition;
mod results;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use weir_model::{Batch, Column, ColumnBuilder, Schema, Type};

use self::attempt::{Advance, Conditions, Referred, StoredRow, known};
use self::automaton::{Automaton, Target};
use self::partition::{Found, Partition};
use super::sort_key::sort_key;
use crate::eval::{Rows, eval, eval_all, true_rows};
use crate::expr::Expr;
use crate::function::EvalError;
use crate::operator::{Operator, Span};
use crate::plan::RowMatch;
use crate::synopsis::gather::{take_batch, whole_instants};
use crate::synopsis::keys::KeyPacker;
use crate::synopsis::slots::Slots;
use crate::synopsis::table::KeyTable;

/// Maximum number of ways in which the open matches of a partition can continue.
const WAYS_MAX: usize = 16_384;

/// The matches of a pattern.
pub(super) struct Match {
    pattern: Compiled,
    packer: KeyPacker,
    /// The number of each partition.
    numbers: KeyTable,
    partitions: Vec<Partition>,
    /// The columns of the input, then the previous values.
    rows: Slots,
    /// For each partition with an open match the instant at which the first one ends.
    ends: BTreeSet<(i64, u32)>,
    /// Of all partitions.
    bytes: usize,
}

/// A pattern and what follows from it.
struct Compiled {
    by: RowMatch,
    automaton: Automaton,
    /// What each variable tests.
    tests: Vec<Test>,
    /// The rows of a match to which conditions refer.
    referred: Vec<Referred>,
    /// For each of the navigations its position in `referred`.
    navigated: Vec<usize>,
    /// Whether matches are numbered.
    has_numbers: bool,
}

/// The condition of a variable.
enum Test {
    /// It is true.
    None,
    /// It reads the current row and previous ones.
    Row(Expr),
    /// It reads these of the navigations too.
    Match(Expr, Vec<usize>),
}

impl Compiled {
    fn new(by: &RowMatch, width: usize) -> Compiled {
        let mut referred: Vec<Referred> = Vec::new();
        let navigated = by.navigations.iter().map(|navigation| {
            let (end, variable) = (navigation.end, navigation.variable);
            let own = Referred { end, variable };
            let at = referred.iter().position(|other| *other == own);
            at.unwrap_or_else(|| {
                referred.push(own);
                referred.len() - 1
            })
        });
        let navigated = navigated.collect();
        let first = width + by.previous.len();
        let test = |condition: &Option<Expr>| {
            let Some(condition) = condition else {
                return Test::None;
            };
            let mut read = BTreeSet::new();
            condition.visit_columns(&mut |i| read.extend(i.checked_sub(first)));
            match read.is_empty() {
                true => Test::Row(condition.clone()),
                false => Test::Match(condition.clone(), read.into_iter().collect()),
            }
        };
        let numbers =
            |result: &_| matches!(result, crate::plan::row_match::MatchResult::MatchNumber);
        Compiled {
            automaton: Automaton::new(by),
            tests: by.variables.iter().map(|v| test(&v.condition)).collect(),
            referred,
            navigated,
            has_numbers: by.results.iter().any(numbers),
            by: by.clone(),
        }
    }

    /// The variables whose condition is true for each row, where it reads no row of the match.
    fn variables(&self, rows: Rows<'_>) -> Result<Vec<u64>, EvalError> {
        let mut variables = vec![0; rows.len];
        for (number, test) in self.tests.iter().enumerate() {
            match test {
                Test::None => variables.iter_mut().for_each(|v| *v |= 1 << number),
                Test::Row(condition) => {
                    let is_true = true_rows(condition, rows)?;
                    for (row, variables) in variables.iter_mut().enumerate() {
                        if is_true.as_ref().is_none_or(|is_true| is_true.value(row)) {
                            *variables |= 1 << number;
                        }
                    }
                }
                Test::Match(..) => {}
            }
        }
        Ok(variables)
    }

    /// Whether a match can begin with this row, as far as it is known without its attempt.
    fn can_begin(&self, row: &StoredRow) -> bool {
        self.automaton.first.iter().any(|target| match *target {
            Target::Position(at) => {
                let variable = self.automaton.variables[at as usize];
                row.variables >> variable & 1 == 1
                    || matches!(self.tests[variable], Test::Match(..))
            }
            Target::Absence | Target::Accept => false,
        })
    }
}

/// The conditions, over stored rows.
struct Tests<'a> {
    pattern: &'a Compiled,
    rows: &'a Slots,
}

impl Conditions for Tests<'_> {
    fn holds(&self, row: &StoredRow, variable: usize, referred: &[u32]) -> Result<bool, EvalError> {
        let Test::Match(condition, read) = &self.pattern.tests[variable] else {
            return Ok(row.variables >> variable & 1 == 1);
        };
        let mut columns = self.rows.gather(&[row.slot]);
        for (number, navigation) in self.pattern.by.navigations.iter().enumerate() {
            let at = self.pattern.navigated[number];
            let slot = self.pattern.referred[at].after(referred[at], row.slot, variable);
            let slot = known(slot).filter(|_| read.contains(&number));
            columns.push(match slot {
                Some(slot) => {
                    let columns = &self.rows.gather(&[slot])[..];
                    eval(&navigation.value, Rows { columns, len: 1 })?
                }
                None => Column::Nulls(1),
            });
        }
        let rows = Rows {
            columns: &columns,
            len: 1,
        };
        Ok(true_rows(condition, rows)?.is_none_or(|is_true| is_true.value(0)))
    }
}

impl Match {
    /// The matches of a pattern in a stream of this schema.
    pub(super) fn new(by: &RowMatch, schema: &Schema) -> Match {
        let types: Vec<Type> = by.keys.iter().map(Expr::ty).collect();
        let packer = KeyPacker::new(&types);
        let input = schema.fields.iter().map(|field| field.ty);
        let previous = by.previous.iter().map(|previous| previous.value.ty());
        Match {
            pattern: Compiled::new(by, schema.len()),
            numbers: KeyTable::new(packer.width()),
            packer,
            partitions: Vec::new(),
            rows: Slots::of_types(input.chain(previous)),
            ends: BTreeSet::new(),
            bytes: 0,
        }
    }

    /// Reads rows of whole instants.
    fn read(&mut self, batch: &Batch, step: &mut StepState) -> Result<(), EvalError> {
        let order = self.order(batch)?;
        let batch = match &order {
            Some(order) => &take_batch(batch, order),
            None => batch,
        };
        let rows = Rows {
            columns: &batch.columns,
            len: batch.len(),
        };
        let keys = eval_all(&self.pattern.by.keys, rows)?;
        let numbers = match keys.is_empty() {
            true => vec![0; rows.len],
            false => {
                let packed = self.packer.pack(&keys, rows.len);
                self.numbers.find_or_add_all(&packed).0
            }
        };
        let partitions = self.numbers.numbers().max(1);
        if partitions > self.partitions.len() {
            self.partitions.resize_with(partitions, Partition::default);
        }
        step.touched.extend(&numbers);
        let previous = self.previous(rows, &numbers)?;
        let columns: Vec<Column> = batch.columns.iter().cloned().chain(previous).collect();
        let variables = self.pattern.variables(Rows {
            columns: &columns,
            len: rows.len,
        })?;
        let slots = self.rows.reserve(rows.len);
        self.rows.write(&slots, &columns);
        for (row, &slot) in slots.iter().enumerate() {
            let ts = batch.ts[row];
            if row == 0 || batch.ts[row - 1] != ts {
                self.expire(ts, step)?;
            }
            let stored = StoredRow {
                slot,
                ts,
                variables: variables[row],
            };
            self.partitions[numbers[row] as usize].push(stored);
            self.settle(numbers[row], ts, step)?;
        }
        Ok(())
    }

    /// The rows in timestamp order, those of one timestamp in the order of the sort keys and then
    /// of all columns; `None` if they are.
    fn order(&self, batch: &Batch) -> Result<Option<Vec<u32>>, EvalError> {
        if batch.ts.windows(2).all(|pair| pair[0] != pair[1]) {
            return Ok(None);
        }
        let rows = Rows {
            columns: &batch.columns,
            len: batch.len(),
        };
        let by = &self.pattern.by.order;
        let keys: Vec<Expr> = by.iter().map(|key| key.expr.clone()).collect();
        let keys = eval_all(&keys, rows)?;
        let mut order: Vec<u32> = (0..batch.len() as u32).collect();
        let mut start = 0;
        while start < order.len() {
            let ts = batch.ts[start];
            let len = batch.ts[start..].iter().take_while(|t| **t == ts).count();
            if len > 1 {
                let key = |row: &u32| sort_key(by, &keys, &batch.columns, *row as usize).bytes;
                order[start..start + len].sort_by_cached_key(key);
            }
            start += len;
        }
        Ok(Some(order))
    }

    /// The values of PREV for each row.
    fn previous(&mut self, rows: Rows<'_>, numbers: &[u32]) -> Result<Vec<Column>, EvalError> {
        let mut columns = Vec::new();
        for (which, previous) in self.pattern.by.previous.iter().enumerate() {
            let values = eval(&previous.value, rows)?;
            let mut read = ColumnBuilder::new(previous.value.ty(), rows.len);
            for (row, &number) in numbers.iter().enumerate() {
                let partition = &mut self.partitions[number as usize];
                let before = partition.bytes();
                let rows = previous.rows as usize;
                read.push(partition.replace_previous(which, rows, values.value(row)));
                self.bytes = self.bytes + partition.bytes() - before;
            }
            columns.push(read.finish());
        }
        Ok(columns)
    }

    /// Decides the matches whose time has passed at `now`, in the order of these times.
    fn expire(&mut self, now: i64, step: &mut StepState) -> Result<(), EvalError> {
        while let Some(&(end, number)) = self.ends.first() {
            if end > now {
                break;
            }
            step.touched.insert(number);
            self.settle(number, end, step)?;
        }
        Ok(())
    }

    /// Advances the attempts of a partition over its rows, and discards rows that are in none.
    fn settle(&mut self, number: u32, now: i64, step: &mut StepState) -> Result<(), EvalError> {
        let partition = &mut self.partitions[number as usize];
        let before = partition.bytes();
        let ended = partition.end();
        let advance = Advance {
            automaton: &self.pattern.automaton,
            referred: &self.pattern.referred,
            absent: self.pattern.by.absent,
            conditions: &Tests {
                pattern: &self.pattern,
                rows: &self.rows,
            },
        };
        let found = &mut step.found;
        for rows in partition.settle(&self.pattern, &advance, now)? {
            found.push(Found {
                ts: now,
                partition: number,
                number: 0,
                rows,
            });
        }
        if partition.ways() > WAYS_MAX {
            let message = format!(
                "a partition of MATCH_RECOGNIZE has more than {WAYS_MAX} ways to continue matches"
            );
            let help = "write a shorter WITHIN, or a condition for the first variable that fewer \
                        rows satisfy";
            return Err(EvalError::new(message).help(help));
        }
        partition.discard(|slot| self.rows.retire(slot));
        if partition.end() != ended {
            self.ends.extend(partition.end().map(|end| (end, number)));
            if let Some(ended) = ended {
                self.ends.remove(&(ended, number));
            }
        }
        self.bytes = self.bytes + partition.bytes() - before;
        Ok(())
    }

    /// Numbers the matches of each partition in the order of their instants, those of one instant
    /// in the order of their first rows.
    fn number(&mut self, found: &mut [Found]) {
        if !self.pattern.has_numbers {
            return;
        }
        found.sort_by_key(|found| (found.ts, found.partition, found.rows[0].row));
        for found in found {
            let partition = &mut self.partitions[found.partition as usize];
            found.number = partition.next_number();
        }
    }

    /// Forgets partitions of which nothing is stored.
    fn forget(&mut self, touched: &BTreeSet<u32>) {
        if self.pattern.by.keys.is_empty() {
            return;
        }
        for &number in touched {
            let partition = &mut self.partitions[number as usize];
            if partition.is_forgettable() {
                *partition = Partition::default();
                self.numbers.remove(number);
            }
        }
        self.numbers.recycle();
    }
}

/// What one step finds.
#[derive(Default)]
struct StepState {
    found: Vec<Found>,
    /// The partitions that changed.
    touched: BTreeSet<u32>,
}

impl Operator for Match {
    fn step(&mut self, inputs: &[&[Batch]], span: Span) -> Result<Vec<Batch>, EvalError> {
        let mut step = StepState::default();
        for batch in whole_instants(inputs[0]) {
            self.read(&batch, &mut step)?;
        }
        self.expire(span.upto, &mut step)?;
        self.number(&mut step.found);
        let out = results::batch(&self.pattern.by, &self.rows, &step.found)?;
        self.forget(&step.touched);
        self.rows.recycle();
        Ok(out.into_iter().collect())
    }

    fn bytes(&self) -> usize {
        let partitions = self.partitions.capacity() * size_of::<Partition>();
        let ends = self.ends.len() * size_of::<(i64, u32)>();
        self.packer.bytes()
            + self.numbers.bytes()
            + partitions
            + ends
            + self.rows.bytes()
            + self.bytes
    }
}
