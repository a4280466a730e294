//! Reports in the format of sysstat's iostat: of live disks ([`reports`]), or of trees with the
//! kernel's counters ([`trees`]).

pub mod names;
pub mod output;
pub mod reports;
pub mod selection;
pub mod trees;
