//! What a program or a library offers to probes: its functions, and the USDT probes that it
//! declares in `.note.stapsdt`
//! (<https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation>).

use std::path::Path;
use std::{fs, io};

use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};

/// Maximum size of a file that is read.
const FILE_BYTES_MAX: u64 = 2 << 30;

/// A program or a library.
#[derive(Debug)]
pub struct Program {
    /// Its functions, by name.
    pub functions: Vec<Function>,
    /// The sites of its USDT probes, in the order of the file.
    pub sites: Vec<UsdtSite>,
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Function {
    /// Its symbol.
    pub name: String,
    /// Its offset in the file.
    pub offset: u64,
}

/// A site of a USDT probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsdtSite {
    /// The provider.
    pub provider: String,
    /// Its name.
    pub name: String,
    /// The offset in the file of the instruction.
    pub offset: u64,
    /// The offset in the file of the counter that enables it; 0 without one.
    pub semaphore: u64,
    /// Its arguments as the file declares them: `-4@%edi 8@-8(%rbp)`.
    pub arguments: String,
    /// Its instruction is a NOP of five bytes of x86, which kernels replace with a call.
    pub is_long_nop: bool,
}

/// An argument of a USDT probe at one of its sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsdtArgument {
    /// Its size.
    pub bytes: usize,
    /// Negative numbers are possible.
    pub is_signed: bool,
    /// Where it is.
    pub operand: Operand,
}

/// Where an argument is. Registers are offsets in the context of a program (`struct pt_regs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// It is this number.
    Constant(i32),
    /// In a register.
    Register(i16),
    /// In memory at the address in a register and this displacement.
    Memory(i16, i32),
}

impl Program {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// If it cannot be read or is no ELF file.
    pub fn read(path: &Path) -> io::Result<Program> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        let file = fs::metadata(path)?;
        if !file.is_file() || file.len() > FILE_BYTES_MAX {
            return Err(invalid("it is not a file of at most 2 GiB".into()));
        }
        let bytes = fs::read(path)?;
        let elf = object::File::parse(&*bytes).map_err(|error| invalid(error.to_string()))?;
        let offset = |address: u64| {
            let mut segments = elf.segments();
            segments.find_map(|segment| {
                let (offset, bytes) = segment.file_range();
                let within = address.checked_sub(segment.address())?;
                (within < bytes).then_some(offset + within)
            })
        };
        let symbols = elf.symbols().chain(elf.dynamic_symbols());
        let symbols = symbols.filter(|s| s.kind() == SymbolKind::Text && s.is_definition());
        let function = |symbol: object::Symbol<'_, '_>| {
            Some(Function {
                name: symbol.name().ok()?.to_owned(),
                offset: offset(symbol.address())?,
            })
        };
        let mut functions: Vec<Function> = symbols.filter_map(function).collect();
        functions.sort_unstable();
        functions.dedup();
        let mut sites = Vec::new();
        let base = elf.section_by_name(".stapsdt.base").map(|s| s.address());
        if let Some(section) = elf.section_by_name(".note.stapsdt") {
            let notes = section.data().map_err(|error| invalid(error.to_string()))?;
            for note in notes_of(notes) {
                sites.extend(site(note, base, &offset));
            }
        }
        for site in &mut sites {
            let code = bytes.get(site.offset as usize..).unwrap_or_default();
            site.is_long_nop = cfg!(target_arch = "x86_64") && nop_bytes(code) == Some(5);
        }
        Ok(Program { functions, sites })
    }
}

/// The contents of the notes of a section.
fn notes_of(mut section: &[u8]) -> Vec<&[u8]> {
    let mut notes = Vec::new();
    // A header of three words, then the name and the content, each padded to words.
    while let Some((header, rest)) = section.split_at_checked(12) {
        let word = |at: usize| {
            let bytes = header[at..at + 4].try_into().expect("four bytes");
            u32::from_ne_bytes(bytes) as usize
        };
        let (name, content) = (word(0), word(4));
        let start = name.next_multiple_of(4);
        let Some(note) = rest.get(start..).and_then(|rest| rest.get(..content)) else {
            break;
        };
        notes.push(note);
        section = rest
            .get(start + content.next_multiple_of(4)..)
            .unwrap_or_default();
    }
    notes
}

/// The site that a note declares: three addresses, then provider, name and arguments.
fn site(note: &[u8], base: Option<u64>, offset: &dyn Fn(u64) -> Option<u64>) -> Option<UsdtSite> {
    let (addresses, texts) = note.split_at_checked(24)?;
    let address = |at: usize| {
        let bytes = addresses[at..at + 8].try_into().expect("eight bytes");
        u64::from_ne_bytes(bytes)
    };
    // The linker moves the base, but not the addresses in the notes.
    let moved = base.map_or(0, |base| base.wrapping_sub(address(8)));
    let mut texts = texts.split(|byte| *byte == 0);
    let mut text = || {
        texts
            .next()
            .map(|text| String::from_utf8_lossy(text).into_owned())
    };
    Some(UsdtSite {
        provider: text()?,
        name: text()?,
        arguments: text()?,
        offset: offset(address(0).wrapping_add(moved))?,
        semaphore: match address(16) {
            0 => 0,
            semaphore => offset(semaphore.wrapping_add(moved))?,
        },
        is_long_nop: false,
    })
}

/// The size of the NOP of x86-64 that `code` begins with: prefixes, then `90` or `0f 1f` with an
/// operand in memory (Intel 64 and IA-32 Software Developer's Manual, volume 2, NOP).
fn nop_bytes(code: &[u8]) -> Option<usize> {
    let is_prefix = |byte: &u8| {
        let of_rex = 0x40..=0x4f;
        [0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65, 0x66].contains(byte) || of_rex.contains(byte)
    };
    let prefixes = code.iter().take_while(|byte| is_prefix(byte)).count();
    match code.get(prefixes..)? {
        [0x90, ..] => Some(prefixes + 1),
        [0x0f, 0x1f, operand, rest @ ..] if operand & 0x38 == 0 => {
            let (mode, register) = (operand >> 6, operand & 7);
            // Register 4 is followed by a byte (SIB), whose base 5 means a displacement.
            let has_more = register == 4 && mode != 3;
            let base = if has_more {
                rest.first()? & 7
            } else {
                register
            };
            let displacement = match mode {
                0 if base == 5 => 4,
                1 => 1,
                2 => 4,
                _ => 0,
            };
            Some(prefixes + 3 + usize::from(has_more) + displacement)
        }
        _ => None,
    }
}

impl UsdtSite {
    /// Its arguments.
    ///
    /// # Errors
    /// The first one whose location cannot be read.
    pub fn operands(&self) -> Result<Vec<UsdtArgument>, String> {
        // `[sp, 8]` of aarch64 has a space.
        let arguments = self.arguments.replace(", ", ",");
        let arguments = arguments.split_whitespace();
        let parse = |text: &str| argument(text).ok_or_else(|| text.to_owned());
        arguments.map(parse).collect()
    }
}

/// `-4@%edi`
fn argument(text: &str) -> Option<UsdtArgument> {
    let (size, operand) = text.split_once('@')?;
    let size: i8 = size.parse().ok()?;
    let bytes = usize::from(size.unsigned_abs());
    let is_known = [1, 2, 4, 8].contains(&bytes);
    is_known.then_some(UsdtArgument {
        bytes,
        is_signed: size < 0,
        operand: self::operand(operand)?,
    })
}

/// `$5`, `%rax`, `-8(%rbp)`; of aarch64 `5`, `x0`, `[sp,8]`.
fn operand(text: &str) -> Option<Operand> {
    let number = text.strip_prefix('$').unwrap_or(text);
    if let Ok(number) = number.parse() {
        return Some(Operand::Constant(number));
    }
    if let Some(inner) = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
    {
        let (register, displacement) = inner.split_once(',').unwrap_or((inner, "0"));
        return Some(Operand::Memory(
            offset_of(register)?,
            displacement.parse().ok()?,
        ));
    }
    match text.strip_suffix(')').and_then(|rest| rest.split_once('(')) {
        Some((displacement, register)) => {
            let displacement = match displacement {
                "" => 0,
                number => number.parse().ok()?,
            };
            Some(Operand::Memory(
                offset_of(register.strip_prefix('%')?)?,
                displacement,
            ))
        }
        None => offset_of(text.strip_prefix('%').unwrap_or(text)).map(Operand::Register),
    }
}

/// The registers of x86-64 in the order of `struct pt_regs` (arch/x86/include/asm/ptrace.h), with
/// the names of their parts.
#[cfg(target_arch = "x86_64")]
const REGISTERS: [&[&str]; 20] = [
    &["r15", "r15d", "r15w", "r15b"],
    &["r14", "r14d", "r14w", "r14b"],
    &["r13", "r13d", "r13w", "r13b"],
    &["r12", "r12d", "r12w", "r12b"],
    &["rbp", "ebp", "bp", "bpl"],
    &["rbx", "ebx", "bx", "bl"],
    &["r11", "r11d", "r11w", "r11b"],
    &["r10", "r10d", "r10w", "r10b"],
    &["r9", "r9d", "r9w", "r9b"],
    &["r8", "r8d", "r8w", "r8b"],
    &["rax", "eax", "ax", "al"],
    &["rcx", "ecx", "cx", "cl"],
    &["rdx", "edx", "dx", "dl"],
    &["rsi", "esi", "si", "sil"],
    &["rdi", "edi", "di", "dil"],
    &[],
    &["rip"],
    &[],
    &[],
    &["rsp", "esp", "sp", "spl"],
];

/// The registers that hold a function's arguments and its result.
#[cfg(target_arch = "x86_64")]
const CALL: (&[&str], &str) = (&["rdi", "rsi", "rdx", "rcx", "r8", "r9"], "rax");

/// The registers that hold a function's arguments and its result.
#[cfg(target_arch = "aarch64")]
const CALL: (&[&str], &str) = (&["x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7"], "x0");

/// The offset of a register in `struct pt_regs`.
#[cfg(target_arch = "x86_64")]
fn offset_of(register: &str) -> Option<i16> {
    let mut registers = REGISTERS.iter();
    let at = registers.position(|names| names.contains(&register))?;
    Some(at as i16 * 8)
}

/// The offset of a register in `struct user_pt_regs` (arch/arm64/include/uapi/asm/ptrace.h).
#[cfg(target_arch = "aarch64")]
fn offset_of(register: &str) -> Option<i16> {
    let number = match register {
        "sp" => 31,
        _ => {
            let number = register.strip_prefix(['x', 'w'])?.parse().ok()?;
            (number < 31_i16).then_some(number)?
        }
    };
    Some(number * 8)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const CALL: (&[&str], &str) = (&[], "");

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn offset_of(_: &str) -> Option<i16> {
    None
}

/// The number of arguments of a function that are in registers.
pub fn arguments_max() -> usize {
    CALL.0.len()
}

/// The offset in the context of the stack pointer, and what is added to it at the return of a
/// function so that it is that of the entry: on x86, the call has pushed the return address.
#[cfg(target_arch = "x86_64")]
pub const STACK_POINTER: (i16, i32) = (152, -8);
/// See above.
#[cfg(not(target_arch = "x86_64"))]
pub const STACK_POINTER: (i16, i32) = (248, 0);

/// The offset in the context of a function's argument, or of its result.
pub fn register_of(name: &str) -> Option<i16> {
    if name == "retval" {
        return offset_of(CALL.1);
    }
    let number: usize = name.strip_prefix("arg")?.parse().ok()?;
    offset_of(CALL.0.get(number)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn arguments_of_x86_are_located() {
        let site = UsdtSite {
            provider: "p".into(),
            name: "n".into(),
            offset: 0,
            semaphore: 0,
            arguments: "-4@%edi 8@-16(%rbp) 2@$-7 1@(%rax)".into(),
            is_long_nop: false,
        };
        let all = site.operands().expect("all are known");
        let operands: Vec<_> = all
            .iter()
            .map(|a| (a.bytes, a.is_signed, a.operand))
            .collect();
        let expected = [
            (4, true, Operand::Register(112)),
            (8, false, Operand::Memory(32, -16)),
            (2, false, Operand::Constant(-7)),
            (1, false, Operand::Memory(80, 0)),
        ];
        assert_eq!(operands, expected);
        let unknown = UsdtSite {
            arguments: "8@%rdi 8@counter(%rip,%rax,8)".into(),
            ..site
        };
        assert_eq!(unknown.operands(), Err("8@counter(%rip,%rax,8)".into()));
    }

    /// The recommended NOPs of the manual, and instructions that are none.
    #[test]
    fn nops_are_recognised_with_their_size() {
        let nops: [&[u8]; 9] = [
            &[0x90],
            &[0x66, 0x90],
            &[0x0f, 0x1f, 0x00],
            &[0x0f, 0x1f, 0x40, 0x00],
            &[0x0f, 0x1f, 0x44, 0x00, 0x00],
            &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
            &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
            &[0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
            &[0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
        ];
        for nop in nops {
            let followed = [nop, &[0xcc; 4]].concat();
            assert_eq!(nop_bytes(&followed), Some(nop.len()), "{nop:x?}");
        }
        for other in [&[0xcc_u8] as &[u8], &[0xe8, 0, 0, 0, 0], &[0x0f, 0x1f], &[]] {
            assert_eq!(nop_bytes(other), None, "{other:x?}");
        }
    }

    #[test]
    fn notes_that_end_early_are_left_out() {
        let mut section = Vec::new();
        section.extend(8_u32.to_ne_bytes());
        section.extend(5_u32.to_ne_bytes());
        section.extend(3_u32.to_ne_bytes());
        section.extend(b"stapsdt\0hello\0\0\0");
        let whole = section.clone();
        section.extend(&whole[..20]);
        assert_eq!(notes_of(&section), [b"hello"]);
    }

    #[test]
    fn functions_of_this_program_are_found() {
        let own = Program::read(Path::new("/proc/self/exe")).expect("an ELF file");
        let main = own.functions.iter().find(|f| f.name == "main");
        assert!(main.is_some_and(|main| main.offset > 0));
    }
}
