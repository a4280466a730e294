//! [`Board`]: the runs of all rules of a file, whose events come in timestamp order, and the sinks
//! that feed them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use weir_model::Batch;
use weir_sink::{Sink, SinkError, Watermark};

use crate::event::AlertEvent;
use crate::instances::RuleRun;

/// What receives the events of a board.
pub trait AlertConsumer: Send {
    /// An event; in timestamp order, at one instant in the order of the rules.
    ///
    /// # Errors
    /// When it accepts no more.
    fn event(&mut self, event: &AlertEvent) -> Result<(), SinkError>;

    /// All events up to this watermark were given; `rules` are in their state at it.
    ///
    /// # Errors
    /// As [`AlertConsumer::event`].
    fn advance(&mut self, watermark: &Watermark, rules: &[RuleRun]) -> Result<(), SinkError> {
        let _ = (watermark, rules);
        Ok(())
    }

    /// The run has ended; nothing follows.
    ///
    /// # Errors
    /// As [`AlertConsumer::event`].
    fn close(&mut self, rules: &[RuleRun]) -> Result<(), SinkError> {
        let _ = rules;
        self.flush()
    }

    /// Writes out what is buffered.
    ///
    /// # Errors
    /// As [`AlertConsumer::event`].
    fn flush(&mut self) -> Result<(), SinkError> {
        Ok(())
    }
}

/// Identifies a rule of a board.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleId(usize);

/// See the module's documentation.
pub struct Board {
    rules: Vec<RuleRun>,
    /// The number of each rule, in ascending order.
    ids: Vec<RuleId>,
    /// How far each rule was applied.
    watermarks: Vec<i64>,
    rules_ever: usize,
    /// Events after the lowest watermark, with their rules.
    waiting: Vec<(RuleId, AlertEvent)>,
    consumer: Box<dyn AlertConsumer>,
    last: Option<Watermark>,
}

impl Board {
    /// A board of these rules, and the sink for each of them, in the order of the rules.
    pub fn new(
        rules: Vec<RuleRun>,
        consumer: Box<dyn AlertConsumer>,
    ) -> (Arc<Mutex<Board>>, Vec<Box<dyn Sink>>) {
        let board = Arc::new(Mutex::new(Board {
            rules: Vec::new(),
            ids: Vec::new(),
            watermarks: Vec::new(),
            rules_ever: 0,
            waiting: Vec::new(),
            consumer,
            last: None,
        }));
        let rules = rules.into_iter();
        let sinks = rules.map(|run| Board::add(&board, run).1).collect();
        (board, sinks)
    }

    /// Adds a rule, and returns its sink. Events of all rules wait for its first watermark.
    pub fn add(board: &Arc<Mutex<Board>>, run: RuleRun) -> (RuleId, Box<dyn Sink>) {
        let mut this = board.lock().expect("no panic while held");
        let id = RuleId(this.rules_ever);
        this.rules_ever += 1;
        this.rules.push(run);
        this.ids.push(id);
        this.watermarks.push(i64::MIN);
        let board = board.clone();
        (id, Box::new(RuleSink { rule: id, board }))
    }

    /// Removes a rule at `at`: its instances clear.
    ///
    /// # Errors
    /// Those of the consumer.
    pub fn remove(&mut self, rule: RuleId, at: i64) -> Result<(), SinkError> {
        let Some(index) = self.index(rule) else {
            return Ok(());
        };
        let mut run = self.rules.remove(index);
        self.ids.remove(index);
        self.watermarks.remove(index);
        // What waits for other rules happened before that.
        let (mut ended, waiting): (Vec<_>, _) =
            self.waiting.drain(..).partition(|(id, _)| *id == rule);
        self.waiting = waiting;
        run.end(at, &mut |event| ended.push((rule, event)));
        self.pass(ended)
    }

    /// The query of a rule has ended, with the reason: its instances are unknown, and no other rule
    /// waits for it.
    ///
    /// # Errors
    /// Those of the consumer.
    pub fn fail(&mut self, rule: RuleId, why: &str) -> Result<(), SinkError> {
        let Some(index) = self.index(rule) else {
            return Ok(());
        };
        if self.watermarks[index] == i64::MAX {
            // It has failed before.
            return Ok(());
        }
        let run = &mut self.rules[index];
        run.fail(why.to_owned());
        let at = self.watermarks[index].max(self.last.map_or(0, |last| last.at));
        let watermark = Watermark {
            begin: at,
            at: at.saturating_add(1),
            missed: self.last.map_or(0, |last| last.missed),
        };
        let waiting = &mut self.waiting;
        run.advance(&watermark, &mut |event| waiting.push((rule, event)));
        self.watermarks[index] = i64::MAX;
        match self.watermarks.iter().all(|at| *at == i64::MAX) {
            true => {
                let waiting = std::mem::take(&mut self.waiting);
                self.pass(waiting)
            }
            false => Ok(()),
        }
    }

    /// Passes events to the consumer, all of them also after an error, which may be that of a file.
    fn pass(&mut self, mut events: Vec<(RuleId, AlertEvent)>) -> Result<(), SinkError> {
        events.sort_by_key(|(rule, event)| (event.at, *rule));
        let mut passed = Ok(());
        for (_, event) in events {
            passed = passed.and(self.consumer.event(&event));
        }
        passed
    }

    /// What identifies each rule, in the order of [`Board::rules`].
    pub fn ids(&self) -> &[RuleId] {
        &self.ids
    }

    /// The rules in their present state.
    pub fn rules(&self) -> &[RuleRun] {
        &self.rules
    }

    /// The hosts whose rows a rule lacks from now on.
    pub fn set_silent(&mut self, rule: RuleId, hosts: &BTreeSet<String>) {
        if let Some(index) = self.index(rule) {
            self.rules[index].set_silent(hosts);
        }
    }

    /// The last watermark of all rules.
    pub fn watermark(&self) -> Option<Watermark> {
        self.last
    }

    /// Completes the output after the run.
    ///
    /// # Errors
    /// Those of the consumer.
    pub fn close(&mut self) -> Result<(), SinkError> {
        self.consumer.close(&self.rules)
    }

    /// The position of a rule that was not removed.
    fn index(&self, rule: RuleId) -> Option<usize> {
        self.ids.binary_search(&rule).ok()
    }

    fn advance(&mut self, rule: RuleId, watermark: &Watermark) -> Result<(), SinkError> {
        let Some(index) = self.index(rule) else {
            return Ok(());
        };
        let waiting = &mut self.waiting;
        self.rules[index].advance(watermark, &mut |event| waiting.push((rule, event)));
        self.watermarks[index] = watermark.at;
        let lowest = self.watermarks.iter().min().copied();
        if lowest < Some(watermark.at) {
            return Ok(());
        }
        let waiting = std::mem::take(&mut self.waiting);
        let passed = self.pass(waiting);
        self.last = Some(*watermark);
        passed.and(self.consumer.advance(watermark, &self.rules))
    }
}

/// The sink of one rule.
struct RuleSink {
    rule: RuleId,
    board: Arc<Mutex<Board>>,
}

impl RuleSink {
    fn with<T>(&self, run: impl FnOnce(&mut Board) -> T) -> T {
        run(&mut self.board.lock().expect("no panic while held"))
    }

    /// Its run, unless it was removed.
    fn run(&self, with: impl FnOnce(&mut RuleRun)) {
        self.with(|board| {
            if let Some(index) = board.index(self.rule) {
                with(&mut board.rules[index]);
            }
        });
    }
}

impl Sink for RuleSink {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        self.run(|run| run.write(batch));
        Ok(())
    }

    fn advance(&mut self, watermark: &Watermark) -> Result<(), SinkError> {
        self.with(|board| board.advance(self.rule, watermark))
    }

    fn fail(&mut self, error: &str) -> Result<(), SinkError> {
        self.run(|run| run.fail(error.to_owned()));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.with(|board| board.consumer.flush())
    }
}
