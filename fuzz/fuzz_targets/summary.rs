//! Fuzz target `summary`: see `weir_fuzz::summary`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::summary(data));
