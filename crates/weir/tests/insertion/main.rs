//! `weir tapdisk insert` and `remove`: taps under the disks of real guests that write and verify;
//! failing steps, killed processes, and libvirt. Skipped, with a message, without root or a guest
//! (`cargo xtask guest`).

mod comings;
mod failures;
mod kills;
mod libvirt;
mod machine;
mod proxy;
mod refusals;
