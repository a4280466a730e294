//! Fuzz target `workload`: see `weir_fuzz::workload`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| weir_fuzz::workload(data));
