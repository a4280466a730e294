//! The commands for common tasks: queries, and output formats for their rows.

pub mod advise;
pub mod contents;
pub mod correlate;
pub mod disk_totals;
pub mod exporter;
pub mod hist;
pub mod iostat;
pub mod path;
pub mod prompt;
pub mod tapdisk_status;
pub mod top;
pub mod workload;
