//! [`ProbeDefinition`]: a stream of a probe's hits, as `CREATE STREAM .. AS PROBE` defines it.

use std::fmt;

use crate::Unit;

/// Maximum number of definitions that a query may have.
pub const PROBES_MAX: usize = 64;

/// Maximum size of a text of a probe in bytes.
pub const TEXT_BYTES_MAX: u64 = 512;

/// Maximum number of numbers by which two probes are paired.
pub const PAIR_KEYS_MAX: usize = 4;

/// Usual maximum size of a text whose length the kernel does not declare, in bytes.
pub const TEXT_BYTES: u64 = 64;

/// Usual maximum number of hits that are read, per second and processor.
pub const HITS_MAX: u64 = 1_000_000;

/// Usual maximum share of a processor that the programs of a definition use, in percent.
pub const CPU_PERCENT_MAX: u8 = 10;

/// A stream of the hits of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeDefinition {
    /// The name of the stream.
    pub name: String,
    /// The probe: `tp:sched:sched_switch`.
    pub probe: String,
    /// Its fields; empty for all of them.
    pub fields: Vec<ProbeField>,
    /// The probe that ends what the first one begins; a row is such a pair.
    pub end: Option<ProbeEnd>,
    /// Whose hits are read.
    pub scope: ProbeScope,
    /// Maximum number of hits that are read, per second and processor.
    pub hits_max: u64,
    /// Maximum share of each processor that its programs use, in percent; hits above it are lost.
    pub cpu_percent_max: u8,
}

/// Whose hits of a probe are read, and whose files its paths name. Empty: those of every process,
/// and the files of this one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeScope {
    /// Those of this process.
    pub pid: Option<u32>,
    /// Those of the processes in this cgroup (v2) and below it.
    pub cgroup: Option<String>,
}

/// `PID 7 CGROUP '/web'`, each after a space.
impl fmt::Display for ProbeScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(pid) = self.pid {
            write!(f, " PID {pid}")?;
        }
        match &self.cgroup {
            Some(cgroup) => write!(f, " CGROUP '{}'", cgroup.replace('\'', "''")),
            None => Ok(()),
        }
    }
}

/// The end of a pair of probes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeEnd {
    /// The probe: `fexit:vfs_read`.
    pub probe: String,
    /// Its fields; if both probes have none, all of them.
    pub fields: Vec<ProbeField>,
    /// The numbers by which it is paired, of the beginning and of the end; none for the same call
    /// of a function.
    pub keys: Vec<(String, String)>,
}

/// A field of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeField {
    /// Where it is: `prev_pid`, `rq.__data_len`, `args[1]`.
    pub path: String,
    /// The name of its column, if it is not the last name of the path.
    pub name: Option<String>,
    /// Its type, if it is not the one that the kernel or the file declares.
    pub ty: Option<ProbeType>,
    /// The unit of its numbers.
    pub unit: Unit,
}

/// The type of a probe's field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeType {
    /// An integer of 1, 2, 4 or 8 bytes.
    Integer {
        /// Its size.
        bytes: u8,
        /// Negative numbers are possible.
        is_signed: bool,
    },
    /// A text of at most this many bytes.
    Text {
        /// At most [`TEXT_BYTES_MAX`].
        bytes: u64,
    },
    /// The name of the VM of the process with this number.
    Vm,
}

/// The names of integers.
const INTEGERS: [(&str, u8, bool); 8] = [
    ("u8", 1, false),
    ("u16", 2, false),
    ("u32", 4, false),
    ("u64", 8, false),
    ("s8", 1, true),
    ("s16", 2, true),
    ("s32", 4, true),
    ("s64", 8, true),
];

impl ProbeType {
    /// The type called `word`; a text has [`TEXT_BYTES`].
    pub fn named(word: &str) -> Option<ProbeType> {
        let same = |name: &str| name.eq_ignore_ascii_case(word);
        if same("vm") {
            return Some(ProbeType::Vm);
        }
        if same("text") {
            return Some(ProbeType::Text { bytes: TEXT_BYTES });
        }
        let mut integers = INTEGERS.iter();
        let found = integers.find(|(name, ..)| same(name));
        found.map(|(_, bytes, is_signed)| ProbeType::Integer {
            bytes: *bytes,
            is_signed: *is_signed,
        })
    }

    /// The names of all types.
    pub fn names() -> impl Iterator<Item = &'static str> + Clone {
        INTEGERS
            .iter()
            .map(|(name, ..)| *name)
            .chain(["text", "vm"])
    }
}

impl fmt::Display for ProbeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbeType::Integer { bytes, is_signed } => {
                let sign = if *is_signed { 's' } else { 'u' };
                write!(f, "{sign}{}", u32::from(*bytes) * 8)
            }
            ProbeType::Text { bytes } if *bytes == TEXT_BYTES => f.write_str("text"),
            ProbeType::Text { bytes } => write!(f, "text({bytes})"),
            ProbeType::Vm => f.write_str("vm"),
        }
    }
}

impl ProbeField {
    /// The field at `path` as it is declared.
    pub fn new(path: &str) -> ProbeField {
        ProbeField {
            path: path.into(),
            name: None,
            ty: None,
            unit: Unit::None,
        }
    }

    /// The name of its column: `args[1]` is `args_1`.
    pub fn column(&self) -> String {
        match &self.name {
            Some(name) => name.clone(),
            None => {
                let last = self.path.rsplit('.').next().unwrap_or_default();
                last.replace('[', "_").replace(']', "")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_printed_as_they_are_read() {
        for name in ProbeType::names() {
            let ty = ProbeType::named(name).expect("a name of the list");
            assert_eq!(ty.to_string(), name);
        }
        assert_eq!(ProbeType::Text { bytes: 8 }.to_string(), "text(8)");
        assert_eq!(ProbeType::named("u128"), None);
    }

    #[test]
    fn a_column_has_the_last_name_of_its_path() {
        assert_eq!(
            ProbeField::new("rq.q.disk.first_minor").column(),
            "first_minor"
        );
        assert_eq!(ProbeField::new("args[1]").column(), "args_1");
    }
}
