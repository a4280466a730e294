//! [`compile`]: from a query's text to its optimized plan.

use weir_model::Catalog;

use crate::check::{CheckOptions, Checked, compile_unoptimized};
use crate::diagnostic::Diagnostic;
use crate::optimize::optimize;

/// Parses, checks and optimizes a text: any number of CREATE VIEW and then one query, separated by
/// `;`.
///
/// # Errors
/// All errors in the text, in the order of the text.
pub fn compile(
    text: &str,
    catalog: &Catalog,
    options: &CheckOptions,
) -> Result<Checked, Vec<Diagnostic>> {
    let checked = compile_unoptimized(text, catalog, options)?;
    Ok(Checked {
        plan: optimize(&checked.plan),
        ..checked
    })
}
