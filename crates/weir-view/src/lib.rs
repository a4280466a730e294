//! What the commands for everyday questions show: queries, and forms for their rows.

pub mod disk_totals;
pub mod exporter;
pub mod hist;
pub mod iostat;
pub mod top;
pub mod workload;
