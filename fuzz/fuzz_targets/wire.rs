//! Fuzz target `wire`: see `weir_fuzz::wire`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::wire(data));
