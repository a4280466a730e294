//! [`Runs`]: finds the sequential streams among interleaved requests, in a table of fixed size.
//!
//! A **run** is a chain of requests of one operation: each starts where the previous one ended
//! (forward), ends where it started (backward), or is at a constant distance from it (strided).
//! Runs are tracked by position, so interleaving, request lengths and other requests in between do
//! not matter. A chain counts as a run from [`RUN_MIN`] requests on, so that random requests do not
//! form runs by chance.

use weir_model::Op;

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
    requests: u64,
}

/// The relation of a request to the chains.
#[derive(Clone, Copy, Debug, Default)]
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

impl Runs {
    /// Adds a request.
    pub fn take(&mut self, op: Op, first: i64, sectors: i64) -> RunPosition {
        self.requests += 1;
        let found = self.look_for(op, first, sectors);
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
            }
            None => self.begin(op, first, sectors, found.stride),
        }
        RunPosition {
            continued: None,
            repeated: found.same.is_some(),
        }
    }

    /// The relation of a request to the chains, in one pass over them.
    fn look_for(&self, op: Op, first: i64, sectors: i64) -> Found {
        let mut found = Found::default();
        let mut best = None;
        let mut nearest = STRIDE_SECTORS_MAX + 1;
        for (at, run) in self.runs.iter().enumerate() {
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
        let since = |r: &&Run| r.is_run() && r.seen > before.seen;
        let others = self.runs.iter().filter(since);
        let depth_of_op = others.clone().filter(|r| r.op == before.op).count();
        let depth = others.count();
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
        if let Some(other) = self.joined(at, course) {
            let more = other.known();
            known = (known.0 + more.0, known.1 + more.1);
            joined_run = other.is_run() && before.is_run();
        }
        let at = self.runs.iter().position(|r| r.seen == self.requests);
        let run = &self.runs[at.expect("the continued run is stored")];
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

    /// Requests are not always issued in sector order: returns the chain that starts where run `at`
    /// now ends, which is its continuation.
    fn joined(&mut self, at: usize, course: Course) -> Option<Run> {
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
        self.runs.swap_remove(next);
        Some(other)
    }

    /// Stores a request as a candidate, with the distance from the nearest one.
    fn begin(&mut self, op: Op, first: i64, sectors: i64, stride: Option<i64>) {
        if self.runs.len() == PLACES {
            self.evict();
        }
        self.runs.push(Run {
            op,
            origin: first,
            first,
            end: first.saturating_add(sectors),
            course: None,
            stride,
            requests: 1,
            sectors: 0,
            seen: self.requests,
        });
    }

    fn evict(&mut self) {
        let mut beginnings = 0;
        // The oldest entry, and the oldest candidate: when it was seen, and its index.
        let mut oldest = [(u64::MAX, 0); 2];
        for (at, run) in self.runs.iter().enumerate() {
            oldest[0] = oldest[0].min((run.seen, at));
            if !run.is_run() {
                beginnings += 1;
                oldest[1] = oldest[1].min((run.seen, at));
            }
        }
        let spare_runs = beginnings >= BEGINNINGS_MIN;
        self.runs.swap_remove(oldest[usize::from(spare_runs)].1);
    }
}
