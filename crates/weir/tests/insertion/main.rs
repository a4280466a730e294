//! `weir tapdisk insert` and `remove`: taps that come and go under the disks of real guests, while
//! those write and verify; steps that fail, processes that are killed, and libvirt in between.
//! Skipped, loudly, without root or a guest (`cargo xtask guest`).

mod comings;
mod failures;
mod kills;
mod libvirt;
mod machine;
mod proxy;
mod refusals;
