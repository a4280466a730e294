//! [`KernelSymbols`]: the functions of the kernel and of its modules, from `/proc/kallsyms`.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::time::{Duration, Instant};

use super::readable;

/// Maximum number of bytes that are read of the list.
const LIST_BYTES_MAX: u64 = 256 << 20;

/// An address so far above the last function is in none: functions are shorter.
const FUNCTION_BYTES_MAX: u64 = 1 << 20;

/// Minimum interval between two readings: modules and programs may have been loaded since.
const READ_AGAIN: Duration = Duration::from_secs(10);

/// The functions of the kernel.
#[derive(Debug)]
pub struct KernelSymbols {
    file: Option<File>,
    read: Option<Instant>,
    /// The text of the list.
    text: String,
    /// The address of each function, and the range of its name in the text, by address.
    functions: Vec<(u64, usize, usize)>,
}

impl KernelSymbols {
    /// Those of an opened list, which is read when the first name is requested.
    pub fn new(file: Option<File>) -> KernelSymbols {
        KernelSymbols {
            file,
            read: None,
            text: String::new(),
            functions: Vec::new(),
        }
    }

    /// The name of the function at each address.
    pub fn names(&mut self, addresses: &[u64]) -> Vec<String> {
        let is_unknown = |address: &u64| self.name(*address).is_none();
        let is_due = self.read.is_none_or(|read| read.elapsed() >= READ_AGAIN);
        if is_due && addresses.iter().any(is_unknown) {
            self.read_again();
        }
        let name = |address: &u64| self.name(*address).map(readable);
        let names = addresses.iter().map(name);
        names
            .map(|name| name.unwrap_or_else(|| "[kernel]".into()))
            .collect()
    }

    fn name(&self, address: u64) -> Option<&str> {
        let after = self
            .functions
            .partition_point(|(start, ..)| *start <= address);
        let (start, from, to) = self.functions[..after].last()?;
        (address - start < FUNCTION_BYTES_MAX).then(|| &self.text[*from..*to])
    }

    fn read_again(&mut self) {
        self.read = Some(Instant::now());
        let Some(file) = &mut self.file else {
            return;
        };
        let mut text = String::new();
        let read = file.seek(SeekFrom::Start(0));
        let read = read.and_then(|_| file.take(LIST_BYTES_MAX).read_to_string(&mut text));
        if read.is_ok() {
            self.functions = functions(&text);
            self.text = text;
        }
    }
}

/// The functions of a list: `ffffffff81000000 T _stext`, with `[module]` after a tab.
fn functions(text: &str) -> Vec<(u64, usize, usize)> {
    let of_line = |line: &str| {
        let (address, rest) = line.split_once(' ')?;
        let (kind, name) = rest.split_once(' ')?;
        let name = name.split_whitespace().next()?;
        let address = u64::from_str_radix(address, 16).ok()?;
        // Without the right to see them, all addresses are 0.
        if !matches!(kind, "t" | "T" | "w" | "W") || address == 0 {
            return None;
        }
        let from = name.as_ptr() as usize - text.as_ptr() as usize;
        Some((address, from, from + name.len()))
    };
    let mut functions: Vec<_> = text.lines().filter_map(of_line).collect();
    // Of several names of an address, the first one of the list is used.
    functions.sort_by_key(|(address, ..)| *address);
    functions.dedup_by_key(|(address, ..)| *address);
    functions
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn an_address_is_in_the_function_before_it() {
        let mut file = tempfile::tempfile().unwrap();
        let list = "ffffffff81000000 T first\nffffffff81000000 T alias\n\
                    ffffffff81000100 D data\nffffffff81000200 t second\t[module]\n\
                    0000000000000000 T hidden\n";
        file.write_all(list.as_bytes()).unwrap();
        let mut symbols = KernelSymbols::new(Some(file));
        let base = 0xffff_ffff_8100_0000;
        let names = symbols.names(&[base, base + 0x1ff, base + 0x200, base + (1 << 21), 16]);
        assert_eq!(names, ["first", "first", "second", "[kernel]", "[kernel]"]);
        assert_eq!(KernelSymbols::new(None).names(&[base]), ["[kernel]"]);
    }
}
