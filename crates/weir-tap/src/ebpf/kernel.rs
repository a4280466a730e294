//! [`Kernel`]: the type information (BTF) of the running kernel: its tracepoints, its structures,
//! and the numbers of the enumerators that the programs test. docs/kernels.md lists all of them.
//!
//! CO-RE relocates an enumerator by the name of its enumeration, and an enumeration may have none:
//! that of `__RQF_FLUSH_SEQ` is anonymous in 6.12. So enumerators are looked up here by their own
//! names, which are unique in the kernel, and their numbers are passed in the configuration.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::path::Path;

use libbpf_rs::btf::types::{Composite, Enum, Enum64, FuncProto, Ptr, Struct, Typedef};
use libbpf_rs::btf::{Btf, BtfType};
use weir_model::Op;

use super::devices::read_text;
use super::object;
use super::obstacle::Obstacle;
use crate::TapError;

/// Location of the kernel's type information.
pub const BTF: &str = "/sys/kernel/btf/vmlinux";

/// The type information of the running kernel.
pub struct Kernel {
    btf: Btf<'static>,
}

/// The running kernel. Its type information is read when it is needed first, which takes some
/// milliseconds.
#[derive(Debug, Default)]
pub struct RunningKernel(OnceCell<Kernel>);

/// Numbers of the kernel that the programs test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// For each of the kernel's operations below 16 its `enum op`, four bits each.
    pub ops: u64,
    /// The bits of `cmd_flags` that are the operation.
    pub op_mask: u32,
    /// Bits of `cmd_flags`: forced unit access, read ahead, sync, metadata; 0 if one is unknown.
    pub flag_bits: [u32; 4],
    /// The bit of `rq_flags` that marks a step of a flush sequence; 0 if it is unknown.
    pub flush_step: u32,
    /// The state of a request that has not been issued; [`NO_STATE`] if it is unknown.
    pub idle: u8,
    /// Enumerators that the type information lacks.
    pub missing: Vec<Missing>,
}

/// An enumerator or a field that the type information lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its name.
    pub name: &'static str,
    /// The effect; empty if the programs cannot be loaded.
    pub costs: String,
}

/// `OP_OTHER` of `enum op` for each of the 16 operations.
const ALL_OTHER: u64 = 0x7777_7777_7777_7777;

/// A number that no state of a request has.
const NO_STATE: u8 = u8::MAX;

/// The operations of `include/linux/blk_types.h` with the operations that they are reported as.
const OPS: [(&str, Op); 7] = [
    ("REQ_OP_READ", Op::Read),
    ("REQ_OP_WRITE", Op::Write),
    ("REQ_OP_FLUSH", Op::Flush),
    ("REQ_OP_DISCARD", Op::Discard),
    ("REQ_OP_SECURE_ERASE", Op::Discard),
    ("REQ_OP_WRITE_ZEROES", Op::WriteZeroes),
    ("REQ_OP_ZONE_APPEND", Op::Write),
];

/// The first flag of the same header. Its position is the number of bits of an operation
/// (`REQ_OP_BITS`, a macro).
const FIRST_FLAG: &str = "__REQ_FAILFAST_DEV";

/// The flags of the same header, with the effects of their absence.
const FLAGS: [(&str, &str); 4] = [
    ("__REQ_FUA", "flag F is missing"),
    ("__REQ_RAHEAD", "flag A is missing"),
    ("__REQ_SYNC", "flag S is missing"),
    ("__REQ_META", "flag M is missing"),
];

/// The flag of a request that is a step of a flush sequence (`include/linux/blk-mq.h`).
const FLUSH_STEP: &str = "__RQF_FLUSH_SEQ";

/// The first release that is certain to have [`FLUSH_STEP`]. Before 6.12 it may be the macro
/// `RQF_FLUSH_SEQ`, which is not in the type information.
const FLUSH_STEP_SINCE: (u32, u32) = (6, 12);

/// Its position as a macro, since 4.10.
const FLUSH_STEP_AS_MACRO: u32 = 4;

/// The state of a request that has not been issued (`include/linux/blk-mq.h`).
const IDLE: &str = "MQ_RQ_IDLE";

/// The fields that the programs read, as `kernel.bpf.h` declares them.
const FIELDS: [&str; 28] = [
    "bio.bi_bdev",
    "bio.bi_blkg",
    "bio.bi_iter",
    "bio.bi_next",
    "bio.bi_opf",
    "bio.bi_status",
    "blkcg.css",
    "blkcg_gq.blkcg",
    "block_device.bd_dev",
    "block_device.bd_disk",
    "bvec_iter.bi_sector",
    "bvec_iter.bi_size",
    "cgroup.kn",
    "cgroup_subsys_state.cgroup",
    "gendisk.first_minor",
    "gendisk.major",
    "gendisk.queue",
    "kernfs_node.id",
    "request.__data_len",
    "request.__sector",
    "request.bio",
    "request.cmd_flags",
    "request.q",
    "request.rq_flags",
    "request.state",
    "request_queue.disk",
    "request_queue.mq_ops",
    "task_struct.flags",
];

/// The owner of a bio's I/O, which kernels without the block controller of cgroups lack; and the
/// fields that are read only through it.
const CGROUP_FIELDS: [&str; 5] = [
    "bio.bi_blkg",
    "blkcg_gq.blkcg",
    "blkcg.css",
    "cgroup_subsys_state.cgroup",
    "cgroup.kn",
];

/// The disk of a request before 5.17, where `request_queue.disk` may be absent.
const REQUEST_DISK: &str = "request.rq_disk";

/// What reads a page of a device in memory without a bio, in kernels before 6.3.
const PAGE_READER: &str = "block_device_operations.rw_page";

/// The arguments of the tracepoints (`include/trace/events/block.h`): structures that are passed by
/// address; other arguments are empty. Kernels before 5.11 pass the queue first.
const ARGUMENTS: [(&str, &[&str]); 8] = [
    ("block_io_start", &["request"]),
    ("block_rq_insert", &["request"]),
    ("block_rq_issue", &["request"]),
    ("block_rq_requeue", &["request"]),
    ("block_rq_merge", &["request"]),
    ("block_rq_complete", &["request", "", ""]),
    ("block_bio_queue", &["bio"]),
    ("block_bio_complete", &["request_queue", "bio"]),
];

impl Kernel {
    /// Reads the type information of the running kernel.
    ///
    /// # Errors
    /// If the kernel has none.
    pub fn running() -> Result<Kernel, TapError> {
        object::keep_messages();
        Btf::from_vmlinux()
            .map(|btf| Kernel { btf })
            .map_err(|e| Obstacle::of_types(&e.to_string()).unavailable())
    }

    /// True if the kernel has this tracepoint with the arguments that the programs expect.
    pub fn has_tracepoint(&self, name: &str) -> bool {
        self.tracepoint(name).is_ok()
    }

    /// The reason why the programs cannot use this tracepoint, if there is one.
    pub fn tracepoint(&self, name: &str) -> Result<(), &'static str> {
        let prototype = format!("btf_trace_{name}");
        let found = self.btf.type_by_name::<Typedef<'_>>(&prototype);
        let found = found.ok_or("absent")?;
        let mut expected = ARGUMENTS.iter().filter(|(n, _)| *n == name);
        match expected.next() {
            Some((_, expected)) if self.arguments(&found).as_deref() != Some(*expected) => {
                Err("its arguments differ from those that the programs read")
            }
            _ => Ok(()),
        }
    }

    /// The arguments of a tracepoint as in [`ARGUMENTS`], after the one that all tracepoints have.
    fn arguments(&self, prototype: &BtfType<'_>) -> Option<Vec<&str>> {
        let function = prototype.next_type()?.next_type()?;
        let function = FuncProto::try_from(function).ok()?;
        let argument = |id| {
            let ty: BtfType<'_> = self.btf.type_by_id(id)?;
            let address = Ptr::try_from(ty.skip_mods_and_typedefs()).ok()?;
            let target = address.next_type()?.skip_mods_and_typedefs();
            target.name()?.to_str()
        };
        let ids: Vec<_> = function.iter().skip(1).map(|a| a.ty).collect();
        Some(
            ids.into_iter()
                .map(|id| argument(id).unwrap_or(""))
                .collect(),
        )
    }

    /// The numbers that the programs test.
    pub fn numbers(&self) -> Numbers {
        let names = OPS.iter().map(|(name, _)| *name);
        let names = names.chain(FLAGS.iter().map(|(name, _)| *name));
        let names: Vec<&str> = names.chain([FIRST_FLAG, FLUSH_STEP, IDLE]).collect();
        let found = self.enumerators(&names);
        let find = |name: &str| found.iter().find(|(n, _)| *n == name).map(|(_, n)| *n);
        Numbers::of(&find, release())
    }

    /// Those of `names` that are in an enumeration, named or anonymous, of 32 or 64 bits.
    fn enumerators<'a>(&self, names: &[&'a str]) -> Vec<(&'a str, u32)> {
        let mut found = Vec::new();
        let mut look = |name: Option<&OsStr>, value: i128| {
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

    /// True if the page cache reads some devices in memory, such as zram, without a bio.
    pub fn reads_pages_without_bios(&self) -> bool {
        self.fields(&[PAGE_READER])[PAGE_READER]
    }

    /// Whether the kernel has each of these fields.
    fn fields(&self, wanted: &[&'static str]) -> HashMap<&'static str, bool> {
        let mut found: HashMap<&str, bool> = wanted.iter().map(|name| (*name, false)).collect();
        for structure in self.btf.type_by_kind::<Struct<'_>>() {
            let Some(own) = structure.name().and_then(OsStr::to_str) else {
                continue;
            };
            for name in wanted {
                let field = name
                    .strip_prefix(own)
                    .and_then(|rest| rest.strip_prefix('.'));
                if field.is_some_and(|field| self.has_field(structure.into(), field)) {
                    found.insert(name, true);
                }
            }
        }
        found
    }

    /// The fields that the programs read and the kernel lacks.
    pub fn missing_fields(&self) -> Vec<Missing> {
        let wanted: Vec<&str> = FIELDS.into_iter().chain([REQUEST_DISK]).collect();
        let found = self.fields(&wanted);
        let lacks = |name: &&&str| match **name {
            "request_queue.disk" => !found[*name] && !found[REQUEST_DISK],
            name => !found[name],
        };
        let of = |name: &&'static str| Missing {
            name,
            costs: match CGROUP_FIELDS.contains(name) {
                true => "column cgroup is that of the submitter, or NULL".into(),
                false => String::new(),
            },
        };
        FIELDS.iter().filter(lacks).map(of).collect()
    }

    /// True if a structure has the field, or an anonymous structure or union in it does.
    fn has_field(&self, structure: Composite<'_>, field: &str) -> bool {
        structure.iter().any(|member| match member.name {
            Some(name) if !name.is_empty() => name == field,
            _ => {
                let inner = self.btf.type_by_id::<Composite<'_>>(member.ty);
                inner.is_some_and(|inner| self.has_field(inner, field))
            }
        })
    }
}

impl RunningKernel {
    /// Its type information.
    ///
    /// # Errors
    /// As [`Kernel::running`].
    pub fn get(&self) -> Result<&Kernel, TapError> {
        match self.0.get() {
            Some(kernel) => Ok(kernel),
            None => {
                let read = Kernel::running()?;
                Ok(self.0.get_or_init(|| read))
            }
        }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({} types)", self.btf.len())
    }
}

impl Numbers {
    /// The numbers of a kernel of this release; `find` looks up enumerators in its type
    /// information. What depends on one that is not found is off.
    fn of(find: &dyn Fn(&str) -> Option<u32>, release: Option<(u32, u32)>) -> Numbers {
        let mut missing = Vec::new();
        let mut lacks = |name: &'static str, costs: String| missing.push(Missing { name, costs });
        let bit = |name: &str| {
            find(name)
                .filter(|bit| *bit < u32::BITS)
                .map(|bit| 1 << bit)
        };
        let mut ops = ALL_OTHER;
        for (name, op) in OPS {
            match find(name).filter(|n| *n < 16) {
                Some(number) => ops = ops & !(15 << (number * 4)) | (op as u64) << (number * 4),
                None => lacks(name, format!("requests with {name} are not reported")),
            }
        }
        let op_mask = bit(FIRST_FLAG).map_or(0, |bit: u32| bit - 1);
        if op_mask == 0 {
            ops = ALL_OTHER;
            lacks(FIRST_FLAG, "no request is reported".into());
        }
        let flag_bits = FLAGS.map(|(name, costs)| {
            let found = bit(name);
            if found.is_none() {
                lacks(name, costs.into());
            }
            found.unwrap_or(0)
        });
        let as_macro = release.is_some_and(|release| release < FLUSH_STEP_SINCE);
        let flush_step = match bit(FLUSH_STEP) {
            None if as_macro => 1 << FLUSH_STEP_AS_MACRO,
            None => {
                let costs = "each step of a flush is reported as a separate request";
                lacks(FLUSH_STEP, costs.into());
                0
            }
            Some(found) => found,
        };
        let idle = find(IDLE).and_then(|state| u8::try_from(state).ok());
        if idle.is_none() {
            let costs = "a request that its driver returns before it is issued has no request row";
            lacks(IDLE, costs.into());
        }
        Numbers {
            ops,
            op_mask,
            flag_bits,
            flush_step,
            idle: idle.unwrap_or(NO_STATE),
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
mod versions;

#[cfg(test)]
mod tests {
    use weir_testing::skipped;

    use super::versions::BtfWriter;
    use super::*;

    /// An enumeration of a test: its name, or none; its size in bytes; its enumerators.
    type Enumeration<'a> = (&'a str, u32, &'a [(&'a str, u64)]);

    /// Type information with these enumerations and a structure between them.
    fn kernel(enumerations: &[Enumeration<'_>]) -> Kernel {
        let mut btf = BtfWriter::new();
        for (i, (name, bytes, enumerators)) in enumerations.iter().enumerate() {
            btf.structure(&format!("between_{i}"), &[]);
            btf.enumeration(name, *bytes, enumerators);
        }
        Kernel { btf: btf.read() }
    }

    /// The bit of the flush sequence on a kernel of this release with these enumerations.
    fn flush_step(enumerations: &[Enumeration<'_>], release: (u32, u32)) -> (u32, bool) {
        let found = kernel(enumerations).enumerators(&[FLUSH_STEP]);
        let find = |name: &str| found.iter().find(|f| f.0 == name).map(|f| f.1);
        let numbers = Numbers::of(&find, Some(release));
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
        let flags = [
            ("__REQ_FUA", 18),
            ("__REQ_RAHEAD", 20),
            ("__REQ_SYNC", 12),
            ("__REQ_META", 13),
        ];
        for append in [7, 13] {
            let ops: Vec<_> = ops
                .into_iter()
                .chain([("REQ_OP_ZONE_APPEND", append)])
                .collect();
            let other: &[(&str, u64)] = &[(FLUSH_STEP, 1), (FIRST_FLAG, 7), (IDLE, 3)];
            let kernel = kernel(&[("req_op", 4, &ops), ("", 4, &flags), ("", 4, other)]);
            let numbers = kernel.numbers();
            let op = |number: u64| numbers.ops >> (number * 4) & 15;
            assert_eq!([0, 1, 2, 3, 5, 9].map(op), [0, 1, 2, 3, 3, 4]);
            assert_eq!((op(append), op(20 - append)), (1, 7));
            assert_eq!(numbers.flag_bits, [18, 20, 12, 13].map(|bit| 1 << bit));
            assert_eq!((numbers.op_mask, numbers.idle), (0x7f, 3));
            assert_eq!(numbers.missing, []);
        }
    }

    #[test]
    fn what_depends_on_an_enumerator_that_is_not_found_is_off() {
        let without = Numbers::of(&|_| None, Some((6, 18)));
        assert_eq!((without.ops, without.op_mask), (ALL_OTHER, 0));
        assert_eq!((without.flag_bits, without.flush_step), ([0; 4], 0));
        assert_eq!(without.idle, NO_STATE);
        assert_eq!(without.missing.len(), OPS.len() + FLAGS.len() + 3);
        let without_mask = |name: &str| Some(7).filter(|_| name != FIRST_FLAG);
        assert_eq!(Numbers::of(&without_mask, Some((6, 18))).ops, ALL_OTHER);
    }

    #[test]
    fn every_field_that_is_absent_is_named() {
        let none = kernel(&[]).missing_fields();
        let names: Vec<&str> = none.iter().map(|m| m.name).collect();
        assert_eq!(names, FIELDS);
        let degrade = none.iter().filter(|m| !m.costs.is_empty()).count();
        assert_eq!(degrade, CGROUP_FIELDS.len());
        for (name, _) in ARGUMENTS {
            assert_eq!(kernel(&[]).tracepoint(name), Err("absent"));
        }
    }

    #[test]
    fn the_running_kernel_lacks_none() {
        match Kernel::running() {
            Ok(kernel) => {
                assert_eq!(kernel.numbers().missing, []);
                assert_eq!(kernel.missing_fields(), []);
                for (name, arguments) in ARGUMENTS {
                    assert_eq!(kernel.tracepoint(name), Ok(()), "{name} {arguments:?}");
                    let found = kernel.btf.type_by_name(&format!("btf_trace_{name}"));
                    let found: Typedef<'_> = found.expect("it was found just now");
                    assert_eq!(
                        kernel.arguments(&found).as_deref(),
                        Some(arguments),
                        "{name}"
                    );
                }
            }
            Err(why) => skipped("the_running_kernel_lacks_none", why),
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
