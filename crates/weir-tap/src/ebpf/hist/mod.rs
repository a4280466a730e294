//! Histograms kept in the kernel: the distributions of `vscsiStats`, per VM and disk, device, process or
//! cgroup, for as long as a [`HistTap`] is open, and at no cost when none is.
//!
//! The life of one request:
//! 1. It is issued. `hist_issue` finds its subject, or makes it, and gives the request its place in the
//!    order of the subject's events. What it is to the requests before it is then certain, on whatever
//!    processors those were issued. It is entered in this processor's bins.
//! 2. It finishes. `hist_finish` takes it out of those in flight and enters its times.
//! 3. [`HistTap::snapshot`] adds up the processors' bins, which are mapped memory: no system call, and
//!    the programs do not notice.
//!
//! An issue time that does not lie after the event before, on the same subject, is moved behind it: by
//! nanoseconds, when two processors meet. Records of the same tap carry the moved time, so that whoever
//! counts them gets the same bins, to the last count.
//!
//! What each of the bins holds, and where their range ends, is in `hist.h`: times to 18 minutes and
//! distances to 32 TiB have a log bin of their own.

pub(super) mod layout;
mod options;
mod owners;
mod reader;
mod tables;
mod tap;

pub(super) use layout::PROCESSORS_MAX;
pub use options::{By, HistOptions};
pub(super) use owners::OwnerTable;
pub(super) use reader::Reader;
pub use reader::{HistSnapshot, NotEntered};
pub(super) use tables::{HistTables, Setup};
pub use tap::HistTap;

pub use super::completeness::Completeness;
