//! Stream `FileIO`: the requests that file systems send towards their devices.

use weir_model::{Demand, Unit};

use crate::ebpf::Probe;
use crate::ebpf::stream::{FieldNumber, FieldValue, KernelStream, ProbeChoice, StreamColumn};
use crate::ebpf::streams::FILE_SYSTEMS;
use crate::live::LiveTap;

/// The live tap of the stream.
pub static TAP: LiveTap = LiveTap {
    name: "file",
    streams: &[STREAM.name],
    open: |demands, options| STREAM.open(demands, options),
    capabilities: || STREAM.capabilities(),
    needs_inventory: |demand| reads_vm(demand),
};

fn reads_vm(demand: &Demand) -> bool {
    STREAM.reads(demand, "vm")
}

const PATH: FieldNumber = FieldNumber::unsigned(56, 8);
const PID: FieldNumber = FieldNumber::unsigned(104, 4);
const CGROUP: FieldNumber = FieldNumber::unsigned(72, 8);
const BY_KERNEL: FieldNumber = FieldNumber::unsigned(124, 1);

/// Requests of file systems.
pub static STREAM: KernelStream = KernelStream {
    name: "FileIO",
    doc: "one row per finished request that a file system sent towards a device",
    object: include_bytes!("fileio.bpf.o"),
    event_bytes: 128,
    columns: &[
        StreamColumn::new("ts", FieldValue::Time).doc("when the request finished"),
        StreamColumn::new("op", FieldValue::Name(FieldNumber::unsigned(120, 1), OPS))
            .doc("r read, w write, f fsync, t truncate, p punch a hole, d discard, z write zeroes")
            .tested()
            .grouped(),
        // Its position is that of COLUMN_PATH in the program.
        StreamColumn::new("path", FieldValue::Path(PATH))
            .null(0)
            .doc("the file, by its name when the request began; NULL without a name")
            .grouped(),
        // Its position is that of COLUMN_OPENED in the program.
        StreamColumn::new(
            "opened",
            FieldValue::Opened(PATH, FieldNumber::unsigned(64, 8)),
        )
        .doc(
            "the file that the process opened, if that is one of an overlayfs, which `path` has \
             below; else NULL",
        ),
        StreamColumn::new("inode", FieldValue::unsigned(32, 8))
            .null(u64::MAX)
            .doc("the number of the file in its file system; NULL for a discard")
            .tested()
            .sampled()
            .grouped(),
        StreamColumn::new(
            "fs",
            FieldValue::Name(FieldNumber::unsigned(116, 4), FILE_SYSTEMS),
        )
        .doc("the type of the file system: ext4, xfs, btrfs, f2fs; NULL for another")
        .tested()
        .grouped(),
        StreamColumn::new("pdisk", FieldValue::Device(FieldNumber::unsigned(112, 4)))
            .doc("the device of the file system; with several, one of them")
            .grouped(),
        StreamColumn::new("offset", FieldValue::unsigned(40, 8))
            .unit(Unit::Bytes)
            .null(u64::MAX)
            .doc(
                "the first byte in the file; of a truncation its new size; NULL for an fsync or a \
                 discard",
            )
            .tested(),
        StreamColumn::new("bytes", FieldValue::unsigned(48, 8))
            .unit(Unit::Bytes)
            .doc(
                "what was read, written or punched, or requested if that failed; the space that a \
                 truncation freed",
            )
            .tested()
            .measured(),
        StreamColumn::new(
            "flags",
            FieldValue::Letters(FieldNumber::unsigned(121, 1), "DSMAWG"),
        )
        .doc(
            "D direct, S someone waits until it is on the device, M page fault of a mapped file, \
             A read-ahead, W write-back, G with gaps in the file",
        )
        .grouped(),
        StreamColumn::new("vm", FieldValue::Vm(PID, CGROUP, BY_KERNEL))
            .doc("the VM of the process or of its cgroup; NULL without one")
            .grouped(),
        StreamColumn::new("pid", FieldValue::Number(PID))
            .doc("the process that began it; for a write-back that of a kernel thread")
            .tested()
            .sampled()
            .grouped(),
        StreamColumn::new("tid", FieldValue::unsigned(108, 4))
            .doc("its thread")
            .tested()
            .sampled()
            .grouped(),
        StreamColumn::new("comm", FieldValue::Text(88))
            .doc("the command name of the thread")
            .tested()
            .grouped(),
        StreamColumn::new("cgroup", FieldValue::Cgroup(CGROUP))
            .doc("the cgroup that it is charged to")
            .grouped(),
        StreamColumn::new("user_data", FieldValue::unsigned(80, 8))
            .null(u64::MAX)
            .doc(
                "the number that the application gave to the request of io_uring, else NULL; of a \
                 tapdisk, req_id of the request of the virtual disk",
            ),
        StreamColumn::new("begin", FieldValue::Before(FieldNumber::unsigned(24, 8)))
            .doc("when the file system received or made the request"),
        StreamColumn::new("latency", FieldValue::unsigned(24, 8))
            .unit(Unit::Nanoseconds)
            .doc("ts - begin")
            .tested()
            .measured(),
        StreamColumn::new("error", FieldValue::Status(FieldNumber::signed(122, 2)))
            .doc("errno of a failed request; else NULL"),
        StreamColumn::new("level", FieldValue::Constant("file"))
            .doc("where in the stack it was seen: file"),
        StreamColumn::new("cpu", FieldValue::Number(FieldNumber::CPU))
            .doc("the processor on which it finished")
            .tested()
            .grouped(),
        StreamColumn::new("host", FieldValue::Host)
            .doc("this host")
            .grouped(),
    ],
    counters: &[
        ("events_lost", "table_full"),
        ("untied", "metadata"),
        ("untied", "no_file"),
        ("untied", "flush"),
        ("unseen", "no_end"),
        ("unseen", "no_begin"),
    ],
    probes,
    flush: None,
};

const OPS: &[(i64, &str)] = &[
    (b'r' as i64, "r"),
    (b'w' as i64, "w"),
    (b'f' as i64, "f"),
    (b't' as i64, "t"),
    (b'p' as i64, "p"),
    (b'd' as i64, "d"),
    (b'z' as i64, "z"),
];

/// Requests with data, and discards.
const DATA: [Probe; 6] = [
    Probe::new("on_direct_begin", "iomap_dio_rw_begin", "no direct I/O"),
    Probe::new("on_direct_queued", "iomap_dio_rw_queued", "no direct I/O"),
    Probe::new("on_direct_complete", "iomap_dio_complete", "no direct I/O"),
    Probe::new("on_bio_queue", "block_bio_queue", "no buffered I/O"),
    Probe::new("on_bio_complete", "block_bio_complete", "no buffered I/O"),
    Probe::new(
        "on_request_complete",
        "block_rq_complete",
        "no buffered I/O",
    ),
];

/// The user data of io_uring.
const URING: [Probe; 2] = [
    Probe::new(
        "on_uring_submit",
        "io_uring_submit_req",
        "user_data is NULL",
    ),
    Probe::new(
        "on_uring_punt",
        "io_uring_queue_async_work",
        "user_data is NULL",
    ),
];

/// Page faults, and their end; one without the other would mark reads as faults.
const FAULTS: [Probe; 2] = [
    Probe::new("on_fault", "mm_filemap_fault", "flag M is missing"),
    Probe::new("on_read", "mm_filemap_get_pages", "flag M is missing"),
];

const EXT4_SYNC: [Probe; 2] = [
    Probe::new("on_ext4_sync", "ext4_sync_file_enter", "no fsync of ext4"),
    Probe::new("on_ext4_synced", "ext4_sync_file_exit", "no fsync of ext4"),
];

/// The fsyncs that end with the system call.
const SYNC: [Probe; 2] = [
    Probe::new("on_xfs_sync", "xfs_file_fsync", "no fsync of xfs"),
    Probe::new("on_btrfs_sync", "btrfs_sync_file", "no fsync of btrfs"),
];

const EXT4_TRUNCATE: [Probe; 2] = [
    Probe::new(
        "on_ext4_truncate",
        "ext4_truncate_enter",
        "no truncation of ext4",
    ),
    Probe::new(
        "on_ext4_truncated",
        "ext4_truncate_exit",
        "no truncation of ext4",
    ),
];

const XFS_TRUNCATE: [Probe; 2] = [
    Probe::new(
        "on_xfs_truncate",
        "xfs_itruncate_extents_start",
        "no truncation of xfs",
    ),
    Probe::new(
        "on_xfs_truncated",
        "xfs_itruncate_extents_end",
        "no truncation of xfs",
    ),
];

/// The truncations that end with the system call.
const TRUNCATE: [Probe; 2] = [
    Probe::new(
        "on_btrfs_regular",
        "btrfs_truncate_show_fi_regular",
        "no truncation of btrfs",
    ),
    Probe::new(
        "on_btrfs_inline",
        "btrfs_truncate_show_fi_inline",
        "no truncation of btrfs",
    ),
];

/// Punched holes, which end with the system call.
const HOLE: [Probe; 2] = [
    Probe::new("on_ext4_hole", "ext4_punch_hole", "no holes of ext4"),
    Probe::new("on_xfs_hole", "xfs_free_file_space", "no holes of xfs"),
];

const CALL_END: Probe = Probe::new(
    "on_call_end",
    "sys_exit",
    "no fsync of xfs and btrfs, no truncation of btrfs, no holes",
);

/// The probes for the operations and columns of the demands.
fn probes(choice: &ProbeChoice<'_>) -> Result<Vec<Probe>, String> {
    let mut chosen = Vec::new();
    let has = |probe: &Probe| choice.has(probe.tracepoint);
    let has_all = |probes: &[Probe]| probes.iter().all(has);
    if choice.admits("op", &["r", "w", "d", "z"]) {
        choice.require(&DATA)?;
        chosen.extend(DATA);
        if choice.reads("user_data") && has_all(&URING) {
            chosen.extend(URING);
        }
        if choice.reads("flags") && choice.admits("op", &["r"]) && has_all(&FAULTS) {
            chosen.extend(FAULTS);
        }
    }
    let of_op = |op: &'static str, pairs: &[[Probe; 2]]| {
        let pairs = pairs
            .iter()
            .filter(|pair| choice.admits("op", &[op]) && has_all(*pair));
        pairs.flatten().copied().collect::<Vec<Probe>>()
    };
    chosen.extend(of_op("f", &[EXT4_SYNC]));
    chosen.extend(of_op("t", &[EXT4_TRUNCATE, XFS_TRUNCATE]));
    if has(&CALL_END) {
        let ended_by_call = [("f", SYNC), ("t", TRUNCATE), ("p", HOLE)];
        let single = ended_by_call
            .iter()
            .filter(|(op, _)| choice.admits("op", &[op]));
        let probes: Vec<Probe> = single
            .flat_map(|(_, probes)| probes)
            .filter(|probe| has(probe))
            .copied()
            .collect();
        if !probes.is_empty() {
            chosen.extend(probes);
            chosen.push(CALL_END);
        }
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_and_the_table_agree() {
        assert_eq!(STREAM.fault(), None);
        assert_eq!(STREAM.columns[2].name, "path");
        assert_eq!(STREAM.columns[3].name, "opened");
    }
}
