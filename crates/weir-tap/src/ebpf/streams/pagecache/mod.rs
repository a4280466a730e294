//! Stream `PageCache`: how the page cache served the accesses to files, counted in the kernel.

use weir_model::{Alias, Demand, Unit};

use crate::ebpf::Probe;
use crate::ebpf::stream::{FieldNumber, FieldValue, KernelStream, ProbeChoice, StreamColumn};
use crate::ebpf::streams::FILE_SYSTEMS;
use crate::live::LiveTap;

/// The live tap of the stream.
pub static TAP: LiveTap = LiveTap {
    name: "cache",
    streams: &[STREAM.name],
    open: |demands, options| STREAM.open(demands, options),
    capabilities: || STREAM.capabilities(),
    needs_inventory: |demand| reads_vm(demand),
};

fn reads_vm(demand: &Demand) -> bool {
    STREAM.reads(demand, "vm")
}

const PID: FieldNumber = FieldNumber::unsigned(112, 4);
const CGROUP: FieldNumber = FieldNumber::unsigned(72, 8);
const BY_KERNEL: FieldNumber = FieldNumber::unsigned(125, 1);

/// A column of pages.
const fn pages(name: &'static str, offset: usize, doc: &'static str) -> StreamColumn {
    let value = FieldValue::unsigned(offset, 4);
    StreamColumn::new(name, value).doc(doc).tested().measured()
}

/// The same in bytes.
const fn bytes(name: &'static str, offset: usize, doc: &'static str) -> StreamColumn {
    let value = FieldValue::unsigned(offset, 8);
    let column = StreamColumn::new(name, value).unit(Unit::Bytes);
    column.doc(doc).tested().measured()
}

/// Counts of accesses to the page cache.
pub static STREAM: KernelStream = KernelStream {
    name: "PageCache",
    doc: "what the page cache did for a file, an operation and a process in 100 ms",
    object: include_bytes!("pagecache.bpf.o"),
    event_bytes: 128,
    columns: &[
        StreamColumn::new("ts", FieldValue::Time)
            .doc("the start of the interval, of usually 100 ms"),
        StreamColumn::new("op", FieldValue::Name(FieldNumber::unsigned(124, 1), OPS))
            .doc("r read call, m page fault of a mapped file, w write, a requested read-ahead")
            .tested()
            .grouped(),
        // Its position is that of COLUMN_PATH in the program.
        StreamColumn::new("path", FieldValue::Path(FieldNumber::unsigned(32, 8)))
            .null(0)
            .aliases(&[Alias::same("file")])
            .doc("the file; NULL without a name")
            .grouped(),
        StreamColumn::new("inode", FieldValue::unsigned(24, 8))
            .doc("the number of the file in its file system")
            .tested()
            .sampled()
            .grouped(),
        StreamColumn::new(
            "fs",
            FieldValue::Name(FieldNumber::unsigned(120, 4), FILE_SYSTEMS),
        )
        .doc("the type of the file system: ext4, xfs, btrfs, f2fs; NULL for another")
        .tested()
        .grouped(),
        StreamColumn::new("pdisk", FieldValue::Device(FieldNumber::unsigned(116, 4)))
            .doc("the device of the file system; NULL if it has no number of a block device")
            .grouped(),
        pages("hits", 96, "pages that were accessed and in the cache").null(u32::MAX as u64),
        pages("misses", 100, "pages that were accessed and not there"),
        pages("readahead", 104, "pages added that no call needed yet"),
        pages("dirtied", 108, "pages that became dirty"),
        bytes("hit_bytes", 40, "hits in bytes, whole pages").null(u64::MAX),
        bytes("miss_bytes", 48, "misses in bytes"),
        bytes("readahead_bytes", 56, "readahead in bytes"),
        bytes("dirtied_bytes", 64, "dirtied in bytes"),
        StreamColumn::new("vm", FieldValue::Vm(PID, CGROUP, BY_KERNEL))
            .doc("the VM of the process or of its cgroup; NULL without one")
            .grouped(),
        StreamColumn::new("pid", FieldValue::Number(PID))
            .doc("the process")
            .tested()
            .sampled()
            .grouped(),
        StreamColumn::new("comm", FieldValue::Text(80))
            .doc("the command name of the process")
            .tested()
            .grouped(),
        StreamColumn::new("cgroup", FieldValue::Cgroup(CGROUP))
            .doc("the cgroup of the process")
            .grouped(),
        StreamColumn::new("level", FieldValue::Constant("file"))
            .doc("where in the stack it was seen: file"),
        StreamColumn::new("host", FieldValue::Host)
            .doc("this host")
            .grouped(),
    ],
    counters: &[("events_lost", "table_full")],
    probes,
    flush: Some("flush"),
};

const OPS: &[(i64, &str)] = &[
    (b'r' as i64, "r"),
    (b'm' as i64, "m"),
    (b'w' as i64, "w"),
    (b'a' as i64, "a"),
];

/// What adds pages, and for whom.
const ACCESSES: [Probe; 7] = [
    Probe::new("on_add", "mm_filemap_add_to_page_cache", "no misses"),
    Probe::new("on_get_pages", "mm_filemap_get_pages", "no reads"),
    Probe::new("on_sync_read_ahead", "page_cache_sync_ra", "no reads"),
    Probe::new("on_async_read_ahead", "page_cache_async_ra", "no reads"),
    Probe::new(
        "on_read_ahead",
        "page_cache_ra_unbounded",
        "no requested read-ahead",
    ),
    Probe::new("on_map_pages", "mm_filemap_map_pages", "no page faults"),
    Probe::new("on_fault", "mm_filemap_fault", "no page faults"),
];

/// The ranges that file systems write.
const WRITES: [Probe; 3] = [
    Probe::new("on_ext4_write", "ext4_write_begin", "no writes of ext4"),
    Probe::new(
        "on_ext4_delayed_write",
        "ext4_da_write_begin",
        "no writes of ext4",
    ),
    Probe::new(
        "on_xfs_write",
        "xfs_file_buffered_write",
        "no writes of xfs",
    ),
];

const DIRTY: Probe = Probe::new("on_dirty", "writeback_dirty_folio", "no dirtied pages");

/// The probes for the operations and columns of the demands.
fn probes(choice: &ProbeChoice<'_>) -> Result<Vec<Probe>, String> {
    let mut chosen = Vec::new();
    let counts = [
        "hits",
        "misses",
        "readahead",
        "hit_bytes",
        "miss_bytes",
        "readahead_bytes",
    ];
    let dirtied = ["dirtied", "dirtied_bytes"];
    let reads = |columns: &[&str]| columns.iter().any(|column| choice.reads(column));
    let writes = choice.admits("op", &["w"]);
    // A query without these columns counts rows.
    let only_dirtied = reads(&dirtied) && !reads(&counts);
    if !only_dirtied {
        // Whether an added page is a miss of a write depends on the absence of a read.
        chosen.extend(ACCESSES);
    }
    if writes {
        if !only_dirtied {
            chosen.extend(WRITES.into_iter().filter(|p| choice.has(p.tracepoint)));
        }
        if reads(&dirtied) || !reads(&counts) {
            chosen.push(DIRTY);
        }
    }
    choice.require(&chosen)?;
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_and_the_table_agree() {
        assert_eq!(STREAM.fault(), None);
        assert_eq!(STREAM.columns[2].name, "path");
    }
}
