//! Characterisation of workloads with known properties.

mod advising;
mod arriving;
mod bounds;
mod disturbing;
mod load;
mod patterns;
