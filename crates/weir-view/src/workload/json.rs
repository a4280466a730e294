//! The report of `weir characterise` as JSON: its fields by name, and the distributions as in `weir
//! hist --json`.

use serde_json::Value;
use weir_workload::files::FileReport;
use weir_workload::{Metric, Report, json};

use weir_runtime::failure::Failure;

/// The whole report, and how files are accessed, if that is known.
///
/// # Errors
/// When it cannot be expressed in JSON.
pub fn report(report: &Report, files: Option<&FileReport>) -> Result<Value, Failure> {
    let mut value = serde_json::to_value(report).map_err(std::io::Error::from)?;
    let profiles = value["profiles"].as_array_mut().into_iter().flatten();
    for (value, profile) in profiles.zip(&report.profiles) {
        value["histograms"] = json::of_histograms(&profile.histograms, &Metric::ALL);
    }
    if let Some(files) = files {
        value["files"] = serde_json::to_value(files).map_err(std::io::Error::from)?;
    }
    Ok(value)
}
