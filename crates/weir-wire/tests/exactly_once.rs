//! Whatever becomes of the connection, the monitor and the spool, each row that an agent says arrives
//! once and in order, or is told lost: delivered + lost = produced, to the row.

mod support;

use std::collections::BTreeMap;

use support::ledger::Book;
use support::until;
use support::world::{CHANNELS, INSTANCE, TINY, World};
use weir_wire::outbox::Room;
use weir_wire::{ChannelId, Order};

fn seeds() -> std::ops::Range<u64> {
    let rounds = std::env::var("WEIR_ROUNDS").ok();
    0..rounds.map_or(8, |rounds| rounds.parse().expect("WEIR_ROUNDS is a number"))
}

#[test]
fn with_memory_and_a_spool_that_are_too_small() {
    let mut lost = 0;
    for seed in seeds() {
        let mut world = World::new(seed, TINY, |_| {});
        (0..120).for_each(|_| world.step());
        world.check();
        lost += world.dropped.values().sum::<u64>();
    }
    eprintln!("{lost} rows were lost and told");
}

#[test]
fn with_memory_alone() {
    for seed in seeds() {
        let room = Room {
            disk_bytes: 0,
            ..TINY
        };
        let mut world = World::new(100 + seed, room, |_| {});
        (0..120).for_each(|_| world.step());
        world.check();
    }
}

#[test]
fn with_room_for_everything_nothing_is_lost() {
    for seed in seeds() {
        let room = Room {
            memory_bytes: 256 << 10,
            disk_bytes: 256 << 20,
        };
        let mut world = World::new(200 + seed, room, |_| {});
        world.is_paced = true;
        (0..120).for_each(|_| world.step());
        // Long enough a silence that all but what was sent goes through the disk.
        world.relay.aim(None);
        world.relay.break_off();
        (0..2000).for_each(|_| world.say());
        until("it spools", || {
            world.uplink.state().waiting.spooled_bytes > 0
        });
        let address = world.ledger().address();
        world.relay.aim(Some(address));
        world.check();
        assert_eq!(world.dropped, BTreeMap::new(), "seed {seed}");
    }
}

#[test]
fn a_full_spool_loses_the_oldest_and_tells_how_many() {
    let mut world = World::new(1, TINY, |_| {});
    world.relay.aim(None);
    world.relay.break_off();
    (0..4000).for_each(|_| world.say());
    until("something is lost", || {
        world.account_drops();
        !world.dropped.is_empty()
    });
    let waiting = world.uplink.state().waiting;
    assert!(waiting.spooled_bytes <= TINY.disk_bytes, "{waiting:?}");
    let memory_bytes = waiting.bytes - waiting.spooled_bytes;
    assert!(memory_bytes <= TINY.memory_bytes as u64, "{waiting:?}");
    let address = world.ledger().address();
    world.relay.aim(Some(address));
    world.check();
    let account = world.ledger().account(INSTANCE);
    assert_eq!(Vec::from_iter(account.causes.keys()), ["spool_full"]);
    let newest = account.rows.values().filter_map(|rows| rows.last()).max();
    assert_eq!(newest, Some(&world.last), "the newest rows are there");
}

/// A monitor that has forgotten everything is another one: what was for the one before is void, and
/// nothing of it comes to the new one.
#[test]
fn a_monitor_without_memory() {
    for seed in seeds() {
        let mut world = World::new(300 + seed, TINY, |_| {});
        (0..60).for_each(|_| world.step());
        let first = world.kill();
        let channels = first.channels.clone();
        let begun = world.last;
        (0..5).for_each(|_| world.say());
        world.restart(Book {
            monitor: 2,
            channels: channels.clone(),
            ..Book::default()
        });
        world.relay.stall(false);
        // The channels of the other monitor are over, and begin anew.
        let welcome = loop {
            match world.uplink.order(support::PATIENCE) {
                Some(Order::Welcome { channels, .. }) if channels.is_empty() => break channels,
                Some(_) => {}
                None => panic!("no welcome of the other monitor"),
            }
        };
        assert!(welcome.is_empty());
        let void_before = world.last;
        (0..40).for_each(|_| world.step());
        world.settle();

        let old = first.accounts.get(&INSTANCE).cloned().unwrap_or_default();
        let new = world.ledger().account(INSTANCE);
        old.check_order();
        new.check_order();
        let of = |rows: &BTreeMap<ChannelId, Vec<i64>>| rows.values().flatten().copied().max();
        assert!(of(&old.rows) <= Some(begun));
        let oldest = new.rows.values().flatten().min();
        assert!(
            oldest.is_none_or(|oldest| *oldest > void_before),
            "seed {seed}"
        );
        // What the old one had and told was forgotten; all else is delivered, lost or void.
        let sum = |map: &BTreeMap<ChannelId, u64>| map.values().sum::<u64>();
        let delivered: u64 = CHANNELS.iter().map(|c| new.delivered(*c)).sum();
        let void = world.uplink.state().rows_void;
        let known = delivered + void + sum(&world.dropped);
        let forgotten = sum(&world.produced)
            .checked_sub(known)
            .expect("no row is counted twice");
        let had: u64 = CHANNELS.iter().map(|c| old.delivered(*c)).sum();
        assert!(forgotten <= had, "seed {seed}: {forgotten} of {had}");
    }
}
