//! Shared by the tests of CQL's semantics: recorded input, a brute-force oracle, and ways to run
//! the engine.

pub mod capabilities;
pub mod case;
pub mod changes;
pub mod feed;
pub mod fleet;
pub mod history;
pub mod oracle;
pub mod run;
pub mod stream_file;
pub mod words;

/// One row.
pub type Row = Vec<weir_model::Value>;
