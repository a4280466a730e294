//! weir's own recordings: Parquet, a row per event, with the columns of `IO`.
//!
//! `SELECT op, count(*), avg(latency) FROM 'x.parquet' WHERE type <> 'Q' GROUP BY op` works in
//! DuckDB as it is.
//!
//! - Rows are in time order. Those with type `Q` are requests at their issue, without the last five
//!   columns; the others are responses with all of them. So `IO` is the rows whose type is not `Q`,
//!   and `IOstream` all rows without the last five columns.
//! - `ts`, `agent_ts` and `monitor_ts` are timestamps in ns, UTC; texts are dictionaries; the rest
//!   are 64-bit integers. Each column's unit and meaning are in the Arrow schema, as field metadata
//!   `unit` and `doc`.
//! - The footer's key-value metadata has [`VERSION_KEY`], [`SOURCE_KEY`], [`RESPONSES_KEY`],
//!   [`PAIRED_KEY`], [`CLOSED_KEY`], and a count for each counter under [`COUNT_PREFIX`]. Readers
//!   report these counts as their own: what was missed then is missing in every answer.
//!
//! **After a crash.** A Parquet file is unreadable without its footer, which comes last. So the
//! writer puts a footer behind every row group, and goes on behind that: offsets in a footer are
//! absolute, the footers in between are gaps that no reader looks at. As long as footers of the
//! whole file cost little (less than 1/8 of the data) they are just that, and a file cut off right
//! behind one is readable by anyone. Later ones only have the row groups since the footer before,
//! where they find that one by [`PREVIOUS_KEY`]; they end with `WEIR` instead of `PAR1`, so that no
//! reader takes such a part for the whole. Our reader looks for the last footer of either kind
//! (`recover.rs`), so a crash loses at most the row group that was being filled. `weir convert`
//! makes of such a file one that everyone reads.

mod column;
mod file;
mod losses;
mod pages;
mod read;
mod recover;
mod write;

pub use file::Recording;
pub use write::{RecordingWriter, create};

/// Key of the recording's version, `1`.
pub const VERSION_KEY: &str = "weir.recording";
/// Key of what was recorded, in words.
pub const SOURCE_KEY: &str = "weir.source";
/// Key of where responses come from: `known`, or `assumed` where the source had none and each
/// request was given one at its own time.
pub const RESPONSES_KEY: &str = "weir.responses";
/// Key that says `true` where each request has a number that no other has, and nothing was left out
/// between the source and the file: a response has an `issue_ts` if the row `Q` of its request is
/// there.
pub const PAIRED_KEY: &str = "weir.paired";
/// Key that says `true` in the last footer of a recording that was closed, and `false` in those
/// before.
pub const CLOSED_KEY: &str = "weir.closed";
/// Start of the keys of counts: `weir.count.events_lost.ring_full.sda`; without a cause,
/// `weir.count.unseen..sda`.
pub const COUNT_PREFIX: &str = "weir.count.";
/// Key of where the footer before ends, in footers that only have the row groups since.
pub const PREVIOUS_KEY: &str = "weir.previous";

/// The version that this code writes and reads.
pub const VERSION: &str = "1";

/// How a file starts, and ends with a footer of all of it.
const WHOLE: [u8; 4] = *b"PAR1";
/// How a footer of a part ends.
const PART: [u8; 4] = *b"WEIR";

/// Whether `head` starts a Parquet file.
pub fn sniff(head: &[u8]) -> Option<bool> {
    Some(head.starts_with(&WHOLE))
}
