//! Fuzz target `monitor`: see `weir_fuzz::monitor`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::monitor(data));
