//! The path of records from I/O queues to a consumer: recorders, a hub, the tap's socket and the
//! consumer, with simulated I/O queues and without a disk.

mod arriving;
mod disk;
mod ends;
mod groups;
#[path = "../../../weir-tap/tests/live/groups_by_definition.rs"]
mod groups_by_definition;
mod histograms;
mod hostile;
mod selections;
mod simulated_queues;
mod versions;
