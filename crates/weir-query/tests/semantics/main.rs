//! The semantics of CQL: the thesis's queries, and random queries compared with the brute-force
//! oracle.

// The golden cases use the rest.
#[allow(dead_code)]
#[path = "../support/mod.rs"]
mod support;

mod documentation;
mod functions;
mod laws;
mod oracle;
mod random;
mod scripts;
