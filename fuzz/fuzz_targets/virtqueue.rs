//! Fuzz target `virtqueue`: see `weir_fuzz::virtqueue`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::virtqueue(data));
