//! Requests of guests, tied to those of their virtual disks, as rows of the stream `GuestIO`.

use crate::{
    Batch, ClosedSet, ColumnBuilder, Field, Nanos, SECTOR_BYTES, Schema, Symbol, Type, Unit, Value,
};

/// A request that the kernel of a guest has finished. `None` for values that are unknown: those of
/// the virtual disk, if no request of it is tied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestRequest {
    /// When it had finished in the guest, by the clock of the virtual disk's host.
    pub ts: Nanos,
    /// The letter of the operation.
    pub op: Symbol,
    /// First sector; `None` for a flush.
    pub sector: Option<i64>,
    /// Length in sectors.
    pub sectors: i64,
    /// The VM.
    pub vm: Option<Symbol>,
    /// The host that serves the virtual disk.
    pub host: Option<Symbol>,
    /// The virtual disk, as in relation `disks`.
    pub vdisk: Option<Symbol>,
    /// The agent in the guest.
    pub guest: Option<Symbol>,
    /// The device in the guest.
    pub guest_disk: Option<Symbol>,
    /// The process in the guest that submitted it.
    pub pid: Option<i64>,
    /// Its command name.
    pub comm: Option<Symbol>,
    /// The error in the guest, a positive errno.
    pub error: Option<i64>,
    /// Insert to completion in the guest.
    pub latency_ns: Option<Nanos>,
    /// Insert to issue in the guest.
    pub guest_wait_ns: Option<Nanos>,
    /// Issue in the guest to receipt by the virtual disk.
    pub guest_queue_ns: Option<Nanos>,
    /// Receipt to submission.
    pub vdisk_wait_ns: Option<Nanos>,
    /// Submission to completion.
    pub vdisk_service_ns: Option<Nanos>,
    /// Completion of the virtual disk to completion in the guest.
    pub guest_return_ns: Option<Nanos>,
    /// The clock of the virtual disk's host minus that of the guest, and the largest error.
    pub clock: Option<(Nanos, Nanos)>,
    /// When the virtual disk received it.
    pub received: Option<Nanos>,
    /// The number of the request of the virtual disk.
    pub req_id: Option<i64>,
    /// The number of the request of the guest.
    pub guest_req_id: i64,
    /// Why no request of the virtual disk is tied.
    pub unmatched: Option<Symbol>,
}

/// The name of the stream.
pub const GUEST_IO: &str = "GuestIO";

/// A column and the function that reads it from a row.
type Column = (Field, fn(&GuestRequest) -> Value);

/// The schema of the stream.
pub fn guestio_schema() -> Schema {
    Schema::new(columns().into_iter().map(|(field, _)| field).collect())
}

/// A batch of rows at these instants, which are in order.
pub fn guestio_batch(instants: Vec<Nanos>, rows: &[GuestRequest]) -> Batch {
    let column = |(field, get): Column| {
        let mut builder = ColumnBuilder::new(field.ty, rows.len());
        rows.iter().for_each(|row| builder.push(get(row)));
        builder.finish()
    };
    Batch::stream(instants, columns().into_iter().map(column).collect())
}

fn text(value: Option<Symbol>) -> Value {
    value.map_or(Value::Null, Value::Text)
}

fn int(value: Option<i64>) -> Value {
    value.map_or(Value::Null, Value::Int)
}

fn columns() -> Vec<Column> {
    let mut all = columns_of_request();
    all.extend(columns_of_stages());
    all
}

/// What it is, and whose.
fn columns_of_request() -> Vec<Column> {
    let column = |name: &str, ty, doc: &str| Field::new(name, ty).doc(doc);
    let maybe = |name: &str, ty, doc: &str| column(name, ty, doc).nullable();
    vec![
        (
            column(
                "ts",
                Type::Time,
                "when it had finished in the guest, by the clock of the virtual disk's host",
            )
            .unit(Unit::Nanoseconds),
            |r| Value::Int(r.ts),
        ),
        (
            column(
                "op",
                Type::Text,
                "r read, w write, f flush, d discard, z write zeroes",
            )
            .values(ClosedSet::Op),
            |r| Value::Text(r.op),
        ),
        (
            maybe(
                "sector",
                Type::Int,
                "first sector on the disk; NULL for a flush",
            )
            .unit(Unit::Sectors),
            |r| int(r.sector),
        ),
        (
            column("sectors", Type::Int, "length in sectors of 512 bytes").unit(Unit::Sectors),
            |r| Value::Int(r.sectors),
        ),
        (
            column("bytes", Type::Int, "length in bytes").unit(Unit::Bytes),
            |r| Value::Int(r.sectors.saturating_mul(SECTOR_BYTES)),
        ),
        (maybe("vm", Type::Text, "the VM"), |r| text(r.vm)),
        (
            maybe("host", Type::Text, "the host that serves the virtual disk"),
            |r| text(r.host),
        ),
        (
            maybe(
                "vdisk",
                Type::Text,
                "the virtual disk, as in relation disks",
            ),
            |r| text(r.vdisk),
        ),
        (maybe("guest", Type::Text, "the agent in the guest"), |r| {
            text(r.guest)
        }),
        (
            maybe("guest_disk", Type::Text, "the device in the guest"),
            |r| text(r.guest_disk),
        ),
        (
            maybe(
                "pid",
                Type::Int,
                "the process in the guest that submitted it",
            ),
            |r| int(r.pid),
        ),
        (
            maybe("comm", Type::Text, "the command name of that process"),
            |r| text(r.comm),
        ),
        (
            maybe(
                "error",
                Type::Int,
                "the error in the guest, as errno; NULL without one",
            ),
            |r| int(r.error),
        ),
    ]
}

/// Where the time went, and how it was tied.
fn columns_of_stages() -> Vec<Column> {
    let ns = |name: &str, doc: &str| {
        let field = Field::new(name, Type::Int).doc(doc).nullable();
        field.unit(Unit::Nanoseconds)
    };
    let plain = |name: &str, ty, doc: &str| Field::new(name, ty).doc(doc);
    vec![
        (ns("latency", "insert to completion in the guest"), |r| {
            int(r.latency_ns)
        }),
        (
            ns(
                "guest_wait",
                "insert to issue in the guest: its I/O scheduler",
            ),
            |r| int(r.guest_wait_ns),
        ),
        (
            ns(
                "guest_queue",
                "issue in the guest to receipt by the virtual disk",
            ),
            |r| int(r.guest_queue_ns),
        ),
        (
            ns("vdisk_wait", "receipt by the virtual disk to submission"),
            |r| int(r.vdisk_wait_ns),
        ),
        (
            ns(
                "vdisk_service",
                "submission by the virtual disk to completion",
            ),
            |r| int(r.vdisk_service_ns),
        ),
        (
            ns(
                "guest_return",
                "completion of the virtual disk to completion in the guest",
            ),
            |r| int(r.guest_return_ns),
        ),
        (
            ns(
                "clock_offset",
                "the clock of the virtual disk's host minus that of the guest",
            ),
            |r| int(r.clock.map(|(offset, _)| offset)),
        ),
        (
            ns(
                "clock_error",
                "the largest error of clock_offset, and so of guest_queue and guest_return",
            ),
            |r| int(r.clock.map(|(_, error)| error)),
        ),
        (
            plain("received", Type::Time, "when the virtual disk received it")
                .unit(Unit::Nanoseconds)
                .nullable(),
            |r| int(r.received),
        ),
        (
            plain(
                "req_id",
                Type::Int,
                "the request of the virtual disk, as in IO",
            )
            .nullable(),
            |r| int(r.req_id),
        ),
        (
            plain(
                "guest_req_id",
                Type::Int,
                "the request of the guest, as in IO",
            ),
            |r| Value::Int(r.guest_req_id),
        ),
        (
            plain(
                "unmatched",
                Type::Text,
                "why no request of the virtual disk is tied: missing, ambiguous, too_many, \
                 no_disk; NULL if one is",
            )
            .nullable(),
            |r| text(r.unmatched),
        ),
    ]
}
