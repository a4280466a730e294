//! blktrace's binary traces, versions 7 and 8, in either byte order; version 7 is also written.
//!
//! `blktrace` writes a file per CPU, `X.blktrace.0`, `X.blktrace.1`, ..: the name of any of them,
//! or `X` (as for blkparse's `-i`), opens all of them. They are merged by timestamp. The output of
//! `blkparse -d`, one sorted file, has the same format. [`super::block`] describes how the actions
//! become rows. Timestamps are those of the kernel's monotonic clock, or of the wall clock if the
//! trace contains the offset. Devices are named by their numbers, `259,0`, since a trace contains
//! no other name.
//!
//! Not read, but counted as `skipped`: SCSI pass-through commands, zone management, actions without
//! an extent.

mod layout;
mod read;
mod write;

pub use layout::device_of;
pub use read::{beside, open, sniff};
pub use write::create;
