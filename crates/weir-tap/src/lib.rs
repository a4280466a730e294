//! Taps: sources of I/O events, live by eBPF and from trace files.
