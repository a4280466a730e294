//! Regular expressions, by the crate `regex`: in time linear in the length of the text.

use std::cell::RefCell;
use std::collections::HashMap;

use regex::{Captures, Regex, RegexBuilder};
use weir_model::Value;

use super::row_function::text_at;
use super::rows::{TEXT_BYTES_MAX, too_long};
use crate::function::arguments::{argument_error, constant};
use crate::function::{Argument, ArgumentError, EvalError};

/// Maximum size of a compiled pattern in bytes.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// Maximum number of patterns that a thread keeps compiled.
const PATTERNS_MAX: usize = 64;

thread_local! {
    static COMPILED: RefCell<HashMap<String, Regex>> = RefCell::new(HashMap::new());
}

/// Requires that argument 1 is a constant pattern and argument `at`, if present, constant flags.
pub fn valid(name: &str, args: &[Argument], at: usize) -> Result<(), ArgumentError> {
    let pattern = constant(name, args, 1, "a regular expression")?.to_string();
    let flags = match args.len() > at {
        true => constant(name, args, at, "flags")?.to_string(),
        false => String::new(),
    };
    if let Some(flag) = flags.chars().find(|c| !"gimsx".contains(*c)) {
        let message = format!("`{flag}` is not a flag: they are g, i, m, s and x");
        return Err(argument_error(at, message));
    }
    match build(&pattern, &flags) {
        Ok(_) => Ok(()),
        Err(error) => Err(argument_error(1, reason(&error))),
    }
}

/// The cause of a refusal, in one line.
fn reason(error: &regex::Error) -> String {
    let text = error.to_string();
    let cause = text.lines().last().unwrap_or_default();
    let cause = cause.trim_start_matches("error: ").trim_end_matches('.');
    format!("the regular expression is not valid: {cause}")
}

fn build(pattern: &str, flags: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(pattern)
        .case_insensitive(flags.contains('i'))
        .multi_line(flags.contains('m'))
        .dot_matches_new_line(flags.contains('s'))
        .ignore_whitespace(flags.contains('x'))
        .size_limit(PATTERN_BYTES_MAX)
        .build()
}

/// The pattern in argument 1 with the flags in argument `at`, if present.
pub fn compiled(args: &[Value], at: usize) -> Result<Regex, EvalError> {
    let pattern = text_at(args, 1);
    let flags = args.get(at).map_or("", |_| text_at(args, at));
    COMPILED.with_borrow_mut(|known| {
        let key = format!("{flags}/{pattern}");
        if let Some(regex) = known.get(&key) {
            return Ok(regex.clone());
        }
        if known.len() >= PATTERNS_MAX {
            known.clear();
        }
        let regex = build(pattern, flags).map_err(|e| EvalError::new(reason(&e)))?;
        known.insert(key, regex.clone());
        Ok(regex)
    })
}

/// `text` with its first matches replaced: `limit` of them, or all if that is 0.
pub fn replaced(regex: &Regex, text: &str, by: &str, limit: usize) -> Result<String, EvalError> {
    let mut out = String::new();
    let mut end = 0;
    for (n, found) in regex.captures_iter(text).enumerate() {
        if limit > 0 && n == limit {
            break;
        }
        let whole = found.get(0).expect("group 0 is the match");
        out.push_str(&text[end..whole.start()]);
        append(&mut out, by, &found);
        end = whole.end();
        if out.len() > TEXT_BYTES_MAX {
            return Err(too_long());
        }
    }
    out.push_str(&text[end..]);
    Ok(out)
}

/// Appends the replacement, with `\1` replaced by group 1 and `\\` by a backslash.
fn append(out: &mut String, by: &str, found: &Captures<'_>) {
    let mut chars = by.chars();
    while let Some(c) = chars.next() {
        let escaped = if c == '\\' { chars.next() } else { None };
        match (escaped, escaped.and_then(|e| e.to_digit(10))) {
            (_, Some(group)) => out.push_str(found.get(group as usize).map_or("", |g| g.as_str())),
            (Some(other), None) => out.push(other),
            (None, None) => out.push(c),
        }
    }
}
