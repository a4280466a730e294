//! [`read`]: the contents of a recording or trace, for `weir info`: its origin, its interval, its
//! operations and disks.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};
use weir_model::{
    Batch, Declaration, Demand, EventKind, NANOS_PER_SECOND, Nanos, Op, Predicate, Symbol, Unit,
};

use weir_sink::number::scaled;
use weir_sink::text::{aligned, shown};
use weir_sink::time::{readable, timestamp};
use weir_tap::format::{FileEnd, Input, Provenance, Trace, TraceOptions};
use weir_tap::{EventCount, RECORDING, TapError, TapEvent};

use crate::workload::rows::{int, text};

/// Maximum number of disks that are counted one by one.
const DISKS_MAX: usize = 1 << 14;

/// The columns that identify a disk, in the order of [`DiskNames`].
const NAMES: [&str; 4] = ["host", "vm", "vdisk", "pdisk"];

/// A disk: host, VM, virtual disk, physical disk.
type DiskNames = [Option<Symbol>; NAMES.len()];

/// The contents of a file.
#[derive(Debug)]
pub struct FileContents {
    /// Its path.
    pub file: String,
    /// Its format.
    pub format: &'static str,
    /// What it reports about its origin.
    pub provenance: Provenance,
    /// The stream or relation with all of its rows.
    pub stream: Declaration,
    /// The streams that queries can read from it.
    pub streams: Vec<String>,
    /// True if it does not record when requests finished.
    pub responses_assumed: bool,
    /// Its rows.
    pub rows: u64,
    /// The instants of its first and last row.
    pub interval: Option<(Nanos, Nanos)>,
    /// Requests that were issued.
    pub issued: u64,
    /// The finished requests of each operation; for other streams than block I/O, nothing.
    pub ops: [RequestTotals; Op::ALL.len()],
    /// The finished requests of each disk, by name.
    pub disks: Vec<(DiskNames, [RequestTotals; Op::ALL.len()])>,
    /// Finished requests of further disks.
    pub of_other_disks: u64,
    /// The counts of the recorder and of the reader.
    pub counts: Vec<EventCount>,
    /// The first records that cannot be read, as text.
    pub messages: Vec<String>,
}

/// Finished requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTotals {
    /// Their number, including those that failed.
    pub requests: u64,
    /// Those that failed.
    pub failed: u64,
    /// Their size.
    pub bytes: u64,
}

impl RequestTotals {
    fn add(&mut self, bytes: i64, is_failed: bool) {
        self.requests += 1;
        self.failed += u64::from(is_failed);
        self.bytes = self.bytes.saturating_add(bytes.max(0) as u64);
    }

    fn sum(of: &[RequestTotals]) -> RequestTotals {
        of.iter()
            .fold(RequestTotals::default(), |a, b| RequestTotals {
                requests: a.requests + b.requests,
                failed: a.failed + b.failed,
                bytes: a.bytes.saturating_add(b.bytes),
            })
    }
}

/// The positions of the columns that are read.
struct Positions {
    kind: Option<usize>,
    op: Option<usize>,
    bytes: Option<usize>,
    names: [Option<usize>; NAMES.len()],
}

/// Reads a file to its end. `progress` is called with the progress from 0 to 1 and returns whether
/// to continue.
///
/// # Errors
/// If the file cannot be read, or its format is unknown.
pub fn read(
    input: Input,
    options: &TraceOptions,
    progress: &mut dyn FnMut(f64) -> bool,
) -> Result<FileContents, TapError> {
    let file = input.path().display().to_string();
    let trace = Trace::open(input, options)?;
    let stream = trace.content();
    let streams = trace.capabilities().streams;
    let streams = streams.into_iter().map(|stream| stream.declaration.name);
    // Requests and responses are read as `IO` and `IOstream`.
    let streams = streams.filter(|name| name != RECORDING);
    let mut contents = FileContents {
        file,
        format: trace.format().name,
        provenance: trace.provenance(),
        streams: streams.collect(),
        responses_assumed: trace.responses_assumed(),
        rows: 0,
        interval: None,
        issued: 0,
        ops: Default::default(),
        disks: Vec::new(),
        of_other_disks: 0,
        counts: Vec::new(),
        messages: Vec::new(),
        stream,
    };
    let fields = &contents.stream.schema.fields;
    let is_of_requests = contents.is_of_requests();
    let position = |name: &str| {
        let found = fields.iter().position(|field| field.name == name);
        found.filter(|_| is_of_requests)
    };
    let positions = Positions {
        kind: position("type"),
        op: position("op"),
        bytes: position("bytes"),
        names: NAMES.map(position),
    };
    let Positions {
        kind,
        op,
        bytes,
        names,
    } = &positions;
    let columns = [kind, op, bytes].into_iter().chain(names);
    let mut columns: Vec<usize> = columns.copied().flatten().collect();
    columns.sort_unstable();
    let demand = Demand {
        stream: contents.stream.name.clone(),
        columns,
        predicate: Predicate::all(),
        fold: None,
    };
    let mut tap = trace.start(&[demand])?;
    let mut disks = HashMap::new();
    loop {
        match tap.next(Duration::MAX) {
            Ok(TapEvent::Rows { batch, .. }) => {
                contents.add(&batch, &positions, &mut disks);
                if !progress(tap.progress().unwrap_or(0.0)) {
                    break;
                }
            }
            Ok(TapEvent::End) | Err(TapError::Cancelled { .. }) => break,
            // No fold was requested.
            Ok(TapEvent::Folded { .. } | TapEvent::Heartbeat(_) | TapEvent::Quiet) => {}
            Err(error) => return Err(error),
        }
    }
    contents.disks = disks.into_iter().collect();
    let texts = |names: &DiskNames| names.map(|name| name.map(Symbol::as_str));
    contents.disks.sort_by_key(|(names, _)| texts(names));
    contents.counts = tap.counts();
    contents.messages = tap.messages();
    Ok(contents)
}

impl FileContents {
    fn is_of_requests(&self) -> bool {
        self.stream.name == RECORDING
    }

    fn add(
        &mut self,
        batch: &Batch,
        positions: &Positions,
        disks: &mut HashMap<DiskNames, [RequestTotals; Op::ALL.len()]>,
    ) {
        self.rows += batch.len() as u64;
        let (first, last) = (batch.ts.first(), batch.ts.last());
        if let (Some(&first), Some(&last)) = (first, last) {
            let (begin, end) = self.interval.unwrap_or((first, last));
            self.interval = Some((begin.min(first), end.max(last)));
        }
        let column = |at: Option<usize>| at.map(|at| &batch.columns[at]);
        let (Some(kinds), Some(ops)) = (column(positions.kind), column(positions.op)) else {
            return;
        };
        let bytes = column(positions.bytes);
        let names = positions.names.map(column);
        for row in 0..batch.len() {
            let kind = text(kinds, row);
            if kind == Some(EventKind::Request.symbol()) {
                self.issued += 1;
                continue;
            }
            let op = text(ops, row);
            let Some(op) = Op::ALL.iter().position(|known| Some(known.symbol()) == op) else {
                continue;
            };
            let bytes = bytes.and_then(|column| int(column, row)).unwrap_or(0);
            let is_failed = kind != Some(EventKind::Response.symbol());
            self.ops[op].add(bytes, is_failed);
            let names = names.map(|column| column.and_then(|column| text(column, row)));
            match disks.len() < DISKS_MAX || disks.contains_key(&names) {
                true => disks.entry(names).or_default()[op].add(bytes, is_failed),
                false => self.of_other_disks += 1,
            }
        }
    }

    /// The contents as lines; `losses` are the lines of the closing summary.
    pub fn text(&self, losses: &[String]) -> String {
        let known = |text: &Option<String>| {
            let text = text.as_deref().map(|text| shown(text).into_owned());
            text.unwrap_or_else(|| "unknown".into())
        };
        let mut rows = vec![
            ["file".to_owned(), shown(&self.file).into_owned()],
            ["format".into(), self.format_text()],
            ["streams".into(), self.streams.join(", ")],
            ["source".into(), known(&self.provenance.source)],
            ["host".into(), known(&self.provenance.host)],
            ["kernel".into(), known(&self.provenance.kernel)],
        ];
        if let Some((first, last)) = self.interval {
            let duration = scaled((last - first) as f64, Unit::Nanoseconds).unwrap_or_default();
            rows.push(["begin".into(), format!("{} UTC", readable(first))]);
            rows.push(["end".into(), format!("{} UTC", readable(last))]);
            rows.push(["duration".into(), duration]);
        }
        rows.push(["rows".into(), self.rows.to_string()]);
        if self.is_of_requests() {
            rows.push(["requests".into(), self.requests_text()]);
        }
        rows.push(["ended".into(), self.end_text()]);
        let rows = rows.into_iter().map(|row| row.to_vec());
        let titles = std::iter::once("events").chain(std::iter::repeat(""));
        let losses = losses.iter().zip(titles);
        let losses = losses.map(|(line, title)| vec![title.to_owned(), line.clone()]);
        let mut text = aligned(&rows.chain(losses).collect::<Vec<_>>());
        if RequestTotals::sum(&self.ops).requests > 0 {
            text += &format!("\n{}\n{}", self.ops_text(), self.disks_text());
        }
        text
    }

    fn format_text(&self) -> String {
        match &self.provenance.writer {
            Some(writer) => format!("{}, written by {}", self.format, shown(writer)),
            None => self.format.to_owned(),
        }
    }

    fn requests_text(&self) -> String {
        if self.responses_assumed {
            return format!("{} issued; the file has no completions", self.issued);
        }
        let RequestTotals {
            requests, failed, ..
        } = RequestTotals::sum(&self.ops);
        format!(
            "{} issued, {requests} completed, {failed} of them failed",
            self.issued
        )
    }

    fn end_text(&self) -> String {
        match self.provenance.end {
            FileEnd::Closed => "closed by its writer".into(),
            FileEnd::Interrupted { bytes_lost: 0 } => {
                "interrupted: its writer was killed or is still running".into()
            }
            FileEnd::Interrupted { bytes_lost } => format!(
                "interrupted: its writer was killed or is still running, or the file was \
                 truncated; {bytes_lost} bytes of an incomplete row group are not readable"
            ),
            FileEnd::ConvertedInterrupted => {
                "closed; converted from a recording that was interrupted".into()
            }
            FileEnd::Unmarked => "the file does not record whether it is complete".into(),
        }
    }

    fn ops_text(&self) -> String {
        let header = ["OP", "REQUESTS", "FAILED", "BYTES", "MEAN SIZE"].map(str::to_owned);
        let used = Op::ALL.iter().zip(&self.ops);
        let used = used.filter(|(_, totals)| totals.requests > 0);
        let rows = used.map(|(op, totals)| {
            let mean = totals.bytes as f64 / totals.requests as f64;
            vec![
                op.name().to_owned(),
                totals.requests.to_string(),
                totals.failed.to_string(),
                size(totals.bytes as f64),
                size(mean),
            ]
        });
        aligned(
            &[header.to_vec()]
                .into_iter()
                .chain(rows)
                .collect::<Vec<_>>(),
        )
    }

    fn disks_text(&self) -> String {
        let is_used = |at: usize| self.disks.iter().any(|(names, _)| names[at].is_some());
        let used: Vec<usize> = (0..NAMES.len()).filter(|at| is_used(*at)).collect();
        let names = used.iter().map(|at| NAMES[*at].to_uppercase());
        let figures = ["REQUESTS", "READS", "WRITES", "FAILED", "BYTES"];
        let mut rows: Vec<Vec<String>> = vec![names.chain(figures.map(str::to_owned)).collect()];
        for (names, ops) in &self.disks {
            let name = |at: &usize| {
                let name = names[*at].map(|name| shown(name.as_str()).into_owned());
                name.unwrap_or_else(|| "-".into())
            };
            let totals = RequestTotals::sum(ops);
            let of = |op: Op| ops[op as usize].requests;
            let counts = [totals.requests, of(Op::Read), of(Op::Write), totals.failed];
            let figures = counts.map(|count| count.to_string()).into_iter();
            let figures = figures.chain([size(totals.bytes as f64)]);
            rows.push(used.iter().map(name).chain(figures).collect());
        }
        let mut text = aligned(&rows);
        if self.of_other_disks > 0 {
            text += &format!("{} requests of further disks\n", self.of_other_disks);
        }
        text
    }

    /// The contents as one JSON object.
    pub fn json(&self) -> Value {
        let totals = |totals: &RequestTotals| json!({ "requests": totals.requests, "failed": totals.failed, "bytes": totals.bytes });
        let ops = |of: &[RequestTotals]| -> Value {
            let used = Op::ALL.iter().zip(of).filter(|(_, t)| t.requests > 0);
            used.map(|(op, t)| (op.as_str().to_owned(), totals(t)))
                .collect()
        };
        let disks = self.disks.iter().map(|(names, of)| {
            let name = |at: usize| names[at].map(Symbol::as_str);
            let [host, vm, vdisk, pdisk] = [0, 1, 2, 3].map(name);
            let totals = totals(&RequestTotals::sum(of));
            json!({ "host": host, "vm": vm, "vdisk": vdisk, "pdisk": pdisk, "totals": totals, "ops": ops(of) })
        });
        let counts = self
            .counts
            .iter()
            .filter(|count| count.total > 0 && count.counter != "events_in");
        let counts = counts.map(|count| {
            let device = count.device.map(Symbol::as_str);
            json!({ "counter": count.counter, "cause": count.cause, "device": device, "total": count.total })
        });
        let (begin, end) = self.interval.unzip();
        let Provenance {
            source,
            host,
            kernel,
            writer,
            end: file_end,
        } = &self.provenance;
        json!({
            "file": self.file,
            "format": self.format,
            "writer": writer,
            "source": source,
            "host": host,
            "kernel": kernel,
            "streams": self.streams,
            "begin": begin.map(timestamp),
            "end": end.map(timestamp),
            "duration_s": self.interval.map(|(a, b)| (b - a) as f64 / NANOS_PER_SECOND as f64),
            "rows": self.rows,
            "issued": self.issued,
            "responses_known": !self.responses_assumed,
            "ops": ops(&self.ops),
            "disks": disks.collect::<Vec<_>>(),
            "ended": file_end.name(),
            "counts": counts.collect::<Vec<_>>(),
        })
    }
}

fn size(bytes: f64) -> String {
    scaled(bytes, Unit::Bytes).unwrap_or_default()
}
