//! Fuzz target `script`: see `weir_fuzz::script`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::script(data));
