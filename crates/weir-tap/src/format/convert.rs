//! [`convert`]: converts a trace to another format.

use std::panic::resume_unwind;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use weir_model::event::IO_PAIRS;
use weir_model::{Batch, Demand};

use super::{
    FORMATS, Format, FormatReader, Header, Input, Trace, TraceOptions, TraceWriter, named,
};
use crate::{EventCount, RECORDING, Tap, TapError, TapEvent};

/// The number of batches that were read and wait to be written.
const BATCHES_MAX: usize = 4;

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
    let (read, written) = thread::scope(|scope| {
        let (batches, received) = sync_channel::<Batch>(BATCHES_MAX);
        let write = move || {
            for batch in received {
                writer.write(&batch)?;
            }
            Ok(writer)
        };
        let writing = thread::Builder::new().spawn_scoped(scope, write);
        let writing = writing.map_err(|error| TapError::File {
            path: to.to_owned(),
            error,
        })?;
        let read = read_all(&mut *tap, &batches, progress);
        drop(batches);
        let written = writing.join();
        Ok::<_, TapError>((read, written.unwrap_or_else(|panic| resume_unwind(panic))))
    })?;
    // A writer that failed is the reason why no more was read.
    let mut writer: Box<dyn TraceWriter> = written?;
    let rows = read?;
    let counts = tap.counts();
    writer.count(counts.clone());
    Ok(Converted {
        rows,
        counts,
        messages: tap.messages(),
        remarks: writer.finish()?,
    })
}

/// Reads all rows, up to the end of the trace, or until they are not received any more or
/// `progress` ends it; returns their number.
fn read_all(
    tap: &mut dyn Tap,
    batches: &SyncSender<Batch>,
    progress: &mut dyn FnMut(f64) -> bool,
) -> Result<u64, TapError> {
    let mut rows = 0;
    loop {
        let events = match tap.next(Duration::MAX) {
            Err(TapError::Cancelled { .. }) => return Ok(rows),
            events => events?,
        };
        match events {
            TapEvent::Rows { batch, .. } => {
                rows += batch.len() as u64;
                let is_received = batches.send(batch).is_ok();
                if !is_received || !progress(tap.progress().unwrap_or(0.0)) {
                    return Ok(rows);
                }
            }
            // No fold was requested.
            TapEvent::Folded { .. } | TapEvent::Heartbeat(_) | TapEvent::Quiet => {}
            TapEvent::End => return Ok(rows),
        }
    }
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
