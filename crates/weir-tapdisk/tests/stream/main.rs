//! Records of lanes are received: by recorders, a hub, the tap's socket and the consumer, with
//! simulated lanes and without a disk.

mod arriving;
mod disk;
mod ends;
mod histograms;
mod hostile;
mod lanes;
mod selections;
