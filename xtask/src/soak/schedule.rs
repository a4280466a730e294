//! The order of faults, determined by a seed.

use std::time::Duration;

use anyhow::{Result, bail};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The agent of the host is killed with SIGKILL and started again.
    AgentKilled,
    /// The same with rows that it could not deliver before.
    AgentKilledWhileCut,
    /// The monitor is killed with SIGKILL under load and started again.
    MonitorKilled,
    /// The agent is stopped with SIGSTOP for some time.
    AgentPaused,
    /// The monitor is.
    MonitorPaused,
    /// The tapdisk is; its disk does not respond meanwhile.
    TapdiskPaused,
    /// The host's network drops all packets for some time.
    Partition,
    /// A disk is detached and attached again.
    DiskDetached,
    /// A client of the monitor starts a query and does not read its result.
    ClientStuck,
    /// A scraper of the exporter sends half a request; another one does not read the response.
    ScraperStuck,
    /// Clients start several queries, which end.
    QueryChurn,
}

use FaultKind::*;

/// Every kind, with its name.
const KINDS: [(FaultKind, &str); 11] = [
    (AgentKilled, "agent-killed"),
    (AgentKilledWhileCut, "agent-killed-while-cut"),
    (MonitorKilled, "monitor-killed"),
    (AgentPaused, "agent-paused"),
    (MonitorPaused, "monitor-paused"),
    (TapdiskPaused, "tapdisk-paused"),
    (Partition, "partition"),
    (DiskDetached, "disk-detached"),
    (ClientStuck, "client-stuck"),
    (ScraperStuck, "scraper-stuck"),
    (QueryChurn, "query-churn"),
];

impl FaultKind {
    /// Every kind.
    pub fn all() -> Vec<FaultKind> {
        KINDS.iter().map(|(kind, _)| *kind).collect()
    }

    /// The kind of a name on the command line.
    pub fn named(name: Option<&String>) -> Result<FaultKind> {
        let known = KINDS
            .iter()
            .find(|(_, known)| name.is_some_and(|n| n == known));
        match known {
            Some((kind, _)) => Ok(*kind),
            None => {
                let names: Vec<&str> = KINDS.iter().map(|(_, name)| *name).collect();
                bail!("--fault needs one of {}", names.join(", "))
            }
        }
    }

    /// Whether a process ends by it.
    fn kills(self) -> bool {
        matches!(self, AgentKilled | AgentKilledWhileCut | MonitorKilled)
    }
}

/// A fault that is due.
#[derive(Clone, Debug)]
pub struct FaultEvent {
    /// What happens.
    pub kind: FaultKind,
    /// The time before it.
    pub gap: Duration,
    /// How long a pause, a partition and the like last.
    pub length: Duration,
    /// Decides between variants.
    pub choice: usize,
}

/// The faults of a run: rounds, each with every kind in a random order.
pub struct Schedule {
    random: fastrand::Rng,
    gap: Duration,
    length_max: Duration,
    kinds: Vec<FaultKind>,
    round: Vec<FaultKind>,
    rounds: u32,
}

/// The mean time between two faults is this share of the run, within these limits.
const GAPS: u32 = 120;
const GAP: (Duration, Duration) = (Duration::from_millis(600), Duration::from_secs(60));

/// The longest pause is this share of the run, within these limits.
const LENGTHS: u32 = 12;
const LENGTH: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(12));

impl Schedule {
    /// The faults of a run of this length.
    pub fn new(seed: u64, duration: Duration, kinds: &[FaultKind]) -> Schedule {
        Schedule {
            random: fastrand::Rng::with_seed(seed),
            gap: (duration / GAPS).clamp(GAP.0, GAP.1),
            length_max: (duration / LENGTHS).clamp(LENGTH.0, LENGTH.1),
            kinds: kinds.to_vec(),
            round: Vec::new(),
            rounds: 0,
        }
    }

    /// Whether each kind has occurred.
    pub fn has_had_each(&self) -> bool {
        self.rounds > 1 || (self.rounds == 1 && self.round.is_empty())
    }

    /// The next fault. In the second half no process is killed, once each kind has occurred.
    pub fn next(&mut self, is_second_half: bool) -> FaultEvent {
        let only_kills = self.kinds.iter().all(|kind| kind.kills());
        let spared = is_second_half && !only_kills;
        if spared && self.rounds > 1 {
            self.round.retain(|kind| !kind.kills());
        }
        if self.round.is_empty() {
            self.rounds += 1;
            self.round = self.kinds.clone();
            if spared && self.rounds > 1 {
                self.round.retain(|kind| !kind.kills());
            }
            self.random.shuffle(&mut self.round);
            if self.rounds == 1 {
                // Those that kill come first, so that a short run has a second half as well.
                self.round.sort_by_key(|kind| kind.kills());
            }
        }
        let random = &mut self.random;
        FaultEvent {
            gap: self.gap.mul_f64(0.5 + random.f64()),
            length: self.length_max.mul_f64(0.3 + 0.7 * random.f64()),
            choice: random.usize(..),
            kind: self.round.pop().expect("a round has kinds"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_the_faults_and_the_second_half_kills_nothing() {
        let kinds = |seed| {
            let mut schedule = Schedule::new(seed, Duration::from_secs(3_600), &FaultKind::all());
            let next = |n: usize| schedule.next(n >= 30).kind;
            (0..60).map(next).collect::<Vec<_>>()
        };
        assert_eq!(kinds(1), kinds(1));
        assert_ne!(kinds(1), kinds(2));
        let of_first = &kinds(1)[..KINDS.len()];
        assert!(FaultKind::all().iter().all(|kind| of_first.contains(kind)));
        assert!(kinds(1)[30..].iter().all(|kind| !kind.kills()));
    }

    #[test]
    fn a_short_run_has_each_fault_once() {
        let mut schedule = Schedule::new(3, Duration::from_secs(1), &FaultKind::all());
        for _ in KINDS {
            assert!(!schedule.has_had_each());
            schedule.next(true);
        }
        assert!(schedule.has_had_each());
    }
}
