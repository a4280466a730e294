//! A fleet as its users have it: a monitor, agents in network namespaces of their own, TLS with
//! certificates on both sides, and what goes wrong with machines, processes and cables.

mod faults;
mod field;
mod links;
mod parts;
