//! What goes into an engine, event by event, and ways to cut it into batches, heartbeats and steps.

use weir_query::Plan;

use super::history::{Element, History};

/// Something that happens to a source, which is named by its position.
#[derive(Clone, Debug)]
pub enum Event {
    /// A row comes or goes.
    Row(usize, Element),
    /// No more rows at or before the instant will come, from one source or from every one.
    Heartbeat(Option<usize>, i64),
}

/// Something to do with an engine.
#[derive(Clone, Debug)]
pub enum Action {
    /// Rows for a source, in time order.
    Push(usize, Vec<Element>),
    /// No more rows at or before the instant from this source.
    Heartbeat(usize, i64),
    /// As far as all inputs allow.
    Step,
}

/// A small source of random numbers (splitmix64), for cuts that can be repeated from their seed.
pub struct Random(pub u64);

impl Random {
    /// A number below `limit`, which is at least 1.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// How far sources have come by what they sent and said: rows up to there are too late.
#[derive(Clone, Debug)]
pub struct Frontier(Vec<i64>);

impl Frontier {
    /// Before all time.
    pub fn new(sources: usize) -> Frontier {
        Frontier(vec![i64::MIN; sources])
    }

    /// No row of `source` at or before this instant will count.
    pub fn of(&self, source: usize) -> i64 {
        self.0[source]
    }

    /// Whether a row is in time. If so, more of the same instant may follow.
    pub fn row(&mut self, source: usize, ts: i64) -> bool {
        let in_time = ts > self.0[source];
        self.heartbeat(source, ts - 1);
        in_time
    }

    /// No more rows at or before `ts` will come.
    pub fn heartbeat(&mut self, source: usize, ts: i64) {
        self.0[source] = self.0[source].max(ts);
    }
}

/// What really happened to the sources that `plan` reads: without the rows that come too late. Time
/// ends with the last of their rows, or where heartbeats of all of them have moved it.
pub fn history(feed: &[Event], names: &[String], plan: &Plan) -> History {
    let reads = |name: &String| {
        let sources = plan.sources();
        sources.iter().any(|d| d.name.eq_ignore_ascii_case(name))
    };
    let used: Vec<usize> = (0..names.len()).filter(|s| reads(&names[*s])).collect();
    let mut rows: Vec<Vec<Element>> = vec![vec![]; names.len()];
    let mut frontier = Frontier::new(names.len());
    for event in feed {
        match event {
            Event::Row(source, element) => {
                if frontier.row(*source, element.ts) {
                    rows[*source].push(element.clone());
                }
            }
            Event::Heartbeat(source, ts) => {
                let named = (0..names.len()).filter(|s| source.is_none_or(|named| named == *s));
                named.for_each(|s| frontier.heartbeat(s, *ts));
            }
        }
    }
    let mut history = History::new(used.iter().map(|s| (names[*s].clone(), rows[*s].clone())));
    let now = used.iter().map(|s| frontier.of(*s)).min();
    history.begin = begin(feed);
    let end = history.end.max(now.unwrap_or(i64::MIN));
    history.end = end.max(history.begin.unwrap_or(i64::MIN));
    history
}

/// The first instant that any event names.
pub fn begin(feed: &[Event]) -> Option<i64> {
    let named = feed.iter().map(|event| match event {
        Event::Row(_, element) => element.ts,
        Event::Heartbeat(_, ts) => *ts,
    });
    named.min()
}

/// One batch a source from one heartbeat to the next.
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

/// Small batches cut anywhere, sources ahead of each other, and heartbeats and steps in between.
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
                // Time may stand anywhere before the next row.
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

/// Rows between heartbeats that the test wrote down.
struct Segment {
    /// By source.
    rows: Vec<Vec<Element>>,
    /// Which then follow.
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
