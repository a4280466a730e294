//! `||` and `LIKE`.

use std::collections::HashMap;

use arrow_array::UInt32Array;
use arrow_buffer::{BooleanBuffer, NullBuffer};
use weir_model::{Column, Symbol, Value};

use super::{Datum, bool_column, text_of, texts};
use crate::function::EvalError;

/// Interns a text that a query computed.
///
/// # Errors
/// When the symbol table is full.
pub(super) fn symbol(text: &str) -> Result<Symbol, EvalError> {
    Symbol::try_computed(text).map_err(|full| EvalError::new(full.to_string()))
}

/// `left || right`.
pub(super) fn concat(left: &Datum, right: &Datum, len: usize) -> Result<Datum, EvalError> {
    let (Some(l), Some(r)) = (texts(left), texts(right)) else {
        return Ok(Datum::Constant(Value::Null));
    };
    let nulls = NullBuffer::union(left.nulls(), right.nulls());
    let mut made: HashMap<(u32, u32), u32> = HashMap::new();
    let mut ids = vec![0; len];
    for (row, id) in ids.iter_mut().enumerate() {
        if nulls.as_ref().is_some_and(|n| n.is_null(row)) {
            continue;
        }
        let pair = (l.get(row), r.get(row));
        *id = match made.get(&pair) {
            Some(&id) => id,
            None => {
                let text = [
                    Symbol::from_id(pair.0).as_str(),
                    Symbol::from_id(pair.1).as_str(),
                ]
                .concat();
                let id = symbol(&text)?.id();
                made.insert(pair, id);
                id
            }
        };
    }
    Ok(Datum::Column(Column::Text(UInt32Array::new(
        ids.into(),
        nulls,
    ))))
}

/// `x LIKE pattern`, or `NOT LIKE`.
pub(super) fn like(
    x: &Datum,
    pattern: &str,
    ignore_case: bool,
    negated: bool,
    len: usize,
) -> Datum {
    let Some(values) = texts(x) else {
        return Datum::Constant(Value::Null);
    };
    let pattern = LikePattern::new(pattern, ignore_case);
    let mut known: HashMap<u32, bool> = HashMap::new();
    let found = Symbol::with_texts(|texts| {
        BooleanBuffer::collect_bool(len, |row| {
            let id = values.get(row);
            *known
                .entry(id)
                .or_insert_with(|| pattern.matches(text_of(texts, id)))
                != negated
        })
    });
    bool_column(found, x.nulls().cloned())
}

/// A pattern of LIKE.
pub struct LikePattern {
    parts: Vec<Part>,
    ignore_case: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// `%`
    Any,
    /// `_`
    One,
    /// A literal character.
    Char(char),
}

impl LikePattern {
    /// The pattern `text`; with `ignore_case` that of ILIKE.
    pub fn new(text: &str, ignore_case: bool) -> LikePattern {
        let mut parts = Vec::new();
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            parts.push(match c {
                '%' => Part::Any,
                '_' => Part::One,
                // A backslash at the very end stands for itself.
                '\\' => Part::Char(fold(chars.next().unwrap_or('\\'), ignore_case)),
                c => Part::Char(fold(c, ignore_case)),
            });
        }
        parts.dedup_by(|a, b| *a == Part::Any && *b == Part::Any);
        LikePattern { parts, ignore_case }
    }

    /// Whether a text matches. Greedy matching that backtracks to the last `%` only: at most text
    /// length times pattern length steps.
    pub fn matches(&self, text: &str) -> bool {
        let chars: Vec<char> = text.chars().map(|c| fold(c, self.ignore_case)).collect();
        let (mut at, mut part) = (0, 0);
        let mut retry: Option<(usize, usize)> = None;
        loop {
            let fits = match self.parts.get(part) {
                Some(Part::Any) => {
                    retry = Some((at, part));
                    part += 1;
                    continue;
                }
                Some(Part::One) => at < chars.len(),
                Some(Part::Char(c)) => chars.get(at) == Some(c),
                None if at == chars.len() => return true,
                None => false,
            };
            if fits {
                at += 1;
                part += 1;
            } else {
                match retry {
                    Some((from, any)) if from < chars.len() => {
                        retry = Some((from + 1, any));
                        at = from + 1;
                        part = any + 1;
                    }
                    _ => return false,
                }
            }
        }
    }
}

fn fold(c: char, ignore_case: bool) -> char {
    if ignore_case {
        c.to_lowercase().next().unwrap_or(c)
    } else {
        c
    }
}

#[cfg(test)]
mod tests {
    use super::LikePattern;

    #[test]
    fn like_supports_percent_underscore_and_escapes() {
        let like = |text: &str, pattern: &str| LikePattern::new(pattern, false).matches(text);
        assert!(
            like("vm17", "vm%") && like("vm17", "%1_") && like("", "%") && like("a%b", r"a\%b")
        );
        assert!(like("abcabd", "%ab_") && like("abab", "%ab") && like("x\\", "x\\"));
        assert!(
            !like("vm17", "vm") && !like("vm", "vm_") && !like("axb", r"a\%b") && !like("", "_")
        );
        assert!(LikePattern::new("VM%", true).matches("vm17"));
    }
}
