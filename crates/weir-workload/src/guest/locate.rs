//! The offset of two clocks of which little is known, from what both sides have seen.

use std::collections::HashMap;

use super::{OffsetBounds, Sighting, SightingKey};

/// Most pairs that are considered; of more, those of the first requests of the guest.
const PAIRS_MAX: usize = 1 << 20;

/// The share of the guest's requests for which the offset must be possible.
const SHARE_MIN: f64 = 0.75;

/// The offsets within `prior` that are possible for the most requests of the guest; `None` if it is
/// possible for less than three quarters of them, or if other offsets are possible for nearly as
/// many: the same requests were repeated at regular intervals.
///
/// A pair of requests of equal key is possible for an interval of offsets. The intervals of the
/// true pairs all contain the true offset, those of other pairs are scattered.
pub fn locate(
    guests: &[Sighting],
    vdisks: &[Sighting],
    prior: OffsetBounds,
) -> Option<OffsetBounds> {
    let steps = depths(&possible(guests, vdisks, prior));
    let best = steps.iter().map(|step| step.depth).max()?;
    if best == 0 || (best as f64) < guests.len() as f64 * SHARE_MIN {
        return None;
    }
    let at = steps.iter().position(|step| step.depth == best)?;
    let rival = rises(steps[at..].iter(), best) || rises(steps[..at].iter().rev(), best);
    let bounds = OffsetBounds {
        low: steps[at].from,
        high: steps
            .get(at + 1)
            .map_or(steps[at].from, |next| next.from - 1),
    };
    (!rival).then_some(bounds)
}

/// Whether the depth rises again to nearly `best`, on the way away from it.
fn rises<'a>(mut away: impl Iterator<Item = &'a Step>, best: usize) -> bool {
    let (rise, mut least) = (best.div_ceil(4), best);
    away.any(|step| {
        let rises = step.depth >= least + rise && step.depth * 4 > best * 3;
        least = least.min(step.depth);
        rises
    })
}

/// From this offset on, an offset is possible for so many requests of the guest.
struct Step {
    from: i64,
    depth: usize,
}

/// For each request of the guest, the offsets that are possible for it: disjoint intervals.
fn possible(guests: &[Sighting], vdisks: &[Sighting], prior: OffsetBounds) -> Vec<OffsetBounds> {
    let mut by_key: HashMap<SightingKey, Vec<&Sighting>> = HashMap::new();
    for vdisk in vdisks {
        by_key.entry(vdisk.key).or_default().push(vdisk);
    }
    let mut all = Vec::new();
    for guest in guests {
        let equal = by_key.get(&guest.key);
        let equal = equal.into_iter().flatten();
        let own = equal.filter_map(|vdisk| guest.offsets(vdisk)?.and(prior));
        let mut own: Vec<OffsetBounds> = own.collect();
        own.sort_by_key(|bounds| bounds.low);
        if all.len() + own.len() > PAIRS_MAX {
            break;
        }
        let mut last: Option<OffsetBounds> = None;
        for next in own {
            last = match last {
                Some(open) if next.low <= open.high => Some(OffsetBounds {
                    low: open.low,
                    high: open.high.max(next.high),
                }),
                before => {
                    all.extend(before);
                    Some(next)
                }
            };
        }
        all.extend(last);
    }
    all
}

/// For how many of `intervals` an offset is possible, by offset.
fn depths(intervals: &[OffsetBounds]) -> Vec<Step> {
    let begins = intervals.iter().map(|bounds| (bounds.low, 1));
    let ends = intervals.iter().map(|b| (b.high.saturating_add(1), -1));
    let mut changes: Vec<(i64, i64)> = begins.chain(ends).collect();
    changes.sort_unstable();
    let mut steps: Vec<Step> = Vec::new();
    let mut depth = 0;
    for (from, change) in changes {
        depth += change;
        let now = usize::try_from(depth).unwrap_or(0);
        match steps.last_mut() {
            Some(last) if last.from == from => last.depth = now,
            _ => steps.push(Step { from, depth: now }),
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: OffsetBounds = OffsetBounds {
        low: i64::MIN / 4,
        high: i64::MAX / 4,
    };

    fn sighting(sector: i64, begin: i64, end: i64) -> Sighting {
        let key = SightingKey {
            op: 'r',
            sector,
            sectors: 8,
        };
        Sighting { key, begin, end }
    }

    /// Requests of those sectors, one each 10 us, and what the virtual disk sees, 1000 s later.
    fn sides(sectors: &[i64]) -> (Vec<Sighting>, Vec<Sighting>) {
        const OFFSET: i64 = 1_000_000_000_000;
        let begin = |at: usize| at as i64 * 10_000;
        let numbered = || sectors.iter().enumerate();
        let guests = numbered().map(|(at, s)| sighting(*s, begin(at), begin(at) + 900));
        let vdisks = numbered().map(|(at, s)| {
            let received = begin(at) + OFFSET + 300;
            sighting(*s, received, received + 400)
        });
        (guests.collect(), vdisks.collect())
    }

    #[test]
    fn the_offset_of_unknown_clocks_is_located() {
        let (guests, vdisks) = sides(&[5, 9, 13, 5, 77, 1, 9, 400, 13, 12]);
        let found = locate(&guests, &vdisks, ANY).unwrap();
        assert_eq!(found.low, 1_000_000_000_000 - 200);
        assert_eq!(found.high, 1_000_000_000_000 + 300);
        // A quarter may be lost on both sides.
        let (guests, vdisks) = (&guests[1..], &vdisks[..8]);
        assert_eq!(locate(guests, vdisks, ANY), Some(found));
    }

    #[test]
    fn repeated_requests_do_not_locate_it() {
        let (guests, vdisks) = sides(&[1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3]);
        assert_eq!(locate(&guests[4..10], &vdisks, ANY), None);
        let prior = OffsetBounds {
            low: 1_000_000_000_000 - 10_000,
            high: 1_000_000_000_000 + 10_000,
        };
        assert!(locate(&guests[4..10], &vdisks, prior).is_some());
    }

    #[test]
    fn unrelated_requests_do_not_locate_it() {
        let (guests, _) = sides(&[1, 2, 3, 4]);
        let (_, vdisks) = sides(&[5, 6, 7, 4]);
        assert_eq!(locate(&guests, &vdisks, ANY), None);
        assert_eq!(locate(&guests, &[], ANY), None);
    }
}
