//! [`Dial`]: how an agent or a client gets to its monitor: address, TLS, token.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use tonic::Request;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::tls::{self, Pem};
use crate::{Address, WireError};

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a connection is asked whether it is still there.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// How long it may take to say so.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// How to get to a monitor.
#[derive(Clone, Debug)]
pub struct Dial {
    /// Where it is.
    pub address: Address,
    /// The token that says who we are.
    pub token: Option<String>,
    /// PEM file of the authority that vouches for the monitor; with it, TLS is spoken.
    pub authority: Option<PathBuf>,
    /// PEM files of our own certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name in the monitor's certificate, if it is not the host's.
    pub server_name: Option<String>,
}

impl Dial {
    /// To the monitor at `address`, without TLS or token unless the address says so.
    pub fn new(address: Address) -> Dial {
        Dial {
            address,
            token: None,
            authority: None,
            identity: None,
            server_name: None,
        }
    }

    /// True if TLS is to be spoken.
    fn is_tls(&self) -> bool {
        self.address.tls.unwrap_or(self.authority.is_some())
    }

    /// Connects.
    ///
    /// # Errors
    /// When a file is not what it should be, or nobody answers.
    pub async fn connect(&self) -> Result<Channel, WireError> {
        self.endpoint()?
            .connect()
            .await
            .map_err(|e| self.unreachable(&e))
    }

    /// A call with our token.
    ///
    /// # Errors
    /// When the token cannot be a header.
    pub(crate) fn call<T>(&self, message: T) -> Result<Request<T>, WireError> {
        let mut call = Request::new(message);
        if let Some(token) = &self.token {
            let value = format!("Bearer {token}").parse();
            let value = value.map_err(|_| WireError::Option {
                what: "token",
                why: "it has letters that a header cannot carry; use plain ASCII".to_owned(),
            })?;
            call.metadata_mut().insert("authorization", value);
        }
        Ok(call)
    }

    fn endpoint(&self) -> Result<Endpoint, WireError> {
        let scheme = if self.is_tls() { "https" } else { "http" };
        let uri = format!("{scheme}://{}", self.address);
        let wrong = |e: tonic::transport::Error| WireError::Address {
            text: self.address.to_string(),
            why: causes(&e),
        };
        let endpoint = Endpoint::from_shared(uri)
            .map_err(wrong)?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true);
        match self.is_tls() {
            true => endpoint.tls_config(self.tls()?).map_err(wrong),
            false if self.token.is_some() && !self.is_loopback() => {
                Err(WireError::Unprotected(format!(
                    "a token is not sent to {} in the clear; write https://{} and give the \
                     authority that vouches for the monitor",
                    self.address, self.address
                )))
            }
            false => Ok(endpoint),
        }
    }

    fn tls(&self) -> Result<ClientTlsConfig, WireError> {
        let Some(authority) = &self.authority else {
            return Err(WireError::Unprotected(format!(
                "https://{} needs the certificate of the authority that vouches for the monitor; \
                 name its PEM file",
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

    fn is_loopback(&self) -> bool {
        let ip: Result<std::net::IpAddr, _> = self.address.host.parse();
        self.address.host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
    }

    /// What to say when the network fails before anything was answered.
    pub(crate) fn unreachable(&self, error: &(dyn Error + 'static)) -> WireError {
        let why = causes(error);
        let lower = why.to_lowercase();
        let said = |part: &str| lower.contains(part);
        let remedy = if said("refused") || said("timed out") {
            "is it running, and is the port right?"
        } else if said("fatal alert") && said("expired") {
            "our certificate holds no longer; `weir certificates renew` signs it anew"
        } else if said("expired") || said("notvalidyet") || said("not valid yet") {
            "its certificate does not hold now; renew it, or set the clocks"
        } else if said("unknownissuer") || said("badsignature") {
            "its certificate is not of the authority that was given"
        } else if ["unknownca", "unknown ca", "decrypterror"]
            .into_iter()
            .any(said)
        {
            "it takes certificates of another authority than ours"
        } else if said("not valid for name") {
            "its certificate is for another name; say which with the server name"
        } else if said("certificaterequired") || said("certificate required") {
            "it wants a certificate of ours"
        } else if said("resolve") || said("lookup") {
            "is the name right?"
        } else if self.is_tls() {
            "does it speak TLS? without TLS, write http://"
        } else {
            "if it speaks TLS, write https:// and give its authority"
        };
        WireError::Unreachable {
            address: self.address.to_string(),
            why,
            remedy: remedy.to_owned(),
        }
    }
}

/// An error and what caused it, without what is said twice.
pub(crate) fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
