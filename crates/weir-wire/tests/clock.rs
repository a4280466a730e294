//! Simulated clocks: the true time always lies within the reported bound, times never go backwards,
//! and the bound shrinks.

use proptest::prelude::*;
use weir_wire::clock::{Discipline, Exchange, ExchangeOutcome, STEP_NS};

const SECOND: i64 = 1_000_000_000;
const MICRO: i64 = 1_000;

/// An agent's clock beside the monitor's: `offset + drift` off.
#[derive(Clone, Copy, Debug)]
struct World {
    /// Agent time minus monitor time at the start.
    offset: i64,
    /// The rate error of the agent's clock.
    drift_ppb: i64,
}

const START: i64 = 1_700_000_000 * SECOND;

impl World {
    fn agent(&self, monitor: i64) -> i64 {
        let since = monitor - START;
        let drift = i128::from(since) * i128::from(self.drift_ppb) / 1_000_000_000;
        monitor + self.offset + drift as i64
    }

    /// A ping sent at `monitor` with these delays of the two paths.
    fn exchange(&self, monitor: i64, there: i64, back: i64) -> Exchange {
        Exchange {
            left: self.agent(monitor),
            came: monitor + there,
            answered: monitor + there,
            back: self.agent(monitor + there + back),
        }
    }
}

fn worlds() -> impl Strategy<Value = World> {
    (-5 * SECOND..5 * SECOND, -200_000..200_000i64)
        .prop_map(|(offset, drift_ppb)| World { offset, drift_ppb })
}

/// Delays of one ping: mostly short, sometimes long, independent for each path.
fn delays() -> impl Strategy<Value = (i64, i64)> {
    let way = || prop_oneof![8 => 50 * MICRO..300 * MICRO, 1 => 300 * MICRO..400_000 * MICRO];
    (way(), way())
}

proptest! {
    #[test]
    fn the_true_time_is_within_the_bound_and_times_are_monotonic(
        world in worlds(),
        pings in prop::collection::vec((delays(), 1..5_000i64), 1..120),
        looks in prop::collection::vec(0..1000i64, 5),
    ) {
        let mut discipline = Discipline::new();
        let mut monitor = START;
        let mut conversions = Vec::new();
        for ((there, back), pause_ms) in pings {
            discipline.update(world.exchange(monitor, there, back));
            monitor += there + back;
            let pause = pause_ms * 1_000_000;
            for look in &looks {
                let then = monitor + pause * look / 1000;
                let agent = world.agent(then);
                let error = discipline.error_ns(agent);
                let shown = discipline.to_monitor(agent);
                prop_assert!((shown - then).abs() <= error + 2, "{} ns off, {error} told", shown - then);
                conversions.push((agent, shown));
            }
            monitor += pause;
        }
        conversions.sort();
        prop_assert!(conversions.is_sorted_by_key(|(_, shown)| *shown), "backwards");
        // Earlier conversions are repeatable, as far as segments are retained.
        for (agent, shown) in conversions.iter().rev().take(20) {
            prop_assert_eq!(discipline.to_monitor(*agent), *shown);
        }
    }

    #[test]
    fn a_clock_step_is_followed_without_going_back(
        world in worlds(), set in -20 * SECOND..20 * SECOND, at in 3..20usize,
    ) {
        prop_assume!(set.abs() > 2 * STEP_NS);
        let mut discipline = Discipline::new();
        let mut shown_before = i64::MIN;
        let mut agent_before = i64::MIN;
        let mut steps = 0;
        for i in 0..60usize {
            // The monitor's clock is set; the agent's is not.
            let monitor = START + i as i64 * SECOND;
            let shift = if i >= at { set } else { 0 };
            let mut exchange = world.exchange(monitor, 100 * MICRO, 100 * MICRO);
            exchange.came += shift;
            exchange.answered += shift;
            if let ExchangeOutcome::Stepped(error) = discipline.update(exchange) {
                prop_assert!((error - set).abs() < STEP_NS, "{error} for {set}");
                steps += 1;
            }
            for look in 1..50 {
                let then = monitor + 200 * MICRO + look * SECOND / 50;
                let agent = world.agent(then);
                let shown = discipline.to_monitor(agent);
                prop_assert!(agent > agent_before && shown > shown_before);
                prop_assert!((shown - then - shift).abs() <= discipline.error_ns(agent) + 2);
                (agent_before, shown_before) = (agent, shown);
            }
        }
        prop_assert!(steps >= 1);
        let end = START + 61 * SECOND;
        let off = discipline.to_monitor(world.agent(end)) - end - set;
        prop_assert!(off.abs() < 2_000 * MICRO, "{off} ns off at the end");
    }
}

proptest! {
    #[test]
    fn on_one_host_times_are_unchanged_unless_the_clocks_differ(
        pings in prop::collection::vec((delays(), 1..5_000i64), 1..60),
        offset in prop_oneof![Just(0), -5 * SECOND..5 * SECOND],
    ) {
        let world = World { offset, drift_ppb: 0 };
        let mut discipline = Discipline::new();
        discipline.set_same_host(true);
        let mut monitor = START;
        for ((there, back), pause_ms) in pings {
            discipline.update(world.exchange(monitor, there, back));
            monitor += there + back + pause_ms * 1_000_000;
            let agent = world.agent(monitor);
            let (shown, error) = (discipline.to_monitor(agent), discipline.error_ns(agent));
            prop_assert!((shown - monitor).abs() <= error + 2, "{} ns off", shown - monitor);
            if offset == 0 {
                prop_assert_eq!((shown, discipline.offset_ns(agent)), (agent, 0));
            }
        }
    }
}

#[test]
fn on_a_lan_the_bound_shrinks_below_a_millisecond_and_stays_there() {
    let world = World {
        offset: -3 * SECOND,
        drift_ppb: 150_000,
    };
    let mut discipline = Discipline::new();
    assert_eq!(discipline.error_ns(START), i64::MAX);
    let mut monitor = START;
    let mut worst = 0;
    for i in 0..100i64 {
        // More jitter on the return path.
        discipline.update(world.exchange(monitor, 80 * MICRO, (80 + i * 37 % 200) * MICRO));
        let pause = if i < 8 { SECOND / 10 } else { 4 * SECOND };
        let agent = world.agent(monitor + pause);
        if i > 20 {
            worst = worst.max(discipline.error_ns(agent));
        }
        monitor += pause;
    }
    assert!(worst < 400 * MICRO, "{worst} ns");
    let drift = discipline.drift_ppb().expect("measured");
    assert!((drift + 150_000.0).abs() < 15_000.0, "{drift} ppb");
}

#[test]
fn impossible_timestamps_are_rejected() {
    let mut discipline = Discipline::new();
    let exchange = |left, came, answered, back| Exchange {
        left,
        came,
        answered,
        back,
    };
    for impossible in [
        exchange(10, 5, 5, 9),
        exchange(0, 10, 5, 20),
        exchange(0, 0, 40_000, 20),
        exchange(0, 0, 0, 60 * SECOND),
        exchange(i64::MIN, i64::MAX, i64::MAX, i64::MAX),
        exchange(i64::MAX, i64::MIN, i64::MAX, i64::MIN),
    ] {
        assert_eq!(discipline.update(impossible), ExchangeOutcome::Rejected);
    }
    assert!(!discipline.is_synchronised());
    assert_eq!(discipline.to_monitor(17), 17);
}

#[test]
fn an_agent_clock_set_back_is_followed_at_once() {
    let mut discipline = Discipline::new();
    let world = World {
        offset: 5 * SECOND,
        drift_ppb: 0,
    };
    let ping = |world: &World, at| world.exchange(at, 100 * MICRO, 100 * MICRO);
    for i in 0..20 {
        discipline.update(ping(&world, START + i * SECOND));
        discipline.to_monitor(world.agent(START + i * SECOND));
    }
    let set = World {
        offset: -3_600 * SECOND,
        ..world
    };
    let taken = discipline.update(ping(&set, START + 20 * SECOND));
    assert!(
        matches!(taken, ExchangeOutcome::Stepped(error) if (error - 3_605 * SECOND).abs() < 1_000 * MICRO)
    );
    let then = START + 21 * SECOND;
    let off = discipline.to_monitor(set.agent(then)) - then;
    assert!(
        off.abs() <= discipline.error_ns(set.agent(then)),
        "{off} ns"
    );
    assert_eq!(discipline.steps(), 1);
}
