//! Trace formats: files of recorded I/O that are replayed as if it occurred now. Each format is in
//! a file of its own.
//!
//! [`Trace::open`] detects the format from the first bytes; [`Trace::start`] returns a [`Tap`]. The
//! steps are:
//!
//! 1. [`source`]: bytes of a file or a pipe, opened once, through a window of constant size.
//! 2. A format's [`Reader`] parses them into [`TraceRecord`]s. A bad record is reported to
//!    [`fault`], with file and offset, and is skipped.
//! 3. [`order`] sorts records that are slightly out of order.
//! 4. [`pairing`] produces rows: a `Q` at issue, an `R` or `E` at completion.
//! 5. [`replay`] sends each demand its rows and columns, in the batches of `row_batches`.
//!
//! A [`recording`] skips steps 2 to 4: it contains rows already. [`mod@write`] is the other
//! direction. No allocation depends on a length in a file.

use std::path::{Path, PathBuf};

use weir_model::Demand;

use crate::{Tap, TapError};

pub mod block;
pub mod convert;
mod disks;
pub mod fault;
pub mod lines;
mod names;
pub mod order;
pub mod pairing;
pub mod pipe;
mod provenance;
pub mod record;
pub mod replay;
pub mod source;
mod spool;
pub mod stream_source;
pub mod stream_tap;
pub mod table;
pub mod trace;
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
mod row_batches;
mod scsi;
pub(crate) mod served;
mod tencent;
mod vscsi;
mod vscsi_csv;

pub use convert::{Converted, convert, for_writing};
pub use fault::Faults;
pub use pipe::Cancel;
pub use provenance::{FileEnd, Provenance};
pub use record::{Reader, TraceRecord};
pub use replay::Replay;
pub use source::{Input, TraceInput};
pub use spool::SPOOL_BYTES_MAX;
pub use trace::{Trace, TraceOptions};
pub(crate) use wanted::capabilities;
pub use write::{Header, TraceWriter};

/// Bytes available for detecting a format.
pub const SNIFF_BYTES: usize = 16 << 10;

/// Bytes of the magic number of a binary format.
const MAGIC_BYTES: usize = 4;

/// A trace format.
pub struct Format {
    /// Its name, for `--format` of the commands that read traces.
    pub name: &'static str,
    /// The usual extensions of its files.
    pub extensions: &'static [&'static str],
    /// A description, one sentence.
    pub doc: &'static str,
    /// Whether a file that begins with these bytes (at most [`SNIFF_BYTES`]) is in this format:
    /// certainly, certainly not, or possibly.
    pub sniff: fn(&[u8]) -> Option<bool>,
    /// The reader of its files.
    pub read: FormatReader,
    /// Creates a file, if the format can be written.
    pub create: Option<Create>,
}

/// Reads a trace record by record.
pub type OpenRecords = fn(Input) -> Result<Box<dyn Reader>, TapError>;

/// Creates a file.
pub type Create = fn(&Path, &Header) -> Result<Box<dyn TraceWriter>, TapError>;

/// How files of a format are read.
#[derive(Clone, Copy)]
pub enum FormatReader {
    /// Record by record; records are then sorted and paired.
    Records(OpenRecords),
    /// As a recording, which contains rows.
    Recording,
}

/// Every format, in the order of detection: the most certain first.
pub static FORMATS: &[Format] = &[
    Format {
        name: "recording",
        extensions: &["parquet"],
        doc: "weir's own recording of any stream, Parquet; written by `weir record`",
        sniff: recording::sniff,
        read: FormatReader::Recording,
        create: Some(recording::create),
    },
    Format {
        name: "blktrace",
        extensions: &["blktrace"],
        doc: "binary blktrace, versions 7 and 8, one file per CPU; written as version 7",
        sniff: blktrace::sniff,
        read: FormatReader::Records(blktrace::open),
        create: Some(blktrace::create),
    },
    Format {
        name: "iolog",
        extensions: &["iolog", "log"],
        doc: "fio I/O log, versions 2 and 3; written as version 3",
        sniff: iolog::sniff,
        read: FormatReader::Records(iolog::open),
        create: Some(iolog::create),
    },
    Format {
        name: "vscsi",
        extensions: &["vscsi"],
        doc: "binary command trace of VMware's vscsiStats, versions 1 and 2",
        sniff: vscsi::sniff,
        read: FormatReader::Records(vscsi::open),
        create: None,
    },
    Format {
        name: "blkparse",
        extensions: &["blkparse", "txt"],
        doc: "output of blkparse in its default format",
        sniff: blkparse::sniff,
        read: FormatReader::Records(blkparse::open),
        create: None,
    },
    Format {
        name: "msr",
        extensions: &["csv"],
        doc: "MSR Cambridge CSV, with response times",
        sniff: |head| msr::LINES.sniff(head),
        read: FormatReader::Records(|input| Ok(msr::LINES.reader(input))),
        create: None,
    },
    Format {
        name: "alibaba",
        extensions: &["csv"],
        doc: "Alibaba block traces, CSV",
        sniff: |head| alibaba::LINES.sniff(head),
        read: FormatReader::Records(|input| Ok(alibaba::LINES.reader(input))),
        create: None,
    },
    Format {
        name: "tencent",
        extensions: &["csv"],
        doc: "Tencent block storage traces, CSV",
        sniff: |head| tencent::LINES.sniff(head),
        read: FormatReader::Records(|input| Ok(tencent::LINES.reader(input))),
        create: None,
    },
    Format {
        name: "cloudphysics-csv",
        extensions: &["csv"],
        doc: "CloudPhysics' vscsiStats traces as libCacheSim's CSV, times in seconds",
        sniff: |head| vscsi_csv::CLOUDPHYSICS.sniff(head),
        read: FormatReader::Records(|input| Ok(vscsi_csv::CLOUDPHYSICS.reader(input))),
        create: None,
    },
    Format {
        name: "cydonia-csv",
        extensions: &["csv"],
        doc: "CloudPhysics' vscsiStats traces as Cydonia's CSV",
        sniff: |head| vscsi_csv::CYDONIA.sniff(head),
        read: FormatReader::Records(|input| Ok(vscsi_csv::CYDONIA.reader(input))),
        create: None,
    },
    Format {
        name: "disksim",
        extensions: &["trace", "ascii"],
        doc: "DiskSim ASCII request trace",
        sniff: |head| disksim::ASCII.sniff(head),
        read: FormatReader::Records(|input| Ok(disksim::ASCII.reader(input))),
        create: None,
    },
    Format {
        name: "disksim-validation",
        extensions: &["trace"],
        doc: "DiskSim validation trace of a real drive, with service times",
        sniff: |head| disksim::VALIDATION.sniff(head),
        read: FormatReader::Records(|input| Ok(disksim::VALIDATION.reader(input))),
        create: None,
    },
    Format {
        name: "mqsim",
        extensions: &["trace"],
        doc: "MQSim request trace",
        sniff: |head| mqsim::LINES.sniff(head),
        read: FormatReader::Records(|input| Ok(mqsim::LINES.reader(input))),
        create: None,
    },
];

/// Opens the trace at `path` as a tap that serves `demands` for its streams.
/// `X` means `X.blktrace.0`, `X.blktrace.1`, .. if there is no file with that name.
///
/// # Errors
/// If the file cannot be read, or no format matches.
pub fn open(
    path: &Path,
    demands: &[Demand],
    options: &TraceOptions,
) -> Result<Box<dyn Tap>, TapError> {
    open_source(&TraceInput::file(first_file(path)), demands, options)
}

/// As [`open`], from any source.
///
/// # Errors
/// As [`open`].
pub fn open_source(
    source: &TraceInput,
    demands: &[Demand],
    options: &TraceOptions,
) -> Result<Box<dyn Tap>, TapError> {
    Trace::open(Input::open(source)?, options)?.start(demands)
}

/// The file that identifies the trace at `path`: of a blktrace, which has a file per CPU, the first
/// file; otherwise the path itself.
pub fn first_file(path: &Path) -> PathBuf {
    let files = blktrace::beside(path);
    files.into_iter().next().unwrap_or_else(|| path.into())
}

/// The format called `name`, case-insensitive.
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

/// The format of an input: the first that is certain, otherwise the only one that is possible.
///
/// # Errors
/// If the file cannot be read, is empty, or no format matches.
fn detect(input: &mut Input) -> Result<&'static Format, TapError> {
    let head = head(input)?;
    let (format, is_empty) = (sniff(head), head.is_empty());
    let has_type_line = stream_source::has_type_line(head);
    let malformed = |reason: &str| TapError::Malformed {
        path: input.path().into(),
        offset: 0,
        reason: reason.into(),
    };
    if is_empty {
        return Err(malformed(
            "the file is empty; use --from-format to read it as a trace without records",
        ));
    }
    if has_type_line {
        return Err(malformed(
            "a STREAM source file, whose columns are declared by a script; use it in a script with `weir run`",
        ));
    }
    format.ok_or_else(|| TapError::UnknownFormat {
        path: input.path().into(),
        known: known(),
    })
}

/// The first bytes of an input, by which its format is detected: [`SNIFF_BYTES`], or as many as
/// there are if the first ones are sufficient. The writer of a pipe may be slow.
///
/// # Errors
/// If the file cannot be read.
pub fn head(input: &mut Input) -> Result<&[u8], TapError> {
    match blktrace::sniff(input.peek(MAGIC_BYTES)?) {
        Some(true) => Ok(input.buffered()),
        _ => input.peek(SNIFF_BYTES),
    }
}

/// The format of a file that begins with `head`.
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

impl Format {
    /// A tap that reads a source in this format.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn tap(&self, source: &TraceInput, demands: &[Demand]) -> Result<Box<dyn Tap>, TapError> {
        let options = TraceOptions {
            format: Some(self.name.into()),
            ..TraceOptions::default()
        };
        open_source(source, demands, &options)
    }
}
