//! Random queries that come and go while data flows: each gives what it would give alone, from its
//! birth on.

use proptest::collection::vec;
use proptest::prelude::*;

use super::choices::Choices;
use super::{Query, agree, config, data, engine, listing, names, numbers};
use crate::support::feed::{self, Action, Frontier, Random};
use crate::support::history::{Element, History};

/// Queries that fail once a row makes them.
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
    fn queries_that_come_and_go_do_not_disturb_each_other(
        texts in vec(numbers(0..60), 2..5),
        data in numbers(20..220),
        seed in any::<u64>(),
    ) {
        let feed = data::feed(&mut Choices::new(&data));
        let mut random = Random(seed);
        let actions = feed::cut(&feed, 3, &mut random);
        let mut lives = lives(&texts, actions.len() as u64, &mut random);

        let begin = feed::begin(&feed);
        let mut run = engine(&mut random);
        run.begin(begin);
        data::catalog().declarations.iter().for_each(|d| run.engine.declare(d));
        // A query that fails sooner or later, and shares what it can with the others until then.
        let poison = Query::compile(POISON[random.below(POISON.len() as u64) as usize]);
        let sip = random.below(2 * actions.len() as u64 + 1) as usize;
        let mut input = Input::default();
        for i in 0..=actions.len() {
            for life in &mut lives {
                if life.begin == i {
                    let now = run.engine.now();
                    life.birth = input.birth(&life.query, now);
                    life.id = Some(run.add(&life.query.plan));
                }
                if let Some(id) = life.id && life.end == i {
                    life.upto = Some(run.engine.now());
                    run.remove(id);
                }
            }
            if sip == i {
                input.birth(&poison, run.engine.now());
                run.add(&poison.plan);
            }
            if let Some(action) = actions.get(i) {
                input.act(action);
                run.act(std::slice::from_ref(action));
            }
        }
        run.finish();

        for life in &lives {
            // Other queries may read sources that go on for longer.
            let history = input.since(&life.birth, begin, life.upto.unwrap_or(run.engine.now()));
            let expected = life.query.expected(&history);
            let id = life.id.expect("every life begins");
            let result = agree(&expected, run.query(id));
            prop_assert!(
                result.is_ok(),
                "{} (since {:?}, up to {:?})\n{}{}\n{actions:?}",
                life.query.text, life.birth, life.upto, result.unwrap_err(), listing(&feed)
            );
        }
    }
}

/// A query, when it comes and when it goes, in actions and in instants.
struct Life {
    query: Query,
    begin: usize,
    end: usize,
    id: Option<usize>,
    birth: Vec<Birth>,
    upto: Option<i64>,
}

/// What a query finds of a source.
#[derive(Debug)]
struct Birth {
    /// The last complete instant at its birth.
    now: i64,
    /// Rows up to this instant are before its time.
    after: i64,
    /// How many rows had come.
    rows: usize,
}

/// The first query lives for all of the run, the others for a random part; often they are the same
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
            birth: vec![],
            upto: None,
        }
    };
    texts.iter().enumerate().map(&mut life).collect()
}

/// What came in, without what came too late.
struct Input {
    frontier: Frontier,
    /// By source.
    rows: Vec<Vec<Element>>,
}

impl Default for Input {
    fn default() -> Input {
        Input {
            frontier: Frontier::new(3),
            rows: vec![vec![]; 3],
        }
    }
}

impl Input {
    fn act(&mut self, action: &Action) {
        match action {
            Action::Push(source, rows) => {
                for row in rows {
                    if self.frontier.row(*source, row.ts) {
                        self.rows[*source].push(row.clone());
                    }
                }
            }
            Action::Heartbeat(source, ts) => self.frontier.heartbeat(*source, *ts),
            Action::Step => {}
        }
    }

    /// What a query finds that comes at `now`. From here on its sources cannot send rows for the
    /// time before.
    fn birth(&mut self, query: &Query, now: i64) -> Vec<Birth> {
        for (source, name) in names().iter().enumerate() {
            if query.plan.sources().iter().any(|d| d.name == *name) {
                self.frontier.heartbeat(source, now);
            }
        }
        let birth = |source: usize| Birth {
            now,
            after: self.frontier.of(source).max(now),
            rows: self.rows[source].len(),
        };
        (0..3).map(birth).collect()
    }

    /// What happens in the life of a query: the rows after its birth, and first of all what the
    /// relation held then.
    fn since(&self, births: &[Birth], begin: Option<i64>, end: i64) -> History {
        let later = |source: usize| {
            let (rows, birth) = (&self.rows[source], &births[source]);
            let mut elements = Vec::new();
            if source == RELATION {
                let before = rows[..birth.rows].iter().filter(|e| e.ts <= birth.after);
                elements.extend(before.map(|e| Element {
                    ts: birth.after.saturating_add(1),
                    ..e.clone()
                }));
            }
            elements.extend(rows.iter().filter(|e| e.ts > birth.after).cloned());
            (names()[source].clone(), elements)
        };
        let mut history = History::new((0..3).map(later));
        history.end = end;
        history.begin = match births[0].now {
            i64::MIN => begin,
            now => Some(now + 1),
        };
        history
    }
}
