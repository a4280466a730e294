//! Fuzz target `trace`: see `weir_fuzz::trace`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::trace(data));
