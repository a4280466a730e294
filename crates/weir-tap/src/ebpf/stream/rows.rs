//! [`Rows`]: converts the events of a kernel stream to the rows of one demand.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::{Int64Array, UInt32Array};
use weir_model::{Batch, Column as Values, Nanos, Symbol, Type};

use super::layout::{CLAUSES_SHIFT, FOLDED_SHIFT, MARKS_WORD, Slot, TIME_WORD};
use super::overlays::Overlays;
use super::paths::Paths;
use super::stacks::Stacks;
use super::{EventTable, FieldValue, LongText, StreamColumn};
use crate::ebpf::attribution::{Attribution, By, OnImage};
use crate::ebpf::devices::{DeviceChoice, Devices};
use crate::ebpf::layout::UNKNOWN;
use crate::ebpf::rings::Store;
use crate::ebpf::rows::{Names, errno};
use crate::inventory::TapdiskKey;

/// Maximum number of numbers of a column.
const FIELDS_MAX: usize = 9;

/// The events of the rings that are still needed.
#[derive(Debug)]
pub struct Events {
    words: Vec<u64>,
    /// Words of an event.
    event_words: usize,
}

/// Builds the batches of one demand.
#[derive(Debug)]
pub struct Rows {
    /// Its clauses, a bit each.
    clauses: u8,
    /// Its fold, a bit.
    folded: u8,
    /// Its columns; `None` where it has no use for one.
    columns: Vec<Option<StreamColumn>>,
    /// Whether it counts what is not certain: one of several that see the same events.
    counts_untied: bool,
}

/// Requests of images whose virtual disk or whose sector there is not certain.
#[derive(Clone, Copy, Debug, Default)]
pub struct UntiedDisks {
    /// Several disks have the image.
    pub ambiguous: i64,
    /// The image has the disk's sectors in another order.
    pub no_map: i64,
    /// The builder of rows that counts: others see the same events.
    counting: bool,
}

/// The virtual disk of a request, and the difference from the sector of its device to that there.
#[derive(Clone, Copy, Debug)]
struct DiskOfEvent {
    vm: Symbol,
    vdisk: Symbol,
    sector: SectorOfEvent,
}

/// Where the sector of a virtual disk is found.
#[derive(Clone, Copy, Debug)]
enum SectorOfEvent {
    /// In the event: a tapdisk has reported it.
    Reported,
    /// By the offset in the image.
    Offset,
    /// By the sector of the device, which begins there.
    Device(u64),
    /// Not at all.
    Unknown,
}

/// Converts the numbers of events to values.
#[derive(Debug)]
pub struct Decoder {
    /// Texts, and the name of this host.
    pub names: Names,
    /// The paths of files, once the programs are loaded.
    pub paths: Option<Paths>,
    /// The names of files in overlayfs.
    overlays: Overlays,
    /// The functions of stacks, if there are any.
    pub stacks: Option<Stacks>,
    /// The VMs of processes; `None` without an inventory.
    pub attribution: Option<Attribution>,
    /// The requests whose virtual disk, or whose sector there, is not certain.
    pub untied: UntiedDisks,
    /// The block devices, once one occurs.
    devices: Option<Devices>,
    /// The ids of the names of numbers, by column.
    ids: HashMap<(&'static str, i64), u32>,
}

impl Events {
    /// No events yet.
    pub fn new(event_bytes: usize) -> Events {
        Events {
            words: Vec::new(),
            event_words: event_bytes / 8,
        }
    }

    fn event(&self, at: u32) -> &[u64] {
        &self.words[at as usize * self.event_words..][..self.event_words]
    }
}

impl Store for Events {
    fn push(&mut self, words: &[AtomicU64]) {
        let words = words.iter().map(|word| word.load(Ordering::Relaxed));
        self.words.extend(words);
    }

    fn len(&self) -> usize {
        self.words.len() / self.event_words
    }

    fn ts_ns(&mut self, at: usize) -> &mut u64 {
        &mut self.words[at * self.event_words + TIME_WORD]
    }

    fn keep(&mut self, kept: &mut dyn ExactSizeIterator<Item = u32>) {
        let mut words = Vec::with_capacity(kept.len() * self.event_words);
        for at in kept {
            words.extend_from_slice(self.event(at));
        }
        self.words.clear();
        self.words.extend(words);
    }
}

impl Rows {
    /// A builder of the columns at the positions `wanted`, of events that pass one of `clauses` and
    /// are not in the fold `folded`.
    pub fn new(stream: &EventTable, wanted: &[usize], clauses: u8, folded: u8) -> Rows {
        let columns = stream.columns.iter().enumerate();
        let columns = columns.map(|(i, column)| wanted.contains(&i).then_some(*column));
        Rows {
            clauses,
            folded,
            columns: columns.collect(),
            counts_untied: false,
        }
    }

    /// The first builder that reads the virtual disk counts the requests without one.
    pub fn choose_counting(all: &mut [Rows]) {
        let reads_disk = |rows: &&mut Rows| {
            let mut columns = rows.columns.iter().flatten();
            columns.any(|c| matches!(c.value, FieldValue::Vdisk(..) | FieldValue::Vsector(..)))
        };
        if let Some(first) = all.iter_mut().find(reads_disk) {
            first.counts_untied = true;
        }
    }

    /// The demand's rows among the events at the positions `settled`, if there are any.
    pub fn build(
        &self,
        events: &Events,
        settled: impl Iterator<Item = u32>,
        decoder: &mut Decoder,
    ) -> Option<Batch> {
        let marks = |event: &[u64]| event[MARKS_WORD];
        let rows: Vec<&[u64]> = settled
            .map(|at| events.event(at))
            .filter(|event| {
                let clauses = (marks(event) >> CLAUSES_SHIFT) as u8;
                let folded = (marks(event) >> FOLDED_SHIFT) as u8;
                clauses & self.clauses != 0 && folded & self.folded == 0
            })
            .collect();
        if rows.is_empty() {
            return None;
        }
        decoder.untied.counting = self.counts_untied;
        let offset = decoder.names.epoch_offset_ns;
        let ts = rows.iter().map(|event| event[TIME_WORD] as Nanos + offset);
        let columns = self.columns.iter().map(|column| match column {
            None => Values::Nulls(rows.len()),
            Some(column) => decoder.column(column, &rows),
        });
        let columns = columns.collect();
        Some(Batch::stream(ts.collect::<Vec<i64>>(), columns))
    }
}

impl Decoder {
    /// A decoder for the columns of `stream`.
    pub fn new(stream: &EventTable, names: Names, attribution: Option<Attribution>) -> Decoder {
        let mut ids = HashMap::new();
        for column in stream.columns.iter() {
            let mut add = |number, name: &str| {
                ids.insert((column.name, number), Symbol::new(name).id());
            };
            match column.value {
                FieldValue::Name(_, named) => named.iter().for_each(|(n, name)| add(*n, name)),
                FieldValue::Letters(_, letters) => (0..1 << letters.len()).for_each(|bits: i64| {
                    let set = letters
                        .chars()
                        .enumerate()
                        .filter(|(i, _)| bits >> i & 1 != 0);
                    add(bits, &set.map(|(_, letter)| letter).collect::<String>());
                }),
                FieldValue::Constant(text) => add(0, text),
                _ => {}
            }
        }
        Decoder {
            names,
            paths: None,
            overlays: Overlays::default(),
            stacks: None,
            attribution,
            untied: UntiedDisks::default(),
            devices: None,
            ids,
        }
    }

    /// The VM of a process in a cgroup.
    fn vm(&mut self, pid: u32, cgroup: u64, by_kernel: bool) -> Option<Symbol> {
        let attribution = self.attribution.as_mut()?;
        attribution.vm_of(pid, by_kernel, cgroup, &mut self.names.cgroups)
    }

    /// The VM and the name of a disk of a tapdisk.
    fn served(&mut self, pid: u32, disk: u64) -> Option<(Symbol, Symbol)> {
        let attribution = self.attribution.as_mut().filter(|_| disk != 0)?;
        attribution.served(TapdiskKey { pid, disk })
    }

    /// The name in an overlayfs of the file with this path; `opened` is the path's key, if known.
    fn opened(&mut self, path: u64, opened: u64) -> Option<Symbol> {
        let paths = self.paths.as_mut()?;
        match opened {
            FieldValue::NOT_OVERLAID => None,
            0 => self.overlays.name_of(paths.path(path)?),
            key => paths.path(key),
        }
    }

    /// The virtual disk of an event with these words of [`DiskFields`](super::DiskFields).
    fn disk(&mut self, words: &[u64]) -> Result<DiskOfEvent, OnImage> {
        let [pid, cgroup, by_kernel, disk_key, path, device] = words[..6] else {
            unreachable!("a disk has these numbers");
        };
        let pid = pid as u32;
        if let Some((vm, vdisk)) = self.served(pid, disk_key) {
            let sector = SectorOfEvent::Reported;
            return Ok(DiskOfEvent { vm, vdisk, sector });
        }
        let file = self.paths.as_mut().and_then(|paths| paths.path(path));
        let device = || self.device(device as u32);
        let Some(image) = file.or_else(device) else {
            return Err(OnImage::Nothing);
        };
        let Some(attribution) = self.attribution.as_mut().filter(|_| disk_key == 0) else {
            return Err(OnImage::Nothing);
        };
        let by_kernel = by_kernel != 0;
        let by = By {
            pid,
            by_kernel,
            cgroup,
        };
        match attribution.on_image(image, by, &mut self.names.cgroups) {
            OnImage::Disk {
                vm,
                vdisk,
                start_sector,
            } => {
                let sector = match (file, start_sector) {
                    (_, None) => SectorOfEvent::Unknown,
                    (Some(_), Some(_)) => SectorOfEvent::Offset,
                    (None, Some(start)) => SectorOfEvent::Device(start),
                };
                Ok(DiskOfEvent { vm, vdisk, sector })
            }
            other => Err(other),
        }
    }

    /// The name of the virtual disk of an event.
    fn vdisk(&mut self, words: &[u64]) -> Option<Symbol> {
        match self.disk(words) {
            Ok(disk) => Some(disk.vdisk),
            Err(other) => {
                let counts = self.untied.counting && other == OnImage::Ambiguous;
                self.untied.ambiguous += i64::from(counts);
                None
            }
        }
    }

    /// The sector on the virtual disk of an event.
    fn vsector(&mut self, words: &[u64]) -> Option<i64> {
        let [reported, offset, sector] = words[6..9] else {
            unreachable!("a sector has these numbers");
        };
        let known = |number: u64| (number != UNKNOWN).then_some(number);
        let found = match self.disk(words).ok()?.sector {
            SectorOfEvent::Reported => known(reported),
            SectorOfEvent::Offset => known(offset).map(|offset| offset >> 9),
            SectorOfEvent::Device(start) => known(sector)?.checked_sub(start),
            SectorOfEvent::Unknown => {
                self.untied.no_map += i64::from(self.untied.counting);
                None
            }
        };
        found.map(|sector| sector as i64)
    }

    /// The path of the block device with this number.
    fn device(&mut self, number: u32) -> Option<Symbol> {
        if number == 0 {
            return None;
        }
        let all = || Devices::new(DeviceChoice::All, Vec::new(), 0, 1);
        let devices = self.devices.get_or_insert_with(all);
        if devices.get(number).is_none() {
            devices.refresh();
        }
        devices.get(number).map(|device| device.path)
    }

    /// The value of a column for the words of its slots: a number, or the id of a text.
    pub fn value(&mut self, column: &StreamColumn, words: &[u64]) -> Option<i64> {
        let number = || Some(words[0]).filter(|word| Some(*word) != column.null);
        let name = match column.value {
            FieldValue::Number(_) => return number().map(|word| word as i64),
            FieldValue::Status(_) => return errno(words[0] as u16),
            FieldValue::Name(..) | FieldValue::Letters(..) => {
                let id = self.ids.get(&(column.name, number()? as i64));
                return id.map(|id| (*id).into());
            }
            FieldValue::Constant(_) => {
                let id = self.ids.get(&(column.name, 0));
                return id.map(|id| (*id).into());
            }
            // It is no key, and its values are read from whole records.
            FieldValue::LongText(_) | FieldValue::Stack(_) => None,
            FieldValue::Time | FieldValue::Before(_) | FieldValue::Host => self.names.host(),
            FieldValue::Text(_) => self.names.comm([words[0], words[1]]),
            FieldValue::Path(_) => self.paths.as_mut()?.path(words[0]),
            FieldValue::Opened(..) => self.opened(words[0], words[1]),
            FieldValue::Cgroup(_) => self.names.cgroups.path(words[0]),
            FieldValue::Device(_) => self.device(words[0] as u32),
            FieldValue::Vm(..) => self.vm(words[0] as u32, words[1], words[2] != 0),
            FieldValue::VmOfDisk(..) => {
                match self.disk(words) {
                    // A kernel thread works for no VM, its image does.
                    Ok(disk) => Some(disk.vm),
                    Err(_) => self.vm(words[0] as u32, words[1], words[2] != 0),
                }
            }
            FieldValue::Vdisk(..) => self.vdisk(words),
            FieldValue::Vsector(..) => return self.vsector(words),
            FieldValue::VmOfNetDevice(_) => {
                let device = self.names.comm([words[0], words[1]]);
                let attribution = self.attribution.as_ref();
                device.and_then(|device| attribution?.vm_of_net_device(device))
            }
            FieldValue::VmOfProcess(_) => self.vm(words[0] as u32, 0, false),
        };
        name.map(|name| name.id().into())
    }

    fn column(&mut self, column: &StreamColumn, rows: &[&[u64]]) -> Values {
        if let FieldValue::Time = column.value {
            let offset = self.names.epoch_offset_ns;
            let times = rows.iter().map(|event| event[TIME_WORD] as Nanos + offset);
            return Values::Int(Int64Array::from_iter_values(times));
        }
        if let FieldValue::LongText(text) = column.value {
            let texts = rows.iter().map(|event| long_text(event, text));
            let ids = texts.map(|text| text.map(|text| text.id()));
            return Values::Text(UInt32Array::from_iter(ids));
        }
        if let FieldValue::Stack(at) = column.value {
            let stacks = self.stacks.as_mut();
            let stacks = stacks.expect("the tap prepares the columns of its stream");
            let ids = rows.iter().map(|event| Some(stacks.text(event, at)?.id()));
            return Values::Text(UInt32Array::from_iter(ids));
        }
        let slots = column.slots();
        if let FieldValue::Before(_) = column.value {
            let offset = self.names.epoch_offset_ns;
            let begin = |event: &&[u64]| event[TIME_WORD].wrapping_sub(number(event, &slots[0]));
            let times = rows.iter().map(|event| begin(event) as Nanos + offset);
            return Values::Int(Int64Array::from_iter_values(times));
        }
        let mut words = [0; FIELDS_MAX];
        let values = rows.iter().map(|event| {
            for (word, slot) in words.iter_mut().zip(&slots) {
                *word = number(event, slot);
            }
            self.value(column, &words[..slots.len()])
        });
        match column.ty() {
            Type::Text => {
                let ids = values.map(|id| id.map(|id| id as u32));
                Values::Text(UInt32Array::from_iter(ids))
            }
            _ => Values::Int(Int64Array::from_iter(values)),
        }
    }
}

/// The text of a record; `None` if it is empty or there are too many texts.
fn long_text(event: &[u64], text: LongText) -> Option<Symbol> {
    let words = &event[text.offset / 8..][..text.bytes / 8];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let end = bytes.iter().position(|byte| *byte == 0);
    let text = String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]);
    Symbol::try_new(&text).ok().filter(|_| !text.is_empty())
}

/// The number of an event at `slot`, extended to 64 bits as in `number_at` of `stream.bpf.h`.
fn number(event: &[u64], slot: &Slot) -> u64 {
    let offset = usize::from(slot.offset);
    let bits = u32::from(slot.bytes) * 8;
    let above = u64::BITS - bits;
    let left = event[offset / 8] << (above - (offset % 8) as u32 * 8);
    match slot.is_signed {
        true => ((left as i64) >> above) as u64,
        false => left >> above,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_size_are_extended() {
        let event = [0x8877_6655_4433_2211, u64::MAX - 1];
        let read = |offset, bytes, is_signed| {
            let slot = Slot {
                offset,
                bytes,
                is_signed,
                null: None,
            };
            number(&event, &slot) as i64
        };
        assert_eq!(read(0, 1, false), 0x11);
        assert_eq!(read(7, 1, true), -0x78);
        assert_eq!(read(2, 2, false), 0x4433);
        assert_eq!(read(4, 4, false), 0x8877_6655);
        assert_eq!(read(4, 4, true), 0x8877_6655_u32 as i32 as i64);
        assert_eq!(read(8, 8, false), -2);
    }
}
