//! [`http_agent`]: a client for HTTP and HTTPS with bounded times, without redirects.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// The certificates of public authorities, as distributions install them.
const SYSTEM_ROOTS: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// How a server is verified, and the options of the command that state it.
#[derive(Clone, Copy, Debug)]
pub struct HttpOptions<'a> {
    /// Certificates of the authorities that sign the server's, PEM; by default those of the system.
    pub ca: Option<&'a Path>,
    /// The option that names this file.
    pub ca_option: &'static str,
    /// The option that names a secret.
    pub secret_option: &'static str,
    /// The longest time of a request.
    pub timeout: Duration,
}

/// A client for a URL. A status that is an error is a response.
///
/// # Errors
/// A message for the user when the URL or the file is invalid.
pub fn http_agent(url: &str, options: &HttpOptions<'_>) -> Result<Agent, String> {
    let (scheme, host) = url.split_once("://").unwrap_or_default();
    let host = host.split(['/', '?']).next().unwrap_or_default();
    if host.contains('@') {
        return Err(format!(
            "a URL with a user name or password is visible to all users of this host; use {}",
            options.secret_option
        ));
    }
    if !matches!(scheme, "http" | "https") || host.is_empty() {
        return Err(format!("{url}: expected a URL such as https://example.org"));
    }
    let config = Agent::config_builder()
        .timeout_global(Some(options.timeout))
        .max_redirects(0)
        .http_status_as_error(false)
        .user_agent(concat!("weir/", env!("CARGO_PKG_VERSION")));
    let config = match scheme {
        "https" => config.tls_config(tls(options)?),
        _ => config,
    };
    Ok(config.build().into())
}

fn tls(options: &HttpOptions<'_>) -> Result<TlsConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let path = match options.ca {
        Some(path) => path,
        None => {
            let mut known = SYSTEM_ROOTS.iter().map(Path::new);
            known.find(|path| path.exists()).ok_or_else(|| {
                format!(
                    "no certificates of authorities on this host; install ca-certificates, or give \
                     {} FILE",
                    options.ca_option
                )
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
    fn urls_and_files_are_checked() {
        let refused = |url: &str, file: Option<&Path>| {
            let options = HttpOptions {
                ca: file,
                ca_option: "--ca",
                secret_option: "--secret",
                timeout: Duration::from_secs(1),
            };
            http_agent(url, &options).err()
        };
        let missing = Path::new("/nonexistent.pem");
        assert!(refused("ftp://host/", None).is_some_and(|e| e.contains("https://example.org")));
        assert!(refused("https://", None).is_some());
        assert!(refused("http:///path", None).is_some());
        for url in ["http://user:word@host/", "ftp://user:word@host/"] {
            let why = refused(url, None).unwrap();
            assert!(why.contains("--secret") && !why.contains("word@"), "{why}");
        }
        assert!(refused("http://host/a@b", None).is_none());
        let why = refused("https://host/", Some(missing));
        assert!(why.is_some_and(|why| why.contains("/nonexistent.pem")));
    }
}
