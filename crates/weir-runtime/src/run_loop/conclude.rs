//! [`conclude`]: the report at the end of a run.

use super::{RunReport, summary};
use crate::failure::{Ending, Failure};
use crate::output;

/// Prints on standard error what the sources counted and which queries failed.
pub fn conclude(report: RunReport, verbose: bool) -> Result<Ending, Failure> {
    let losses = summary(&report.counts, verbose);
    for line in losses.iter().chain(&report.remarks) {
        output::notice(format_args!("weir: {line}"));
    }
    for (_, error) in &report.failed {
        let help = error
            .help
            .as_ref()
            .map_or(String::new(), |h| format!("; {h}"));
        output::notice(format_args!("weir: the query failed: {error}{help}"));
    }
    Ok(match report.signal {
        _ if !report.failed.is_empty() => Ending::Failed,
        Some(number) => Ending::Signal(number),
        None => Ending::Done,
    })
}
