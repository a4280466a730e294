//! Reports of weir on a real guest's virtual disks, compared with the guest's plan and with the
//! counters of its kernel and of QEMU. Skipped, with a message, without root or a guest
//! (`cargo xtask guest`).

mod guests;
mod mounts;
mod names;
mod polled;
mod traced;
