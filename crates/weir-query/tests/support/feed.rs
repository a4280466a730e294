//! The input of an engine, event by event, and ways to cut it into batches, heartbeats and steps.

use fastrand::Rng;
use weir_query::Plan;

use super::history::{Element, History};

/// An event of a source, which is given by its position.
#[derive(Clone, Debug)]
pub enum Event {
    /// A row is inserted or retracted.
    Row(usize, Element),
    /// A heartbeat: no more rows at or before the instant, from one source or from every one.
    Heartbeat(Option<usize>, i64),
}

/// An action on an engine.
#[derive(Clone, Debug)]
pub enum Action {
    /// Pushes rows of a source, in timestamp order.
    Push(usize, Vec<Element>),
    /// Sets the watermark of a source.
    Heartbeat(usize, i64),
    /// Steps as far as all inputs allow.
    Step,
}

/// Pseudo-random numbers, for cuts that can be repeated from their seed.
pub struct Random(Rng);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(Rng::with_seed(seed))
    }

    /// A number below `limit`, which is at least 1.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0.u64(..limit)
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// The watermarks of sources by their rows and heartbeats: rows up to there are late.
#[derive(Clone, Debug)]
pub struct Watermarks(Vec<i64>);

impl Watermarks {
    /// Before the first instant.
    pub fn new(sources: usize) -> Watermarks {
        Watermarks(vec![i64::MIN; sources])
    }

    /// Rows of `source` at or before this instant are late.
    pub fn of(&self, source: usize) -> i64 {
        self.0[source]
    }

    /// Whether a row is in time. If so, more rows of the same instant may follow.
    pub fn row(&mut self, source: usize, ts: i64) -> bool {
        let in_time = ts > self.0[source];
        self.heartbeat(source, ts - 1);
        in_time
    }

    /// A heartbeat: no more rows at or before `ts`.
    pub fn heartbeat(&mut self, source: usize, ts: i64) {
        self.0[source] = self.0[source].max(ts);
    }
}

/// The input of the sources that `plan` reads, without late rows. Time ends with the last of their
/// rows, or where heartbeats of all of them have advanced it.
pub fn history(feed: &[Event], names: &[String], plan: &Plan) -> History {
    let reads = |name: &String| {
        let sources = plan.sources();
        sources.iter().any(|d| d.name.eq_ignore_ascii_case(name))
    };
    let used: Vec<usize> = (0..names.len()).filter(|s| reads(&names[*s])).collect();
    let mut rows: Vec<Vec<Element>> = vec![vec![]; names.len()];
    let mut watermarks = Watermarks::new(names.len());
    for event in feed {
        match event {
            Event::Row(source, element) => {
                if watermarks.row(*source, element.ts) {
                    rows[*source].push(element.clone());
                }
            }
            Event::Heartbeat(source, ts) => {
                let named = (0..names.len()).filter(|s| source.is_none_or(|named| named == *s));
                named.for_each(|s| watermarks.heartbeat(s, *ts));
            }
        }
    }
    let mut history = History::new(used.iter().map(|s| (names[*s].clone(), rows[*s].clone())));
    let now = used.iter().map(|s| watermarks.of(*s)).min();
    history.begin = begin(feed);
    let end = history.end.max(now.unwrap_or(i64::MIN));
    history.end = end.max(history.begin.unwrap_or(i64::MIN));
    history
}

/// The first instant of any event.
pub fn begin(feed: &[Event]) -> Option<i64> {
    let named = feed.iter().map(|event| match event {
        Event::Row(_, element) => element.ts,
        Event::Heartbeat(_, ts) => *ts,
    });
    named.min()
}

/// One batch per source from one heartbeat to the next.
pub fn whole(feed: &[Event], sources: usize) -> Vec<Action> {
    segments(feed, sources)
        .into_iter()
        .flat_map(|segment| {
            let rows = segment.rows.into_iter().enumerate();
            let pushes = rows.map(|(source, rows)| Action::Push(source, rows));
            pushes.chain(segment.heartbeats).chain([Action::Step])
        })
        .collect()
}

/// Small batches cut anywhere, sources ahead of each other, with heartbeats and steps in between.
pub fn cut(feed: &[Event], sources: usize, random: &mut Random) -> Vec<Action> {
    let mut actions = Vec::new();
    for segment in segments(feed, sources) {
        let mut rest: Vec<&[Element]> = segment.rows.iter().map(Vec::as_slice).collect();
        while rest.iter().any(|rows| !rows.is_empty()) {
            let source = random.below(sources as u64) as usize;
            let most = rest[source].len().min(4) as u64;
            let (now, later) = rest[source].split_at(random.below(most + 1) as usize);
            rest[source] = later;
            if !now.is_empty() {
                actions.push(Action::Push(source, now.to_vec()));
            }
            if let Some(next) = later.first()
                && random.once_in(3)
            {
                // The heartbeat may be anywhere before the next row.
                let back = random.below(3) as i64;
                actions.push(Action::Heartbeat(source, next.ts - 1 - back));
            }
            if random.once_in(3) {
                actions.push(Action::Step);
            }
        }
        actions.extend(segment.heartbeats);
        actions.push(Action::Step);
    }
    actions
}

/// Rows between the heartbeats of the test.
struct Segment {
    /// By source.
    rows: Vec<Vec<Element>>,
    /// The heartbeats that follow.
    heartbeats: Vec<Action>,
}

fn segments(feed: &[Event], sources: usize) -> Vec<Segment> {
    let empty = || Segment {
        rows: vec![vec![]; sources],
        heartbeats: vec![],
    };
    let mut segments = vec![empty()];
    for event in feed {
        match event {
            Event::Row(source, element) => {
                if segments.last().is_some_and(|s| !s.heartbeats.is_empty()) {
                    segments.push(empty());
                }
                let last = segments.last_mut().expect("there is always one");
                last.rows[*source].push(element.clone());
            }
            Event::Heartbeat(source, ts) => {
                let last = segments.last_mut().expect("there is always one");
                let named = (0..sources).filter(|s| source.is_none_or(|named| named == *s));
                let heartbeats = named.map(|s| Action::Heartbeat(s, *ts));
                last.heartbeats.extend(heartbeats);
            }
        }
    }
    segments
}
