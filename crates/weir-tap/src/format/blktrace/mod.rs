//! blktrace's binary traces, versions 7 and 8, in either byte order; version 7 is written too.
//!
//! `blktrace` leaves a file per CPU, `X.blktrace.0`, `X.blktrace.1`, ..: any of them stands for
//! all, and so does `X` (as for blkparse's `-i`). They are merged by time. What `blkparse -d`
//! writes, one file in order, is the same format. What the actions mean for our streams is told in
//! [`super::block`]. Times are the kernel's monotonic ones, or those of the wall clock where the
//! trace has its time stamp. Devices are called by their numbers, `259,0`, since a trace knows no
//! other name.
//!
//! Not read, but counted as `skipped`: SCSI pass-through commands, zone management, actions without
//! an extent.

mod layout;
mod read;
mod write;

pub use layout::device_of;
pub use read::{beside, open, sniff};
pub use write::create;
