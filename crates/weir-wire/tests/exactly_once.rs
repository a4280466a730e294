//! Whatever happens to the connection, the monitor and the spool, each row that an agent sends
//! arrives once and in order, or is reported as lost: delivered + lost = produced, exactly.

mod support;

use std::collections::BTreeMap;

use support::recording_monitor::MonitorState;
use support::simulation::{CHANNELS, INSTANCE, Simulation, TINY};
use support::until;
use weir_wire::outbox::OutboxCapacity;
use weir_wire::{ChannelId, UplinkEvent};

fn seeds() -> std::ops::Range<u64> {
    let rounds = std::env::var("WEIR_ROUNDS").ok();
    0..rounds.map_or(8, |rounds| rounds.parse().expect("WEIR_ROUNDS is a number"))
}

#[test]
fn with_a_small_spool_every_row_is_accounted_for() {
    let mut lost = 0;
    for seed in seeds() {
        let mut simulation = Simulation::new(seed, TINY, |_| {});
        (0..120).for_each(|_| simulation.step());
        simulation.check();
        lost += simulation.dropped.values().sum::<u64>();
    }
    eprintln!("{lost} rows were lost and told");
}

#[test]
fn without_a_spool_every_row_is_accounted_for() {
    for seed in seeds() {
        let room = OutboxCapacity {
            disk_bytes: 0,
            ..TINY
        };
        let mut simulation = Simulation::new(100 + seed, room, |_| {});
        (0..120).for_each(|_| simulation.step());
        simulation.check();
    }
}

#[test]
fn with_enough_capacity_nothing_is_lost() {
    for seed in seeds() {
        let room = OutboxCapacity {
            memory_bytes: 256 << 10,
            disk_bytes: 256 << 20,
        };
        let mut simulation = Simulation::new(200 + seed, room, |_| {});
        simulation.is_paced = true;
        (0..120).for_each(|_| simulation.step());
        // The monitor is silent long enough that everything unsent passes through the disk.
        simulation.relay.set_target(None);
        simulation.relay.close_connections();
        (0..2000).for_each(|_| simulation.send_rows());
        until("it spools", || {
            simulation.uplink.state().waiting.spooled_bytes > 0
        });
        let address = simulation.ledger().address();
        simulation.relay.set_target(Some(address));
        simulation.check();
        assert_eq!(simulation.dropped, BTreeMap::new(), "seed {seed}");
    }
}

#[test]
fn a_full_spool_loses_and_counts_the_oldest_rows() {
    let mut simulation = Simulation::new(1, TINY, |_| {});
    simulation.relay.set_target(None);
    simulation.relay.close_connections();
    (0..4000).for_each(|_| simulation.send_rows());
    until("something is lost", || {
        simulation.account_drops();
        !simulation.dropped.is_empty()
    });
    let waiting = simulation.uplink.state().waiting;
    assert!(waiting.spooled_bytes <= TINY.disk_bytes, "{waiting:?}");
    let memory_bytes = waiting.bytes - waiting.spooled_bytes;
    assert!(memory_bytes <= TINY.memory_bytes as u64, "{waiting:?}");
    let address = simulation.ledger().address();
    simulation.relay.set_target(Some(address));
    simulation.check();
    let account = simulation.ledger().account(INSTANCE);
    assert_eq!(Vec::from_iter(account.causes.keys()), ["spool_full"]);
    let newest = account.rows.values().filter_map(|rows| rows.last()).max();
    assert_eq!(newest, Some(&simulation.last), "the newest rows are there");
}

/// A monitor without its state is another monitor: messages for the previous one are discarded and
/// none of them arrives at the new one.
#[test]
fn a_monitor_that_lost_its_state() {
    for seed in seeds() {
        let mut simulation = Simulation::new(300 + seed, TINY, |_| {});
        (0..60).for_each(|_| simulation.step());
        let first = simulation.kill();
        let channels = first.channels.clone();
        let restarted_at = simulation.last;
        (0..5).for_each(|_| simulation.send_rows());
        simulation.restart(MonitorState {
            monitor: 2,
            channels: channels.clone(),
            ..MonitorState::default()
        });
        simulation.relay.stall(false);
        // The channels of the other monitor have ended, and start again.
        let welcome = loop {
            match simulation.uplink.receive(support::WAIT_MAX) {
                Some(UplinkEvent::Welcome { channels, .. }) if channels.is_empty() => {
                    break channels;
                }
                Some(_) => {}
                None => panic!("no welcome of the other monitor"),
            }
        };
        assert!(welcome.is_empty());
        let void_before = simulation.last;
        (0..40).for_each(|_| simulation.step());
        simulation.settle();

        let old = first.accounts.get(&INSTANCE).cloned().unwrap_or_default();
        let new = simulation.ledger().account(INSTANCE);
        old.check_order();
        new.check_order();
        let of = |rows: &BTreeMap<ChannelId, Vec<i64>>| rows.values().flatten().copied().max();
        assert!(of(&old.rows) <= Some(restarted_at));
        let oldest = new.rows.values().flatten().min();
        assert!(
            oldest.is_none_or(|oldest| *oldest > void_before),
            "seed {seed}"
        );
        // What the old one had and reported is gone; everything else is delivered, lost or void.
        let sum = |map: &BTreeMap<ChannelId, u64>| map.values().sum::<u64>();
        let delivered: u64 = CHANNELS.iter().map(|c| new.delivered(*c)).sum();
        let void = simulation.uplink.state().rows_void;
        let known = delivered + void + sum(&simulation.dropped);
        let forgotten = sum(&simulation.produced)
            .checked_sub(known)
            .expect("no row is counted twice");
        let had: u64 = CHANNELS.iter().map(|c| old.delivered(*c)).sum();
        assert!(forgotten <= had, "seed {seed}: {forgotten} of {had}");
    }
}
