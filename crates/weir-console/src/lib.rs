//! The console: an HTTP API, results pushed over one WebSocket per tab, and the page that shows
//! them.
//!
//! ```text
//! browser ──HTTP, WebSocket──▶ server ──starts──▶ weir query, check, explain (a process each)
//!                                │ ◀──Arrow, JSON, CSV (a pipe)──
//!                                └──starts──▶ weir console-source: all live queries of requests
//! ```
//!
//! | module | gives |
//! | --- | --- |
//! | [`server`] | connections, routes, the headers of every response |
//! | [`access`] | which requests are accepted: `Host`, `Origin`, the link's secret, the cookie |
//! | [`api`] | `/api/v1/..`, described by [`OPENAPI`] |
//! | [`state_api`] | the part of it that describes the host, its queries and the fleet |
//! | [`lease_api`] | limits of disks |
//! | [`fleet_alerts_api`] | the alerts and silences of a monitor |
//! | [`program`] | the processes that run queries |
//! | [`process_cost`] | their processor time and memory |
//! | [`shared_source`] | the process that reads the live source for all tabs, and retains requests |
//! | [`sources`] | the sources that a client may name |
//! | [`standing`] | standing queries: one process for all tabs with the same query |
//! | [`socket`] | the WebSocket of a tab: subscriptions, credit, skipped frames |
//! | [`frame`] | the binary frames of the WebSocket |
//! | [`assets`] | the files of the page, which are in the binary |
//!
//! A query is a process, as in `weir sql`: it drops its privileges itself, its memory is its own,
//! and the server parses no data of guests beyond the Arrow stream of the result.

pub mod access;
pub mod api;
pub mod assets;
pub mod fleet_alerts_api;
pub mod frame;
pub mod lease_api;
pub mod process_cost;
pub mod program;
pub mod server;
pub mod shared_source;
pub mod socket;
pub mod sources;
pub mod standing;
pub mod state_api;

pub use api::OPENAPI;
pub use program::Program;
pub use server::{Console, ConsoleOptions};
