//! [`PairVerdict`]: whether two disks move together, or one slows the other.

use serde::Serialize;
use weir_model::Nanos;

use super::own_load::{EqualLoad, at_equal_own_load};
use crate::analysis::timeline::{Interval, Timeline};
use crate::evidence::{Confidence, Evidence};
use crate::interference;

/// What a correlation means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PairVerdict {
    /// Both rise and fall together; neither slows the other.
    MoveTogether,
    /// One rises when the other falls; neither slows the other.
    MoveOppositely,
    /// The leader's load slows the follower.
    LeaderSlowsFollower,
    /// The follower's load slows the leader; only at lag 0, where their order is arbitrary.
    FollowerSlowsLeader,
    /// The load of each slows the other.
    SlowEachOther,
}

impl PairVerdict {
    /// As text.
    pub fn as_str(self) -> &'static str {
        match self {
            PairVerdict::MoveTogether => "move together",
            PairVerdict::MoveOppositely => "move oppositely",
            PairVerdict::LeaderSlowsFollower => "leader slows follower",
            PairVerdict::FollowerSlowsLeader => "follower slows leader",
            PairVerdict::SlowEachOther => "slow each other",
        }
    }
}

/// The effect of one disk's load on the latency of another one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LoadEffect {
    /// Whether the other disk is slower because of it; `None` where that cannot be assessed.
    pub slows: Option<bool>,
    /// The numbers.
    pub evidence: Vec<Evidence>,
}

/// The verdict on two disks, with the effects of the leader on the follower and in reverse.
pub fn verdict(
    coefficient: f64,
    lag_ns: Nanos,
    leader: &Timeline,
    follower: &Timeline,
) -> (PairVerdict, [LoadEffect; 2]) {
    let forward = effect(&shifted(leader, lag_ns), follower);
    // What happens later is no cause.
    let backward = match lag_ns {
        0 => effect(follower, leader),
        _ => LoadEffect {
            slows: Some(false),
            evidence: Vec::new(),
        },
    };
    let slows = [&forward, &backward].map(|effect| effect.slows == Some(true));
    let verdict = match slows {
        [true, true] => PairVerdict::SlowEachOther,
        [true, false] => PairVerdict::LeaderSlowsFollower,
        [false, true] => PairVerdict::FollowerSlowsLeader,
        [false, false] if coefficient < 0.0 => PairVerdict::MoveOppositely,
        [false, false] => PairVerdict::MoveTogether,
    };
    (verdict, [forward, backward])
}

/// The load of `disturber` against the latency of `victim`: at equal load of its own where that
/// can be compared, else as [`interference`] compares active with idle intervals.
fn effect(disturber: &Timeline, victim: &Timeline) -> LoadEffect {
    let equal = at_equal_own_load(victim, disturber);
    let compared = interference::effect(victim, disturber, &[]);
    let mut evidence = equal.as_ref().map_or(Vec::new(), EqualLoad::evidence);
    let by_activity = compared.as_ref().map(|found| {
        let found = found.as_ref();
        found.is_some_and(|effect| effect.confidence >= Confidence::Moderate)
    });
    evidence.extend(compared.flatten().into_iter().flat_map(|e| e.evidence));
    LoadEffect {
        slows: equal.map(|equal| equal.is_slower()).or(by_activity),
        evidence,
    }
}

/// The same activity, later by `lag_ns`.
fn shifted(timeline: &Timeline, lag_ns: Nanos) -> Timeline {
    let later = |i: &Interval| Interval {
        ts_ns: i.ts_ns + lag_ns,
        ..*i
    };
    Timeline {
        interval_ns: timeline.interval_ns,
        intervals: timeline.intervals.iter().map(later).collect(),
    }
}
