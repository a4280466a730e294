//! The programs on kernels that no test runs: what they use of the type information of other
//! releases resolves, or is absent with the feature that is off.
//!
//! `tests/kernels` has a file for each release, with its source. Type information is made of it, in
//! the format of the kernel's Documentation/bpf/btf.rst, and read as that of a running kernel. The
//! relocations are those of the compiled object.

use std::collections::{BTreeMap, BTreeSet};

use libbpf_rs::btf::types::{Composite, Struct};
use libbpf_rs::btf::{Btf, BtfKind, BtfType, TypeId};
use weir_testing::Scratch;

use super::*;

/// The object, as the tap loads it.
static OBJECT: &[u8] = include_bytes!("../tap.bpf.o");

/// The releases, with the content of their files.
const VERSIONS: [((u32, u32), &str); 5] = [
    (
        (5, 15),
        include_str!("../../../tests/kernels/linux-5.15.txt"),
    ),
    (
        (5, 19),
        include_str!("../../../tests/kernels/linux-5.19.txt"),
    ),
    ((6, 6), include_str!("../../../tests/kernels/linux-6.6.txt")),
    ((6, 8), include_str!("../../../tests/kernels/linux-6.8.txt")),
    (
        (6, 14),
        include_str!("../../../tests/kernels/linux-6.14.txt"),
    ),
];

/// A relocation of a field's existence (`enum bpf_core_relo_kind`); those below it are of a field's
/// offset and size, and the greatest kind of a field is 5.
const FIELD_EXISTS: u32 = 2;
const FIELD_KIND_MAX: u32 = 5;

/// The type information of a release.
#[derive(Debug, Default)]
struct Facts<'a> {
    /// `STRUCTURE.FIELD` and its type.
    fields: BTreeMap<&'a str, &'a str>,
    /// By enumeration, its enumerators.
    enumerators: BTreeMap<&'a str, Vec<(&'a str, u64)>>,
    /// By tracepoint, its arguments.
    tracepoints: BTreeMap<&'a str, Vec<&'a str>>,
    /// Fields, enumerators and tracepoints that it lacks.
    absent: BTreeSet<&'a str>,
}

impl Facts<'_> {
    fn parse(text: &str) -> Facts<'_> {
        let mut facts = Facts::default();
        for line in text
            .lines()
            .filter(|l| !l.is_empty() && !l.starts_with('#'))
        {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["field", name, ty] => drop(facts.fields.insert(name, ty)),
                ["enumerator", of, name, value] => {
                    let value = value.parse().expect("a number");
                    facts.enumerators.entry(of).or_default().push((name, value));
                }
                ["tracepoint", name, ref arguments @ ..] => {
                    facts.tracepoints.insert(name, arguments.to_vec());
                }
                ["absent", _, name] => drop(facts.absent.insert(name)),
                _ => panic!("{line}"),
            }
        }
        facts
    }

    /// Its type information.
    fn kernel(&self) -> Kernel {
        let mut btf = BtfWriter::new();
        let mut structures: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
        for (name, ty) in &self.fields {
            let (structure, field) = name.split_once('.').expect("STRUCTURE.FIELD");
            structures.entry(structure).or_default().push((field, ty));
        }
        for (name, fields) in &structures {
            let members = fields.iter().map(|(field, ty)| (*field, btf.named(ty)));
            let members: Vec<(&str, u32)> = members.collect();
            btf.structure(name, &members);
        }
        for (name, enumerators) in &self.enumerators {
            btf.enumeration(name, 4, enumerators);
        }
        for (name, arguments) in &self.tracepoints {
            btf.tracepoint(name, arguments);
        }
        Kernel { btf: btf.read() }
    }
}

/// Writes type information. Types are numbered in the order in which they are first named.
pub(super) struct BtfWriter {
    strings: Vec<u8>,
    numbers: BTreeMap<String, u32>,
    types: BTreeMap<u32, Vec<u32>>,
}

impl BtfWriter {
    pub(super) fn new() -> BtfWriter {
        BtfWriter {
            strings: vec![0],
            numbers: BTreeMap::new(),
            types: BTreeMap::new(),
        }
    }

    fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let at = self.strings.len() as u32;
        self.strings.extend(text.bytes().chain([0]));
        at
    }

    /// The number of a type: `*STRUCTURE`, `int8`, `struct:NAME` or `enum:NAME`.
    fn named(&mut self, ty: &str) -> u32 {
        if let Some(number) = self.numbers.get(ty) {
            return *number;
        }
        let number = self.numbers.len() as u32 + 1;
        self.numbers.insert(ty.to_owned(), number);
        if let Some(target) = ty.strip_prefix('*') {
            let target = self.named(&format!("struct:{target}"));
            self.define(ty, "", BtfKind::Ptr, 0, target, &[]);
        } else if let Some(bytes) = ty.strip_prefix("int") {
            let bytes: u32 = bytes.parse().expect("a size");
            self.define(ty, ty, BtfKind::Int, 0, bytes, &[bytes * 8]);
        }
        number
    }

    /// Defines a type: its name in the information, kind, number of entries, size or type, entries.
    fn define(
        &mut self,
        ty: &str,
        name: &str,
        kind: BtfKind,
        count: usize,
        size: u32,
        rest: &[u32],
    ) {
        let number = self.named(ty);
        let name = self.string(name);
        let info = (kind as u32) << 24 | count as u32;
        let words = [name, info, size].into_iter().chain(rest.iter().copied());
        self.types.insert(number, words.collect());
    }

    pub(super) fn structure(&mut self, name: &str, members: &[(&str, u32)]) {
        const EACH_BITS: u32 = 128;
        let mut entries = Vec::new();
        for (at, (field, ty)) in (0..).zip(members) {
            entries.extend([self.string(field), *ty, at * EACH_BITS]);
        }
        let bytes = members.len() as u32 * EACH_BITS / 8;
        let ty = format!("struct:{name}");
        self.define(&ty, name, BtfKind::Struct, members.len(), bytes, &entries);
    }

    /// An enumeration of 4 or 8 bytes, with a name or without one.
    pub(super) fn enumeration(&mut self, name: &str, bytes: u32, enumerators: &[(&str, u64)]) {
        let is_wide = bytes == 8;
        let mut entries = Vec::new();
        for (enumerator, value) in enumerators {
            entries.extend([self.string(enumerator), *value as u32]);
            entries.extend(is_wide.then_some((value >> 32) as u32));
        }
        let kind = if is_wide {
            BtfKind::Enum64
        } else {
            BtfKind::Enum
        };
        let ty = match name {
            "" => format!("enum {}", self.numbers.len()),
            name => format!("enum:{name}"),
        };
        self.define(&ty, name, kind, enumerators.len(), bytes, &entries);
    }

    /// The prototype that the kernel has for a tracepoint; its first argument is that of all.
    fn tracepoint(&mut self, name: &str, arguments: &[&str]) {
        let mut parameters = vec![0, self.named("int8")];
        for argument in arguments {
            let ty = match *argument {
                "-" => self.named("int4"),
                structure => self.named(&format!("*{structure}")),
            };
            parameters.extend([0, ty]);
        }
        let (proto, pointer) = (format!("proto {name}"), format!("pointer {name}"));
        let count = parameters.len() / 2;
        self.define(&proto, "", BtfKind::FuncProto, count, 0, &parameters);
        let target = self.named(&proto);
        self.define(&pointer, "", BtfKind::Ptr, 0, target, &[]);
        let target = self.named(&pointer);
        let alias = format!("btf_trace_{name}");
        self.define(&alias, &alias, BtfKind::Typedef, 0, target, &[]);
    }

    pub(super) fn read(mut self) -> Btf<'static> {
        // Structures of which only the address is used.
        let named: Vec<(String, u32)> = self.numbers.clone().into_iter().collect();
        for (ty, number) in named {
            if !self.types.contains_key(&number) {
                let name = ty.split_once(':').expect("a structure or enumeration").1;
                let name = name.to_owned();
                self.define(&ty, &name, BtfKind::Fwd, 0, 0, &[]);
            }
        }
        let types: Vec<u32> = self.types.into_values().flatten().collect();
        let bytes = types.len() as u32 * 4;
        let mut content = 0xeb9f_u16.to_ne_bytes().to_vec();
        content.extend([1, 0]);
        let sizes = [24, 0, bytes, bytes, self.strings.len() as u32];
        for word in sizes.iter().chain(&types) {
            content.extend(word.to_ne_bytes());
        }
        content.extend(&self.strings);
        let scratch = Scratch::new();
        Btf::from_path(scratch.write("btf", &content)).expect("sound type information")
    }
}

/// A field that the programs access or whose existence they test.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Relocation {
    /// `STRUCTURE.FIELD`
    field: String,
    /// Its type as [`Facts`] state it.
    ty: String,
    /// Whether it is a test of existence.
    is_test: bool,
}

/// A 32-bit word of the object, which is little-endian.
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// A section of an ELF file of 64 bits (elf(5)).
fn section<'a>(object: &'a [u8], wanted: &str) -> &'a [u8] {
    let long = |at: usize| u64::from_le_bytes(object[at..at + 8].try_into().unwrap()) as usize;
    let short = |at: usize| usize::from(u16::from_le_bytes([object[at], object[at + 1]]));
    let (headers, count, names) = (long(0x28), short(0x3c), short(0x3e));
    let content = |number: usize| {
        let header = headers + 64 * number;
        &object[long(header + 24)..][..long(header + 32)]
    };
    let name = |number: usize| {
        let text = &content(names)[word(object, headers + 64 * number) as usize..];
        text.split(|b| *b == 0).next().expect("a name")
    };
    let found = (1..count).find(|number| name(*number) == wanted.as_bytes());
    content(found.expect("the object has the section"))
}

/// The field relocations of the object, from `.BTF.ext` (Documentation/bpf/btf.rst, llvm's
/// BTFDebug).
fn relocations() -> BTreeSet<Relocation> {
    let (local, ext) = (section(OBJECT, ".BTF"), section(OBJECT, ".BTF.ext"));
    let strings = &local[(word(local, 4) + word(local, 16)) as usize..];
    let text = |at: u32| {
        let text = strings[at as usize..]
            .split(|b| *b == 0)
            .next()
            .expect("a text");
        std::str::from_utf8(text).expect("UTF-8").to_owned()
    };
    let scratch = Scratch::new();
    let types = Btf::from_path(scratch.write("local", local)).expect("sound type information");
    let records = &ext[(word(ext, 4) + word(ext, 24)) as usize..][..word(ext, 28) as usize];
    let each = word(records, 0) as usize;
    let (mut found, mut at) = (BTreeSet::new(), 4);
    while at < records.len() {
        let count = word(records, at + 4) as usize;
        at += 8;
        for _ in 0..count {
            let (ty, access, kind) = (
                word(records, at + 4),
                text(word(records, at + 8)),
                word(records, at + 12),
            );
            assert!(
                kind <= FIELD_KIND_MAX,
                "a relocation of kind {kind} is not checked"
            );
            found.extend(accessed(&types, ty, &access, kind == FIELD_EXISTS));
            at += each;
        }
    }
    found
}

/// The fields of an access such as `0:4:1`: an index, then the position of a member in each
/// structure.
fn accessed(types: &Btf<'_>, root: u32, access: &str, is_test: bool) -> Vec<Relocation> {
    let mut fields = Vec::new();
    let mut ty: BtfType<'_> = types.type_by_id(TypeId::from(root)).expect("a type");
    for position in access.split(':').skip(1) {
        let structure: Struct<'_> = ty.try_into().expect("an access is to a structure");
        let own = structure.name().and_then(OsStr::to_str).expect("a name");
        let own = own.split("___").next().expect("a name").to_owned();
        let position: usize = position.parse().expect("a position");
        let structure = Composite::from(structure);
        let member = structure.iter().nth(position).expect("a member");
        let field = member
            .name
            .and_then(OsStr::to_str)
            .expect("a name")
            .to_owned();
        let target: BtfType<'_> = types.type_by_id(member.ty).expect("a type");
        ty = target.skip_mods_and_typedefs();
        let kind = match ty.kind() {
            BtfKind::Ptr => "*".to_owned(),
            BtfKind::Int => "int".to_owned(),
            kind => {
                let name = ty.name().and_then(OsStr::to_str).unwrap_or_default();
                let name = name.split("___").next().unwrap_or_default();
                match kind {
                    BtfKind::Struct => format!("struct:{name}"),
                    BtfKind::Enum => format!("enum:{name}"),
                    other => panic!("{own}.{field} has a type of kind {other:?}"),
                }
            }
        };
        fields.push(Relocation {
            field: format!("{own}.{field}"),
            ty: kind,
            is_test,
        });
    }
    fields
}

#[test]
fn every_relocation_resolves_or_its_field_is_absent_and_tested() {
    let relocations = relocations();
    let names: BTreeSet<&str> = relocations.iter().map(|r| r.field.as_str()).collect();
    let listed: BTreeSet<&str> = FIELDS.into_iter().chain([REQUEST_DISK]).collect();
    assert_eq!(names, listed, "the object and the list of fields");
    let tested = |field: &str| relocations.iter().any(|r| r.is_test && r.field == field);
    for (release, text) in VERSIONS {
        let facts = Facts::parse(text);
        for relocation in &relocations {
            let Relocation { field, ty, .. } = relocation;
            match facts.fields.get(field.as_str()) {
                // CO-RE accepts an address of anything, and an integer of any size.
                Some(found) if *ty == "*" || ty == "int" => {
                    assert!(
                        found.starts_with(ty.as_str()),
                        "{release:?}: {field} is {found}"
                    );
                }
                Some(found) => assert_eq!(found, ty, "{release:?}: {field}"),
                None => {
                    assert!(
                        facts.absent.contains(field.as_str()),
                        "{release:?}: {field}"
                    );
                    assert!(
                        tested(field),
                        "{release:?}: {field} is absent and used without a test"
                    );
                }
            }
        }
    }
}

#[test]
fn every_name_of_a_kernel_resolves_or_is_declared_absent() {
    let wanted = OPS.iter().map(|(name, _)| *name);
    let wanted = wanted.chain(FLAGS.iter().map(|(name, _)| *name));
    let wanted: Vec<&str> = wanted.chain([FIRST_FLAG, FLUSH_STEP, IDLE]).collect();
    for (release, text) in VERSIONS {
        let facts = Facts::parse(text);
        let kernel = facts.kernel();
        let found = kernel.enumerators(&wanted);
        let find = |name: &str| found.iter().find(|f| f.0 == name).map(|f| f.1);
        let numbers = Numbers::of(&find, Some(release));
        assert_eq!(numbers.missing, [], "{release:?}");
        assert_eq!(kernel.missing_fields(), [], "{release:?}");
        let missing: BTreeSet<&str> = wanted
            .iter()
            .copied()
            .filter(|n| find(n).is_none())
            .collect();
        let lacks = |name: &&&str| name.starts_with("__") || name.starts_with("REQ_");
        let declared: BTreeSet<&str> = facts.absent.iter().filter(lacks).copied().collect();
        assert_eq!(missing, declared, "{release:?}");
        // The macro and the enumerator have different positions.
        let step = if missing.contains(FLUSH_STEP) {
            1 << 4
        } else {
            1 << 1
        };
        assert_eq!(numbers.flush_step, step, "{release:?}");
        assert_eq!((numbers.op_mask, numbers.idle), (0xff, 0), "{release:?}");
        assert_eq!(numbers.ops & 0xffff, 0x3210, "{release:?}");
        for (tracepoint, _) in ARGUMENTS {
            let expected = match facts.absent.contains(tracepoint) {
                true => Err("absent"),
                false => Ok(()),
            };
            assert_eq!(
                kernel.tracepoint(tracepoint),
                expected,
                "{release:?}: {tracepoint}"
            );
        }
    }
}

#[test]
fn a_kernel_that_differs_is_noticed() {
    let (_, text) = VERSIONS[4];
    let without = |line: &str| {
        let kept: Vec<&str> = text.lines().filter(|l| *l != line).collect();
        assert!(kept.len() < text.lines().count(), "{line}");
        kept.join("\n")
    };
    let text = without("field request.rq_flags int4");
    let missing = Facts::parse(&text).kernel().missing_fields();
    assert_eq!(
        missing.iter().map(|m| m.name).collect::<Vec<_>>(),
        ["request.rq_flags"]
    );
    let text = without("tracepoint block_rq_issue request");
    assert_eq!(
        Facts::parse(&text).kernel().tracepoint("block_rq_issue"),
        Err("absent")
    );
    let other = text.clone() + "\ntracepoint block_rq_issue request_queue request\n";
    assert!(
        Facts::parse(&other)
            .kernel()
            .tracepoint("block_rq_issue")
            .is_err()
    );
    let text = without("enumerator req_flag_bits __REQ_FUA 17");
    assert_eq!(Facts::parse(&text).kernel().enumerators(&["__REQ_FUA"]), []);
}
