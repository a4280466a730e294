//! What a service (`weir agent`, `weir monitor`) reports about itself: metrics and health checks
//! over HTTP, and notifications to systemd.

mod endpoint;
mod metrics;
mod status;
mod systemd;

pub use endpoint::{Endpoint, MetricsConfig};
pub use metrics::process_families;
pub use status::{Readiness, ServiceStatus};
