//! CQL from text to operators: parser, checker, optimizer, placement and the delta engine.
//!
//! The life of a query, and where each step lives:
//!
//! 1. [`syntax`]: text → tokens → AST. The parser never fails: it returns a tree and diagnostics.
//! 2. [`check`]: AST and catalog → [`Plan`], with every name resolved, every type and unit known.
//! 3. [`optimize`]: `Plan` → `Plan`, by an ordered list of pure rules.
//! 4. [`place`]: which part of a plan runs where, and so what the tap must deliver.
//! 5. [`physical`]: which operator runs each node, chosen once.
//! 6. [`engine`]: the operators at work; batches go in, deltas come out.
//!
//! [`function`] describes every scalar function and aggregate once: the checker, the engine, the
//! help and the reference page read the same description. [`script`] reads STREAM's script format.
//!
//! The crate does no I/O, reads no clock, starts no thread and logs nothing.

pub mod check;
mod compile;
pub mod diagnostic;
pub mod engine;
pub mod expr;
pub mod function;
pub mod optimize;
pub mod physical;
pub mod place;
pub mod plan;
pub mod reference;
pub mod script;
pub mod syntax;

pub use check::{CheckOptions, Checked, Dialect, compile_unoptimized};
pub use compile::compile;
pub use diagnostic::{Diagnostic, Span, render};
pub use engine::{Counts, Engine, EngineOptions, Output, QueryId};
pub use expr::Expr;
pub use plan::Plan;
pub use script::{Script, ScriptQuery, ScriptTable, compile_script, compile_script_as};
