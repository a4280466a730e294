//! [`Kernel`]: the type information (BTF) of the running kernel: its tracepoints, and the numbers
//! of the enumerators that the programs test.
//!
//! CO-RE relocates an enumerator by the name of its enumeration, and an enumeration may have none:
//! that of `__RQF_FLUSH_SEQ` is anonymous in 6.12. So enumerators are looked up here by their own
//! names, which are unique in the kernel, and their numbers are passed in the configuration.

use std::fmt;
use std::path::Path;

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::{Enum, Enum64, Typedef};
use weir_model::Op;

use super::devices::read_text;
use crate::TapError;

/// Location of the kernel's type information.
pub const BTF: &str = "/sys/kernel/btf/vmlinux";

/// The type information of the running kernel.
pub struct Kernel {
    btf: Btf<'static>,
}

/// Numbers of the kernel that the programs test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// For each of the kernel's operations below 16 its `enum op`, four bits each.
    pub ops: u64,
    /// Positions in `cmd_flags`: forced unit access, read ahead, sync, metadata.
    pub flag_bits: [u8; 4],
    /// The bit of `rq_flags` that marks a step of a flush sequence; 0 if it is unknown.
    pub flush_step: u32,
    /// Enumerators that the type information lacks.
    pub missing: Vec<Missing>,
}

/// An enumerator that the type information lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its name.
    pub name: &'static str,
    /// The effect.
    pub costs: String,
}

/// `OP_OTHER` of `enum op` for each of the 16 operations.
const ALL_OTHER: u64 = 0x7777_7777_7777_7777;

/// The operations of `include/linux/blk_types.h` with the operations that they are reported as, and
/// their numbers in every release since 4.15. That of zone append moved in 6.1.
const OPS: [(&str, Op, Option<u32>); 7] = [
    ("REQ_OP_READ", Op::Read, Some(0)),
    ("REQ_OP_WRITE", Op::Write, Some(1)),
    ("REQ_OP_FLUSH", Op::Flush, Some(2)),
    ("REQ_OP_DISCARD", Op::Discard, Some(3)),
    ("REQ_OP_SECURE_ERASE", Op::Discard, Some(5)),
    ("REQ_OP_WRITE_ZEROES", Op::WriteZeroes, Some(9)),
    ("REQ_OP_ZONE_APPEND", Op::Write, None),
];

/// The flags of the same header, with their positions since 4.15.
const FLAGS: [(&str, u32); 4] = [
    ("__REQ_FUA", 17),
    ("__REQ_RAHEAD", 19),
    ("__REQ_SYNC", 11),
    ("__REQ_META", 12),
];

/// The flag of a request that is a step of a flush sequence (`include/linux/blk-mq.h`).
const FLUSH_STEP: &str = "__RQF_FLUSH_SEQ";

/// The first release that is certain to have [`FLUSH_STEP`]. Before, it was the macro
/// `RQF_FLUSH_SEQ`, which is not in the type information.
const FLUSH_STEP_SINCE: (u32, u32) = (6, 12);

/// Its position as a macro, since 4.10.
const FLUSH_STEP_AS_MACRO: u32 = 4;

impl Kernel {
    /// Reads the type information of the running kernel.
    ///
    /// # Errors
    /// If the kernel has none.
    pub fn running() -> Result<Kernel, TapError> {
        Btf::from_vmlinux()
            .map(|btf| Kernel { btf })
            .map_err(|e| TapError::Unavailable {
                what: format!("this kernel has no type information ({BTF}): {e}"),
                remedy: "run a kernel with CONFIG_DEBUG_INFO_BTF=y".into(),
            })
    }

    /// True if the kernel has this tracepoint.
    pub fn has_tracepoint(&self, name: &str) -> bool {
        let prototype = format!("btf_trace_{name}");
        self.btf.type_by_name::<Typedef<'_>>(&prototype).is_some()
    }

    /// The numbers that the programs test.
    pub fn numbers(&self) -> Numbers {
        let names = OPS.iter().map(|(name, ..)| *name);
        let names = names.chain(FLAGS.iter().map(|(name, _)| *name));
        let names: Vec<&str> = names.chain([FLUSH_STEP]).collect();
        let found = self.enumerators(&names);
        let find = |name: &str| found.iter().find(|(n, _)| *n == name).map(|(_, n)| *n);
        Numbers::of(&find, release())
    }

    /// Those of `names` that are in an enumeration, named or anonymous, of 32 or 64 bits.
    fn enumerators<'a>(&self, names: &[&'a str]) -> Vec<(&'a str, u32)> {
        let mut found = Vec::new();
        let mut look = |name: Option<&std::ffi::OsStr>, value: i128| {
            let named = names.iter().find(|n| name.is_some_and(|name| name == **n));
            if let (Some(name), Ok(value)) = (named, u32::try_from(value)) {
                found.push((*name, value));
            }
        };
        for enumeration in self.btf.type_by_kind::<Enum<'_>>() {
            for e in enumeration.iter() {
                look(e.name, e.value.into());
            }
        }
        for enumeration in self.btf.type_by_kind::<Enum64<'_>>() {
            for e in enumeration.iter() {
                look(e.name, e.value);
            }
        }
        found
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({} types)", self.btf.len())
    }
}

impl Numbers {
    /// The numbers of a kernel of this release; `find` looks up enumerators in its type
    /// information.
    fn of(find: &dyn Fn(&str) -> Option<u32>, release: Option<(u32, u32)>) -> Numbers {
        let mut missing = Vec::new();
        let mut lacks = |name: &'static str, costs: String| missing.push(Missing { name, costs });
        let mut ops = ALL_OTHER;
        for (name, op, usual) in OPS {
            let number = find(name).or_else(|| {
                match usual {
                    Some(usual) => lacks(name, format!("{name} is assumed to be {usual}")),
                    None => lacks(name, format!("requests with {name} are not reported")),
                }
                usual
            });
            if let Some(number) = number.filter(|n| *n < 16) {
                let shift = number * 4;
                ops = ops & !(15 << shift) | (op as u64) << shift;
            }
        }
        let flag_bits = FLAGS.map(|(name, usual)| {
            let found = find(name).filter(|bit| *bit < u32::BITS);
            found.unwrap_or_else(|| {
                lacks(name, format!("{name} is assumed to be {usual}"));
                usual
            }) as u8
        });
        let as_macro = release.is_some_and(|release| release < FLUSH_STEP_SINCE);
        let step = match find(FLUSH_STEP).filter(|bit| *bit < u32::BITS) {
            None if as_macro => Some(FLUSH_STEP_AS_MACRO),
            None => {
                let costs = "each step of a flush is reported as a separate request";
                lacks(FLUSH_STEP, costs.into());
                None
            }
            found => found,
        };
        Numbers {
            ops,
            flag_bits,
            flush_step: step.map_or(0, |bit| 1 << bit),
            missing,
        }
    }
}

/// The first two numbers of the running kernel's release.
pub fn release() -> Option<(u32, u32)> {
    version(&read_text(Path::new("/proc/sys/kernel/osrelease"))?)
}

/// `(6, 18)` for `6.18.44-generic`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    /// An enumeration of a test: its name, or none; its size in bytes; its enumerators.
    type Enumeration<'a> = (&'a str, u32, &'a [(&'a str, u64)]);

    /// Type information with these enumerations and a structure between them, in the format of the
    /// kernel's Documentation/bpf/btf.rst.
    fn kernel(enumerations: &[Enumeration<'_>]) -> Kernel {
        const KIND_STRUCT: u32 = 4;
        const KIND_ENUM: u32 = 6;
        const KIND_ENUM64: u32 = 19;
        let mut strings = vec![0];
        let mut string = |text: &str| {
            if text.is_empty() {
                return 0;
            }
            let at = strings.len() as u32;
            strings.extend(text.bytes().chain([0]));
            at
        };
        let mut types: Vec<u32> = Vec::new();
        for (i, (name, bytes, enumerators)) in enumerations.iter().enumerate() {
            types.extend([string(&format!("between_{i}")), KIND_STRUCT << 24, 0]);
            let wide = *bytes == 8;
            let kind = if wide { KIND_ENUM64 } else { KIND_ENUM };
            let info = kind << 24 | enumerators.len() as u32;
            types.extend([string(name), info, *bytes]);
            for (name, value) in *enumerators {
                types.extend([string(name), *value as u32]);
                types.extend(wide.then_some((value >> 32) as u32));
            }
        }
        let types_bytes = types.len() as u32 * 4;
        let mut file = tempfile();
        let mut write = |bytes: &[u8]| file.1.write_all(bytes).unwrap();
        write(&0xeb9f_u16.to_ne_bytes());
        write(&[1, 0]);
        for word in [24, 0, types_bytes, types_bytes, strings.len() as u32] {
            write(&word.to_ne_bytes());
        }
        types.iter().for_each(|word| write(&word.to_ne_bytes()));
        write(&strings);
        let btf = Btf::from_path(&file.0).unwrap();
        fs::remove_file(file.0).unwrap();
        Kernel { btf }
    }

    fn tempfile() -> (std::path::PathBuf, fs::File) {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("weir-btf-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = fs::File::create_new(&path).unwrap();
        (path, file)
    }

    /// The bit of the flush sequence on a kernel of this release with these enumerations.
    fn flush_step(enumerations: &[Enumeration<'_>], release: (u32, u32)) -> (u32, bool) {
        let found = kernel(enumerations).enumerators(&[FLUSH_STEP]);
        let numbers = Numbers::of(&|name| found.iter().find(|f| f.0 == name).map(|f| f.1), {
            Some(release)
        });
        let is_missing = numbers.missing.iter().any(|m| m.name == FLUSH_STEP);
        (numbers.flush_step, is_missing)
    }

    #[test]
    fn an_enumerator_is_found_whatever_its_enumeration_is_called() {
        let flags: &[(&str, u64)] = &[("__RQF_STARTED", 0), (FLUSH_STEP, 1), ("__RQF_BITS", 17)];
        let moved: &[(&str, u64)] = &[("__RQF_STARTED", 0), (FLUSH_STEP, 9)];
        let other: &[(&str, u64)] = &[("RQF_FLUSH_SEQ", 3), ("A", 0)];
        for (enumerations, step) in [
            (vec![("rqf_flags", 4, flags)], 1 << 1),
            (
                vec![("", 4, other), ("", 4, flags), ("last", 4, other)],
                1 << 1,
            ),
            (vec![("", 4, moved)], 1 << 9),
            (vec![("", 8, flags)], 1 << 1),
            (vec![("rqf_flags", 8, moved), ("", 4, other)], 1 << 9),
        ] {
            assert_eq!(
                flush_step(&enumerations, (6, 12)),
                (step, false),
                "{enumerations:?}"
            );
            assert_eq!(
                flush_step(&enumerations, (5, 14)),
                (step, false),
                "{enumerations:?}"
            );
        }
    }

    #[test]
    fn what_is_absent_is_a_macro_of_an_old_kernel_or_missing() {
        let other: &[(&str, u64)] = &[("RQF_FLUSH_SEQ", 3)];
        let beyond: &[(&str, u64)] = &[(FLUSH_STEP, 1 << 40)];
        for enumerations in [vec![("rqf_flags", 4, other)], vec![("", 8, beyond)]] {
            assert_eq!(flush_step(&enumerations, (5, 15)), (1 << 4, false));
            assert_eq!(flush_step(&enumerations, (6, 10)), (1 << 4, false));
            assert_eq!(flush_step(&enumerations, (6, 12)), (0, true));
            assert_eq!(flush_step(&enumerations, (7, 0)), (0, true));
        }
    }

    #[test]
    fn numbers_that_moved_are_those_of_the_kernel() {
        let ops = [
            ("REQ_OP_READ", 0),
            ("REQ_OP_WRITE", 1),
            ("REQ_OP_FLUSH", 2),
            ("REQ_OP_DISCARD", 3),
            ("REQ_OP_SECURE_ERASE", 5),
            ("REQ_OP_WRITE_ZEROES", 9),
        ];
        let flags = FLAGS.map(|(name, bit)| (name, u64::from(bit + 1)));
        for append in [7, 13] {
            let ops: Vec<_> = ops
                .into_iter()
                .chain([("REQ_OP_ZONE_APPEND", append)])
                .collect();
            let step: &[(&str, u64)] = &[(FLUSH_STEP, 1)];
            let kernel = kernel(&[("req_op", 4, &ops), ("", 4, &flags), ("", 4, step)]);
            let numbers = kernel.numbers();
            let op = |number: u64| numbers.ops >> (number * 4) & 15;
            assert_eq!([0, 1, 2, 3, 5, 9].map(op), [0, 1, 2, 3, 3, 4]);
            assert_eq!((op(append), op(20 - append)), (1, 7));
            assert_eq!(numbers.flag_bits, [18, 20, 12, 13]);
            assert_eq!(numbers.missing, []);
        }
        let without = Numbers::of(&|_| None, Some((6, 18)));
        assert_eq!(without.flag_bits, [17, 19, 11, 12]);
        assert_eq!(without.ops & 0xffff, 0x3210);
        assert_eq!(without.missing.len(), OPS.len() + FLAGS.len() + 1);
    }

    #[test]
    fn the_running_kernel_lacks_none() {
        match Kernel::running() {
            Ok(kernel) => assert_eq!(kernel.numbers().missing, []),
            Err(why) => writeln!(std::io::stderr(), "skipped: enumerators: {why}").unwrap(),
        }
    }

    #[test]
    fn releases_are_compared_by_number() {
        assert_eq!(version("6.18.44-fc-v657"), Some((6, 18)));
        assert_eq!(version("5.4.0-200-generic"), Some((5, 4)));
        assert!(version("5.9.1").unwrap() < (5, 15));
        assert_eq!(version("unknown"), None);
    }
}
