//! [`Symbolizer`]: the names of the functions at addresses of the kernel and of processes.
//!
//! The symbol tables of programs are read with read(2), not mapped: a file of another user that is
//! truncated while it is mapped would end this process with SIGBUS.

mod file;
mod kernel;
mod process;

use std::fmt::{self, Write};
use std::fs::File;

use cpp_demangle::DemangleOptions;
use serde::{Deserialize, Serialize};

use self::kernel::KernelSymbols;
use self::process::ProcessSymbols;

/// Maximum number of addresses of a request: the default of `kernel.perf_event_max_stack`.
pub const ADDRESSES_MAX: usize = 127;

/// Maximum size of a name in bytes; longer ones are cut.
pub const NAME_BYTES_MAX: usize = 256;

/// The list of the kernel's functions.
pub const KALLSYMS: &str = "/proc/kallsyms";

/// What addresses are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AddressSpace {
    /// The kernel.
    Kernel,
    /// This process.
    Process(u32),
}

/// Finds the names of functions, with the rights of the calling thread.
#[derive(Debug)]
pub struct Symbolizer {
    kernel: KernelSymbols,
    processes: ProcessSymbols,
}

impl Symbolizer {
    /// A symbolizer with the list of the kernel's functions, [`KALLSYMS`]. The right to see their
    /// addresses is that of the thread which opened the file.
    pub fn new(kallsyms: Option<File>) -> Symbolizer {
        Symbolizer {
            kernel: KernelSymbols::new(kallsyms),
            processes: ProcessSymbols::default(),
        }
    }

    /// The name of the function at each address. What has no name is in brackets: the file
    /// (`[libc.so.6]`), or `[unknown]`.
    pub fn names(&mut self, space: AddressSpace, addresses: &[u64]) -> Vec<String> {
        match space {
            AddressSpace::Kernel => self.kernel.names(addresses),
            AddressSpace::Process(pid) => self.processes.names(pid, addresses),
        }
    }
}

/// A name as programmers write it: without mangling and parameters. Names are of other users'
/// files: control characters and the separator of stacks are replaced.
fn readable(name: &str) -> String {
    let mut text = Bounded(String::new());
    // The result is an error if the name is longer than the bound: its beginning is used.
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        let _ = write!(text, "{rust:#}");
    } else if name.starts_with("_Z")
        && let Ok(cpp) = cpp_demangle::Symbol::new(name)
    {
        let options = DemangleOptions::new().no_params().no_return_type();
        let _ = cpp.structured_demangle(&mut text, &options);
    }
    if text.0.is_empty() {
        let _ = fmt::Write::write_str(&mut text, name);
    }
    let replaced = text.0.chars().map(|c| match c {
        ';' => ',',
        c if c.is_control() => '?',
        c => c,
    });
    replaced.collect()
}

/// A text of at most [`NAME_BYTES_MAX`] bytes: mangled names can stand for very long ones.
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = NAME_BYTES_MAX - self.0.len();
        let is_end = |end: &usize| text.is_char_boundary(*end);
        let end = (0..=room.min(text.len())).rev().find(is_end).unwrap_or(0);
        self.0.push_str(&text[..end]);
        match end == text.len() {
            true => Ok(()),
            false => Err(fmt::Error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_source() {
        for (name, expected) in [
            ("main", "main"),
            (
                "_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE",
                "core::fmt::Write::write_fmt",
            ),
            (
                "_ZNSt6vectorIiSaIiEE9push_backEOi",
                "std::vector<int, std::allocator<int> >::push_back",
            ),
            ("_Z", "_Z"),
            ("a;b\x1b[2J", "a,b?[2J"),
        ] {
            assert_eq!(readable(name), expected);
        }
        assert_eq!(readable(&"é".repeat(1000)).len(), NAME_BYTES_MAX);
    }

    #[test]
    fn functions_of_this_process_have_names() {
        #[inline(never)]
        fn named_here() {}
        let address = named_here as fn() as usize as u64;
        let mut symbolizer = Symbolizer::new(None);
        let names = symbolizer.names(
            AddressSpace::Process(std::process::id()),
            &[address, 8, u64::MAX],
        );
        assert!(names[0].ends_with("named_here"), "{names:?}");
        assert_eq!(names[1..], ["[unknown]", "[unknown]"]);
        // No process has this number (PID_MAX_LIMIT is 2^22).
        let none = AddressSpace::Process(u32::MAX);
        assert_eq!(symbolizer.names(none, &[address]), ["[unknown]"]);
    }
}
