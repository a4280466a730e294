//! Text, interned once for the whole process: a [`Symbol`] is 4 bytes and equal texts have equal
//! symbols.
//!
//! Names of VMs, disks and commands are repeated millions of times in a stream of I/O events. A tap
//! interns each name once; events, hash tables and comparisons for equality then use the number
//! only. Symbols are never freed, so the table is bounded in entries and in bytes.

use std::collections::HashMap;
use std::fmt;
use std::sync::{OnceLock, RwLock};

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Maximum number of distinct texts in a process.
pub const SYMBOLS_MAX: usize = 1 << 24;

/// Maximum number of bytes of text in a process.
pub const SYMBOL_BYTES_MAX: usize = 1 << 30;

/// An interned text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Symbol(u32);

/// The symbol table is full: too many distinct texts, or too many bytes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFull;

impl fmt::Display for TableFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "more than {SYMBOLS_MAX} distinct texts or {SYMBOL_BYTES_MAX} bytes of text; group or filter before making texts"
        )
    }
}

impl std::error::Error for TableFull {}

#[derive(Default)]
struct Table {
    ids: HashMap<&'static str, u32>,
    texts: Vec<&'static str>,
    bytes: usize,
}

fn table() -> &'static RwLock<Table> {
    static TABLE: OnceLock<RwLock<Table>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = Table::default();
        // Symbol(0) is the empty text, so that `Symbol::default()` is valid.
        table.ids.insert("", 0);
        table.texts.push("");
        RwLock::new(table)
    })
}

impl Symbol {
    /// The symbol of `text`, created if it does not exist.
    ///
    /// # Errors
    /// [`TableFull`] when `text` is new and the table holds [`SYMBOLS_MAX`] texts or
    /// [`SYMBOL_BYTES_MAX`] bytes.
    pub fn try_new(text: &str) -> Result<Symbol, TableFull> {
        if let Some(&id) = table().read().expect("no panic while held").ids.get(text) {
            return Ok(Symbol(id));
        }
        let mut table = table().write().expect("no panic while held");
        if let Some(&id) = table.ids.get(text) {
            return Ok(Symbol(id));
        }
        if !has_room(table.texts.len(), table.bytes + text.len(), 1) {
            return Err(TableFull);
        }
        let id = table.texts.len() as u32;
        let text: &'static str = Box::leak(text.into());
        table.bytes += text.len();
        table.texts.push(text);
        table.ids.insert(text, id);
        Ok(Symbol(id))
    }

    /// The symbol of `text`, if it exists.
    pub fn get(text: &str) -> Option<Symbol> {
        let table = table().read().expect("no panic while held");
        table.ids.get(text).copied().map(Symbol)
    }

    /// The symbol of a text that a query computes. There can be as many such texts as rows, and
    /// interned texts are never freed: they may use half of the table, so that a query that creates
    /// too many fails alone and taps still have room for names.
    ///
    /// # Errors
    /// [`TableFull`] when `text` is new and the table is half full.
    pub fn try_computed(text: &str) -> Result<Symbol, TableFull> {
        let table = table().read().expect("no panic while held");
        if let Some(&id) = table.ids.get(text) {
            return Ok(Symbol(id));
        }
        if !has_room(table.texts.len(), table.bytes + text.len(), 2) {
            return Err(TableFull);
        }
        drop(table);
        Symbol::try_new(text)
    }

    /// The symbol of `text`, for texts in our own code: literals, catalog names, tests.
    ///
    /// # Panics
    /// When the table is full; external texts use [`Symbol::try_new`].
    pub fn new(text: &str) -> Symbol {
        Symbol::try_new(text).expect("the symbol table has room for a literal")
    }

    /// The text.
    pub fn as_str(self) -> &'static str {
        table().read().expect("no panic while held").texts[self.0 as usize]
    }

    /// The number of the text in a [`crate::Column::Text`].
    pub fn id(self) -> u32 {
        self.0
    }

    /// The symbol for a number returned by [`Symbol::id`].
    pub fn from_id(id: u32) -> Symbol {
        Symbol(id)
    }

    /// The number of texts and their size in bytes.
    pub fn usage() -> (usize, usize) {
        let table = table().read().expect("no panic while held");
        (table.texts.len(), table.bytes)
    }

    /// Calls `f` with the texts of all symbols so far, by id: one lock for a whole column.
    pub fn with_texts<R>(f: impl FnOnce(&[&'static str]) -> R) -> R {
        f(&table().read().expect("no panic while held").texts)
    }
}

/// True when a table of this number of texts and bytes has room for one more, within 1/`share` of
/// its limits.
fn has_room(texts: usize, bytes: usize, share: usize) -> bool {
    texts < SYMBOLS_MAX / share && bytes <= SYMBOL_BYTES_MAX / share
}

/// Serialized as text: numbers differ between processes.
impl Serialize for Symbol {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Symbol {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Symbol, D::Error> {
        Symbol::try_new(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl fmt::Debug for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl From<&str> for Symbol {
    fn from(text: &str) -> Symbol {
        Symbol::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computed_texts_leave_room_for_names() {
        let known = Symbol::new("nvme0n1");
        assert_eq!(Symbol::try_computed("nvme0n1"), Ok(known));
        let made = Symbol::try_computed("nvme0n1-r").map(Symbol::as_str);
        assert_eq!(made, Ok("nvme0n1-r"));
        let half = SYMBOL_BYTES_MAX / 2;
        assert!(has_room(SYMBOLS_MAX / 2 - 1, half, 2) && has_room(SYMBOLS_MAX - 1, 2 * half, 1));
        assert!(!has_room(SYMBOLS_MAX / 2, 0, 2) && !has_room(0, half + 1, 2));
        assert!(!has_room(SYMBOLS_MAX, 0, 1) && !has_room(0, 2 * half + 1, 1));
    }

    #[test]
    fn equal_texts_have_equal_symbols() {
        assert_eq!(Symbol::new("sda"), Symbol::new("sda"));
        assert_ne!(Symbol::new("sda"), Symbol::new("sdb"));
        assert_eq!(Symbol::new("sda").as_str(), "sda");
        assert_eq!(Symbol::default().as_str(), "");
    }
}
