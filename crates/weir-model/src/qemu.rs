//! QEMU's counters of its virtual disks, as rows of the streams `blockstats` and `blocklatency`.

use crate::{Batch, ClosedSet, ColumnBuilder, Field, Nanos, Op, Schema, Symbol, Type, Unit, Value};

/// One operation of one disk at one poll: a row of stream `blockstats`. `None` for values that this
/// QEMU does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockStat {
    /// The disk and operation.
    pub of: Polled,
    /// Since the previous poll.
    pub since: QemuOpCounts,
    /// Since the disk was attached.
    pub total: QemuOpCounts,
}

/// One bin of the latencies of one operation of one disk at one poll: a row of stream
/// `blocklatency`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLatency {
    /// The disk and operation.
    pub of: Polled,
    /// The lowest latency in the bin.
    pub low_ns: Nanos,
    /// The first latency above it; `None` of the last bin.
    pub high_ns: Option<Nanos>,
    /// Requests since the previous poll.
    pub operations: i64,
    /// Requests since the histogram was enabled.
    pub operations_total: i64,
}

/// A disk's operation at a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Polled {
    /// The time of the poll.
    pub ts: Nanos,
    /// The VM.
    pub vm: Symbol,
    /// The disk as the VM sees it.
    pub vdisk: Option<Symbol>,
    /// QEMU's name of the device, or its path in the object tree.
    pub device: Option<Symbol>,
    /// QEMU's topmost block node.
    pub node: Option<Symbol>,
    /// The operation.
    pub op: Op,
    /// The time since the previous poll of this VM; `None` for the first one.
    pub interval_ns: Option<Nanos>,
}

/// QEMU's counters of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QemuOpCounts {
    /// Requests that succeeded.
    pub operations: Option<i64>,
    /// Their bytes.
    pub bytes: Option<i64>,
    /// The sum of their latencies.
    pub time_ns: Option<Nanos>,
    /// Requests that failed.
    pub failed: Option<i64>,
    /// Requests that were invalid.
    pub invalid: Option<i64>,
    /// The number of requests that were merged into another one before reaching the image.
    pub merged: Option<i64>,
}

impl AsRef<Polled> for BlockStat {
    fn as_ref(&self) -> &Polled {
        &self.of
    }
}

impl AsRef<Polled> for BlockLatency {
    fn as_ref(&self) -> &Polled {
        &self.of
    }
}

/// A column and the function that reads it from a row.
type Columns<R> = Vec<(Field, fn(&R) -> Value)>;

/// The schema of stream `blockstats`.
pub fn blockstats_schema() -> Schema {
    schema(blockstats_columns())
}

/// The schema of stream `blocklatency`.
pub fn blocklatency_schema() -> Schema {
    schema(blocklatency_columns())
}

/// A batch of `blockstats`; the rows are in timestamp order.
pub fn blockstats_batch(rows: &[BlockStat]) -> Batch {
    batch(rows, blockstats_columns())
}

/// A batch of `blocklatency`; the rows are in timestamp order.
pub fn blocklatency_batch(rows: &[BlockLatency]) -> Batch {
    batch(rows, blocklatency_columns())
}

fn schema<R>(columns: Columns<R>) -> Schema {
    Schema::new(columns.into_iter().map(|(field, _)| field).collect())
}

fn batch<R: AsRef<Polled>>(rows: &[R], columns: Columns<R>) -> Batch {
    let column = |(field, get): (Field, fn(&R) -> Value)| {
        let mut builder = ColumnBuilder::new(field.ty, rows.len());
        rows.iter().for_each(|row| builder.push(get(row)));
        builder.finish()
    };
    let times: Vec<i64> = rows.iter().map(|r| r.as_ref().ts).collect();
    Batch::stream(times, columns.into_iter().map(column).collect())
}

fn text(value: Option<Symbol>) -> Value {
    value.map_or(Value::Null, Value::Text)
}

fn int(value: Option<i64>) -> Value {
    value.map_or(Value::Null, Value::Int)
}

fn count(name: &str, doc: &str) -> Field {
    Field::new(name, Type::Int).nullable().doc(doc)
}

/// The first columns of both streams.
fn polled_columns<R: AsRef<Polled>>() -> Columns<R> {
    vec![
        (
            Field::new("ts", Type::Time)
                .unit(Unit::Nanoseconds)
                .doc("the time at which the poll was complete; the same for all disks of a poll"),
            |r| Value::Int(r.as_ref().ts),
        ),
        (
            Field::new("vm", Type::Text).doc("name of the virtual machine"),
            |r| Value::Text(r.as_ref().vm),
        ),
        (
            Field::new("vdisk", Type::Text)
                .nullable()
                .doc("the name of the disk in the VM, such as /dev/vda; NULL if unknown"),
            |r| text(r.as_ref().vdisk),
        ),
        (
            Field::new("device", Type::Text)
                .nullable()
                .doc("QEMU's name of the device, or its path in QEMU's object tree"),
            |r| text(r.as_ref().device),
        ),
        (
            Field::new("node", Type::Text)
                .nullable()
                .doc("the name of QEMU's top block node"),
            |r| text(r.as_ref().node),
        ),
        (
            Field::new("op", Type::Text)
                .doc("r read, w write, f flush, d discard; QEMU counts write zeroes as writes")
                .values(ClosedSet::Op),
            |r| Value::Text(r.as_ref().op.symbol()),
        ),
        (
            count(
                "interval",
                "time since the previous poll of this VM; NULL at the first one",
            )
            .unit(Unit::Nanoseconds),
            |r| int(r.as_ref().interval_ns),
        ),
    ]
}

fn blockstats_columns() -> Columns<BlockStat> {
    let mut columns: Columns<BlockStat> = polled_columns();
    let since: Columns<BlockStat> = vec![
        (
            count(
                "operations",
                "requests that succeeded since the previous poll",
            ),
            |r| int(r.since.operations),
        ),
        (count("bytes", "their bytes").unit(Unit::Bytes), |r| {
            int(r.since.bytes)
        }),
        (
            count("time", "the sum of their latencies in QEMU").unit(Unit::Nanoseconds),
            |r| int(r.since.time_ns),
        ),
        (
            count("failed", "requests that failed since the previous poll"),
            |r| int(r.since.failed),
        ),
        (
            count(
                "invalid",
                "invalid requests since the previous poll, such as beyond the end of the disk",
            ),
            |r| int(r.since.invalid),
        ),
        (
            count(
                "merged",
                "requests that QEMU merged into other requests to the image since the previous \
                 poll; column operations includes them",
            ),
            |r| int(r.since.merged),
        ),
    ];
    let total: Columns<BlockStat> = vec![
        (
            count(
                "operations_total",
                "requests that succeeded since the disk was plugged in",
            ),
            |r| int(r.total.operations),
        ),
        (count("bytes_total", "their bytes").unit(Unit::Bytes), |r| {
            int(r.total.bytes)
        }),
        (
            count("time_total", "the sum of their latencies").unit(Unit::Nanoseconds),
            |r| int(r.total.time_ns),
        ),
        (
            count("failed_total", "requests that failed since then"),
            |r| int(r.total.failed),
        ),
        (count("invalid_total", "invalid requests since then"), |r| {
            int(r.total.invalid)
        }),
        (
            count("merged_total", "requests that were merged since then"),
            |r| int(r.total.merged),
        ),
    ];
    columns.extend(since);
    columns.extend(total);
    columns
}

fn blocklatency_columns() -> Columns<BlockLatency> {
    let mut columns: Columns<BlockLatency> = polled_columns();
    let own: Columns<BlockLatency> = vec![
        (
            Field::new("low", Type::Int)
                .unit(Unit::Nanoseconds)
                .doc("the lowest latency of the bin"),
            |r| Value::Int(r.low_ns),
        ),
        (
            count(
                "high",
                "the lowest latency above the bin; NULL for the last bin",
            )
            .unit(Unit::Nanoseconds),
            |r| int(r.high_ns),
        ),
        (
            Field::new("operations", Type::Int)
                .doc("requests in the bin since the previous poll; empty bins have no row"),
            |r| Value::Int(r.operations),
        ),
        (
            Field::new("operations_total", Type::Int)
                .doc("requests in the bin since the histogram was enabled"),
            |r| Value::Int(r.operations_total),
        ),
    ];
    columns.extend(own);
    columns
}
