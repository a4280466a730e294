//! CQL from text to operators: parser, checker, optimizer, placement and the delta engine.
//!
//! The stages of a query:
//!
//! 1. [`syntax`]: text → tokens → AST. The parser never fails: it returns a tree and diagnostics.
//! 2. [`check`]: AST and catalog → [`Plan`]; resolves names, types and units.
//! 3. [`optimize`]: `Plan` → `Plan`, by an ordered list of pure rules.
//! 4. [`place`]: assigns parts of a plan to the kernel, the agents and the monitor, and derives the
//!    demand on the taps.
//! 5. [`physical`]: chooses the operator that runs each node.
//! 6. [`engine`]: runs the operators; batches are its input, deltas its output.
//!
//! [`function`] describes every scalar function and aggregate once: the checker, the engine, the
//! help and the reference page read the same description. [`script`] reads STREAM's script format,
//! [`alert`] files of alerts.
//!
//! The crate does no I/O, reads no clock, starts no thread and logs nothing.

pub mod alert;
pub mod check;
mod compile;
pub mod diagnostic;
pub mod disk_load;
pub mod engine;
mod eval;
pub mod expr;
pub mod flink;
pub mod function;
pub mod library;
mod operator;
pub mod optimize;
pub mod physical;
pub mod place;
pub mod plan;
pub mod reference;
pub mod script;
mod synopsis;
pub mod syntax;
pub mod window;

pub use check::{CheckOptions, Checked, Dialect, compile_unoptimized};
pub use compile::compile;
pub use diagnostic::{Diagnostic, Span, render};
pub use engine::{Engine, EngineCounts, EngineOptions, EngineOutput, QueryId};
pub use eval::LikePattern;
pub use expr::Expr;
pub use plan::Plan;
pub use script::{
    Script, ScriptQuery, ScriptTable, compile_script, compile_script_as, stream_definitions,
};
