//! Histograms kept in the kernel: the distributions of `vscsiStats`, per VM and disk, device,
//! process or cgroup, while a [`HistTap`] is open, and without cost when none is.
//!
//! The life cycle of one request:
//! 1. Issue: `hist_issue` finds or creates its subject, and assigns the request its position in the
//!    order of the subject's events. Its relation to the previous requests is then defined, also if
//!    other processors issued those. It is entered in this processor's bins.
//! 2. Completion: `hist_finish` removes it from those in flight and enters its times.
//! 3. [`HistTap::snapshot`] adds up the processors' bins, which are mapped memory: no system call,
//!    and no effect on the programs.
//!
//! An issue time that is not after the previous event of the same subject is moved after it: by
//! nanoseconds, when two processors coincide. Records of the same tap have the moved time, so a
//! consumer that counts them gets exactly the same bins.
//!
//! The definition and range of the bins are in `hist.h`: times to 18 minutes and distances to 32
//! TiB have a log bin of their own.

pub(super) mod layout;
mod options;
mod owners;
mod reader;
mod tables;
mod tap;

pub use options::{By, HistOptions};
pub(super) use owners::OwnerTable;
pub(super) use reader::Reader;
pub use reader::{HistSnapshot, NotEntered};
pub(super) use tables::{HistTables, Setup};
pub use tap::HistTap;

pub use super::completeness::{Completeness, SectorCompleteness};
