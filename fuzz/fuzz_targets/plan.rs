//! Fuzz target `plan`: see `weir_fuzz::plan`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::plan(data));
