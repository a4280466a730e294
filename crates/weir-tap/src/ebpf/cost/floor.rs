//! [`FloorPrograms`]: the least that observes every request and completion, as a floor of costs.

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use libbpf_rs::{Link, Object, OpenObject};

use super::{RunTime, run_time};
use crate::TapError;
use crate::ebpf::object::{self, refused};
use crate::ebpf::rings::RING_BYTES;
use crate::shared::Shared;

/// Compiled from `floor.bpf.c`.
static OBJECT: &[u8] = include_bytes!("floor.bpf.o");

/// Records of a processor's ring: `SLOTS` of `floor.bpf.c`.
const SLOTS: usize = 1 << 14;

/// Bytes of a record, whose first word is its mark.
const RECORD_BYTES: usize = 64;

/// Records of 8 words.
const RECORD_WORDS: usize = RECORD_BYTES / 8;

/// Words of a ring's control data, and the word of the tail among them.
const RING_WORDS: usize = RING_BYTES / 8;
const TAIL_WORD: usize = 8;

/// Programs and their tables.
const PROGRAMS: [(&str, &str); 2] = [
    ("floor_issue", "block_rq_issue"),
    ("floor_complete", "block_rq_complete"),
];

/// Two programs that follow each request by its driver tag, and either write 64 bytes for its
/// issue and its completion into a ring of the processor, or count its latency in a bin of a power
/// of two.
#[derive(Debug)]
pub struct FloorPrograms {
    rings: Shared,
    records: Shared,
    tails: Vec<u64>,
    copied: Vec<[u64; RECORD_WORDS]>,
    // Links are dropped before the object that they belong to.
    _links: Vec<Link>,
    object: Object,
}

impl FloorPrograms {
    /// Attaches them; `writes_records` chooses records, otherwise bins are counted.
    ///
    /// # Errors
    /// As [`crate::ebpf::open`].
    pub fn attach(writes_records: bool) -> Result<FloorPrograms, TapError> {
        let processors =
            libbpf_rs::num_possible_cpus().map_err(|e| refused("its processors", &e))?;
        let mut object = object::open(OBJECT)?;
        set_up(&mut object, processors, writes_records).map_err(|e| refused("a table", &e))?;
        let object = object.load().map_err(|e| refused("the programs", &e))?;
        let mut links = Vec::new();
        for (name, tracepoint) in PROGRAMS {
            let program = object.progs_mut().find(|p| p.name() == name);
            let program = program.expect("the object has this program");
            links.push(program.attach().map_err(|e| refused(tracepoint, &e))?);
        }
        Ok(FloorPrograms {
            rings: object::map(&object, "rings", RING_BYTES, processors)?,
            records: object::map(&object, "records", RECORD_BYTES, processors * SLOTS)?,
            tails: vec![0; processors],
            copied: Vec::new(),
            _links: links,
            object,
        })
    }

    /// Copies the new records, in place of those copied before, and frees their slots.
    pub fn drain(&mut self) -> &[[u64; RECORD_WORDS]] {
        self.copied.clear();
        let (rings, records) = (self.rings.words(), self.records.words());
        for (processor, tail) in self.tails.iter_mut().enumerate() {
            let ring = &rings[processor * RING_WORDS..][..RING_WORDS];
            let slots = &records[processor * SLOTS * RECORD_WORDS..][..SLOTS * RECORD_WORDS];
            let head = ring[0].load(Ordering::Acquire);
            while *tail < head {
                let slot = *tail as usize & (SLOTS - 1);
                let record = &slots[slot * RECORD_WORDS..][..RECORD_WORDS];
                if record[0].load(Ordering::Acquire) != *tail + 1 {
                    break;
                }
                let word = |at: usize| record[at].load(Ordering::Relaxed);
                self.copied.push(std::array::from_fn(word));
                *tail += 1;
            }
            ring[TAIL_WORD].store(*tail, Ordering::Release);
        }
        &self.copied
    }

    /// Run time of each so far.
    pub fn run_times(&self) -> Vec<RunTime> {
        let of = |(name, tracepoint): (&str, &'static str)| {
            let program = self.object.progs_mut().find(|p| p.name() == name);
            program.map(|p| run_time(tracepoint, p.as_fd()))
        };
        PROGRAMS.into_iter().filter_map(of).collect()
    }
}

fn set_up(
    object: &mut OpenObject,
    processors: usize,
    writes_records: bool,
) -> Result<(), libbpf_rs::Error> {
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        match name.as_str() {
            "rings" => map.set_max_entries(processors as u32)?,
            "records" => map.set_max_entries((processors * SLOTS) as u32)?,
            _ if name.ends_with(".rodata.config") => {
                map.set_initial_value(&[u8::from(writes_records)])?;
            }
            _ => (),
        }
    }
    Ok(())
}
