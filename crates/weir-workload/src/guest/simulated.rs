//! A guest and its virtual disk, simulated with clocks that differ and drift: what was planted is
//! compared with what [`Matcher`] reports.

use super::*;

const MS: i64 = 1_000_000;
const S: i64 = 1_000 * MS;

/// A simulated load.
#[derive(Clone, Copy, Debug)]
struct Plan {
    requests: usize,
    /// Requests in flight.
    depth: usize,
    /// Different sectors; few make many requests of equal key.
    sectors: i64,
    /// The guest's clock minus the virtual disk's, when the load begins.
    ahead: i64,
    /// The guest's clock gains this much, parts per billion.
    drift_ppb: i64,
    /// One request in so many is lost on each side; 0: none.
    lost: u64,
    /// The guest's clock is set forward by so much after half of the time.
    set: i64,
    prior: OffsetBounds,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            requests: 2_000,
            depth: 8,
            sectors: 100_000,
            ahead: 300_000,
            drift_ppb: 100_000,
            lost: 0,
            set: 0,
            prior: MatchOptions::default().prior,
        }
    }
}

/// A request: by the virtual disk's clock when it was issued, received, finished by the disk and
/// in the guest.
struct Truth {
    key: SightingKey,
    issued: i64,
    received: i64,
    served: i64,
    returned: i64,
}

impl Plan {
    fn truths(&self, random: &mut fastrand::Rng) -> Vec<Truth> {
        let mut slots = vec![0_i64; self.depth];
        let mut all: Vec<Truth> = (0..self.requests)
            .map(|_| {
                let slot = random.usize(..self.depth);
                let issued = slots[slot] + random.i64(0..20_000);
                let received = issued + random.i64(10_000..200_000);
                let served = received + random.i64(20_000..500_000);
                let returned = served + random.i64(10_000..300_000);
                slots[slot] = returned;
                let key = SightingKey {
                    op: if random.bool() { 'r' } else { 'w' },
                    sector: random.i64(0..self.sectors) * 8,
                    sectors: 8,
                };
                Truth {
                    key,
                    issued,
                    received,
                    served,
                    returned,
                }
            })
            .collect();
        all.sort_by_key(|truth| truth.returned);
        all
    }

    /// The guest's clock at an instant of the virtual disk's.
    fn guest_clock(&self, at: i64, middle: i64) -> i64 {
        let drift = (i128::from(at) * i128::from(self.drift_ppb) / 1_000_000_000) as i64;
        let set = if at >= middle { self.set } else { 0 };
        at + self.ahead + drift + set
    }
}

/// What a run found.
#[derive(Debug, Default)]
struct Found {
    right: usize,
    wrong: usize,
    guests_alone: usize,
    vdisks_alone: usize,
    ambiguous: usize,
    /// Pairs whose bounds do not contain the true offset.
    outside: usize,
    /// The median of their errors.
    error: i64,
    sections: u64,
    /// Both sides were given.
    both: usize,
}

fn run(plan: Plan, seed: u64) -> Found {
    let mut random = fastrand::Rng::with_seed(seed);
    let truths = plan.truths(&mut random);
    let end = truths.iter().map(|t| t.returned).max().unwrap();
    let clock = |at: i64| plan.guest_clock(at, end / 2);
    let mut lost = || plan.lost > 0 && random.u64(..plan.lost) == 0;
    let (mut guests, mut vdisks) = (Vec::new(), Vec::new());
    let mut found = Found::default();
    for (number, truth) in truths.iter().enumerate() {
        let key = truth.key;
        let guest = Sighting {
            key,
            begin: clock(truth.issued),
            end: clock(truth.returned),
        };
        let vdisk = Sighting {
            key,
            begin: truth.received,
            end: truth.served,
        };
        let (no_guest, no_vdisk) = (lost(), lost());
        found.both += usize::from(!no_guest && !no_vdisk);
        guests.extend((!no_guest).then_some((guest, number)));
        vdisks.extend((!no_vdisk).then_some((vdisk, number)));
    }
    let given = (guests.len(), vdisks.len());
    guests.sort_by_key(|(sighting, _)| sighting.end);
    vdisks.sort_by_key(|(sighting, _)| sighting.end);
    let mut matcher: Matcher<usize, usize> = Matcher::new(MatchOptions {
        prior: plan.prior,
        ..MatchOptions::default()
    });
    let (mut guests, mut vdisks) = (guests.into_iter().peekable(), vdisks.into_iter().peekable());
    let mut out = Vec::new();
    let mut watermark = clock(0).min(0);
    while guests.peek().is_some() || vdisks.peek().is_some() {
        watermark += random.i64(1..80) * MS;
        while let Some((sighting, number)) = guests.next_if(|(s, _)| s.end <= watermark) {
            out.extend(matcher.guest(sighting, number));
        }
        while let Some((sighting, number)) = vdisks.next_if(|(s, _)| s.end <= watermark) {
            out.extend(matcher.vdisk(sighting, number));
        }
        out.extend(matcher.advance(watermark));
    }
    out.extend(matcher.finish());
    assert_eq!(matcher.waiting(), (0, 0));
    let (mut guests_out, mut vdisks_out, mut errors) = (0, 0, Vec::new());
    for outcome in out {
        match outcome {
            MatchOutcome::Pair {
                guest,
                vdisk,
                offset,
            } => {
                guests_out += 1;
                vdisks_out += 1;
                match guest == vdisk {
                    true => found.right += 1,
                    false => found.wrong += 1,
                }
                let at = truths[guest].returned;
                let offset_true = at - clock(at);
                let outside = offset_true < offset.low || offset_true > offset.high;
                found.outside += usize::from(outside);
                errors.push(offset.error());
            }
            MatchOutcome::Guest(_, cause) => {
                guests_out += 1;
                found.guests_alone += 1;
                found.ambiguous += usize::from(cause == UnmatchedCause::Ambiguous);
            }
            MatchOutcome::Vdisk(..) => {
                vdisks_out += 1;
                found.vdisks_alone += 1;
            }
        }
    }
    // Each request is reported once.
    assert_eq!((guests_out, vdisks_out), given);
    found.sections = matcher.clock().sections();
    errors.sort_unstable();
    found.error = errors.get(errors.len() / 2).copied().unwrap_or_default();
    found
}

#[test]
fn every_request_of_a_known_load_is_tied_and_the_offset_is_within_its_bound() {
    for seed in 0..10 {
        let found = run(Plan::default(), seed);
        assert_eq!((found.right, found.wrong), (2_000, 0), "{found:?}");
        assert_eq!((found.outside, found.sections), (0, 1), "{found:?}");
        // The shortest ways there and back are 20 us together.
        assert!(found.error < 50_000, "{found:?}");
    }
}

#[test]
fn requests_that_are_repeated_are_tied_or_counted_never_confused() {
    for (seed, sectors) in (0..12).zip([1, 4, 16, 64, 500].into_iter().cycle()) {
        let plan = Plan {
            requests: 600,
            sectors,
            depth: 4,
            ..Plan::default()
        };
        let found = run(plan, seed);
        assert_eq!((found.wrong, found.outside), (0, 0), "{plan:?} {found:?}");
        assert_eq!(found.right + found.guests_alone, 600);
        let tied = match sectors {
            500 => 595,
            64 => 570,
            16 => 450,
            _ => 0,
        };
        assert!(found.right >= tied, "{plan:?} {}", found.right);
    }
}

#[test]
fn losses_on_both_sides_are_counted() {
    for seed in 0..10 {
        let plan = Plan {
            lost: 20,
            sectors: 1_000_000,
            ..Plan::default()
        };
        let found = run(plan, seed);
        assert_eq!((found.wrong, found.outside), (0, 0), "{found:?}");
        assert_eq!((found.right, found.ambiguous), (found.both, 0), "{found:?}");
    }
}

#[test]
fn a_clock_that_is_set_begins_a_section() {
    for seed in 0..10 {
        let plan = Plan {
            set: 7 * MS,
            ..Plan::default()
        };
        let found = run(plan, seed);
        assert_eq!((found.wrong, found.sections), (0, 2), "{found:?}");
        // Requests in flight at that time were begun by one clock and ended by another.
        assert!(found.outside <= plan.depth, "{found:?}");
        assert!(found.right >= 1_990, "{found:?}");
    }
}

#[test]
fn clocks_that_differ_by_minutes_and_drift_are_located() {
    for (seed, ahead) in (0..8).zip([-200 * S, 300 * S].into_iter().cycle()) {
        let plan = Plan {
            ahead,
            drift_ppb: 500_000,
            prior: OffsetBounds {
                low: -600 * S,
                high: 600 * S,
            },
            ..Plan::default()
        };
        let found = run(plan, seed);
        assert_eq!((found.right, found.wrong), (2_000, 0), "{found:?}");
        assert_eq!((found.outside, found.sections), (0, 1));
    }
}
