//! [`Dial`]: how an agent or a client connects to its monitor: address, TLS, token.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use tonic::Request;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::tls::{self, Pem};
use crate::{Address, WireError};

/// The timeout for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval of keep-alive probes.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// The timeout of a keep-alive probe.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// The same where another monitor can take over: it does so within this time.
const KEEP_ALIVE_INTERVAL_SHORT: Duration = Duration::from_secs(1);
const KEEP_ALIVE_TIMEOUT_SHORT: Duration = Duration::from_secs(2);

/// How to connect to a monitor.
#[derive(Clone, Debug)]
pub struct Dial {
    /// The address of the monitor.
    pub address: Address,
    /// The addresses of further monitors with the same state, of which one leads.
    pub others: Vec<Address>,
    /// The token that authenticates the caller.
    pub token: Option<String>,
    /// PEM file of the authority that signed the monitor's certificate; with it, TLS is used.
    pub authority: Option<PathBuf>,
    /// PEM files of the client certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name in the monitor's certificate, if it is not the host's.
    pub server_name: Option<String>,
}

impl Dial {
    /// Connects to the monitor at `address`, without TLS or token unless the address requires TLS.
    pub fn new(address: Address) -> Dial {
        Dial {
            address,
            others: Vec::new(),
            token: None,
            authority: None,
            identity: None,
            server_name: None,
        }
    }

    /// Connects to the monitor at one of the addresses in `text`, separated by commas.
    ///
    /// # Errors
    /// If one of them is invalid.
    pub fn to(text: &str) -> Result<Dial, WireError> {
        let mut addresses = text.split(',').map(|text| text.trim().parse());
        let first = addresses.next().expect("a text has a first part")?;
        Ok(Dial {
            others: addresses.collect::<Result<_, _>>()?,
            ..Dial::new(first)
        })
    }

    /// All addresses, for messages.
    pub fn addresses(&self) -> String {
        let all = std::iter::once(&self.address).chain(&self.others);
        let all: Vec<String> = all.map(Address::to_string).collect();
        all.join(", ")
    }

    /// One for each address, which is its first, with the addresses that follow and then those
    /// before; and whether it is the only one.
    pub(crate) fn each(&self) -> Vec<(Dial, bool)> {
        let mut next = self.clone();
        let count = 1 + self.others.len();
        let rotated = (0..count).map(|_| {
            let each = next.clone();
            next = each.next();
            (each, count == 1)
        });
        rotated.collect()
    }

    /// The same with the next address as its first.
    #[must_use]
    pub fn next(&self) -> Dial {
        let mut next = self.clone();
        if !next.others.is_empty() {
            let before = std::mem::replace(&mut next.address, next.others.remove(0));
            next.others.push(before);
        }
        next
    }

    /// Whether to use TLS.
    fn is_tls(&self) -> bool {
        match &self.address {
            Address::Tcp { tls, .. } => tls.unwrap_or(self.authority.is_some()),
            Address::Unix(_) => false,
        }
    }

    /// Connects.
    ///
    /// # Errors
    /// If a file is invalid, or no monitor answers.
    pub async fn connect(&self) -> Result<Channel, WireError> {
        self.endpoint()?
            .connect()
            .await
            .map_err(|e| self.unreachable(&e))
    }

    /// A call with the token.
    ///
    /// # Errors
    /// If the token cannot be a header.
    pub(crate) fn call<T>(&self, message: T) -> Result<Request<T>, WireError> {
        let mut call = Request::new(message);
        if let Some(token) = &self.token {
            let value = format!("Bearer {token}").parse();
            let value = value.map_err(|_| WireError::Option {
                what: "token",
                why: "it contains characters that are not permitted in a header; use \
                      ASCII"
                    .to_owned(),
            })?;
            call.metadata_mut().insert("authorization", value);
        }
        Ok(call)
    }

    fn endpoint(&self) -> Result<Endpoint, WireError> {
        let uri = match (&self.address, self.is_tls()) {
            (Address::Tcp { .. }, true) => format!("https://{}", self.address),
            (Address::Tcp { .. }, false) => format!("http://{}", self.address),
            (Address::Unix(_), _) => self.address.to_string(),
        };
        let wrong = |e: tonic::transport::Error| WireError::Address {
            text: self.address.to_string(),
            why: causes(&e),
        };
        let (interval, timeout) = match self.others.is_empty() {
            true => (KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT),
            false => (KEEP_ALIVE_INTERVAL_SHORT, KEEP_ALIVE_TIMEOUT_SHORT),
        };
        let endpoint = Endpoint::from_shared(uri)
            .map_err(wrong)?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(interval)
            .keep_alive_timeout(timeout)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true);
        match self.is_tls() {
            true => endpoint
                .tls_config(self.tls()?)
                .map_err(|error| self.unusable(&error)),
            false if self.token.is_some() && !self.address.is_local() => {
                Err(WireError::Unprotected(format!(
                    "a token is not sent to {} without TLS; use https://{} with the certificate \
                     of the authority that signed the monitor's certificate",
                    self.address, self.address
                )))
            }
            false => Ok(endpoint),
        }
    }

    /// The reason that TLS cannot be set up with these files.
    fn unusable(&self, error: &(dyn Error + 'static)) -> WireError {
        let why = causes(error);
        match &self.identity {
            Some((certificate, key)) if why.contains("KeyMismatch") => WireError::File {
                path: key.clone(),
                why: format!("it is not the key of {}", certificate.display()),
            },
            Some((certificate, _)) => WireError::File {
                path: certificate.clone(),
                why,
            },
            None => WireError::Option { what: "TLS", why },
        }
    }

    fn tls(&self) -> Result<ClientTlsConfig, WireError> {
        let Some(authority) = &self.authority else {
            return Err(WireError::Unprotected(format!(
                "https://{} requires the certificate of the authority that signed the monitor's \
                 certificate; use --ca FILE",
                self.address
            )));
        };
        let authority = Pem::read(authority)?;
        authority.certificates()?;
        let mut config =
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority.bytes));
        if let Some((certificate, key)) = &self.identity {
            let (certificate, key) = tls::identity(certificate, key)?;
            config = config.identity(Identity::from_pem(certificate.bytes, key.bytes));
        }
        if let Some(name) = &self.server_name {
            config = config.domain_name(name.clone());
        }
        Ok(config)
    }

    /// The error for a network failure before the first reply.
    pub(crate) fn unreachable(&self, error: &(dyn Error + 'static)) -> WireError {
        let why = causes(error);
        let lower = why.to_lowercase();
        WireError::Unreachable {
            address: self.address.to_string(),
            remedy: self.remedy(&lower).to_owned(),
            why,
        }
    }

    /// The remedy; `why` is the error in lower case.
    fn remedy(&self, why: &str) -> &'static str {
        let any = |parts: &[&str]| parts.iter().any(|part| why.contains(part));
        if let Address::Unix(_) = self.address {
            return match () {
                () if any(&["permission denied"]) => {
                    "run as the monitor's user, or as a member of its socket's group"
                }
                () => "check that the monitor is running on this host",
            };
        }
        if any(&["refused", "timed out"]) {
            "check that it is running, and check the port"
        } else if any(&["unreachable", "no route"]) {
            "this host has no route to it; check the address and the network"
        } else if any(&["fatal alert"]) && any(&["expired"]) {
            "the client's certificate has expired; renew it with `weir certificates renew`"
        } else if any(&["expired", "notvalidyet", "not valid yet"]) {
            "its certificate is not valid now; renew it, or correct the clocks"
        } else if any(&["unknownissuer", "badsignature"]) {
            "its certificate was not signed by the given authority"
        } else if any(&["unknownca", "unknown ca", "decrypterror"]) {
            "it does not accept certificates of the client's authority"
        } else if any(&["not valid for name"]) {
            "its certificate has another name; set that name as the server name"
        } else if any(&["certificaterequired", "certificate required"]) {
            "it requires a client certificate"
        } else if any(&["resolve", "lookup"]) {
            "check the name"
        } else if self.is_tls() && any(&["invalidcontenttype", "corrupt message"]) {
            "it does not use TLS on this port; use http:// without TLS"
        } else if self.is_tls() {
            "it closed the connection: it is restarting, or has rejected the client's \
             certificate; its log has the reason"
        } else {
            "if it uses TLS, use https:// with the certificate of its authority"
        }
    }
}

/// An error and its causes, without repetitions.
pub fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    if let Some(cause) = source
        && text == "transport error"
    {
        // The title of every error of tonic's transport.
        text = cause.to_string();
    }
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // The message of rustls is long and contains a link.
        let cause_text = match cause_text.contains("without sending TLS close_notify") {
            true => "the connection was closed without the end of TLS".to_owned(),
            false => cause_text,
        };
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remedy(address: &str, authority: bool, why: &str) -> &'static str {
        let mut dial = Dial::new(address.parse().unwrap());
        dial.authority = authority.then(|| PathBuf::from("authority.crt"));
        dial.remedy(why)
    }

    #[test]
    fn plain_http_is_advised_only_for_a_monitor_without_tls() {
        let tls = |why| remedy("m:1", true, why);
        for why in [
            "stream closed because of a broken pipe",
            "the connection was closed without the end of tls",
            "connection reset by peer (os error 104)",
        ] {
            assert!(tls(why).contains("is restarting"), "{why}");
        }
        let plain = "received corrupt message of type invalidcontenttype";
        assert!(tls(plain).contains("http://"));
        let unreachable = "network is unreachable (os error 101)";
        assert!(tls(unreachable).contains("no route"));
        assert!(remedy("m:1", false, "broken pipe").contains("https://"));
    }

    #[test]
    fn unix_sockets_have_their_own_remedies() {
        let socket = |why| remedy("unix:/run/m.sock", false, why);
        assert!(socket("permission denied (os error 13)").contains("group"));
        assert!(socket("no such file or directory (os error 2)").contains("running"));
    }

    #[test]
    fn a_key_mismatch_names_the_key_file() {
        let dial = Dial {
            identity: Some(("a.crt".into(), "b.key".into())),
            ..Dial::new("https://m".parse().unwrap())
        };
        let error = std::io::Error::other("keys may not be consistent: KeyMismatch");
        let text = dial.unusable(&error).to_string();
        assert_eq!(text, "b.key: it is not the key of a.crt");
    }
}
