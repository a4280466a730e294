//! Where the stacks of a probe are in its records, and the instructions that read them.

use super::code::{BEGINNING, CONTEXT, Code, KernelFunction, MEMORY, R0, R1, R2, R3, R4};
use super::generate::{BEGIN_FIELDS, BLOCKS, Content, Origin, RECORD_FIELDS};
use crate::ebpf::stream::RecordedStack;
use crate::ebpf::stream::stacks::STACK_BYTES;

/// `BPF_F_USER_STACK` of include/uapi/linux/bpf.h.
const USER_STACK: i32 = 1 << 8;

/// Bytes before the addresses of a stack: their size or an error, and the process.
const HEAD_BYTES: usize = 8;

/// A stack that columns have in common.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Part {
    /// That of the beginning of a pair.
    is_begin: bool,
    /// That in the process.
    is_user: bool,
}

/// Lays out the stacks of the columns, each with its position, behind the bytes that the beginning
/// of a pair and a record have already. Adds the instructions to the blocks that read them.
pub fn lay_stacks<'a>(
    columns: impl Iterator<Item = (usize, &'a (Content, Origin))>,
    [beginning_bytes, record_bytes]: [&mut usize; 2],
    code: &mut [Code; BLOCKS.len()],
) -> Vec<(usize, RecordedStack)> {
    let mut laid: Vec<(Part, usize)> = Vec::new();
    let mut place = |part: Part| {
        if let Some((_, at)) = laid.iter().find(|(known, _)| *known == part) {
            return *at;
        }
        let at = extend(record_bytes);
        if part.is_begin {
            let from = extend(beginning_bytes);
            read(&mut code[BEGIN_FIELDS], at_offset(from), part.is_user);
            copy(&mut code[RECORD_FIELDS], from, at);
        } else {
            read(&mut code[RECORD_FIELDS], at_offset(at), part.is_user);
        }
        laid.push((part, at));
        at
    };
    let mut stacks = Vec::new();
    for (position, (content, origin)) in columns {
        let Content::Stack(parts) = content else {
            continue;
        };
        let is_begin = matches!(origin, Origin::Begin(_));
        let mut of = |is_user| place(Part { is_begin, is_user });
        let stack = RecordedStack {
            kernel: parts.kernel.then(|| of(false)),
            user: parts.user.then(|| of(true)),
        };
        stacks.push((position, stack));
    }
    stacks
}

/// The offset of a stack behind so many bytes, which it is added to.
fn extend(bytes: &mut usize) -> usize {
    let at = bytes.next_multiple_of(8);
    *bytes = at + STACK_BYTES;
    at
}

/// Offsets beyond the maximum of a record are refused afterwards, so no program has them.
fn at_offset(at: usize) -> i16 {
    i16::try_from(at).unwrap_or(i16::MAX - 7)
}

/// Reads a stack of the current thread: the process is the second half of its first word.
fn read(code: &mut Code, at: i16, is_user: bool) {
    code.call(KernelFunction::PidTgid);
    code.shift_right(R0, 32, false);
    code.store(MEMORY, at + 4, R0, 4);
    code.copy(R1, CONTEXT);
    code.copy(R2, MEMORY);
    code.add(R2, i32::from(at) + HEAD_BYTES as i32);
    code.set(R3, (STACK_BYTES - HEAD_BYTES) as i32);
    code.set(R4, if is_user { USER_STACK } else { 0 });
    code.call(KernelFunction::Stack);
    code.store(MEMORY, at, R0, 4);
}

/// Copies a stack of the beginning of a pair to the record.
fn copy(code: &mut Code, from: usize, at: usize) {
    code.copy(R1, MEMORY);
    code.add(R1, at as i32);
    code.set(R2, STACK_BYTES as i32);
    code.copy(R3, BEGINNING);
    code.add(R3, from as i32);
    code.call(KernelFunction::ReadKernel);
}
