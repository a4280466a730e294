//! What weir says of a real guest's virtual disks, held against the guest's plan, its kernel's
//! counters and QEMU's. Skipped, loudly, without root or a guest (`cargo xtask guest`).

mod guests;
mod mounts;
mod names;
mod polled;
mod traced;
