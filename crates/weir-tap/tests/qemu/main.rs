//! What is learned from a real QEMU, without a guest: it stands still, and its human monitor's
//! `qemu-io` does the I/O. Skipped, loudly, where there is no QEMU.

mod counters;
mod machine;
