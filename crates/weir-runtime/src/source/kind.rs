//! [`Source`]: one source, by its name.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use weir_model::Capabilities;
use weir_tap::format;
use weir_tap::format::source::{STANDARD_INPUT, is_standard_input};
use weir_tap::{elevation, live, tapdisk, vdisk};

use super::SourceOptions;

/// The hidden command that runs a QEMU guard: `vdisk::guard` of weir-tap.
pub const QEMU_GUARD: &str = "qemu-guard";

/// The hidden command that runs the inspection process: `inspection` of weir-tap.
pub const INSPECTION: &str = "inspection";

/// The name of the live source.
pub const LIVE: &str = "live";

/// The prefix of the name of a traced VM.
const QEMU: &str = "qemu:";

/// The prefix of the path of a tap in the disk path.
const TAPDISK: &str = "tapdisk:";

/// The program of the inspection process: this executable, also when its file has been replaced.
pub fn inspector() -> Vec<OsString> {
    ["/proc/self/exe", INSPECTION].map(OsString::from).into()
}

/// One source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// This host, live.
    Live,
    /// A VM of this host, traced in QEMU.
    Qemu(String),
    /// The disks that a tap in the disk path serves, by its socket or a disk's.
    Tapdisk(PathBuf),
    /// A file.
    File(PathBuf),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Live => f.write_str(LIVE),
            Source::Qemu(vm) => write!(f, "{QEMU}{vm}"),
            Source::Tapdisk(path) => write!(f, "{TAPDISK}{}", path.display()),
            Source::File(path) => path.display().fmt(f),
        }
    }
}

impl Source {
    /// The source that `text` names.
    pub fn new(text: &str) -> Source {
        if text == LIVE {
            return Source::Live;
        }
        match (text.strip_prefix(QEMU), text.strip_prefix(TAPDISK)) {
            (Some(vm), _) => Source::Qemu(vm.into()),
            (_, Some(path)) => Source::Tapdisk(PathBuf::from(path)),
            _ if is_standard_input(Path::new(text)) => Source::File(STANDARD_INPUT.into()),
            _ => Source::File(PathBuf::from(text)),
        }
    }

    /// The source itself, independent of the given name: for the files of a blktrace, one for each
    /// CPU, the first.
    pub(super) fn identity(&self) -> Source {
        match self {
            Source::File(path) => {
                let first = format::first_file(path);
                Source::File(fs::canonicalize(&first).unwrap_or(first))
            }
            other => other.clone(),
        }
    }

    /// Its capabilities. A file that cannot be opened has none: its reader reports the error.
    pub fn capabilities(&self, args: &SourceOptions) -> Capabilities {
        let mut capabilities = match self {
            Source::Live => live::capabilities(),
            Source::Qemu(_) => vdisk::capabilities(),
            Source::Tapdisk(_) => tapdisk::capabilities(),
            Source::File(path) => {
                if !args.is_live() && elevation::give_up().is_err() {
                    return Capabilities::default();
                }
                let known = args.traces.capabilities(path, &args.format_options());
                known.unwrap_or_default()
            }
        };
        for stream in &mut capabilities.streams {
            if args.no_fold && stream.groups.is_ok() {
                stream.groups = Err("--no-fold was given".into());
            }
            if args.no_pairing {
                stream.paired = Err("--no-pairing was given".into());
            }
        }
        capabilities
    }

    /// True if its events happen now.
    pub fn is_live(&self) -> bool {
        !matches!(self, Source::File(_))
    }
}
