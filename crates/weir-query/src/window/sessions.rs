//! `[Session gap By a, b]`: for each key the rows of its session, which ends when no row has
//! arrived for the gap. All of its rows leave at that instant; a row that arrives then begins the
//! next session.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use weir_model::{Batch, Schema, Type};

use super::{Print, WindowContent, WindowKind};
use crate::eval::{self, eval_all};
use crate::expr::Expr;
use crate::function::EvalError;
use crate::operator::{Operator, Span};
use crate::synopsis::gather::whole_instants;
use crate::synopsis::keys::KeyPacker;
use crate::synopsis::slots::Slots;
use crate::synopsis::table::KeyTable;

/// The rows of each key since the last pause of `gap` or more.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Sessions {
    /// The length of the pause that ends a session.
    pub gap: i64,
    /// The expressions that have a session for each value; NULLs are one value. Without keys all
    /// rows are in one session.
    pub keys: Vec<Expr>,
}

impl WindowKind for Sessions {
    fn text(&self, print: &Print<'_>) -> String {
        let gap = (print.span)(self.gap);
        let keys: Vec<String> = self.keys.iter().map(print.expr).collect();
        match keys.is_empty() {
            true => format!("session {gap}"),
            false => format!("session {gap} by {}", keys.join(", ")),
        }
    }

    fn content(&self) -> WindowContent {
        WindowContent::Instants(self.gap)
    }

    fn is_fifo(&self) -> bool {
        false
    }

    // A row that is dropped before the window may end a session.
    fn is_per_row(&self) -> bool {
        false
    }

    // A condition on the keys drops whole sessions.
    fn commutes_with(&self, condition: &Expr) -> bool {
        super::reads_only(&self.keys, condition)
    }

    fn exprs(&self) -> &[Expr] {
        &self.keys
    }

    fn exprs_mut(&mut self) -> &mut [Expr] {
        &mut self.keys
    }

    fn operator(&self, schema: &Schema, _: i64) -> Box<dyn Operator> {
        Box::new(SessionOperator::new(self, schema))
    }
}

/// The open sessions.
struct SessionOperator {
    gap: i64,
    keys: Vec<Expr>,
    packer: KeyPacker,
    table: KeyTable,
    /// By the key's number in the table.
    sessions: Vec<OpenSession>,
    /// For each open session an instant at which it ends or, if rows have arrived meanwhile, before
    /// which it does not end; and its number.
    ends: BTreeSet<(i64, u32)>,
    slots: Slots,
    /// Rows in open sessions.
    rows: usize,
}

/// A session that has not ended.
#[derive(Clone, Default)]
struct OpenSession {
    last: i64,
    rows: Vec<u32>,
}

/// Changes of the relation: instant, weight and slot of each.
#[derive(Default)]
struct Changes {
    ts: Vec<i64>,
    weights: Vec<i64>,
    slots: Vec<u32>,
}

impl Changes {
    fn push(&mut self, ts: i64, weight: i64, slot: u32) {
        self.ts.push(ts);
        self.weights.push(weight);
        self.slots.push(slot);
    }
}

impl SessionOperator {
    /// The sessions of a stream of this schema.
    fn new(window: &Sessions, schema: &Schema) -> SessionOperator {
        let keys = match window.keys.is_empty() {
            true => vec![Expr::int(0)],
            false => window.keys.clone(),
        };
        let types: Vec<Type> = keys.iter().map(Expr::ty).collect();
        let packer = KeyPacker::new(&types);
        SessionOperator {
            gap: window.gap,
            keys,
            table: KeyTable::new(packer.width()),
            packer,
            sessions: Vec::new(),
            ends: BTreeSet::new(),
            slots: Slots::new(schema),
            rows: 0,
        }
    }

    /// The end of a session whose last row is of instant `last`; `i64::MAX` is never.
    fn end(&self, last: i64) -> i64 {
        last.saturating_add(self.gap)
    }

    /// Ends the sessions that end at or before `upto`.
    fn end_until(&mut self, upto: i64, changes: &mut Changes) {
        while let Some(&(at, number)) = self.ends.first() {
            if at > upto || at == i64::MAX {
                return;
            }
            self.ends.pop_first();
            let session = &mut self.sessions[number as usize];
            let end = session.last.saturating_add(self.gap);
            if end > at {
                self.ends.insert((end, number));
                continue;
            }
            for slot in std::mem::take(&mut session.rows) {
                changes.push(end, -1, slot);
                self.slots.retire(slot);
                self.rows -= 1;
            }
            self.table.remove(number);
        }
    }

    /// Adds rows, and ends the sessions that end before the last of them or with it.
    fn add(&mut self, batch: &Batch, changes: &mut Changes) -> Result<(), EvalError> {
        let len = batch.len();
        let rows = eval::Rows {
            columns: &batch.columns,
            len,
        };
        let keys = eval_all(&self.keys, rows)?;
        let keys = self.packer.pack(&keys, len);
        let slots = self.slots.reserve(len);
        self.slots.write(&slots, &batch.columns);
        for (row, &slot) in slots.iter().enumerate() {
            let ts = batch.ts[row];
            self.end_until(ts, changes);
            let (number, added) = self.table.find_or_add(&keys, row);
            if self.table.numbers() > self.sessions.len() {
                let numbers = self.table.numbers();
                self.sessions.resize(numbers, OpenSession::default());
            }
            if added {
                self.ends.insert((self.end(ts), number));
            }
            let session = &mut self.sessions[number as usize];
            session.last = ts;
            session.rows.push(slot);
            self.rows += 1;
            changes.push(ts, 1, slot);
        }
        Ok(())
    }

    /// The changes as a batch; their slots and numbers may be used again afterwards.
    fn emit(&mut self, changes: Changes) -> Batch {
        let columns = self.slots.gather(&changes.slots);
        self.slots.recycle();
        self.table.recycle();
        Batch {
            ts: changes.ts.into(),
            weights: Some(changes.weights.into()),
            columns,
        }
    }
}

impl Operator for SessionOperator {
    fn step(&mut self, inputs: &[&[Batch]], span: Span) -> Result<Vec<Batch>, EvalError> {
        let mut out = Vec::new();
        for batch in &whole_instants(inputs[0]) {
            let mut changes = Changes::default();
            self.add(batch, &mut changes)?;
            out.push(self.emit(changes));
        }
        let mut changes = Changes::default();
        self.end_until(span.upto, &mut changes);
        if !changes.ts.is_empty() {
            out.push(self.emit(changes));
        }
        Ok(out)
    }

    fn bound_span(&self, span: Span, rows_max: usize) -> i64 {
        let mut rows = 0;
        let due = self.ends.range(..=(span.upto, u32::MAX));
        let mut first = None;
        for (at, number) in due {
            rows += self.sessions[*number as usize].rows.len();
            if rows > rows_max {
                // An instant is processed whole.
                let bound = (at - 1).max(*first.get_or_insert(*at));
                return bound.max(span.after + 1);
            }
            first.get_or_insert(*at);
        }
        span.upto
    }

    fn bytes(&self) -> usize {
        self.table.bytes()
            + self.packer.bytes()
            + self.slots.bytes()
            + self.sessions.capacity() * size_of::<OpenSession>()
            + self.rows * size_of::<u32>()
            + self.ends.len() * size_of::<(i64, u32)>()
    }
}
