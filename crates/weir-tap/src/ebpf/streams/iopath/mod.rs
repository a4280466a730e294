//! Stream `IOpath`: the requests of block devices, each with the request of a file above it.

use weir_model::Unit;

use super::FILE_SYSTEMS;
use crate::ebpf::Probe;
use crate::ebpf::stream::{
    DiskFields, FieldNumber, FieldValue, KernelStream, ProbeChoice, StreamColumn,
};
use crate::live::LiveTap;

/// The live tap of the stream.
pub static TAP: LiveTap = LiveTap {
    name: "path",
    streams: &[STREAM.name],
    open: |demands, options| STREAM.open(demands, options),
    capabilities: || STREAM.capabilities(),
    needs_inventory: |demand| {
        ["vm", "vdisk", "vsector"]
            .iter()
            .any(|name| STREAM.reads(demand, name))
    },
};

/// A time that is spent at a level; NULL if the request did not cross it.
const fn stage(name: &'static str, offset: usize, doc: &'static str) -> StreamColumn {
    StreamColumn::new(name, FieldValue::unsigned(offset, 8))
        .unit(Unit::Nanoseconds)
        .null(u64::MAX)
        .doc(doc)
        .tested()
        .measured()
}

const PID: FieldNumber = FieldNumber::unsigned(156, 4);
const CGROUP: FieldNumber = FieldNumber::unsigned(104, 8);
const PATH: FieldNumber = FieldNumber::unsigned(96, 8);
const OFFSET: FieldNumber = FieldNumber::unsigned(80, 8);
const SECTOR: FieldNumber = FieldNumber::unsigned(72, 8);
const VSECTOR: FieldNumber = FieldNumber::unsigned(200, 8);
const DEVICE: FieldNumber = FieldNumber::unsigned(164, 4);

const DISK: DiskFields = DiskFields {
    pid: PID,
    cgroup: CGROUP,
    by_kernel: FieldNumber::unsigned(180, 1),
    disk_key: FieldNumber::unsigned(184, 8),
    path: PATH,
    device: DEVICE,
};

/// Block requests with what is above them.
pub static STREAM: KernelStream = KernelStream {
    name: "IOpath",
    doc: "one row per bio of a finished block request, with the request of the file above it and \
          the time spent at each level",
    object: include_bytes!("iopath.bpf.o"),
    event_bytes: 208,
    columns: &[
        StreamColumn::new("ts", FieldValue::Time)
            .doc("when the block request finished; for direct I/O, when that finished"),
        StreamColumn::new("op", FieldValue::Name(FieldNumber::unsigned(176, 1), OPS))
            .doc("r read, w write, f flush, d discard, z write zeroes")
            .tested()
            .grouped(),
        StreamColumn::new("pdisk", FieldValue::Device(DEVICE))
            .doc("the device of the block request")
            .grouped(),
        StreamColumn::new("sector", FieldValue::Number(SECTOR))
            .unit(Unit::Sectors)
            .null(u64::MAX)
            .doc("the first sector of the bio; NULL for a flush")
            .tested(),
        StreamColumn::new("bytes", FieldValue::unsigned(152, 4))
            .unit(Unit::Bytes)
            .doc("of the bio that are in this request")
            .tested()
            .measured(),
        // Its position is that of COLUMN_PATH in the program.
        StreamColumn::new("path", FieldValue::Path(PATH))
            .null(0)
            .doc("the file, by its name when the bio was queued; NULL if untied or without a name")
            .grouped(),
        StreamColumn::new("inode", FieldValue::unsigned(88, 8))
            .null(u64::MAX)
            .doc("the number of the file in its file system; NULL if untied")
            .tested()
            .grouped(),
        StreamColumn::new(
            "fs",
            FieldValue::Name(FieldNumber::unsigned(168, 4), FILE_SYSTEMS),
        )
        .doc("the type of the file system: ext4, xfs, btrfs, f2fs; NULL for another or none")
        .tested()
        .grouped(),
        StreamColumn::new("offset", FieldValue::Number(OFFSET))
            .unit(Unit::Bytes)
            .null(u64::MAX)
            .doc("the first byte in the file; NULL if unknown")
            .tested(),
        StreamColumn::new(
            "flags",
            FieldValue::Letters(FieldNumber::unsigned(177, 1), "DSMAWG"),
        )
        .doc(
            "D direct, S someone waits until it is on the device, M page fault of a mapped file, \
             A read-ahead, W write-back, G with gaps in the file",
        )
        .grouped(),
        StreamColumn::new("vm", FieldValue::VmOfDisk(DISK))
            .doc("the VM of the virtual disk, of the process or of its cgroup; NULL without one"),
        StreamColumn::new("vdisk", FieldValue::Vdisk(DISK)).doc(
            "the virtual disk whose request it is: a tapdisk executes it, or the file or device is \
             the image of that disk alone; else NULL",
        ),
        StreamColumn::new(
            "vsector",
            FieldValue::Vsector(DISK, VSECTOR, OFFSET, SECTOR),
        )
        .unit(Unit::Sectors)
        .doc("the first sector there; NULL without one, and for images that are not raw"),
        StreamColumn::new("pid", FieldValue::Number(PID))
            .doc("the process that submitted it; for a write-back that of a kernel thread")
            .tested()
            .sampled()
            .grouped(),
        StreamColumn::new("tid", FieldValue::unsigned(160, 4))
            .doc("its thread")
            .tested()
            .sampled()
            .grouped(),
        StreamColumn::new("comm", FieldValue::Text(120))
            .doc("the command name of the thread")
            .tested()
            .grouped(),
        StreamColumn::new("cgroup", FieldValue::Cgroup(CGROUP))
            .doc("the cgroup that it is charged to; for a write-back, that of the dirtied page")
            .grouped(),
        StreamColumn::new("user_data", FieldValue::unsigned(112, 8))
            .null(u64::MAX)
            .doc(
                "the number that the application gave to the request of io_uring, else NULL; of a \
                 tapdisk, req_id of the request of the virtual disk",
            ),
        StreamColumn::new("submit", FieldValue::Before(FieldNumber::unsigned(24, 8))).doc(
            "when the tapdisk received it from the VM or the application submitted it; when the \
             bio was queued if no application waits",
        ),
        StreamColumn::new("latency", FieldValue::unsigned(24, 8))
            .unit(Unit::Nanoseconds)
            .doc("ts - submit: the sum of the times at each level")
            .tested()
            .measured(),
        stage(
            "vdisk_wait",
            192,
            "from the receipt by the tapdisk until it submits the request to the kernel",
        ),
        stage(
            "app_wait",
            32,
            "from the submission until its turn: behind others of the call, or for a worker",
        ),
        stage(
            "file",
            40,
            "in system call and file system, until the bio was queued",
        ),
        stage(
            "block_wait",
            48,
            "from there until the device received the request",
        ),
        stage("device", 56, "until the device had finished the request"),
        stage("completion", 64, "until the direct I/O had finished"),
        StreamColumn::new("request", FieldValue::unsigned(136, 8))
            .doc("a number of the block request, the same in the rows of all its bios"),
        StreamColumn::new("parent", FieldValue::unsigned(144, 8))
            .null(0)
            .doc(
                "a number of the direct I/O or bio, the same in all block requests that it needed",
            ),
        StreamColumn::new("part", FieldValue::unsigned(174, 2))
            .doc("the position of the bio in the block request, from 0")
            .tested(),
        StreamColumn::new("parts", FieldValue::unsigned(172, 2))
            .doc("the number of bios of the block request")
            .tested(),
        StreamColumn::new(
            "untied",
            FieldValue::Name(FieldNumber::unsigned(181, 1), CAUSES),
        )
        .doc("why no file is known; NULL if it is")
        .tested()
        .grouped(),
        StreamColumn::new("error", FieldValue::Status(FieldNumber::signed(178, 2)))
            .doc("errno of a failed request; else NULL"),
        StreamColumn::new("cpu", FieldValue::Number(FieldNumber::CPU))
            .doc("the processor on which it finished")
            .tested()
            .grouped(),
        StreamColumn::new("host", FieldValue::Host)
            .doc("this host")
            .grouped(),
    ],
    flush: None,
    counters: &[
        ("events_lost", "table_full"),
        ("untied", "metadata"),
        ("untied", "no_file"),
        ("untied", "no_data"),
        ("untied", "no_file_system"),
        ("untied", "not_seen"),
        ("untied", "ambiguous"),
    ],
    probes,
};

const OPS: &[(i64, &str)] = &[
    (b'r' as i64, "r"),
    (b'w' as i64, "w"),
    (b'f' as i64, "f"),
    (b'd' as i64, "d"),
    (b'z' as i64, "z"),
];

/// `enum cause` of the program.
const CAUSES: &[(i64, &str)] = &[
    (1, "metadata"),
    (2, "no_file"),
    (3, "no_data"),
    (4, "no_file_system"),
    (5, "not_seen"),
    (6, "ambiguous"),
];

/// Bios and requests.
const BLOCK: [Probe; 3] = [
    Probe::new("on_bio_queue", "block_bio_queue", "no paths"),
    Probe::new("on_bio_complete", "block_bio_complete", "no paths"),
    Probe::new("on_request_complete", "block_rq_complete", "no paths"),
];

const ISSUE: Probe = Probe::new("on_request_issue", "block_rq_issue", "device is unknown");

/// The columns that need the time when the device receives a request.
const ISSUED: [&str; 4] = ["submit", "latency", "block_wait", "device"];

/// Direct I/O.
const DIRECT: [Probe; 3] = [
    Probe::new("on_direct_begin", "iomap_dio_rw_begin", "it is untied"),
    Probe::new("on_direct_queued", "iomap_dio_rw_queued", "it is untied"),
    Probe::new("on_direct_complete", "iomap_dio_complete", "it is untied"),
];

/// Requests of io_uring.
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

const CALL: Probe = Probe::new("on_call", "sys_enter", "submit is that of the bio");

const FAULT: Probe = Probe::new("on_fault", "mm_filemap_fault", "flag M is missing");

/// The columns that need the beginning of the system call.
const TIMES: [&str; 5] = ["submit", "latency", "vdisk_wait", "app_wait", "file"];

/// The columns that need the request of io_uring.
const ORIGIN: [&str; 4] = ["user_data", "vm", "vdisk", "vsector"];

/// The probes for the columns of the demands.
fn probes(choice: &ProbeChoice<'_>) -> Result<Vec<Probe>, String> {
    let has = |probe: &Probe| choice.has(probe.tracepoint);
    let mut chosen = [&BLOCK[..], &DIRECT].concat();
    if ISSUED.iter().any(|column| choice.reads(column)) {
        chosen.push(ISSUE);
    }
    choice.require(&chosen)?;
    let reads_times = TIMES.iter().any(|column| choice.reads(column));
    let reads_origin = ORIGIN.iter().any(|column| choice.reads(column));
    if (reads_times || reads_origin) && URING.iter().all(has) {
        chosen.extend(URING);
    }
    // A fault ends with the next system call.
    if (reads_times || choice.reads("flags")) && has(&CALL) && has(&FAULT) {
        chosen.extend([CALL, FAULT]);
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_and_the_table_agree() {
        assert_eq!(STREAM.fault(), None);
        // The positions that the program has.
        let columns = [
            (5, "path"),
            (10, "vm"),
            (11, "vdisk"),
            (12, "vsector"),
            (13, "pid"),
            (14, "tid"),
            (15, "comm"),
            (16, "cgroup"),
            (18, "submit"),
            (19, "latency"),
            (23, "block_wait"),
            (24, "device"),
            (26, "request"),
        ];
        for (at, name) in columns {
            assert_eq!(STREAM.columns[at].name, name);
        }
        let counted = STREAM.counters.iter().skip(1).map(|(_, cause)| *cause);
        assert!(CAUSES.iter().map(|(_, cause)| *cause).eq(counted));
    }
}
