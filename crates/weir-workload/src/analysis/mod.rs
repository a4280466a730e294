//! The analyses, one per file: each processes the steps of one subject in timestamp order, in
//! bounded memory, and returns plain data.

pub mod access;
pub mod addresses;
pub mod arrivals;
pub mod bursts;
pub mod load;
pub mod mix;
pub mod order;
pub mod pairs;
pub mod parallelism;
pub mod regions;
pub mod reuse;
pub mod runs;
pub mod sizes;
pub mod timeline;
