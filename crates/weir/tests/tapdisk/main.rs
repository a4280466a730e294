//! Disks served by `weir tapdisk`: the process and its sockets, and real guests whose disks it
//! serves, also when it is killed under load and replaced. Tests log that they are skipped without
//! a required tool, guest or privilege.

mod boot;
mod chain;
mod drills;
mod emitted;
mod exact;
mod guests;
mod killed;
mod libvirt;
mod process;
mod serving;
