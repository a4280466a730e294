//! The golden cases, each a test with the name of its file, or of its file and its number there:
//!
//! ```text
//! cargo test --workspace --test cases                                   # all of them
//! cargo test --workspace --test cases window::rows_evicts               # one
//! cargo test --workspace --test cases diagnostics::syntax::             # those of one file
//! WEIR_BLESS=1 cargo test --workspace --test cases window::rows_evicts  # writes its output
//! ```

// Other tests use the rest.
#[allow(dead_code, unused_imports)]
#[path = "../support/mod.rs"]
mod support;

mod golden;
mod texts;

use std::process::ExitCode;

use libtest_mimic::{Arguments, run};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let mut tests = golden::tests();
    tests.extend(texts::tests());
    run(&arguments, tests).exit_code()
}

/// True if the expected outputs are to be written instead of compared.
fn blesses() -> bool {
    std::env::var("WEIR_BLESS").is_ok_and(|value| value == "1")
}
