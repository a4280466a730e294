//! [`KeyPacker`]: packs key columns into rows of 64-bit words, so that hashing and comparing a key
//! reads one place in memory.
//!
//! Equal keys have equal words. Texts are symbols of 24 bits and share words; so do booleans and
//! the NULL flags.

use std::collections::HashMap;

use weir_model::types::float_key;
use weir_model::{Column, Type, Value};

/// Packs key columns into words.
#[derive(Debug)]
pub(crate) struct KeyPacker {
    fields: Vec<Field>,
    width: usize,
    /// Tallies and byte strings are numbered as they appear, from 1.
    numbered: HashMap<Value, u32>,
}

/// The position of a column's value.
#[derive(Clone, Copy, Debug)]
struct Field {
    word: usize,
    shift: u32,
    /// Whether it needs all 64 bits.
    whole: bool,
    /// The bit that marks NULL, for values that need all 64 bits of their word; the others use 0.
    null: Option<(usize, u64)>,
}

/// Keys of some rows.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    /// The words, row after row.
    words: Vec<u64>,
    /// How many words a row has.
    width: usize,
    /// A hash of each row.
    pub hashes: Vec<u32>,
}

impl Keys {
    /// All words.
    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    /// Row `row`'s words.
    pub(crate) fn row(&self, row: usize) -> &[u64] {
        &self.words[row * self.width..(row + 1) * self.width]
    }

    /// Whether two rows have the same key.
    pub(crate) fn same(&self, a: usize, b: usize) -> bool {
        self.hashes[a] == self.hashes[b] && self.row(a) == self.row(b)
    }
}

/// The layout of a key while it is built.
#[derive(Default)]
struct Layout {
    words: usize,
    half: Option<usize>,
}

impl Layout {
    /// A word of its own.
    fn whole(&mut self) -> usize {
        self.words += 1;
        self.words - 1
    }

    /// Half a word.
    fn half(&mut self) -> (usize, u32) {
        match self.half.take() {
            Some(word) => (word, 32),
            None => {
                let word = self.whole();
                self.half = Some(word);
                (word, 0)
            }
        }
    }
}

impl KeyPacker {
    /// For keys of these types.
    pub(crate) fn new(types: &[Type]) -> KeyPacker {
        let mut layout = Layout::default();
        let mut flags: Option<(usize, u32, u32)> = None;
        let mut packer = KeyPacker::without_nulls(types, &mut layout);
        for field in packer.fields.iter_mut().filter(|f| f.whole) {
            let (word, shift, used) = match flags {
                Some((word, shift, used)) if used < 32 => (word, shift, used),
                _ => {
                    let (word, shift) = layout.half();
                    (word, shift, 0)
                }
            };
            flags = Some((word, shift, used + 1));
            field.null = Some((word, 1 << (shift + used)));
        }
        packer.width = layout.words;
        packer
    }

    /// For keys of these types where keys with a NULL are never looked up.
    pub(crate) fn of_known(types: &[Type]) -> KeyPacker {
        KeyPacker::without_nulls(types, &mut Layout::default())
    }

    fn without_nulls(types: &[Type], layout: &mut Layout) -> KeyPacker {
        let mut field = |ty: &Type| {
            let whole = matches!(ty, Type::Int | Type::Time | Type::Float);
            let (word, shift) = if whole {
                (layout.whole(), 0)
            } else {
                layout.half()
            };
            Field {
                word,
                shift,
                whole,
                null: None,
            }
        };
        let fields = types.iter().map(&mut field).collect();
        KeyPacker {
            fields,
            width: layout.words,
            numbered: HashMap::new(),
        }
    }

    /// How many words a key has.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// The keys of `len` rows. NULLs are equal to each other and to nothing else.
    pub(crate) fn pack(&mut self, columns: &[Column], len: usize) -> Keys {
        let width = self.width;
        let mut words = vec![0u64; len * width];
        for (field, column) in self.fields.iter().zip(columns) {
            let shift = field.shift;
            match column {
                Column::Nulls(_) => {}
                Column::Int(a) => fill(
                    &mut words,
                    width,
                    field,
                    a.values().iter().map(|&x| x as u64),
                ),
                Column::Float(a) => fill(
                    &mut words,
                    width,
                    field,
                    a.values().iter().map(|&x| float_key(x)),
                ),
                Column::Text(a) => {
                    fill(
                        &mut words,
                        width,
                        field,
                        a.values().iter().map(|&x| (u64::from(x) + 1) << shift),
                    );
                }
                Column::Bool(a) => {
                    fill(
                        &mut words,
                        width,
                        field,
                        a.values().iter().map(|x| (u64::from(x) + 1) << shift),
                    );
                }
                Column::Tally(a) => {
                    let mut number =
                        |tally| number_of(&mut self.numbered, Value::Tally(tally)) << shift;
                    let values = a.values().iter().cloned();
                    let numbers = values.map(|tally| tally.map_or(0, &mut number));
                    fill(&mut words, width, field, numbers);
                }
                Column::Bytes(a) => {
                    let mut number =
                        |x: &[u8]| number_of(&mut self.numbered, Value::Bytes(x.into())) << shift;
                    let numbers = a.iter().map(|bytes| bytes.map_or(0, &mut number));
                    fill(&mut words, width, field, numbers);
                }
            }
            mark_nulls(&mut words, width, field, column, len);
        }
        let hashes = (0..len)
            .map(|row| hash(&words[row * width..(row + 1) * width]))
            .collect();
        Keys {
            words,
            width,
            hashes,
        }
    }

    /// Approximate size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.numbered.len() * 1024
    }
}

/// The number of a value that does not fit a word, from 1 in order of appearance.
fn number_of(numbered: &mut HashMap<Value, u32>, value: Value) -> u64 {
    let next = numbered.len() as u32 + 1;
    u64::from(*numbered.entry(value).or_insert(next))
}

fn fill(words: &mut [u64], width: usize, field: &Field, values: impl Iterator<Item = u64>) {
    for (row, value) in words.chunks_exact_mut(width).zip(values) {
        row[field.word] |= value;
    }
}

fn mark_nulls(words: &mut [u64], width: usize, field: &Field, column: &Column, len: usize) {
    let all = matches!(column, Column::Nulls(_));
    let nulls = column.nulls().filter(|n| n.null_count() > 0);
    if !all && nulls.is_none() {
        return;
    }
    for row in (0..len).filter(|&row| all || nulls.is_some_and(|n| n.is_null(row))) {
        let row = &mut words[row * width..(row + 1) * width];
        match field.null {
            Some((word, flag)) => {
                row[field.word] = 0;
                row[word] |= flag;
            }
            None if field.whole => row[field.word] = 0,
            None => row[field.word] &= !(u64::from(u32::MAX) << field.shift),
        }
    }
}

/// A hash of a key: words folded in one after the other by the two halves of a 128-bit product.
#[inline]
pub(crate) fn hash(words: &[u64]) -> u32 {
    let mut h = 0x9E37_79B9_7F4A_7C15u64;
    for &word in words {
        let product = u128::from(h ^ word) * 0xA076_1D64_78BD_642Fu128;
        h = (product as u64) ^ ((product >> 64) as u64);
    }
    (h ^ (h >> 32)) as u32
}
