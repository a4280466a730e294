//! Disks served by `weir tapdisk`: the process and its sockets, and real guests that live on what
//! it serves, lose it under load and go on. Tests that need a tool, a guest or rights that are not
//! there say loudly that they were skipped.

mod boot;
mod drills;
mod exact;
mod guests;
mod killed;
mod libvirt;
mod process;
mod serving;
mod told;
