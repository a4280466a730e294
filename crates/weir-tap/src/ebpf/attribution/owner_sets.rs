//! [`OwnerSets`]: the sets of virtual disks that extents belong to, by number, so that kernel
//! programs can group requests by them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_model::Symbol;

use super::owners::{LaidOn, Owners, SPANS_MAX, Spot, VmDisks};
use super::spans::NO_SECTOR;

/// Numbers of sets as in `extents.h`.
pub mod set {
    /// It depends on the request.
    pub const UNKNOWN: u16 = 0;
    /// No disk.
    pub const NONE: u16 = 1;
}

/// What is known of a process, as in `extents.h`.
pub mod process {
    /// It works for no VM, or for several.
    pub const OTHER: u32 = 1;
}

/// The number of a set without extents is used again after this time. The groups of the longest
/// intervals, 10 minutes, have been delivered by then.
const NUMBER_KEPT: Duration = Duration::from_secs(30 * 60);

/// Minimum time between two searches for numbers without extents.
const SEARCH_PAUSE: Duration = Duration::from_secs(60);

/// The greatest size of a disk, in sectors, whose extents have numbers that the programs compare.
const SECTORS_MAX: u64 = 1 << 47;

/// Sectors of a disk of the host up to the next extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first sector.
    pub first: u64,
    /// The number of the set of virtual disks there.
    pub owners: u16,
}

/// The virtual disks at a location. The same at all of its sectors, so that it determines the owner
/// of a request together with the submitter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct OwnerSet {
    /// By VM; `None` is several disks of it.
    disks: Vec<(Symbol, Option<At>)>,
    /// Also of other files.
    shared: bool,
}

/// A virtual disk at a location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct At {
    vdisk: Symbol,
    in_file: bool,
}

/// The sets of all extents. A number keeps its meaning for a while, since groups of an earlier
/// inventory may have it.
#[derive(Debug)]
pub struct OwnerSets {
    sets: Vec<Numbered>,
    numbers: HashMap<OwnerSet, u16>,
    /// Numbers whose sets have no extents any more, as of the last search.
    free: Vec<u16>,
    searched: Option<Instant>,
    /// The numbers of VMs.
    vms: HashMap<Symbol, u32>,
    /// The extents of each disk of the host, as of the last call.
    disks: HashMap<u32, Known>,
}

/// A set, and when extents last had it, as far as is known.
#[derive(Clone, Debug)]
struct Numbered {
    set: OwnerSet,
    seen: Instant,
}

/// Extents, and what they were determined from.
#[derive(Debug)]
struct Known {
    sectors: u64,
    vms: Vec<(Symbol, Arc<VmDisks>)>,
    extents: Arc<[Extent]>,
}

impl Default for OwnerSets {
    fn default() -> OwnerSets {
        let none = Numbered {
            set: OwnerSet::default(),
            seen: Instant::now(),
        };
        OwnerSets {
            sets: vec![none; 1 + usize::from(set::NONE)],
            numbers: HashMap::from([(OwnerSet::default(), set::NONE)]),
            free: Vec::new(),
            searched: None,
            vms: HashMap::new(),
            disks: HashMap::new(),
        }
    }
}

impl OwnerSets {
    /// The extents of a disk of the host with this number of sectors, from sector 0 on. Where a
    /// file may grow, the owners are unknown.
    pub fn extents(&mut self, owners: &Owners, disk: u32, sectors: u64) -> Arc<[Extent]> {
        let vms = owners.vms_on(disk);
        let is_same = |known: &&Known| {
            let same = |((a, own), (b, other)): (&(Symbol, Arc<VmDisks>), &(Symbol, _))| {
                a == b && Arc::ptr_eq(own, other)
            };
            known.sectors == sectors
                && known.vms.len() == vms.len()
                && known.vms.iter().zip(&vms).all(same)
        };
        if let Some(known) = self.disks.get(&disk).filter(is_same) {
            return known.extents.clone();
        }
        let extents: Arc<[Extent]> = self.determine(&vms, disk, sectors).into();
        let before = self.disks.get(&disk).map(|known| known.extents.clone());
        for extent in before.iter().flat_map(|extents| extents.iter()) {
            self.sets[usize::from(extent.owners)].seen = Instant::now();
        }
        let known = Known {
            sectors,
            vms,
            extents: extents.clone(),
        };
        self.disks.insert(disk, known);
        extents
    }

    fn determine(
        &mut self,
        vms: &[(Symbol, Arc<VmDisks>)],
        disk: u32,
        sectors: u64,
    ) -> Vec<Extent> {
        let unknown = Extent {
            first: 0,
            owners: set::UNKNOWN,
        };
        let gap = match vms.iter().any(|(_, own)| own.grows_on(disk)) {
            true => set::UNKNOWN,
            false => set::NONE,
        };
        // Where an interval begins, and where it ends.
        let mut ends: Vec<(u64, bool, usize, LaidOn)> = Vec::new();
        for (vm, (_, own)) in vms.iter().enumerate() {
            for (from, to, laid) in own.laid_on(disk).filter(|(from, to, _)| from < to) {
                ends.extend([(from, true, vm, laid), (to, false, vm, laid)]);
            }
        }
        if sectors > SECTORS_MAX || ends.len() / 2 > SPANS_MAX {
            return vec![unknown];
        }
        ends.sort_unstable_by_key(|(sector, ..)| *sector);
        // The intervals at a sector, each with its number; and the sets of what is there alone.
        let mut here: BTreeMap<(usize, LaidOn), u32> = BTreeMap::new();
        let mut alone: HashMap<(usize, LaidOn), u16> = HashMap::new();
        let mut extents = Vec::new();
        let mut add = |first: u64, owners: u16| {
            let last = extents.last().map(|e: &Extent| e.owners);
            if first < sectors && last != Some(owners) {
                extents.push(Extent { first, owners });
            }
        };
        let first = ends.first().map(|(sector, ..)| *sector);
        if first != Some(0) {
            add(0, gap);
        }
        for at in ends.chunk_by(|a, b| a.0 == b.0) {
            for (_, begins, vm, laid) in at {
                let number = here.entry((*vm, *laid)).or_insert(0);
                *number = if *begins { *number + 1 } else { *number - 1 };
                if *number == 0 {
                    here.remove(&(*vm, *laid));
                }
            }
            let mut only = here.keys();
            let owners = match (only.next(), only.next()) {
                (None, _) => gap,
                (Some(only), None) => *alone
                    .entry(*only)
                    .or_insert_with(|| self.number(OwnerSet::of(vms, [*only].iter()))),
                (Some(_), Some(_)) => self.number(OwnerSet::of(vms, here.keys())),
            };
            add(at[0].0, owners);
        }
        extents
    }

    /// The number of a set; unknown if there is none left.
    fn number(&mut self, set: OwnerSet) -> u16 {
        let now = Instant::now();
        if let Some(number) = self.numbers.get(&set) {
            self.sets[usize::from(*number)].seen = now;
            self.free.retain(|free| free != number);
            return *number;
        }
        let numbered = Numbered {
            set: set.clone(),
            seen: now,
        };
        let number = match u16::try_from(self.sets.len()) {
            Ok(number) => {
                self.sets.push(numbered);
                number
            }
            Err(_) => {
                let Some(number) = self.free_number() else {
                    return set::UNKNOWN;
                };
                let before = std::mem::replace(&mut self.sets[usize::from(number)], numbered);
                self.numbers.remove(&before.set);
                number
            }
        };
        self.numbers.insert(set, number);
        number
    }

    /// A number whose set has had no extents for [`NUMBER_KEPT`].
    fn free_number(&mut self) -> Option<u16> {
        let is_due = self.searched.is_none_or(|at| at.elapsed() > SEARCH_PAUSE);
        if self.free.is_empty() && is_due {
            self.searched = Some(Instant::now());
            let extents = self.disks.values().flat_map(|known| known.extents.iter());
            let used: HashSet<u16> = extents.map(|extent| extent.owners).collect();
            let numbers = (set::NONE + 1..=u16::MAX).rev();
            let is_free = |number: &u16| {
                let seen = self.sets[usize::from(*number)].seen;
                !used.contains(number) && seen.elapsed() > NUMBER_KEPT
            };
            self.free = numbers.filter(is_free).collect();
        }
        self.free.pop()
    }

    /// The number of a VM.
    pub fn vm_number(&mut self, name: Symbol) -> u32 {
        let next = process::OTHER + 1 + self.vms.len() as u32;
        *self.vms.entry(name).or_insert(next)
    }

    /// The number of the VM of each set, by the number of the set; 0 if it has disks of several or
    /// of none.
    pub fn vms(&mut self) -> Vec<u32> {
        let one = |numbered: &Numbered| match numbered.set.disks[..] {
            [(vm, _)] => Some(vm),
            _ => None,
        };
        let names: Vec<Option<Symbol>> = self.sets.iter().map(one).collect();
        let numbers = names.into_iter();
        let numbers = numbers.map(|name| name.map_or(0, |name| self.vm_number(name)));
        numbers.collect()
    }

    /// As [`Owners::of_vm`], for a location with this set; `vm` is the name and its position.
    pub fn of_vm(&self, number: u16, (name, vm): (Symbol, u32)) -> Spot {
        let set = &self.sets[usize::from(number)].set;
        match set.disks.iter().find(|(owner, _)| *owner == name) {
            Some((_, at)) => at.map_or(Spot::Shared, |at| at.spot(vm)),
            None => Spot::Nowhere,
        }
    }

    /// As [`Owners::of_all`], for a location with this set. `position` is the position of a VM.
    pub fn of_all(&self, number: u16, position: impl Fn(Symbol) -> Option<u32>) -> Spot {
        let set = &self.sets[usize::from(number)].set;
        match (&set.disks[..], set.shared) {
            ([], false) => Spot::Nowhere,
            ([(vm, Some(at))], false) => position(*vm).map_or(Spot::Nowhere, |vm| at.spot(vm)),
            _ => Spot::Shared,
        }
    }
}

impl OwnerSet {
    fn of<'a>(
        vms: &[(Symbol, Arc<VmDisks>)],
        laid: impl Iterator<Item = &'a (usize, LaidOn)>,
    ) -> OwnerSet {
        let mut set = OwnerSet::default();
        for (vm, laid) in laid {
            let (name, own) = &vms[*vm];
            let at = match laid {
                LaidOn::Shared => {
                    set.shared = true;
                    continue;
                }
                LaidOn::Several => None,
                LaidOn::Disk(disk) => {
                    let (vdisk, in_file) = own.disk(*disk);
                    Some(At { vdisk, in_file })
                }
            };
            match set.disks.iter_mut().find(|(owner, _)| owner == name) {
                Some((_, known)) => *known = None,
                None => set.disks.push((*name, at)),
            }
        }
        set.disks.sort_by_key(|(owner, _)| owner.id());
        set
    }
}

impl At {
    fn spot(self, vm: u32) -> Spot {
        Spot::Disk {
            vm,
            vdisk: self.vdisk,
            vsector: NO_SECTOR,
            in_file: self.in_file,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weir_model::inventory::{Disk, FoundBy, Vm, VmKind};

    use super::super::owners::Target;
    use super::*;
    use crate::inventory::{DiskLayout, LaidDisk, Piece, Snapshot};

    const DISK: u32 = 8 << 20;
    const SECTORS: u64 = 120;

    /// A disk of a VM: in a file that may grow or not, and its pieces with whether they are shared.
    type Laid = (u32, bool, Vec<(u64, u64, bool)>);

    fn inventory(disks: &[Laid]) -> Owners {
        let laid = disks.iter().enumerate().map(|(i, (vm, in_file, pieces))| {
            let found_by = if *in_file {
                FoundBy::Extents
            } else {
                FoundBy::Device
            };
            let piece = |&(sector, sectors, shared): &(u64, u64, bool)| Piece {
                device: DISK,
                sector,
                sectors,
                vsector: Some(sector),
                shared,
            };
            let mut pieces: Vec<Piece> = pieces.iter().map(piece).collect();
            pieces.sort();
            LaidDisk {
                disk: Disk::new(&format!("vm{vm}"), &format!("/dev/vd{i}"), found_by, "test"),
                vm: *vm,
                tapdisk: None,
                control: None,
                layout: Arc::new(DiskLayout {
                    pieces,
                    grows_on: if *in_file { vec![DISK] } else { Vec::new() },
                }),
            }
        });
        let vm = |vm: u32| Vm::new(&format!("vm{vm}"), VmKind::Qemu, "test");
        let snapshot = Snapshot {
            disks: laid.collect(),
            vms: (0..3).map(vm).collect(),
            ..Snapshot::default()
        };
        Owners::new(Arc::new(snapshot), &Owners::default())
    }

    /// The number of the extent that has these sectors, as the programs find it.
    fn find(extents: &[Extent], sector: u64, sectors: u64) -> u16 {
        let at = extents.partition_point(|e| e.first <= sector) - 1;
        match extents.get(at + 1) {
            Some(next) if sector + sectors > next.first => set::UNKNOWN,
            _ => extents[at].owners,
        }
    }

    /// Without the sector, which groups do not have.
    fn spot(spot: Spot) -> Spot {
        match spot {
            Spot::Disk {
                vm, vdisk, in_file, ..
            } => Spot::Disk {
                vm,
                vdisk,
                in_file,
                vsector: NO_SECTOR,
            },
            other => other,
        }
    }

    fn any_disks() -> impl Strategy<Value = Vec<Laid>> {
        let piece = (0..SECTORS, 1..30u64, prop::bool::weighted(0.1));
        let disk = (0..3u32, any::<bool>(), prop::collection::vec(piece, 0..6));
        prop::collection::vec(disk, 0..5)
    }

    proptest! {
        #[test]
        fn the_owner_of_an_extent_is_that_of_each_request_in_it(disks in any_disks()) {
            let mut owners = inventory(&disks);
            let mut sets = OwnerSets::default();
            let extents = sets.extents(&owners, DISK, SECTORS);
            prop_assert_eq!(extents[0].first, 0);
            prop_assert!(extents.windows(2).all(|e| e[0].first < e[1].first && e[0].owners != e[1].owners));
            let may_grow = owners.any_grows_on(DISK);
            for (sector, sectors) in (0..SECTORS).flat_map(|s| [1, 2, 7, 25].map(|n| (s, n))) {
                if sector + sectors > SECTORS {
                    continue;
                }
                let target = Target::new(DISK, sector, sectors);
                let number = find(&extents, sector, sectors);
                let (all, _) = owners.of_all(target);
                if number == set::UNKNOWN {
                    let is_gap = all == Spot::Nowhere && may_grow;
                    let ends = extents.iter().any(|e| e.first > sector && e.first < sector + sectors);
                    prop_assert!(is_gap || ends, "{sector} {sectors} {all:?}");
                    continue;
                }
                let position = |name: Symbol| owners.position(name);
                prop_assert_eq!(sets.of_all(number, position), spot(all), "{} {}", sector, sectors);
                for vm in 0..3 {
                    let (own, _) = owners.of_vm(vm, target);
                    let name = owners.name(vm).unwrap();
                    prop_assert_eq!(sets.of_vm(number, (name, vm)), spot(own), "{} {}", sector, sectors);
                }
            }
        }
    }

    #[test]
    fn numbers_keep_their_meaning_and_unchanged_disks_their_extents() {
        let of = |sector| inventory(&[(0, true, vec![(sector, 10, false)])]);
        let mut sets = OwnerSets::default();
        let (before, after) = (of(10), of(20));
        let first = sets.extents(&before, DISK, SECTORS);
        assert!(Arc::ptr_eq(&first, &sets.extents(&before, DISK, SECTORS)));
        let second = sets.extents(&after, DISK, SECTORS);
        assert_eq!((first[1].first, second[1].first), (10, 20));
        assert_eq!(first[1].owners, second[1].owners);
        assert_eq!(first[0].owners, set::UNKNOWN, "the file may grow there");
    }

    #[test]
    fn a_disk_with_one_owner_has_one_extent() {
        let mut sets = OwnerSets::default();
        let whole = inventory(&[(0, false, vec![(0, SECTORS, false)])]);
        assert_eq!(sets.extents(&whole, DISK, SECTORS).len(), 1);
        let other = sets.extents(&whole, 9 << 20, SECTORS);
        let none = Extent {
            first: 0,
            owners: set::NONE,
        };
        assert_eq!(*other, [none]);
    }

    #[test]
    fn numbers_of_vms_that_are_gone_are_used_again() {
        let mut sets = OwnerSets::default();
        let of = |vdisk: &str| OwnerSet {
            disks: vec![(
                Symbol::new("vm"),
                Some(At {
                    vdisk: Symbol::new(vdisk),
                    in_file: false,
                }),
            )],
            shared: false,
        };
        let used = inventory(&[(0, false, vec![(0, SECTORS, false)])]);
        let kept = sets.extents(&used, DISK, SECTORS)[0].owners;
        let first = sets.number(of("0"));
        assert_eq!(sets.vms()[usize::from(first)], process::OTHER + 2);
        for more in 1.. {
            if sets.number(of(&more.to_string())) == set::UNKNOWN {
                break;
            }
        }
        let again = |sets: &mut OwnerSets, name: &str| {
            sets.searched = None;
            sets.number(of(name))
        };
        assert_eq!(again(&mut sets, "another"), set::UNKNOWN, "all are recent");
        let Some(old) = Instant::now().checked_sub(2 * NUMBER_KEPT) else {
            return; // This machine has run for less than an hour.
        };
        for at in [kept, first] {
            sets.sets[usize::from(at)].seen = old;
        }
        assert_eq!(
            again(&mut sets, "another"),
            first,
            "the other one has extents"
        );
        assert_eq!(again(&mut sets, "0"), set::UNKNOWN);
        // A set that is there again keeps its number, although it was free.
        sets.sets[usize::from(first)].seen = old;
        sets.sets[usize::from(first) + 1].seen = old;
        assert_eq!(again(&mut sets, "more"), first);
        assert_eq!(sets.number(of("1")), first + 1);
        assert_eq!(sets.number(of("still more")), set::UNKNOWN);
    }
}
