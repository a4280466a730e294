//! [`OwnStream`]: stream `weir` of the fleet: the notes of agents, and the monitor's notes about
//! them.

use std::collections::{BTreeMap, HashMap};

use weir_model::catalog::weir_schema;
use weir_model::{Batch, Column, ColumnBuilder, Nanos, Symbol, Value};
use weir_sink::text;
use weir_wire::Note;

use weir_runtime::run_loop::Changed;

/// Maximum number of notes that wait for the watermark; more are only counted.
const WAITING_MAX: usize = 100_000;

/// Maximum number of counters with a stored total; of others the total is the last value.
const TOTALS_MAX: usize = 100_000;

/// Maximum length of a text of an agent's note.
const TEXT_BYTES_MAX: usize = 256;

/// Maximum number of distinct texts that one agent may add to the process.
const TEXTS_MAX: usize = 10_000;

/// The replacement for the texts of an agent that has added too many.
const OTHER: &str = "other";

/// A row of the stream.
struct Row {
    ts: Nanos,
    place: Symbol,
    counter: Symbol,
    cause: Option<Symbol>,
    device: Option<Symbol>,
    value: i64,
    total: i64,
    host: Option<Symbol>,
}

/// The key of a total: host, counter, cause.
type Counter = (Option<Symbol>, Symbol, Option<Symbol>);

/// Notes that the watermark has not passed.
#[derive(Default)]
pub struct OwnStream {
    waiting: BTreeMap<Nanos, Vec<Row>>,
    rows: usize,
    totals: HashMap<Counter, i64>,
    dropped: i64,
}

impl OwnStream {
    /// Adds a note of the monitor, with the time `at`.
    pub fn record(
        &mut self,
        at: Nanos,
        host: Option<Symbol>,
        counter: &str,
        cause: &str,
        value: i64,
    ) {
        let symbol = |text: &str| Symbol::try_new(text).ok();
        let (Some(place), Some(counter)) = (symbol("monitor"), symbol(counter)) else {
            self.dropped += 1;
            return;
        };
        let cause = short(cause).and_then(|text| Symbol::try_new(text).ok());
        let key = (host, counter, cause);
        let room = self.totals.len() < TOTALS_MAX;
        let total = match self.totals.get_mut(&key) {
            Some(total) => {
                *total = total.saturating_add(value);
                *total
            }
            None => {
                if room {
                    self.totals.insert(key, value);
                }
                value
            }
        };
        self.push(
            at,
            Row {
                ts: at,
                place,
                counter,
                cause,
                device: None,
                value,
                total,
                host,
            },
        );
    }

    /// Adds a note of a counter that the monitor read at `at`.
    pub fn count(&mut self, at: Nanos, changed: &Changed) {
        let symbol = |text: &str| Symbol::try_new(text).ok();
        let counter = &changed.counter;
        let (Some(place), Some(name)) = (symbol(&counter.place), symbol(counter.name)) else {
            self.dropped += 1;
            return;
        };
        self.push(
            at,
            Row {
                ts: at,
                place,
                counter: name,
                cause: counter.cause.and_then(symbol),
                device: counter.device,
                value: changed.value,
                total: changed.total,
                host: None,
            },
        );
    }

    /// Adds a note of an agent, to be emitted at `instant`. `texts` is the number of texts that its
    /// notes have added; false if that is too many, or a text is too long.
    pub fn take(&mut self, host: Symbol, note: &Note, instant: Nanos, texts: &mut usize) -> bool {
        let before = Symbol::usage().0;
        let symbol = |text: &str| match text.len() <= TEXT_BYTES_MAX {
            true => Symbol::try_new(text).ok(),
            false => None,
        };
        let optional = |text: &Option<String>| text.as_deref().map(symbol);
        let (cause, device) = (optional(&note.cause), optional(&note.device));
        let (Some(place), Some(counter)) = (symbol(&note.place), symbol(&note.counter)) else {
            return false;
        };
        *texts += Symbol::usage().0.saturating_sub(before);
        if cause == Some(None) || device == Some(None) || *texts > TEXTS_MAX {
            return false;
        }
        self.push(
            instant,
            Row {
                ts: note.at_ns,
                place,
                counter,
                cause: cause.flatten(),
                device: device.flatten(),
                value: note.value,
                total: note.total,
                host: Some(host),
            },
        );
        true
    }

    fn push(&mut self, at: Nanos, row: Row) {
        if self.rows >= WAITING_MAX {
            self.dropped += 1;
            return;
        }
        self.rows += 1;
        self.waiting.entry(at).or_default().push(row);
    }

    /// Removes and returns the notes up to `upto`. Notes at or before the earlier watermark
    /// `before` are moved after it: no note is lost because it is late; column `ts` contains its
    /// time.
    pub fn release(&mut self, before: Nanos, upto: Nanos) -> Batch {
        if self.dropped > 0 {
            let dropped = std::mem::take(&mut self.dropped);
            self.rows = self.rows.min(WAITING_MAX - 1);
            self.record(upto, None, "notes_lost", "too_many", dropped);
        }
        let later = match upto.checked_add(1) {
            Some(next) => self.waiting.split_off(&next),
            None => BTreeMap::new(),
        };
        let due = std::mem::replace(&mut self.waiting, later);
        let first = before.saturating_add(1);
        let instants: Vec<i64> = due
            .iter()
            .flat_map(|(at, rows)| std::iter::repeat_n((*at).max(first), rows.len()))
            .collect();
        self.rows -= instants.len();
        Batch::stream(instants, columns(due.values().flatten()))
    }

    /// Removes a host's totals.
    pub fn forget(&mut self, host: Symbol) {
        self.totals.retain(|(of, _, _), _| *of != Some(host));
    }
}

/// A text of an agent as a symbol of the process; `other` when the agent has added too many.
/// `texts` is the number that it has added.
pub fn agents_text(text: &str, texts: &mut usize) -> Symbol {
    let text = short(text).unwrap_or_default();
    if Symbol::get(text).is_none() {
        if *texts >= TEXTS_MAX {
            return Symbol::try_new(OTHER).unwrap_or_default();
        }
        *texts += 1;
    }
    Symbol::try_new(text).unwrap_or_default()
}

/// The text truncated to the maximum length; `None` if it is empty.
fn short(text: &str) -> Option<&str> {
    let beginning = text::beginning(text, TEXT_BYTES_MAX);
    (!beginning.is_empty()).then_some(beginning)
}

fn columns<'a>(rows: impl Iterator<Item = &'a Row>) -> Vec<Column> {
    let schema = weir_schema();
    let types = schema.fields.iter().map(|f| f.ty);
    let mut columns: Vec<ColumnBuilder> = types.map(|ty| ColumnBuilder::new(ty, 0)).collect();
    let text = |text: Option<Symbol>| text.map_or(Value::Null, Value::Text);
    for row in rows {
        let values = [
            Value::Int(row.ts),
            Value::Text(row.place),
            Value::Text(row.counter),
            text(row.cause),
            text(row.device),
            Value::Int(row.value),
            Value::Int(row.total),
            text(row.host),
        ];
        for (column, value) in columns.iter_mut().zip(values) {
            column.push(value);
        }
    }
    columns.iter_mut().map(ColumnBuilder::finish).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_notes_are_delivered() {
        let mut own = OwnStream::default();
        let host = Some(Symbol::new("a"));
        own.record(5, host, "rows_late", "slow", 2);
        own.record(20, host, "rows_late", "slow", 3);
        let batch = own.release(10, 15);
        assert_eq!(batch.ts[..], [11]);
        let schema = weir_schema();
        assert_eq!(batch.columns[schema.index("ts")].value(0), Value::Int(5));
        let batch = own.release(15, 20);
        assert_eq!(batch.columns[schema.index("total")].value(0), Value::Int(5));
        assert_eq!(
            batch.columns[schema.index("host")].value(0),
            Value::text("a")
        );
    }

    #[test]
    fn an_agent_cannot_fill_the_table_of_texts() {
        let (mut own, mut texts) = (OwnStream::default(), 0);
        let note = |number: usize| Note {
            at_ns: 0,
            place: format!("place {number}"),
            counter: "x".into(),
            cause: None,
            device: None,
            value: 1,
            total: 1,
        };
        let host = Symbol::new("liar");
        let taken = (0..TEXTS_MAX + 100).filter(|n| own.take(host, &note(*n), 1, &mut texts));
        assert!(taken.count() <= TEXTS_MAX);
        let long = Note {
            place: "x".repeat(TEXT_BYTES_MAX + 1),
            ..note(0)
        };
        assert!(!own.take(host, &long, 1, &mut 0));
    }

    #[test]
    fn causes_count_among_an_agents_texts() {
        let mut texts = TEXTS_MAX - 1;
        assert_eq!(
            agents_text("a cause of mine", &mut texts).as_str(),
            "a cause of mine"
        );
        assert_eq!(texts, TEXTS_MAX);
        assert_eq!(
            agents_text("a cause of mine", &mut texts).as_str(),
            "a cause of mine"
        );
        assert_eq!(agents_text("one too many", &mut texts).as_str(), OTHER);
        assert_eq!(Symbol::get("one too many"), None);
        let long = "x".repeat(TEXT_BYTES_MAX + 1);
        let cut = agents_text(&long, &mut 0).as_str();
        assert_eq!(cut.len(), TEXT_BYTES_MAX);
    }
}
