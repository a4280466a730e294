//! Sources of events by name: the list [`KINDS`], and [`EventSource`], what every source can do.
//!
//! A run opens each of its sources once ([`SourceName::open`]), asks what was opened for its
//! capabilities ([`EventSource::probe`]), plans its queries with them, and starts it for the
//! demands of the plans ([`EventSource::start`]). To add a kind of source, write a file with its
//! [`SourceKind`] and add a line to the list.

pub mod file;
mod journal;
mod live;
mod qemu;
mod standard_input;
mod tapdisk;

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use weir_model::{Capabilities, Demand};

use crate::ebpf::LiveOptions;
use crate::format::{self, Cancel};
use crate::inventory::InventoryWatch;
use crate::probe::ProbeStream;
use crate::{Tap, TapError};

use self::file::FileSource;

pub use self::file::KIND as FILE;
pub use self::journal::KIND as JOURNAL;
pub use self::live::KIND as LIVE;
pub use self::qemu::KIND as QEMU;
pub use self::standard_input::KIND as STANDARD_INPUT;
pub use self::tapdisk::KIND as TAPDISK;

/// Every kind of source. A name is of the first kind that accepts it.
pub static KINDS: &[&SourceKind] = &[&LIVE, &QEMU, &TAPDISK, &JOURNAL, &STANDARD_INPUT, &FILE];

/// A kind of source.
pub struct SourceKind {
    /// The whole name of a source of this kind, or the prefix of its name if there is an argument.
    pub name: &'static str,
    /// The argument that follows the prefix, in capital letters; empty if there is none.
    pub argument: &'static str,
    /// Other names for the whole name.
    pub aliases: &'static [&'static str],
    /// A description that follows `NAME: ` in help texts.
    pub doc: &'static str,
    /// Whether its events happen now.
    pub is_live: bool,
    /// The part of it that observes requests, and that selects rows and computes groups for the
    /// engine, as `weir explain` names it.
    pub part: &'static str,
    /// Opens the source with this argument, or with its whole name if there is none.
    pub open: Open,
}

/// The function that opens a source.
pub type Open = fn(&str, &SourceSettings) -> Result<Box<dyn EventSource>, TapError>;

/// An opened source.
pub trait EventSource: Send + Sync {
    /// Its streams and its capabilities for them.
    ///
    /// # Errors
    /// If it cannot be read, or the format of a file is not known.
    fn probe(&self) -> Result<Capabilities, TapError>;

    /// Starts the taps that serve `demands`, which are on its streams. Together they serve each
    /// demand once.
    ///
    /// # Errors
    /// If it cannot be observed or read.
    fn start(
        &self,
        demands: &[Demand],
        settings: &SourceSettings,
    ) -> Result<Vec<Started>, TapError>;

    /// The work that it does for `demands` in place of the engine, one line each.
    ///
    /// # Errors
    /// As [`EventSource::start`].
    fn describe(
        &self,
        demands: &[Demand],
        settings: &SourceSettings,
    ) -> Result<Vec<String>, TapError> {
        let started = self.start(demands, settings)?;
        Ok(started.iter().flat_map(|s| s.tap.describe()).collect())
    }

    /// The file that it reads, for files that are not traces.
    fn file(&self) -> Option<&FileSource> {
        None
    }
}

/// A started tap.
pub struct Started {
    /// The tap. Its demands are numbered from 0.
    pub tap: Box<dyn Tap>,
    /// For each of them, its position in the demands for which the source was started.
    pub demands: Vec<usize>,
}

impl Started {
    /// A tap that serves all of `demands`.
    fn all(tap: Box<dyn Tap>, demands: &[Demand]) -> Vec<Started> {
        let demands = (0..demands.len()).collect();
        vec![Started { tap, demands }]
    }
}

/// How sources are opened and started.
#[derive(Clone)]
pub struct SourceSettings {
    /// Options of live sources.
    pub live: LiveOptions,
    /// The streams of probes that the host serves in addition to its own.
    pub probes: Vec<Arc<ProbeStream>>,
    /// Starts the host's inventory, or returns the one that was started. Its first scan may not be
    /// complete.
    pub inventory: Arc<dyn Fn() -> Result<Arc<InventoryWatch>, TapError> + Send + Sync>,
    /// The program, with arguments, that calls [`crate::vdisk::guard::run`].
    pub qemu_guard: Vec<OsString>,
    /// Options of files.
    pub traces: format::TraceOptions,
    /// Ends the wait for a pipe.
    pub cancel: Cancel,
}

/// The name of a source.
#[derive(Clone)]
pub struct SourceName {
    /// Its kind.
    pub kind: &'static SourceKind,
    /// The argument of the name; the whole name if its kind has no argument.
    argument: String,
}

impl SourceKind {
    /// The source of this kind with this argument, which is ignored if the kind has none.
    pub fn named(&'static self, argument: &str) -> SourceName {
        SourceName {
            kind: self,
            argument: match self.argument {
                "" => self.name.into(),
                _ => argument.into(),
            },
        }
    }

    /// The name as users write it: `live`, `qemu:VM`.
    pub fn usage(&self) -> String {
        format!("{}{}", self.name, self.argument)
    }

    fn accepts(&'static self, text: &str) -> Option<SourceName> {
        match self.argument {
            "" => (text == self.name || self.aliases.contains(&text)).then(|| self.named("")),
            _ => text.strip_prefix(self.name).map(|rest| self.named(rest)),
        }
    }
}

impl SourceName {
    /// The source that `text` names.
    pub fn new(text: &str) -> SourceName {
        let mut named = KINDS.iter().filter_map(|kind| kind.accepts(text));
        named.next().unwrap_or_else(|| FILE.named(text))
    }

    /// Whether it is of `kind`.
    pub fn is(&self, kind: &'static SourceKind) -> bool {
        std::ptr::eq(self.kind, kind)
    }

    /// The argument, if it is of `kind`.
    pub fn argument(&self, kind: &'static SourceKind) -> Option<&str> {
        self.is(kind).then_some(&*self.argument)
    }

    /// The path, if it is a file or standard input.
    pub fn path(&self) -> Option<&Path> {
        let file = self.argument(&FILE);
        let path = file.or_else(|| {
            self.is(&STANDARD_INPUT)
                .then_some(format::source::STANDARD_INPUT)
        });
        path.map(Path::new)
    }

    /// The source itself, independent of the given name: for the files of a blktrace, one for each
    /// CPU, the first.
    pub fn identity(&self) -> SourceName {
        match self.path() {
            Some(path) => {
                let first = format::first_file(path);
                let path = fs::canonicalize(&first).unwrap_or(first);
                FILE.named(&path.to_string_lossy())
            }
            None => self.clone(),
        }
    }

    /// Opens the source.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub fn open(&self, settings: &SourceSettings) -> Result<Box<dyn EventSource>, TapError> {
        (self.kind.open)(&self.argument, settings)
    }
}

impl PartialEq for SourceName {
    fn eq(&self, other: &SourceName) -> bool {
        self.is(other.kind) && self.argument == other.argument
    }
}

impl Eq for SourceName {}

impl fmt::Display for SourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind.argument, self.path()) {
            ("", Some(path)) => path.display().fmt(f),
            ("", None) => f.write_str(self.kind.name),
            _ => write!(f, "{}{}", self.kind.name, self.argument),
        }
    }
}

impl fmt::Debug for SourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SourceName")
            .field(&self.to_string())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_of_the_first_kind_that_accepts_it() {
        let named = |text: &str| {
            let name = SourceName::new(text);
            (name.kind.usage(), name.to_string())
        };
        let pairs = [
            ("live", "live", "live"),
            ("qemu:web", "qemu:VM", "qemu:web"),
            ("tapdisk:/run/x", "tapdisk:PATH", "tapdisk:/run/x"),
            ("-", "-", "/dev/stdin"),
            ("/dev/fd/0", "-", "/dev/stdin"),
            ("live.parquet", "FILE", "live.parquet"),
            ("qemu", "FILE", "qemu"),
            ("", "FILE", ""),
        ];
        for (text, kind, shown) in pairs {
            assert_eq!(named(text), (kind.into(), shown.into()), "{text}");
        }
        assert_eq!(SourceName::new("-"), SourceName::new("/dev/stdin"));
        assert_ne!(SourceName::new("qemu:a"), SourceName::new("qemu:b"));
    }
}
