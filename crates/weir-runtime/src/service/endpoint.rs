//! [`Endpoint`]: the HTTP address of a service's metrics and health checks (`[metrics]`).

use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tracing::info;
use weir_sink::metrics::serve::{Bound, MetricsServer};

use super::ServiceStatus;
use crate::config::Fault;
use crate::failure::Failure;

/// The section `[metrics]` of a service's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsConfig {
    /// Where metrics and health checks are served, `IP:PORT`; by default nowhere.
    pub listen: Option<String>,
    /// Permits an address that other hosts can reach: there is neither encryption nor a password.
    pub open: bool,
}

/// A bound address that is not served yet.
pub struct Endpoint(Bound);

impl MetricsConfig {
    /// Reports a wrong address, and one that needs `open`.
    pub fn check(&self, faults: &mut Vec<Fault>) {
        let why = match self.address() {
            Some(Err(why)) => why,
            Some(Ok(address)) if !address.ip().is_loopback() && !self.open => format!(
                "other hosts can reach {address} and read all metrics; add `open = true` to permit \
                 it"
            ),
            _ => return,
        };
        let key = "metrics.listen".to_owned();
        faults.push(Fault { key, why });
    }

    fn address(&self) -> Option<Result<SocketAddr, String>> {
        let parse = |text: &String| {
            let expected = |_| format!("expected IP:PORT, such as 127.0.0.1:9101, found `{text}`");
            text.parse().map_err(expected)
        };
        self.listen.as_ref().map(parse)
    }
}

impl Endpoint {
    /// Binds the configured address, if there is one.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub fn bind(config: &MetricsConfig) -> Result<Option<Endpoint>, Failure> {
        match config.address() {
            None => Ok(None),
            Some(address) => {
                let address = address.map_err(Failure::words)?;
                Ok(Some(Endpoint(Bound::at(address)?)))
            }
        }
    }

    /// Starts to serve `status`.
    ///
    /// # Errors
    /// If the thread of the server cannot be started.
    pub fn serve(self, status: &Arc<ServiceStatus>) -> Result<MetricsServer, Failure> {
        let (of_metrics, of_health) = (status.clone(), status.clone());
        let server = self.0.serve(
            Arc::new(move |_| of_metrics.families()),
            Arc::new(move |check| of_health.check(check)),
        )?;
        info!(url = %format_args!("http://{}/metrics", server.address()), "serving metrics");
        Ok(server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(listen: &str, open: bool) -> Vec<String> {
        let mut faults = Vec::new();
        let listen = Some(listen.to_owned());
        MetricsConfig { listen, open }.check(&mut faults);
        faults.into_iter().map(|fault| fault.why).collect()
    }

    #[test]
    fn an_address_that_others_can_reach_has_to_be_permitted() {
        assert!(faults("127.0.0.1:9101", false).is_empty());
        assert!(faults("[::1]:9101", false).is_empty());
        assert!(faults("0.0.0.0:9101", true).is_empty());
        assert!(faults("0.0.0.0:9101", false)[0].contains("open = true"));
        assert!(faults("localhost", true)[0].starts_with("expected IP:PORT"));
    }
}
