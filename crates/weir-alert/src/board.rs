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

/// See the module's documentation.
pub struct Board {
    rules: Vec<RuleRun>,
    /// How far each rule was applied.
    watermarks: Vec<i64>,
    /// Events after the lowest watermark, with the positions of their rules.
    waiting: Vec<(usize, AlertEvent)>,
    consumer: Box<dyn AlertConsumer>,
    last: Option<Watermark>,
}

impl Board {
    /// A board of these rules, and the sink for each of them, in the order of the rules.
    pub fn new(
        rules: Vec<RuleRun>,
        consumer: Box<dyn AlertConsumer>,
    ) -> (Arc<Mutex<Board>>, Vec<Box<dyn Sink>>) {
        let count = rules.len();
        let board = Arc::new(Mutex::new(Board {
            watermarks: vec![i64::MIN; count],
            rules,
            waiting: Vec::new(),
            consumer,
            last: None,
        }));
        let sink = |rule| -> Box<dyn Sink> {
            Box::new(RuleSink {
                rule,
                board: board.clone(),
            })
        };
        let sinks = (0..count).map(sink).collect();
        (board, sinks)
    }

    /// The rules in their present state.
    pub fn rules(&self) -> &[RuleRun] {
        &self.rules
    }

    /// The hosts whose rows rule number `rule` lacks from now on.
    pub fn set_silent(&mut self, rule: usize, hosts: &BTreeSet<String>) {
        self.rules[rule].set_silent(hosts);
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

    fn advance(&mut self, rule: usize, watermark: &Watermark) -> Result<(), SinkError> {
        let waiting = &mut self.waiting;
        self.rules[rule].advance(watermark, &mut |event| waiting.push((rule, event)));
        self.watermarks[rule] = watermark.at;
        let lowest = self.watermarks.iter().min().copied();
        if lowest < Some(watermark.at) {
            return Ok(());
        }
        let key = |(rule, event): &(usize, AlertEvent)| (event.at, *rule);
        self.waiting.sort_by_key(key);
        for (_, event) in self.waiting.drain(..) {
            self.consumer.event(&event)?;
        }
        self.last = Some(*watermark);
        self.consumer.advance(watermark, &self.rules)
    }
}

/// The sink of one rule.
struct RuleSink {
    rule: usize,
    board: Arc<Mutex<Board>>,
}

impl RuleSink {
    fn with<T>(&self, run: impl FnOnce(&mut Board) -> T) -> T {
        run(&mut self.board.lock().expect("no panic while held"))
    }
}

impl Sink for RuleSink {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        self.with(|board| board.rules[self.rule].write(batch));
        Ok(())
    }

    fn advance(&mut self, watermark: &Watermark) -> Result<(), SinkError> {
        self.with(|board| board.advance(self.rule, watermark))
    }

    fn fail(&mut self, error: &str) -> Result<(), SinkError> {
        self.with(|board| board.rules[self.rule].fail(error.to_owned()));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.with(|board| board.consumer.flush())
    }
}
