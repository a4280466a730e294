//! The fuzz target `virtqueue`.

use std::fs::File;
use std::sync::{Arc, OnceLock};

use weir_tapdisk::disk::{DiskOptions, ServedDisk};
use weir_tapdisk::engine::EngineOption;
use weir_tapdisk::vhost::{OfflineQueue, run_queue};

/// A guest's memory, and its disk.
const MEMORY_BYTES: usize = 32 << 10;
const DISK_BYTES: u64 = 64 << 10;
/// The bytes that describe the queue.
const HEADER_BYTES: usize = 10;

/// A queue and a guest's memory, on a writable and on a read-only disk. Ten bytes describe the
/// queue: log2 of its size, flags (event indices, indirect tables), the base, and the addresses of
/// descriptors, available and used ring; the rest is the memory. No request is in flight at the
/// end, and nothing outside the guest's memory or disk is changed.
pub fn virtqueue(data: &[u8]) {
    let Some((header, memory)) = data.split_at_checked(HEADER_BYTES) else {
        return;
    };
    let number = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let queue = OfflineQueue {
        size: 1 << (header[0] % 11),
        event_idx: header[1] & 1 != 0,
        indirect: header[1] & 2 != 0,
        base: number(2),
        rings: [number(4), number(6), number(8)].map(u64::from),
    };
    let mut memory = memory.to_vec();
    memory.resize(MEMORY_BYTES, 0);
    let disks = disks();
    // The image is written in the first round, so its content is known only before that.
    for (disk, file) in [
        (&disks.writable, None),
        (&disks.read_only, Some(&disks.file)),
    ] {
        let before = file.map(contents);
        if let Ok(end) = run_queue(disk, &memory, queue) {
            assert_eq!(end.memory.len(), MEMORY_BYTES);
        }
        assert_eq!(disk.counters().in_flight, 0, "nothing is on its way");
        assert_eq!(file.map(contents), before, "a disk that may not be written");
    }
    let bytes = disks.file.metadata().expect("it is open").len();
    assert_eq!(bytes, DISK_BYTES, "a disk keeps its size");
}

struct Disks {
    writable: Arc<ServedDisk>,
    read_only: Arc<ServedDisk>,
    file: File,
}

fn disks() -> &'static Disks {
    static DISKS: OnceLock<Disks> = OnceLock::new();
    DISKS.get_or_init(|| {
        let name = format!("weir-fuzz-virtqueue-{}.raw", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut as_new = File::options();
        as_new.read(true).write(true).create(true).truncate(true);
        let file = as_new.open(&path).expect("a scratch file");
        file.set_len(DISK_BYTES).expect("room for it");
        let open = |read_only| {
            let mut options = DiskOptions::new(&path);
            options.read_only = read_only;
            options.block_size = Some(512);
            options.engine = EngineOption::Sync;
            options.lock = false;
            ServedDisk::open(options).expect("the scratch file is a disk")
        };
        let (writable, read_only) = (open(false), open(true));
        // It is removed with this process.
        std::fs::remove_file(&path).expect("it was there just now");
        Disks {
            writable,
            read_only,
            file,
        }
    })
}

fn contents(file: &File) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let mut contents = vec![0; DISK_BYTES as usize];
    file.read_exact_at(&mut contents, 0)
        .expect("the scratch file");
    contents
}
