//! The results around changed rows are those of whole partitions.

use std::collections::BTreeMap;

use fastrand::Rng;
use weir_model::{Batch, Column, Field, Schema, Type, Unit, Value};

use super::Over;
use crate::engine::testing::call;
use crate::expr::Expr;
use crate::plan::OrderBy;
use crate::plan::over::{FrameUnit, OverCall, OverFunction, Partitioning, RowFrame};

fn column(index: usize) -> Expr {
    Expr::column(index, Type::Int, Unit::None)
}

fn offset(rows: i64) -> OverCall {
    OverCall {
        function: OverFunction::Offset {
            value: column(1),
            rows,
            default: None,
        },
        frame: RowFrame::UP_TO_PEERS,
    }
}

fn framed(function: OverFunction, start: i64, end: i64) -> OverCall {
    OverCall {
        function,
        frame: RowFrame {
            unit: FrameUnit::Rows,
            start: Some(start),
            end: Some(end),
        },
    }
}

fn sum(start: i64, end: i64) -> OverCall {
    let sum = call("sum", vec![column(1)], false);
    framed(OverFunction::Aggregate(sum), start, end)
}

/// Rows of a key and a value, some of them there more than once.
struct Content {
    rows: Vec<[i64; 2]>,
    random: Rng,
}

impl Content {
    /// The changes at some instants: few rows or many, also of rows that are inserted again.
    fn changes(&mut self, ts: i64, instants: i64) -> Batch {
        let mut changes: Vec<(i64, [i64; 2], i64)> = Vec::new();
        for ts in ts..ts + instants {
            let count = match self.random.u8(0..20) {
                0 => self.rows.len() / 2,
                _ => self.random.usize(0..4),
            };
            for _ in 0..count.min(self.rows.len()) {
                let at = self.random.usize(0..self.rows.len());
                let row = self.rows.swap_remove(at);
                changes.push((ts, row, -1));
            }
            let missing = 300usize.saturating_sub(self.rows.len());
            for _ in 0..missing {
                let old = self.random.usize(0..self.rows.len().max(1));
                let row = match self.rows.get(old) {
                    Some(row) if self.random.u8(0..5) == 0 => *row,
                    _ => [self.random.i64(0..150), self.random.i64(0..1_000)],
                };
                changes.push((ts, row, 1));
                self.rows.push(row);
            }
        }
        let of = |at: usize| Column::ints(changes.iter().map(|(_, row, _)| row[at]).collect());
        let ts: Vec<i64> = changes.iter().map(|(ts, ..)| *ts).collect();
        let weights: Vec<i64> = changes.iter().map(|(.., weight)| *weight).collect();
        Batch::deltas(ts, weights, vec![of(0), of(1)])
    }
}

/// The net changes by instant and row.
fn net(output: Option<Batch>) -> BTreeMap<(i64, Vec<Value>), i64> {
    let mut net = BTreeMap::new();
    if let Some(batch) = output {
        for row in 0..batch.len() {
            *net.entry((batch.ts[row], batch.row(row))).or_default() += batch.weight(row);
        }
    }
    net.retain(|_, weight| *weight != 0);
    net
}

#[test]
fn results_around_changed_rows_are_those_of_whole_partitions() {
    let schema = Schema::new(vec![Field::new("k", Type::Int), Field::new("v", Type::Int)]);
    let key = OrderBy {
        expr: column(0),
        descending: false,
        nulls_first: false,
    };
    let calls = [
        vec![offset(-1)],
        vec![offset(-2), offset(3)],
        vec![sum(-4, 0)],
        vec![
            sum(-5, -2),
            sum(3, 5),
            framed(OverFunction::Last(column(1)), -1, 1),
        ],
        vec![framed(OverFunction::Nth(column(1), 2), -3, 3), sum(-70, 20)],
    ];
    for (seed, calls) in (0..).zip(&calls) {
        let by = Partitioning {
            keys: Vec::new(),
            order: vec![key.clone()],
        };
        let mut around = Over::new(&by, calls, &schema);
        let mut whole = Over::new(&by, calls, &schema);
        assert!(around.reach.is_some());
        whole.reach = None;
        let mut content = Content {
            rows: Vec::new(),
            random: Rng::with_seed(seed),
        };
        for step in 0..60 {
            let batch = content.changes(step * 10, 1 + step % 5);
            let [around, whole] = [&mut around, &mut whole]
                .map(|over| net(over.update(&batch).expect("small numbers")));
            assert!(around == whole, "seed {seed}, step {step}");
        }
        assert!(around.bytes <= whole.bytes);
    }
}
