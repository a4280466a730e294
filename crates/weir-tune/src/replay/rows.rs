//! The requests of a recording or of a live disk, as rows of a process `weir query`.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use weir_model::{Nanos, Op};
use weir_runtime::failure::Failure;
use weir_runtime::question::quoted;

use crate::measure::{self, Interrupted, PROGRAM, instant_ns};

/// The largest number of requests of a recording that are kept in memory, 48 bytes each.
pub const REQUESTS_MAX: usize = 5_000_000;

/// The disks of a recording that an error names.
const DISKS_NAMED_MAX: usize = 12;

/// A request of a recording, or one that the tap has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenRequest {
    /// When it was inserted, in nanoseconds since the Unix epoch.
    pub insert_ns: Nanos,
    /// When it was complete; `None` if the trace has no responses.
    pub end_ns: Option<Nanos>,
    /// The operation.
    pub op: Op,
    /// Its first sector; 0 for a flush.
    pub sector: u64,
    /// Its length in sectors; 0 for a flush.
    pub sectors: u64,
}

/// Which requests of a recording are read.
#[derive(Clone, Debug)]
pub struct RecordingChoice {
    /// The file.
    pub path: String,
    /// Only those of this VM.
    pub vm: Option<String>,
    /// Only those of this disk, of the VM or of the host.
    pub disk: Option<String>,
    /// Only the first part of the recording.
    pub span: Option<Duration>,
}

/// A row: a request, and the disk with the VM as text.
type Row = (SeenRequest, String);

/// The columns that [`parse`] reads, after the instant. Names, which may contain commas, are last.
const COLUMNS: &str = "op, sector, sectors, coalesce(latency, service), pdisk, vdisk, vm";

/// Reads the requests of a recording in the order of their insertion.
///
/// # Errors
/// When it cannot be read, has no such requests or too many, or has several disks.
pub fn recorded(choice: &RecordingChoice) -> Result<Vec<SeenRequest>, Failure> {
    let mut conditions = Vec::new();
    if let Some(disk) = &choice.disk {
        let disk = quoted(disk);
        conditions.push(format!("(pdisk = {disk} or vdisk = {disk})"));
    }
    if let Some(vm) = &choice.vm {
        conditions.push(format!("vm = {}", quoted(vm)));
    }
    let condition = match conditions.is_empty() {
        true => String::new(),
        false => format!(" where {}", conditions.join(" and ")),
    };
    let mut command = Command::new(PROGRAM);
    command.arg0("weir").arg("query").process_group(0);
    command.args(["--from", &choice.path, "--format", "csv"]);
    if let Some(span) = choice.span {
        command.args(["--for", &format!("{}ms", span.as_millis().max(1))]);
    }
    command
        .arg("--")
        .arg(format!("select {COLUMNS} from IO{condition}"));
    command.stdin(Stdio::inherit()).stdout(Stdio::piped());
    command.stderr(Stdio::piped());
    let mut child = command.spawn().map_err(measure::started)?;
    let errors = measure::errors(&mut child);
    let output = child.stdout.take().expect("it is a pipe");
    let read = collect(&choice.path, output);
    if read.is_err() {
        // It may have ended already.
        let _ = child.kill();
    }
    let status = child.wait().map_err(measure::started)?;
    let mut requests = read?;
    if !status.success() {
        let text = errors.recv_timeout(Duration::from_secs(1));
        return Err(measure::ended_of(
            "reading the recording",
            &text.unwrap_or_default(),
        ));
    }
    if requests.is_empty() {
        return Err(Failure::world(format_args!(
            "{}: no requests{}",
            choice.path,
            match condition.is_empty() {
                true => "",
                false => " of that VM and disk; `weir info` lists what the recording has",
            }
        )));
    }
    requests.sort_by_key(|request| request.insert_ns);
    Ok(requests)
}

/// All rows, which are of one disk.
fn collect(path: &str, output: ChildStdout) -> Result<Vec<SeenRequest>, Failure> {
    let mut requests = Vec::new();
    let mut disks = BTreeSet::new();
    let mut last = String::new();
    for line in BufReader::new(output).lines().skip(1) {
        let line = line.map_err(measure::started)?;
        let Some((request, disk)) = parse(&line) else {
            let reason = format_args!("{path}: a request cannot be read: {line}");
            return Err(Failure::world(reason));
        };
        if disk != last {
            disks.insert(disk.clone());
            last = disk;
        }
        if disks.len() > DISKS_NAMED_MAX {
            break;
        }
        requests.push(request);
        if requests.len() > REQUESTS_MAX {
            return Err(Failure::world(format_args!(
                "{path}: more than {REQUESTS_MAX} requests; shorten it with --replay-for"
            )));
        }
    }
    match disks.len() {
        0 | 1 => Ok(requests),
        _ => Err(Failure::words(format_args!(
            "--replay {path}: the requests are of several disks (device, disk of the VM, VM): {}; \
             select one with -i DISK or -w VM",
            disks.into_iter().collect::<Vec<_>>().join("; ")
        ))),
    }
}

/// A line of CSV with the instant and [`COLUMNS`].
fn parse(line: &str) -> Option<Row> {
    let mut fields = line.splitn(6, ',');
    let end_ns = instant_ns(fields.next()?)?;
    let op = Op::from_letter(fields.next()?)?;
    let number = |text: &str| match text {
        "" => Some(0),
        text => text.parse::<u64>().ok(),
    };
    let sector = number(fields.next()?)?;
    let sectors = number(fields.next()?)?;
    let latency = fields.next()?;
    let disk = fields.next()?.to_owned();
    let (insert_ns, end_ns) = match latency {
        "" => (end_ns, None),
        text => (end_ns - text.parse::<Nanos>().ok()?, Some(end_ns)),
    };
    let request = SeenRequest {
        insert_ns,
        end_ns,
        op,
        sector,
        sectors,
    };
    Some((request, disk))
}

/// The requests that a disk receives, as weir's tap sees them. The process ends when it is dropped.
#[derive(Debug)]
pub struct LiveRows {
    child: Interrupted,
    rows: Receiver<SeenRequest>,
    errors: Receiver<String>,
}

/// Capacity of the queue of rows; the process waits when it is full.
const ROWS_QUEUED_MAX: usize = 1 << 16;

impl LiveRows {
    /// Observes a disk for at most `span`.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start(device: &str, span: Duration) -> Result<LiveRows, Failure> {
        let target = measure::MeasuredDisk {
            device: device.to_owned(),
            vms: Vec::new(),
        };
        let mut command = measure::weir("query", &target, span);
        command.args(["--format", "csv", "--"]);
        command.arg(format!(
            "select {COLUMNS} from IO where pdisk = {}",
            quoted(device)
        ));
        let mut child: Child = command.spawn().map_err(measure::started)?;
        let errors = measure::errors(&mut child);
        let output = child.stdout.take().expect("it is a pipe");
        let (sender, rows) = sync_channel(ROWS_QUEUED_MAX);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some((request, _)) = parse(&line)
                    && sender.send(request).is_err()
                {
                    return;
                }
            }
        });
        Ok(LiveRows {
            child: Interrupted(child),
            rows,
            errors,
        })
    }

    /// The next request, if one arrives within this time.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn next(&self, wait: Duration) -> Result<Option<SeenRequest>, Failure> {
        match self.rows.recv_timeout(wait) {
            Ok(request) => Ok(Some(request)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                let text = self.errors.recv_timeout(Duration::from_secs(1));
                Err(measure::ended(&text.unwrap_or_default()))
            }
        }
    }

    /// Ends the process; returns what it has printed on standard error, such as lost requests.
    pub fn stop(self) -> String {
        let LiveRows {
            child,
            rows,
            errors,
        } = self;
        // The thread that reads the output must not wait for space.
        drop(rows);
        drop(child);
        errors
            .recv_timeout(Duration::from_secs(1))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_a_request_with_its_disk() {
        let (request, disk) =
            parse("1970-01-01T00:00:01.000000500Z,w,8,16,400,/dev/sda,\"a,b\",db").unwrap();
        let expected = SeenRequest {
            insert_ns: 1_000_000_100,
            end_ns: Some(1_000_000_500),
            op: Op::Write,
            sector: 8,
            sectors: 16,
        };
        assert_eq!((request, &*disk), (expected, "/dev/sda,\"a,b\",db"));
        let (flush, _) = parse("1970-01-01T00:00:00.000000500Z,f,,,,,,").unwrap();
        assert_eq!(
            (flush.op, flush.sectors, flush.end_ns),
            (Op::Flush, 0, None)
        );
        assert_eq!(parse("1970-01-01T00:00:00.000000500Z,x,1,1,1,,,"), None);
        assert_eq!(parse("instant,op"), None);
    }
}
