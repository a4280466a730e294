//! [`Runs`]: finds the sequential streams among interleaved requests, in a table of fixed size.
//!
//! A **run** is a chain of requests of one operation: each starts where the previous one ended
//! (forward), ends where it started (backward), or is at a constant distance from it (strided).
//! Runs are tracked by position, so interleaving, request lengths and other requests in between do
//! not matter. A chain counts as a run from [`RUN_MIN`] requests on, so that random requests do not
//! form runs by chance.

mod recency;
mod regions;

use std::ops::Range;

use weir_model::Op;

use recency::Recency;
use regions::Regions;

/// The smallest number of requests of a run.
pub const RUN_MIN: u64 = 4;

/// The number of tracked runs and candidates.
const PLACES: usize = 128;

/// Candidates are replaced only when there are this many, so that a run with rare requests is not
/// lost to noise.
const BEGINNINGS_MIN: usize = 64;

/// A stride is at most this long: 4 MiB.
const STRIDE_SECTORS_MAX: u64 = 8_192;

/// Depths of interleaving with separate counts.
pub const DEPTHS: usize = 32;

/// The direction of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// Each request starts where the previous one ended.
    Forward,
    /// Each request lies before the previous one, at its beginning or at a constant distance.
    Backward,
    /// Each request lies a constant distance after the previous one, with a gap.
    Strided,
}

/// The relation of a request to the runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunPosition {
    /// The number of requests that are now known to continue a run: 0 for a random request, more
    /// than 1 if this request turns its predecessors into a run.
    pub continued: Option<Continued>,
    /// It begins where the last request of a chain began.
    pub repeated: bool,
}

/// Requests that continue a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Continued {
    /// The direction.
    pub course: Course,
    /// The number of further requests known to continue a run.
    pub requests: u64,
    /// Their length.
    pub sectors: u64,
    /// This request made it a run.
    pub new_run: bool,
    /// Two runs turned out to be one.
    pub joined_run: bool,
    /// Other runs, of any operation, that had a request since this one's last.
    pub depth: usize,
    /// The same for this operation only.
    pub depth_of_op: usize,
    /// Distance between the first sectors, where it is constant.
    pub stride_sectors: Option<i64>,
}

/// The runs.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    runs: Vec<Run>,
    index: Index,
    requests: u64,
}

/// What a search over all chains compares, by the position of the chain in [`Runs`]. Sectors are
/// modulo 2^32, so that the processor compares several at once: they find all chains that a
/// request may relate to, and few others.
#[derive(Clone, Debug)]
struct Index {
    firsts: [u32; PLACES],
    ends: [u32; PLACES],
    /// Where a request at the same distance as the last one begins.
    nexts: [u32; PLACES],
    /// [`Run::seen`], of runs with [`Index::IS_RUN`]; 0 without a chain.
    seen: [u64; PLACES],
    /// Where the sectors above are: most random requests are not near any of them.
    regions: Regions,
    /// Candidates and runs by the time of their last request.
    candidates: Recency,
    runs: Recency,
}

/// The relation of a request to the chains.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Found {
    /// The chain that it continues.
    continued: Option<usize>,
    /// One whose last request began at the same place.
    same: Option<usize>,
    /// The distance from the nearest candidate, if that can be a stride.
    stride: Option<i64>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    op: Op,
    /// First sector of its first request.
    origin: i64,
    /// First sector of its last request.
    first: i64,
    /// First sector behind its last request.
    end: i64,
    /// Its direction; `None` for a single request.
    course: Option<Course>,
    /// The distance between its last two requests, if it may be a stride.
    stride: Option<i64>,
    requests: u64,
    /// Length of all requests but the first.
    sectors: u64,
    /// Number of its last request.
    seen: u64,
}

impl Run {
    fn is_run(&self) -> bool {
        self.requests >= RUN_MIN
    }

    /// Requests and sectors that are known to continue it.
    fn known(&self) -> (u64, u64) {
        match self.is_run() {
            true => (self.requests - 1, self.sectors),
            false => (0, 0),
        }
    }

    /// The direction in which a request would continue it.
    fn course_of(&self, first: i64, sectors: i64) -> Option<Course> {
        let step = first - self.first;
        let fits = |course| self.course.is_none_or(|c| c == course);
        match () {
            () if first == self.end && fits(Course::Forward) => Some(Course::Forward),
            () if first + sectors == self.first && fits(Course::Backward) => Some(Course::Backward),
            () if self.stride != Some(step) || step == 0 => None,
            () if step < 0 && fits(Course::Backward) => Some(Course::Backward),
            () if step > 0 && fits(Course::Strided) => Some(Course::Strided),
            () => None,
        }
    }
}

impl Default for Index {
    fn default() -> Index {
        Index {
            firsts: [0; PLACES],
            ends: [0; PLACES],
            nexts: [0; PLACES],
            seen: [0; PLACES],
            regions: Regions::default(),
            candidates: Recency::default(),
            runs: Recency::default(),
        }
    }
}

impl Index {
    /// Above the number of any request.
    const IS_RUN: u64 = 1 << 56;

    /// Entries that are compared at once.
    const BLOCK: usize = 16;

    /// Stores a chain that had the last request.
    fn set(&mut self, at: usize, run: &Run) {
        self.clear(at);
        self.firsts[at] = run.first as u32;
        self.ends[at] = run.end as u32;
        self.nexts[at] = (run.first + run.stride.unwrap_or(0)) as u32;
        self.seen[at] = run.seen | if run.is_run() { Index::IS_RUN } else { 0 };
        for sector in self.sectors(at) {
            self.regions.add(sector);
        }
        self.list(at).push(at);
    }

    /// Removes a chain.
    fn clear(&mut self, at: usize) {
        if self.seen[at] != 0 {
            for sector in self.sectors(at) {
                self.regions.remove(sector);
            }
            self.list(at).remove(at);
            self.seen[at] = 0;
        }
    }

    /// Moves a chain to a place without one.
    fn rename(&mut self, from: usize, to: usize) {
        for sectors in [&mut self.firsts, &mut self.ends, &mut self.nexts] {
            sectors[to] = sectors[from];
        }
        self.list(from).rename(from, to);
        self.seen[to] = std::mem::take(&mut self.seen[from]);
    }

    /// The sectors of a chain.
    fn sectors(&self, at: usize) -> [u32; 3] {
        [self.firsts[at], self.ends[at], self.nexts[at]]
    }

    /// The list of a chain.
    fn list(&mut self, at: usize) -> &mut Recency {
        match self.seen[at] & Index::IS_RUN {
            0 => &mut self.candidates,
            _ => &mut self.runs,
        }
    }

    /// The oldest candidate, or the oldest chain if there are few candidates; `None` without
    /// chains.
    fn oldest(&self) -> Option<usize> {
        let (candidate, run) = (self.candidates.oldest(), self.runs.oldest());
        let (Some(of_candidates), Some(of_runs)) = (candidate, run) else {
            return candidate.or(run);
        };
        let has_candidates = PLACES - self.runs.len() >= BEGINNINGS_MIN;
        let is_older = self.seen[of_candidates] < self.seen[of_runs] & !Index::IS_RUN;
        match has_candidates || is_older {
            true => candidate,
            false => run,
        }
    }

    /// The blocks with a chain that the request may continue or repeat, or that begins at most
    /// [`STRIDE_SECTORS_MAX`] from it.
    fn blocks(&self, first: i64, sectors: i64) -> impl Iterator<Item = Range<usize>> + '_ {
        let (end, first) = ((first + sectors) as u32, first as u32);
        // A power of two above the stride, so that a shift compares with both ends of the range.
        const NEAR: u32 = (STRIDE_SECTORS_MAX as u32 + 1).next_power_of_two();
        let may_relate = move |at: usize| {
            let distance = first.wrapping_sub(self.firsts[at]).wrapping_add(NEAR);
            (distance / (2 * NEAR) == 0)
                | (self.firsts[at] == end)
                | (self.ends[at] == first)
                | (self.nexts[at] == first)
        };
        let blocks = (0..PLACES).step_by(Index::BLOCK);
        let blocks = blocks.map(|from| from..from + Index::BLOCK);
        blocks.filter(move |block| block.clone().fold(false, |any, at| any | may_relate(at)))
    }
}

impl Runs {
    /// Adds a request.
    pub fn take(&mut self, op: Op, first: i64, sectors: i64) -> RunPosition {
        self.requests += 1;
        let found = self.find(op, first, sectors);
        if let Some(at) = found.continued {
            return RunPosition {
                continued: Some(self.go_on(at, first, sectors)),
                repeated: false,
            };
        }
        match found.same {
            Some(at) => {
                let run = &mut self.runs[at];
                run.seen = self.requests;
                run.end = first.saturating_add(sectors);
                self.index.set(at, run);
            }
            None => self.begin(op, first, sectors, found.stride),
        }
        RunPosition {
            continued: None,
            repeated: found.same.is_some(),
        }
    }

    /// The relation of a request to the chains.
    fn find(&self, op: Op, first: i64, sectors: i64) -> Found {
        if !self.index.regions.may_have_any(first, first + sectors) {
            return Found::default();
        }
        let chains = self.index.blocks(first, sectors).flatten();
        self.look_for(op, first, sectors, chains)
    }

    /// The relation of a request to the chains at these positions, which ascend.
    fn look_for(
        &self,
        op: Op,
        first: i64,
        sectors: i64,
        chains: impl Iterator<Item = usize>,
    ) -> Found {
        let mut found = Found::default();
        let mut best = None;
        let mut nearest = STRIDE_SECTORS_MAX + 1;
        for (at, run) in chains.map_while(|at| Some((at, self.runs.get(at)?))) {
            if run.op != op {
                continue;
            }
            if let Some(course) = run.course_of(first, sectors) {
                // Forward first, then the longest.
                let merit = Some((course == Course::Forward, run.requests, run.seen));
                if merit > best {
                    (best, found.continued) = (merit, Some(at));
                }
            }
            if run.first == first {
                found.same = Some(at);
            }
            let distance = first.abs_diff(run.first);
            if distance < nearest && !run.is_run() {
                (nearest, found.stride) = (distance, Some(first - run.first));
            }
        }
        found
    }

    fn go_on(&mut self, at: usize, first: i64, sectors: i64) -> Continued {
        let before = self.runs[at];
        let course = before
            .course_of(first, sectors)
            .expect("it was found by its course");
        let since = before.seen | Index::IS_RUN;
        let others = self.runs.iter().zip(&self.index.seen);
        let others = others.filter(|(_, seen)| **seen > since);
        let (depth, depth_of_op) = others.fold((0, 0), |(depth, of_op), (run, _)| {
            (depth + 1, of_op + usize::from(run.op == before.op))
        });
        let run = &mut self.runs[at];
        let step = first - run.first;
        run.course = Some(course);
        run.stride = Some(step);
        run.first = first;
        run.end = first.saturating_add(sectors);
        run.requests += 1;
        run.sectors += sectors.max(0) as u64;
        run.seen = self.requests;
        let constant = before.stride == Some(step) && course != Course::Forward;
        let mut known = before.known();
        let mut joined_run = false;
        let mut at = at;
        if let Some((next, other)) = self.joined(at, course) {
            let more = other.known();
            known = (known.0 + more.0, known.1 + more.1);
            joined_run = other.is_run() && before.is_run();
            self.remove(next);
            // The last chain has moved to the place of the removed one.
            at = if at == self.runs.len() { next } else { at };
        }
        let run = &self.runs[at];
        self.index.set(at, run);
        let now = run.known();
        Continued {
            course,
            requests: now.0 - known.0,
            sectors: now.1 - known.1,
            new_run: run.is_run() && known.0 == 0,
            joined_run,
            depth,
            depth_of_op,
            stride_sectors: constant.then_some(step),
        }
    }

    /// Requests are not always issued in sector order: adds the chain that starts where run `at`
    /// now ends, which is its continuation, and returns it with its position.
    fn joined(&mut self, at: usize, course: Course) -> Option<(usize, Run)> {
        let run = self.runs[at];
        let follows = |r: &Run| {
            let forward = r.course.is_none_or(|c| c == Course::Forward);
            r.op == run.op && r.origin == run.end && r.seen != run.seen && forward
        };
        if course != Course::Forward {
            return None;
        }
        let next = self.runs.iter().position(follows)?;
        let other = self.runs[next];
        let run = &mut self.runs[at];
        run.end = other.end;
        run.first = other.first;
        run.requests += other.requests;
        // The first request of the other chain continues this run as well.
        let first = match other.course {
            None => other.end - other.origin,
            Some(_) => 0,
        };
        run.sectors += other.sectors + first.max(0) as u64;
        Some((next, other))
    }

    /// Stores a request as a candidate, with the distance from the nearest one.
    fn begin(&mut self, op: Op, first: i64, sectors: i64, stride: Option<i64>) {
        if self.runs.len() == PLACES
            && let Some(oldest) = self.index.oldest()
        {
            self.remove(oldest);
        }
        let run = Run {
            op,
            origin: first,
            first,
            end: first.saturating_add(sectors),
            course: None,
            stride,
            requests: 1,
            sectors: 0,
            seen: self.requests,
        };
        self.index.set(self.runs.len(), &run);
        self.runs.push(run);
    }

    /// Removes a chain; the last one takes its place.
    fn remove(&mut self, at: usize) {
        self.runs.swap_remove(at);
        self.index.clear(at);
        let last = self.runs.len();
        if at < last {
            self.index.rename(last, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests of streams that go forward, backward and with gaps, and random ones.
    struct Load {
        random: fastrand::Rng,
        streams: Vec<(i64, i64)>,
        noise: f64,
    }

    impl Load {
        fn new(seed: u64) -> Load {
            let mut random = fastrand::Rng::with_seed(seed);
            let steps = [8, 8, -8, 24, 5_000];
            let stream = |at: usize| (random.i64(0..1 << 34), steps[at % steps.len()]);
            Load {
                streams: (0..1 + seed as usize % 40).map(stream).collect(),
                noise: seed as f64 % 5.0 / 5.0,
                random: fastrand::Rng::with_seed(seed),
            }
        }

        fn request(&mut self) -> (Op, i64) {
            let op = self.random.choice([Op::Read, Op::Read, Op::Write]);
            let op = op.expect("there are three");
            if self.random.f64() < self.noise {
                return (op, self.random.i64(0..1 << 16));
            }
            let stream = self.random.usize(0..self.streams.len());
            let (first, step) = &mut self.streams[stream];
            *first = (*first + *step).max(0);
            (op, *first)
        }
    }

    /// The chain to be removed next, of all.
    fn oldest(runs: &Runs) -> Option<usize> {
        let candidates = runs.runs.iter().filter(|run| !run.is_run()).count();
        let spares_runs = PLACES - (runs.runs.len() - candidates) >= BEGINNINGS_MIN;
        let places = (0..runs.runs.len()).map(|at| (&runs.runs[at], at));
        let oldest = places.min_by_key(|(run, _)| (spares_runs && run.is_run(), run.seen));
        oldest.map(|(_, at)| at)
    }

    #[test]
    fn the_index_finds_what_a_search_of_all_chains_finds() {
        let mut continued = 0;
        for seed in 0..100 {
            let (mut runs, mut load) = (Runs::default(), Load::new(seed));
            for _ in 0..1_000 {
                let (op, first) = load.request();
                let found = runs.find(op, first, 8);
                let all = runs.look_for(op, first, 8, 0..runs.runs.len());
                assert_eq!(found, all, "seed {seed}");
                continued += usize::from(found.continued.is_some());
                runs.take(op, first, 8);
                assert_eq!(runs.index.oldest(), oldest(&runs), "seed {seed}");
            }
        }
        assert!(continued > 10_000, "{continued}");
    }

    #[test]
    fn the_oldest_candidate_is_removed_unless_there_are_few() {
        let mut runs = Runs::default();
        // 65 runs of four requests, then 63 candidates: the oldest chain is a run.
        let of_runs = (0..65).flat_map(|run| (0..4).map(move |at| run * 1_000_000 + at * 8));
        let random = |at: i64| 1_000_000_000 + at * 1_000_000;
        for first in of_runs.chain((0..63).map(random)) {
            runs.take(Op::Read, first, 8);
        }
        runs.take(Op::Read, random(63), 8);
        assert!(runs.runs.iter().all(|run| run.origin != 0));
        // 64 candidates now: the oldest of them goes.
        runs.take(Op::Read, random(64), 8);
        assert!(runs.runs.iter().all(|run| run.origin != random(0)));
        assert_eq!(runs.runs.iter().filter(|run| run.is_run()).count(), 64);
    }
}
