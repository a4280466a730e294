//! A fleet as users run it: a monitor, agents in separate network namespaces, TLS with certificates
//! on both sides, and failures of machines, processes and links.

mod faults;
mod field;
mod links;
mod parts;
