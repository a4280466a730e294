//! What is said of workloads of which it is known what they are.

mod arriving;
mod load;
mod patterns;
