//! An I/O queue on real images: files on a disk, files in memory and loop devices, with every
//! engine.

mod durable;
mod failures;
mod images;
mod injected;
mod limited;
mod location;
mod model;
mod shared;
mod support;
