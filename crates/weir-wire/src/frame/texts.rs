//! Texts by number: an agent sends each text once per connection, and rows refer to it by number.
//!
//! The numbers belong to the agent's process and never change, also for rows on disk. On every
//! connection a text is sent again before the first message that refers to it, so a monitor need
//! not store them. A known text is never freed (it is a [`Symbol`]), so new texts are limited by a
//! budget per host.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use arrow_array::{Array, UInt32Array};
use arrow_buffer::{NullBuffer, ScalarBuffer};
use weir_model::Symbol;

use crate::error::Malformed;
use crate::message::Texts;

/// The longest text, in bytes.
pub const TEXT_BYTES_MAX: usize = 16 << 10;
/// The largest number of texts of an agent's process.
pub const TEXTS_MAX: usize = 1 << 18;
/// Their largest total size in bytes.
pub const TEXTS_BYTES_MAX: usize = 16 << 20;
/// The approximate number of bytes of texts in one message.
const MESSAGE_BYTES: usize = 64 << 10;
/// The largest number of hosts with a separate budget; further hosts share one.
const HOSTS_MAX: usize = 1 << 14;
/// No number: the text has not been used yet.
const NONE: u32 = u32::MAX;

/// The agent's side: the number of each text.
#[derive(Debug, Default)]
pub struct TextTable {
    /// By the symbol's id.
    numbers: Vec<u32>,
    texts: Vec<Symbol>,
    bytes: usize,
}

impl TextTable {
    /// The number of a text, assigned if needed; `None` if the table is full or the text is longer
    /// than [`TEXT_BYTES_MAX`].
    pub fn number(&mut self, symbol: Symbol) -> Option<u32> {
        let id = symbol.id() as usize;
        match self.numbers.get(id) {
            Some(&number) if number != NONE => Some(number),
            _ => self.add(symbol),
        }
    }

    #[cold]
    fn add(&mut self, symbol: Symbol) -> Option<u32> {
        let length = symbol.as_str().len();
        let full = self.texts.len() >= TEXTS_MAX || self.bytes + length > TEXTS_BYTES_MAX;
        if full || length > TEXT_BYTES_MAX {
            return None;
        }
        let id = symbol.id() as usize;
        if id >= self.numbers.len() {
            self.numbers.resize(id + 1, NONE);
        }
        let number = self.texts.len() as u32;
        self.numbers[id] = number;
        self.texts.push(symbol);
        self.bytes += length;
        Some(number)
    }

    /// The numbers of a column's texts, 0 where it is NULL.
    pub(super) fn numbers(&mut self, column: &UInt32Array) -> Option<ScalarBuffer<i64>> {
        let number = |id: u32| self.number(Symbol::from_id(id)).map(i64::from);
        match column.nulls() {
            None => column.values().iter().copied().map(number).collect(),
            Some(_) => {
                let mut number = number;
                column
                    .iter()
                    .map(|id| id.map_or(Some(0), &mut number))
                    .collect()
            }
        }
    }

    /// The number of texts: all numbers are below.
    pub fn len(&self) -> u32 {
        self.texts.len() as u32
    }

    /// Whether there are no texts.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// The texts from number `first` on, as many as fit one message.
    pub fn from(&self, first: u32) -> Texts {
        let mut bytes = 0;
        let texts = self.texts.iter().skip(first as usize).map(|s| s.as_str());
        let fits = texts.take_while(|text| {
            let has_room = bytes < MESSAGE_BYTES;
            bytes += text.len() + 8;
            has_room
        });
        Texts {
            first,
            texts: fits.map(str::to_owned).collect(),
        }
    }
}

/// The number and bytes of texts of an agent that may still be new to the monitor's process.
#[derive(Debug)]
pub struct TextBudget {
    left: Mutex<Left>,
}

#[derive(Debug)]
struct Left {
    texts: usize,
    bytes: usize,
}

impl TextBudget {
    /// A budget of `texts` new texts with `bytes` bytes in total.
    pub fn new(texts: usize, bytes: usize) -> TextBudget {
        TextBudget {
            left: Mutex::new(Left { texts, bytes }),
        }
    }

    /// The symbol of a text, if it is known or within the budget.
    fn intern(&self, text: &str) -> Option<Symbol> {
        if let Some(known) = Symbol::get(text) {
            return Some(known);
        }
        let mut left = self.left.lock().expect("no panic while held");
        if left.texts == 0 || left.bytes < text.len() {
            return None;
        }
        // Half of the symbol table is reserved for the monitor's own names.
        let symbol = Symbol::try_computed(text).ok()?;
        left.texts -= 1;
        left.bytes -= text.len();
        Some(symbol)
    }
}

/// The budgets of all agents, by host: a new connection gets no new budget.
#[derive(Debug)]
pub struct TextBudgets {
    texts: usize,
    bytes: usize,
    hosts: Mutex<HashMap<String, Arc<TextBudget>>>,
    others: Arc<TextBudget>,
}

impl Default for TextBudgets {
    /// The limits of one agent.
    fn default() -> TextBudgets {
        TextBudgets::new(TEXTS_MAX, TEXTS_BYTES_MAX)
    }
}

impl TextBudgets {
    /// A budget of `texts` new texts with `bytes` bytes in total for each host.
    pub fn new(texts: usize, bytes: usize) -> TextBudgets {
        TextBudgets {
            texts,
            bytes,
            hosts: Mutex::default(),
            others: Arc::new(TextBudget::new(texts, bytes)),
        }
    }

    /// The budget of a host.
    pub fn of(&self, host: &str) -> Arc<TextBudget> {
        let mut hosts = self.hosts.lock().expect("no panic while held");
        if let Some(budget) = hosts.get(host) {
            return budget.clone();
        }
        if hosts.len() >= HOSTS_MAX {
            return self.others.clone();
        }
        let budget = Arc::new(TextBudget::new(self.texts, self.bytes));
        hosts.insert(host.to_owned(), budget.clone());
        budget
    }
}

/// The monitor's side of one connection: the symbol behind each number.
#[derive(Debug)]
pub struct ReceivedTexts {
    /// By number; [`NONE`] for a text beyond the budget.
    ids: Vec<u32>,
    bytes: usize,
    budget: Arc<TextBudget>,
}

impl ReceivedTexts {
    /// No texts yet; texts that are new to the process are charged to `budget`.
    pub fn new(budget: Arc<TextBudget>) -> ReceivedTexts {
        ReceivedTexts {
            ids: Vec::new(),
            bytes: 0,
            budget,
        }
    }

    /// The number of texts received: the number of the next.
    pub fn len(&self) -> u32 {
        self.ids.len() as u32
    }

    /// True before the first text.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Adds texts.
    ///
    /// # Errors
    /// If they do not follow the previous ones, or exceed the limits of an agent.
    pub fn add(&mut self, body: &Texts) -> Result<(), Malformed> {
        if body.first as usize != self.ids.len() {
            return Err(Malformed(format!(
                "texts: start at number {}, expected {}",
                body.first,
                self.ids.len()
            )));
        }
        let texts = self.ids.len() + body.texts.len();
        if texts > TEXTS_MAX {
            return Err(Malformed::too_many("texts of an agent", texts, TEXTS_MAX));
        }
        for text in &body.texts {
            self.bytes += text.len();
            if text.len() > TEXT_BYTES_MAX || self.bytes > TEXTS_BYTES_MAX {
                let most = if text.len() > TEXT_BYTES_MAX {
                    TEXT_BYTES_MAX
                } else {
                    TEXTS_BYTES_MAX
                };
                return Err(Malformed::too_many("bytes of texts", self.bytes, most));
            }
            let symbol = self.budget.intern(text);
            self.ids.push(symbol.map_or(NONE, Symbol::id));
        }
        Ok(())
    }

    /// The id of a text's symbol; `None` for one beyond the budget.
    pub(super) fn id(&self, number: u32) -> Result<Option<u32>, Malformed> {
        match self.ids.get(number as usize) {
            Some(&id) => Ok((id != NONE).then_some(id)),
            None => Err(Malformed(format!("rows: text {number} was never sent"))),
        }
    }

    /// The ids of a column; `None` when one of its texts is beyond the budget.
    pub(super) fn ids(
        &self,
        numbers: &[i64],
        nulls: Option<&NullBuffer>,
    ) -> Result<Option<Vec<u32>>, Malformed> {
        let mut ids = Vec::with_capacity(numbers.len());
        let mut beyond = false;
        for (row, number) in numbers.iter().enumerate() {
            if nulls.is_some_and(|n| n.is_null(row)) {
                ids.push(0);
                continue;
            }
            let known = usize::try_from(*number).ok().and_then(|n| self.ids.get(n));
            let Some(id) = known else {
                return Err(Malformed(format!("rows: text {number} was never sent")));
            };
            beyond |= *id == NONE;
            ids.push(*id);
        }
        Ok((!beyond).then_some(ids))
    }
}
