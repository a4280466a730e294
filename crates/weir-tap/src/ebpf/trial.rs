//! [`trial`]: reads each disk a few times directly, and checks that the kernel and the live tap
//! count the reads.
//!
//! Idle hosts have no I/O to observe, so the trial generates its own. It only reads. Its reads are
//! identified by their sectors, so that other I/O at the same time does not matter.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use weir_model::event::io_schema;
use weir_model::{EventKind, Op, SECTOR_BYTES, Symbol, Value};

use super::completeness::finished;
use super::devices::{Device, read_text};
use super::tap::BlockTap;
use crate::{EventCount, Tap, TapError, TapEvent};

/// Number of reads of each disk, one after the other.
const READS: i64 = 16;

/// Bytes of a read, unless the disk has larger blocks.
const READ_BYTES_MIN: i64 = 4096;

/// Largest block of a disk that is read.
const READ_BYTES_MAX: i64 = 64 << 10;

/// Maximum number of disks that are read; a host may have thousands.
const DISKS_MAX: usize = 64;

/// Timeout of all reads. A read that takes longer is reported as not done.
const READS_MAX: Duration = Duration::from_secs(5);

/// Timeout of the tap's reports after that.
const REPORT_MAX: Duration = Duration::from_secs(3);

/// Duration for which the host's I/O is observed if no disk can be read.
const WATCH: Duration = Duration::from_millis(300);

/// The outcome of the trial.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The disks that were read.
    pub disks: Vec<Read>,
    /// The disks that were not read, with the reasons.
    pub untried: Vec<String>,
    /// Requests of the whole host that the tap received meanwhile.
    pub seen: i64,
    /// Requests that only the kernel's counters include.
    pub unseen: i64,
}

/// The reads of one disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// The disk.
    pub path: String,
    /// Reads that were done.
    pub made: i64,
    /// Requests that the kernel counted meanwhile, including those of other processes.
    pub counted: i64,
    /// The number of reports of these reads by the tap.
    pub reported: i64,
}

impl Read {
    /// True if each read was reported once.
    pub fn is_complete(&self) -> bool {
        self.reported == self.made
    }
}

/// The locations of a disk's reads.
struct Target {
    path: Symbol,
    number: u32,
    bytes: i64,
    /// First sectors, each once.
    sectors: Vec<i64>,
}

/// Reads from each of `disks` while `tap` is attached, which has to deliver every request with the
/// columns of [`io_schema`].
///
/// # Errors
/// As [`Tap::next`].
pub fn trial(tap: &mut BlockTap, disks: &[Device]) -> Result<Outcome, TapError> {
    let mut outcome = Outcome::default();
    let (first, others) = disks.split_at(disks.len().min(DISKS_MAX));
    let mut targets = Vec::new();
    for disk in first {
        match Target::of(disk) {
            Ok(target) => targets.push(target),
            Err(why) => outcome.untried.push(format!("{}: {why}", disk.path)),
        }
    }
    let too_many = others.iter().map(|d| format!("{}: too many disks", d.path));
    outcome.untried.extend(too_many);
    let before = counters();
    let (results, reported) = watch(tap, &targets)?;
    let after = counters();
    for (target, result) in targets.iter().zip(results) {
        let path = target.path.as_str();
        let why = match result {
            None => format!("no answer within {READS_MAX:?}"),
            Some(Err(error)) => error.to_string(),
            Some(Ok(made)) => {
                let of = |counts: &HashMap<u32, i64>| counts.get(&target.number).copied();
                outcome.disks.push(Read {
                    path: path.to_owned(),
                    made,
                    counted: of(&after).unwrap_or(0) - of(&before).unwrap_or(0),
                    reported: target.reported(&reported),
                });
                continue;
            }
        };
        outcome.untried.push(format!("{path}: {why}"));
    }
    let counts = tap.counts();
    let sum = |name: &str| {
        let of = |c: &&EventCount| c.counter == name;
        counts.iter().filter(of).map(|c| c.total).sum::<i64>()
    };
    (outcome.seen, outcome.unseen) = (sum("seen"), sum("unseen"));
    Ok(outcome)
}

/// The outcome of each target's reads; `None` for those that did not finish in time.
type Results = Vec<Option<io::Result<i64>>>;

/// Finished reads, by disk, first sector and number of sectors.
type Reported = HashMap<(Symbol, i64, i64), i64>;

/// Starts the reads and collects the reports of `tap`, until it has reported all reads or the
/// timeout has passed.
fn watch(tap: &mut BlockTap, targets: &[Target]) -> Result<(Results, Reported), TapError> {
    let done = start(targets);
    let mut results: Results = targets.iter().map(|_| None).collect();
    let mut reported = Reported::new();
    let until = Instant::now() + READS_MAX;
    while results.iter().any(Option::is_none) && Instant::now() < until {
        collect(tap, &mut reported)?;
        for (target, result) in done.try_iter() {
            results[target] = Some(result);
        }
    }
    let is_reported = |(target, result): (&Target, &Option<io::Result<i64>>), all: &Reported| {
        let made = result.as_ref().and_then(|r| r.as_ref().ok());
        made.is_none_or(|made| target.reported(all) >= *made)
    };
    let timeout = match targets.is_empty() {
        true => WATCH,
        false => REPORT_MAX,
    };
    let until = Instant::now() + timeout;
    while Instant::now() < until {
        let mut pairs = targets.iter().zip(&results);
        if !targets.is_empty() && pairs.all(|pair| is_reported(pair, &reported)) {
            break;
        }
        collect(tap, &mut reported)?;
    }
    Ok((results, reported))
}

/// Adds the next finished reads that the tap reports.
fn collect(tap: &mut BlockTap, reported: &mut Reported) -> Result<(), TapError> {
    let TapEvent::Rows { batch, .. } = tap.next(Duration::from_millis(20))? else {
        return Ok(());
    };
    let schema = io_schema();
    let column = |name: &str| &batch.columns[schema.index(name)];
    let [kind, op, pdisk] = ["type", "op", "pdisk"].map(column);
    let [sector, sectors] = ["sector", "sectors"].map(column);
    let request = Value::Text(EventKind::Request.symbol());
    let read = Value::Text(Op::Read.symbol());
    for row in 0..batch.len() {
        if kind.value(row) == request || op.value(row) != read {
            continue;
        }
        let key = (pdisk.value(row), sector.value(row), sectors.value(row));
        if let (Value::Text(disk), Value::Int(sector), Value::Int(sectors)) = key {
            *reported.entry((disk, sector, sectors)).or_default() += 1;
        }
    }
    Ok(())
}

/// The kernel's counts of finished requests, by device.
fn counters() -> HashMap<u32, i64> {
    let text = fs::read_to_string("/proc/diskstats").unwrap_or_default();
    let counts = finished(&text).into_iter();
    counts
        .map(|(device, counts)| (device, counts.ios))
        .collect()
}

impl Target {
    /// Reads distributed over a disk, or the reason why it is not read.
    fn of(disk: &Device) -> Result<Target, &'static str> {
        let number = |file: &str| -> Option<i64> {
            read_text(&Path::new(&disk.sysfs).join(file))?.parse().ok()
        };
        if number("removable") == Some(1) {
            return Err("removable");
        }
        let block = number("queue/logical_block_size").unwrap_or(512);
        let bytes = block.max(READ_BYTES_MIN);
        if bytes > READ_BYTES_MAX {
            return Err("its block size is too large");
        }
        let blocks = number("size").unwrap_or(0) * SECTOR_BYTES / bytes;
        let reads = READS.min(blocks);
        if reads == 0 {
            return Err("it is smaller than a test read");
        }
        // At the centers of equal parts: other programs read the first sectors of a disk.
        let sector = |i: i64| (2 * i + 1) * blocks / (2 * reads) * bytes / SECTOR_BYTES;
        Ok(Target {
            path: disk.path,
            number: disk.number,
            bytes,
            sectors: (0..reads).map(sector).collect(),
        })
    }

    /// The number of reports of its reads.
    fn reported(&self, reported: &Reported) -> i64 {
        let sectors = self.bytes / SECTOR_BYTES;
        let of = |sector: &i64| reported.get(&(self.path, *sector, sectors));
        self.sectors.iter().filter_map(of).sum()
    }
}

/// Starts the reads of all disks in parallel, so that one that does not respond delays none. The
/// result of each disk is sent through the channel.
fn start(targets: &[Target]) -> Receiver<(usize, io::Result<i64>)> {
    let (sender, receiver) = channel();
    for (number, target) in targets.iter().enumerate() {
        let (path, bytes) = (target.path.as_str(), target.bytes as usize);
        let sectors = target.sectors.clone();
        let own = sender.clone();
        let reads = move || {
            // The trial may have ended.
            let _ = own.send((number, read(path, bytes, &sectors)));
        };
        if let Err(error) = thread::Builder::new().spawn(reads) {
            // The receiver is alive in this function.
            let _ = sender.send((number, Err(error)));
        }
    }
    receiver
}

/// Reads directly, bypassing the page cache; returns the number of reads done.
fn read(path: &str, bytes: usize, sectors: &[i64]) -> io::Result<i64> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT | libc::O_NONBLOCK)
        .open(path)?;
    // O_DIRECT requires an address that is a multiple of the block size.
    let mut memory = vec![0; 2 * bytes];
    let start = memory.as_ptr().align_offset(bytes);
    let buffer = &mut memory[start..start + bytes];
    for sector in sectors {
        file.read_exact_at(buffer, (sector * SECTOR_BYTES) as u64)?;
    }
    Ok(sectors.len() as i64)
}
