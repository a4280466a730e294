//! [`History`]: the latencies of the last intervals, for sparklines.

use std::collections::HashMap;

use super::columns::index;
use super::gather::{Key, LINES_MAX, TopLine};

/// The number of intervals stored.
pub const INTERVALS: usize = 60;

/// The maximum number of lines stored.
const KEYS_MAX: usize = 2 * LINES_MAX;

/// The 99th percentile of each line's latency over the last intervals.
#[derive(Debug, Default)]
pub struct History {
    lines: HashMap<Key, Past>,
    now: u64,
}

#[derive(Debug)]
struct Past {
    /// By interval, modulo [`INTERVALS`].
    p99: [f32; INTERVALS],
    /// The last interval with requests.
    last: u64,
}

impl History {
    /// Adds the lines of the next interval.
    pub fn add<'a>(&mut self, lines: impl Iterator<Item = &'a TopLine>) {
        self.now += 1;
        let now = self.now;
        let column = index("p99");
        for line in lines {
            let room = self.lines.len() < KEYS_MAX;
            let past = match self.lines.get_mut(&line.key) {
                Some(past) => past,
                None if !room => continue,
                None => self.lines.entry(line.key).or_insert(Past {
                    p99: [f32::NAN; INTERVALS],
                    last: now,
                }),
            };
            // Intervals without requests have no latency.
            for idle in past.last + 1..now.min(past.last + INTERVALS as u64) {
                past.p99[idle as usize % INTERVALS] = f32::NAN;
            }
            past.p99[now as usize % INTERVALS] = line.values[column].map_or(f32::NAN, |x| x as f32);
            past.last = now;
        }
        self.lines
            .retain(|_, past| now - past.last < INTERVALS as u64);
    }

    /// The last `count` intervals of a line, oldest first.
    pub fn of(&self, key: &Key, count: usize) -> Vec<Option<f32>> {
        let count = count.min(INTERVALS);
        let past = self.lines.get(key);
        let intervals = (0..count as u64).rev().map(|ago| {
            let past = past?;
            let at = self.now.checked_sub(ago).filter(|&at| at <= past.last)?;
            Some(past.p99[at as usize % INTERVALS]).filter(|x| !x.is_nan())
        });
        intervals.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::columns::COLUMNS;
    use super::super::queries::TopDisk;
    use super::*;

    fn line(p99: f64) -> TopLine {
        let mut values = vec![None; COLUMNS.len()];
        values[index("p99")] = Some(p99);
        let disk = TopDisk {
            vm: None,
            vdisk: None,
            pdisk: None,
        };
        let key = Key { disk, ..Key::EMPTY };
        TopLine { key, values }
    }

    #[test]
    fn intervals_without_requests_are_gaps_and_idle_lines_are_removed() {
        let mut history = History::default();
        let key = line(0.0).key;
        history.add([line(1.0)].iter());
        history.add([].iter());
        history.add([line(3.0)].iter());
        assert_eq!(history.of(&key, 4), [None, Some(1.0), None, Some(3.0)]);
        history.add([].iter());
        assert_eq!(history.of(&key, 2), [Some(3.0), None]);
        for _ in 0..INTERVALS {
            history.add([].iter());
        }
        assert!(history.lines.is_empty());
        history.add([line(9.0)].iter());
        assert_eq!(history.of(&key, 3), [None, None, Some(9.0)]);
    }
}
