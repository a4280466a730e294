//! Fuzz target `agent`: see `weir_fuzz::agent`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::agent(data));
