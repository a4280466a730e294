//! The semantics of CQL: golden cases, the thesis's queries, and random queries compared with the
//! brute-force oracle.

#[path = "../support/mod.rs"]
mod support;

mod documentation;
mod functions;
mod golden;
mod laws;
mod oracle;
mod random;
mod scripts;
