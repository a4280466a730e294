//! [`Matcher`]: ties the requests of a guest's disk to those that its virtual disk received.

use std::collections::HashMap;

use weir_model::{NANOS_PER_SECOND, Nanos};

use super::assignment::only_assignment;
use super::{OffsetBounds, OffsetClock, Sighting, SightingKey, locate};

/// Requests without a pair from which the offset is located at once.
const LOCATE_FROM: usize = 8;

/// Most requests without a pair from which the offset is located.
const LOCATE_MAX: usize = 256;

/// Most requests of a cluster; those of a larger one are ambiguous.
const CLUSTER_MAX: usize = 128;

/// What a matcher assumes.
#[derive(Clone, Copy, Debug)]
pub struct MatchOptions {
    /// Contains the offset of the clocks, virtual disk minus guest.
    pub prior: OffsetBounds,
    /// The largest difference of the clocks' rates, parts per billion.
    pub drift_ppb: i64,
    /// How long a request waits for the other side: for a request in flight, for the first pairs
    /// that locate the offset.
    pub timeout: Nanos,
    /// Most requests that wait, on each side.
    pub waiting_max: usize,
}

impl Default for MatchOptions {
    /// For times that agents have converted to their monitor's: they agree within 50 ms, the error
    /// from which a clock is stepped, and two conversions and two clocks drift by 1500 ppm each.
    fn default() -> MatchOptions {
        MatchOptions {
            prior: OffsetBounds {
                low: -50_000_000,
                high: 50_000_000,
            },
            drift_ppb: 3_000_000,
            timeout: 2 * NANOS_PER_SECOND,
            waiting_max: 1 << 17,
        }
    }
}

/// Why a request has no pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnmatchedCause {
    /// The other side has no request of that key at a possible time.
    Missing,
    /// Several assignments are possible.
    Ambiguous,
    /// Too many requests waited.
    TooMany,
}

impl UnmatchedCause {
    /// All causes.
    pub const ALL: [UnmatchedCause; 3] = [
        UnmatchedCause::Missing,
        UnmatchedCause::Ambiguous,
        UnmatchedCause::TooMany,
    ];
}

/// What became of requests, with the values that were given with them.
#[derive(Clone, Debug, PartialEq)]
pub enum MatchOutcome<G, V> {
    /// They are the same request.
    Pair {
        /// Of the guest.
        guest: G,
        /// Of the virtual disk.
        vdisk: V,
        /// Contains the offset of the clocks, virtual disk minus guest, at its end.
        offset: OffsetBounds,
    },
    /// A request of the guest alone.
    Guest(G, UnmatchedCause),
    /// A request of the virtual disk alone.
    Vdisk(V, UnmatchedCause),
}

/// A request that waits.
struct Waiting<T> {
    sighting: Sighting,
    value: T,
    number: u64,
}

/// The requests of one key.
struct Group<G, V> {
    guests: Vec<Waiting<G>>,
    vdisks: Vec<Waiting<V>>,
}

/// Requests of one group that may be each other's: positions in its lists.
struct Cluster {
    guests: Vec<usize>,
    vdisks: Vec<usize>,
}

/// What follows for a cluster.
enum Verdict {
    Pairs(Vec<(usize, usize)>),
    Alone(UnmatchedCause),
    Wait,
}

/// Ties the requests of one disk of a guest to those of one virtual disk.
///
/// A request of the guest is considered when no more requests of the virtual disk can come that it
/// may be. Requests of equal key whose times permit it form a cluster; its requests are tied if
/// there is exactly one assignment. Nothing is guessed: all others are reported with their cause.
pub struct Matcher<G, V> {
    options: MatchOptions,
    clock: OffsetClock,
    groups: HashMap<SightingKey, Group<G, V>>,
    guests: usize,
    vdisks: usize,
    pushed: u64,
    /// When the offset is located next, so that the same requests are not tried at each step.
    locate_from: Nanos,
}

impl<G, V> Matcher<G, V> {
    /// Without requests.
    pub fn new(options: MatchOptions) -> Matcher<G, V> {
        Matcher {
            clock: OffsetClock::new(options.prior, options.drift_ppb),
            options,
            groups: HashMap::new(),
            guests: 0,
            vdisks: 0,
            pushed: 0,
            locate_from: Nanos::MIN,
        }
    }

    /// The clock.
    pub fn clock(&self) -> &OffsetClock {
        &self.clock
    }

    /// Requests that wait: of the guest, of the virtual disk.
    pub fn waiting(&self) -> (usize, usize) {
        (self.guests, self.vdisks)
    }

    /// Adds a request of the guest.
    pub fn guest(&mut self, sighting: Sighting, value: G) -> Option<MatchOutcome<G, V>> {
        if self.guests >= self.options.waiting_max {
            return Some(MatchOutcome::Guest(value, UnmatchedCause::TooMany));
        }
        self.guests += 1;
        self.pushed += 1;
        let number = self.pushed;
        self.group(sighting.key).guests.push(Waiting {
            sighting,
            value,
            number,
        });
        None
    }

    /// Adds a request of the virtual disk.
    pub fn vdisk(&mut self, sighting: Sighting, value: V) -> Option<MatchOutcome<G, V>> {
        if self.vdisks >= self.options.waiting_max {
            return Some(MatchOutcome::Vdisk(value, UnmatchedCause::TooMany));
        }
        self.vdisks += 1;
        self.pushed += 1;
        let number = self.pushed;
        self.group(sighting.key).vdisks.push(Waiting {
            sighting,
            value,
            number,
        });
        None
    }

    fn group(&mut self, key: SightingKey) -> &mut Group<G, V> {
        self.groups.entry(key).or_insert_with(|| Group {
            guests: Vec::new(),
            vdisks: Vec::new(),
        })
    }

    /// What is certain when both sides have added all requests that ended up to `watermark`, each
    /// by its own clock. Pairs are in the order of their end in the guest.
    pub fn advance(&mut self, watermark: Nanos) -> Vec<MatchOutcome<G, V>> {
        if !self.clock.is_known() {
            self.locate(watermark);
        }
        let mut out = Vec::new();
        if self.clock.is_known() {
            self.settle(watermark, &mut out);
            // One of the clocks was set, if nothing matches any more.
            if !out.iter().any(|o| matches!(o, MatchOutcome::Pair { .. })) && self.locate(watermark)
            {
                self.settle(watermark, &mut out);
            }
        }
        self.expire(watermark, &mut out);
        self.groups
            .retain(|_, group| !group.guests.is_empty() || !group.vdisks.is_empty());
        out
    }

    /// Everything that remains, when no more requests follow.
    pub fn finish(&mut self) -> Vec<MatchOutcome<G, V>> {
        self.advance(Nanos::MAX)
    }

    /// Locates the offset by requests of the guest that wait without success; true if that begins a
    /// section of the clock.
    fn locate(&mut self, watermark: Nanos) -> bool {
        if watermark < self.locate_from {
            return false;
        }
        let due = watermark.saturating_sub(self.options.prior.high.max(0));
        let late = due.saturating_sub(self.options.timeout / 2);
        let guests = self.groups.values().flat_map(|group| &group.guests);
        let mut guests: Vec<Sighting> = guests
            .map(|guest| guest.sighting)
            .filter(|guest| guest.end <= due)
            .collect();
        if guests.len() < LOCATE_FROM && guests.iter().all(|guest| guest.end > late) {
            return false;
        }
        guests.sort_by_key(|guest| guest.end);
        guests.truncate(LOCATE_MAX);
        let (first, last) = (guests[0].end, guests[guests.len() - 1].end);
        let vdisks = self.groups.values().flat_map(|group| &group.vdisks);
        let vdisks: Vec<Sighting> = vdisks.map(|vdisk| vdisk.sighting).collect();
        // It must hold for all of them, however far they are apart.
        let drift = self.clock.drift(first, last);
        let found = locate(&guests, &vdisks, self.options.prior).map(|b| b.widened(drift));
        let fits = |found: &OffsetBounds| {
            self.clock.is_known() && self.clock.at(last).and(*found).is_some()
        };
        let Some(found) = found.filter(|found| !fits(found)) else {
            self.locate_from = watermark.saturating_add(self.options.timeout / 16);
            return false;
        };
        self.clock.begin(found, last);
        true
    }

    /// Reports what is certain.
    fn settle(&mut self, watermark: Nanos, out: &mut Vec<MatchOutcome<G, V>>) {
        let mut due: Vec<(Nanos, u64, SightingKey)> = Vec::new();
        for (key, group) in &self.groups {
            let ends = group.guests.iter().map(|g| (g.sighting.end, g.number));
            let earliest = ends.min().filter(|(end, _)| self.is_due(*end, watermark));
            due.extend(earliest.map(|(end, number)| (end, number, *key)));
        }
        due.sort_unstable();
        let mut pairs: Vec<Found<G, V>> = Vec::new();
        for (_, _, key) in due {
            let group = self.groups.remove(&key).expect("it was just listed");
            let rest = self.settle_group(group, watermark, &mut pairs, out);
            self.groups.insert(key, rest);
        }
        out.extend(self.bounded(pairs));
    }

    /// Whether no request of the virtual disk can come that this request of the guest may be.
    fn is_due(&self, end: Nanos, watermark: Nanos) -> bool {
        end.saturating_add(self.clock.at(end).high.max(0)) <= watermark
    }

    /// Reports what is certain of a group; returns what waits.
    fn settle_group(
        &mut self,
        mut group: Group<G, V>,
        watermark: Nanos,
        pairs: &mut Vec<Found<G, V>>,
        out: &mut Vec<MatchOutcome<G, V>>,
    ) -> Group<G, V> {
        group.guests.sort_by_key(|g| (g.sighting.end, g.number));
        group.vdisks.sort_by_key(|v| (v.sighting.end, v.number));
        let verdicts = self.verdicts(&group, watermark);
        let mut guests: Vec<_> = group.guests.into_iter().map(Some).collect();
        let mut vdisks: Vec<_> = group.vdisks.into_iter().map(Some).collect();
        for (cluster, verdict) in verdicts {
            match verdict {
                Verdict::Wait => {}
                Verdict::Pairs(found) => {
                    for (guest, vdisk) in found {
                        let taken = guests[guest].take().zip(vdisks[vdisk].take());
                        let (guest, vdisk) = taken.expect("each is in one cluster");
                        let pair = guest.sighting.offsets(&vdisk.sighting);
                        let pair = pair.expect("tied requests are possible");
                        self.clock.add(pair, guest.sighting.end);
                        pairs.push(Found { guest, vdisk });
                    }
                }
                Verdict::Alone(cause) => {
                    let own = cluster.guests.iter().filter_map(|at| guests[*at].take());
                    out.extend(own.map(|guest| MatchOutcome::Guest(guest.value, cause)));
                    let own = cluster.vdisks.iter().filter_map(|at| vdisks[*at].take());
                    out.extend(own.map(|vdisk| MatchOutcome::Vdisk(vdisk.value, cause)));
                }
            }
        }
        let before = (guests.len(), vdisks.len());
        let rest = Group {
            guests: guests.into_iter().flatten().collect(),
            vdisks: vdisks.into_iter().flatten().collect(),
        };
        self.guests -= before.0 - rest.guests.len();
        self.vdisks -= before.1 - rest.vdisks.len();
        rest
    }

    /// The clusters of a group with a request of the guest that is due.
    fn verdicts(&self, group: &Group<G, V>, watermark: Nanos) -> Vec<(Cluster, Verdict)> {
        let mut seen = vec![false; group.guests.len()];
        let mut all = Vec::new();
        for at in 0..group.guests.len() {
            if seen[at] || !self.is_due(group.guests[at].sighting.end, watermark) {
                continue;
            }
            let cluster = self.cluster(group, at);
            cluster.guests.iter().for_each(|at| seen[*at] = true);
            let verdict = self.verdict(group, &cluster, watermark);
            all.push((cluster, verdict));
        }
        all
    }

    /// The requests that may be each other's, directly or through others, from a request of the
    /// guest on.
    fn cluster(&self, group: &Group<G, V>, from: usize) -> Cluster {
        let mut cluster = Cluster {
            guests: vec![from],
            vdisks: Vec::new(),
        };
        let (mut guests_done, mut vdisks_done) = (0, 0);
        while cluster.guests.len() + cluster.vdisks.len() <= CLUSTER_MAX {
            if let Some(&guest) = cluster.guests.get(guests_done) {
                guests_done += 1;
                let last = &group.guests[guest].sighting;
                let last = last.end.saturating_add(self.clock.at(last.end).high);
                let ended = group.vdisks.partition_point(|v| v.sighting.end <= last);
                let new = (0..ended).rev().filter(|at| self.may_be(group, guest, *at));
                let new: Vec<usize> = new.filter(|at| !cluster.vdisks.contains(at)).collect();
                cluster.vdisks.extend(new);
            } else if let Some(&vdisk) = cluster.vdisks.get(vdisks_done) {
                vdisks_done += 1;
                let new = (0..group.guests.len()).filter(|at| self.may_be(group, *at, vdisk));
                let new: Vec<usize> = new.filter(|at| !cluster.guests.contains(at)).collect();
                cluster.guests.extend(new);
            } else {
                break;
            }
        }
        cluster
    }

    /// Whether the times of both permit that they are the same request.
    fn may_be(&self, group: &Group<G, V>, guest: usize, vdisk: usize) -> bool {
        let guest = &group.guests[guest].sighting;
        let offsets = guest.offsets(&group.vdisks[vdisk].sighting);
        offsets.is_some_and(|own| own.and(self.clock.at(guest.end)).is_some())
    }

    fn verdict(&self, group: &Group<G, V>, cluster: &Cluster, watermark: Nanos) -> Verdict {
        let (guests, vdisks) = (&cluster.guests, &cluster.vdisks);
        if guests.len() + vdisks.len() > CLUSTER_MAX {
            return Verdict::Alone(UnmatchedCause::Ambiguous);
        }
        let ends = || guests.iter().map(|at| group.guests[*at].sighting.end);
        // None of them can be a request of the virtual disk that has not come yet.
        let complete = ends().all(|end| self.is_due(end, watermark));
        if complete && guests.len() == vdisks.len() {
            let own = |guest: &usize| -> Vec<usize> {
                let possible = |at: &usize| self.may_be(group, *guest, vdisks[*at]);
                (0..vdisks.len()).filter(possible).collect()
            };
            let edges: Vec<Vec<usize>> = guests.iter().map(own).collect();
            if let Some(found) = only_assignment(&edges, vdisks.len()) {
                let pairs = guests.iter().zip(found);
                return Verdict::Pairs(pairs.map(|(g, v)| (*g, vdisks[v])).collect());
            }
        }
        let others = vdisks.iter().map(|at| group.vdisks[*at].sighting.end);
        let last = ends().chain(others).max().unwrap_or(Nanos::MAX);
        match last.saturating_add(self.options.timeout) <= watermark {
            false => Verdict::Wait,
            true if vdisks.is_empty() => Verdict::Alone(UnmatchedCause::Missing),
            true => Verdict::Alone(UnmatchedCause::Ambiguous),
        }
    }

    /// Pairs with the bound of the offset at each, in order of their end. What is known of later
    /// ones bounds earlier ones as well.
    fn bounded(&self, mut pairs: Vec<Found<G, V>>) -> Vec<MatchOutcome<G, V>> {
        pairs.sort_by_key(|pair| (pair.guest.sighting.end, pair.guest.number));
        let mut out = Vec::with_capacity(pairs.len());
        let mut later: Option<(OffsetBounds, Nanos)> = None;
        for pair in pairs.into_iter().rev() {
            let end = pair.guest.sighting.end;
            let own = pair.guest.sighting.offsets(&pair.vdisk.sighting);
            let own = own.expect("tied requests are possible");
            let mut offset = own.and(self.clock.at(end)).unwrap_or(own);
            if let Some((bounds, at)) = later {
                offset = offset
                    .and(bounds.widened(self.clock.drift(end, at)))
                    .unwrap_or(offset);
            }
            later = Some((offset, end));
            out.push(MatchOutcome::Pair {
                guest: pair.guest.value,
                vdisk: pair.vdisk.value,
                offset,
            });
        }
        out.reverse();
        out
    }

    /// Reports the requests that have waited too long: without a located offset, or requests of the
    /// virtual disk that no request of the guest can be.
    fn expire(&mut self, watermark: Nanos, out: &mut Vec<MatchOutcome<G, V>>) {
        let prior = self.options.prior;
        let slack = prior.high.max(prior.low.saturating_neg()).max(0);
        let timeout = slack.saturating_add(self.options.timeout.saturating_mul(2));
        let old = watermark.saturating_sub(timeout);
        let gone = |sighting: &Sighting| watermark == Nanos::MAX || sighting.end <= old;
        for group in self.groups.values_mut() {
            let cause = match group.vdisks.is_empty() {
                true => UnmatchedCause::Missing,
                false => UnmatchedCause::Ambiguous,
            };
            let guests = group.guests.extract_if(.., |guest| gone(&guest.sighting));
            let before = out.len();
            out.extend(guests.map(|guest| MatchOutcome::Guest(guest.value, cause)));
            self.guests -= out.len() - before;
            let vdisks = group.vdisks.extract_if(.., |vdisk| gone(&vdisk.sighting));
            let before = out.len();
            out.extend(
                vdisks.map(|vdisk| MatchOutcome::Vdisk(vdisk.value, UnmatchedCause::Missing)),
            );
            self.vdisks -= out.len() - before;
        }
    }
}

/// Requests that are tied.
struct Found<G, V> {
    guest: Waiting<G>,
    vdisk: Waiting<V>,
}
