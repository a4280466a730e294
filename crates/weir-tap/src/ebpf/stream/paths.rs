//! [`Paths`]: reads the paths that the programs of a kernel stream resolve (`file.bpf.h`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_model::Symbol;

use crate::shared::Shared;

/// Bytes of `struct path_slot`.
pub const SLOT_BYTES: usize = 1024;

/// Number of slots of the table.
pub const SLOTS: usize = 4096;

/// Positions at which a path may be.
const WAYS: usize = 4;

const SLOT_WORDS: usize = SLOT_BYTES / 8;

/// Position of the names in a slot, in units of 8 bytes.
const NAMES: usize = 4;

/// Maximum number of cached paths.
const KNOWN_MAX: usize = 1 << 18;

/// The table of paths, and those read so far.
#[derive(Debug)]
pub struct Paths {
    slots: Shared,
    known: HashMap<u64, Option<Symbol>>,
}

impl Paths {
    /// The paths of a mapped table.
    pub fn new(slots: Shared) -> Paths {
        Paths {
            slots,
            known: HashMap::new(),
        }
    }

    /// Reads the new paths, which frees their slots: groups need them only at the end of an
    /// interval, in which there may be more paths than slots.
    pub fn read_new(&mut self) {
        for at in 0..SLOTS {
            let slot = &self.slots.words()[at * SLOT_WORDS..][..SLOT_WORDS];
            let key = slot[1].load(Ordering::Acquire);
            if slot[2].load(Ordering::Relaxed) == key {
                continue;
            }
            if self.known.contains_key(&key) {
                slot[2].store(key, Ordering::Release);
            } else {
                self.path(key);
            }
        }
    }

    /// The path with this key; `None` if it is unknown.
    pub fn path(&mut self, key: u64) -> Option<Symbol> {
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let words = self.slots.words();
        let slot = (0..WAYS).find_map(|way| {
            let at = ((key >> 40) as usize + way) % SLOTS;
            let slot = &words[at * SLOT_WORDS..][..SLOT_WORDS];
            (slot[1].load(Ordering::Acquire) == key).then_some(slot)
        });
        let slot = slot.filter(|_| key != 0)?;
        let path = joined(slot);
        // Another path may have taken the slot meanwhile.
        if slot[0].load(Ordering::Acquire) != key {
            return None;
        }
        slot[2].store(key, Ordering::Release);
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        let path = path.and_then(|path| Symbol::try_new(&path).ok());
        self.known.insert(key, path);
        path
    }
}

/// The path in a slot, whose names are from the last to the first; `None` if it is unknown.
fn joined(slot: &[AtomicU64]) -> Option<String> {
    let sizes = slot[3].load(Ordering::Relaxed);
    let (bytes, is_deleted) = (sizes as u32 as usize, sizes >> 32 != 0);
    let words = slot[NAMES..].iter();
    let names: Vec<u8> = words
        .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
        .take(bytes)
        .collect();
    let names = names.strip_suffix(&[0])?;
    let mut path = String::new();
    for name in names.split(|byte| *byte == 0).rev() {
        path.push('/');
        path.push_str(&String::from_utf8_lossy(name));
    }
    if is_deleted {
        path.push_str(" (deleted)");
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(bytes: u64, is_deleted: bool, names: &[u8]) -> Vec<AtomicU64> {
        let sizes = bytes | u64::from(is_deleted) << 32;
        let mut padded = names.to_vec();
        padded.resize(SLOT_BYTES - 8 * NAMES, b'x');
        let words = padded
            .chunks(8)
            .map(|w| u64::from_ne_bytes(w.try_into().unwrap()));
        let all = [1, 1, 0, sizes].into_iter().chain(words);
        all.map(AtomicU64::new).collect()
    }

    #[test]
    fn names_are_joined_from_the_root() {
        let names = b"disk.img\0images\0srv\0";
        let at = names.len() as u64;
        assert_eq!(
            joined(&slot(at, false, names)).as_deref(),
            Some("/srv/images/disk.img")
        );
        let deleted = joined(&slot(at, true, names));
        assert_eq!(deleted.as_deref(), Some("/srv/images/disk.img (deleted)"));
        assert_eq!(joined(&slot(0, false, names)), None);
    }
}
