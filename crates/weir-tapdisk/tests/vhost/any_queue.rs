//! Random queues: for any content, each offered request completes once or the queue is marked
//! broken, and the image is unchanged where nothing was written.

use std::fs::File;

use proptest::prelude::*;
use weir_tapdisk::disk::ServedDisk;
use weir_tapdisk::engine::EngineOption;
use weir_tapdisk::vhost::{OfflineQueue, run_queue};

use super::*;
use crate::server::{Folder, disk_options};

const MEMORY_BYTES: usize = 0x4000;
const SIZE: u16 = 8;
const RINGS: [u64; 3] = [0, 0x100, 0x200];
/// Headers of requests of several kinds, 16 bytes each, followed by ranges.
const HEADERS: u64 = 0x400;
const RANGES: u64 = 0x500;
const IMAGE_BYTES: u64 = 1 << 16;

fn descriptor() -> impl Strategy<Value = Desc> {
    let header = (0..8_u64).prop_map(|i| HEADERS + 16 * i);
    let malformed = prop_oneof![
        Just(u64::MAX - 7),
        Just(MEMORY_BYTES as u64 - 100),
        Just(1 << 40)
    ];
    let address = prop_oneof![
        4 => header,
        2 => Just(RANGES),
        4 => 0x600..0x3000_u64,
        1 => Just(0x1f00_u64),
        1 => malformed,
        1 => any::<u64>(),
    ];
    let length = prop_oneof![
        4 => Just(16_u32),
        3 => Just(512),
        3 => Just(1),
        1 => 0..2000_u32,
        1 => any::<u32>(),
    ];
    let flags = prop_oneof![4 => Just(NEXT), 3 => Just(WRITABLE), 3 => Just(NEXT | WRITABLE), 1 => 0..8_u16];
    let next = prop_oneof![9 => 0..SIZE, 1 => any::<u16>()];
    (address, length, flags, next).prop_map(|(a, l, f, n)| Desc(a, l, f, n))
}

/// Three valid requests of any kinds, with some descriptors replaced.
fn descriptors() -> impl Strategy<Value = Vec<Desc>> {
    let kinds = prop::collection::vec(0..8_u64, 3);
    let replaced = prop::collection::vec((0..usize::from(SIZE), descriptor()), 0..4);
    (kinds, replaced).prop_map(|(kinds, replaced)| {
        let header = |i: usize, next| Desc(HEADERS + 16 * kinds[i], 16, NEXT, next);
        let status = |i: u64| Desc(0x600 + i, 1, WRITABLE, 0);
        // Only reads and serial numbers are written by the device.
        let flags = |i: usize| {
            if matches!(kinds[i], 0 | 3) {
                NEXT | WRITABLE
            } else {
                NEXT
            }
        };
        let data = |i: usize| {
            if kinds[i] == 4 || kinds[i] == 5 {
                (RANGES, 16)
            } else {
                (0x800, 1024)
            }
        };
        let body = |i: usize, next| Desc(data(i).0, data(i).1, flags(i), next);
        let mut descriptors = vec![
            header(0, 1),
            body(0, 2),
            status(0),
            header(1, 4),
            body(1, 5),
            status(1),
            header(2, 7),
            status(2),
        ];
        for (place, descriptor) in replaced {
            descriptors[place] = descriptor;
        }
        descriptors
    })
}

fn memory(descriptors: &[Desc], heads: &[u16], sectors: &[u64]) -> Vec<u8> {
    let mut memory = vec![0; MEMORY_BYTES];
    let mut put = |at: u64, bytes: &[u8]| {
        memory[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    };
    for (i, descriptor) in descriptors.iter().enumerate() {
        put(16 * i as u64, &descriptor.bytes());
        // The same descriptors as an indirect table.
        put(0x3000 + 16 * i as u64, &descriptor.bytes());
    }
    put(RINGS[1] + 2, &(heads.len() as u16).to_le_bytes());
    for (i, head) in heads.iter().enumerate() {
        put(RINGS[1] + 4 + 2 * i as u64, &head.to_le_bytes());
    }
    let kinds = [READ, WRITE, FLUSH, GET_ID, DISCARD, WRITE_ZEROES, 14, 99];
    for (i, (kind, sector)) in kinds.iter().zip(sectors).enumerate() {
        let mut header = words(&[*kind, 0]);
        header.extend(sector.to_le_bytes());
        put(HEADERS + 16 * i as u64, &header);
    }
    put(RANGES, &longs(&[0, 8, 16, 8 | 1 << 32]));
    memory
}

proptest! {
    #[test]
    fn each_request_ends_once_or_the_queue_breaks(
        descriptors in descriptors(),
        heads in prop_oneof![
            5 => prop::sample::subsequence(vec![0, 3, 6], 1..=3),
            1 => prop::sample::subsequence((0..SIZE).collect::<Vec<_>>(), 0..=SIZE as usize),
        ],
        sectors in prop::collection::vec(prop_oneof![9 => 0..140_u64, 1 => any::<u64>()], 8),
        event_idx: bool,
        indirect: bool,
        read_only: bool,
    ) {
        let folder = Folder::new();
        let filling = vec![0x33; IMAGE_BYTES as usize];
        std::fs::write(folder.image(), &filling).unwrap();
        let mut options = disk_options(&folder.image());
        options.engine = EngineOption::Sync;
        options.read_only = read_only;
        let disk = ServedDisk::open(options).unwrap();
        let queue = OfflineQueue { size: SIZE, rings: RINGS, base: 0, event_idx, indirect };
        let end = run_queue(&disk, &memory(&descriptors, &heads, &sectors), queue).unwrap();
        let number = |at: usize| u16::from_le_bytes([end.memory[at], end.memory[at + 1]]);
        let used = RINGS[2] as usize;
        let mut ended: Vec<u16> = (0..number(used + 2) % (SIZE + 1))
            .map(|i| number(used + 4 + 8 * usize::from(i)))
            .collect();
        // A read that the guest requested may have overwritten the rings.
        let rings_are_whole = descriptors.iter().all(|d| d.0 >= 0x400);
        // Requests may complete in any order, as on a real disk.
        ended.sort_unstable();
        if end.broken.is_none() && rings_are_whole {
            prop_assert_eq!(&ended, &heads);
        }
        prop_assert_eq!(disk.counters().in_flight, 0);
        prop_assert_eq!(File::open(folder.image()).unwrap().metadata().unwrap().len(), IMAGE_BYTES);
        let wrote = disk.counters().of(Op::Write).bytes
            + disk.counters().of(Op::Discard).bytes
            + disk.counters().of(Op::WriteZeroes).bytes;
        if wrote == 0 {
            prop_assert_eq!(std::fs::read(folder.image()).unwrap(), filling);
        }
        prop_assert!(!read_only || wrote == 0);
    }
}
