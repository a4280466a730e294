//! Whatever becomes of the connection, the monitor and the spool, each row that an agent says arrives
//! once and in order, or is told lost: delivered + lost = produced, to the row.

mod support;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use support::authority::Directory;
use support::ledger::{Book, Ledger, Manner};
use support::numbers::Numbers;
use support::said::{options, rows};
use support::until;
use weir_guest::Relay;
use weir_wire::outbox::Room;
use weir_wire::{AgentWord, ChannelId, Dial, Note, Order, Uplink, UplinkOptions};

const INSTANCE: u64 = 7;
const CHANNELS: [ChannelId; 3] = [ChannelId(1), ChannelId(2), ChannelId(3)];

/// An agent and its monitor, with a relay between them.
struct World {
    numbers: Numbers,
    relay: Relay,
    ledger: Option<Ledger>,
    manner: Manner,
    uplink: Uplink,
    /// The value and instant of the last row.
    last: i64,
    is_paced: bool,
    produced: BTreeMap<ChannelId, u64>,
    dropped: BTreeMap<ChannelId, u64>,
    notes: i64,
    _directory: Directory,
}

impl World {
    fn new(seed: u64, room: Room, change: impl FnOnce(&mut UplinkOptions)) -> World {
        let mut numbers = Numbers::new(seed);
        let manner = Manner {
            safe_every: 1 + numbers.below(20),
            ..Manner::default()
        };
        let ledger = Ledger::new(1, manner);
        ledger.run_channels(&CHANNELS.map(|c| c.0));
        let relay = Relay::new(Ipv4Addr::LOCALHOST, ledger.address()).unwrap();
        let dial = Dial::new(relay.address().to_string().parse().unwrap());
        let directory = Directory::new();
        let mut options = UplinkOptions {
            room,
            spool: (room.disk_bytes > 0).then(|| directory.path().join("spool")),
            silence_max: Duration::from_secs(5),
            ..options(dial, INSTANCE)
        };
        change(&mut options);
        let uplink = Uplink::dial(options).unwrap();
        until("it is welcomed", || uplink.state().connected);
        World {
            numbers,
            relay,
            ledger: Some(ledger),
            manner,
            uplink,
            last: 0,
            is_paced: false,
            produced: BTreeMap::new(),
            dropped: BTreeMap::new(),
            notes: 0,
            _directory: directory,
        }
    }

    /// Some rows, and how far time has come.
    fn say(&mut self) {
        if self.is_paced {
            self.pace();
        }
        let channel = CHANNELS[self.numbers.below(3) as usize];
        let count = 1 + self.numbers.below(400) as i64;
        self.uplink.say(AgentWord::Rows {
            channel,
            batch: rows(self.last + 1, count),
        });
        self.last += count;
        *self.produced.entry(channel).or_default() += count as u64;
        self.uplink.say(AgentWord::Reached(self.last));
        if self.numbers.below(8) == 0 {
            self.notes += 1;
            self.uplink.say(AgentWord::Note(Note {
                at: self.last,
                place: "tap".to_owned(),
                counter: "events_in".to_owned(),
                cause: None,
                device: None,
                value: 1,
                total: self.notes,
            }));
        }
    }

    fn account_drops(&mut self) {
        for (channel, rows) in self.uplink.dropped() {
            *self.dropped.entry(channel).or_default() += rows;
        }
    }

    fn ledger(&self) -> &Ledger {
        self.ledger.as_ref().expect("it runs")
    }

    /// The monitor is killed; gives what it kept.
    fn kill(&mut self) -> Book {
        self.ledger.take().expect("it runs").kill()
    }

    fn restart(&mut self, book: Book) {
        let ledger = Ledger::open(book, self.manner);
        self.relay.aim(Some(ledger.address()));
        self.ledger = Some(ledger);
    }

    /// Something happens.
    fn step(&mut self) {
        match self.numbers.below(24) {
            0 => self.relay.break_off(),
            1 => self.relay.stall(true),
            2..=4 => self.relay.stall(false),
            5 => {
                let delay = self.numbers.below(8);
                self.relay.delay(Duration::from_millis(delay));
            }
            6 => {
                let book = self.kill();
                self.restart(book);
            }
            7 => std::thread::sleep(Duration::from_millis(self.numbers.below(20))),
            8 => (0..60).for_each(|_| self.say()),
            _ => self.say(),
        }
        while self.uplink.order(Duration::ZERO).is_some() {}
    }

    /// Waits for the disk if memory is nearly full.
    fn pace(&self) {
        until("the disk has taken what memory has no room for", || {
            let waiting = self.uplink.state().waiting;
            waiting.bytes - waiting.spooled_bytes < TINY.memory_bytes as u64 * 7 / 8
        });
    }

    /// Everything is well again, and what waits is taken.
    fn settle(&mut self) {
        self.relay.stall(false);
        self.relay.delay(Duration::ZERO);
        let begun = std::time::Instant::now();
        while self.uplink.state().waiting.words > 0 {
            while self.uplink.order(Duration::ZERO).is_some() {}
            std::thread::sleep(Duration::from_millis(2));
            let state = self.uplink.state();
            assert!(begun.elapsed() < support::PATIENCE, "not taken: {state:?}");
        }
        self.account_drops();
    }

    /// The law.
    fn check(&mut self) {
        self.settle();
        let account = self.ledger().account(INSTANCE);
        account.check_order();
        for channel in CHANNELS {
            let produced = self.produced.get(&channel).copied().unwrap_or(0);
            assert_eq!(account.accounted(channel), produced, "{channel:?}");
        }
        assert_eq!(account.lost, self.dropped, "what was told lost");
        assert_eq!(account.reached, self.last);
        let notes = account.notes.get("events_in").copied().unwrap_or(0);
        assert_eq!(notes, self.notes, "notes");
        assert_eq!(self.uplink.state().rows_void, 0);
    }
}

const TINY: Room = Room {
    memory_bytes: 256 << 10,
    disk_bytes: 768 << 10,
};

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

        let (old, new) = (&first.accounts[&INSTANCE], world.ledger().account(INSTANCE));
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
