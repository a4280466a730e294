//! [`Queue`]: one virtqueue of the disk, with the buffers of its requests in flight.
//!
//! Requests have the layout of virtio 1.2, section 5.2.6: a header, the range of a discard or write
//! of zeroes, the data, a byte of status.

// Requests refer to their parts by address, as the ring requires.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsFd;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use virtio_driver::virtqueue::Virtqueue;
use virtio_driver::{EventFd, QueueNotifier, iovec};

use super::{BlockRequest, ClientShape, RequestKind, RequestStatus};

/// The parts of a request beside its data, in memory of the back end.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Frame {
    header: Header,
    range: Range,
    status: u8,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Header {
    kind: u32,
    reserved: u32,
    sector: u64,
}

/// Of a discard or a write of zeroes: all fields are little-endian, as in [`Header`].
#[derive(Clone, Copy)]
#[repr(C)]
struct Range {
    sector: u64,
    sectors: u32,
    flags: u32,
}

/// No request begins with this descriptor.
const NONE: usize = usize::MAX;

/// A virtqueue and its slots: a slot is a buffer and at most one request in flight.
pub(super) struct Queue {
    ring: Virtqueue<'static, Frame>,
    notifier: Box<dyn QueueNotifier>,
    completed: Arc<EventFd>,
    slots: Slots,
    /// The slot of a request, by its first descriptor.
    by_descriptor: Vec<usize>,
}

/// The location of the buffers of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    base: *mut u8,
    stride: usize,
    shape: ClientShape,
}

// SAFETY: the memory is shared with another process anyway; each slot is used by the one thread
// that has its queue.
unsafe impl Send for Slots {}

impl Slots {
    /// The slots of queue number `queue` in memory that starts at `base` and contains all queues.
    pub fn new(base: *mut u8, queue: usize, shape: ClientShape) -> Slots {
        let stride = shape.stride();
        Slots {
            base: base.wrapping_add(queue * shape.depth * stride),
            stride,
            shape,
        }
    }

    fn at(&self, slot: usize) -> *mut u8 {
        assert!(slot < self.shape.depth, "slots are as many as the depth");
        self.base
            .wrapping_add(slot * self.stride + self.shape.skew_bytes)
    }

    /// The buffer of a slot without a request in flight.
    pub fn buffer(&mut self, slot: usize, bytes: usize) -> &mut [u8] {
        assert!(bytes <= self.shape.bytes_max, "a request fits its buffer");
        // SAFETY: the memory outlives the queue (`Client` drops it last), slots do not overlap, and
        // no request of this slot is in flight: there is no other writer.
        unsafe { slice::from_raw_parts_mut(self.at(slot), bytes) }
    }
}

impl Queue {
    pub fn new(
        ring: Virtqueue<'static, Frame>,
        notifier: Box<dyn QueueNotifier>,
        completed: Arc<EventFd>,
        slots: Slots,
    ) -> Queue {
        let by_descriptor = vec![NONE; ring.queue_size().into()];
        let mut queue = Queue {
            ring,
            notifier,
            completed,
            slots,
            by_descriptor,
        };
        // Rings start without used notifications.
        queue.ring.set_used_notif_enabled(true);
        queue
    }

    /// The buffer of a slot without a request in flight.
    pub fn buffer(&mut self, slot: usize, bytes: usize) -> &mut [u8] {
        self.slots.buffer(slot, bytes)
    }

    /// Puts a request into the ring, its data in the slot's buffer. [`Queue::kick`] notifies the
    /// back end.
    pub fn put(&mut self, slot: usize, ask: &BlockRequest) -> Result<()> {
        let slots = self.slots;
        let descriptor = self.ring.add_request(|frame, add| {
            *frame = Frame::of(ask);
            add(part(&raw mut frame.header), false)?;
            if ask.kind.has_range() {
                add(part(&raw mut frame.range), false)?;
            }
            if ask.kind.has_data() {
                for piece in pieces(slots.at(slot), ask.bytes, slots.shape.segments) {
                    add(
                        piece,
                        ask.kind == RequestKind::Read || ask.kind == RequestKind::Id,
                    )?;
                }
            }
            add(part(&raw mut frame.status), true)
        });
        let descriptor = descriptor.context("the ring takes no more requests")?;
        self.by_descriptor[usize::from(descriptor)] = slot;
        Ok(())
    }

    /// Notifies the back end of new requests, if it requires that.
    pub fn kick(&mut self) -> io::Result<()> {
        // The back end first announces that it sleeps and then reads the ring; this side does the
        // reverse.
        fence(Ordering::SeqCst);
        if self.ring.avail_notif_needed() {
            self.notifier.notify()?;
        }
        Ok(())
    }

    /// A completed request: its slot and its outcome.
    pub fn take(&mut self) -> Result<Option<(usize, RequestStatus)>> {
        let Some(done) = self.ring.completions().next() else {
            return Ok(None);
        };
        let slot = std::mem::replace(&mut self.by_descriptor[usize::from(done.id)], NONE);
        if slot == NONE {
            bail!(
                "the back end completed descriptor {}, which is no request",
                done.id
            );
        }
        Ok(Some((slot, RequestStatus::from_byte(done.req.status)?)))
    }

    /// Waits until a request may have ended, polling the ring for `spin` and then sleeping, at most
    /// for `limit`.
    pub fn wait(&mut self, spin: Duration, limit: Duration) -> io::Result<()> {
        if !spin.is_zero() {
            let began = Instant::now();
            while began.elapsed() < spin {
                if self.ring.completions().has_next() {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
        }
        let timeout = Timespec::try_from(limit).map_err(io::Error::other)?;
        let mut fds = [PollFd::from_borrowed_fd(
            self.completed.as_fd(),
            PollFlags::IN,
        )];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(()),
            Ok(_) => self.completed.read().map(drop),
            Err(error) => Err(error.into()),
        }
    }
}

impl Frame {
    fn of(ask: &BlockRequest) -> Frame {
        let has_range = ask.kind.has_range();
        let sectors = u32::try_from(ask.bytes / 512).unwrap_or(u32::MAX);
        Frame {
            header: Header {
                kind: ask.kind.number().to_le(),
                reserved: 0,
                sector: if has_range { 0 } else { ask.sector.to_le() },
            },
            range: Range {
                sector: ask.sector.to_le(),
                sectors: sectors.to_le(),
                flags: u32::from(ask.kind == RequestKind::WriteZeroes { unmap: true }).to_le(),
            },
            // Not a valid status: a back end that writes none is detected.
            status: 0xff,
        }
    }
}

/// A part of a frame, for the ring.
fn part<T>(part: *mut T) -> iovec {
    iovec {
        iov_base: part.cast(),
        iov_len: size_of::<T>(),
    }
}

/// A buffer in `segments` pieces, of whole sectors where possible.
fn pieces(base: *mut u8, bytes: usize, segments: usize) -> impl Iterator<Item = iovec> {
    let each = (bytes / segments / 512 * 512).max(1);
    let count = if each == 1 { 1 } else { segments };
    (0..count).map(move |i| {
        let end = if i + 1 == count {
            bytes
        } else {
            (i + 1) * each
        };
        iovec {
            iov_base: base.wrapping_add(i * each).cast(),
            iov_len: end - i * each,
        }
    })
}
