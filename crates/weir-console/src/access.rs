//! [`AccessControl`]: which requests the console accepts.
//!
//! A page of another site in the same browser can send requests to a local server. Three checks
//! reject them, on every request and thus also on the upgrade to WebSocket:
//!
//! 1. `Host` is a name of the loopback interface. A foreign name that resolves to 127.0.0.1 (DNS
//!    rebinding) is not.
//! 2. `Origin`, if there is one, is `http://` and that `Host`. It is required where a browser
//!    always sends it: on POST and on the upgrade.
//! 3. The API requires the cookie, which the browser sends from the page only
//!    (`SameSite=Strict`), or the token, which a browser does not send by itself.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::sync::{Mutex, PoisonError};

use axum::http::header::{AUTHORIZATION, COOKIE, HOST, ORIGIN, UPGRADE};
use axum::http::{HeaderMap, Method};
use subtle::ConstantTimeEq;

/// The names of the loopback interface that `Host` may have, with any port: `ssh -L` forwards
/// another one.
const LOOPBACK_NAMES: [&str; 3] = ["127.0.0.1", "localhost", "[::1]"];

/// The maximum number of browsers with a cookie. A new one displaces the oldest.
const COOKIES_MAX: usize = 64;

/// The number of random bytes in a secret.
const SECRET_BYTES: usize = 32;

/// The secrets of a running console.
pub struct AccessControl {
    cookie_name: String,
    /// For `Authorization: Bearer`.
    token: String,
    state: Mutex<Secrets>,
}

struct Secrets {
    /// The secret of the current link.
    link: String,
    cookies: VecDeque<String>,
}

/// Why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// `Host` is missing, given twice, or not a name of the loopback interface.
    Host,
    /// `Origin` is another site, or missing where it is required.
    Origin,
    /// Neither the cookie nor the token.
    Credentials,
}

impl Rejection {
    /// The message for the client.
    pub fn message(self) -> &'static str {
        match self {
            Rejection::Host => {
                "the console accepts requests to 127.0.0.1 and localhost only; from another host, \
                 forward its port with ssh -L"
            }
            Rejection::Origin => "the request comes from a page of another origin",
            Rejection::Credentials => {
                "not signed in; open the link that weir console prints, or send the token of \
                 --write-token"
            }
        }
    }
}

impl AccessControl {
    /// New secrets for a console on `port`. Cookies are shared by all ports of a host, so the name
    /// contains the port.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub fn new(port: u16) -> io::Result<AccessControl> {
        Ok(AccessControl {
            cookie_name: format!("weir_console_{port}"),
            token: secret()?,
            state: Mutex::new(Secrets {
                link: secret()?,
                cookies: VecDeque::new(),
            }),
        })
    }

    /// The token for `Authorization: Bearer`.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// The secret of the current link; it can be traded once.
    pub fn link_secret(&self) -> String {
        self.secrets().link.clone()
    }

    /// Trades the secret of the link for the value of `Set-Cookie`. The link is invalid from now
    /// on; there is a new one. `None` if the secret is wrong.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub fn trade(&self, given: &str) -> io::Result<Option<String>> {
        let (link, cookie) = (secret()?, secret()?);
        let mut secrets = self.secrets();
        if !equal(given, &secrets.link) {
            return Ok(None);
        }
        secrets.link = link;
        if secrets.cookies.len() == COOKIES_MAX {
            secrets.cookies.pop_front();
        }
        secrets.cookies.push_back(cookie.clone());
        let name = &self.cookie_name;
        Ok(Some(format!(
            "{name}={cookie}; HttpOnly; SameSite=Strict; Path=/"
        )))
    }

    /// Checks `Host` and `Origin`.
    ///
    /// # Errors
    /// Why the request is rejected.
    pub fn check_origin(&self, method: &Method, headers: &HeaderMap) -> Result<(), Rejection> {
        let host = only(headers, HOST).ok_or(Rejection::Host)?;
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => host,
        };
        if !LOOPBACK_NAMES.iter().any(|n| n.eq_ignore_ascii_case(name)) {
            return Err(Rejection::Host);
        }
        let is_own = |origin: &str| {
            let site = origin.strip_prefix("http://");
            site.is_some_and(|site| site.eq_ignore_ascii_case(host))
        };
        let required = *method != Method::GET && *method != Method::HEAD;
        let required = required || headers.contains_key(UPGRADE);
        match headers.get_all(ORIGIN).iter().count() {
            0 if required && !self.has_token(headers) => Err(Rejection::Origin),
            0 => Ok(()),
            _ if only(headers, ORIGIN).is_some_and(is_own) => Ok(()),
            _ => Err(Rejection::Origin),
        }
    }

    /// Checks the cookie or the token.
    ///
    /// # Errors
    /// [`Rejection::Credentials`].
    pub fn check_credentials(&self, headers: &HeaderMap) -> Result<(), Rejection> {
        match self.has_token(headers) || self.has_cookie(headers) {
            true => Ok(()),
            false => Err(Rejection::Credentials),
        }
    }

    fn has_token(&self, headers: &HeaderMap) -> bool {
        let given = only(headers, AUTHORIZATION);
        let given = given.and_then(|value| value.strip_prefix("Bearer "));
        given.is_some_and(|given| equal(given, &self.token))
    }

    fn has_cookie(&self, headers: &HeaderMap) -> bool {
        let lines = headers.get_all(COOKIE).iter();
        let pairs = lines.filter_map(|line| line.to_str().ok());
        let mut given = pairs
            .flat_map(|line| line.split(';'))
            .filter_map(|pair| pair.trim().split_once('='))
            .filter(|(name, _)| *name == self.cookie_name);
        let secrets = self.secrets();
        given.any(|(_, value)| secrets.cookies.iter().any(|known| equal(value, known)))
    }

    fn secrets(&self) -> std::sync::MutexGuard<'_, Secrets> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The value of a header that occurs once.
fn only(headers: &HeaderMap, name: axum::http::HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// Compares in a time that does not depend on the position of the first difference.
fn equal(given: &str, known: &str) -> bool {
    given.as_bytes().ct_eq(known.as_bytes()).into()
}

/// A random secret in hexadecimal.
fn secret() -> io::Result<String> {
    let mut bytes = [0; SECRET_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name = axum::http::HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    fn origin(method: &Method, pairs: &[(&str, &str)]) -> Result<(), Rejection> {
        let access = AccessControl::new(80).unwrap();
        access.check_origin(method, &headers(pairs))
    }

    #[test]
    fn only_names_of_the_loopback_interface_are_hosts() {
        for host in ["127.0.0.1:19350", "localhost:8080", "[::1]:1", "LOCALHOST"] {
            assert_eq!(origin(&Method::GET, &[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "rebound.example:19350",
            "127.0.0.1.example",
            "localhost.example:80",
            "localhost:80:x",
            "",
        ] {
            let rejected = origin(&Method::GET, &[("host", host)]);
            assert_eq!(rejected, Err(Rejection::Host), "{host}");
        }
        let twice = [("host", "localhost"), ("host", "rebound.example")];
        assert_eq!(origin(&Method::GET, &twice), Err(Rejection::Host));
        assert_eq!(origin(&Method::GET, &[]), Err(Rejection::Host));
    }

    #[test]
    fn an_origin_is_that_of_the_host() {
        let with = |value| [("host", "localhost:1"), ("origin", value)];
        assert_eq!(origin(&Method::POST, &with("http://localhost:1")), Ok(()));
        for other in [
            "http://localhost:2",
            "http://127.0.0.1:1",
            "https://localhost:1",
            "http://rebound.example",
            "null",
        ] {
            for method in [Method::GET, Method::POST] {
                let rejected = origin(&method, &with(other));
                assert_eq!(rejected, Err(Rejection::Origin), "{other}");
            }
        }
    }

    #[test]
    fn an_origin_is_required_on_post_and_upgrade() {
        let host = ("host", "localhost:1");
        assert_eq!(origin(&Method::POST, &[host]), Err(Rejection::Origin));
        let upgrade = [host, ("upgrade", "websocket")];
        assert_eq!(origin(&Method::GET, &upgrade), Err(Rejection::Origin));
    }

    #[test]
    fn a_link_is_traded_once() {
        let access = AccessControl::new(80).unwrap();
        let link = access.link_secret();
        assert_eq!(access.trade("").unwrap(), None);
        assert_eq!(access.trade(&link[1..]).unwrap(), None);
        let cookie = access.trade(&link).unwrap().expect("the secret is right");
        assert!(cookie.ends_with("; HttpOnly; SameSite=Strict; Path=/"));
        assert_eq!(access.trade(&link).unwrap(), None);
        assert_ne!(access.link_secret(), link);
        let pair = cookie.split(';').next().unwrap();
        let check = |pair: &str| access.check_credentials(&headers(&[("cookie", pair)]));
        assert_eq!(check(&format!("other=1; {pair}")), Ok(()));
        assert_eq!(check("weir_console_80="), Err(Rejection::Credentials));
        let other_port = pair.replace("_80=", "_81=");
        assert_eq!(check(&other_port), Err(Rejection::Credentials));
    }

    #[test]
    fn the_oldest_cookie_is_displaced() {
        let access = AccessControl::new(80).unwrap();
        let trade = || access.trade(&access.link_secret()).unwrap().unwrap();
        let first = trade();
        (0..COOKIES_MAX).for_each(|_| drop(trade()));
        let pair = first.split(';').next().unwrap();
        let check = access.check_credentials(&headers(&[("cookie", pair)]));
        assert_eq!(check, Err(Rejection::Credentials));
    }
}
