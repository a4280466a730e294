//! Jobs of Apache Flink over what the agents of a fleet send, which monitors forward to Kafka.
//!
//! ```text
//! agents ──▶ monitor ──▶ Kafka: PREFIX.NAME.NUMBER ──▶ job of Flink ──▶ Kafka: PREFIX.NAME.results
//! ```
//!
//! 1. [`FlinkSession`] runs statements at the SQL Gateway of Flink ([`gateway`]); it lists, starts
//!    and stops jobs ([`job`]).
//! 2. [`FlinkRest`] has the state of a job's tasks.
//! 3. [`JobPlacement`] finds the job of a query, or starts one that continues where another one
//!    ended ([`placement`]).
//! 4. [`JobResults`] reads the rows that a job has written, each once ([`results`]).
//!
//! Nothing is stored here: the name of a job contains its topic of results, and its rows are in
//! Kafka, with a description of them in topic `PREFIX.queries`.

pub mod gateway;
pub mod job;
pub mod placement;
mod rest;
pub mod results;
pub mod sources;

pub use gateway::{FlinkAddress, FlinkError, FlinkSession};
pub use job::FlinkJob;
pub use placement::{JobPlacement, JobSpec, JobStart, PlacedJob};
pub use rest::{FlinkRest, TaskCounts};
pub use results::{JobDescription, JobResults, ResultColumn};
