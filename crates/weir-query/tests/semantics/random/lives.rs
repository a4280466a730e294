//! Random queries that start and end while data arrives: each has the result that it would have
//! alone, from its start on.

use proptest::collection::vec;
use proptest::prelude::*;

use super::choices::Choices;
use super::{Query, agree, config, data, engine, listing, names, numbers};
use crate::support::feed::{self, Action, Random, Watermarks};
use crate::support::history::{Element, History};

/// Queries that fail on certain rows.
const POISON: [&str; 3] = [
    "SELECT 9223372036854775807 + b FROM s",
    "SELECT sum(b * 4611686018427387904) FROM s [Range 3 s] GROUP BY a",
    "SELECT x.b FROM s [Range 2 s] AS x, u AS y WHERE x.a = y.a AND x.b * 9223372036854775807 > 0",
];

/// The position of the relation among the sources.
const RELATION: usize = 2;

proptest! {
    #![proptest_config(config())]

    #[test]
    fn starting_and_ending_queries_does_not_change_other_results(
        texts in vec(numbers(0..60), 2..5),
        data in numbers(20..220),
        seed in any::<u64>(),
    ) {
        let feed = data::feed(&mut Choices::new(&data));
        let mut random = Random::new(seed);
        let actions = feed::cut(&feed, 3, &mut random);
        let mut lives = lives(&texts, actions.len() as u64, &mut random);

        let begin = feed::begin(&feed);
        let mut run = engine(&mut random);
        run.begin(begin);
        data::catalog().declarations.iter().for_each(|d| run.engine.declare(d));
        // A query that fails at some point, and shares operators with the others until then.
        let poison = Query::compile(POISON[random.below(POISON.len() as u64) as usize]);
        let sip = random.below(2 * actions.len() as u64 + 1) as usize;
        let mut input = Input::default();
        for i in 0..=actions.len() {
            for life in &mut lives {
                if life.begin == i {
                    let now = run.engine.now();
                    life.source_states = input.source_states(&life.query, now);
                    life.id = Some(run.add(&life.query.plan));
                }
                if let Some(id) = life.id && life.end == i {
                    life.upto = Some(run.engine.now());
                    run.remove(id);
                }
            }
            if sip == i {
                input.source_states(&poison, run.engine.now());
                run.add(&poison.plan);
            }
            if let Some(action) = actions.get(i) {
                input.act(action);
                run.act(std::slice::from_ref(action));
            }
        }
        run.finish();

        for life in &lives {
            // Other queries may read sources that last longer.
            let history = input.since(&life.source_states, begin, life.upto.unwrap_or(run.engine.now()));
            let expected = life.query.expected(&history);
            let id = life.id.expect("every life begins");
            let result = agree(&expected, run.query(id));
            prop_assert!(
                result.is_ok(),
                "{} (since {:?}, up to {:?})\n{}{}\n{actions:?}",
                life.query.text, life.source_states, life.upto, result.unwrap_err(), listing(&feed)
            );
        }
    }
}

/// A query with its start and end, in actions and in instants.
struct Life {
    query: Query,
    begin: usize,
    end: usize,
    id: Option<usize>,
    source_states: Vec<SourceState>,
    upto: Option<i64>,
}

/// The state of a source when a query starts.
#[derive(Debug)]
struct SourceState {
    /// The last complete instant at the start.
    now: i64,
    /// Rows up to this instant precede the query.
    after: i64,
    /// The number of rows that had arrived.
    rows: usize,
}

/// The first query runs from start to end, the others for a random part; often they are the same
/// query as the first.
fn lives(texts: &[Vec<u32>], actions: u64, random: &mut Random) -> Vec<Life> {
    let mut life = |(i, numbers): (usize, &Vec<u32>)| {
        let numbers = if random.once_in(2) {
            &texts[0]
        } else {
            numbers
        };
        let (begin, length) = match i {
            0 => (0, actions + 1),
            _ => (random.below(actions + 1), random.below(actions + 2)),
        };
        Life {
            query: Query::write(numbers),
            begin: begin as usize,
            end: (begin + length) as usize,
            id: None,
            source_states: vec![],
            upto: None,
        }
    };
    texts.iter().enumerate().map(&mut life).collect()
}

/// The input without late rows.
struct Input {
    watermark: Watermarks,
    /// By source.
    rows: Vec<Vec<Element>>,
}

impl Default for Input {
    fn default() -> Input {
        Input {
            watermark: Watermarks::new(3),
            rows: vec![vec![]; 3],
        }
    }
}

impl Input {
    fn act(&mut self, action: &Action) {
        match action {
            Action::Push(source, rows) => {
                for row in rows {
                    if self.watermark.row(*source, row.ts) {
                        self.rows[*source].push(row.clone());
                    }
                }
            }
            Action::Heartbeat(source, ts) => self.watermark.heartbeat(*source, *ts),
            Action::Step => {}
        }
    }

    /// The state of its sources for a query that starts at `now`. From here on its sources cannot
    /// send rows for earlier instants.
    fn source_states(&mut self, query: &Query, now: i64) -> Vec<SourceState> {
        for (source, name) in names().iter().enumerate() {
            if query.plan.sources().iter().any(|d| d.name == *name) {
                self.watermark.heartbeat(source, now);
            }
        }
        let source_states = |source: usize| SourceState {
            now,
            after: self.watermark.of(source).max(now),
            rows: self.rows[source].len(),
        };
        (0..3).map(source_states).collect()
    }

    /// The input during the life of a query: the rows after its start, preceded by the content of
    /// the relation.
    fn since(&self, states: &[SourceState], begin: Option<i64>, end: i64) -> History {
        let later = |source: usize| {
            let (rows, source_states) = (&self.rows[source], &states[source]);
            let mut elements = Vec::new();
            if source == RELATION {
                let before = rows[..source_states.rows]
                    .iter()
                    .filter(|e| e.ts <= source_states.after);
                elements.extend(before.map(|e| Element {
                    ts: source_states.after.saturating_add(1),
                    ..e.clone()
                }));
            }
            elements.extend(rows.iter().filter(|e| e.ts > source_states.after).cloned());
            (names()[source].clone(), elements)
        };
        let mut history = History::new((0..3).map(later));
        history.end = end;
        history.begin = match states[0].now {
            i64::MIN => begin,
            now => Some(now + 1),
        };
        history
    }
}
