//! weir's own recordings: Parquet, a row for each row of a stream, with its columns.
//!
//! `SELECT op, count(*), avg(latency) FROM 'x.parquet' WHERE type <> 'Q' GROUP BY op` is a valid
//! query in DuckDB.
//!
//! - Rows are in timestamp order. Of block I/O, each response is a row, with the columns of `IO`
//!   but some that follow from others, and its request follows from it as well ([`folded`]). Those
//!   with type `Q` are requests whose response is missing or far away. So `IO` is the rows whose
//!   type is not `Q`. In version 1 each request is a row of its own, and each column is stored.
//! - A recording of another stream or relation has the columns of that one, and describes it
//!   ([`stored`]): its name, shape and meaning are under [`STREAM_KEY`], [`SHAPE_KEY`] and
//!   [`DOC_KEY`]. Without these keys it is block I/O.
//! - `ts`, `agent_ts` and `monitor_ts` are timestamps in ns, UTC; texts are dictionaries; the rest
//!   are 64-bit integers. Each column's unit, meaning and other names are in the Arrow schema, as
//!   field metadata `unit`, `doc` and `aliases`.
//! - The footer's key-value metadata has [`VERSION_KEY`], [`SOURCE_KEY`], [`HOST_KEY`],
//!   [`KERNEL_KEY`], [`RESPONSES_KEY`], [`PAIRED_KEY`], [`CLOSED_KEY`], [`EVENTS_KEY`], and a count
//!   for each counter under [`COUNT_PREFIX`]. Readers report these counts as their own: events lost
//!   in the recording are missing in every result.
//!
//! **After a crash.** A Parquet file is unreadable without its footer, which is at the end.
//! Therefore the writer adds a footer after every row group, and continues after it: offsets in a
//! footer are absolute, and readers ignore the previous footers. As long as footers of the whole
//! file are small (less than 1/32 of the data), each footer describes the whole file, and a file
//! truncated directly after one is readable by any reader. Later footers describe only the row
//! groups since the previous footer, which they reference by [`PREVIOUS_KEY`]; they end with `WEIR`
//! instead of `PAR1`, so that no reader mistakes such a part for the whole. weir's reader searches
//! for the last footer of either kind (`recover.rs`), so a crash loses at most the unfinished row
//! group. `weir convert` rewrites such a file into one that every reader accepts.

mod ahead;
mod column;
mod file;
mod fold;
mod folded;
mod losses;
mod pages;
mod read;
mod recover;
mod rows;
mod selected;
mod stored;
mod unfold;
mod write;

pub use file::Recording;
pub use write::{RecordingWriter, create};

/// Key of the recording's version, [`VERSION`].
pub const VERSION_KEY: &str = "weir.recording";
/// Key of the name of the stream or relation.
pub const STREAM_KEY: &str = "weir.stream";
/// Key of its shape: `stream` or `relation`.
pub const SHAPE_KEY: &str = "weir.shape";
/// Key of its description, as text.
pub const DOC_KEY: &str = "weir.doc";
/// Key of the description of the source, as text.
pub const SOURCE_KEY: &str = "weir.source";
/// Key of the name of the host that was observed, if it is known.
pub const HOST_KEY: &str = "weir.host";
/// Key of the release of that host's kernel.
pub const KERNEL_KEY: &str = "weir.kernel";
/// Key of the origin of responses: `known`, or `assumed` if the source had none and each request
/// was assigned one at its own time.
pub const RESPONSES_KEY: &str = "weir.responses";
/// Key whose value is `true` if each request has a unique number, and nothing was lost between the
/// source and the file: a response has an `issue_ts` if the row `Q` of its request exists.
pub const PAIRED_KEY: &str = "weir.paired";
/// Key whose value is `true` in the last footer of a recording that was closed, and `false` in the
/// previous ones.
pub const CLOSED_KEY: &str = "weir.closed";
/// Prefix of the keys of counts: `weir.count.events_lost.ring_full.sda`; without a cause,
/// `weir.count.unseen..sda`.
pub const COUNT_PREFIX: &str = "weir.count.";
/// Key of the end offset of the previous footer, in footers with only the row groups since.
pub const PREVIOUS_KEY: &str = "weir.previous";

/// Key of the number of events in the file, if a row may be a request and its response.
pub const EVENTS_KEY: &str = "weir.events";

/// The version that is written.
pub const VERSION: &str = "3";

/// The versions that are read. In version 1 a request and its response are two rows, in version 2
/// `req_id` is a column of the file.
pub const VERSIONS_READ: [&str; 3] = ["1", "2", VERSION];

/// The beginning of a file, and the end of a footer of the whole file.
const WHOLE: [u8; 4] = *b"PAR1";
/// The end of a footer of a part.
const PART: [u8; 4] = *b"WEIR";

/// Whether `head` is the beginning of a Parquet file.
pub fn sniff(head: &[u8]) -> Option<bool> {
    Some(head.starts_with(&WHOLE))
}
