//! Repository chores: the BPF object, the reference pages, benchmarks, tidy checks.

fn main() {}
