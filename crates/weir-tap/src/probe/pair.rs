//! What pairs of probes have: their columns, and what a beginning and an end have in common.

use weir_model::Unit;

use super::elf::STACK_POINTER;
use super::generate::{Content, Origin, PairKeys};
use super::{ProbeColumn, ProbeTarget};

/// A number of each hit.
pub fn of_hit(name: &str) -> Option<(Content, Origin)> {
    let origin = match name {
        "pid" => Origin::Pid,
        "tid" => Origin::Tid,
        "cpu" => Origin::Processor,
        _ => return None,
    };
    Some((unsigned(4), origin))
}

/// What the entry and the return of the same call have in common: the thread, and where its stack
/// is, which differs for calls within the call.
pub fn same_call(begin: &ProbeTarget, end: &ProbeTarget) -> Option<PairKeys> {
    let at_return = end.of_entry()?;
    if at_return != *begin {
        return None;
    }
    let stack = match begin {
        ProbeTarget::Function { .. } => [Origin::ContextAddress, Origin::ContextAddress],
        _ => {
            let (at, above) = STACK_POINTER;
            [Origin::StackPointer(at, 0), Origin::StackPointer(at, above)]
        }
    };
    Some(stack.map(|stack| vec![(unsigned(4), Origin::Tid), (unsigned(8), stack)]))
}

/// An unsigned number of so many bytes.
pub fn unsigned(bytes: usize) -> Content {
    Content::Number {
        bytes,
        is_signed: false,
    }
}

/// The columns of every pair.
pub fn of_every_pair() -> [ProbeColumn; 2] {
    let column = |name, doc, content| ProbeColumn {
        name,
        doc,
        unit: Unit::Nanoseconds,
        content,
        origin: Origin::Latency,
    };
    [
        column("begin", "when the first probe was hit", Content::Before),
        column(
            "latency",
            "from the first probe to the second one",
            unsigned(8),
        ),
    ]
}
