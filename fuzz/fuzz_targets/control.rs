//! Fuzz target `control`: see `weir_fuzz::control`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::control(data));
