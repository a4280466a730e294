//! [`Spans`]: intervals of a device's sectors, with lookup of a sector in constant time.
//!
//! A table divides the sectors in use into equal parts, several for each interval, and contains the
//! interval at which to start the search in each part: that is usually the right one.

/// An interval of contiguous sectors with one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// The first sector.
    pub first: u64,
    /// The sector after the last one.
    pub end: u64,
    /// The owner; [`SEVERAL`] if there is more than one.
    pub owner: u32,
    /// The VM's sector number of the first sector, or [`NO_SECTOR`].
    pub vsector: u64,
}

/// The owner of sectors with more than one owner.
pub const SEVERAL: u32 = u32::MAX;

/// An unknown sector.
pub const NO_SECTOR: u64 = u64::MAX;

/// Average number of parts of the table for each interval.
const PARTS_PER_SPAN: usize = 4;

/// Intervals that are searched linearly, which branch prediction makes faster than bisection.
const STEPS: usize = 4;

/// Intervals of one device, in order, without overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    spans: Vec<Span>,
    /// The first interval that ends after the beginning of each part.
    starts: Vec<u32>,
    base: u64,
    shift: u32,
}

impl Spans {
    /// Builds the index of these intervals. Where they overlap, the owner is known if all agree,
    /// and so is the VM's sector.
    pub fn new(spans: Vec<Span>) -> Spans {
        let spans = separate(spans);
        let (Some(first), Some(last)) = (spans.first(), spans.last()) else {
            return Spans::default();
        };
        let (base, extent) = (first.first, last.end - first.first);
        let parts = (spans.len() * PARTS_PER_SPAN).next_power_of_two() as u64;
        // The size of a part as a number of bits, such that at most twice as many parts are needed.
        let shift = (u64::BITS - (extent / parts).leading_zeros()).min(63);
        let count = (extent >> shift) + 1;
        let mut at = 0;
        let start = |part: u64| {
            let sector = base + (part << shift);
            while spans[at].end <= sector && at + 1 < spans.len() {
                at += 1;
            }
            at as u32
        };
        let starts = (0..count).map(start).collect();
        Spans {
            spans,
            starts,
            base,
            shift,
        }
    }

    /// The interval that contains `sector`.
    pub fn find(&self, sector: u64) -> Option<&Span> {
        let part = sector.checked_sub(self.base)? >> self.shift;
        let start = *self.starts.get(part as usize)? as usize;
        let end = match self.starts.get(part as usize + 1) {
            Some(end) => *end as usize + 1,
            None => self.spans.len(),
        };
        let near = &self.spans[start..end.min(self.spans.len())];
        let mut at = 0;
        while at < STEPS && near.get(at).is_some_and(|span| span.end <= sector) {
            at += 1;
        }
        if at == STEPS {
            at = near.partition_point(|span| span.end <= sector);
        }
        near.get(at).filter(|span| span.first <= sector)
    }

    /// Prefetches the entry that [`Spans::find`] reads first; the result has no meaning.
    pub fn touch(&self, sector: u64) -> u64 {
        let part = sector.saturating_sub(self.base) >> self.shift;
        let start = self.starts.get(part as usize).copied().unwrap_or(0);
        self.spans.get(start as usize).map_or(0, |span| span.end)
    }

    /// All intervals.
    pub fn iter(&self) -> impl Iterator<Item = &Span> {
        self.spans.iter()
    }
}

/// The intervals in order, cut where they overlap.
fn separate(mut spans: Vec<Span>) -> Vec<Span> {
    spans.retain(|span| span.first < span.end);
    spans.sort();
    if spans.windows(2).all(|pair| pair[0].end <= pair[1].first) {
        return spans;
    }
    let mut cuts: Vec<u64> = spans.iter().flat_map(|s| [s.first, s.end]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut parts = Vec::with_capacity(spans.len());
    for span in &spans {
        let at = cuts.partition_point(|cut| *cut < span.first);
        for ends in cuts[at..].windows(2).take_while(|ends| ends[1] <= span.end) {
            let skipped = ends[0] - span.first;
            parts.push(Span {
                first: ends[0],
                end: ends[1],
                owner: span.owner,
                vsector: match span.vsector {
                    NO_SECTOR => NO_SECTOR,
                    vsector => vsector + skipped,
                },
            });
        }
    }
    parts.sort();
    parts.dedup_by(|later, first| {
        let same = later.first == first.first;
        if same && later.owner != first.owner {
            first.owner = SEVERAL;
        }
        if same && later.vsector != first.vsector {
            first.vsector = NO_SECTOR;
        }
        same
    });
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(first: u64, end: u64, owner: u32, vsector: u64) -> Span {
        Span {
            first,
            end,
            owner,
            vsector,
        }
    }

    #[test]
    fn sectors_of_two_owners_are_of_several() {
        let spans = Spans::new(vec![
            span(0, 16, 1, 0),
            span(8, 24, 2, 0),
            span(30, 40, 1, 50),
        ]);
        let owner = |sector| spans.find(sector).map(|s| s.owner);
        assert_eq!(owner(7), Some(1));
        assert_eq!(owner(8), Some(SEVERAL));
        assert_eq!(owner(16), Some(2));
        assert_eq!(spans.find(20).map(|s| (s.first, s.vsector)), Some((16, 8)));
        assert_eq!(
            (owner(24), owner(29), owner(39), owner(40)),
            (None, None, Some(1), None)
        );
        assert_eq!(Spans::new(Vec::new()).find(0), None);
    }

    fn any_spans() -> impl Strategy<Value = Vec<Span>> {
        let one = (0..2000u64, 1..60u64, 0..4u32, prop::option::of(0..9000u64));
        let span = one.prop_map(|(first, sectors, owner, vsector)| {
            span(first, first + sectors, owner, vsector.unwrap_or(NO_SECTOR))
        });
        // Some at a large distance, so that the parts are uneven.
        let far = (0..3u64, 1..9u64).prop_map(|(i, n)| {
            let first = 1_000_000_000_000 + (i << 20);
            span_at(first, n)
        });
        prop::collection::vec(prop_oneof![9 => span, 1 => far], 0..60)
    }

    fn span_at(first: u64, sectors: u64) -> Span {
        span(first, first + sectors, 7, 0)
    }

    proptest! {
        #[test]
        fn what_is_found_is_what_looking_at_all_spans_finds(spans in any_spans()) {
            let index = Spans::new(spans.clone());
            let near = spans.iter().flat_map(|s| [s.first.saturating_sub(1), s.first, s.end - 1, s.end]);
            for sector in near.chain(0..2100) {
                let held = spans.iter().filter(|s| (s.first..s.end).contains(&sector));
                let all: Vec<(u32, u64)> = held
                    .map(|s| {
                        let moved = s.vsector.wrapping_add(sector - s.first);
                        (s.owner, if s.vsector == NO_SECTOR { NO_SECTOR } else { moved })
                    })
                    .collect();
                let agreed = |first: u64, of: &dyn Fn(&(u32, u64)) -> u64, else_: u64| {
                    if all.iter().all(|a| of(a) == first) { first } else { else_ }
                };
                let expected = all.first().map(|(owner, vsector)| {
                    let owner = agreed(u64::from(*owner), &|a| u64::from(a.0), u64::from(SEVERAL));
                    (owner as u32, agreed(*vsector, &|a| a.1, NO_SECTOR))
                });
                let found = index.find(sector).map(|s| {
                    let moved = s.vsector.wrapping_add(sector - s.first);
                    (s.owner, if s.vsector == NO_SECTOR { NO_SECTOR } else { moved })
                });
                prop_assert_eq!(found, expected, "sector {}", sector);
            }
        }
    }
}
