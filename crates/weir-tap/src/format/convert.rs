//! [`convert`]: converts a trace to another format.

use std::path::Path;
use std::time::Duration;

use weir_model::Demand;
use weir_model::event::IO_PAIRS;

use super::{
    FORMATS, Format, FormatReader, Header, Input, Trace, TraceOptions, TraceWriter, named,
};
use crate::{EventCount, RECORDING, TapError, TapEvent};

/// The result of a conversion.
#[derive(Debug)]
pub struct Converted {
    /// Rows of the trace: requests and responses, or those of another stream.
    pub rows: u64,
    /// The reader's counts.
    pub counts: Vec<EventCount>,
    /// The first bad records, as text.
    pub messages: Vec<String>,
    /// What the written format cannot represent.
    pub remarks: Vec<String>,
}

/// Reads the trace `from` and writes it to `to` in `format`, or in the format implied by the name
/// of `to`. `progress` is called with the progress from 0 to 1 and returns whether to continue; if
/// not, the rows read so far are written and the file is complete.
///
/// # Errors
/// If a file cannot be read or written, or a format is unknown.
pub fn convert(
    from: Input,
    options: &TraceOptions,
    to: &Path,
    format: Option<&str>,
    progress: &mut dyn FnMut(f64) -> bool,
) -> Result<Converted, TapError> {
    let written = for_writing(to, format)?;
    let source = from.path().display().to_string();
    let trace = Trace::open(from, options)?;
    let provenance = trace.provenance();
    let header = Header {
        source,
        host: provenance.host,
        kernel: provenance.kernel,
        stream: trace.content(),
        responses_assumed: trace.responses_assumed(),
        paired: trace.capabilities().pairs(&IO_PAIRS).is_ok(),
    };
    let mut tap = trace.start(&[Demand::whole(&header.stream)])?;
    let mut writer = written.writer(to, &header)?;
    let mut rows = 0;
    loop {
        let events = match tap.next(Duration::MAX) {
            Err(TapError::Cancelled { .. }) => break,
            events => events?,
        };
        match events {
            TapEvent::Rows { batch, .. } => {
                rows += batch.len() as u64;
                writer.write(&batch)?;
                if !progress(tap.progress().unwrap_or(0.0)) {
                    break;
                }
            }
            // No fold was requested.
            TapEvent::Folded { .. } | TapEvent::Heartbeat(_) | TapEvent::Quiet => {}
            TapEvent::End => break,
        }
    }
    let counts = tap.counts();
    writer.count(counts.clone());
    Ok(Converted {
        rows,
        counts,
        messages: tap.messages(),
        remarks: writer.finish()?,
    })
}

/// The format of a file written to `path`: the one called `format`, or the one with the file's
/// extension.
///
/// # Errors
/// [`TapError::NoSuchFormat`].
pub fn for_writing(path: &Path, format: Option<&str>) -> Result<&'static Format, TapError> {
    let file_name = path
        .file_name()
        .and_then(|n| n.to_str())
        .unwrap_or_default();
    let parts: Vec<&str> = file_name.split('.').skip(1).collect();
    let by_extension = |f: &&Format| f.extensions.iter().any(|e| parts.contains(e));
    let writable = || FORMATS.iter().filter(|f| f.create.is_some());
    let refused = |name: String, reason| TapError::NoSuchFormat {
        name,
        reason,
        known: writable().map(|f| f.name).collect::<Vec<_>>().join(", "),
    };
    match format {
        Some(name) => {
            let format = named(name)?;
            let reason = "this format can be read but not written";
            format
                .create
                .map(|_| format)
                .ok_or_else(|| refused(name.into(), reason))
        }
        None => writable().find(by_extension).ok_or_else(|| {
            refused(
                path.display().to_string(),
                "the file's extension names no format that can be written; use --to-format",
            )
        }),
    }
}

impl Format {
    /// Creates a file in this format.
    ///
    /// # Errors
    /// If the file cannot be written, or this format does not support writing.
    pub fn writer(&self, path: &Path, header: &Header) -> Result<Box<dyn TraceWriter>, TapError> {
        let holds_any_stream = matches!(self.read, FormatReader::Recording);
        if header.stream.name != RECORDING && !holds_any_stream {
            return Err(TapError::Unavailable {
                what: format!(
                    "{} holds block I/O, and no `{}`",
                    self.name, header.stream.name
                ),
                remedy: "convert it to a recording, as trace.parquet".into(),
            });
        }
        match self.create {
            Some(create) => create(path, header),
            None => for_writing(path, Some(self.name)).and_then(|f| f.writer(path, header)),
        }
    }
}
