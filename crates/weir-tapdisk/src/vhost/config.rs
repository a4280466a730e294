//! The features and configuration space of a disk (virtio 1.2, sections 5.2.3 and 5.2.4).

use virtio_bindings::bindings::{virtio_blk as blk, virtio_config, virtio_ring};

use super::command::{RANGE_SECTORS_MAX, RANGES_MAX};
use crate::disk::ServedDisk;

/// Maximum number of buffers of a request: what fits a queue of QEMU's default size, beside header
/// and status.
const SEGMENTS_MAX: u32 = 126;

/// The vhost-user bit of the virtio features: there are protocol features.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;
/// `VIRTIO_F_EVENT_IDX`: driver and device announce at which request they need a notification.
pub const EVENT_IDX: u64 = 1 << virtio_ring::VIRTIO_RING_F_EVENT_IDX;
/// `VIRTIO_F_INDIRECT_DESC`: chains may be in tables of their own.
pub const INDIRECT_DESC: u64 = 1 << virtio_ring::VIRTIO_RING_F_INDIRECT_DESC;
/// `VIRTIO_BLK_F_FLUSH`: the driver can flush, so that writes may stay in a cache.
pub const FLUSH: u64 = 1 << blk::VIRTIO_BLK_F_FLUSH;

/// The features of this disk, with several queues or one.
pub fn features(disk: &ServedDisk, queues: u16) -> u64 {
    let mut features = PROTOCOL_FEATURES
        | EVENT_IDX
        | INDIRECT_DESC
        | FLUSH
        // Legacy drivers may split their buffers in any way, too.
        | 1 << virtio_config::VIRTIO_F_ANY_LAYOUT
        | 1 << virtio_config::VIRTIO_F_VERSION_1
        | 1 << blk::VIRTIO_BLK_F_SEG_MAX
        | 1 << blk::VIRTIO_BLK_F_BLK_SIZE
        | 1 << blk::VIRTIO_BLK_F_TOPOLOGY;
    if queues > 1 {
        features |= 1 << blk::VIRTIO_BLK_F_MQ;
    }
    if disk.is_read_only() {
        features |= 1 << blk::VIRTIO_BLK_F_RO;
        return features;
    }
    if disk.discards() {
        features |= 1 << blk::VIRTIO_BLK_F_DISCARD;
    }
    features | 1 << blk::VIRTIO_BLK_F_WRITE_ZEROES
}

/// The configuration space, `struct virtio_blk_config` up to the last supported field.
pub fn space(disk: &ServedDisk, queues: u16) -> Vec<u8> {
    let block_sectors = disk.block_size() / 512;
    let mut space = Space::default();
    space.put(&disk.sectors().to_le_bytes()); // capacity
    space.put(&0_u32.to_le_bytes()); // size_max: no bound
    space.put(&SEGMENTS_MAX.to_le_bytes());
    space.put(&[0; 4]); // geometry: unused
    space.put(&disk.block_size().to_le_bytes());
    space.put(&[0, 0]); // physical_block_exp, alignment_offset
    space.put(&1_u16.to_le_bytes()); // min_io_size, in blocks
    space.put(&0_u32.to_le_bytes()); // opt_io_size: not known
    space.put(&[1, 0]); // writeback, unused
    space.put(&queues.to_le_bytes());
    space.put(&RANGE_SECTORS_MAX.to_le_bytes()); // max_discard_sectors
    space.put(&(RANGES_MAX as u32).to_le_bytes()); // max_discard_seg
    space.put(&block_sectors.to_le_bytes()); // discard_sector_alignment
    space.put(&RANGE_SECTORS_MAX.to_le_bytes()); // max_write_zeroes_sectors
    space.put(&(RANGES_MAX as u32).to_le_bytes()); // max_write_zeroes_seg
    space.put(&[1, 0, 0, 0]); // write_zeroes_may_unmap, unused
    space.0
}

/// Packs fields without gaps, as in the specification's structure.
#[derive(Default)]
struct Space(Vec<u8>);

impl Space {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}
