//! fio's I/O logs: versions 2 and 3 are read, version 3 is written.
//!
//! ```text
//! fio version 3 iolog
//! 30 /dev/null add
//! 10731 /dev/null open
//! 10752 /dev/null write 0 4096
//! ```
//!
//! Version 3 has a time before each action, in microseconds since the start (fio's HOWTO, "Trace
//! file format v3"; the unit is that of `log_io_u` in fio's iolog.c). Offsets and lengths are in
//! bytes. `sync` and `datasync` are read as flushes, `trim` as a discard; `add`, `open` and `close`
//! are not I/O. Logs contain no completions.
//!
//! Version 2 has no timestamps, only `wait`: fio's HOWTO defines it as microseconds since the last
//! `wait`, but fio sleeps until that many *milliseconds* after its start (`read_iolog_get` in
//! iolog.c; measured with fio 3.33), so the latter is implemented here. Requests without a `wait`
//! between them have the same timestamp.

mod read;
mod write;

pub use read::{open, sniff};
pub use write::create;

/// The first line of version 2.
const VERSION_2: &str = "fio version 2 iolog";
/// The first line of version 3.
const VERSION_3: &str = "fio version 3 iolog";
