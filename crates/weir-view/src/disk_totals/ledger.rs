//! [`Ledger`]: receives the rows of both queries and updates the totals, instant by instant.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weir_model::{Batch, Nanos, Value};
use weir_sink::{Sink, SinkError};

use super::questions::{Column, CounterSelection, Devices, EVERYTHING, SPAN_TIME_NS};
use super::totals::{DiskKey, OP_NAMES, OpTotals, Totals};
use super::whole::Whole;
use weir_runtime::run_loop::wall_clock;

/// Before the first request, queries emit no rows; the clock then determines the instant, with a
/// margin for rows that are not delivered yet.
const ROOM: Duration = Duration::from_secs(1);

/// The kernel's list of devices and partitions.
pub const SYSFS: &str = "/sys/class/block";

/// A reader of the totals.
pub trait LedgerReader: Send {
    /// The totals include everything up to instant `at`, and nothing later. Instants ascend.
    ///
    /// # Errors
    /// [`SinkError::Closed`] when it has ended, others when it fails.
    fn whole(&mut self, totals: &mut Totals, at: Nanos) -> Result<(), SinkError>;

    /// The end of the input; the last row was of instant `at`.
    ///
    /// # Errors
    /// As [`LedgerReader::whole`].
    fn finish(&mut self, totals: &mut Totals, at: Option<Nanos>) -> Result<(), SinkError>;
}

/// Received rows, the totals of complete instants, and their reader.
pub struct Ledger {
    live: bool,
    /// The length of a slice.
    slide_ns: Nanos,
    /// The upper limits of the buckets, ns.
    limits_ns: Vec<i64>,
    rows: VecDeque<Row>,
    /// The times of requests that are not in the totals yet: live in order of slices, otherwise of
    /// completion.
    spans: VecDeque<Span>,
    /// The position in `spans` of the last one of each disk; empty after each removal.
    last_spans: HashMap<DiskKey, usize>,
    devices: Devices,
    whole: Whole,
    totals: Arc<Mutex<Totals>>,
    reader: Box<dyn LedgerReader>,
    /// The latest instant of a row of counters.
    last: Option<Nanos>,
    /// The start of the observation: nothing is known about the time before.
    began: Nanos,
}

struct Row {
    at: Nanos,
    /// `None` is the row of the grand total.
    disk: Option<(DiskKey, usize)>,
    more: OpTotals,
}

/// The time from the first insertion to the last completion of requests that overlap.
struct Span {
    disk: DiskKey,
    from: Nanos,
    to: Nanos,
}

/// The input for the rows of one of the queries.
enum Inlet {
    Counters(Arc<Mutex<Ledger>>),
    Spans(Arc<Mutex<Ledger>>),
}

impl Ledger {
    /// The sinks of a ledger whose `totals` may have other readers: for the times of requests, and
    /// for the counters. They are flushed in this order, so that the times are available when the
    /// counters are printed.
    pub fn sinks(
        wanted: &CounterSelection,
        totals: Arc<Mutex<Totals>>,
        reader: Box<dyn LedgerReader>,
    ) -> [Box<dyn Sink>; 2] {
        let ledger = Arc::new(Mutex::new(Ledger {
            live: wanted.live,
            slide_ns: wanted.slide_ms as Nanos * 1_000_000,
            limits_ns: wanted.limits_ns.clone(),
            rows: VecDeque::new(),
            spans: VecDeque::new(),
            last_spans: HashMap::new(),
            devices: wanted.devices,
            whole: Whole::new(Path::new(SYSFS)),
            totals,
            reader,
            last: None,
            began: wall_clock(),
        }));
        [
            Box::new(Inlet::Spans(ledger.clone())),
            Box::new(Inlet::Counters(ledger)),
        ]
    }

    fn take_counters(&mut self, batch: &Batch) {
        let column = |c: Column| batch.columns.get(c as usize);
        let int = |c: Column, row: usize| match column(c).map(|c| c.value(row)) {
            Some(Value::Int(n)) => n,
            _ => 0,
        };
        for row in 0..batch.len() {
            let op = match batch.columns[Column::Op as usize].value(row) {
                Value::Text(op) => op.as_str(),
                other => unreachable!("an op is a text, not {other:?}"),
            };
            let number = OP_NAMES.iter().position(|(letter, _)| *letter == op);
            assert!(number.is_some() || op == EVERYTHING, "`{op}` is an op");
            let buckets = match column(Column::Buckets).map(|c| c.value(row)) {
                Some(Value::Tally(tally)) => self.buckets(&tally.0),
                _ => Vec::new(),
            };
            self.rows.push_back(Row {
                at: batch.ts[row],
                disk: number.map(|op| (disk(batch, row), op)),
                more: OpTotals {
                    ios: int(Column::Ios, row),
                    sectors: int(Column::Sectors, row),
                    merges: int(Column::Merges, row),
                    time_ns: int(Column::TimeNs, row),
                    wait_ns: int(Column::WaitNs, row),
                    service_ns: int(Column::ServiceNs, row),
                    errors: int(Column::Errors, row),
                    buckets,
                },
            });
        }
    }

    /// A histogram's counts by limit, NULL for values above the last, as a row of buckets.
    fn buckets(&self, tally: &[(Value, i64)]) -> Vec<u64> {
        let mut buckets = vec![0; self.limits_ns.len() + 1];
        for (limit, count) in tally {
            let bucket = match limit {
                Value::Int(limit) => self.limits_ns.partition_point(|l| l < limit),
                _ => self.limits_ns.len(),
            };
            buckets[bucket] += u64::try_from(*count).unwrap_or(0);
        }
        buckets
    }

    /// Takes the times of requests, in order of completion. Live, those of a disk that overlap in a
    /// slice are one span.
    fn take_spans(&mut self, batch: &Batch) {
        let slide_ns = self.slide_ns;
        // The slice of the last row: the times after its start, up to and including its end.
        let (mut start, mut end) = (0, 0);
        let ids = [Column::Vm, Column::Vdisk, Column::Device].map(|c| Ids::of(batch, c));
        // Consecutive rows are often of one disk: its key, and the position of its last span.
        let mut before: Option<(usize, DiskKey, Option<usize>)> = None;
        let times = &batch.columns[SPAN_TIME_NS];
        let weir_model::Column::Int(times_ns) = times else {
            return;
        };
        for (row, time_ns) in times_ns.values().iter().enumerate() {
            if times.is_null(row) {
                continue;
            }
            let to = batch.ts[row];
            let from = to - time_ns;
            let same = before.filter(|(other, ..)| ids.iter().all(|ids| ids.equal(row, *other)));
            let (_, disk, last) = same.unwrap_or_else(|| {
                let disk = disk(batch, row);
                (row, disk, self.last_spans.get(&disk).copied())
            });
            if self.live {
                if to <= start || to > end {
                    start = (to - 1).div_euclid(slide_ns) * slide_ns;
                    end = start + slide_ns;
                }
                let span = last.map(|at| &mut self.spans[at]);
                let overlaps = |last: &&mut Span| from <= last.to && last.to > start;
                if let Some(span) = span.filter(overlaps) {
                    (span.from, span.to) = (span.from.min(from), to);
                    before = Some((row, disk, last));
                    continue;
                }
                self.last_spans.insert(disk, self.spans.len());
            }
            before = Some((row, disk, self.live.then_some(self.spans.len())));
            self.spans.push_back(Span { disk, from, to });
        }
    }

    /// Adds the received rows to the totals. The instant is complete.
    fn settle(&mut self) -> Result<(), SinkError> {
        let totals = self.totals.clone();
        let mut totals = totals.lock().expect("no panic while held");
        while let Some(at) = self.rows.front().map(|row| row.at) {
            if !self.live {
                self.settle_spans(&mut totals, at - 1);
                self.reader.whole(&mut totals, at - 1)?;
            }
            let over = self.rows.partition_point(|row| row.at == at);
            for row in self.rows.drain(..over) {
                let Some((disk, op)) = row.disk else { continue };
                let (disk, partition) = places(&mut self.whole, self.devices, disk);
                if let Some(partition) = partition {
                    totals.add(partition, op, row.more.clone(), at);
                }
                totals.add(disk, op, row.more, at);
            }
            self.last = Some(at);
            if self.live {
                self.settle_spans(&mut totals, at);
                self.reader.whole(&mut totals, at)?;
            }
        }
        if self.live && self.last.is_none() {
            let at = wall_clock() - ROOM.as_nanos() as Nanos;
            // At the same boundaries as the following slices.
            let at = at - at.rem_euclid(self.slide_ns);
            if at >= self.began {
                self.reader.whole(&mut totals, at)?;
            }
        }
        Ok(())
    }

    fn settle_spans(&mut self, totals: &mut Totals, until: Nanos) {
        let over = self.spans.partition_point(|span| span.to <= until);
        let over: Vec<Span> = self.spans.drain(..over).collect();
        for spans in over.chunk_by(|span, next| span.disk == next.disk) {
            let (disk, partition) = places(&mut self.whole, self.devices, spans[0].disk);
            for disk in [Some(disk), partition].into_iter().flatten() {
                let totals = totals.at(disk, spans[spans.len() - 1].to);
                spans
                    .iter()
                    .for_each(|span| totals.busy.add(span.from, span.to));
            }
        }
        self.last_spans.clear();
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.settle()?;
        let totals = self.totals.clone();
        let mut totals = totals.lock().expect("no panic while held");
        if let (Some(last), false) = (self.last, self.live) {
            self.settle_spans(&mut totals, last);
        }
        self.reader.finish(&mut totals, self.last)
    }
}

/// The totals to which a row is added: the device, and the partition if partitions are requested
/// too.
fn places(whole: &mut Whole, devices: Devices, disk: DiskKey) -> (DiskKey, Option<DiskKey>) {
    let (Some(device), true) = (disk.device, devices != Devices::AsReported) else {
        return (disk, None);
    };
    let whole = DiskKey {
        device: Some(whole.of(device)),
        ..disk
    };
    let apart = whole != disk && devices == Devices::WholeAndPartitions;
    (whole, apart.then_some(disk))
}

/// The texts of a column by their ids, which are compared without the texts.
struct Ids<'a> {
    column: &'a weir_model::Column,
    /// Empty if all are NULL.
    ids: &'a [u32],
}

impl Ids<'_> {
    fn of(batch: &Batch, column: Column) -> Ids<'_> {
        let column = &batch.columns[column as usize];
        let ids: &[u32] = match column {
            weir_model::Column::Text(ids) => ids.values(),
            _ => &[],
        };
        Ids { column, ids }
    }

    fn equal(&self, row: usize, other: usize) -> bool {
        let null = |row| self.column.is_null(row);
        match (null(row), null(other)) {
            (false, false) => self.ids[row] == self.ids[other],
            (null, other) => null == other,
        }
    }
}

/// The disk of a row; both queries begin with these columns. A known virtual disk is the same
/// wherever its blocks are.
fn disk(batch: &Batch, row: usize) -> DiskKey {
    let text = |c: Column| match batch.columns[c as usize].value(row) {
        Value::Text(symbol) => Some(symbol),
        _ => None,
    };
    let vdisk = text(Column::Vdisk);
    DiskKey {
        vm: text(Column::Vm),
        vdisk,
        device: text(Column::Device).filter(|_| vdisk.is_none()),
    }
}

impl Sink for Inlet {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        match self {
            Inlet::Counters(ledger) => open(ledger).take_counters(batch),
            Inlet::Spans(ledger) => open(ledger).take_spans(batch),
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        match self {
            Inlet::Counters(ledger) => open(ledger).settle(),
            Inlet::Spans(_) => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        match self {
            Inlet::Counters(ledger) => open(ledger).finish(),
            Inlet::Spans(_) => Ok(()),
        }
    }
}

fn open(ledger: &Mutex<Ledger>) -> std::sync::MutexGuard<'_, Ledger> {
    ledger.lock().expect("no panic while held")
}

#[cfg(test)]
mod tests {
    use weir_model::{Column, Symbol};

    use super::super::busy::Busy;
    use super::*;

    const SLIDE_NS: Nanos = 100_000_000;

    /// Reads nothing.
    struct NoReader;

    impl LedgerReader for NoReader {
        fn whole(&mut self, _: &mut Totals, _: Nanos) -> Result<(), SinkError> {
            Ok(())
        }

        fn finish(&mut self, _: &mut Totals, _: Option<Nanos>) -> Result<(), SinkError> {
            Ok(())
        }
    }

    fn key(device: &str) -> DiskKey {
        DiskKey {
            vm: None,
            vdisk: None,
            device: Some(Symbol::new(device)),
        }
    }

    fn live_ledger() -> Ledger {
        Ledger {
            live: true,
            slide_ns: SLIDE_NS,
            limits_ns: Vec::new(),
            rows: VecDeque::new(),
            spans: VecDeque::new(),
            last_spans: HashMap::new(),
            devices: Devices::AsReported,
            whole: Whole::new(Path::new(SYSFS)),
            totals: Arc::new(Mutex::new(Totals::new(8))),
            reader: Box::new(NoReader),
            last: None,
            began: 0,
        }
    }

    #[test]
    fn a_virtual_disk_is_one_disk_on_all_devices() {
        let mut ledger = live_ledger();
        let columns = vec![
            Column::texts(["web"; 3]),
            Column::texts(["/dev/vda"; 3]),
            Column::texts(["/dev/sda", "/dev/sdb", "/dev/sda"]),
            Column::ints(vec![40, 30, 20]),
        ];
        // The second and the third overlap the ones before, and the slice ends after the second.
        let instants = vec![SLIDE_NS - 10, SLIDE_NS, SLIDE_NS + 1];
        ledger.take_spans(&Batch::stream(instants, columns));
        let spans = ledger.spans.iter().map(|span| (span.from, span.to));
        let expected = [(SLIDE_NS - 50, SLIDE_NS), (SLIDE_NS - 19, SLIDE_NS + 1)];
        assert_eq!(spans.collect::<Vec<_>>(), expected);
        let disk = ledger.spans[0].disk;
        assert_eq!(disk, ledger.spans[1].disk);
        assert_eq!(
            (disk.vdisk, disk.device),
            (Some(Symbol::new("/dev/vda")), None)
        );
    }

    #[test]
    fn overlapping_requests_are_one_span_and_the_busy_time_is_the_same() {
        let mut random = fastrand::Rng::with_seed(11);
        let devices = ["/dev/sda", "/dev/sdb"];
        let mut ledger = live_ledger();
        let totals = ledger.totals.clone();
        let mut expected = [Busy::default(), Busy::default()];
        let (mut at, mut most) = (10 * SLIDE_NS, 0);
        for _ in 0..20 {
            // Completions over several slices, of which only the complete ones are settled.
            let rows: Vec<(i64, i64, usize)> = (0..500)
                .map(|_| {
                    at += random.i64(0..2_000_000);
                    (at, random.i64(0..3_000_000), random.usize(0..10) / 9)
                })
                .collect();
            for (to, time_ns, disk) in &rows {
                expected[*disk].add(to - time_ns, *to);
            }
            let columns = vec![
                Column::Nulls(rows.len()),
                Column::Nulls(rows.len()),
                Column::texts(rows.iter().map(|(.., disk)| devices[*disk])),
                Column::ints(rows.iter().map(|(_, time_ns, _)| *time_ns).collect()),
            ];
            let instants: Vec<i64> = rows.iter().map(|row| row.0).collect();
            ledger.take_spans(&Batch::stream(instants, columns));
            most = most.max(ledger.spans.len());
            ledger.settle_spans(&mut totals.lock().unwrap(), at - at.rem_euclid(SLIDE_NS));
        }
        ledger.settle_spans(&mut totals.lock().unwrap(), Nanos::MAX);
        let mut totals = totals.lock().unwrap();
        for (device, expected) in devices.iter().zip(&expected) {
            let busy = totals.at(key(device), at).busy.total_ns();
            assert_eq!(busy, expected.total_ns(), "{device}");
        }
        assert!(most < 500, "{most} spans of 500 requests");
    }
}
