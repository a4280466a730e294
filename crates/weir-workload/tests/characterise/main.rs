//! What is said of workloads of which it is known what they are.

mod advising;
mod arriving;
mod bounds;
mod disturbing;
mod load;
mod patterns;
