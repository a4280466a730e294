//! The basic types of weir: types, values, schemas with units, batches and the built-in catalog.
//!
//! All crates use these types: a tap builds [`Batch`]es of events, the engine converts batches to
//! batches of deltas, a sink prints them. This crate does no I/O.

pub mod alert;
pub mod arrow;
pub mod batch;
pub mod capabilities;
pub mod catalog;
mod closed_set;
mod column_values;
pub mod correlation;
pub mod demand;
pub mod event;
mod fold;
pub mod guest;
pub mod host;
pub mod inventory;
pub mod packed;
pub mod probe;
pub mod qemu;
pub mod schema;
pub mod spread;
pub mod suggest;
pub mod symbol;
pub mod text;
pub mod types;

pub use batch::{Batch, Column, ColumnBuilder, TallyArray};
pub use capabilities::{
    Capabilities, ColumnCapabilities, GroupLimits, SelectionLimits, StreamCapabilities,
};
pub use catalog::{Catalog, Declaration, Shape, StoredView};
pub use closed_set::ClosedSet;
pub use column_values::ColumnValues;
pub use demand::{Clause, Demand, Operand, Predicate, Test};
pub use event::{Event, EventBatch, EventKind, IoBatch, IoEvent, Level, Op};
pub use fold::{Fold, FoldCall, Folded, PartialKind, PartialState};
pub use host::{Host, HostState};
pub use probe::{ProbeDefinition, ProbeEnd, ProbeField, ProbeScope, ProbeType};
pub use schema::{Alias, Field, Schema};
pub use symbol::Symbol;
pub use types::{Dimension, Tally, Type, Unit, Value};

/// A point in time, or a duration, in nanoseconds; points count from the Unix epoch.
///
/// `i64` nanoseconds last until the year 2262. The engine itself counts in whatever unit its
/// sources use (scripts in STREAM's format count integer ticks), so instants inside batches are
/// plain `i64`.
pub type Nanos = i64;

/// Nanoseconds in one second.
pub const NANOS_PER_SECOND: Nanos = 1_000_000_000;

/// Nanoseconds in one microsecond, the thesis's unit of time.
pub const NANOS_PER_MICRO: Nanos = 1_000;

/// Bytes in one sector. The block layer and every trace format count in sectors of this size,
/// whatever the device's own block size is (`include/linux/types.h`, `sector_t`).
pub const SECTOR_BYTES: i64 = 512;
