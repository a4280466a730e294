//! The machine against a recomputation of every state from the whole history.

use proptest::prelude::*;

use super::*;

/// The history of one instance: its level and whether data are missing, at each instant.
#[derive(Clone, Debug)]
struct History {
    levels: Vec<AlertLevel>,
    missing: Vec<bool>,
}

impl History {
    fn fires(&self, at: usize) -> bool {
        self.levels[at].fires
    }

    fn clears(&self, at: usize) -> bool {
        self.levels[at].clears && !self.levels[at].fires
    }

    /// For how many instants before `at` a condition has held without a gap in the data, from
    /// `first` on; `None` where it does not hold at `at`.
    fn held(&self, at: usize, first: usize, condition: impl Fn(usize) -> bool) -> Option<i64> {
        let holds = |i: &usize| condition(*i) && !self.missing[*i];
        let run = (first..=at).rev().take_while(holds).count();
        (run > 0).then(|| run as i64 - 1)
    }

    /// The state at each instant, by definition: whether it has fired and not cleared since.
    fn states(&self, timing: HoldTimes) -> Vec<AlertState> {
        let mut active: Option<usize> = None;
        let mut states = Vec::new();
        for at in 0..self.levels.len() {
            let fired = self.held(at, 0, |i| self.fires(i));
            let cleared = self.held(at, active.unwrap_or(0), |i| self.clears(i));
            if active.is_none() && fired.is_some_and(|held| held >= timing.hold_ns) {
                active = Some(at);
            } else if active.is_some() && cleared.is_some_and(|held| held >= timing.hold_clear_ns) {
                active = None;
            }
            states.push(match (self.missing[at], active) {
                (true, Some(_)) => AlertState::Unknown,
                (true, None) if self.fires(at) => AlertState::Unknown,
                (true, None) => AlertState::Clear,
                (false, Some(_)) => AlertState::Firing,
                (false, None) if self.fires(at) => AlertState::Pending,
                (false, None) => AlertState::Clear,
            });
        }
        states
    }
}

/// The states that the machine reports, at each instant.
fn run(histories: &[History], timing: HoldTimes, restart: Option<usize>) -> Vec<Vec<AlertState>> {
    let length = histories[0].levels.len();
    let mut machine = Machine::new(timing);
    let mut changes: Vec<Transition<usize>> = Vec::new();
    let mut before: Vec<(AlertLevel, bool)> = vec![(AlertLevel::ABSENT, false); histories.len()];
    for at in 0..length {
        if restart == Some(at) {
            let text = serde_json::to_string(&machine.saved()).unwrap();
            machine = Machine::restored(timing, serde_json::from_str(&text).unwrap());
            before.fill((AlertLevel::ABSENT, true));
        }
        let missing = histories[0].missing[at];
        let mut changed = Vec::new();
        for (key, history) in histories.iter().enumerate() {
            let now = (history.levels[at], missing);
            if now.0 != before[key].0 {
                changed.push((key, now.0));
            }
            before[key] = now;
        }
        let was_missing = at > 0 && histories[0].missing[at - 1];
        if changed.is_empty() && was_missing == missing && restart != Some(at) {
            continue;
        }
        machine.step(at as i64, missing, changed, &mut |t| changes.push(t));
    }
    machine.advance(length as i64 - 1, &mut |t| changes.push(t));
    assert!(
        changes.windows(2).all(|w| w[0].at <= w[1].at),
        "{changes:?}"
    );
    let states = |key: usize| {
        let mut own = changes.iter().filter(|t| t.key == key).peekable();
        let mut state = AlertState::Clear;
        let of_instant = |at: usize| {
            while let Some(change) = own.next_if(|t| t.at as usize == at) {
                assert_eq!(change.from, state, "{change:?}");
                assert_ne!(change.from, change.to, "{change:?}");
                state = change.to;
            }
            state
        };
        (0..length).map(of_instant).collect()
    };
    (0..histories.len()).map(states).collect()
}

fn levels() -> impl Strategy<Value = Vec<AlertLevel>> {
    // Long runs, so that durations are reached, and both conditions independent of each other.
    let level =
        (any::<bool>(), any::<bool>()).prop_map(|(fires, clears)| AlertLevel { fires, clears });
    let runs = prop::collection::vec((level, 1_usize..9), 1..14);
    runs.prop_map(|runs| runs.into_iter().flat_map(|(l, n)| vec![l; n]).collect())
}

fn histories() -> impl Strategy<Value = Vec<History>> {
    let missing = prop::collection::vec((any::<bool>(), 1_usize..12), 1..12);
    let missing = missing.prop_map(|runs| {
        let runs = runs.into_iter().flat_map(|(m, n)| vec![m; n]);
        runs.collect::<Vec<bool>>()
    });
    let complete = Just(vec![false; 64]);
    let missing = prop_oneof![complete, missing];
    (prop::collection::vec(levels(), 1..4), missing).prop_map(|(all, missing)| {
        let length = all.iter().map(Vec::len).min().unwrap().min(missing.len());
        let history = |levels: Vec<AlertLevel>| History {
            levels: levels[..length].to_vec(),
            missing: missing[..length].to_vec(),
        };
        all.into_iter().map(history).collect()
    })
}

fn timing() -> impl Strategy<Value = HoldTimes> {
    (0_i64..7, 0_i64..7).prop_map(|(hold_ns, hold_clear_ns)| HoldTimes {
        hold_ns,
        hold_clear_ns,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn states_are_those_recomputed_from_the_whole_history(
        histories in histories(),
        timing in timing(),
    ) {
        let reported = run(&histories, timing, None);
        for (history, reported) in histories.iter().zip(reported) {
            prop_assert_eq!(history.states(timing), reported, "{:?} {:?}", history, timing);
        }
    }

    #[test]
    fn a_restart_while_data_are_missing_changes_nothing(
        histories in histories(),
        timing in timing(),
        at in 0_usize..64,
    ) {
        // Data are missing around the restart, as they are where a process was away.
        let mut histories = histories;
        for history in &mut histories {
            let (from, to) = (at.min(history.missing.len()), (at + 2).min(history.missing.len()));
            history.missing[from..to].fill(true);
        }
        if at + 1 < histories[0].missing.len() {
            let reported = run(&histories, timing, Some(at + 1));
            for (history, reported) in histories.iter().zip(reported) {
                prop_assert_eq!(history.states(timing), reported, "{:?} {:?}", history, timing);
            }
        }
    }
}

const LEVEL_FIRES: AlertLevel = AlertLevel {
    fires: true,
    clears: false,
};

#[test]
fn a_duration_is_exact_to_the_nanosecond() {
    let timing = HoldTimes {
        hold_ns: 30_000_000_000,
        hold_clear_ns: 0,
    };
    let fired = |left: i64| {
        let mut machine = Machine::new(timing);
        let mut fired = Vec::new();
        machine.step(7, false, [((), LEVEL_FIRES)], &mut |t| {
            fired.push((t.at, t.to))
        });
        machine.step(left, false, [((), AlertLevel::ABSENT)], &mut |t| {
            fired.push((t.at, t.to))
        });
        fired.contains(&(30_000_000_007, AlertState::Firing))
    };
    assert!(!fired(30_000_000_007));
    assert!(fired(30_000_000_008));
}

#[test]
fn flaps_are_the_firings_of_the_last_hour_after_the_first() {
    let mut machine = Machine::new(HoldTimes {
        hold_ns: 0,
        hold_clear_ns: 0,
    });
    let mut flaps = Vec::new();
    let mut emit = |t: Transition<()>| {
        if t.to == AlertState::Firing {
            flaps.push(t.flaps);
        }
    };
    let minute = 60_000_000_000;
    for at in [0, 10, 20, 75, 200] {
        machine.step(at * minute, false, [((), LEVEL_FIRES)], &mut emit);
        machine.step(
            at * minute + 1,
            false,
            [((), AlertLevel::ABSENT)],
            &mut emit,
        );
    }
    assert_eq!(flaps, [0, 1, 2, 1, 0]);
    machine.advance(i64::MAX, &mut |_| ());
    assert!(machine.instances.is_empty() && machine.timers.is_empty());
}

#[test]
fn instances_are_bounded_and_those_refused_counted() {
    let mut machine = Machine::new(HoldTimes {
        hold_ns: 1,
        hold_clear_ns: 0,
    });
    let all = (0..INSTANCES_MAX + 5).map(|key| (key, LEVEL_FIRES));
    machine.step(0, false, all, &mut |_| ());
    assert_eq!(machine.states().count(), INSTANCES_MAX);
    assert_eq!(machine.refused(), 5);
}
