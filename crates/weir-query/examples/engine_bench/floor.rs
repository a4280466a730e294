//! The floors of the benchmark: each query written by hand for its columns, over the same batches,
//! with the same output rows. A floor knows the types and the number of its keys and has no plan;
//! the engine is measured against it.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::mem;
use std::num::NonZeroU64;

use arrow_array::{Int64Array, UInt32Array};
use weir_model::{Batch, Catalog, Column, Symbol};

const RANGE_NS: i64 = 3_000_000_000;

/// A query written by hand: from a batch of `IOstream` to its result's deltas.
pub type Floor = Box<dyn FnMut(&Batch) -> Batch>;

/// The floor of the query with this letter.
pub fn floor(query: &str) -> Floor {
    match query {
        "F" => filter("type", "Q"),
        "f" => filter("vm", "vm3"),
        "S" => running_sum(),
        "G" => group_by(),
        "J" => join(),
        "M" => join_and_group_by(),
        other => panic!("{other} has no floor"),
    }
}

fn position(column: &str) -> usize {
    let catalog = Catalog::builtin();
    let stream = catalog.find("IOstream").expect("a built-in stream");
    stream.schema.index(column)
}

fn ints(batch: &Batch, column: usize) -> &[i64] {
    match &batch.columns[column] {
        Column::Int(values) => values.values(),
        other => panic!("{other:?} has no integers"),
    }
}

fn texts(batch: &Batch, column: usize) -> &[u32] {
    match &batch.columns[column] {
        Column::Text(values) => values.values(),
        other => panic!("{other:?} has no texts"),
    }
}

/// `select * from IOstream where COLUMN = 'TEXT'`.
fn filter(column: &str, text: &str) -> Floor {
    let (column, text) = (position(column), Symbol::new(text).id());
    let mut rows: Vec<usize> = Vec::new();
    Box::new(move |batch| {
        rows.clear();
        let passing = texts(batch, column).iter().enumerate();
        rows.extend(
            passing
                .filter(|(_, value)| **value == text)
                .map(|(at, _)| at),
        );
        let of_rows = |values: &[i64]| -> Vec<i64> { rows.iter().map(|at| values[*at]).collect() };
        let columns = batch.columns.iter().map(|column| match column {
            Column::Nulls(_) => Column::Nulls(rows.len()),
            Column::Int(values) => {
                Column::Int(Int64Array::new(of_rows(values.values()).into(), None))
            }
            Column::Text(values) => ids(rows.iter().map(|at| values.values()[*at]).collect()),
            other => panic!("{other:?} is in no event"),
        });
        Batch::stream(of_rows(&batch.ts), columns.collect())
    })
}

/// Room for four rows of the result for each row of the batch: of two groups, before and after.
fn room<T>(batch: &Batch) -> Vec<T> {
    Vec::with_capacity(4 * batch.len())
}

fn ids(ids: Vec<u32>) -> Column {
    Column::Text(UInt32Array::new(ids.into(), None))
}

/// The instants and weights of a result.
struct Deltas {
    ts: Vec<i64>,
    weights: Vec<i64>,
}

impl Deltas {
    fn push(&mut self, ts: i64, weight: i64) {
        self.ts.push(ts);
        self.weights.push(weight);
    }

    fn with_room(batch: &Batch) -> Deltas {
        Deltas {
            ts: room(batch),
            weights: room(batch),
        }
    }

    fn batch(self, columns: Vec<Column>) -> Batch {
        Batch::deltas(self.ts, self.weights, columns)
    }
}

/// `select sum(sectors) from IOstream`.
fn running_sum() -> Floor {
    let sectors = position("sectors");
    let mut sum = None;
    Box::new(move |batch| {
        let mut deltas = Deltas::with_room(batch);
        let mut sums = room(batch);
        for (ts, sectors) in batch.ts.iter().zip(ints(batch, sectors)) {
            let before = sum;
            let after = before.unwrap_or(0) + sectors;
            sum = Some(after);
            if let Some(before) = before
                && before != after
            {
                deltas.push(*ts, -1);
                sums.push(before);
            }
            if before != sum {
                deltas.push(*ts, 1);
                sums.push(after);
            }
        }
        deltas.batch(vec![Column::ints(sums)])
    })
}

/// Small numbers of the texts of a column, in the order in which they come.
#[derive(Default)]
struct Codes {
    of_texts: Vec<u8>,
    texts: Vec<u32>,
}

impl Codes {
    fn code(&mut self, text: u32) -> u8 {
        const NONE: u8 = u8::MAX;
        let at = text as usize;
        if at >= self.of_texts.len() {
            self.of_texts.resize(at + 1, NONE);
        }
        if self.of_texts[at] == NONE {
            assert!(self.texts.len() < CODES, "the texts are few");
            self.of_texts[at] = self.texts.len() as u8;
            self.texts.push(text);
        }
        self.of_texts[at]
    }

    fn text(&self, code: usize) -> u32 {
        self.texts[code]
    }
}

/// Each code takes so many bits, so that codes side by side are the number of a group.
const CODE_BITS: usize = 4;
const CODES: usize = 1 << CODE_BITS;

/// The codes of some texts side by side.
fn number<const N: usize>(codes: &mut [Codes; N], texts: [u32; N]) -> usize {
    let codes = codes.iter_mut().zip(texts);
    codes.fold(0, |number, (codes, text)| {
        number << CODE_BITS | usize::from(codes.code(text))
    })
}

/// Groups by the codes of `N` texts, each with the number and the sum of a value.
struct Groups<const N: usize, R> {
    groups: Vec<Group<R>>,
    /// Those that have changed at this instant.
    changed: Vec<usize>,
}

#[derive(Clone)]
struct Group<R> {
    count: i64,
    sum: i64,
    /// The results of the row that was emitted last.
    emitted: Option<R>,
}

impl<const N: usize, R: PartialEq + Copy> Groups<N, R> {
    fn new() -> Groups<N, R> {
        let group = Group {
            count: 0,
            sum: 0,
            emitted: None,
        };
        Groups {
            groups: vec![group; CODES.pow(N as u32)],
            changed: Vec::new(),
        }
    }

    fn add(&mut self, number: usize, weight: i64, value: i64) {
        let group = &mut self.groups[number];
        group.count += weight;
        group.sum += weight * value;
        if !self.changed.contains(&number) {
            self.changed.push(number);
        }
    }

    /// The changed rows: weight, texts and results; `result` computes these from number and sum.
    fn emit(
        &mut self,
        codes: &[Codes; N],
        result: impl Fn(i64, i64) -> R,
        mut row: impl FnMut(i64, [u32; N], R),
    ) {
        for number in self.changed.drain(..) {
            let group = &mut self.groups[number];
            let now = (group.count > 0).then(|| result(group.count, group.sum));
            if now == group.emitted {
                continue;
            }
            let mut at = 0;
            let texts = codes.each_ref().map(|codes| {
                at += 1;
                codes.text(number >> ((N - at) * CODE_BITS) & (CODES - 1))
            });
            if let Some(emitted) = mem::replace(&mut group.emitted, now) {
                row(-1, texts, emitted);
            }
            if let Some(now) = now {
                row(1, texts, now);
            }
        }
    }
}

/// `select vm, vdisk, op, count(*), avg(sectors) from IOstream [range 3 s] group by vm, vdisk, op`.
fn group_by() -> Floor {
    let [vm, vdisk, op, sectors] = ["vm", "vdisk", "op", "sectors"].map(position);
    let mut window: VecDeque<(i64, usize, i64)> = VecDeque::new();
    let mut codes: [Codes; 3] = Default::default();
    let mut groups = Groups::new();
    Box::new(move |batch| {
        let mut deltas = Deltas::with_room(batch);
        let keys = [vm, vdisk, op].map(|column| texts(batch, column));
        let sectors = ints(batch, sectors);
        let mut texts = [(); 3].map(|()| room(batch));
        let (mut counts, mut means) = (room(batch), room(batch));
        let result = |count, sum| (count, sum as f64 / count as f64);
        let mut emit = |groups: &mut Groups<3, (i64, f64)>, codes: &_, ts| {
            groups.emit(codes, result, |weight, key, (count, mean)| {
                deltas.push(ts, weight);
                for (column, text) in texts.iter_mut().zip(key) {
                    column.push(text);
                }
                counts.push(count);
                means.push(mean);
            });
        };
        for (row, ts) in batch.ts.iter().enumerate() {
            let mut now = None;
            while let Some((left, number, value)) = window.front()
                && left + RANGE_NS <= *ts
            {
                let leaves = left + RANGE_NS;
                if now.is_some_and(|now| now < leaves) {
                    emit(&mut groups, &codes, now.unwrap_or(leaves));
                }
                now = Some(leaves);
                groups.add(*number, -1, *value);
                window.pop_front();
            }
            if let Some(now) = now.filter(|now| now < ts) {
                emit(&mut groups, &codes, now);
            }
            let number = number(&mut codes, keys.map(|column| column[row]));
            groups.add(number, 1, sectors[row]);
            window.push_back((*ts, number, sectors[row]));
            if batch.ts.get(row + 1) != Some(ts) {
                emit(&mut groups, &codes, *ts);
            }
        }
        let texts = texts.map(ids);
        let results = [Column::ints(counts), Column::floats(means)];
        deltas.batch(texts.into_iter().chain(results).collect())
    })
}

/// The key of the join: `req_id`, and the codes of `vm` and `vdisk`.
type Key = i64;

const KEY_BITS: usize = 2 * CODE_BITS;

/// Requests joined with responses, both over the last 3 s.
struct Join {
    columns: [usize; 4],
    codes: [Codes; 2],
    request: u32,
    /// The rows of each side that are in the window.
    sides: [Side; 2],
    /// The number of the last row of each side with this key.
    last: HashMap<Key, [Option<NonZeroU64>; 2], Multiplied>,
}

struct Side {
    /// The timestamp and the key of each row, and the number of the row before with this key.
    rows: VecDeque<(i64, Key, Option<NonZeroU64>)>,
    /// The number of the first row.
    first: NonZeroU64,
}

/// What receives the result of the join.
trait Pairs {
    fn pair(&mut self, ts: i64, weight: i64, key: Key, latency: i64);

    /// All pairs of this instant are known.
    fn end(&mut self, ts: i64, codes: &[Codes; 2]);
}

impl Side {
    /// Adds a row and returns its number.
    fn push(&mut self, ts: i64, key: Key, before: Option<NonZeroU64>) -> NonZeroU64 {
        let number = self.first.saturating_add(self.rows.len() as u64);
        self.rows.push_back((ts, key, before));
        number
    }

    /// The timestamps of the rows with a key; `last` is the number of its last one.
    fn with_key(&self, last: Option<NonZeroU64>, mut row: impl FnMut(i64)) {
        let mut next = last;
        while let Some(number) = next.filter(|number| *number >= self.first) {
            let (ts, _, before) = self.rows[(number.get() - self.first.get()) as usize];
            row(ts);
            next = before;
        }
    }
}

impl Join {
    fn new() -> Join {
        Join {
            columns: ["type", "req_id", "vm", "vdisk"].map(position),
            codes: Default::default(),
            request: Symbol::new("Q").id(),
            sides: [(); 2].map(|()| Side {
                rows: VecDeque::new(),
                first: NonZeroU64::MIN,
            }),
            last: HashMap::default(),
        }
    }

    fn push(&mut self, batch: &Batch, to: &mut impl Pairs) {
        let [kind, req_id, vm, vdisk] = self.columns;
        let (kinds, ids) = (texts(batch, kind), ints(batch, req_id));
        let (vms, vdisks) = (texts(batch, vm), texts(batch, vdisk));
        for (row, ts) in batch.ts.iter().enumerate() {
            self.expire(*ts, to);
            let key =
                ids[row] << KEY_BITS | number(&mut self.codes, [vms[row], vdisks[row]]) as Key;
            let own = usize::from(kinds[row] != self.request);
            let last = self.last.entry(key).or_default();
            last[own] = Some(self.sides[own].push(*ts, key, last[own]));
            self.sides[1 - own].with_key(last[1 - own], |other| {
                to.pair(*ts, 1, key, latency(own, *ts, other));
            });
            if batch.ts.get(row + 1) != Some(ts) {
                to.end(*ts, &self.codes);
            }
        }
    }

    /// Removes the rows that leave the window until `ts`.
    fn expire(&mut self, ts: i64, to: &mut impl Pairs) {
        loop {
            let oldest = self.sides.iter().filter_map(|side| side.rows.front());
            let leaves = oldest.map(|row| row.0 + RANGE_NS).min();
            let Some(leaves) = leaves.filter(|leaves| *leaves <= ts) else {
                return;
            };
            for own in [0, 1] {
                self.expire_side(own, leaves, to);
            }
            if leaves < ts {
                to.end(leaves, &self.codes);
            }
        }
    }

    /// Removes the rows of one side that leave the window at this instant.
    fn expire_side(&mut self, own: usize, leaves: i64, to: &mut impl Pairs) {
        while let Some((ts, key, _)) = self.sides[own].rows.front().copied()
            && ts + RANGE_NS == leaves
        {
            let side = &mut self.sides[own];
            side.rows.pop_front();
            side.first = side.first.saturating_add(1);
            let Entry::Occupied(last) = self.last.entry(key) else {
                continue;
            };
            self.sides[1 - own].with_key(last.get()[1 - own], |other| {
                to.pair(leaves, -1, key, latency(own, ts, other));
            });
            let mut sides = last.get().iter().zip(&self.sides);
            if sides.all(|(last, side)| last.is_none_or(|last| last < side.first)) {
                last.remove();
            }
        }
    }
}

/// The time from the request to the response, of which the one on side `own` happened at `ts`.
fn latency(own: usize, ts: i64, other: i64) -> i64 {
    match own {
        0 => other - ts,
        _ => ts - other,
    }
}

/// The join itself: the columns of its rows.
struct Joined {
    deltas: Deltas,
    ids: Vec<i64>,
    latencies: Vec<i64>,
}

impl Pairs for Joined {
    fn pair(&mut self, ts: i64, weight: i64, key: Key, latency: i64) {
        self.deltas.push(ts, weight);
        self.ids.push(key >> KEY_BITS);
        self.latencies.push(latency);
    }

    fn end(&mut self, _: i64, _: &[Codes; 2]) {}
}

/// `select Q.req_id, R.ts - Q.ts from ..`, the join.
fn join() -> Floor {
    let mut join = Join::new();
    Box::new(move |batch| {
        let mut rows = Joined {
            deltas: Deltas::with_room(batch),
            ids: room(batch),
            latencies: room(batch),
        };
        join.push(batch, &mut rows);
        let columns = [rows.ids, rows.latencies];
        rows.deltas.batch(columns.map(Column::ints).into())
    })
}

/// The group-by over the join: its groups, and the columns of its rows.
struct Grouped<'g> {
    groups: &'g mut Groups<2, f64>,
    deltas: Deltas,
    vms: Vec<u32>,
    vdisks: Vec<u32>,
    means: Vec<f64>,
}

impl Pairs for Grouped<'_> {
    fn pair(&mut self, _: i64, weight: i64, key: Key, latency: i64) {
        let number = key as usize & ((1 << KEY_BITS) - 1);
        self.groups.add(number, weight, latency);
    }

    fn end(&mut self, ts: i64, codes: &[Codes; 2]) {
        let mean = |count, sum| sum as f64 / count as f64;
        self.groups.emit(codes, mean, |weight, [vm, vdisk], mean| {
            self.deltas.push(ts, weight);
            self.vms.push(vm);
            self.vdisks.push(vdisk);
            self.means.push(mean);
        });
    }
}

/// `select Q.vm, Q.vdisk, avg(R.ts - Q.ts) from .. group by Q.vm, Q.vdisk`, over the join.
fn join_and_group_by() -> Floor {
    let mut join = Join::new();
    let mut groups = Groups::new();
    Box::new(move |batch| {
        let mut rows = Grouped {
            groups: &mut groups,
            deltas: Deltas::with_room(batch),
            vms: room(batch),
            vdisks: room(batch),
            means: room(batch),
        };
        join.push(batch, &mut rows);
        let columns = vec![ids(rows.vms), ids(rows.vdisks), Column::floats(rows.means)];
        rows.deltas.batch(columns)
    })
}

/// A hash of numbers: each is added and multiplied (Fibonacci hashing, Knuth, The Art of Computer
/// Programming, 6.4).
#[derive(Default)]
struct Multiply(u64);

type Multiplied = BuildHasherDefault<Multiply>;

impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_i64(&mut self, number: i64) {
        self.write_u64(number as u64);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}
