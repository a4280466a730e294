//! [`Correlation`]: what relation `correlations` compares.

use serde::{Deserialize, Serialize};
use weir_workload::correlation::{CorrelatedMetric, CorrelationOptions};

/// The greatest lag between two disks in steps.
const LAG_STEPS: usize = 10;

/// The least coefficient of a pair in magnitude.
const THRESHOLD: f64 = 0.8;

/// The comparison of all disks over a sliding window.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Correlation {
    /// The length of a step.
    pub step: i64,
    /// The length of the window in steps, in
    /// [`WINDOW_STEPS`](weir_workload::correlation::WINDOW_STEPS).
    pub steps: u32,
    /// What is compared, each once.
    pub metrics: Vec<CorrelatedMetric>,
}

impl Correlation {
    /// Window, lag and threshold in steps.
    pub fn options(&self) -> CorrelationOptions {
        CorrelationOptions {
            window: self.steps as usize,
            lag: LAG_STEPS,
            threshold: THRESHOLD,
        }
    }

    /// `correlate iops, latency [range 1 min slide 1 s]`, for plans.
    pub(super) fn text(&self, span: &dyn Fn(i64) -> String) -> String {
        let metrics: Vec<&str> = self.metrics.iter().map(|metric| metric.as_str()).collect();
        let metrics = match metrics.is_empty() {
            true => "nothing".to_owned(),
            false => metrics.join(", "),
        };
        let window = self.step.saturating_mul(i64::from(self.steps));
        format!(
            "correlate {metrics} [range {} slide {}]",
            span(window),
            span(self.step)
        )
    }
}
