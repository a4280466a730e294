//! Data structures shared with the kernel programs, as defined in `tap.h`: configuration, records,
//! tables and counters.

use std::sync::atomic::{AtomicU64, Ordering};

use super::kernel::Numbers;
use super::needs::Needs;
use super::programs::Sizes;
use super::rings::Store;

/// Bytes of a record without its submitter.
pub const RECORD_BYTES: usize = 64;

/// Bytes of a record with its submitter's process and cgroup, and its relation to others.
pub const WIDE_RECORD_BYTES: usize = 96;

/// Bytes of a record with its submitter's name as well.
pub const NAMED_RECORD_BYTES: usize = 112;

/// Bytes of a record with the file of the request as well: `struct file_record`.
pub const FILE_RECORD_BYTES: usize = 128;

/// Bytes of `struct bucket`.
pub const BUCKET_BYTES: usize = 64;

/// Entries per bucket.
pub const WAYS: usize = 8;

/// Bytes of `struct entry`.
pub const ENTRY_BYTES: usize = 128;

/// Bytes of `struct known`.
pub const KNOWN_BYTES: usize = 64;

/// Devices or cgroups in one `struct known`.
pub const SIBLINGS: usize = 4;

/// Buckets of the table of known processes, a power of two, each for four of them.
pub const PROCESS_BUCKETS: u32 = 1 << 13;

/// Bytes of `struct state`.
pub const STATE_BYTES: usize = 128;

/// Position of `live` in `struct state`, in 8-byte words.
pub const STATE_LIVE_WORD: usize = 0;

/// Position of `hist_until_ns` in `struct state`, in 8-byte words.
pub const STATE_HIST_UNTIL_WORD: usize = 2;

/// Position of `shed` in `struct state`, in 8-byte words.
pub const STATE_SHED_WORD: usize = 3;

/// Bytes of `struct counts`.
pub const COUNTS_BYTES: usize = 96;

/// Maximum number of clauses of a kernel program.
pub const CLAUSES: usize = ALTERNATIVES + 1;

/// Maximum number of clauses that select records; another one may select requests of which the
/// programs only need to know.
pub const ALTERNATIVES: usize = 4;

/// Maximum number of command names of a clause.
pub const COMMS: usize = 4;

/// An unknown time, sector or similar value.
pub const UNKNOWN: u64 = u64::MAX;

/// The distance of a request without a previous one, or without a sector (`NO_SEEK`).
pub const NO_SEEK: i64 = i64::MIN;

/// `enum kind`.
pub mod kind {
    /// Issued; a flush without data: inserted.
    pub const REQUEST: u8 = 0;
    /// Finished without error.
    pub const RESPONSE: u8 = 1;
    /// Finished with an error.
    pub const ERROR: u8 = 2;
}

/// `enum flag`.
pub mod flag {
    /// Forced unit access.
    pub const FUA: u8 = 1;
    /// Read ahead.
    pub const READ_AHEAD: u8 = 2;
    /// A process waits for it.
    pub const SYNC: u8 = 4;
    /// Metadata.
    pub const META: u8 = 8;
    /// It was folded for the demand of the first fold.
    pub const FOLDED: u8 = 16;
    /// A kernel thread submitted it.
    pub const KERNEL: u8 = 32;
    /// Its start was not observed.
    pub const ORPHAN: u8 = 64;
    /// It was folded for the demand of the second fold.
    pub const FOLDED_TOO: u8 = 128;
}

/// `enum test`.
pub mod test {
    /// `op`
    pub const OP: u32 = 1;
    /// `pdisk`
    pub const DEVICE: u32 = 2;
    /// `sector`
    pub const SECTOR: u32 = 4;
    /// `sectors`
    pub const SECTORS: u32 = 8;
    /// `pid`
    pub const PID: u32 = 16;
    /// `comm`
    pub const COMM: u32 = 32;
    /// `cgroup`
    pub const CGROUP: u32 = 64;
    /// `wait`
    pub const WAIT: u32 = 128;
    /// `service`
    pub const SERVICE: u32 = 256;
    /// `latency`
    pub const LATENCY: u32 = 512;
    /// The number by which `sector` is sampled.
    pub const SECTOR_SPREAD: u32 = 1024;
}

/// Position of each counter in `struct counts`, in 8-byte words.
pub mod count {
    /// Finished requests.
    pub const SEEN: usize = 0;
    /// Finished requests whose start was not observed.
    pub const ORPHANS: usize = 1;
    /// Records lost because the ring was full.
    pub const RING_FULL: usize = 2;
    /// Requests without an entry, because their bucket was full.
    pub const TABLE_FULL: usize = 3;
    /// Entries whose completion was not observed.
    pub const REPLACED: usize = 4;
    /// Flush commands that the kernel issued internally.
    pub const FLUSH_COMMANDS: usize = 5;
    /// Passthrough and zone commands.
    pub const OTHER: usize = 6;
    /// Requests that were requeued.
    pub const REQUEUES: usize = 7;
    /// Sectors of the bios of a device without requests that were submitted, except discards.
    pub const SECTORS_SUBMITTED: usize = 8;
    /// Sectors of those that finished.
    pub const SECTORS_SEEN: usize = 9;
    /// Requests whose relation to the others of their disk is unknown.
    pub const UNORDERED: usize = 10;
}

/// Position of the times of a `struct entry`, in 8-byte words.
pub mod entry {
    /// When it was inserted.
    pub const INSERT: usize = 0;
    /// When it was issued.
    pub const ISSUE: usize = 1;
    /// When it was created by an unusual event.
    pub const ODD: usize = 6;
    /// The lowest 16 bits are the row of its disk, the next ones the number + 1 of the subject in
    /// whose histograms it is counted.
    pub const SUBJECT: usize = 4;
    /// The lowest 16 bits are nonzero if it is counted in the requests in flight of its disk.
    pub const IN_FLIGHT: usize = 7;
}

/// `struct clause`: all tests must hold; bounds are inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Clause {
    /// First sector.
    pub sector: [u64; 2],
    /// Insert to issue.
    pub wait_ns: [u64; 2],
    /// Issue to complete.
    pub service_ns: [u64; 2],
    /// Insert to complete.
    pub latency_ns: [u64; 2],
    /// Command names, in the kernel's representation.
    pub comm: [[u64; 2]; COMMS],
    /// Length.
    pub sectors: [u32; 2],
    /// Thread group.
    pub pid: [u32; 2],
    /// The number by which the first sector is sampled.
    pub sector_spread: [u32; 2],
    /// The tests in use, of `test`.
    pub tests: u32,
    /// A bit per operation.
    pub ops: u8,
    /// The number of `comm` entries in use.
    pub comms: u8,
    /// Padding.
    pub spare: [u8; 2],
}

/// `struct config`: constants set before the programs are loaded.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Config {
    /// The selection: at least one of these must hold.
    pub clauses: [Clause; CLAUSES],
    /// For each of the kernel's operations below 16 its `enum op`, four bits each.
    pub ops: u64,
    /// The number of clauses in use.
    pub clause_count: u32,
    /// Records per processor, a power of two.
    pub ring_slots: u32,
    /// Number of buckets less one, a power of two less one.
    pub bucket_mask: u32,
    /// Entries of the table of devices less one, a power of two less one.
    pub device_mask: u32,
    /// Entries of the table of cgroups less one, a power of two less one.
    pub cgroup_mask: u32,
    /// Rows of counters per processor.
    pub device_rows: u32,
    /// The bit of `rq_flags` that marks a step of a flush sequence; 0 if it is unknown.
    pub flush_step: u32,
    /// The operation in `cmd_flags`.
    pub op_mask: u32,
    /// Bits of `cmd_flags`: forced unit access, read ahead, sync, metadata; 0 if one is unknown.
    pub flag_bits: [u32; 4],
    /// Histories of a disk's requests: two per processor.
    pub flow_pasts: u32,
    /// Mask of the table of known processes.
    pub process_mask: u32,
    /// The clauses, a bit each, that select a kind of record.
    pub kinds: [u8; 3],
    /// Keep an entry for each request from issue to completion.
    pub track: u8,
    /// Keep the entry from insertion on.
    pub start: u8,
    /// Issues are observed.
    pub issue: u8,
    /// `block_rq_insert` is used instead of `block_io_start`.
    pub insert_only: u8,
    /// Records include the submitter.
    pub wide: u8,
    /// Read the cgroup.
    pub cgroup: u8,
    /// The submitter's cgroup is used instead of the bio's.
    pub task_cgroup: u8,
    /// Read the command name.
    pub comm: u8,
    /// Read the thread group.
    pub pid: u8,
    /// Count the bios.
    pub merges: u8,
    /// Read the flags.
    pub flags: u8,
    /// Plain stores become visible in order.
    pub ordered: u8,
    /// Distinguish kernel threads from processes.
    pub kernel: u8,
    /// Requests are numbered as they are issued.
    pub numbered: u8,
    /// Clauses whose records are omitted before a ring is full, a bit each.
    pub optional: u8,
    /// The state of a request that has not been issued.
    pub idle: u8,
    /// Find the file of each request.
    pub inode: u8,
    /// And its path.
    pub path: u8,
    /// The clauses, a bit each, for whose requests the relation to others is determined.
    pub flow: u8,
    spare: [u8; 2],
}

const _: () = assert!(size_of::<Clause>() == 160, "struct clause of tap.h");
const _: () = assert!(size_of::<Config>() == 888, "struct config of tap.h");
#[cfg(target_endian = "big")]
compile_error!("the committed BPF object is for little-endian machines");

impl Clause {
    /// A clause that every request satisfies.
    pub const ALL: Clause = Clause {
        sector: [0, u64::MAX],
        wait_ns: [0, u64::MAX],
        service_ns: [0, u64::MAX],
        latency_ns: [0, u64::MAX],
        comm: [[0; 2]; COMMS],
        sectors: [0, u32::MAX],
        pid: [0, u32::MAX],
        sector_spread: [0, u32::MAX],
        tests: 0,
        ops: 0xff,
        comms: 0,
        spare: [0; 2],
    };

    fn words(&self, out: &mut Vec<u8>) {
        let ranges = [self.sector, self.wait_ns, self.service_ns, self.latency_ns];
        for word in ranges.iter().chain(&self.comm).flatten() {
            out.extend(word.to_ne_bytes());
        }
        let narrow = [self.sectors, self.pid, self.sector_spread];
        for word in narrow.iter().flatten().chain([&self.tests]) {
            out.extend(word.to_ne_bytes());
        }
        out.extend([self.ops, self.comms]);
        out.extend(self.spare);
    }
}

impl Config {
    /// The configuration for `needs`, on a kernel with these numbers. `has_start`: the kernel has
    /// `block_io_start`; `unified`: it has one hierarchy of cgroups.
    pub fn new(
        needs: &Needs,
        sizes: &Sizes,
        numbers: &Numbers,
        has_start: bool,
        unified: bool,
    ) -> Config {
        let mut clauses = [Clause::ALL; CLAUSES];
        let several = needs.demand_count() > 1;
        for (slot, clause) in clauses.iter_mut().zip(&needs.clauses) {
            *slot = clause.raw;
            if several {
                // Demands may include different devices.
                slot.tests |= test::DEVICE;
            }
        }
        let wants = |kind: u8| {
            let bits = needs.clauses.iter().enumerate();
            bits.fold(0, |all, (i, c)| all | (c.kinds >> kind & 1) << i)
        };
        let (columns, read) = (&needs.columns, &needs.read);
        let cgroup = read.cgroup || read.owner || needs.cgroups();
        Config {
            clauses,
            ops: numbers.ops,
            clause_count: needs.clauses.len() as u32,
            ring_slots: sizes.ring_slots,
            bucket_mask: sizes.buckets - 1,
            device_mask: sizes.known - 1,
            cgroup_mask: sizes.known - 1,
            device_rows: sizes.device_rows,
            flush_step: numbers.flush_step,
            op_mask: numbers.op_mask,
            flag_bits: numbers.flag_bits,
            flow_pasts: 2 * sizes.processors,
            process_mask: PROCESS_BUCKETS - 1,
            kinds: [kind::REQUEST, kind::RESPONSE, kind::ERROR].map(wants),
            track: needs.track.into(),
            start: needs.start.into(),
            issue: needs.sees_issue(has_start).into(),
            insert_only: (!has_start).into(),
            wide: needs.wide().into(),
            cgroup: cgroup.into(),
            task_cgroup: (unified && cgroup).into(),
            comm: (columns.comm || needs.tests(test::COMM)).into(),
            pid: (read.pid || read.owner || needs.tests(test::PID)).into(),
            merges: columns.merges.into(),
            flags: columns.flags.into(),
            ordered: cfg!(any(target_arch = "x86", target_arch = "x86_64")).into(),
            kernel: read.owner.into(),
            numbered: needs.numbered.into(),
            optional: needs.optional_clauses(),
            idle: numbers.idle,
            inode: needs.files().into(),
            path: columns.file.into(),
            flow: needs.order_clauses(),
            spare: [0; 2],
        }
    }

    /// The bytes of the programs' `.rodata`.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(size_of::<Config>());
        for clause in &self.clauses {
            clause.words(&mut out);
        }
        out.extend(self.ops.to_ne_bytes());
        let sizes = [
            self.clause_count,
            self.ring_slots,
            self.bucket_mask,
            self.device_mask,
            self.cgroup_mask,
            self.device_rows,
            self.flush_step,
            self.op_mask,
        ];
        let last = [self.flow_pasts, self.process_mask];
        for word in sizes.iter().chain(&self.flag_bits).chain(&last) {
            out.extend(word.to_ne_bytes());
        }
        out.extend(self.kinds);
        out.extend([
            self.track,
            self.start,
            self.issue,
            self.insert_only,
            self.wide,
            self.cgroup,
            self.task_cgroup,
            self.comm,
            self.pid,
            self.merges,
            self.flags,
            self.ordered,
            self.kernel,
            self.numbered,
            self.optional,
            self.idle,
            self.inode,
            self.path,
            self.flow,
        ]);
        out.extend(self.spare);
        assert_eq!(out.len(), size_of::<Config>(), "every field is written");
        out
    }
}

/// One event as written by a kernel program: `struct record` without its mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// `CLOCK_MONOTONIC`.
    pub ts_ns: u64,
    /// Identifies the request while it is in flight.
    pub request: u64,
    /// First sector; [`UNKNOWN`] for a flush.
    pub sector: u64,
    /// Insert to issue; of a response whose issue was not observed, insert to complete. [`UNKNOWN`]
    /// if it was not measured.
    pub wait_ns: u64,
    /// Issue to complete; [`UNKNOWN`] if it was not measured.
    pub service_ns: u64,
    /// Length.
    pub bytes: u32,
    /// Device, in the kernel's representation: `major << 20 | minor`.
    pub device: u32,
    /// Of [`kind`].
    pub kind: u8,
    /// Position in `weir_model::Op::ALL`.
    pub op: u8,
    /// Of [`flag`].
    pub flags: u8,
    /// `blk_status_t`; of kernels before 5.18 a negative errno.
    pub status: u16,
    /// Bios beyond the first.
    pub merges: u16,
    /// Processor that issued it.
    pub cpu: u16,
}

/// The submitter of a request: the additional fields of `struct wide_record`. 0 is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Submitter {
    /// Id of the cgroup that owns the first bio.
    pub cgroup: u64,
    /// Command name.
    pub comm: [u64; 2],
    /// Thread group.
    pub pid: u32,
}

/// The relation of a request to the others of its disk, as the programs determine it: further
/// fields of `struct wide_record`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relation {
    /// Requests in flight at its issue, including it.
    pub in_flight: Option<i64>,
    /// Sectors from the last one of the previous request.
    pub seek: Option<i64>,
    /// From the issue of the previous request to its issue.
    pub interarrival_ns: Option<i64>,
}

/// The file of a request: the additional fields of `struct file_record`. 0 is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileOfRecord {
    /// Key of the table of paths.
    pub path: u64,
    /// Number in its file system.
    pub inode: u64,
}

impl Record {
    /// Decodes a record from these words.
    pub fn decode(word: impl Fn(usize) -> u64) -> Record {
        let (sizes, rest) = (word(6), word(7));
        Record {
            ts_ns: word(1),
            request: word(2),
            sector: word(3),
            wait_ns: word(4),
            service_ns: word(5),
            bytes: sizes as u32,
            device: (sizes >> 32) as u32,
            kind: rest as u8 >> 4,
            op: rest as u8 & 15,
            flags: (rest >> 8) as u8,
            status: (rest >> 16) as u16,
            merges: (rest >> 32) as u16,
            cpu: (rest >> 48) as u16,
        }
    }
}

impl Submitter {
    /// Decodes the submitter from the words of a record that has one.
    pub fn decode(words: usize, word: impl Fn(usize) -> u64) -> Submitter {
        let named = words * 8 >= NAMED_RECORD_BYTES;
        Submitter {
            cgroup: word(8),
            pid: word(9) as u32,
            comm: match named {
                true => [word(12), word(13)],
                false => [0; 2],
            },
        }
    }
}

impl Relation {
    /// Decodes the relation from the words of a record that has one.
    pub fn decode(word: impl Fn(usize) -> u64) -> Relation {
        let (in_flight, seek, interarrival_ns) = (word(9) >> 32, word(10) as i64, word(11));
        Relation {
            in_flight: (in_flight != 0).then_some(in_flight as i64),
            seek: (seek != NO_SEEK).then_some(seek),
            interarrival_ns: (interarrival_ns != UNKNOWN).then_some(interarrival_ns as i64),
        }
    }
}

/// The records of the rings that are still needed, with what else they have.
#[derive(Debug)]
pub struct Records {
    /// The records.
    pub records: Vec<Record>,
    /// The submitter of each; empty if they are not needed.
    pub submitters: Vec<Submitter>,
    /// The relation of each to others; empty if the programs do not determine it.
    pub relations: Vec<Relation>,
    /// The file of each; empty if they are not needed.
    pub files: Vec<FileOfRecord>,
    wide: bool,
    with_relations: bool,
    with_files: bool,
}

impl Records {
    /// No records yet; each has `record_bytes` in the ring, and its relation to others if the
    /// programs determine it.
    pub fn new(record_bytes: usize, with_relations: bool) -> Records {
        Records {
            records: Vec::new(),
            submitters: Vec::new(),
            relations: Vec::new(),
            files: Vec::new(),
            wide: record_bytes > RECORD_BYTES,
            with_relations,
            with_files: record_bytes == FILE_RECORD_BYTES,
        }
    }
}

impl Store for Records {
    fn push(&mut self, words: &[AtomicU64]) {
        let word = |i: usize| words[i].load(Ordering::Relaxed);
        self.records.push(Record::decode(word));
        if self.wide {
            self.submitters.push(Submitter::decode(words.len(), word));
        }
        if self.with_relations {
            self.relations.push(Relation::decode(word));
        }
        if self.with_files {
            self.files.push(FileOfRecord {
                path: word(14),
                inode: word(15),
            });
        }
    }

    fn len(&self) -> usize {
        self.records.len()
    }

    fn ts_ns(&mut self, at: usize) -> &mut u64 {
        &mut self.records[at].ts_ns
    }

    fn keep(&mut self, kept: &mut dyn ExactSizeIterator<Item = u32>) {
        let kept: Vec<usize> = kept.map(|at| at as usize).collect();
        keep_only(&mut self.records, &kept);
        if self.wide {
            keep_only(&mut self.submitters, &kept);
        }
        if self.with_relations {
            keep_only(&mut self.relations, &kept);
        }
        if self.with_files {
            keep_only(&mut self.files, &kept);
        }
    }
}

/// Keeps only the elements at these positions, in this order.
fn keep_only<T: Copy>(all: &mut Vec<T>, kept: &[usize]) {
    let few: Vec<T> = kept.iter().map(|at| all[*at]).collect();
    all.clear();
    all.extend(few);
}
