//! Fuzz target `cql`: see `weir_fuzz::cql`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::cql(data));
