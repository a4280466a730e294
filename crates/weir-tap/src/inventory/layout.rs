//! [`Layouts`]: the location of virtual disks on the host's devices, updated when their files
//! change.
//!
//! An image is a device, of which it has a range, or a file, whose extents the file system reports.
//! Each range is resolved through the host's devices as far as possible: partitions, loop devices,
//! linear volumes. The VM's sector is known where the image is raw.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_model::inventory::FoundBy;

use super::extents::{self, Extent, ReportedExtents};
use super::host::open_data;
use super::stack::{self, Below, Segment, Stack};
use super::{DiskLayout, Piece};

/// A file or device with data of a virtual disk.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Image {
    /// Its path in this process.
    pub path: PathBuf,
    /// Whether its bytes are those of the disk; false for a format with metadata of its own.
    pub raw: bool,
    /// Offset of the disk in it.
    pub offset_bytes: u64,
    /// Size of the disk in it, if limited.
    pub bytes: Option<u64>,
}

/// The known location of a virtual disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// Its pieces; empty if they are unknown.
    pub layout: Arc<DiskLayout>,
    /// How events are attributed to it.
    pub found_by: FoundBy,
    /// The whole device that the active image is, or that contains it, `major << 20 | minor`.
    pub device: Option<u32>,
}

/// The disks and files that were located so far.
#[derive(Debug, Default)]
pub struct Layouts {
    disks: HashMap<Vec<Image>, KeptDisk>,
    files: HashMap<PathBuf, KeptFile>,
    stack: Stack,
    round: u64,
}

/// Maximum number of pieces of one disk; a disk with more is attributed by process only.
pub const PIECES_MAX: usize = 1 << 16;

/// Maximum depth of stacked devices.
const DEPTH_MAX: u32 = 8;

/// Interval after which a file of which only the times have changed is read again, since most
/// writes do not move data.
const READ_AGAIN: Duration = Duration::from_secs(2);

/// Interval after which an unchanged file is read again: defragmentation moves data without
/// changing the times.
const READ_ANYWAY: Duration = Duration::from_secs(60);

/// Sectors of a device that belong to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    sector: u64,
    sectors: u64,
    vsector: Option<u64>,
    shared: bool,
}

/// The reason why a disk has no layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unknown {
    /// Its I/O is observed, but its location is unknown.
    Somewhere,
    /// Its I/O is not observed.
    Nowhere,
}

/// A disk as it was last located.
#[derive(Debug)]
struct KeptDisk {
    located: Located,
    nodes: Vec<Node>,
    /// Every file that was read, and its extents.
    files: Vec<(PathBuf, Extents)>,
    round: u64,
}

/// A file and its state when its extents were read.
#[derive(Debug)]
struct KeptFile {
    shape: [u64; 4],
    times: [i64; 4],
    read: Instant,
    round: u64,
    extents: Extents,
}

/// The extents of a file, in order.
type Extents = Result<Arc<[Extent]>, Unknown>;

/// Identity of the file or device of an image: file system, inode and, for a device, its number.
type Node = Option<(u64, u64, u64)>;

fn node(image: &Image) -> Node {
    let meta = fs::metadata(&image.path).ok()?;
    Some((meta.dev(), meta.ino(), meta.rdev()))
}

/// The results about one disk while its images are resolved.
#[derive(Debug, Default)]
struct Survey {
    pieces: Vec<Piece>,
    grows_on: Vec<u32>,
    files: Vec<(PathBuf, Extents)>,
    fresh: bool,
}

impl Layouts {
    /// Begins a scan. `devices_changed` is true if the host's block devices, or what they are built
    /// on, have changed since the last scan.
    pub fn begin(&mut self, devices_changed: bool) {
        let round = self.round;
        self.files.retain(|_, kept| kept.round == round);
        self.disks.retain(|_, kept| kept.round == round);
        self.round += 1;
        if devices_changed {
            self.stack.forget();
            self.disks.clear();
        }
    }

    /// Locates the disk that consists of these images, the active one first, then its backing
    /// files. With `fresh`, recently written files are read again. A disk that has not moved keeps
    /// the same layout object.
    pub fn locate(&mut self, images: &[Image], fresh: bool) -> Located {
        let nodes: Vec<Node> = images.iter().map(node).collect();
        if let Some(mut kept) = self.disks.remove(images) {
            let unmoved =
                |(path, before): &(PathBuf, Extents)| same(&self.extents(path, fresh).0, before);
            if kept.nodes == nodes && kept.files.iter().all(unmoved) {
                kept.round = self.round;
                let located = kept.located.clone();
                self.disks.insert(images.to_vec(), kept);
                return located;
            }
        }
        let mut survey = Survey {
            fresh,
            ..Survey::default()
        };
        let located = self.survey(images, &mut survey);
        let kept = KeptDisk {
            located: located.clone(),
            nodes,
            files: survey.files,
            round: self.round,
        };
        self.disks.insert(images.to_vec(), kept);
        located
    }

    fn survey(&mut self, images: &[Image], survey: &mut Survey) -> Located {
        let mut located = Located {
            layout: Arc::default(),
            found_by: FoundBy::Nothing,
            device: None,
        };
        for (depth, image) in images.iter().enumerate() {
            let before = survey.pieces.len();
            let found_by = match self.lay_image(image, depth <= 1, survey) {
                Ok(found_by) => found_by,
                Err(Unknown::Somewhere) => FoundBy::Process,
                Err(Unknown::Nowhere) => FoundBy::Nothing,
            };
            if depth == 0 {
                located.found_by = found_by;
                located.device = survey.pieces.get(before).map(|p| p.device);
            }
        }
        if survey.pieces.len() > PIECES_MAX {
            located.found_by = FoundBy::Process;
            return located;
        }
        located.layout = Arc::new(DiskLayout {
            pieces: separate(std::mem::take(&mut survey.pieces)),
            grows_on: std::mem::take(&mut survey.grows_on),
        });
        located
    }

    fn lay_image(
        &mut self,
        image: &Image,
        may_grow: bool,
        survey: &mut Survey,
    ) -> Result<FoundBy, Unknown> {
        let (first, limit) = (image.offset_bytes.div_ceil(512), image.bytes);
        let whole_sectors = image.offset_bytes.is_multiple_of(512);
        let last = limit.map_or(u64::MAX, |b| first.saturating_add(b.div_ceil(512)));
        let cut = |start: u64, sector: u64, sectors: u64, shared: bool| {
            let (from, to) = (start.max(first), (start + sectors).min(last));
            let range = || Range {
                sector: sector + (from - start),
                sectors: to - from,
                vsector: (image.raw && whole_sectors).then(|| from - first),
                shared,
            };
            (from < to).then(range)
        };
        let meta = fs::metadata(&image.path).map_err(|_| Unknown::Somewhere)?;
        if meta.file_type().is_block_device() {
            let device = stack::number(meta.rdev());
            let place = self.stack.place(device).ok_or(Unknown::Somewhere)?;
            let ranges: Vec<Range> = cut(0, 0, place.sectors, false).into_iter().collect();
            self.lay(device, &ranges, DEPTH_MAX, survey);
            return Ok(FoundBy::Device);
        }
        let (extents, device) = self.file(&image.path, survey);
        let extents = extents?;
        if may_grow {
            self.grow_on(device, DEPTH_MAX, survey);
        }
        let ranges = extents.iter();
        let ranges = ranges.filter_map(|e| cut(e.start, e.sector, e.sectors, e.shared));
        let ranges: Vec<Range> = ranges.collect();
        self.lay(device, &ranges, DEPTH_MAX, survey);
        Ok(FoundBy::Extents)
    }

    /// Adds the disk of `device`, which has a file system, and those below it.
    fn grow_on(&mut self, device: u32, depth: u32, survey: &mut Survey) {
        let Some(place) = self.stack.place(device) else {
            return;
        };
        if survey.grows_on.contains(&place.disk) {
            return;
        }
        survey.grows_on.push(place.disk);
        if depth == 0 {
            return;
        }
        match &*self.stack.below(place.disk) {
            Below::Bottom | Below::Opaque => {}
            Below::Segments(segments) => {
                let lower = segments.iter().map(|segment| segment.device);
                lower.for_each(|device| self.grow_on(device, depth - 1, survey));
            }
            Below::File { path, .. } => {
                let (_, device) = self.file(path, survey);
                self.grow_on(device, depth - 1, survey);
            }
        }
    }

    /// Adds the pieces for `ranges` of `device`, on its disk and on the devices below.
    fn lay(&mut self, device: u32, ranges: &[Range], depth: u32, survey: &mut Survey) {
        let Some(place) = self.stack.place(device) else {
            return;
        };
        let whole = [Segment {
            start: 0,
            device: place.disk,
            sector: place.start,
            sectors: place.sectors,
            shared: false,
        }];
        let ranges: Vec<Range> = through(ranges, &whole).map(|(_, range)| range).collect();
        survey.pieces.extend(ranges.iter().map(|range| Piece {
            device: place.disk,
            sector: range.sector,
            sectors: range.sectors,
            vsector: range.vsector,
            shared: range.shared,
        }));
        if depth == 0 || survey.pieces.len() > PIECES_MAX {
            return;
        }
        let below = self.stack.below(place.disk);
        let read;
        let segments = match &*below {
            Below::Bottom | Below::Opaque => return,
            Below::Segments(segments) => segments,
            Below::File {
                path,
                start,
                sectors,
            } => {
                read = self.file_segments(path, *start, *sectors, survey);
                &read
            }
        };
        let mut lower: Vec<(u32, Vec<Range>)> = Vec::new();
        for (device, range) in through(&ranges, segments) {
            match lower.iter_mut().find(|(d, _)| *d == device) {
                Some((_, ranges)) => ranges.push(range),
                None => lower.push((device, vec![range])),
            }
        }
        for (device, ranges) in lower {
            self.lay(device, &ranges, depth - 1, survey);
        }
    }

    /// The file of a loop device; the device's first sector is sector `first` of the file.
    fn file_segments(
        &mut self,
        path: &Path,
        first: u64,
        sectors: Option<u64>,
        survey: &mut Survey,
    ) -> Vec<Segment> {
        let (Ok(extents), device) = self.file(path, survey) else {
            return Vec::new();
        };
        let last = sectors.map_or(u64::MAX, |s| first.saturating_add(s));
        let segment = |e: &Extent| {
            let (from, to) = (e.start.max(first), (e.start + e.sectors).min(last));
            (from < to).then(|| Segment {
                start: from - first,
                device,
                sector: e.sector + (from - e.start),
                sectors: to - from,
                shared: e.shared,
            })
        };
        extents.iter().filter_map(segment).collect()
    }

    /// The extents of a file in the stack, and their device.
    fn file(&mut self, path: &Path, survey: &mut Survey) -> (Extents, u32) {
        let (extents, device) = self.extents(path, survey.fresh);
        survey.files.push((path.to_owned(), extents.clone()));
        (extents, device)
    }

    /// The extents of a file, cached while it is unchanged, and the device of its file system.
    fn extents(&mut self, path: &Path, fresh: bool) -> (Extents, u32) {
        let Ok(meta) = fs::metadata(path) else {
            return (Err(Unknown::Somewhere), 0);
        };
        if !meta.file_type().is_file() {
            return (Err(Unknown::Nowhere), 0);
        }
        let device = stack::number(meta.dev());
        let shape = [meta.dev(), meta.ino(), meta.size(), meta.blocks()];
        let times = [
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ctime(),
            meta.ctime_nsec(),
        ];
        let mut before = None;
        if let Some(kept) = self.files.get_mut(path) {
            kept.round = self.round;
            let age = kept.read.elapsed();
            let good = match kept.shape == shape {
                false => false,
                true if kept.times != times => !fresh && age < READ_AGAIN,
                true => age < READ_ANYWAY,
            };
            if good {
                return (kept.extents.clone(), device);
            }
            before = Some(kept.extents.clone());
        }
        let mut extents = read(path, &meta);
        if let Some(before) = before.filter(|before| *before == extents) {
            extents = before;
        }
        let kept = KeptFile {
            shape,
            times,
            read: Instant::now(),
            round: self.round,
            extents: extents.clone(),
        };
        self.files.insert(path.to_owned(), kept);
        (extents, device)
    }
}

/// Whether the extents of a file are unchanged.
fn same(now: &Extents, before: &Extents) -> bool {
    match (now, before) {
        (Ok(now), Ok(before)) => Arc::ptr_eq(now, before),
        _ => now == before,
    }
}

/// Reads the extents of a file.
fn read(path: &Path, meta: &Metadata) -> Extents {
    let open = || -> io::Result<_> {
        let file = open_data(path)?;
        let opened = file.metadata()?;
        // The file may have been replaced in between.
        let same = (opened.dev(), opened.ino()) == (meta.dev(), meta.ino());
        Ok((extents::reported(&file)?, file, same))
    };
    match open() {
        Ok((ReportedExtents::Elsewhere, ..)) => Err(Unknown::Nowhere),
        Ok((ReportedExtents::Addresses, file, true)) if libc::major(meta.dev()) != 0 => {
            match extents::of(&file) {
                Ok(Some(extents)) => Ok(extents.into()),
                Ok(None) | Err(_) => Err(Unknown::Somewhere),
            }
        }
        Ok(_) | Err(_) => Err(Unknown::Somewhere),
    }
}

/// Maps `ranges` through `segments`, both sorted by sector, with the device of each result. Parts
/// that no segment covers are omitted.
fn through<'a>(
    ranges: &'a [Range],
    segments: &'a [Segment],
) -> impl Iterator<Item = (u32, Range)> + 'a {
    ranges.iter().flat_map(move |range| {
        let end = range.sector + range.sectors;
        let first = segments.partition_point(|s| s.start + s.sectors <= range.sector);
        let segments = segments[first..].iter().take_while(move |s| s.start < end);
        segments.map(move |s| {
            let (from, to) = (range.sector.max(s.start), end.min(s.start + s.sectors));
            let skipped = from - range.sector;
            let below = Range {
                sector: s.sector + (from - s.start),
                sectors: to - from,
                vsector: range.vsector.map(|v| v + skipped),
                shared: range.shared || s.shared,
            };
            (s.device, below)
        })
    })
}

/// The pieces in order, split where they overlap; there the VM's sector is known only if all agree.
fn separate(mut pieces: Vec<Piece>) -> Vec<Piece> {
    pieces.sort();
    let overlap = |pair: &[Piece]| {
        pair[0].device == pair[1].device && pair[0].sector + pair[0].sectors > pair[1].sector
    };
    if !pieces.windows(2).any(overlap) {
        return pieces;
    }
    let mut cuts: Vec<(u32, u64)> = pieces
        .iter()
        .flat_map(|p| [(p.device, p.sector), (p.device, p.sector + p.sectors)])
        .collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut parts: Vec<Piece> = Vec::new();
    for piece in &pieces {
        let first = cuts.partition_point(|c| *c < (piece.device, piece.sector));
        let ends = cuts[first + 1..].iter().map(|(_, sector)| *sector);
        let mut from = piece.sector;
        for to in ends.take_while(|to| *to <= piece.sector + piece.sectors) {
            parts.push(Piece {
                sector: from,
                sectors: to - from,
                vsector: piece.vsector.map(|v| v + (from - piece.sector)),
                ..*piece
            });
            from = to;
            if from == piece.sector + piece.sectors {
                break;
            }
        }
    }
    parts.sort();
    parts.dedup_by(|later, first| {
        let same = (later.device, later.sector) == (first.device, first.sector);
        if same {
            first.shared |= later.shared;
            first.vsector = first.vsector.filter(|v| later.vsector == Some(*v));
        }
        same
    });
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(sector: u64, sectors: u64, vsector: Option<u64>) -> Piece {
        Piece {
            device: 8,
            sector,
            sectors,
            vsector,
            shared: false,
        }
    }

    #[test]
    fn ranges_are_cut_and_moved_by_what_is_below() {
        let range = |sector, sectors, vsector| Range {
            sector,
            sectors,
            vsector,
            shared: false,
        };
        let segment = |start, device, sector, sectors| Segment {
            start,
            device,
            sector,
            sectors,
            shared: false,
        };
        let segments = [
            segment(0, 1, 1000, 100),
            segment(100, 2, 0, 50),
            segment(200, 1, 0, 8),
        ];
        let ranges = [range(90, 30, Some(7)), range(140, 100, None)];
        let found: Vec<(u32, Range)> = through(&ranges, &segments).collect();
        assert_eq!(
            found,
            [
                (1, range(1090, 10, Some(7))),
                (2, range(0, 20, Some(17))),
                (2, range(40, 10, None)),
                (1, range(0, 8, None)),
            ]
        );
    }

    #[test]
    fn where_pieces_overlap_the_sector_of_the_vm_is_known_if_they_agree() {
        let apart = vec![piece(0, 8, Some(0)), piece(8, 8, Some(100))];
        assert_eq!(separate(apart.clone()), apart);
        let over = vec![piece(0, 16, Some(0)), piece(8, 16, Some(100))];
        let expected = [
            piece(0, 8, Some(0)),
            piece(8, 8, None),
            piece(16, 8, Some(108)),
        ];
        assert_eq!(separate(over), expected);
        let same = vec![piece(0, 8, Some(0)), piece(0, 8, Some(0))];
        assert_eq!(separate(same), [piece(0, 8, Some(0))]);
    }

    #[test]
    fn a_file_that_is_gone_is_somewhere_and_one_in_memory_nowhere() {
        let image = |path: &str| Image {
            path: path.into(),
            raw: true,
            offset_bytes: 0,
            bytes: None,
        };
        let mut layouts = Layouts::default();
        let found_by = |layouts: &mut Layouts, path| {
            let found = layouts.locate(&[image(path)], false);
            (found.found_by, found.layout.pieces.len())
        };
        assert_eq!(
            found_by(&mut layouts, "/nowhere/at/all"),
            (FoundBy::Process, 0)
        );
        assert_eq!(found_by(&mut layouts, "/dev/null"), (FoundBy::Nothing, 0));
    }
}
