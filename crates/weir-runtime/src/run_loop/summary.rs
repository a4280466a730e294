//! The closing summary: the number of events, losses with causes, and the completeness of the
//! answer.

use std::collections::BTreeMap;

use weir_model::Symbol;
use weir_tap::{EventCount, UNFINISHED};

/// A counter, its cause and its device.
type Cause<'a> = (&'a str, Option<&'a str>, Option<&'a str>);

/// Counter of records that could not be read.
const BAD: &str = "bad_records";

/// Counter of requests whose start or end is unknown, so that their times are missing.
const UNTRACKED: &str = "requests_untracked";

/// Counter of sectors of devices without requests that only the kernel counted.
const SECTORS_UNSEEN: &str = "sectors_unseen";

/// Counters of events that occurred but were not received or could not be stored.
pub const MISSED: [&str; 2] = ["events_lost", "unseen"];

/// One line with the number of events of the taps and the completeness, and one for each loss. With
/// `verbose`, all counts.
pub fn summary(counts: &[EventCount], verbose: bool) -> Vec<String> {
    let total = |names: &[&str]| -> i64 {
        let named = counts.iter().filter(|c| names.contains(&c.counter));
        named.map(|c| c.total).sum()
    };
    let (events, missed) = (total(&["events_in"]), total(&MISSED));
    let mut sums: BTreeMap<Cause, i64> = BTreeMap::new();
    for count in counts.iter().filter(|c| c.total > 0) {
        if is_loss(count) || verbose && count.counter != "events_in" {
            let device = count.device.map(Symbol::as_str);
            let cause = (count.counter, count.cause, device);
            *sums.entry(cause).or_default() += count.total;
        }
    }
    let mut lines = Vec::new();
    let unfinished = total(&[UNFINISHED]) > 0;
    if verbose || !sums.is_empty() || unfinished {
        // A tap that filters observes more than it delivers.
        let seen = match total(&["seen"]) {
            0 => events,
            seen => seen,
        };
        let complete = completeness(seen, missed);
        // The losses after the end of a recording are unknown.
        // The number of events whose sectors were not received is unknown as well.
        let is_bound = unfinished || total(&[SECTORS_UNSEEN]) > 0;
        let at_most = if is_bound { "at most " } else { "" };
        lines.push(format!(
            "{events} events, {missed} missed, {at_most}{complete} % complete"
        ));
    }
    lines.extend(sums.into_iter().map(|(cause, total)| line(cause, total)));
    lines
}

/// The number of events that the taps missed.
pub fn missed(counts: &[EventCount]) -> i64 {
    let missed = counts.iter().filter(|c| MISSED.contains(&c.counter));
    missed.map(|c| c.total).sum()
}

/// In percent, rounded down to three digits: only complete results have 100.
fn completeness(seen: i64, missed: i64) -> f64 {
    match seen + missed {
        0 => 100.0,
        all => (100_000.0 * seen as f64 / all as f64).floor() / 1_000.0,
    }
}

fn is_loss(count: &EventCount) -> bool {
    let untracked = count.counter == UNTRACKED && count.cause == Some("table_full");
    [BAD, SECTORS_UNSEEN].contains(&count.counter) || MISSED.contains(&count.counter) || untracked
}

fn line((counter, cause, device): Cause, total: i64) -> String {
    let device = device.map(weir_sink::text::shown);
    let counted = |noun: &str| {
        let noun = format!("{noun}{}", if total == 1 { "" } else { "s" });
        let on = device
            .as_ref()
            .map_or(String::new(), |d| format!(" on {d}"));
        format!("{total} {noun}{on}")
    };
    match (counter, cause) {
        ("unseen", cause) => {
            let why = cause.and_then(why_unseen);
            let why = why.map_or(String::new(), |why| format!(" ({why})"));
            let requests = counted("request");
            format!("{requests}: no completion event was received; not in the results{why}")
        }
        (SECTORS_UNSEEN, _) => {
            let sectors = counted("sector");
            format!("at least {sectors}: no event was received; not in the results")
        }
        (UNTRACKED, Some("table_full")) => {
            let requests = counted("request");
            format!("{requests}: the table of requests in flight was full; their times are unknown")
        }
        _ => {
            let mut text = format!("{total} {}", counter.replace('_', " "));
            if let Some(cause) = cause {
                text += &format!(" ({})", cause.replace('_', " "));
            }
            if let Some(device) = device {
                text += &format!(" of {device}");
            }
            text
        }
    }
}

/// Why the completion of a request was not received.
fn why_unseen(cause: &str) -> Option<&'static str> {
    match cause {
        "recursion" => Some("weir's program was already running on that processor"),
        "not_run" => Some("the kernel did not run weir's program"),
        "no_end" => Some("no tracepoint reports the end of this fsync"),
        "unknown" => Some("cause unknown"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(counter: &'static str, cause: Option<&'static str>, total: i64) -> EventCount {
        EventCount {
            counter,
            cause,
            device: cause.map(|_| Symbol::new("/dev/sda")),
            total,
        }
    }

    #[test]
    fn a_loss_is_reported_with_its_cause() {
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
    fn a_request_without_a_completion_event_is_reported_by_device_and_cause() {
        let counts = [
            count("events_in", None, 100),
            count("unseen", Some("not_run"), 30),
            count("unseen", Some("recursion"), 1),
            count("requests_untracked", Some("table_full"), 2),
        ];
        let not_received = "no completion event was received; not in the results";
        assert_eq!(
            summary(&counts, false),
            [
                "100 events, 31 missed, 76.335 % complete",
                "2 requests on /dev/sda: the table of requests in flight was full; their times are unknown",
                &format!(
                    "30 requests on /dev/sda: {not_received} (the kernel did not run weir's program)"
                ),
                &format!(
                    "1 request on /dev/sda: {not_received} (weir's program was already running on that processor)"
                ),
            ]
        );
    }

    #[test]
    fn sectors_without_an_event_make_completeness_a_bound() {
        let mut unseen = count("sectors_unseen", None, 8);
        unseen.device = Some(Symbol::new("/dev/zram0"));
        assert_eq!(
            summary(&[count("events_in", None, 5), unseen], false),
            [
                "5 events, 0 missed, at most 100 % complete",
                "at least 8 sectors on /dev/zram0: no event was received; not in the results"
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
    fn a_recording_without_end_is_complete_at_most() {
        let counts = [count("events_in", None, 3), count(UNFINISHED, None, 1)];
        assert_eq!(
            summary(&counts, false),
            ["3 events, 0 missed, at most 100 % complete"]
        );
    }

    #[test]
    fn without_loss_only_verbose_reports() {
        let counts = [count("events_in", None, 3), count("events_lost", None, 0)];
        assert!(summary(&counts, false).is_empty());
        assert_eq!(
            summary(&counts, true),
            ["3 events, 0 missed, 100 % complete"]
        );
    }
}
