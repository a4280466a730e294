//! [`TuneReport`]: what was observed, tried and decided, as text and as JSON.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;
use weir_runtime::quantity;

use crate::candidate::{TrialSlot, TuneCandidate};
use crate::metric::{Objective, TuneCondition};
use crate::observe::{Observation, Relevance};
use crate::price::{Price, PriceChange};
use crate::queue::{QueueRecovery, QueueState};
use crate::replay::report::ReplayReport;
use crate::statistics::{Comparison, ComparisonResult, NotWorse, median};
use crate::trial::{TrialBlock, TrialOutcome, TrialResult};

/// The report of `weir tune`. Times are in nanoseconds if their name ends in `_ns`, shares and
/// changes are relative: 0.1 is 10 %.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TuneReport {
    /// The disk.
    pub device: String,
    /// What is improved.
    pub objective: Objective,
    /// The VM whose values count.
    pub vm: Option<String>,
    /// The settings that were found.
    pub present: QueueState,
    /// What was observed before any change.
    pub observation: Observation,
    /// The settings that can matter and those that cannot.
    pub relevance: Vec<Relevance>,
    /// The candidates.
    pub candidates: Vec<TuneCandidate>,
    /// The replay that is the load, and how faithful it is; `None` for a live load.
    pub replay: Option<ReplayReport>,
    /// The trial, if one was made.
    pub trial: Option<TrialReport>,
    /// Programs and rules that set the queues of disks.
    pub other_writers: Vec<String>,
}

/// The part of the report on a trial.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrialReport {
    /// The number of rounds.
    pub rounds: usize,
    /// The measured part of a block, in seconds.
    pub block_s: f64,
    /// The discarded part of a block, in seconds.
    pub settle_s: f64,
    /// The seed of the order.
    pub seed: u64,
    /// The smallest change that counts.
    pub effect_min: f64,
    /// The conditions.
    pub conditions: Vec<TuneCondition>,
    /// How it ended.
    pub end: TrialOutcome,
    /// All blocks, in the order in which they were measured.
    pub blocks: Vec<TrialBlock>,
    /// The result of the last analysis.
    pub result: Option<TrialResult>,
    /// The candidate that is advised, by its name.
    pub advice: Option<String>,
    /// Its settings of the guest's disk.
    pub guest_settings: Option<QueueState>,
    /// The udev rule that sets it on the host; it is not installed.
    pub udev_rule: Option<String>,
    /// Whether the settings were applied.
    pub applied: bool,
    /// For how long they are applied, in seconds; `None` until the next boot.
    pub lease_s: Option<f64>,
    /// What was restored at the end.
    pub restored: QueueRecovery,
    /// By how much the clock was stepped during the trial, in nanoseconds; blocks are timed by the
    /// monotonic clock.
    pub clock_step_ns: Option<i64>,
    /// What the measurement has reported, such as requests without a completion event.
    pub notes: String,
}

impl TuneReport {
    /// The report as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let vm = self.vm.as_ref();
        let subject = vm.map_or("all requests".to_owned(), |vm| format!("VM {vm}"));
        let (name, device) = (self.objective.name(), &self.device);
        // Writing to a text cannot fail; so in all functions below.
        let _ = writeln!(text, "{device}: {name} of {subject}\n");
        if let Some(replay) = &self.replay {
            let _ = writeln!(text, "{}", replay.text());
        }
        self.observed(&mut text);
        if let Some(trial) = &self.trial {
            self.tried(trial, &mut text);
        }
        if !self.other_writers.is_empty() {
            let _ = writeln!(
                text,
                "\nThese also set queues, and may overwrite a setting:"
            );
            for writer in &self.other_writers {
                let _ = writeln!(text, "  {writer}");
            }
        }
        text
    }

    fn observed(&self, text: &mut String) {
        let seen = &self.observation;
        let rate = seen.requests as f64 / seen.seconds.max(0.1);
        let p99 = seen
            .p99_ns
            .map(|p99| format!(", p99 {}", Objective::P99.text(p99)));
        let seconds = seen.seconds;
        let _ = writeln!(
            text,
            "Observed for {seconds:.0} s: {rate:.0} requests/s{}; scheduler {}",
            p99.unwrap_or_default(),
            self.present.get("scheduler").map_or("unknown", |name| name)
        );
        for relevance in &self.relevance {
            let matters = match relevance.can_matter {
                true => "can matter",
                false => "cannot matter",
            };
            let (setting, reason) = (relevance.setting, &relevance.reason);
            let _ = writeln!(text, "  {setting:<14} {matters:<14} {reason}");
        }
        if self.trial.is_none() {
            let names: Vec<&str> = self.candidates.iter().map(|c| &*c.name).collect();
            let _ = match names.is_empty() {
                true => writeln!(
                    text,
                    "\nNo setting can matter for this load: nothing to try."
                ),
                false => writeln!(
                    text,
                    "\nNothing was changed. To compare {} with the present settings on the live \
                     load, add --try.",
                    names.join(", ")
                ),
            };
        }
    }

    fn tried(&self, trial: &TrialReport, text: &mut String) {
        let rounds = trial
            .blocks
            .iter()
            .map(|block| block.round)
            .max()
            .unwrap_or(0);
        let _ = writeln!(
            text,
            "\n{rounds} of {} rounds of {} blocks: {} s each after {} s to settle; seed {}\n",
            trial.rounds,
            self.candidates.len() + 2,
            trial.block_s,
            trial.settle_s,
            trial.seed
        );
        let mut rows = vec![
            [
                "SETTINGS", "BLOCKS", "MEDIAN", "CHANGE", "INTERVAL", "P", "RESULT",
            ]
            .map(str::to_owned),
        ];
        rows.push(self.row(trial, TrialSlot::Present, None));
        let result = trial.result.as_ref();
        rows.push(self.row(
            trial,
            TrialSlot::Control,
            result.map(|r| &r.decision.control),
        ));
        for index in 0..self.candidates.len() {
            let comparison = result.map(|result| &result.decision.comparisons[index]);
            rows.push(self.row(trial, TrialSlot::Candidate(index), comparison));
        }
        table(&rows, text);
        if let Some(floor) = result.and_then(|result| result.decision.noise_floor) {
            let (floor, least) = (100.0 * floor, 100.0 * trial.effect_min);
            let _ = writeln!(
                text,
                "\nnoise floor {floor:.1} % (equal settings), smallest change that counts \
                 {least:.0} %"
            );
        }
        let _ = writeln!(text, "\n{}", self.conclusion(trial));
        if let Some(rule) = &trial.udev_rule {
            let _ = writeln!(
                text,
                "\nA udev rule for it, which is not installed:\n  {rule}"
            );
        }
        if let Some(settings) = trial.guest_settings.as_ref().filter(|s| !s.is_empty()) {
            let settings = settings
                .iter()
                .map(|(name, value)| format!("{name}={value}"));
            let settings: Vec<String> = settings.collect();
            let _ = writeln!(text, "\nIn the guest: {}", settings.join(", "));
        }
        prices(&self.candidates, result, text);
        if let Some(step) = trial.clock_step_ns {
            let _ = writeln!(
                text,
                "\nThe clock was stepped by {:+.3} s during the trial. Blocks are timed by the \
                 monotonic clock, so that no request belongs to another block.",
                step as f64 / 1e9
            );
        }
        let _ = writeln!(text, "\nAll blocks:");
        let mut rows = vec![["ROUND", "BLOCK", "SETTINGS", "REQUESTS", "VALUE"].map(str::to_owned)];
        rows.extend(trial.blocks.iter().map(|block| {
            [
                block.round.to_string(),
                block.position.to_string(),
                self.name(block.slot),
                block.requests.to_string(),
                self.value(block.value),
            ]
        }));
        table(&rows, text);
        let notes = trial.notes.trim_end();
        if !notes.is_empty() {
            let _ = writeln!(text, "\n{notes}");
        }
    }

    /// The row of the table for the blocks of `slot`.
    fn row(
        &self,
        trial: &TrialReport,
        slot: TrialSlot,
        comparison: Option<&Comparison>,
    ) -> [String; 7] {
        let blocks = trial.blocks.iter().filter(|block| block.slot == slot);
        let values: Vec<f64> = blocks.filter_map(|block| block.value).collect();
        let percent = |change: f64| format!("{:+.1} %", 100.0 * change);
        let limit = |change: Option<f64>| change.map_or_else(|| "unknown".to_owned(), percent);
        let known = comparison.filter(|comparison| comparison.change.is_finite());
        let of = |text: &dyn Fn(&Comparison) -> String| known.map(text).unwrap_or_default();
        let result = match (slot, known.map(|comparison| comparison.verdict)) {
            (TrialSlot::Control, Some(_)) => "control".to_owned(),
            (TrialSlot::Candidate(index), Some(verdict)) => {
                let verdict = match verdict {
                    ComparisonResult::Better => "better",
                    ComparisonResult::Worse => "worse",
                    ComparisonResult::NoDifference => "no difference",
                };
                format!("{verdict}{}", conditions(trial, index))
            }
            _ => String::new(),
        };
        [
            self.name(slot),
            values.len().to_string(),
            self.value((!values.is_empty()).then(|| median(&values))),
            of(&|c| percent(c.change)),
            of(&|c| format!("{} .. {}", limit(c.change_low), limit(c.change_high))),
            of(&|c| format!("{:.4}", c.p_adjusted)),
            result,
        ]
    }

    /// The name of the settings of a block.
    pub fn name(&self, slot: TrialSlot) -> String {
        match slot {
            TrialSlot::Present => "present".to_owned(),
            TrialSlot::Control => "control".to_owned(),
            TrialSlot::Candidate(index) => self.candidates[index].name.clone(),
        }
    }

    fn value(&self, value: Option<f64>) -> String {
        value.map_or_else(|| "-".to_owned(), |value| self.objective.text(value))
    }

    /// The advice in a sentence.
    fn conclusion(&self, trial: &TrialReport) -> String {
        match &trial.end {
            TrialOutcome::Aborted(reason) => {
                return format!("Aborted: {reason}. The settings were restored.");
            }
            TrialOutcome::Signal(_) => {
                return "Interrupted. The settings were restored.".to_owned();
            }
            TrialOutcome::Complete | TrialOutcome::Early => {}
        }
        let result = trial.result.as_ref();
        let winner = result.and_then(|result| Some((result, result.winner?)));
        let Some((result, index)) = winner else {
            return "No difference that counts: keep the present settings.".to_owned();
        };
        let comparison = &result.decision.comparisons[index];
        let percent = |change: Option<f64>| match change {
            Some(change) => format!("{:+.1} %", 100.0 * change),
            None => "unknown".to_owned(),
        };
        let done = match (trial.applied, trial.lease_s) {
            (true, Some(span)) => {
                let span = quantity::span_text(Duration::from_secs_f64(span));
                format!("It is applied for {span}; `weir tune --restore` undoes it.")
            }
            (true, None) => {
                "It is applied until the next boot; `weir tune --restore` undoes it.".to_owned()
            }
            (false, _) => "The settings were restored.".to_owned(),
        };
        let [first, second] = result.halves[index];
        format!(
            "Advice: {}. It changes {} by {} ({} to {}): {} in the first half of the rounds, {} in \
             the second. {done}",
            self.candidates[index].name,
            self.objective.name(),
            percent(Some(comparison.change)),
            percent(comparison.change_low),
            percent(comparison.change_high),
            percent(first),
            percent(second),
        )
    }
}

/// A report as one line of JSON.
///
/// # Errors
/// None: all reports have names of fields as keys.
pub fn json(report: &impl Serialize) -> std::io::Result<String> {
    let json = serde_json::to_string(report).map_err(std::io::Error::from)?;
    Ok(format!("{json}\n"))
}

/// The conditions of a candidate that do not hold or were not shown.
fn conditions(trial: &TrialReport, index: usize) -> String {
    let Some(result) = &trial.result else {
        return String::new();
    };
    let tests = trial.conditions.iter().zip(&result.conditions[index]);
    let failed = tests.filter_map(|(condition, (test, change))| {
        let (vm, metric) = (&condition.vm, condition.metric.name());
        let change = change.map(|change| format!(" ({:+.1} %)", 100.0 * change));
        let change = change.unwrap_or_default();
        match test {
            NotWorse::Holds => None,
            NotWorse::Violated => Some(format!("; {metric} of {vm} is worse{change}")),
            NotWorse::NotShown => Some(format!("; {metric} of {vm} may be worse{change}")),
        }
    });
    failed.collect()
}

/// Writes what other VMs on the disk pay for each candidate, if there are any.
fn prices(candidates: &[TuneCandidate], result: Option<&TrialResult>, text: &mut String) {
    let mut rows =
        vec![["SETTINGS", "VM", "P99", "INTERVAL", "IOPS", "INTERVAL"].map(str::to_owned)];
    let percent = |change: f64| format!("{:+.1} %", 100.0 * change);
    let limit = |limit: Option<f64>| limit.map_or_else(|| "unknown".to_owned(), percent);
    let cells = |change: Option<PriceChange>| match change {
        Some(found) => [
            percent(found.change),
            format!("{} .. {}", limit(found.low), limit(found.high)),
        ],
        None => ["-".to_owned(), String::new()],
    };
    let all = result.map_or(&[][..], |result| &result.prices);
    for (candidate, prices) in candidates.iter().zip(all) {
        rows.extend(prices.iter().map(|Price { vm, p99, iops }| {
            let [p99, p99_interval] = cells(*p99);
            let [iops, iops_interval] = cells(*iops);
            let name = candidate.name.clone();
            [name, vm.clone(), p99, p99_interval, iops, iops_interval]
        }));
    }
    if rows.len() > 1 {
        let _ = writeln!(
            text,
            "\nWhat others on the disk pay or gain, against the present settings:"
        );
        table(&rows, text);
    }
}

/// Writes rows in columns.
pub(crate) fn table<const N: usize>(rows: &[[String; N]], text: &mut String) {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..N).map(|column| width(column).unwrap_or(0)).collect();
    for row in rows {
        let cells = row.iter().zip(&widths);
        let cells: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::statistics::{Direction, Samples, decide, halves};
    use crate::trial::OtherLoad;

    /// A report of a trial with one candidate, for which another VM pays.
    pub fn report() -> TuneReport {
        let slots = [
            (TrialSlot::Present, 100.0, 50.0),
            (TrialSlot::Control, 101.0, 51.0),
            (TrialSlot::Candidate(0), 60.0, 25.0),
        ];
        let mut blocks = Vec::new();
        let mut samples = Samples {
            candidates: vec![Vec::new()],
            ..Samples::default()
        };
        for round in 1..=8 {
            for (position, (slot, value, other)) in slots.into_iter().enumerate() {
                let value = value * 1e3 * (1.0 + 0.01 * round as f64);
                match slot {
                    TrialSlot::Present => samples.baseline.push(value.ln()),
                    TrialSlot::Control => samples.control.push(value.ln()),
                    TrialSlot::Candidate(_) => samples.candidates[0].push(value.ln()),
                }
                let load = OtherLoad {
                    p99_ns: None,
                    iops: other * (1.0 + 0.01 * round as f64),
                };
                blocks.push(TrialBlock {
                    round,
                    position: position + 1,
                    slot,
                    requests: 1_000,
                    value: Some(value),
                    conditions: Vec::new(),
                    others: BTreeMap::from([("mail".to_owned(), load)]),
                });
            }
        }
        let result = TrialResult {
            decision: decide(&samples, Direction::Lower, 0.05, 0.05),
            conditions: vec![Vec::new()],
            winner: Some(0),
            halves: halves(&samples),
            prices: vec![crate::price::of_candidate(&blocks, 0)],
        };
        let settings = QueueState::from([("scheduler".to_owned(), "kyber".to_owned())]);
        TuneReport {
            device: "/dev/sda".to_owned(),
            objective: Objective::P99,
            vm: Some("db".to_owned()),
            present: QueueState::new(),
            observation: Observation::default(),
            relevance: Vec::new(),
            candidates: vec![TuneCandidate {
                name: "kyber".to_owned(),
                settings,
                guest: QueueState::new(),
            }],
            replay: None,
            trial: Some(TrialReport {
                rounds: 8,
                block_s: 5.0,
                settle_s: 1.0,
                seed: 1,
                effect_min: 0.05,
                conditions: Vec::new(),
                end: TrialOutcome::Complete,
                blocks,
                result: Some(result),
                advice: Some("kyber".to_owned()),
                guest_settings: None,
                udev_rule: None,
                applied: false,
                lease_s: None,
                restored: QueueRecovery::default(),
                clock_step_ns: Some(-3_600_000_000_000),
                notes: String::new(),
            }),
            other_writers: Vec::new(),
        }
    }

    #[test]
    fn the_text_has_the_price_and_the_step_of_the_clock() {
        let text = report().text();
        let price = text.lines().find(|line| line.starts_with("kyber     mail"));
        let price = price.unwrap_or_else(|| panic!("{text}"));
        assert!(price.contains("-50."), "{price}");
        assert!(text.contains("stepped by -3600.000 s"), "{text}");
        assert!(text.contains("Advice: kyber."), "{text}");
        let halves = "-40.3 % in the first half of the rounds, -40.3 % in the second";
        assert!(text.contains(halves), "{text}");
    }
}
