//! A guest for tests: memory, and a driver that builds queues and chains, valid or not.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};

use crate::front_end::*;

pub const READ: u32 = 0;
pub const WRITE: u32 = 1;
pub const FLUSH: u32 = 4;
pub const GET_ID: u32 = 8;
pub const DISCARD: u32 = 11;
pub const WRITE_ZEROES: u32 = 13;

pub const OK: u8 = 0;
pub const IOERR: u8 = 1;
pub const UNSUPP: u8 = 2;
/// No device writes this status.
pub const PENDING: u8 = 0xee;

pub const NEXT: u16 = 1;
pub const WRITABLE: u16 = 2;
pub const INDIRECT: u16 = 4;

/// The guest's memory in its own and in the front end's address space.
pub const MEMORY_BYTES: u64 = 8 << 20;
pub const FRONT_END: u64 = 0x7f00_0000_0000;

pub const QUEUE_SIZE: u16 = 128;
/// Slots of requests: header, data and status in three descriptors, of their four.
pub const SLOTS: u16 = QUEUE_SIZE / 4;
const SLOT_BYTES: u64 = 0x10000;
const SLOTS_AT: u64 = 0x40_0000;

/// A guest's memory.
pub struct Guest {
    pub memory: GuestMemoryMmap<()>,
    pub file: File,
}

impl Guest {
    pub fn new() -> Guest {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, MEMORY_BYTES).unwrap();
        let offset = FileOffset::new(file.try_clone().unwrap(), 0);
        let range = (GuestAddress(0), MEMORY_BYTES as usize, Some(offset));
        Guest {
            memory: GuestMemoryMmap::from_ranges_with_files([range]).unwrap(),
            file,
        }
    }

    pub fn share(&self, front_end: &mut FrontEnd) {
        let region = longs(&[0, 0, MEMORY_BYTES, FRONT_END, 0]);
        front_end.send_ok(ADD_MEM_REG, &region, &[self.file.as_fd()]);
    }

    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(at)).unwrap();
    }

    pub fn read(&self, at: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.memory
            .read_slice(&mut bytes, GuestAddress(at))
            .unwrap();
        bytes
    }

    pub fn store(&self, at: u64, value: u16) {
        self.memory
            .store(value, GuestAddress(at), Ordering::SeqCst)
            .unwrap();
    }

    pub fn load(&self, at: u64) -> u16 {
        self.memory
            .load(GuestAddress(at), Ordering::SeqCst)
            .unwrap()
    }
}

/// A descriptor: address, length, flags, next.
#[derive(Clone, Copy, Debug)]
pub struct Desc(pub u64, pub u32, pub u16, pub u16);

impl Desc {
    pub fn bytes(self) -> Vec<u8> {
        let Desc(address, length, flags, next) = self;
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(length.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        bytes
    }
}

/// A queue, as its driver sees it.
pub struct Driver<'a> {
    pub guest: &'a Guest,
    pub index: u16,
    pub kick: OwnedFd,
    pub call: OwnedFd,
    pub error: OwnedFd,
    /// The number of available entries, and of used entries that were seen.
    pub available: u16,
    pub seen: u16,
}

impl<'a> Driver<'a> {
    pub fn new(guest: &'a Guest, index: u16) -> Driver<'a> {
        let driver = Driver {
            guest,
            index,
            kick: event(),
            call: event(),
            error: event(),
            available: 0,
            seen: 0,
        };
        guest.write(driver.table(), &[0; 0x8000]);
        driver
    }

    pub fn table(&self) -> u64 {
        0x1_0000 * (u64::from(self.index) + 1)
    }

    pub fn avail_ring(&self) -> u64 {
        self.table() + 0x4000
    }

    pub fn used_ring(&self) -> u64 {
        self.table() + 0x6000
    }

    /// Where the driver announces at which request it needs a notification.
    pub fn used_event(&self) -> u64 {
        self.avail_ring() + 4 + 2 * u64::from(QUEUE_SIZE)
    }

    pub fn set_up(&self, front_end: &mut FrontEnd, base: u16) {
        self.set_up_at(front_end, base, FRONT_END);
    }

    /// As [`Driver::set_up`], with rings in the region that is at `start` in the front end's
    /// memory.
    pub fn set_up_at(&self, front_end: &mut FrontEnd, base: u16, start: u64) {
        let queue = u32::from(self.index);
        front_end.send_ok(SET_VRING_NUM, &words(&[queue, u32::from(QUEUE_SIZE)]), &[]);
        front_end.send_ok(SET_VRING_BASE, &words(&[queue, u32::from(base)]), &[]);
        let mut addresses = words(&[queue, 0]);
        let rings = [self.table(), self.used_ring(), self.avail_ring()];
        addresses.extend(longs(&rings.map(|at| start + at)));
        addresses.extend(longs(&[0]));
        front_end.send_ok(SET_VRING_ADDR, &addresses, &[]);
        let number = u64::from(self.index).to_le_bytes();
        front_end.send_ok(SET_VRING_CALL, &number, &[self.call.as_fd()]);
        front_end.send_ok(SET_VRING_ERR, &number, &[self.error.as_fd()]);
        front_end.send_ok(SET_VRING_KICK, &number, &[self.kick.as_fd()]);
        front_end.send_ok(SET_VRING_ENABLE, &words(&[queue, 1]), &[]);
    }

    /// The addresses of a slot's header, status and data.
    pub fn header_at(slot: u16) -> u64 {
        SLOTS_AT + SLOT_BYTES * u64::from(slot)
    }

    pub fn status_at(slot: u16) -> u64 {
        Self::header_at(slot) + 16
    }

    pub fn data_at(slot: u16) -> u64 {
        Self::header_at(slot) + 0x1000
    }

    pub fn header(&self, slot: u16, kind: u32, sector: u64) {
        let mut header = words(&[kind, 0]);
        header.extend(sector.to_le_bytes());
        self.guest.write(Self::header_at(slot), &header);
        self.guest.write(Self::status_at(slot), &[PENDING]);
    }

    /// Writes descriptors from `first` on, as they are.
    pub fn describe(&self, first: u16, descriptors: &[Desc]) {
        for (i, descriptor) in descriptors.iter().enumerate() {
            let at = self.table() + 16 * (u64::from(first) + i as u64);
            self.guest.write(at, &descriptor.bytes());
        }
    }

    /// Makes a chain available, and kicks.
    pub fn offer(&mut self, head: u16) {
        self.offer_quietly(head);
        self.kick();
    }

    pub fn offer_quietly(&mut self, head: u16) {
        let at = self.avail_ring() + 4 + 2 * u64::from(self.available % QUEUE_SIZE);
        self.guest.store(at, head);
        self.available = self.available.wrapping_add(1);
        self.guest.store(self.avail_ring() + 2, self.available);
    }

    pub fn kick(&self) {
        rustix::io::write(&self.kick, &1_u64.to_ne_bytes()).unwrap();
    }

    /// A request with `bytes` of data in one buffer, in a slot that is free.
    pub fn submit(&mut self, slot: u16, kind: u32, sector: u64, bytes: u32) {
        self.header(slot, kind, sector);
        let head = slot * 4;
        let direction = if matches!(kind, READ | GET_ID) {
            WRITABLE
        } else {
            0
        };
        let header = Desc(Self::header_at(slot), 16, NEXT, head + 1);
        let status = Desc(Self::status_at(slot), 1, WRITABLE, 0);
        if bytes == 0 {
            self.describe(head, &[header, status]);
        } else {
            let data = Desc(Self::data_at(slot), bytes, NEXT | direction, head + 2);
            self.describe(head, &[header, data, status]);
        }
        self.offer(head);
    }

    /// Submits a request, and waits for its end: status and the length that the device wrote.
    pub fn run(&mut self, slot: u16, kind: u32, sector: u64, bytes: u32) -> (u8, u32) {
        self.submit(slot, kind, sector, bytes);
        let (head, written) = self.wait_used();
        assert_eq!(head, u32::from(slot * 4));
        (self.status(slot), written)
    }

    pub fn status(&self, slot: u16) -> u8 {
        self.guest.read(Self::status_at(slot), 1)[0]
    }

    /// The next used entry that was not seen: descriptor and length.
    pub fn next_used(&mut self) -> Option<(u32, u32)> {
        if self.guest.load(self.used_ring() + 2) == self.seen {
            return None;
        }
        let at = self.used_ring() + 4 + 8 * u64::from(self.seen % QUEUE_SIZE);
        let element = self.guest.read(at, 8);
        self.seen = self.seen.wrapping_add(1);
        let word = |at: usize| u32::from_le_bytes(element[at..at + 4].try_into().unwrap());
        Some((word(0), word(4)))
    }

    /// Sleeps until the device notifies and there is an entry in the used ring.
    pub fn wait_used(&mut self) -> (u32, u32) {
        let until = Instant::now() + TIMEOUT;
        loop {
            if let Some(used) = self.next_used() {
                return used;
            }
            // With event indices: notify at the very next one.
            self.guest.store(self.used_event(), self.seen);
            if let Some(used) = self.next_used() {
                return used;
            }
            assert!(Instant::now() < until, "nothing ends");
            wait_for(&self.call);
        }
    }

    /// Waits until the back end signals that the queue is broken.
    pub fn wait_broken(&self) {
        assert!(wait_for(&self.error), "the queue does not break");
    }

    /// Whether the back end has notified since the last call.
    pub fn was_called(&self) -> bool {
        rustix::io::read(&self.call, &mut [0; 8]).is_ok()
    }
}

/// Waits for an event, and clears it; false on timeout.
pub fn wait_for(event: &OwnedFd) -> bool {
    let timeout = Timespec {
        tv_sec: TIMEOUT.as_secs() as i64,
        tv_nsec: 0,
    };
    let mut events = [PollFd::new(event, PollFlags::IN)];
    rustix::io::retry_on_intr(|| poll(&mut events, Some(&timeout))).unwrap();
    rustix::io::read(event, &mut [0; 8]).is_ok()
}
