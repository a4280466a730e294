//! [`is_full`]: whether heavy tests run completely.

/// The variable that `cargo xtask test --all` sets to `all`.
pub const VARIABLE: &str = "WEIR_TESTS";

/// True if heavy tests run completely; otherwise a small version of each.
pub fn is_full() -> bool {
    std::env::var(VARIABLE).is_ok_and(|extent| extent == "all")
}
