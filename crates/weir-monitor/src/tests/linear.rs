//! The monitor's work is linear in the messages of agents, not in agents times queries.

use weir_model::{Batch, Column};
use weir_query::place::fleet::PlacementStrategy;
use weir_wire::AgentMessage;

use super::super::Work;
use super::fleet::{Fleet, Link, START, options};

impl Work {
    /// The difference to the earlier work `before`.
    pub fn since(&self, before: Work) -> Work {
        Work {
            words: self.words - before.words,
            rows: self.rows - before.rows,
            pieces: self.pieces - before.pieces,
            batches: self.batches - before.batches,
            steps: self.steps - before.steps,
            agents_looked_at: self.agents_looked_at - before.agents_looked_at,
            channels_looked_at: self.channels_looked_at - before.channels_looked_at,
        }
    }

    /// The sum of all counts.
    pub fn total(&self) -> u64 {
        let moved = self.steps + self.agents_looked_at + self.channels_looked_at;
        self.words + self.rows + self.pieces + self.batches + moved
    }
}

/// The number of heartbeats of every agent.
const BEATS: usize = 10;

/// The work for these numbers of agents, each with `rows_each` rows per heartbeat, and queries.
/// With `same` all queries read the same fragment, otherwise each reads another one.
fn work(agents: usize, queries: usize, same: bool, rows_each: usize) -> Work {
    let mut fleet = Fleet::new(options());
    for query in 0..queries {
        let least = if same { 0 } else { query };
        let text = format!(
            "SELECT a, count(*) FROM S [Range {} ns] WHERE a >= {least} GROUP BY a",
            100 + query
        );
        fleet.query(&text, PlacementStrategy::Rows);
    }
    let mut links: Vec<Link> = (0..agents)
        .map(|n| fleet.join(&format!("h{n}"), 1))
        .collect();
    for link in &mut links {
        for channel in link.starts() {
            fleet.send(link, AgentMessage::started(channel, START));
        }
    }
    let channel = fleet.monitor.queries().next().expect("one runs").1.channels[0].0;
    fleet.tick(START + 1);
    let before = fleet.monitor.work();
    for beat in 1..=BEATS as i64 {
        let now = START + 10 * beat;
        for link in &mut links {
            if rows_each > 0 {
                let values = Column::ints((0..rows_each as i64).collect::<Vec<i64>>());
                let batch = Batch::stream(vec![now; rows_each], vec![values]);
                fleet.send(link, AgentMessage::Rows { channel, batch });
            }
            fleet.send(link, AgentMessage::Watermark(now));
        }
        fleet.tick(now);
    }
    fleet.monitor.work().since(before)
}

#[test]
fn work_grows_with_words_and_not_with_agents_times_queries() {
    let (few, many) = (10, 1_000);
    for same in [true, false] {
        let one = work(many, 1, same, 5);
        let twenty = work(many, 20, same, 5);
        assert_eq!(one.words, (many * BEATS * 2) as u64);
        assert_eq!(one.rows, (many * BEATS * 5) as u64);
        // The additional work for twenty queries instead of one does not depend on the number of
        // agents.
        let more = twenty.total() - one.total();
        let more_of_few = work(few, 20, same, 5).total() - work(few, 1, same, 5).total();
        assert_eq!(more, more_of_few);
        assert!(more <= (BEATS * 20 * 3) as u64, "{more}");
    }
    // Each additional row adds the work of one row.
    let (five, ten) = (work(many, 20, true, 5), work(many, 20, true, 10));
    assert_eq!(ten.total() - five.total(), (many * BEATS * 5) as u64);
}

#[test]
fn a_beat_of_a_silent_fleet_costs_each_agent_once() {
    let (small, large) = (work(100, 20, true, 0), work(1_000, 20, true, 0));
    let per_agent = (large.total() - small.total()) / (900 * BEATS as u64);
    assert!(per_agent <= 5, "{per_agent}");
}
