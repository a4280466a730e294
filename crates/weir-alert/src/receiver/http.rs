//! [`HttpClient`]: POST requests with bounded times, without redirects.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use ureq::Agent;
use weir_runtime::http::{HttpOptions, http_agent};

/// The longest time of one request.
const REQUEST_MAX: Duration = Duration::from_secs(10);

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
        let options = HttpOptions {
            ca,
            ca_option: "--receiver-ca",
            secret_option: "--secret",
            timeout: REQUEST_MAX,
        };
        let agent = http_agent(url, &options)?;
        Ok(HttpClient {
            agent,
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
