//! [`Reach`]: how far a change in a partition reaches, where results depend on a known number of
//! rows.

use std::collections::btree_map::Range;
use std::ops::Bound::{Excluded, Included, Unbounded};

use super::partition::{Entries, Entry, Stretch};
use crate::plan::OverCall;
use crate::plan::over::{FrameUnit, OverFunction};

/// On how many rows before and after it a result depends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reach {
    before: usize,
    after: usize,
}

/// The time for a row of a stretch, in rows of a whole partition.
const WHOLE_SHARE: usize = 4;

impl Reach {
    /// That of all calls; `None` if one of them depends on the whole partition.
    pub fn of(calls: &[OverCall]) -> Option<Reach> {
        let rows = |distance: i64| usize::try_from(distance).unwrap_or(0);
        let mut reach = Reach::default();
        for call in calls {
            let (first, last) = match (&call.function, call.frame.unit) {
                (OverFunction::Offset { rows, .. }, _) => (*rows, *rows),
                (function, FrameUnit::Rows) if function.has_frame() => {
                    (call.frame.start?, call.frame.end?)
                }
                _ => return None,
            };
            reach.before = reach.before.max(rows(first.saturating_neg()));
            reach.after = reach.after.max(rows(last));
        }
        Some(reach)
    }

    /// Whether so few of a partition's rows are changed that [`Reach::around`] takes less time than
    /// the whole partition.
    pub fn is_worthwhile(self, changed: usize, entries: usize) -> bool {
        let rows = self.before.saturating_add(self.after).saturating_add(1);
        changed.saturating_mul(rows) < entries / WHOLE_SHARE
    }

    /// The rows whose results may differ when rows with these sort keys, in ascending order, are
    /// inserted or retracted, with those on which their results depend.
    ///
    /// They are the same rows before and after the change, except for the changed ones: between a
    /// row and the nearest changed one there are only rows that are in the partition at both times.
    pub fn around(self, entries: &Entries, changed: &[&[u8]]) -> Vec<Stretch> {
        let mut spans: Vec<(&[u8], &[u8])> = Vec::new();
        for &key in changed {
            let first = farthest(before(entries, key).rev(), self.after).unwrap_or(key);
            let last = farthest(after(entries, key), self.before).unwrap_or(key);
            match spans.last_mut() {
                Some(previous) if first <= previous.1 => previous.1 = last,
                _ => spans.push((first, last)),
            }
        }
        let rows = |first, last| entries.range::<[u8], _>((Included(first), Included(last)));
        spans.retain(|(first, last)| rows(first, last).next().is_some());
        let stretch = |(first, last)| {
            let from = farthest(before(entries, first).rev(), self.before).unwrap_or(first);
            let to = farthest(after(entries, last), self.after).unwrap_or(last);
            Stretch::of(rows(from, to), |key| (first..=last).contains(&key))
        };
        spans.into_iter().map(stretch).collect()
    }
}

fn before<'a>(entries: &'a Entries, key: &[u8]) -> Range<'a, Vec<u8>, Entry> {
    entries.range::<[u8], _>((Unbounded, Excluded(key)))
}

fn after<'a>(entries: &'a Entries, key: &[u8]) -> Range<'a, Vec<u8>, Entry> {
    entries.range::<[u8], _>((Excluded(key), Unbounded))
}

/// The sort key of the row at this distance, or of the last one.
fn farthest<'a>(
    entries: impl Iterator<Item = (&'a Vec<u8>, &'a Entry)>,
    distance: usize,
) -> Option<&'a [u8]> {
    let mut passed = 0;
    let mut found = None;
    for (key, entry) in entries {
        if passed >= distance {
            break;
        }
        passed += entry.copies();
        found = Some(key.as_slice());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::Expr;
    use crate::plan::over::RowFrame;
    use weir_model::{Type, Unit};

    fn offset(rows: i64) -> OverCall {
        OverCall {
            function: OverFunction::Offset {
                value: Expr::column(0, Type::Int, Unit::None),
                rows,
                default: None,
            },
            frame: RowFrame::UP_TO_PEERS,
        }
    }

    fn first(unit: FrameUnit, start: Option<i64>, end: Option<i64>) -> OverCall {
        OverCall {
            function: OverFunction::First(Expr::column(0, Type::Int, Unit::None)),
            frame: RowFrame { unit, start, end },
        }
    }

    #[test]
    fn a_reach_covers_all_calls() {
        let reach = |before, after| Some(Reach { before, after });
        let rows = FrameUnit::Rows;
        assert_eq!(Reach::of(&[offset(-3), offset(2)]), reach(3, 2));
        assert_eq!(Reach::of(&[first(rows, Some(-4), Some(0))]), reach(4, 0));
        assert_eq!(Reach::of(&[first(rows, Some(-4), Some(-2))]), reach(4, 0));
        assert_eq!(Reach::of(&[first(rows, Some(1), Some(7))]), reach(0, 7));
        assert_eq!(Reach::of(&[offset(i64::MIN)]), reach(usize::MAX >> 1, 0));
    }

    #[test]
    fn a_result_of_an_open_frame_or_of_the_sort_key_has_no_reach() {
        let row_number = OverCall {
            function: OverFunction::RowNumber,
            frame: RowFrame::UP_TO_PEERS,
        };
        for call in [
            row_number,
            first(FrameUnit::Rows, None, Some(0)),
            first(FrameUnit::Rows, Some(0), None),
            first(FrameUnit::Range, Some(-1), Some(0)),
            first(FrameUnit::Groups, Some(-1), Some(0)),
        ] {
            assert_eq!(Reach::of(&[offset(-1), call]), None);
        }
    }

    /// The sort keys of the rows of each stretch, and those with results in brackets.
    fn around(reach: Reach, rows: &[(u8, i64)], changed: &[u8]) -> String {
        let entry = |(at, &(key, count)): (usize, &(u8, i64))| {
            let slot = at as u32;
            (
                vec![key],
                Entry {
                    slot,
                    count,
                    order_len: 1,
                },
            )
        };
        let entries: Entries = rows.iter().enumerate().map(entry).collect();
        let changed: Vec<&[u8]> = changed.chunks(1).collect();
        let text = |stretch: Stretch| {
            let keys = stretch
                .slots
                .iter()
                .map(|slot| rows[*slot as usize].0.to_string());
            let keys: Vec<String> = keys.collect();
            let [before, results, after] = [
                &keys[..stretch.wanted.start],
                &keys[stretch.wanted.clone()],
                &keys[stretch.wanted.end..],
            ]
            .map(|keys| keys.join(" "));
            format!("{before}[{results}]{after}")
        };
        let stretches = reach.around(&entries, &changed);
        stretches
            .into_iter()
            .map(text)
            .collect::<Vec<_>>()
            .join(" | ")
    }

    #[test]
    fn a_change_reaches_as_many_rows_as_their_results_do() {
        let rows: Vec<(u8, i64)> = (1..=9).map(|key| (key * 10, 1)).collect();
        let lag = Reach {
            before: 1,
            after: 0,
        };
        assert_eq!(around(lag, &rows, &[50]), "40[50 60]");
        assert_eq!(around(lag, &rows, &[55]), "50[60]");
        assert_eq!(around(lag, &rows, &[5]), "[10]");
        assert_eq!(around(lag, &rows, &[95]), "");
        assert_eq!(around(lag, &rows, &[20, 25, 90]), "10[20 30] | 80[90]");
        let both = Reach {
            before: 1,
            after: 2,
        };
        assert_eq!(around(both, &rows, &[50]), "20[30 40 50 60]70 80");
        assert_eq!(around(both, &rows, &[50, 70]), "20[30 40 50 60 70 80]90");
        assert_eq!(around(both, &[], &[50]), "");
    }

    #[test]
    fn copies_are_rows() {
        let rows = [(10, 2), (20, 3), (30, 1), (40, 1)];
        let reach = Reach {
            before: 2,
            after: 0,
        };
        assert_eq!(around(reach, &rows, &[15]), "10 10[20 20 20]");
        assert_eq!(around(reach, &rows, &[25]), "20 20 20[30 40]");
    }
}
