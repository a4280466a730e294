//! `weir`: ask a host's block I/O anything, in CQL.

fn main() {}
