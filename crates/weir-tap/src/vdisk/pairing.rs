//! [`Pairing`]: converts trace events to requests and responses.
//!
//! QEMU identifies a request by its address and reuses addresses, so a response belongs to the last
//! request at its address, and lines are processed in their order. A flush of a virtio-blk disk has
//! no event: it is a request that consists of a header and a status only.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};
use weir_model::{Event, EventKind, IoEvent, Level, Nanos, Op, SECTOR_BYTES, Symbol};

use super::line::{Line, Trace, Unit};

/// Requests removed from queues that are kept until their type is known.
const POPS_MAX: usize = 1 << 16;

/// Maximum number of requests in flight.
const REQUESTS_MAX: usize = 1 << 16;

/// Maximum number of disks and queues.
const DISKS_MAX: usize = 1 << 12;

/// A disk as identified by trace events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Which {
    /// A virtio-blk disk, by its address in QEMU.
    Block(u64),
    /// A disk at a virtio-scsi controller.
    Scsi(Unit),
}

/// Names of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// The disk as the VM sees it.
    pub vdisk: Option<Symbol>,
    /// Its file or device on the host.
    pub image: Option<Symbol>,
    /// Sectors in a logical block of a SCSI disk.
    pub block_sectors: Option<i64>,
}

/// The VM and process of the requests.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// The VM.
    pub vm: Symbol,
    /// Its process.
    pub pid: Option<i64>,
}

/// Counts of events that could not be reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnreportedCounts {
    /// Responses whose requests preceded the tap.
    pub started_unseen: i64,
    /// Requests whose response was not received.
    pub ended_unseen: i64,
    /// Requests dropped because the table was full.
    pub table_full: i64,
    /// Discards and write zeroes: QEMU does not trace their type and location.
    pub discards: i64,
    /// Requests that transfer none of the disk's data: its serial number, its size, its sense.
    pub other_commands: i64,
    /// Flushes that are reported only at completion, because their queue was not known before.
    pub flushes_reported_late: i64,
}

/// Pairs requests with their responses.
#[derive(Debug, Default)]
pub struct Pairing {
    pops: HashMap<u64, Pop>,
    /// Addresses of pops by age, to discard the oldest.
    pops_by_age: VecDeque<(u64, u64)>,
    popped: u64,
    /// The disk that a queue belongs to.
    queues: HashMap<u64, u64>,
    under_way: HashMap<Key, InFlight>,
    heads: HashMap<Which, Head>,
    req_id: i64,
    /// Counts of events that could not be reported so far.
    pub unreported: UnreportedCounts,
}

#[derive(Clone, Copy, Debug)]
struct Pop {
    number: u64,
    queue: u64,
    ts: Nanos,
    ins: u32,
    outs: u32,
}

/// The key by which a response finds its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Block { disk: u64, request: u64 },
    Scsi { lun: i64, tag: u32 },
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    which: Which,
    row: IoEvent,
    /// The request waits for its sector to be known.
    placeless: bool,
}

/// State of a disk between requests.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    in_flight: i64,
    last_sector: Option<i64>,
    /// The time of the latest request.
    last_ts: Option<Nanos>,
}

impl Pairing {
    /// Processes a line and appends the resulting rows. `now` is the time at which it was read,
    /// used if the line has no timestamp. `name` returns the disk; `None` from it means that the
    /// disk is not one of the traced VM's.
    pub fn take(
        &mut self,
        line: Line,
        now: Nanos,
        owner: Owner,
        name: &mut dyn FnMut(Which) -> Option<Named>,
        rows: &mut Vec<IoEvent>,
    ) {
        let mut step = Step {
            ts: line.ts.unwrap_or(now),
            timed: line.ts.is_some(),
            owner,
            name,
            rows,
        };
        match line.event {
            Trace::Pop {
                queue,
                request,
                ins,
                outs,
            } => self.pop(&mut step, queue, request, ins, outs),
            Trace::Block {
                disk,
                request,
                write,
                sector,
                sectors,
            } => {
                let op = if write { Op::Write } else { Op::Read };
                self.block(&mut step, disk, request, op, (sector, sectors));
            }
            Trace::BlockDone {
                disk,
                request,
                status,
            } => self.block_done(&mut step, disk, request, status),
            Trace::Scsi {
                unit,
                tag,
                command,
                bytes,
            } => self.scsi(&mut step, unit, tag, command, bytes),
            Trace::ScsiPlace { unit, tag, block } => self.scsi_place(&mut step, unit, tag, block),
            Trace::ScsiDone {
                lun,
                tag,
                response,
                status,
            } => {
                let kind = match (response, status) {
                    (0, 0) => EventKind::Response,
                    _ => EventKind::Error,
                };
                // Commands without data were counted when they were received.
                self.end(&mut step, Key::Scsi { lun, tag }, kind);
            }
        }
    }

    /// Discards all requests in flight, after lines were skipped.
    pub fn forget(&mut self) {
        self.unreported.ended_unseen += self.under_way.len() as i64;
        self.pops.clear();
        self.pops_by_age.clear();
        self.under_way.clear();
        self.heads.clear();
    }

    /// Discards the mapping of queues to disks: a device may have been replaced.
    pub fn forget_queues(&mut self) {
        self.queues.clear();
    }

    /// A request removed from a queue belongs to this disk, so the queue does too.
    fn learn(&mut self, popped: Option<Pop>, disk: u64) {
        if let Some(pop) = popped
            && (self.queues.len() < DISKS_MAX || self.queues.contains_key(&pop.queue))
        {
            self.queues.insert(pop.queue, disk);
        }
    }

    fn pop(&mut self, step: &mut Step, queue: u64, request: u64, ins: u32, outs: u32) {
        self.popped += 1;
        if self.pops_by_age.len() >= POPS_MAX
            && let Some((address, number)) = self.pops_by_age.pop_front()
            && self.pops.get(&address).is_some_and(|p| p.number == number)
        {
            self.pops.remove(&address);
        }
        let pop = Pop {
            number: self.popped,
            queue,
            ts: step.ts,
            ins,
            outs,
        };
        self.pops.insert(request, pop);
        self.pops_by_age.push_back((request, self.popped));
        if pop.is_flush()
            && let Some(&disk) = self.queues.get(&queue)
        {
            self.pops.remove(&request);
            let key = Key::Block { disk, request };
            self.begin(step, Which::Block(disk), key, Op::Flush, None);
        }
    }

    fn block(&mut self, step: &mut Step, disk: u64, request: u64, op: Op, place: (i64, i64)) {
        let key = Key::Block { disk, request };
        let popped = self.pops.remove(&request);
        self.learn(popped, disk);
        // A request that was not removed from a queue again is a retry after an error.
        if popped.is_none() && self.under_way.contains_key(&key) {
            return;
        }
        self.begin(step, Which::Block(disk), key, op, Some(place));
    }

    fn block_done(&mut self, step: &mut Step, disk: u64, request: u64, status: i64) {
        let kind = match status {
            0 => EventKind::Response,
            2 => EventKind::Unsupported,
            _ => EventKind::Error,
        };
        let key = Key::Block { disk, request };
        let pop = self.pops.remove(&request);
        self.learn(pop, disk);
        match pop {
            // It is reported already, and the request removed since is a different one.
            _ if self.under_way.contains_key(&key) => self.end(step, key, kind),
            Some(pop) if pop.is_flush() => {
                // Too late to report the request at its time; the response has it.
                self.unreported.flushes_reported_late += 1;
                self.take_up(step, pop.ts, Which::Block(disk), key, Op::Flush, None);
                self.end(step, key, kind);
            }
            Some(pop) if pop.outs > 1 => self.unreported.discards += 1,
            Some(_) => self.unreported.other_commands += 1,
            None => self.unreported.started_unseen += 1,
        }
    }

    fn scsi(&mut self, step: &mut Step, unit: Unit, tag: u32, command: u8, bytes: i64) {
        // SCSI Block Commands 3 (T10 SBC-3), operation codes.
        let op = match command {
            0x08 | 0x28 | 0xa8 | 0x88 => Op::Read,
            0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e => Op::Write,
            0x35 | 0x91 => Op::Flush,
            0x41 | 0x42 | 0x93 => {
                self.unreported.discards += 1;
                return;
            }
            _ => {
                self.unreported.other_commands += 1;
                return;
            }
        };
        let key = Key::Scsi { lun: unit.lun, tag };
        let place = (op != Op::Flush).then_some((0, bytes / SECTOR_BYTES));
        if op == Op::Flush {
            self.begin(step, Which::Scsi(unit), key, op, place);
            return;
        }
        // The next line contains its sector.
        if self.take_up(step, step.ts, Which::Scsi(unit), key, op, place)
            && let Some(request) = self.under_way.get_mut(&key)
        {
            request.placeless = true;
        }
    }

    fn scsi_place(&mut self, step: &mut Step, unit: Unit, tag: u32, block: i64) {
        let key = Key::Scsi { lun: unit.lun, tag };
        let which = Which::Scsi(unit);
        let Some(request) = self.under_way.get(&key) else {
            return;
        };
        if !request.placeless || request.which != which {
            return;
        }
        let named = (step.name)(which);
        let sectors = named.and_then(|n| n.block_sectors);
        let sector = sectors.and_then(|sectors| block.checked_mul(sectors));
        let request = self.under_way.get_mut(&key).expect("it was there just now");
        request.placeless = false;
        let event = &mut request.row.event;
        (event.sector, event.vsector) = (sector, sector);
        let head = self.heads.entry(which).or_default();
        request.row.seek_sectors = head.move_to(sector, event.sectors);
        step.rows.push(IoEvent::new(*event));
    }

    /// Reports a request whose sector is known or not needed.
    fn begin(
        &mut self,
        step: &mut Step,
        which: Which,
        key: Key,
        op: Op,
        place: Option<(i64, i64)>,
    ) {
        if self.take_up(step, step.ts, which, key, op, place)
            && let Some(request) = self.under_way.get_mut(&key)
        {
            let head = self.heads.entry(which).or_default();
            if let Some((sector, sectors)) = place {
                request.row.seek_sectors = head.move_to(Some(sector), sectors);
            }
            step.rows.push(IoEvent::new(request.row.event));
        }
    }

    /// Registers a request; false if the table is full.
    fn take_up(
        &mut self,
        step: &mut Step,
        ts: Nanos,
        which: Which,
        key: Key,
        op: Op,
        place: Option<(i64, i64)>,
    ) -> bool {
        let Some(named) = (step.name)(which) else {
            return false;
        };
        if let Some(older) = self.under_way.remove(&key) {
            self.unreported.ended_unseen += 1;
            self.leave(older.which);
        }
        let known = self.heads.len() < DISKS_MAX || self.heads.contains_key(&which);
        if self.under_way.len() >= REQUESTS_MAX || !known {
            self.unreported.table_full += 1;
            return false;
        }
        self.req_id += 1;
        let head = self.heads.entry(which).or_default();
        head.in_flight += 1;
        let (sector, sectors) = place.map_or((None, 0), |(s, n)| (Some(s), n));
        let event = Event {
            vm: Some(step.owner.vm),
            vdisk: named.vdisk,
            pdisk: named.image,
            pid: step.owner.pid,
            level: Level::Vdisk,
            vsector: sector,
            ..Event::new(ts, EventKind::Request, op, self.req_id, sector, sectors)
        };
        let row = IoEvent {
            in_flight: Some(head.in_flight),
            interarrival_ns: step.timed.then(|| head.arrive(ts)).flatten(),
            ..IoEvent::new(event)
        };
        let request = InFlight {
            which,
            row,
            placeless: false,
        };
        self.under_way.insert(key, request);
        true
    }

    fn end(&mut self, step: &mut Step, key: Key, kind: EventKind) {
        let Some(request) = self.under_way.remove(&key) else {
            return;
        };
        self.leave(request.which);
        let asked = request.row.event;
        let latency_ns = step.ts.saturating_sub(asked.ts).max(0);
        let error = match kind {
            EventKind::Error => Some(i64::from(libc::EIO)),
            EventKind::Unsupported => Some(i64::from(libc::EOPNOTSUPP)),
            EventKind::Request | EventKind::Response => None,
        };
        let event = Event {
            ts: step.ts,
            kind,
            error,
            ..asked
        };
        step.rows.push(IoEvent {
            event,
            latency_ns: step.timed.then_some(latency_ns),
            issue_ts: Some(asked.ts),
            ..request.row
        });
    }

    fn leave(&mut self, which: Which) {
        if let Some(head) = self.heads.get_mut(&which) {
            head.in_flight = (head.in_flight - 1).max(0);
        }
    }
}

/// A line being converted to rows.
struct Step<'a> {
    ts: Nanos,
    /// True if the line had a timestamp.
    timed: bool,
    owner: Owner,
    name: &'a mut dyn FnMut(Which) -> Option<Named>,
    rows: &'a mut Vec<IoEvent>,
}

impl Pop {
    /// True for a header to be read and a status to be written, without data (virtio 1.2, 5.2.6):
    /// of the requests of a virtio-blk disk, only a flush has this form.
    fn is_flush(self) -> bool {
        (self.ins, self.outs) == (1, 1)
    }
}

impl Head {
    /// The time since the previous request; `None` for the first, and for a flush that is reported
    /// after requests that came later.
    fn arrive(&mut self, ts: Nanos) -> Option<Nanos> {
        let last = self.last_ts;
        self.last_ts = last.max(Some(ts));
        last.filter(|last| *last <= ts).map(|last| ts - last)
    }

    /// Distance of `sector` from the last sector of the previous request; sets the position to the
    /// end of this one.
    fn move_to(&mut self, sector: Option<i64>, sectors: i64) -> Option<i64> {
        let seek = sector
            .zip(self.last_sector)
            .and_then(|(first, last)| first.checked_sub(last));
        // QEMU traces a request before it checks that the sector exists.
        if let Some(first) = sector {
            self.last_sector = first.checked_add(sectors - 1);
        }
        seek
    }
}

#[cfg(test)]
mod tests {
    use super::super::line::parse;
    use super::*;

    /// The rows of `lines`, as `ts in µs, kind, op, number, disk, sector+sectors, latency in µs`,
    /// and the counts of unreported events. Line `i` is at `i` µs. Disk 0xa is /dev/vda, all others
    /// are unknown; the SCSI disks have blocks of 4 KiB.
    fn paired(lines: &[&str]) -> (Vec<String>, UnreportedCounts) {
        let owner = Owner {
            vm: Symbol::new("web"),
            pid: Some(7),
        };
        let mut name = |which| {
            let vdisk = match which {
                Which::Block(0xa) => Some(Symbol::new("/dev/vda")),
                Which::Scsi(Unit { target: 0, .. }) => Some(Symbol::new("/dev/sda")),
                _ => None,
            };
            Some(Named {
                vdisk,
                image: None,
                block_sectors: Some(8),
            })
        };
        let mut pairing = Pairing::default();
        let mut rows = Vec::new();
        for (i, line) in lines.iter().enumerate() {
            let line = parse(&format!("1@0.{i:06}:{line}")).expect("a line of a trace event");
            pairing.take(line, 0, owner, &mut name, &mut rows);
        }
        let show = |row: &IoEvent| {
            let e = &row.event;
            let (sector, latency) = (e.sector.unwrap_or(-1), row.latency_ns.unwrap_or(-1000));
            format!(
                "{} {} {} {} {} {sector}+{} {}",
                e.ts / 1000,
                e.kind.as_str(),
                e.op.as_str(),
                e.req_id,
                e.vdisk.map_or("?", Symbol::as_str),
                e.sectors,
                latency / 1000
            )
        };
        (rows.iter().map(show).collect(), pairing.unreported)
    }

    #[test]
    fn an_address_that_is_used_again_is_another_request() {
        let (rows, unreported) = paired(&[
            "virtqueue_pop vq 0x1 elem 0xf in_num 2 out_num 1",
            "virtio_blk_handle_read vdev 0xa req 0xf sector 8 nsectors 8",
            "virtio_blk_req_complete vdev 0xa req 0xf status 0",
            "virtqueue_pop vq 0x1 elem 0xf in_num 1 out_num 2",
            "virtio_blk_handle_write vdev 0xa req 0xf sector 64 nsectors 1",
            "virtio_blk_req_complete vdev 0xa req 0xf status 1",
            "virtio_blk_handle_write vdev 0xb req 0xf sector 3 nsectors 1",
        ]);
        let expected = [
            "1 Q r 1 /dev/vda 8+8 -1",
            "2 R r 1 /dev/vda 8+8 1",
            "4 Q w 2 /dev/vda 64+1 -1",
            "5 E w 2 /dev/vda 64+1 1",
            "6 Q w 3 ? 3+1 -1",
        ];
        assert_eq!(rows, expected);
        assert_eq!(unreported, UnreportedCounts::default());
    }

    #[test]
    fn a_request_that_is_tried_again_after_an_error_is_one() {
        let (rows, _) = paired(&[
            "virtqueue_pop vq 0x1 elem 0xf in_num 1 out_num 2",
            "virtio_blk_handle_write vdev 0xa req 0xf sector 8 nsectors 8",
            // No response: the VM was stopped for lack of space, and is resumed.
            "virtio_blk_handle_write vdev 0xa req 0xf sector 8 nsectors 8",
            "virtio_blk_req_complete vdev 0xa req 0xf status 0",
        ]);
        let expected = ["1 Q w 1 /dev/vda 8+8 -1", "3 R w 1 /dev/vda 8+8 2"];
        assert_eq!(rows, expected);
    }

    #[test]
    fn a_flush_is_known_by_its_shape_and_its_queue_by_the_requests_before() {
        let (rows, unreported) = paired(&[
            // The queue is not known yet.
            "virtqueue_pop vq 0x1 elem 0xf in_num 1 out_num 1",
            "virtio_blk_req_complete vdev 0xa req 0xf status 0",
            "virtqueue_pop vq 0x1 elem 0xf in_num 1 out_num 1",
            "virtio_blk_req_complete vdev 0xa req 0xf status 0",
            // The same form in a queue of another device is ignored.
            "virtqueue_pop vq 0x2 elem 0xe in_num 1 out_num 1",
        ]);
        let expected = [
            "1 R f 1 /dev/vda -1+0 1",
            "2 Q f 2 /dev/vda -1+0 -1",
            "3 R f 2 /dev/vda -1+0 1",
        ];
        assert_eq!(rows, expected);
        assert_eq!(unreported.flushes_reported_late, 1);
    }

    #[test]
    fn a_flush_that_is_reported_late_has_no_interarrival_time() {
        let mut head = Head::default();
        let found = [10, 30, 20, 35, 35].map(|ts| head.arrive(ts));
        assert_eq!(found, [None, Some(20), None, Some(5), Some(0)]);
    }

    #[test]
    fn uncertain_requests_are_counted_and_not_emitted() {
        let (rows, unreported) = paired(&[
            "virtio_blk_req_complete vdev 0xa req 0x1 status 0",
            // A discard or write zeroes: a header and ranges.
            "virtqueue_pop vq 0x1 elem 0xf in_num 1 out_num 2",
            "virtio_blk_req_complete vdev 0xa req 0xf status 0",
            // The serial number: a header, and 20 bytes for the device to write.
            "virtqueue_pop vq 0x1 elem 0xf in_num 2 out_num 1",
            "virtio_blk_req_complete vdev 0xa req 0xf status 0",
            "scsi_req_parsed target 0 lun 0 tag 1 command 18 dir 1 length 36",
            "virtio_scsi_cmd_resp virtio_scsi_cmd_resp lun=0 tag=0x1 response=0 status=0x0",
            "scsi_req_parsed target 0 lun 0 tag 2 command 66 dir 2 length 24",
        ]);
        assert_eq!(rows, Vec::<String>::new());
        let expected = UnreportedCounts {
            started_unseen: 1,
            discards: 2,
            other_commands: 2,
            ..UnreportedCounts::default()
        };
        assert_eq!(unreported, expected);
    }

    #[test]
    fn a_scsi_command_is_emitted_when_its_address_is_known() {
        let (rows, _) = paired(&[
            "scsi_req_parsed target 0 lun 0 tag -2 command 42 dir 2 length 8192",
            "scsi_req_parsed_lba target 0 lun 0 tag -2 command 42 lba 5",
            "scsi_req_parsed target 1 lun 1 tag 9 command 53 dir 0 length 0",
            "scsi_req_parsed_lba target 1 lun 1 tag 9 command 53 lba 0",
            "virtio_scsi_cmd_resp virtio_scsi_cmd_resp lun=0 tag=0xfffffffe response=0 status=0x2",
            "virtio_scsi_cmd_resp virtio_scsi_cmd_resp lun=1 tag=0x9 response=0 status=0x0",
        ]);
        let expected = [
            "0 Q w 1 /dev/sda 40+16 -1",
            "2 Q f 2 ? -1+0 -1",
            "4 E w 1 /dev/sda 40+16 4",
            "5 R f 2 ? -1+0 3",
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn after_lines_were_skipped_no_old_request_is_answered() {
        let owner = Owner {
            vm: Symbol::new("web"),
            pid: None,
        };
        let mut pairing = Pairing::default();
        let mut rows = Vec::new();
        let mut name = |_| {
            Some(Named {
                vdisk: None,
                image: None,
                block_sectors: None,
            })
        };
        let mut take = |pairing: &mut Pairing, text: &str| {
            let line = parse(text).unwrap();
            pairing.take(line, 0, owner, &mut name, &mut rows);
        };
        let ask = "1@1.0:virtio_blk_handle_read vdev 0xa req 0xf sector 8 nsectors 8";
        take(&mut pairing, ask);
        pairing.forget();
        let done = "1@2.0:virtio_blk_req_complete vdev 0xa req 0xf status 0";
        take(&mut pairing, done);
        assert_eq!(rows.len(), 1);
        assert_eq!(
            (
                pairing.unreported.ended_unseen,
                pairing.unreported.started_unseen
            ),
            (1, 1)
        );
    }
}
