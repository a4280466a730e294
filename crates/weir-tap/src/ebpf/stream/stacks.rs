//! [`Stacks`]: the texts of the stacks that programs record: the functions, outermost first,
//! separated by `;`, as tools for flame graphs read them.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use weir_model::Symbol;

use super::layout::TIME_WORD;
use crate::TapError;
use crate::inspection::message::{ConversationKind, SymbolsRequest};
use crate::inspection::{Conversation, Inspection};
use crate::symbols::{ADDRESSES_MAX, AddressSpace, KALLSYMS, Symbolizer};

/// Bytes of a stack in a record: its size in bytes or an error, the process, and the addresses,
/// innermost first.
pub const STACK_BYTES: usize = 8 * (1 + ADDRESSES_MAX);

/// Where the stacks of an event are in a record, each [`STACK_BYTES`] long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordedStack {
    /// The offset of that in the kernel.
    pub kernel: Option<usize>,
    /// The offset of that in the process.
    pub user: Option<usize>,
}

/// Maximum size of a text; of a longer one the outermost functions are left out.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// What stands for the functions that are left out.
const LEFT_OUT: &str = "[...]";

/// Maximum number of stacks whose texts are kept.
const KNOWN_MAX: usize = 1 << 16;

/// A text is kept for so long, in event time: another process may have the number later.
const KNOWN_NS: u64 = 10_000_000_000;

/// Timeout of the inspection process, which reads the symbols of large programs.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// What tools for flame graphs recognise functions of the kernel by.
const OF_KERNEL: &str = "_[k]";

/// The beginnings of the functions through which the kernel runs a program: they are innermost in
/// the stacks of tracepoints and functions, and no part of what is observed.
const RUNNING: &[&str] = &[
    "bpf_get_stack",
    "bpf_prog_",
    "bpf_trace_run",
    "bpf_trampoline_",
    "__bpf_",
    "__traceiter_",
    "trace_call_bpf",
    "perf_trace_",
    "perf_syscall_",
    "kprobe_",
    "trace_event_raw_event_",
];

/// Maximum number of them. Those of a program itself have no names in some configurations.
const RUNNING_DEPTH: usize = 6;

/// Texts of stacks.
#[derive(Debug)]
pub struct Stacks {
    source: Source,
    /// The texts of stacks, with the time of the event that each was made for.
    known: HashMap<Box<[u64]>, (u64, Option<Symbol>)>,
    /// The key of a stack: its process, the number of addresses in it, and all addresses.
    key: Vec<u64>,
}

/// What finds the names of functions.
#[derive(Debug)]
enum Source {
    /// This process.
    Own(Box<Symbolizer>),
    /// The inspection process, which has the rights to read other users' processes.
    Inspection(Conversation),
    /// The inspection process has ended.
    Lost,
}

impl Stacks {
    /// Names of functions by the inspection process, or else with the rights of this one.
    ///
    /// # Errors
    /// If the inspection process has ended.
    pub fn new(inspection: Option<&Arc<Inspection>>) -> Result<Stacks, TapError> {
        let source = match inspection {
            None => Source::Own(Box::new(Symbolizer::new(File::open(KALLSYMS).ok()))),
            Some(inspection) => {
                let first = SymbolsRequest {
                    space: AddressSpace::Kernel,
                    addresses: Vec::new(),
                };
                let conversation =
                    inspection.converse(ConversationKind::Symbols, &first, Some(ANSWER_MAX));
                let conversation = conversation.and_then(|mut conversation| {
                    conversation.answer::<Vec<String>>()?;
                    Ok(conversation)
                });
                Source::Inspection(conversation.map_err(|error| TapError::Unavailable {
                    what: format!("the names of functions: the inspection process {error}"),
                    remedy: "start the command again".into(),
                })?)
            }
        };
        Ok(Stacks {
            source,
            known: HashMap::new(),
            key: Vec::new(),
        })
    }

    /// The text of a stack of an event; `None` if it has no functions, or there are too many texts.
    pub fn text(&mut self, event: &[u64], at: RecordedStack) -> Option<Symbol> {
        let (pid, user) = addresses(event, at.user);
        let (_, kernel) = addresses(event, at.kernel);
        if user.is_empty() && kernel.is_empty() {
            return None;
        }
        let combined = u64::from(at.user.is_some() && at.kernel.is_some());
        self.key.clear();
        let pid_of_user = if user.is_empty() { 0 } else { pid };
        self.key
            .extend([pid_of_user.into(), user.len() as u64, combined]);
        self.key.extend(user);
        self.key.extend(kernel);
        let now_ns = event[TIME_WORD];
        match self.known.get(self.key.as_slice()) {
            Some((made_ns, text)) if now_ns.saturating_sub(*made_ns) < KNOWN_NS => return *text,
            _ => (),
        }
        let mut functions = self.source.functions(AddressSpace::Process(pid), user);
        let mut of_kernel = self.source.functions(AddressSpace::Kernel, kernel);
        let is_running = |name: &String| RUNNING.iter().any(|begin| name.starts_with(begin));
        let outermost = of_kernel.len().saturating_sub(RUNNING_DEPTH);
        if let Some(at) = of_kernel[outermost..].iter().position(is_running) {
            of_kernel.truncate(outermost + at);
        }
        if combined != 0 {
            let marked = of_kernel.into_iter().map(|name| name + OF_KERNEL);
            of_kernel = marked.collect();
        }
        functions.append(&mut of_kernel);
        let text = joined(&functions);
        let text = text.and_then(|text| Symbol::try_computed(&text).ok());
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known
            .insert(self.key.as_slice().into(), (now_ns, text));
        text
    }
}

impl Source {
    /// The functions of a stack, outermost first.
    fn functions(&mut self, space: AddressSpace, addresses: &[u64]) -> Vec<String> {
        if addresses.is_empty() {
            return Vec::new();
        }
        // An address to return to may be behind the last instruction of the function.
        let inner = addresses.iter().take(1).copied();
        let outer = addresses
            .iter()
            .skip(1)
            .map(|address| address.wrapping_sub(1));
        let addresses: Vec<u64> = inner.chain(outer).collect();
        let unknown = || vec!["[unknown]".to_owned(); addresses.len()];
        let mut names = match self {
            Source::Own(symbolizer) => symbolizer.names(space, &addresses),
            Source::Lost => unknown(),
            Source::Inspection(conversation) => {
                let request = SymbolsRequest {
                    space,
                    addresses: addresses.clone(),
                };
                let sent = conversation.request(&request);
                let names = sent.and_then(|()| conversation.answer::<Vec<String>>());
                match names {
                    Ok(names) if names.len() == addresses.len() => names,
                    _ => {
                        *self = Source::Lost;
                        unknown()
                    }
                }
            }
        };
        names.reverse();
        names
    }
}

/// The process and the addresses of a stack in a record.
fn addresses(event: &[u64], at: Option<usize>) -> (u32, &[u64]) {
    let Some(at) = at else {
        return (0, &[]);
    };
    let stack = &event[at / 8..][..STACK_BYTES / 8];
    let [b0, b1, b2, b3, p0, p1, p2, p3] = stack[0].to_ne_bytes();
    let bytes = i32::from_ne_bytes([b0, b1, b2, b3]);
    let count = usize::try_from(bytes).map_or(0, |bytes| bytes / 8);
    let pid = u32::from_ne_bytes([p0, p1, p2, p3]);
    (pid, &stack[1..][..count.min(ADDRESSES_MAX)])
}

/// The functions separated by `;`; `None` without one.
fn joined(functions: &[String]) -> Option<String> {
    let mut bytes = 0;
    let fits = |name: &&String| {
        bytes += name.len() + 1;
        bytes <= TEXT_BYTES_MAX
    };
    let kept = functions.iter().rev().take_while(fits).count();
    let left_out = functions.len() - kept;
    let mut parts: Vec<&str> = functions[left_out..].iter().map(|name| &**name).collect();
    if left_out > 0 {
        parts.insert(0, LEFT_OUT);
    }
    (!parts.is_empty()).then(|| parts.join(";"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_begins_with_what_is_left_out() {
        let names: Vec<String> = (0..100)
            .map(|n| format!("{n}{}", "x".repeat(255)))
            .collect();
        let text = joined(&names).unwrap();
        assert!(text.starts_with("[...];") && text.ends_with('x'));
        assert!(text.len() <= TEXT_BYTES_MAX + LEFT_OUT.len());
        assert_eq!(joined(&names[..2]).unwrap(), names[..2].join(";"));
        assert_eq!(joined(&[]), None);
    }

    #[test]
    fn the_addresses_of_a_failed_read_are_none() {
        let mut event = vec![0; 2 * STACK_BYTES / 8];
        let head = |bytes: i32, pid: u32| {
            let [a, b, c, d] = bytes.to_ne_bytes();
            let [e, f, g, h] = pid.to_ne_bytes();
            u64::from_ne_bytes([a, b, c, d, e, f, g, h])
        };
        event[0] = head(-14, 7);
        assert_eq!(addresses(&event, Some(0)), (7, &[][..]));
        event[128] = head(16, 9);
        event[129..131].copy_from_slice(&[3, 4]);
        assert_eq!(addresses(&event, Some(STACK_BYTES)), (9, &[3, 4][..]));
        event[0] = head(i32::MAX, 7);
        assert_eq!(addresses(&event, Some(0)).1.len(), ADDRESSES_MAX);
        assert_eq!(addresses(&event, None), (0, &[][..]));
    }
}
