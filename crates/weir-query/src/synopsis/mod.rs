//! What the state of operators is made of: rows in order of arrival, rows in numbered slots, keys,
//! and the batches that are gathered from them.

pub(crate) mod by_time;
pub(crate) mod fifo;
pub(crate) mod gather;
pub(crate) mod keys;
pub(crate) mod slots;
pub(crate) mod table;
