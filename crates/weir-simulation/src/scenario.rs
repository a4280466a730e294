//! [`Scenario`]: what happens in a run, drawn from its seed.

use fastrand::Rng;
use weir_model::{NANOS_PER_SECOND, Nanos};
use weir_monitor::MonitorOptions;
use weir_wire::outbox::OutboxCapacity;

use crate::{MS, SECOND};

/// The faults of a scenario, and so what its results are compared with. In all of them connections
/// break, hosts are partitioned, and messages of different connections are reordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Agents end and are killed; results lack exactly the rows that are counted as lost.
    AgentsRestart,
    /// The monitor is killed, agents end in order; no row is lost.
    MonitorRestarts,
    /// Any query, also over relations; agents stay.
    AnyQuery,
    /// The same, and the monitor is killed.
    AnyQueryMonitorRestarts,
    /// Agents are killed, have little room for what waits, and are not waited for: what is missing
    /// is counted, to the row.
    Hasty,
    /// Agents and the monitor are killed, agents are not waited for: nothing is missing that is not
    /// counted.
    HastyMonitorRestarts,
}

/// Every kind, in the order of seeds.
const KINDS: [FaultKind; 6] = [
    FaultKind::AgentsRestart,
    FaultKind::MonitorRestarts,
    FaultKind::AnyQuery,
    FaultKind::AnyQueryMonitorRestarts,
    FaultKind::Hasty,
    FaultKind::HastyMonitorRestarts,
];

impl FaultKind {
    /// True if queries may read relations and keep windows at the agents.
    pub fn has_relations(self) -> bool {
        matches!(
            self,
            FaultKind::AnyQuery | FaultKind::AnyQueryMonitorRestarts
        )
    }

    /// True if the monitor is killed.
    pub fn kills_monitor(self) -> bool {
        matches!(
            self,
            FaultKind::MonitorRestarts
                | FaultKind::AnyQueryMonitorRestarts
                | FaultKind::HastyMonitorRestarts
        )
    }

    /// True if agents are killed.
    pub fn kills_agents(self) -> bool {
        matches!(self, FaultKind::AgentsRestart) || self.is_hasty()
    }

    /// True if agents end in order and begin again.
    pub fn ends_agents(self) -> bool {
        matches!(self, FaultKind::AgentsRestart | FaultKind::MonitorRestarts)
    }

    /// True if agents are not waited for.
    pub fn is_hasty(self) -> bool {
        matches!(self, FaultKind::Hasty | FaultKind::HastyMonitorRestarts)
    }
}

/// What happens in a run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The faults.
    pub kind: FaultKind,
    /// How many hosts there are.
    pub hosts: usize,
    /// For how long faults happen.
    pub duration: Nanos,
    /// The longest that a message is on its way.
    pub latency_max: Nanos,
    /// The longest that a host is partitioned.
    pub partition_max: Nanos,
    /// How long an agent or the monitor is away after a kill, at most.
    pub away_max: Nanos,
    /// The room that agents have for messages.
    pub capacity: OutboxCapacity,
    /// How many disk tasks in a hundred fail.
    pub disk_failures_percent: u32,
    /// How far clocks of hosts are off when they begin, at most, either way.
    pub clock_offset_max: Nanos,
    /// How fast they drift at most, either way, in parts per million.
    pub clock_drift_ppm_max: i64,
    /// How the monitor runs.
    pub options: MonitorOptions,
}

impl Scenario {
    /// The scenario of a seed.
    pub fn draw(seed: u64, random: &mut Rng) -> Scenario {
        let kind = KINDS[(seed % KINDS.len() as u64) as usize];
        let timeout = match kind.is_hasty() {
            true => 400 * MS + random.i64(0..2 * SECOND),
            false => 600 * SECOND,
        };
        let capacity = match kind == FaultKind::Hasty {
            true => OutboxCapacity {
                memory_bytes: random.usize(4..64) << 10,
                disk_bytes: random.u64(0..3) * (16 << 10),
            },
            false => OutboxCapacity {
                memory_bytes: 64 << 20,
                disk_bytes: 0,
            },
        };
        Scenario {
            kind,
            hosts: random.usize(1..=4),
            duration: random.i64(8..16) * NANOS_PER_SECOND,
            latency_max: [MS, 20 * MS, 200 * MS][random.usize(..3)],
            partition_max: random.i64(1..4) * SECOND,
            away_max: random.i64(1..3) * SECOND,
            capacity,
            disk_failures_percent: random.u32(0..20),
            clock_offset_max: random.i64(0..5) * SECOND,
            clock_drift_ppm_max: random.i64(0..200),
            options: MonitorOptions {
                heartbeat: 50 * MS,
                exclude_after: timeout,
                ahead_max: 10 * SECOND,
                agents_max: 100,
                forget_after: 10_000 * SECOND,
                timeout: 5 * SECOND,
                waiting_bytes_max: 64 << 20,
                checkpoint_every: 200 * MS,
                hold_max: 20 * SECOND,
                hold_bytes_max: 16 << 20,
                recovery: timeout,
                ..MonitorOptions::default()
            },
        }
    }
}
