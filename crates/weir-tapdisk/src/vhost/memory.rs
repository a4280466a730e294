//! [`MemoryTable`]: the guest's memory, shared by a front end and mapped into this process.
//!
//! A table is changed by creating a new one. Users of the old one keep its mappings until they drop
//! it, so memory that a front end removes stays mapped while a request uses it.

use std::fs::File;
use std::sync::Arc;

use vhost::vhost_user::message::VhostUserMemoryRegion;
use vm_memory::bitmap::BS;
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryError, GuestMemoryRegion,
    GuestMemoryRegionBytes, GuestRegionCollection, GuestRegionMmap, GuestUsize,
    MemoryRegionAddress, MmapRegion, VolatileSlice,
};

use super::VhostError;
use super::guard::{Guard, Share};

/// The mapping of the guest's physical addresses.
pub type GuestMemory = GuestRegionCollection<GuestRegion>;

/// The bytes at `address` if all of them are in one region, as they nearly always are. A span over
/// several regions takes several times as long to find.
#[inline]
pub fn in_one_region(
    memory: &GuestMemory,
    address: GuestAddress,
    bytes: usize,
) -> Option<VolatileSlice<'_, BS<'_, ()>>> {
    let (region, offset) = memory.to_region_addr(address)?;
    GuestMemoryRegion::get_slice(region, offset, bytes).ok()
}

/// Copies bytes out of a guest's memory.
///
/// # Errors
/// They are outside the guest's memory.
#[inline]
pub fn copy_from(
    memory: &GuestMemory,
    address: GuestAddress,
    into: &mut [u8],
) -> Result<(), GuestMemoryError> {
    match in_one_region(memory, address, into.len()) {
        Some(slice) => {
            slice.copy_to(into);
            Ok(())
        }
        None => memory.read_slice(into, address),
    }
}

/// A region of a guest's memory, mapped.
#[derive(Debug)]
pub struct GuestRegion {
    // Dropped before the memory that it guards.
    guard: Guard,
    mapping: GuestRegionMmap<()>,
}

impl GuestRegion {
    /// The region at the guest's address `start`.
    ///
    /// # Errors
    /// It ends beyond the address space, or the share is used up.
    pub fn new(
        mapping: MmapRegion<()>,
        start: GuestAddress,
        share: &Arc<Share>,
    ) -> Result<GuestRegion, String> {
        let guard = Guard::new(mapping.as_ptr(), mapping.size(), share)?;
        let mapping = GuestRegionMmap::new(mapping, start);
        Ok(GuestRegion {
            guard,
            mapping: mapping.ok_or("it ends beyond the address space")?,
        })
    }

    /// Whether the front end has truncated its file, so that zeroes have replaced it.
    pub fn is_cut(&self) -> bool {
        self.guard.is_cut()
    }
}

impl GuestMemoryRegion for GuestRegion {
    type B = ();

    fn len(&self) -> GuestUsize {
        self.mapping.len()
    }

    fn start_addr(&self) -> GuestAddress {
        self.mapping.start_addr()
    }

    fn bitmap(&self) -> BS<'_, ()> {
        GuestMemoryRegion::bitmap(&self.mapping)
    }

    fn get_slice(
        &self,
        offset: MemoryRegionAddress,
        count: usize,
    ) -> Result<VolatileSlice<'_, BS<'_, ()>>, GuestMemoryError> {
        GuestMemoryRegion::get_slice(&self.mapping, offset, count)
    }
}

impl GuestMemoryRegionBytes for GuestRegion {}

/// Maximum number of regions of memory that a front end may share: the limit of KVM for a VM.
pub const REGIONS_MAX: u16 = 509;

/// Maximum number of bytes that a front end may share: an eighth of what a process can map on
/// x86-64, since others need some too.
const BYTES_MAX: u64 = 16 << 40;

/// The regions that a front end has shared.
#[derive(Debug)]
pub struct MemoryTable {
    regions: Vec<Region>,
    mapped: Arc<GuestMemory>,
    regions_max: usize,
    share: Arc<Share>,
}

#[derive(Clone, Debug)]
struct Region {
    /// The region's address in the front end's own address space.
    front_end: u64,
    mapping: Arc<GuestRegion>,
}

impl MemoryTable {
    /// No region yet, and at most `regions_max`, each of which uses a mapping of `share`.
    pub fn new(regions_max: u16, share: &Arc<Share>) -> MemoryTable {
        MemoryTable {
            regions: Vec::new(),
            mapped: Arc::default(),
            regions_max: usize::from(regions_max),
            share: Arc::clone(share),
        }
    }

    /// The current mapping.
    pub fn mapped(&self) -> &Arc<GuestMemory> {
        &self.mapped
    }

    /// Replaces all regions (`VHOST_USER_SET_MEM_TABLE`).
    ///
    /// # Errors
    /// A region cannot be mapped, two overlap, or they are too large; the table is unchanged.
    pub fn replace(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
    ) -> Result<(), VhostError> {
        check_sum(regions.iter().map(|region| region.memory_size))?;
        let pairs = regions.iter().zip(files);
        let regions = pairs.map(|(region, file)| Region::map(region, file, &self.share));
        self.apply_changes(regions.collect::<Result<_, _>>()?)
    }

    /// Adds a region (`VHOST_USER_ADD_MEM_REG`).
    ///
    /// # Errors
    /// It cannot be mapped, overlaps another, or is too large.
    pub fn add(&mut self, region: &VhostUserMemoryRegion, file: File) -> Result<(), VhostError> {
        let shared = self.regions.iter().map(|region| region.mapping.len());
        check_sum(shared.chain([region.memory_size]))?;
        let mut regions = self.regions.clone();
        regions.push(Region::map(region, file, &self.share)?);
        self.apply_changes(regions)
    }

    /// Removes a region (`VHOST_USER_REM_MEM_REG`).
    ///
    /// # Errors
    /// There is no such region.
    pub fn remove(&mut self, region: &VhostUserMemoryRegion) -> Result<(), VhostError> {
        let (guest, bytes, front_end) =
            (region.guest_phys_addr, region.memory_size, region.user_addr);
        let mut regions = self.regions.clone();
        regions.retain(|r| {
            let same = r.mapping.start_addr().0 == guest && r.mapping.len() == bytes;
            !(same && r.front_end == front_end)
        });
        if regions.len() == self.regions.len() {
            return Err(VhostError::Memory {
                guest,
                bytes,
                reason: "the front end removes a region that it has not shared".into(),
            });
        }
        self.apply_changes(regions)
    }

    /// The guest's address for `address` of the front end. Ring addresses are given in this form.
    pub fn translate(&self, address: u64) -> Option<GuestAddress> {
        self.regions.iter().find_map(|region| {
            let offset = address.checked_sub(region.front_end)?;
            let inside = offset < region.mapping.len();
            inside.then(|| GuestAddress(region.mapping.start_addr().0 + offset))
        })
    }

    fn apply_changes(&mut self, mut regions: Vec<Region>) -> Result<(), VhostError> {
        if regions.len() > self.regions_max {
            return Err(VhostError::Regions {
                max: self.regions_max,
            });
        }
        regions.sort_by_key(|r| r.mapping.start_addr());
        let mapped = if regions.is_empty() {
            GuestMemory::new()
        } else {
            let mappings = regions.iter().map(|r| Arc::clone(&r.mapping)).collect();
            GuestMemory::from_arc_regions(mappings).map_err(|error| VhostError::Table {
                reason: error.to_string(),
            })?
        };
        self.regions = regions;
        self.mapped = Arc::new(mapped);
        Ok(())
    }
}

impl Region {
    fn map(
        region: &VhostUserMemoryRegion,
        file: File,
        share: &Arc<Share>,
    ) -> Result<Region, VhostError> {
        let (guest, bytes, offset) = (
            region.guest_phys_addr,
            region.memory_size,
            region.mmap_offset,
        );
        let refuse = |reason: String| VhostError::Memory {
            guest,
            bytes,
            reason,
        };
        check_file(&file, offset, bytes).map_err(refuse)?;
        let length = usize::try_from(bytes).map_err(|e| refuse(e.to_string()))?;
        let mapping = MmapRegion::from_file(FileOffset::new(file, offset), length)
            .map_err(|e| refuse(e.to_string()))?;
        let mapping = GuestRegion::new(mapping, GuestAddress(guest), share).map_err(refuse)?;
        Ok(Region {
            front_end: region.user_addr,
            mapping: Arc::new(mapping),
        })
    }
}

/// The sum of the shared memory must leave some for others.
fn check_sum(bytes: impl Iterator<Item = u64>) -> Result<(), VhostError> {
    let sum = bytes.fold(0, u64::saturating_add);
    match sum > BYTES_MAX {
        true => Err(VhostError::Table {
            reason: format!("{sum} bytes are more than the {BYTES_MAX} that a front end may share"),
        }),
        false => Ok(()),
    }
}

/// `linux/magic.h`.
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

/// A file must be as long as the front end states. A [`Guard`] covers later changes. Of huge pages
/// only whole ones are mapped: a part of one could be neither unmapped nor replaced.
pub(super) fn check_file(file: &File, offset: u64, bytes: u64) -> Result<(), String> {
    let metadata = file.metadata().map_err(|e| e.to_string())?;
    if !metadata.is_file() {
        return Err("what is shared is not a file; share memory of a memfd or of a file".into());
    }
    match offset.checked_add(bytes) {
        Some(end) if end <= metadata.len() => {}
        _ => return Err(format!("its file has only {} bytes", metadata.len())),
    }
    let system = rustix::fs::fstatfs(file).map_err(|e| e.to_string())?;
    let page = system.f_bsize as u64;
    let is_huge = system.f_type as i64 == HUGETLBFS_MAGIC;
    match is_huge && !(offset.is_multiple_of(page) && bytes.is_multiple_of(page)) {
        true => Err(format!(
            "it is not a multiple of its file's page size of {page} bytes"
        )),
        false => Ok(()),
    }
}
