//! Random requests on real images, compared with a disk that is a list of bytes.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use weir_model::Op;
use weir_tapdisk::{Outcome, Request, ServedDisk};

use crate::location::{MODES, io_queue, locations, open};
use crate::support::{Memory, Rig, skipped};

const MEBIBYTES: u64 = 2;
const BLOCK: u64 = 4096;
const BLOCKS: u64 = (MEBIBYTES << 20) / BLOCK;

#[derive(Clone, Debug)]
struct Step {
    op: Op,
    block: u64,
    blocks: u64,
    fua: bool,
    unmap: bool,
    /// The offset of pieces in a page.
    shift: usize,
    /// How the memory is split: fractions of the whole.
    cuts: Vec<usize>,
    /// The written data.
    seed: u8,
    /// Whether it waits for all earlier requests.
    alone: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let op = prop::sample::select(vec![
        Op::Read,
        Op::Read,
        Op::Write,
        Op::Write,
        Op::Write,
        Op::Flush,
        Op::Discard,
        Op::WriteZeroes,
    ]);
    // Most are short; some are longer than a bounce buffer.
    let blocks = prop_oneof![4 => 1..8_u64, 1 => 60..180_u64];
    let shift = prop::sample::select(vec![0_usize, 0, 0, 512, 1, 13, 4095]);
    let length = blocks.prop_flat_map(|blocks| (Just(blocks), 0..=BLOCKS - blocks));
    // Cuts at any byte, or at sectors.
    let cuts = prop_oneof![
        3 => Just(Vec::new()),
        2 => prop::collection::vec(1..4000_usize, 1..6),
        1 => prop::collection::vec(Just(512_usize), 8..80),
    ];
    (
        op,
        length,
        any::<(bool, bool, bool)>(),
        shift,
        cuts,
        any::<u8>(),
    )
        .prop_map(
            |(op, (blocks, block), (fua, unmap, alone), shift, cuts, seed)| Step {
                op,
                block,
                blocks,
                fua,
                unmap,
                shift,
                cuts,
                seed,
                alone,
            },
        )
}

impl Step {
    fn request(&self) -> Request {
        if self.op == Op::Flush {
            return Request::FLUSH;
        }
        Request {
            op: self.op,
            sector: self.block * BLOCK / 512,
            skip_bytes: 0,
            bytes: self.blocks * BLOCK,
            fua: self.fua && self.op != Op::Read,
            unmap: self.unmap,
        }
    }

    fn range(&self) -> std::ops::Range<usize> {
        match self.op {
            Op::Flush => 0..0,
            _ => (self.block * BLOCK) as usize..((self.block + self.blocks) * BLOCK) as usize,
        }
    }

    /// The pieces of memory, the remainder as the last one; none for requests without memory.
    fn memory(&self) -> Memory {
        if !matches!(self.op, Op::Read | Op::Write) {
            return Memory::new(&[], 0);
        }
        let mut left = self.range().len();
        let mut lengths = Vec::new();
        for cut in &self.cuts {
            let length = (*cut).min(left);
            lengths.push(length);
            left -= length;
        }
        lengths.push(left);
        let mut memory = Memory::new(&lengths, self.shift);
        if self.op == Op::Write {
            memory.fill(&self.data());
        }
        memory
    }

    fn data(&self) -> Vec<u8> {
        let byte = |at: usize| (at as u8).wrapping_mul(31) ^ (at >> 9) as u8 ^ self.seed;
        (0..self.range().len()).map(byte).collect()
    }
}

/// Whether two requests conflict: the order of their effects is undefined.
fn clash(a: &Step, b: &Step) -> bool {
    let (x, y) = (a.range(), b.range());
    let both_read = a.op == Op::Read && b.op == Op::Read;
    !both_read && x.start < y.end && y.start < x.end
}

/// Executes the steps on both and compares.
fn agrees(disk: &Arc<ServedDisk>, model: &mut [u8], steps: &[Step]) -> Result<(), TestCaseError> {
    let mut rig = io_queue(disk);
    let mut under_way: Vec<(u64, &Step, Vec<u8>)> = Vec::new();
    for step in steps {
        if step.alone || under_way.iter().any(|(_, other, _)| clash(step, other)) {
            settle(&mut rig, &mut under_way)?;
        }
        let token = rig.take(step.request(), step.memory());
        let range = step.range();
        match step.op {
            Op::Write => model[range.clone()].copy_from_slice(&step.data()),
            Op::Discard | Op::WriteZeroes => model[range.clone()].fill(0),
            Op::Read | Op::Flush => {}
        }
        under_way.push((token, step, model[range].to_vec()));
        if step.alone {
            rig.io_queue.submit().unwrap();
        }
    }
    settle(&mut rig, &mut under_way)?;
    // The result as another queue reads it.
    let (outcome, all) = rig.read(0, model.len());
    prop_assert_eq!(outcome, Outcome::Done);
    prop_assert!(all == model, "the image differs from the model");
    prop_assert_eq!(disk.counters().in_flight, 0);
    Ok(())
}

fn settle(rig: &mut Rig, under_way: &mut Vec<(u64, &Step, Vec<u8>)>) -> Result<(), TestCaseError> {
    let mut ended = rig.finish();
    prop_assert_eq!(ended.len(), under_way.len());
    for (token, step, expected) in under_way.drain(..) {
        let location = ended.iter().position(|(done, _)| done.token == token);
        let (done, memory) = ended.swap_remove(location.expect("each token comes back"));
        prop_assert_eq!(done.outcome, Outcome::Done, "{:?}", step);
        if step.op == Op::Read {
            prop_assert!(memory.data() == expected, "read something else: {:?}", step);
        }
        prop_assert!(memory.is_whole(), "wrote beside its memory: {:?}", step);
    }
    Ok(())
}

#[test]
fn every_engine_on_every_kind_of_image_matches_a_list_of_bytes() {
    let test = "every_engine_on_every_kind_of_image_matches_a_list_of_bytes";
    let locations = locations(MEBIBYTES, |what| skipped(test, what));
    for location in &locations {
        for way in MODES {
            let disk = open(&location.image, way);
            assert_eq!(disk.size_bytes(), MEBIBYTES << 20);
            let mut runner = TestRunner::new(Config::with_cases(8));
            let steps = prop::collection::vec(step(), 1..40);
            let result = runner.run(&steps, |steps| {
                // A case begins with the image of the previous one; when it is shrunk, with the
                // current image.
                let mut before = io_queue(&disk).read(0, MEBIBYTES as usize * (1 << 20)).1;
                agrees(&disk, &mut before, &steps)
            });
            result.unwrap_or_else(|e| panic!("{} {}: {e}", location.name, disk.choice()));
        }
    }
}

#[test]
fn every_engine_reads_what_the_others_wrote() {
    let test = "every_engine_reads_what_the_others_wrote";
    for location in locations(MEBIBYTES, |what| skipped(test, what)) {
        for (number, way) in MODES.into_iter().enumerate() {
            let byte = |at: usize| (at * 7 + number) as u8;
            let data: Vec<u8> = (0..17 * 4096).map(byte).collect();
            let disk = open(&location.image, way);
            assert_eq!(io_queue(&disk).write(8, &data), Outcome::Done);
            assert_eq!(
                io_queue(&disk).run_without_memory(Request::FLUSH),
                Outcome::Done
            );
            drop(disk);
            for other in MODES {
                let disk = open(&location.image, other);
                let (outcome, read) = io_queue(&disk).read(8, data.len());
                assert_eq!(outcome, Outcome::Done);
                assert!(
                    read == data,
                    "{}: {way:?} wrote, {other:?} read",
                    location.name
                );
            }
        }
    }
}

#[test]
fn requests_with_more_pieces_than_a_call_supports_are_split() {
    let test = "requests_with_more_pieces_than_a_call_supports_are_split";
    let lengths = [512; 2500];
    let bytes = lengths.iter().sum::<usize>();
    let data: Vec<u8> = (0..bytes).map(|at| (at / 512 % 251) as u8).collect();
    for location in locations(MEBIBYTES, |what| skipped(test, what)) {
        for (way, shift) in MODES.into_iter().flat_map(|way| [(way, 0), (way, 3)]) {
            let disk = open(&location.image, way);
            let mut rig = io_queue(&disk);
            let mut memory = Memory::new(&lengths, shift);
            memory.fill(&data);
            let write = Request::new(Op::Write, 8, bytes as u64);
            assert_eq!(rig.run(write, memory).0, Outcome::Done, "{}", disk.choice());
            let read = Request::new(Op::Read, 8, bytes as u64);
            let (outcome, memory) = rig.run(read, Memory::new(&lengths, shift));
            assert_eq!(outcome, Outcome::Done);
            assert!(
                memory.data() == data && memory.is_whole(),
                "{}",
                disk.choice()
            );
        }
    }
}
