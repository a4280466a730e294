//! The live tap: the requests of the host's block layer, observed by kernel programs on its
//! tracepoints.
//!
//! The life cycle of one request:
//! 1. It is inserted into its disk's queue. `on_start` stores the time and the submitter (only if a
//!    query needs wait, latency or the submitter).
//! 2. It is issued to the device. `on_issue` stores the time and the request, and writes a record
//!    if a query needs requests.
//! 3. It completes. `on_complete` finds the entry, tests the selections on times, and writes one
//!    record into its processor's ring.
//! 4. [`rings::Rings`] reads the rings at its own rate and sorts the records in timestamp order.
//! 5. [`rows::Rows`] converts them to the columns that each demand needs.
//!
//! [`needs::Needs`] determines which of these steps run; what no query needs is neither attached
//! nor read. Kernel 5.15 and newer.

mod attribution;
pub(crate) mod cgroups;
pub(crate) mod clock;
mod completeness;
pub mod cost;
pub(crate) mod devices;
mod doctor;
mod explain;
mod extents;
mod files;
mod filesystem;
mod flow;
pub(crate) mod fold;
pub mod hist;
pub(crate) mod kernel;
pub(crate) mod layout;
mod needs;
pub(crate) mod object;
mod obstacle;
mod order;
mod pace;
pub(crate) mod privileges;
mod programs;
mod rings;
pub(crate) mod rows;
mod selection;
pub mod stream;
pub mod streams;
mod tables;
mod tap;
mod trial;
pub mod version;

pub use clock::{epoch_offset_ns, monotonic_ns};
pub use completeness::{Completeness, SectorCompleteness};
pub use devices::{DEVICE_COLUMNS, DeviceChoice, kernel_name, stacked_devices};
pub use doctor::{CheckStatus, Fact, doctor, self_test};
pub use pace::Pace;
pub use privileges::{
    Files, drop_privileges, keep_what_collecting_takes, keep_what_opening_takes, reduce_thread,
};
pub use programs::Probe;
pub use rows::host_name;
pub use tap::{BlockTap, LiveOptions, TAP, open, open_with_histograms};
