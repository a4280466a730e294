//! Trace formats: files of recorded I/O that replay as if it happened now, each format in a file of
//! its own.
//!
//! [`open`] finds the format, by sniffing at the first bytes, and gives a [`Tap`]. What happens in
//! between:
//!
//! 1. [`source`]: bytes, through a window that never grows.
//! 2. A format's [`Reader`] makes [`Record`]s of them. A bad record goes to [`fault`], with file
//!    and offset, and is skipped.
//! 3. [`order`] undoes small disorder. 4. [`pairing`] makes rows: a `Q` at issue, an `R` or `E` at
//!    completion.
//! 5. [`replay`] gives each demand the rows and columns it wants.
//!
//! A [`recording`] skips steps 2 to 4: it holds rows already. [`mod@write`] is the other direction.
//! Nothing here allocates by a length that a file claims.

use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_model::Demand;

use crate::{RECORDING, Said, Tap, TapError};

pub mod block;
pub mod convert;
mod disks;
pub mod fault;
pub mod lines;
pub mod order;
pub mod pairing;
pub mod record;
pub mod replay;
pub mod source;
pub mod stream_source;
pub mod stream_tap;
pub mod table;
mod wanted;
pub mod write;

mod alibaba;
mod blkparse;
mod blktrace;
mod disksim;
mod iolog;
mod mqsim;
mod msr;
pub mod recording;
mod remarks;
mod rows;
mod scsi;
pub(crate) mod served;
mod tencent;
mod vscsi;
mod vscsi_csv;

pub use convert::{Converted, convert, everything, for_writing};
pub use fault::Faults;
pub use record::{Reader, Record};
pub use replay::Replay;
pub use source::Source;
pub use write::{Header, Writer};

/// How many bytes a format may sniff at.
pub const SNIFF_BYTES: usize = 16 << 10;

/// A trace format.
pub struct Format {
    /// Its name, for `--format` of the commands that read traces.
    pub name: &'static str,
    /// How its files are usually called.
    pub extensions: &'static [&'static str],
    /// What it is, in a sentence.
    pub doc: &'static str,
    /// Whether a file that starts with these bytes (at most [`SNIFF_BYTES`]) is in this format:
    /// surely, surely not, or perhaps.
    pub sniff: fn(&[u8]) -> Option<bool>,
    /// How its files are read.
    pub read: Read,
    /// Starts a file, where the format can be written.
    pub create: Option<Create>,
}

/// Opens a trace, to be read record by record.
pub type OpenRecords = fn(&Source) -> Result<Box<dyn Reader>, TapError>;

/// Opens a trace that serves demands itself. The last argument asks for strictness.
pub type OpenRows = fn(&Source, &[Demand], bool) -> Result<Box<dyn Tap>, TapError>;

/// Starts a file.
pub type Create = fn(&Path, &Header) -> Result<Box<dyn Writer>, TapError>;

/// How files of a format are read.
#[derive(Clone, Copy)]
pub enum Read {
    /// Record by record, which are then put in order and paired.
    Records(OpenRecords),
    /// As rows, ready made.
    Rows(OpenRows),
}

/// Every format, in the order in which they sniff at a file: the surest first.
pub static FORMATS: &[Format] = &[
    Format {
        name: "recording",
        extensions: &["parquet"],
        doc: "weir's own recording, Parquet; written by `weir record`",
        sniff: recording::sniff,
        read: Read::Rows(recording::open),
        create: Some(recording::create),
    },
    Format {
        name: "blktrace",
        extensions: &["blktrace"],
        doc: "blktrace binary, versions 7 and 8, a file per CPU; written as version 7",
        sniff: blktrace::sniff,
        read: Read::Records(blktrace::open),
        create: Some(blktrace::create),
    },
    Format {
        name: "iolog",
        extensions: &["iolog", "log"],
        doc: "fio I/O log, versions 2 and 3; written as version 3",
        sniff: iolog::sniff,
        read: Read::Records(iolog::open),
        create: Some(iolog::create),
    },
    Format {
        name: "vscsi",
        extensions: &["vscsi"],
        doc: "binary command trace of VMware's vscsiStats, versions 1 and 2",
        sniff: vscsi::sniff,
        read: Read::Records(vscsi::open),
        create: None,
    },
    Format {
        name: "blkparse",
        extensions: &["blkparse", "txt"],
        doc: "what blkparse prints by default",
        sniff: blkparse::sniff,
        read: Read::Records(blkparse::open),
        create: None,
    },
    Format {
        name: "msr",
        extensions: &["csv"],
        doc: "MSR Cambridge CSV, with response times",
        sniff: |head| msr::LINES.sniff(head),
        read: Read::Records(|source| msr::LINES.open(source)),
        create: None,
    },
    Format {
        name: "alibaba",
        extensions: &["csv"],
        doc: "Alibaba block traces, CSV",
        sniff: |head| alibaba::LINES.sniff(head),
        read: Read::Records(|source| alibaba::LINES.open(source)),
        create: None,
    },
    Format {
        name: "tencent",
        extensions: &["csv"],
        doc: "Tencent block storage traces, CSV",
        sniff: |head| tencent::LINES.sniff(head),
        read: Read::Records(|source| tencent::LINES.open(source)),
        create: None,
    },
    Format {
        name: "cloudphysics-csv",
        extensions: &["csv"],
        doc: "CloudPhysics' vscsiStats traces as libCacheSim's CSV, times in seconds",
        sniff: |head| vscsi_csv::CLOUDPHYSICS.sniff(head),
        read: Read::Records(|source| vscsi_csv::CLOUDPHYSICS.open(source)),
        create: None,
    },
    Format {
        name: "cydonia-csv",
        extensions: &["csv"],
        doc: "CloudPhysics' vscsiStats traces as Cydonia's CSV",
        sniff: |head| vscsi_csv::CYDONIA.sniff(head),
        read: Read::Records(|source| vscsi_csv::CYDONIA.open(source)),
        create: None,
    },
    Format {
        name: "disksim",
        extensions: &["trace", "ascii"],
        doc: "DiskSim ASCII request trace",
        sniff: |head| disksim::ASCII.sniff(head),
        read: Read::Records(|source| disksim::ASCII.open(source)),
        create: None,
    },
    Format {
        name: "disksim-validation",
        extensions: &["trace"],
        doc: "DiskSim validation trace of a real drive, with service times",
        sniff: |head| disksim::VALIDATION.sniff(head),
        read: Read::Records(|source| disksim::VALIDATION.open(source)),
        create: None,
    },
    Format {
        name: "mqsim",
        extensions: &["trace"],
        doc: "MQSim request trace",
        sniff: |head| mqsim::LINES.sniff(head),
        read: Read::Records(|source| mqsim::LINES.open(source)),
        create: None,
    },
];

/// How to read a trace.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Stop at the first bad record instead of counting it.
    pub strict: bool,
    /// The format's name, where the user knows better than sniffing.
    pub format: Option<&'a str>,
}

/// Opens the trace at `path` as a tap that serves `demands` for `IO`, `IOstream` and `recording`.
/// `X` stands for `X.blktrace.0`, `X.blktrace.1`, .. where there is no file of that name.
///
/// # Errors
/// When the file cannot be read, or no format knows it.
pub fn open(path: &Path, demands: &[Demand], options: Options) -> Result<Box<dyn Tap>, TapError> {
    let files = blktrace::beside(path);
    let path = files.first().map_or(path, PathBuf::as_path);
    open_source(&Source::file(path), demands, options)
}

/// As [`open`], from any source.
///
/// # Errors
/// As [`open`].
pub fn open_source(
    source: &Source,
    demands: &[Demand],
    options: Options,
) -> Result<Box<dyn Tap>, TapError> {
    let format = match options.format {
        Some(name) => named(name)?,
        None => detect(source)?,
    };
    format.tap(source, demands, options.strict)
}

impl Format {
    /// A source in this format as a tap.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn tap(
        &self,
        source: &Source,
        demands: &[Demand],
        strict: bool,
    ) -> Result<Box<dyn Tap>, TapError> {
        match self.read {
            Read::Rows(open) => open(source, demands, strict),
            Read::Records(open) => {
                let faults = Faults::new(source.path(), strict);
                Ok(Box::new(Replay::new(
                    self.name,
                    open(source)?,
                    faults,
                    demands,
                )))
            }
        }
    }
}

/// The format called `name`, without regard to case.
///
/// # Errors
/// [`TapError::NoSuchFormat`].
pub fn named(name: &str) -> Result<&'static Format, TapError> {
    let found = FORMATS.iter().find(|f| f.name.eq_ignore_ascii_case(name));
    found.ok_or_else(|| TapError::NoSuchFormat {
        name: name.into(),
        reason: "no such trace format",
        known: known(),
    })
}

/// The format of a source: the first that is sure, or else the only one that is not sure that it is
/// another.
///
/// # Errors
/// When the file cannot be read, is empty, or no format knows it.
pub fn detect(source: &Source) -> Result<&'static Format, TapError> {
    let head = source.head(SNIFF_BYTES)?;
    if head.is_empty() {
        return Err(TapError::Malformed {
            path: source.path().into(),
            offset: 0,
            reason: "the file is empty; name its format to read it as a trace without records"
                .into(),
        });
    }
    if sniff(&head).is_none() && stream_source::sniff(&head) {
        return Err(TapError::Malformed {
            path: source.path().into(),
            offset: 0,
            reason: "a STREAM source file, whose columns a script declares; name it there and use `weir run`".into(),
        });
    }
    sniff(&head).ok_or_else(|| TapError::UnknownFormat {
        path: PathBuf::from(source.path()),
        known: known(),
    })
}

/// The format of a file that starts with `head`.
pub fn sniff(head: &[u8]) -> Option<&'static Format> {
    let verdicts = || FORMATS.iter().map(|f| (f, (f.sniff)(head)));
    let sure = verdicts().find(|(_, verdict)| *verdict == Some(true));
    let mut perhaps = verdicts().filter(|(_, verdict)| verdict.is_none());
    match (sure, perhaps.next(), perhaps.next()) {
        (Some((format, _)), _, _) | (None, Some((format, _)), None) => Some(format),
        _ => None,
    }
}

/// The names of all formats.
pub fn known() -> String {
    let names: Vec<_> = FORMATS.iter().map(|f| f.name).collect();
    names.join(", ")
}

/// Reads `bytes` in a format to their end, for everything that a tap can be asked: what fuzzing
/// starts.
///
/// # Errors
/// When they are refused.
pub fn read_all(format: &Format, bytes: &[u8]) -> Result<(), TapError> {
    let demands = ["IO", "IOstream", RECORDING].map(|stream| Demand {
        stream: stream.into(),
        ..everything()
    });
    let mut tap = format.tap(&Source::bytes(bytes), &demands, false)?;
    while !matches!(tap.next(Duration::MAX)?, Said::End) {}
    Ok(())
}
