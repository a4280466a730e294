//! [`Trial`]: blocks with the present settings and with those of candidates, in random order, on
//! the live load.
//!
//! ```text
//! round: present, control and each candidate, shuffled
//! block: set the settings | settle, discarded | measure
//! ```
//!
//! A trial is aborted when a watched 99th percentile exceeds a multiple of what was observed before
//! the first change. It does not restore the settings: the caller does, however it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde::Serialize;
use weir_runtime::failure::Failure;
use weir_runtime::output;
use weir_runtime::quantity;
use weir_runtime::run_loop::Stop;

use crate::candidate::{TrialSlot, TuneCandidate, order};
use crate::clock::TrialClock;
use crate::guest::client::GuestSession;
use crate::measure::{Measurement, SLICE_NS, SliceLog};
use crate::metric::{Objective, REQUESTS_MIN, TuneCondition, of_subject};
use crate::price::{self, Price};
use crate::queue::{QueueSession, QueueState, SysfsQueue};
use crate::replay::player::ReplayLoad;
use crate::statistics::sequential::{InterimAnalysis, analyses};
use crate::statistics::{Decision, NotWorse, Samples, decide, halves, not_worse};

/// How a trial is made.
#[derive(Clone, Debug)]
pub struct TrialOptions {
    /// What is improved.
    pub objective: Objective,
    /// The VM whose values count; all requests of the disk without one.
    pub vm: Option<String>,
    /// What must not become worse.
    pub conditions: Vec<TuneCondition>,
    /// The VMs of the disk, for fairness.
    pub vms: Vec<String>,
    /// The number of rounds.
    pub rounds: usize,
    /// The measured part of a block.
    pub block: Duration,
    /// The discarded part of a block.
    pub settle: Duration,
    /// The seed of the order of blocks.
    pub seed: u64,
    /// The factor by which a watched 99th percentile may grow.
    pub abort_factor: f64,
    /// The smallest relative change that counts.
    pub effect_min: f64,
}

/// A measured block.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrialBlock {
    /// Its round, from 1.
    pub round: usize,
    /// Its position in the round, from 1.
    pub position: usize,
    /// Its settings.
    pub slot: TrialSlot,
    /// The requests of the disk in it.
    pub requests: u64,
    /// The value of the objective; `None` with too few requests.
    pub value: Option<f64>,
    /// The values of the conditions.
    pub conditions: Vec<Option<f64>>,
    /// The requests of the others on the disk: each VM that is not the objective's.
    pub others: BTreeMap<String, OtherLoad>,
}

/// What another VM got in a block.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OtherLoad {
    /// The 99th percentile of its latency; `None` with too few requests.
    pub p99_ns: Option<f64>,
    /// Its finished requests per second.
    pub iops: f64,
}

/// How a trial ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialOutcome {
    /// After all rounds.
    Complete,
    /// After an analysis at which the choice was clear.
    Early,
    /// It was aborted, for this reason.
    Aborted(String),
    /// By a signal.
    Signal(i32),
}

/// What was decided, after the last analysis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrialResult {
    /// The comparisons.
    pub decision: Decision,
    /// For each candidate, whether each condition holds, and the change of its value.
    pub conditions: Vec<Vec<(NotWorse, Option<f64>)>>,
    /// The best candidate that is better and for which all conditions hold.
    pub winner: Option<usize>,
    /// For each candidate, the change in the first half of the rounds and in the second one.
    pub halves: Vec<[Option<f64>; 2]>,
    /// For each candidate, what the others on the disk get compared with the present settings.
    pub prices: Vec<Vec<Price>>,
}

/// A trial that runs.
pub struct Trial<'a> {
    /// Its options.
    pub options: &'a TrialOptions,
    /// Its candidates.
    pub candidates: &'a [TuneCandidate],
    /// The blocks so far.
    pub blocks: Vec<TrialBlock>,
    /// The result of the last analysis.
    pub result: Option<TrialResult>,
    session: &'a mut QueueSession<SysfsQueue>,
    measurement: Measurement,
    clock: TrialClock,
    with: TrialWith<'a>,
    /// The watched subjects with the largest 99th percentile that each may have.
    watched: Vec<(Option<String>, f64)>,
}

/// What a trial may have besides a disk under load.
#[derive(Clone, Copy, Debug, Default)]
pub struct TrialWith<'a> {
    /// The load, which restarts with each block if it is a replay.
    pub load: Option<&'a ReplayLoad>,
    /// The guest whose settings are changed as well.
    pub guest: Option<&'a GuestSession>,
}

/// The time over which a watched 99th percentile is computed.
const WATCH_NS: i64 = 2_000_000_000;

/// The part of it that must have passed.
const WATCH_MIN_NS: i64 = 1_000_000_000;

/// The longest delay of a slice.
const SLICE_DELAY: Duration = Duration::from_millis(1_500);

/// The time without any finished request after which a trial is aborted.
const STALLED_NS: i64 = 5_000_000_000;

/// The time within which the measurement begins.
const MEASURED_WITHIN: Duration = Duration::from_secs(60);

/// The watched subjects, each with its largest 99th percentile over [`WATCH_MIN_NS`].
pub fn references(
    log: &SliceLog,
    subjects: &BTreeSet<Option<String>>,
) -> Vec<(Option<String>, f64)> {
    let first = log.slices.first().map_or(0, |slice| slice.end_ns);
    let last = log.end_ns();
    let of_subjects = subjects.iter().filter_map(|subject| {
        let mut largest: Option<f64> = None;
        let mut end = first + WATCH_MIN_NS;
        while end <= last {
            let window = log.between(end - WATCH_MIN_NS, end);
            let totals = of_subject(&window, subject.as_deref());
            if totals.requests >= REQUESTS_MIN {
                let p99 = totals.quantile_ns(0.99, &log.limits);
                largest = largest.into_iter().chain(p99).reduce(f64::max);
            }
            end += SLICE_NS;
        }
        Some((subject.clone(), largest?))
    });
    of_subjects.collect()
}

impl<'a> Trial<'a> {
    /// A trial with the session's settings as the present ones. The clock was started before the
    /// measurement; `references` are those of [`references`].
    pub fn new(
        options: &'a TrialOptions,
        candidates: &'a [TuneCandidate],
        session: &'a mut QueueSession<SysfsQueue>,
        (measurement, clock): (Measurement, TrialClock),
        references: &[(Option<String>, f64)],
        with: TrialWith<'a>,
    ) -> Trial<'a> {
        let watched = references.iter();
        let watched = watched.map(|(vm, p99)| (vm.clone(), p99 * options.abort_factor));
        Trial {
            options,
            candidates,
            session,
            measurement,
            clock,
            with,
            watched: watched.collect(),
            blocks: Vec::new(),
            result: None,
        }
    }

    /// The time of all rounds.
    pub fn length(options: &TrialOptions, candidates: usize) -> Duration {
        let blocks = u32::try_from(options.rounds * (candidates + 2)).unwrap_or(u32::MAX);
        // Switching the scheduler takes some 0.1 s.
        (options.block + options.settle + Duration::from_millis(200)).saturating_mul(blocks)
    }

    /// Runs the rounds.
    ///
    /// # Errors
    /// When the measurement ends or the settings cannot be changed.
    pub fn run(&mut self, stop: &Stop) -> Result<TrialOutcome, Failure> {
        let analyses = analyses(self.options.rounds, crate::statistics::decide::ALPHA);
        let mut random = Rng::with_seed(self.options.seed);
        let all = Trial::length(self.options, self.candidates.len());
        if let Some(end) = self.await_measurement(stop)? {
            return Ok(end);
        }
        let started = Instant::now();
        for round in 1..=self.options.rounds {
            let left = all.saturating_sub(started.elapsed()).as_secs();
            output::notice(format_args!(
                "weir: round {round} of {}, at most {} left",
                self.options.rounds,
                quantity::span_text(Duration::from_secs(left.max(1)))
            ));
            let slots = order(self.candidates.len(), &mut random);
            for (position, slot) in slots.into_iter().enumerate() {
                if let Some(end) = self.block(round, position + 1, slot, stop)? {
                    return Ok(end);
                }
            }
            let analysis = analyses.iter().find(|analysis| analysis.rounds == round);
            if analysis.is_some_and(|analysis| self.decide(analysis)) && round < self.options.rounds
            {
                return Ok(TrialOutcome::Early);
            }
        }
        Ok(TrialOutcome::Complete)
    }

    /// Waits until the disk is measured; how the trial ends, if it ends meanwhile.
    fn await_measurement(&mut self, stop: &Stop) -> Result<Option<TrialOutcome>, Failure> {
        if let Some(load) = self.with.load {
            load.start();
        }
        let started = Instant::now();
        while self.measurement.log.slices.is_empty() {
            if let Some(signal) = stop.signal() {
                return Ok(Some(TrialOutcome::Signal(signal)));
            }
            if started.elapsed() > MEASURED_WITHIN {
                let reason = "no request finished before the first change".to_owned();
                return Ok(Some(TrialOutcome::Aborted(reason)));
            }
            self.measurement.receive(Duration::from_millis(20))?;
        }
        match self.clock.step() {
            // The tap may have started before or after it.
            Some(_) => Err(Failure::world(
                "the clock was stepped as the measurement began; try again",
            )),
            None => Ok(None),
        }
    }

    /// By how much the clock was stepped during the trial.
    pub fn clock_step_ns(&self) -> Option<i64> {
        self.clock.step()
    }

    /// Measures a block; how the trial ends, if it ends in it.
    fn block(
        &mut self,
        round: usize,
        position: usize,
        slot: TrialSlot,
        stop: &Stop,
    ) -> Result<Option<TrialOutcome>, Failure> {
        let none = QueueState::new();
        let (changes, in_guest) = match slot {
            TrialSlot::Candidate(index) => {
                let candidate = &self.candidates[index];
                (&candidate.settings, &candidate.guest)
            }
            TrialSlot::Present | TrialSlot::Control => (&none, &none),
        };
        if let Some(load) = self.with.load {
            load.pause()?;
        }
        let set = self.session.set(changes);
        set.map_err(|error| Failure::World(error.into()))?;
        if let Some(guest) = self.with.guest {
            guest.set(in_guest)?;
        }
        if let Some(load) = self.with.load {
            load.start();
        }
        let settle = i64::try_from(self.options.settle.as_nanos()).unwrap_or(i64::MAX / 4);
        let block = i64::try_from(self.options.block.as_nanos()).unwrap_or(i64::MAX / 4);
        // Slices end at multiples of their length.
        let slices = |ns: i64| (ns + SLICE_NS - 1) / SLICE_NS * SLICE_NS;
        let start = slices(self.clock.now() + settle);
        let end = start + slices(block);
        if let Some(ended) = self.wait(slot, start, end, stop)? {
            return Ok(Some(ended));
        }
        let window = self.measurement.log.between(start, end);
        let seconds = (end - start) as f64 / 1e9;
        let options = self.options;
        let value = |metric: Objective, vm: Option<&str>| {
            let limits = &self.measurement.log.limits;
            metric.value(&window, vm, &options.vms, seconds, limits)
        };
        let conditions = options.conditions.iter();
        let conditions = conditions.map(|c| value(c.metric, Some(&c.vm))).collect();
        let others = options.vms.iter();
        let others = others.filter(|vm| options.vm.as_ref() != Some(*vm));
        let others = others.map(|vm| {
            let load = OtherLoad {
                p99_ns: value(Objective::P99, Some(vm)),
                iops: of_subject(&window, Some(vm)).requests as f64 / seconds,
            };
            (vm.clone(), load)
        });
        let others = others.collect();
        self.blocks.push(TrialBlock {
            round,
            position,
            slot,
            requests: of_subject(&window, None).requests,
            value: value(options.objective, options.vm.as_deref()),
            conditions,
            others,
        });
        Ok(None)
    }

    /// Receives slices up to `end`, and watches from `start` on.
    fn wait(
        &mut self,
        slot: TrialSlot,
        start: i64,
        end: i64,
        stop: &Stop,
    ) -> Result<Option<TrialOutcome>, Failure> {
        let delay = i64::try_from(SLICE_DELAY.as_nanos()).expect("it is short");
        let gap = self.with.load.map_or(0, |load| load.gap.as_nanos());
        let stalled = STALLED_NS.saturating_add(i64::try_from(gap).unwrap_or(i64::MAX));
        loop {
            self.measurement.receive(Duration::from_millis(20))?;
            if let Some(signal) = stop.signal() {
                return Ok(Some(TrialOutcome::Signal(signal)));
            }
            let (received, now) = (self.measurement.log.end_ns(), self.clock.now());
            if let Some(reason) = unbearable(&self.measurement.log, &self.watched, start, received)
            {
                let reason = format!("with {}, {reason}", self.name(slot));
                return Ok(Some(TrialOutcome::Aborted(reason)));
            }
            if now - received.max(start) > stalled {
                let span = quantity::span_text(Duration::from_nanos(stalled.unsigned_abs()));
                let reason = format!("with {}, no request finished for {span}", self.name(slot));
                return Ok(Some(TrialOutcome::Aborted(reason)));
            }
            if now >= end && (received >= end || now > end + delay) {
                return Ok(None);
            }
        }
    }

    /// The name of the settings of a block.
    pub fn name(&self, slot: TrialSlot) -> String {
        match slot {
            TrialSlot::Present => "the present settings".to_owned(),
            TrialSlot::Control => "the present settings (control)".to_owned(),
            TrialSlot::Candidate(index) => self.candidates[index].name.clone(),
        }
    }

    /// Decides from the blocks so far; true if the trial can end.
    fn decide(&mut self, analysis: &InterimAnalysis) -> bool {
        let direction = self.options.objective.direction();
        let values = samples(&self.blocks, self.candidates.len(), |block| block.value);
        let decision = decide(&values, direction, self.options.effect_min, analysis.level);
        let tests = self.options.conditions.iter().enumerate();
        let by_condition: Vec<Vec<(NotWorse, Option<f64>)>> = tests
            .map(|(number, condition)| {
                let value = |block: &TrialBlock| block.conditions[number];
                let tested = samples(&self.blocks, self.candidates.len(), value);
                let present = [&tested.baseline[..], &tested.control[..]].concat();
                let (direction, limit) = (condition.metric.direction(), condition.limit);
                let tested = tested.candidates.iter();
                let tested = tested.map(|blocks| not_worse(&present, blocks, direction, limit));
                tested.collect()
            })
            .collect();
        let of_candidate = |index: usize| by_condition.iter().map(move |tests| tests[index]);
        let holds = |index| of_candidate(index).all(|(result, _)| result == NotWorse::Holds);
        let winner = decision.winner(direction, holds);
        let is_settled = decision.is_settled(direction, winner);
        let candidates = 0..self.candidates.len();
        self.result = Some(TrialResult {
            conditions: candidates
                .map(|index| of_candidate(index).collect())
                .collect(),
            winner,
            halves: halves(&values),
            decision,
            prices: (0..self.candidates.len())
                .map(|index| price::of_candidate(&self.blocks, index))
                .collect(),
        });
        is_settled
    }

    /// Ends the measurement; what it has reported, such as lost requests.
    pub fn finish(self) -> (Vec<TrialBlock>, Option<TrialResult>, String) {
        (self.blocks, self.result, self.measurement.stop())
    }
}

/// Why the present settings must not remain, by the requests between `start` and `received`.
fn unbearable(
    log: &SliceLog,
    watched: &[(Option<String>, f64)],
    start: i64,
    received: i64,
) -> Option<String> {
    if received - start < WATCH_MIN_NS {
        return None;
    }
    let window = log.between(start.max(received - WATCH_NS), received);
    watched.iter().find_map(|(vm, most)| {
        let totals = of_subject(&window, vm.as_deref());
        let p99 = totals.quantile_ns(0.99, &log.limits)?;
        let is_exceeded = totals.requests >= REQUESTS_MIN && p99 > *most;
        is_exceeded.then(|| {
            let subject = vm.as_ref().map_or("the disk", |vm| vm);
            let (p99, most) = (Objective::P99.text(p99), Objective::P99.text(*most));
            format!("the p99 of {subject} is {p99}; more than {most} ends the trial")
        })
    })
}

/// The logarithms of the values of blocks.
fn samples(
    blocks: &[TrialBlock],
    candidates: usize,
    value: impl Fn(&TrialBlock) -> Option<f64>,
) -> Samples {
    let mut samples = Samples {
        candidates: vec![Vec::new(); candidates],
        ..Samples::default()
    };
    for block in blocks {
        let to = match block.slot {
            TrialSlot::Present => &mut samples.baseline,
            TrialSlot::Control => &mut samples.control,
            TrialSlot::Candidate(index) => &mut samples.candidates[index],
        };
        to.extend(value(block).filter(|value| *value > 0.0).map(f64::ln));
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Slice, SliceTotals, limits};

    /// Slices of 100 requests of VM `mail`, each with this latency.
    fn log(latencies_ns: &[u64]) -> SliceLog {
        let limits = limits(1e3, 1e9);
        let slices = latencies_ns.iter().enumerate().map(|(number, latency)| {
            let limit = *limits.iter().find(|limit| *limit >= latency).unwrap();
            Slice {
                end_ns: (number as i64 + 1) * SLICE_NS,
                vm: Some("mail".to_owned()),
                totals: SliceTotals {
                    requests: 100,
                    bins: BTreeMap::from([(limit, 100)]),
                    ..SliceTotals::default()
                },
            }
        });
        SliceLog {
            slices: slices.collect(),
            limits,
        }
    }

    #[test]
    fn a_doubled_p99_of_a_watched_vm_ends_the_trial() {
        let subjects = BTreeSet::from([Some("mail".to_owned()), Some("idle".to_owned())]);
        let before = references(&log(&[100_000; 30]), &subjects);
        let [(vm, p99)] = &before[..] else {
            panic!("{before:?}");
        };
        assert_eq!(vm.as_deref(), Some("mail"));
        assert!((80_000.0..130_000.0).contains(p99), "{p99}");
        let watched = [(vm.clone(), 2.0 * p99)];
        let test = |latencies: &[u64]| {
            let log = log(latencies);
            unbearable(&log, &watched, 0, log.end_ns())
        };
        assert_eq!(test(&[100_000; 30]), None);
        assert_eq!(test(&[1_000_000; 5]), None, "less than a second");
        let reason = test(&[1_000_000; 30]).unwrap();
        assert!(reason.starts_with("the p99 of mail is "), "{reason}");
        let recovered = [[1_000_000; 20], [100_000; 20]].concat();
        assert_eq!(test(&recovered), None, "only the last two seconds count");
    }

    #[test]
    fn values_of_blocks_belong_to_their_settings() {
        let block = |slot, value| TrialBlock {
            round: 1,
            position: 1,
            slot,
            requests: 100,
            value,
            conditions: Vec::new(),
            others: BTreeMap::new(),
        };
        let blocks = [
            block(TrialSlot::Candidate(1), Some(1.0)),
            block(TrialSlot::Present, Some(std::f64::consts::E)),
            block(TrialSlot::Control, None),
        ];
        let samples = samples(&blocks, 2, |block| block.value);
        assert_eq!(samples.baseline, [1.0]);
        assert_eq!(samples.control, Vec::<f64>::new());
        assert_eq!(samples.candidates, [vec![], vec![0.0]]);
    }
}
