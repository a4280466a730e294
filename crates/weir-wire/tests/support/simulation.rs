//! [`Simulation`]: an agent and a monitor with a relay between them that injects failures.
#![allow(dead_code)] // Each test file uses its own part of this.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use weir_testing::Relay;
use weir_wire::outbox::OutboxCapacity;
use weir_wire::{AgentMessage, ChannelId, Dial, Note, Uplink, UplinkOptions};

use super::agent_rows::{options, rows};
use super::authority::Directory;
use super::random::Random;
use super::recording_monitor::{Behavior, MonitorState, RecordingMonitor};
use super::{WAIT_MAX, until};

pub const INSTANCE: u64 = 7;
pub const CHANNELS: [ChannelId; 3] = [ChannelId(1), ChannelId(2), ChannelId(3)];

/// An agent and its monitor, with a relay between them.
pub struct Simulation {
    numbers: Random,
    pub relay: Relay,
    ledger: Option<RecordingMonitor>,
    behavior: Behavior,
    pub uplink: Uplink,
    /// The value and instant of the last row.
    pub last: i64,
    pub is_paced: bool,
    pub produced: BTreeMap<ChannelId, u64>,
    pub dropped: BTreeMap<ChannelId, u64>,
    notes: i64,
    _directory: Directory,
}

impl Simulation {
    pub fn new(
        seed: u64,
        room: OutboxCapacity,
        change: impl FnOnce(&mut UplinkOptions),
    ) -> Simulation {
        let mut numbers = Random::new(seed);
        let behavior = Behavior {
            ack_every: 1 + numbers.below(20),
            ..Behavior::default()
        };
        let ledger = RecordingMonitor::new(1, behavior);
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
        Simulation {
            numbers,
            relay,
            ledger: Some(ledger),
            behavior,
            uplink,
            last: 0,
            is_paced: false,
            produced: BTreeMap::new(),
            dropped: BTreeMap::new(),
            notes: 0,
            _directory: directory,
        }
    }

    /// Sends some rows and a watermark.
    pub fn send_rows(&mut self) {
        if self.is_paced {
            self.pace();
        }
        let channel = CHANNELS[self.numbers.below(3) as usize];
        let count = 1 + self.numbers.below(400) as i64;
        self.uplink.send(AgentMessage::Rows {
            channel,
            batch: rows(self.last + 1, count),
        });
        self.last += count;
        *self.produced.entry(channel).or_default() += count as u64;
        self.uplink.send(AgentMessage::Watermark(self.last));
        if self.numbers.below(8) == 0 {
            self.notes += 1;
            self.uplink.send(AgentMessage::Note(Note {
                at_ns: self.last,
                place: "tap".to_owned(),
                counter: "events_in".to_owned(),
                cause: None,
                device: None,
                value: 1,
                total: self.notes,
            }));
        }
    }

    pub fn account_drops(&mut self) {
        for (channel, rows) in self.uplink.dropped() {
            *self.dropped.entry(channel).or_default() += rows;
        }
    }

    pub fn ledger(&self) -> &RecordingMonitor {
        self.ledger.as_ref().expect("it runs")
    }

    /// Kills the monitor; returns its state.
    pub fn kill(&mut self) -> MonitorState {
        self.ledger.take().expect("it runs").kill()
    }

    pub fn restart(&mut self, book: MonitorState) {
        let ledger = RecordingMonitor::open(book, self.behavior);
        self.relay.set_target(Some(ledger.address()));
        self.ledger = Some(ledger);
    }

    /// Performs one random action.
    pub fn step(&mut self) {
        match self.numbers.below(24) {
            0 => self.relay.close_connections(),
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
            8 => (0..60).for_each(|_| self.send_rows()),
            _ => self.send_rows(),
        }
        while self.uplink.receive(Duration::ZERO).is_some() {}
    }

    /// Waits for the disk if memory is nearly full.
    pub fn pace(&self) {
        until("the disk has taken what memory has no room for", || {
            let waiting = self.uplink.state().waiting;
            waiting.bytes - waiting.spooled_bytes < TINY.memory_bytes as u64 * 7 / 8
        });
    }

    /// Repairs the network and waits until everything is acknowledged.
    pub fn settle(&mut self) {
        self.relay.stall(false);
        self.relay.delay(Duration::ZERO);
        let started = Instant::now();
        while self.uplink.state().waiting.messages > 0 {
            while self.uplink.receive(Duration::ZERO).is_some() {}
            std::thread::sleep(Duration::from_millis(2));
            let state = self.uplink.state();
            assert!(started.elapsed() < WAIT_MAX, "not acked: {state:?}");
        }
        self.account_drops();
    }

    /// Checks delivered + lost = produced.
    pub fn check(&mut self) {
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

/// A small capacity.
pub const TINY: OutboxCapacity = OutboxCapacity {
    memory_bytes: 256 << 10,
    disk_bytes: 768 << 10,
};
