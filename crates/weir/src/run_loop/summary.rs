//! The closing words: how many events, what was lost and why, and how complete the answer is.

use std::collections::BTreeMap;

use weir_tap::Count;

/// Counters of what happened but was not seen or could not be kept.
pub const MISSED: [&str; 2] = ["events_lost", "unseen"];

/// Counter of records that could not be read.
const BAD: &str = "bad_records";

/// One line about what the taps saw, and one for each loss. Losses are told whenever there are any; the rest with `verbose` only.
pub fn summary(counts: &[Count], verbose: bool) -> Vec<String> {
    let total = |names: &[&str]| -> i64 {
        let named = counts.iter().filter(|c| names.contains(&c.counter));
        named.map(|c| c.total).sum()
    };
    let (seen, missed) = (total(&["events_in"]), total(&MISSED));
    let bad = total(&[BAD]);
    let mut lines = Vec::new();
    if verbose || missed > 0 || bad > 0 {
        let completeness = match seen + missed {
            0 => 100.0,
            all => 100.0 * seen as f64 / all as f64,
        };
        // Rounded down: only what is complete reads 100 %.
        let completeness = (completeness * 1_000.0).floor() / 1_000.0;
        lines.push(format!(
            "{seen} events, {missed} missed, {completeness} % complete"
        ));
    }
    let mut losses: BTreeMap<String, i64> = BTreeMap::new();
    for count in counts.iter().filter(|c| c.total > 0 && is_loss(c)) {
        *losses.entry(loss(count)).or_default() += count.total;
    }
    lines.extend(
        losses
            .into_iter()
            .map(|(what, total)| format!("{total} {what}")),
    );
    lines
}

fn is_loss(count: &Count) -> bool {
    count.counter == BAD || MISSED.contains(&count.counter)
}

fn loss(count: &Count) -> String {
    let mut text = count.counter.replace('_', " ");
    if let Some(cause) = count.cause {
        text += &format!(" ({})", cause.replace('_', " "));
    }
    if let Some(device) = count.device {
        text += &format!(" of {}", weir_sink::text::shown(device.as_str()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_model::Symbol;

    fn count(counter: &'static str, cause: Option<&'static str>, total: i64) -> Count {
        Count {
            counter,
            cause,
            device: cause.map(|_| Symbol::new("/dev/sda")),
            total,
        }
    }

    #[test]
    fn a_loss_is_told_with_its_cause() {
        let counts = [
            count("events_in", None, 999_999),
            count("events_lost", Some("ring_full"), 1),
        ];
        assert_eq!(
            summary(&counts, false),
            [
                "999999 events, 1 missed, 99.999 % complete",
                "1 events lost (ring full) of /dev/sda"
            ]
        );
    }

    #[test]
    fn without_loss_only_the_curious_are_told() {
        let counts = [count("events_in", None, 3), count("events_lost", None, 0)];
        assert!(summary(&counts, false).is_empty());
        assert_eq!(
            summary(&counts, true),
            ["3 events, 0 missed, 100 % complete"]
        );
    }
}
