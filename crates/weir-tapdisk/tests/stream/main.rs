//! What lanes tell arrives: by recorders, a hub, the tap's socket and the consumer, with lanes that are
//! made up, and no disk.

mod arriving;
mod disk;
mod ends;
mod histograms;
mod hostile;
mod lanes;
mod selections;
