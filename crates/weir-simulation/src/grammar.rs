//! The grammar by which weir-query's tests write random queries.

#[path = "../../weir-query/tests/semantics/random/choices.rs"]
pub mod choices;
#[path = "../../weir-query/tests/semantics/random/grammar/mod.rs"]
pub mod query;
