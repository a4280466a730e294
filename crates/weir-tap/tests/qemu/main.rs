//! The results of a real QEMU, without a running guest: its CPUs are stopped, and its human
//! monitor's `qemu-io` performs the I/O. Skipped, with a message, if QEMU is not installed.

mod counters;
mod machine;
