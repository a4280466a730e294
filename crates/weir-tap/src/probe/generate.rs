//! The instructions that read the fields of a probe, and the layout of its events, of its records
//! and of the beginnings of pairs.

use std::collections::BTreeSet;

use weir_model::Demand;

use super::btf::{Leaf, Place};
use super::code::{BEGINNING, CONTEXT, Code, KernelFunction, MEMORY, R0, R1, R2, R3, Register};
use super::elf::{Operand, UsdtArgument};
use super::stack::lay_stacks;
use crate::ebpf::stream::layout::{EVENT_BYTES_MAX, HEAD_BYTES};
use crate::ebpf::stream::{FieldNumber, FieldValue, LongText, RecordedStack};

/// The marks of the placeholders in `probe.bpf.c`, and the numbers of instructions that fit.
pub const BLOCKS: [(i32, usize); 5] = [
    (0x7eed_be01, 256),
    (0x7eed_be02, 384),
    (0x7eed_be03, 64),
    (0x7eed_be04, 512),
    (0x7eed_be05, 64),
];

/// The position in [`BLOCKS`] of the fields that are not tested.
pub(super) const RECORD_FIELDS: usize = 1;

/// The positions in [`BLOCKS`] of the key of a beginning, of its fields, and of the key of an end.
const BEGIN_KEY: usize = 2;
pub(super) const BEGIN_FIELDS: usize = 3;
const END_KEY: usize = 4;

/// Size of `struct begun`, and of its head.
const BEGINNING_BYTES_MAX: usize = 3072;
const BEGINNING_HEAD_BYTES: usize = 8;

/// Position of the time in an event or a record.
const TIME_OFFSET: i16 = 8;

/// Bytes of a text that is tested in the kernel.
const SHORT_BYTES: usize = 16;

/// Maximum size of a record.
const RECORD_BYTES_MAX: usize = 4096;

/// Where a program finds a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The time of the event, its processor, or the host: not read by generated instructions.
    Head,
    /// A number at this offset of the context.
    Context(i16),
    /// A text at this offset of the context.
    ContextText(i16),
    /// A text whose offset in the context is in a word at this offset.
    LocatedText {
        /// The offset of the word.
        at: i16,
        /// The text's offset is counted from the end of the word.
        is_relative: bool,
    },
    /// A text whose address is at this offset of the context.
    TextAddress {
        /// The offset.
        at: i16,
        /// It is in the memory of the process, not of the kernel.
        is_user: bool,
    },
    /// A value that typed pointers lead to.
    Place(Place),
    /// The current process.
    Pid,
    /// The current thread.
    Tid,
    /// The command name of the current thread.
    Comm,
    /// The cgroup of the current process.
    Cgroup,
    /// The current processor.
    Processor,
    /// An argument of a USDT probe: where it is at each of its sites, by their numbers.
    Usdt(Vec<UsdtArgument>),
    /// Read by the beginning of a pair.
    Begin(Box<Origin>),
    /// In the beginning of a pair, at this offset.
    Beginning(i16),
    /// The time since the beginning of a pair.
    Latency,
    /// What the same call of a function has at its entry and its return: the address of the
    /// context, which is on the stack.
    ContextAddress,
    /// The same: the stack pointer, at an offset of the context, and what is added to it.
    StackPointer(i16, i32),
    /// The stacks of the current thread.
    Stack,
    /// What the VM of the current process is found by: its cgroup and its number.
    CurrentVm,
}

/// The values of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one for each column")]
pub enum Content {
    /// From the head of the event, or of the host.
    Head(FieldValue),
    /// The time of the event minus a number.
    Before,
    /// Numbers.
    Number {
        /// The size.
        bytes: usize,
        /// Negative numbers are possible.
        is_signed: bool,
    },
    /// The number of a cgroup.
    Cgroup,
    /// Texts of at most so many bytes.
    Text(usize),
    /// The functions that called each other.
    Stack(StackParts),
    /// The VM of the process with a number of so many bytes.
    VmOfProcess(usize),
    /// The VM of a process with its cgroup.
    VmOfTask,
    /// The VM of the network device with a name.
    VmOfNetDevice,
}

/// The parts of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackParts {
    /// The functions of the kernel.
    pub kernel: bool,
    /// The functions of the process.
    pub user: bool,
}

/// Where the columns are in events and records, and the code that fills them in.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Where each column is.
    pub values: Vec<FieldValue>,
    /// Words of an event.
    pub event_words: usize,
    /// Bytes of a record.
    pub record_bytes: usize,
    /// Bytes of the beginning of a pair.
    pub beginning_bytes: usize,
    /// The code of each of [`BLOCKS`].
    pub code: [Code; BLOCKS.len()],
}

/// What a beginning and an end have in common: the numbers of each.
pub type PairKeys = [Vec<(Content, Origin)>; 2];

impl Content {
    /// The value without a position, for the description of the column.
    pub fn anywhere(self) -> FieldValue {
        self.at(HEAD_BYTES, HEAD_BYTES)
    }

    /// The value at `at`; a long text is at `whole`, and its beginning at `at`.
    fn at(self, at: usize, whole: usize) -> FieldValue {
        match self {
            Content::Head(value) => value,
            Content::Before => FieldValue::Before(FieldNumber::unsigned(at, 8)),
            Content::Number {
                bytes,
                is_signed: true,
            } => FieldValue::Number(FieldNumber::signed(at, bytes)),
            Content::Number { bytes, .. } => FieldValue::Number(FieldNumber::unsigned(at, bytes)),
            Content::Cgroup => FieldValue::Cgroup(FieldNumber::unsigned(at, 8)),
            Content::Text(bytes) if bytes <= SHORT_BYTES => FieldValue::Text(at),
            Content::Text(bytes) => FieldValue::LongText(LongText {
                offset: whole,
                bytes: bytes.next_multiple_of(8),
                prefix: Some(at),
            }),
            Content::Stack(_) => FieldValue::Stack(RecordedStack::default()),
            Content::VmOfProcess(bytes) => {
                FieldValue::VmOfProcess(FieldNumber::unsigned(at, bytes))
            }
            Content::VmOfNetDevice => FieldValue::VmOfNetDevice(at),
            Content::VmOfTask => FieldValue::Vm(
                FieldNumber::unsigned(at + 8, 4),
                FieldNumber::unsigned(at, 8),
                // No hit is by a kernel thread for a VM.
                FieldNumber::unsigned(at + 12, 4),
            ),
        }
    }

    /// Bytes in the event and in the record, and the alignment.
    fn sizes(self) -> (usize, usize, usize) {
        match self {
            // Stacks are not laid out as columns: several columns share them.
            Content::Head(_) | Content::Stack(_) => (0, 0, 1),
            Content::Number { bytes, .. } | Content::VmOfProcess(bytes) => (bytes, bytes, bytes),
            Content::VmOfTask => (16, 16, 8),
            Content::VmOfNetDevice => (SHORT_BYTES, SHORT_BYTES, 8),
            Content::Cgroup | Content::Before => (8, 8, 8),
            Content::Text(bytes) if bytes <= SHORT_BYTES => (SHORT_BYTES, SHORT_BYTES, 8),
            Content::Text(bytes) => (SHORT_BYTES, bytes.next_multiple_of(8), 8),
        }
    }
}

impl Layout {
    /// The layout for `demands`: fields that the kernel tests, groups by or adds up are in the
    /// event, other demanded fields only in the record.
    ///
    /// # Errors
    /// If there is no room, in a sentence without full stop.
    pub fn new(
        columns: &[(Content, Origin)],
        keys: &PairKeys,
        demands: &[Demand],
    ) -> Result<Layout, String> {
        let tested = in_kernel(demands);
        let demanded = demands
            .iter()
            .flat_map(|demand| demand.columns.iter().copied());
        let demanded: BTreeSet<usize> = demanded.collect();
        let contents = columns.iter().map(|(content, _)| *content);
        let mut values: Vec<FieldValue> = contents.map(Content::anywhere).collect();
        let mut code: [Code; BLOCKS.len()] = Default::default();
        for (keys, block) in keys.iter().zip([BEGIN_KEY, END_KEY]) {
            for (at, (content, origin)) in keys.iter().enumerate() {
                let (bytes, ..) = content.sizes();
                origin.read(*content, 8 * at, bytes, &mut code[block]);
            }
        }
        let used = tested.union(&demanded).copied();
        let begin = &mut code[BEGIN_FIELDS];
        let (columns, mut beginning_bytes) = from_beginning(columns, used, begin);
        let mut end = HEAD_BYTES;
        let mut starts = vec![0; columns.len()];
        for &at in &tested {
            let (content, origin) = &columns[at];
            let (bytes, _, alignment) = content.sizes();
            starts[at] = end.next_multiple_of(alignment);
            end = starts[at] + bytes;
            values[at] = content.at(starts[at], starts[at]);
            let size = bytes.min(SHORT_BYTES);
            origin.read(*content, starts[at], size, &mut code[0]);
        }
        if end > EVENT_BYTES_MAX {
            let most = EVENT_BYTES_MAX - HEAD_BYTES;
            return Err(format!(
                "the kernel tests and groups by fields of {most} bytes in all, and these have {}",
                end - HEAD_BYTES
            ));
        }
        let event_words = end.div_ceil(8);
        end = event_words * 8;
        let is_stack = |at: &usize| matches!(columns[*at].0, Content::Stack(_));
        for &at in demanded.iter().filter(|at| !is_stack(at)) {
            let (content, origin) = &columns[at];
            let (in_event, bytes, alignment) = content.sizes();
            if tested.contains(&at) && in_event == bytes {
                continue;
            }
            let start = end.next_multiple_of(alignment);
            end = start + bytes;
            let prefix = if tested.contains(&at) {
                starts[at]
            } else {
                start
            };
            values[at] = content.at(prefix, start);
            if let (Content::Text(_) | Content::VmOfNetDevice, SHORT_BYTES) = (content, bytes) {
                code[1].clear(MEMORY, start as i16);
                code[1].clear(MEMORY, start as i16 + 8);
            }
            let size = match content {
                Content::Text(most) => *most,
                _ => bytes,
            };
            origin.read(*content, start, size, &mut code[1]);
        }
        let stacks = demanded.iter().filter(|at| is_stack(at));
        for (at, stack) in lay_stacks(
            stacks.map(|at| (*at, &columns[*at])),
            [&mut beginning_bytes, &mut end],
            &mut code,
        ) {
            values[at] = FieldValue::Stack(stack);
        }
        let is_long = code
            .iter()
            .zip(BLOCKS)
            .any(|(code, (_, most))| code.len() > most);
        if end > RECORD_BYTES_MAX || beginning_bytes > BEGINNING_BYTES_MAX || is_long {
            return Err(
                "a program does not hold so many fields; name only those that you need".into(),
            );
        }
        Ok(Layout {
            values,
            event_words,
            record_bytes: end.next_multiple_of(8),
            beginning_bytes,
            code,
        })
    }
}

/// The columns as the end of a pair reads them, and the size of its beginning, whose fields `code`
/// reads if they are in use.
fn from_beginning(
    columns: &[(Content, Origin)],
    used: impl Iterator<Item = usize>,
    code: &mut Code,
) -> (Vec<(Content, Origin)>, usize) {
    let mut columns = columns.to_vec();
    let mut end = BEGINNING_HEAD_BYTES;
    for at in used {
        let (content, origin) = &mut columns[at];
        let Origin::Begin(read) = origin else {
            continue;
        };
        if matches!(content, Content::Stack(_)) {
            continue;
        }
        let (_, bytes, alignment) = content.sizes();
        let start = end.next_multiple_of(alignment);
        end = start + bytes;
        let size = match content {
            Content::Text(most) => *most,
            _ => bytes,
        };
        read.read(*content, start, size, code);
        *origin = Origin::Beginning(start as i16);
    }
    (columns, end.next_multiple_of(8))
}

/// The columns that the kernel tests, groups by or adds up.
fn in_kernel(demands: &[Demand]) -> BTreeSet<usize> {
    let mut columns = BTreeSet::new();
    for demand in demands {
        let tests = demand
            .predicate
            .clauses
            .iter()
            .flat_map(|clause| &clause.tests);
        columns.extend(tests.map(|test| test.operand().column()));
        if let Some(fold) = &demand.fold {
            columns.extend(&fold.keys);
            columns.extend(fold.calls.iter().filter_map(|call| call.column));
        }
    }
    columns
}

impl Origin {
    /// Appends the instructions that write the value, of `bytes` bytes, to the memory at `at`.
    fn read(&self, content: Content, at: usize, bytes: usize, code: &mut Code) {
        let is_text = matches!(content, Content::Text(_) | Content::VmOfNetDevice);
        match self {
            Origin::Head | Origin::Stack => return,
            Origin::Context(from) => code.load(R1, CONTEXT, *from, bytes),
            Origin::ContextText(from) => {
                code.copy(R3, CONTEXT);
                code.add(R3, (*from).into());
                return text(code, at, bytes, KernelFunction::ReadKernelText);
            }
            Origin::LocatedText {
                at: from,
                is_relative,
            } => {
                code.load(R3, CONTEXT, *from, 4);
                code.and(R3, 0xffff);
                code.add_register(R3, CONTEXT);
                if *is_relative {
                    code.add(R3, i32::from(*from) + 4);
                }
                return text(code, at, bytes, KernelFunction::ReadKernelText);
            }
            Origin::TextAddress { at: from, is_user } => {
                code.load(R3, CONTEXT, *from, 8);
                let function = match is_user {
                    true => KernelFunction::ReadUserText,
                    false => KernelFunction::ReadKernelText,
                };
                return text(code, at, bytes, function);
            }
            Origin::Place(place) => {
                follow(code, place);
                if is_text {
                    code.copy(R3, R1);
                    return text(code, at, bytes, KernelFunction::ReadKernelText);
                }
            }
            Origin::Pid | Origin::Tid => {
                code.call(KernelFunction::PidTgid);
                if *self == Origin::Pid {
                    code.shift_right(R0, 32, false);
                }
                code.copy(R1, R0);
            }
            Origin::Comm => {
                address(code, R1, at);
                code.set(R2, SHORT_BYTES as i32);
                return code.call(KernelFunction::Comm);
            }
            Origin::Cgroup => {
                code.call(KernelFunction::CgroupId);
                code.copy(R1, R0);
            }
            Origin::Processor => {
                code.call(KernelFunction::Processor);
                code.copy(R1, R0);
            }
            Origin::Usdt(sites) => return usdt(code, sites, content, at, bytes),
            Origin::Begin(_) => unreachable!("the end reads what the beginning has read"),
            Origin::Beginning(from) if is_text => {
                code.copy(R3, BEGINNING);
                code.add(R3, (*from).into());
                return text(code, at, bytes, KernelFunction::ReadKernelText);
            }
            Origin::Beginning(from) if bytes > 8 => {
                for word in 0..(bytes / 8) as i16 {
                    code.load(R1, BEGINNING, *from + 8 * word, 8);
                    code.store(MEMORY, at as i16 + 8 * word, R1, 8);
                }
                return;
            }
            Origin::Beginning(from) => code.load(R1, BEGINNING, *from, bytes),
            Origin::CurrentVm => {
                code.call(KernelFunction::CgroupId);
                code.store(MEMORY, at as i16, R0, 8);
                code.call(KernelFunction::PidTgid);
                code.shift_right(R0, 32, false);
                return code.store(MEMORY, at as i16 + 8, R0, 8);
            }
            Origin::Latency => {
                code.load(R1, MEMORY, TIME_OFFSET, 8);
                code.load(R2, BEGINNING, 0, 8);
                code.subtract(R1, R2);
            }
            Origin::ContextAddress => {
                return code.store(MEMORY, at as i16, CONTEXT, bytes);
            }
            Origin::StackPointer(from, above) => {
                code.load(R1, CONTEXT, *from, 8);
                code.add(R1, *above);
            }
        }
        code.store(MEMORY, at as i16, R1, bytes);
    }
}

/// `to` is the address of the memory at `at`.
fn address(code: &mut Code, to: Register, at: usize) {
    code.copy(to, MEMORY);
    code.add(to, at as i32);
}

/// Copies the text at the address in R3.
fn text(code: &mut Code, at: usize, bytes: usize, function: KernelFunction) {
    address(code, R1, at);
    code.set(R2, bytes as i32);
    code.call(function);
}

/// R1 is the value of a place, or the address of its text; 0 behind an address that is NULL.
fn follow(code: &mut Code, place: &Place) {
    let mut nulls = Vec::new();
    code.load(R1, CONTEXT, place.argument as i16 * 8, 8);
    for pointer in &place.pointers {
        nulls.push(code.jump_if(R1, 0));
        code.load(R1, R1, *pointer as i16, 8);
    }
    let mut load = |code: &mut Code, offset: usize, bytes: usize| {
        nulls.push(code.jump_if(R1, 0));
        code.load(R1, R1, offset as i16, bytes);
    };
    match place.leaf {
        Leaf::Itself { .. } | Leaf::TextAddress { offset: None } => (),
        Leaf::Number { offset, bytes, .. } => load(code, offset, bytes),
        Leaf::TextAddress {
            offset: Some(offset),
        } => load(code, offset, 8),
        Leaf::Bits {
            offset,
            bytes,
            first,
            bits,
            is_signed,
        } => {
            load(code, offset, bytes);
            code.shift_left(R1, (64 - first - bits) as i32);
            code.shift_right(R1, 64 - bits as i32, is_signed);
        }
        Leaf::Text { offset, .. } => {
            nulls.push(code.jump_if(R1, 0));
            code.add(R1, offset as i32);
        }
    }
    if !nulls.is_empty() {
        // Linux 6.1 does not store parts of what it considers an address, be it NULL.
        let over = code.jump();
        nulls.into_iter().for_each(|null| code.end(null));
        code.set(R1, 0);
        code.end(over);
    }
}

/// The argument of a USDT probe at the site whose number is the cookie of the attachment.
fn usdt(code: &mut Code, sites: &[UsdtArgument], content: Content, at: usize, bytes: usize) {
    let is_text = matches!(content, Content::Text(_));
    let mut ends = Vec::new();
    for (number, argument) in sites.iter().enumerate() {
        let other = (sites.len() > 1).then(|| {
            code.copy(R1, CONTEXT);
            code.call(KernelFunction::AttachCookie);
            code.jump_unless(R0, number as i32)
        });
        let size = argument.bytes.min(bytes);
        match argument.operand {
            Operand::Constant(value) => code.set(R1, value),
            Operand::Register(from) => code.load(R1, CONTEXT, from, 8),
            Operand::Memory(from, displacement) => {
                // The value is read to where the column will be.
                code.load(R3, CONTEXT, from, 8);
                code.add(R3, displacement);
                address(code, R1, at);
                let size = size.min(bytes);
                code.set(R2, size as i32);
                code.call(KernelFunction::ReadUser);
                code.load(R1, MEMORY, at as i16, size);
            }
        }
        if is_text {
            code.copy(R3, R1);
            text(code, at, bytes, KernelFunction::ReadUserText);
        } else {
            // The column has the widest of the sites' sizes.
            let above = 64 - 8 * size as i32;
            code.shift_left(R1, above);
            code.shift_right(R1, above, argument.is_signed);
            code.store(MEMORY, at as i16, R1, bytes);
        }
        if let Some(other) = other {
            ends.push(code.jump());
            code.end(other);
        }
    }
    ends.into_iter().for_each(|end| code.end(end));
}
