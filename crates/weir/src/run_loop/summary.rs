//! The closing words: how many events, what was lost and why, and how complete the answer is.

use std::collections::BTreeMap;

use weir_tap::Count;

/// Counter of records that could not be read.
const BAD: &str = "bad_records";

/// Counter of requests whose begin or end is not known, so that their times are missing.
const UNTRACKED: &str = "requests_untracked";

/// Counters of what happened but was not seen or could not be kept.
pub const MISSED: [&str; 2] = ["events_lost", "unseen"];

/// One line about what the taps saw and how complete it is, and one for each loss, as soon as there
/// is any. With `verbose`, all that was counted.
pub fn summary(counts: &[Count], verbose: bool) -> Vec<String> {
    let total = |names: &[&str]| -> i64 {
        let named = counts.iter().filter(|c| names.contains(&c.counter));
        named.map(|c| c.total).sum()
    };
    let (events, missed) = (total(&["events_in"]), total(&MISSED));
    let mut said: BTreeMap<String, i64> = BTreeMap::new();
    for count in counts.iter().filter(|c| c.total > 0) {
        if is_loss(count) || verbose && count.counter != "events_in" {
            *said.entry(text(count)).or_default() += count.total;
        }
    }
    let mut lines = Vec::new();
    if verbose || !said.is_empty() {
        // A tap that selects sees more than it tells.
        let seen = match total(&["seen"]) {
            0 => events,
            seen => seen,
        };
        let complete = completeness(seen, missed);
        lines.push(format!(
            "{events} events, {missed} missed, {complete} % complete"
        ));
    }
    lines.extend(
        said.into_iter()
            .map(|(what, total)| format!("{total} {what}")),
    );
    lines
}

/// In percent, rounded down to three digits: only what is complete reads 100.
fn completeness(seen: i64, missed: i64) -> f64 {
    match seen + missed {
        0 => 100.0,
        all => (100_000.0 * seen as f64 / all as f64).floor() / 1_000.0,
    }
}

fn is_loss(count: &Count) -> bool {
    let untracked = count.counter == UNTRACKED && count.cause == Some("table_full");
    count.counter == BAD || MISSED.contains(&count.counter) || untracked
}

fn text(count: &Count) -> String {
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
    fn completeness_is_about_all_that_was_seen_not_about_what_was_selected() {
        let counts = [
            count("events_in", None, 1),
            count("seen", None, 99),
            count("unseen", None, 1),
        ];
        assert_eq!(
            summary(&counts, false)[0],
            "1 events, 1 missed, 99 % complete"
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
