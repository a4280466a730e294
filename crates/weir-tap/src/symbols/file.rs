//! [`FileSymbols`]: the functions of a program or a library, by their offsets in the file.

use std::fs::File;
use std::io;

use object::elf::STT_FUNC;
use object::read::elf::{ElfFile64, Sym};
use object::{Endianness, Object, ObjectSection, ObjectSegment, ReadCache};

/// Maximum size of a file, and of a table of names in it.
const FILE_BYTES_MAX: u64 = 4 << 30;
const NAMES_BYTES_MAX: u64 = 256 << 20;

/// Maximum number of functions of a file.
const FUNCTIONS_MAX: usize = 4 << 20;

/// The tables of symbols with their names: that of the linker, which may be stripped, and that of
/// dynamic linking.
const TABLES: [(&str, &str); 2] = [(".symtab", ".strtab"), (".dynsym", ".dynstr")];

/// The functions of a file.
#[derive(Debug, Default)]
pub struct FileSymbols {
    functions: Vec<SymbolRange>,
    /// The names of each of [`TABLES`], each ended by a NUL.
    names: [Box<[u8]>; 2],
}

/// A function.
#[derive(Clone, Copy, Debug)]
struct SymbolRange {
    offset: u64,
    /// Its size; 0 if the file does not state it.
    bytes: u64,
    /// The table, and where its name is there.
    table: usize,
    name: u32,
}

impl FileSymbols {
    /// Reads the tables of an ELF file of 64 bits.
    ///
    /// # Errors
    /// If it cannot be read or is no such file.
    pub fn read(file: &File) -> io::Result<FileSymbols> {
        if file.metadata()?.len() > FILE_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let invalid = |why: object::Error| io::Error::new(io::ErrorKind::InvalidData, why);
        let cache = ReadCache::new(file);
        let elf = ElfFile64::<Endianness, _>::parse(&cache).map_err(invalid)?;
        let segments = elf.segments().map(|segment| {
            let (offset, bytes) = segment.file_range();
            (segment.address(), offset, bytes)
        });
        let segments: Vec<(u64, u64, u64)> = segments.collect();
        let offset = |address: u64| {
            let mut segments = segments.iter();
            segments.find_map(|(start, offset, bytes)| {
                let within = address.checked_sub(*start)?;
                (within < *bytes).then(|| offset.saturating_add(within))
            })
        };
        let mut all = FileSymbols::default();
        for (table, (symbols, names)) in TABLES.into_iter().enumerate() {
            let sections = [symbols, names].map(|name| elf.section_by_name(name));
            let [Some(_), Some(names)] = sections else {
                continue;
            };
            if names.size() > NAMES_BYTES_MAX {
                continue;
            }
            let (endian, symbols) = match symbols {
                ".symtab" => (elf.endian(), elf.elf_symbol_table()),
                _ => (elf.endian(), elf.elf_dynamic_symbol_table()),
            };
            for symbol in symbols.iter().take(FUNCTIONS_MAX) {
                if symbol.st_type() != STT_FUNC || symbol.is_undefined(endian) {
                    continue;
                }
                all.functions
                    .extend(offset(symbol.st_value(endian)).map(|offset| SymbolRange {
                        offset,
                        bytes: symbol.st_size(endian),
                        table,
                        name: symbol.st_name(endian),
                    }));
            }
            all.names[table] = names.data().map_err(invalid)?.into();
        }
        all.sort();
        Ok(all)
    }

    /// In the order of the offsets. Of several names of a function, that without underscores is the
    /// public one.
    fn sort(&mut self) {
        let mut functions = std::mem::take(&mut self.functions);
        functions.retain(|function| self.text(function).is_some());
        let name = |f: &SymbolRange| self.text(f).unwrap_or_default();
        functions.sort_by(|a, b| {
            let rank = |f: &SymbolRange| (name(f).starts_with('_'), name(f).len());
            let other = || rank(a).cmp(&rank(b)).then_with(|| name(a).cmp(name(b)));
            a.offset.cmp(&b.offset).then_with(other)
        });
        functions.dedup_by_key(|function| function.offset);
        functions.shrink_to_fit();
        self.functions = functions;
    }

    /// The name of a function; `None` if it has none.
    fn text(&self, function: &SymbolRange) -> Option<&str> {
        let names = self.names[function.table].get(function.name as usize..)?;
        let name = &names[..memchr::memchr(0, names)?];
        std::str::from_utf8(name)
            .ok()
            .filter(|name| !name.is_empty())
    }

    /// The memory that it uses.
    pub fn bytes(&self) -> usize {
        let names: usize = self.names.iter().map(|names| names.len()).sum();
        names + self.functions.len() * size_of::<SymbolRange>()
    }

    /// The function at this offset of the file, if the file has a symbol of it.
    pub fn name(&self, offset: u64) -> Option<&str> {
        let after = self
            .functions
            .partition_point(|function| function.offset <= offset);
        let function = self.functions[..after].last()?;
        let is_within = function.bytes == 0 || offset - function.offset < function.bytes;
        self.text(function).filter(|_| is_within)
    }
}
