//! [`HttpClient`]: POST requests with bounded times, without redirects.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// The longest time of one request.
const REQUEST_MAX: Duration = Duration::from_secs(10);

/// The certificates of public authorities, as distributions install them.
const SYSTEM_ROOTS: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// Sends requests to one URL.
#[derive(Clone)]
pub struct HttpClient {
    agent: Agent,
    url: String,
}

/// Why a request was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpError {
    /// The receiver refuses it for good.
    Refused(u16),
    /// It may be accepted later.
    Failed(String),
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HttpError::Refused(status) => write!(f, "refused with status {status}"),
            HttpError::Failed(why) => f.write_str(why),
        }
    }
}

impl HttpClient {
    /// A client for `url`. Of HTTPS, the receiver's certificate is signed by one of the authorities
    /// in `ca`, or of the system.
    ///
    /// # Errors
    /// A message for the user when the URL or the file is invalid.
    pub fn new(url: &str, ca: Option<&Path>) -> Result<HttpClient, String> {
        let is_https = url.starts_with("https://");
        let host = url.split_once("://").map_or("", |(_, rest)| rest);
        let is_plain = url.starts_with("http://");
        if !(is_https || is_plain) || host.is_empty() || host.starts_with('/') {
            return Err(format!(
                "{url}: expected a URL such as https://example.org/hook"
            ));
        }
        if host
            .split(['/', '?'])
            .next()
            .is_some_and(|host| host.contains('@'))
        {
            return Err(
                "a URL with a user name or password is visible to all users of this host; \
                        use --secret"
                    .to_owned(),
            );
        }
        let config = Agent::config_builder()
            .timeout_global(Some(REQUEST_MAX))
            .max_redirects(0)
            .http_status_as_error(false)
            .user_agent(concat!("weir/", env!("CARGO_PKG_VERSION")));
        let config = match is_https {
            true => config.tls_config(tls(ca)?),
            false => config,
        };
        Ok(HttpClient {
            agent: config.build().into(),
            url: url.to_owned(),
        })
    }

    /// The URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Posts JSON.
    ///
    /// # Errors
    /// When it is not accepted.
    pub fn post(&self, headers: &[(&str, &str)], body: &[u8]) -> Result<(), HttpError> {
        let mut request = self.agent.post(&self.url).content_type("application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        match request.send(body) {
            Ok(response) => verdict(response.status().as_u16()),
            Err(error) => Err(HttpError::Failed(error.to_string())),
        }
    }
}

/// What a status means: a redirect is not followed, since the URL is the user's choice.
fn verdict(status: u16) -> Result<(), HttpError> {
    match status {
        200..=299 => Ok(()),
        408 | 429 => Err(HttpError::Failed(format!("status {status}"))),
        300..=499 => Err(HttpError::Refused(status)),
        _ => Err(HttpError::Failed(format!("status {status}"))),
    }
}

fn tls(ca: Option<&Path>) -> Result<TlsConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let path = match ca {
        Some(path) => path,
        None => {
            let mut known = SYSTEM_ROOTS.iter().map(Path::new);
            known.find(|path| path.exists()).ok_or_else(|| {
                "no certificates of authorities on this host; install ca-certificates, or give \
                 --receiver-ca FILE"
                    .to_owned()
            })?
        }
    };
    let pem = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let certificates: Vec<Certificate<'static>> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        return Err(format!("{}: no certificate in PEM format", path.display()));
    }
    Ok(TlsConfig::builder()
        .unversioned_rustls_crypto_provider(provider)
        .root_certs(RootCerts::from(certificates))
        .build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_final_and_an_overload_is_not() {
        assert_eq!(verdict(204), Ok(()));
        for status in [301, 400, 401, 404, 422] {
            assert_eq!(verdict(status), Err(HttpError::Refused(status)));
        }
        for status in [408, 429, 500, 503] {
            assert!(
                matches!(verdict(status), Err(HttpError::Failed(_))),
                "{status}"
            );
        }
    }

    #[test]
    fn urls_are_checked() {
        let refused = |url: &str| HttpClient::new(url, None).err();
        assert!(refused("ftp://host/").is_some_and(|e| e.contains("https://example.org")));
        assert!(refused("https://").is_some());
        assert!(refused("http://user:word@host/").is_some_and(|e| e.contains("--secret")));
        assert!(refused("http://host/a@b").is_none());
        let missing = HttpClient::new("https://host/", Some(Path::new("/nonexistent.pem")));
        assert!(
            missing
                .err()
                .is_some_and(|e| e.contains("/nonexistent.pem"))
        );
    }
}
