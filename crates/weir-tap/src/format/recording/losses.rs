//! The counts of a recorder, as stored in the footer.

use std::collections::HashMap;

use parquet::file::metadata::ParquetMetaData;
use weir_model::Symbol;

use super::COUNT_PREFIX;
use crate::EventCount;

/// Maximum number of counts read from a footer; a recorder writes fewer.
const COUNTS_MAX: usize = 4096;

/// The key of a count: its counter, cause and device, separated by dots. A missing cause before a
/// device is empty.
pub fn key(count: &EventCount) -> String {
    let mut key = format!("{COUNT_PREFIX}{}", count.counter);
    if count.cause.is_some() || count.device.is_some() {
        key += &format!(".{}", count.cause.unwrap_or_default());
    }
    if let Some(device) = count.device {
        key += &format!(".{}", device.as_str());
    }
    key
}

/// The counts in a footer's keys, except the number of rows, which are counted when read.
pub fn recorded(footer: &ParquetMetaData) -> Vec<EventCount> {
    let keys = footer.file_metadata().key_value_metadata();
    let counts = keys.into_iter().flatten().filter_map(|kv| {
        let total = kv.value.as_ref()?.parse().ok().filter(|total| *total > 0)?;
        count(kv.key.strip_prefix(COUNT_PREFIX)?, total)
    });
    let counts = counts.filter(|count| count.counter != "events_in");
    summed(counts.take(COUNTS_MAX))
}

/// The count of a key without its prefix. Names are interned for the lifetime of the process.
fn count(key: &str, total: i64) -> Option<EventCount> {
    let name = |text: &str| Symbol::try_new(text).ok();
    let (counter, rest) = key.split_once('.').unwrap_or((key, ""));
    let is_cause = |text: &str| {
        let letters = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        text.bytes().all(letters)
    };
    let (cause, device) = match rest.split_once('.') {
        Some((cause, device)) if is_cause(cause) => (cause, device),
        None if is_cause(rest) => (rest, ""),
        // The form written before an empty cause was used for none.
        _ => ("", rest),
    };
    let cause = Some(cause).filter(|text| !text.is_empty());
    let device = Some(device).filter(|text| !text.is_empty());
    Some(EventCount {
        counter: name(counter)?.as_str(),
        cause: cause.and_then(name).map(Symbol::as_str),
        device: device.and_then(name),
        total,
    })
}

/// The sums of counts of the same kind, each in the position of its first.
pub fn summed(counts: impl Iterator<Item = EventCount>) -> Vec<EventCount> {
    let mut places = HashMap::new();
    let mut sums: Vec<EventCount> = Vec::new();
    for count in counts {
        let what = (count.counter, count.cause, count.device);
        let place = *places.entry(what).or_insert(sums.len());
        match sums.get_mut(place) {
            Some(sum) => sum.total = sum.total.saturating_add(count.total),
            None => sums.push(count),
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_read_as_it_was_written() {
        for (cause, device) in [
            (Some("ring_full"), Some("/dev/disk.1")),
            (Some("recursion"), None),
            (None, Some("/dev/sda")),
            (None, Some("t.csv")),
            (None, None),
        ] {
            let written = EventCount {
                counter: "events_lost",
                cause,
                device: device.map(Symbol::new),
                total: 3,
            };
            let key = key(&written);
            let read = count(key.strip_prefix(COUNT_PREFIX).unwrap(), 3);
            assert_eq!(read, Some(written), "{key}");
        }
        let old = count("unseen./dev/loop0", 3).unwrap();
        assert_eq!(
            (old.cause, old.device),
            (None, Some(Symbol::new("/dev/loop0")))
        );
    }

    #[test]
    fn equal_counts_are_added_up() {
        let of = |cause, total| EventCount::of("events_lost", cause, total);
        let sums = summed([of(None, 1), of(Some("late"), 2), of(None, i64::MAX)].into_iter());
        assert_eq!(sums, [of(None, i64::MAX), of(Some("late"), 2)]);
    }
}
