//! [`Address`]: where a monitor is: `HOST`, `HOST:PORT`, `http://HOST:PORT`, `https://HOST:PORT`.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use crate::WireError;

/// The port of a monitor unless another is given.
pub const DEFAULT_PORT: u16 = 7733;

/// Where a monitor is, and whether it is to be spoken to in TLS.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// A name or an IP address, IPv6 without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// Said by `http://` (no) and `https://` (yes); without either, TLS is spoken when an authority
    /// is given.
    pub tls: Option<bool>,
}

impl FromStr for Address {
    type Err = WireError;

    fn from_str(text: &str) -> Result<Address, WireError> {
        let wrong = |why: &str| WireError::Address {
            text: text.to_owned(),
            why: why.to_owned(),
        };
        let (tls, rest) = match text.split_once("://") {
            Some(("https" | "grpc+tls", rest)) => (Some(true), rest),
            Some(("http" | "grpc" | "grpc+tcp", rest)) => (Some(false), rest),
            Some((scheme, _)) => {
                return Err(wrong(&format!("`{scheme}://` is not http:// or https://")));
            }
            None => (None, text),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = split_port(rest).ok_or_else(|| wrong("a bracket is not closed"))?;
        let port = match port {
            None => DEFAULT_PORT,
            Some(port) => match port.parse() {
                Ok(port) if port > 0 => port,
                _ => return Err(wrong(&format!("`{port}` is not a port from 1 to 65535"))),
            },
        };
        let is_name = |c: char| c.is_alphanumeric() || "-._".contains(c);
        let is_ip6 = host.contains(':') && host.parse::<Ipv6Addr>().is_ok();
        match host {
            "" => Err(wrong("the host is missing")),
            host if is_ip6 || host.chars().all(is_name) => Ok(Address {
                host: host.to_owned(),
                port,
                tls,
            }),
            host => Err(wrong(&format!("`{host}` is not the name of a host"))),
        }
    }
}

/// Host and port of `host:port`, `[v6]:port`, `v6` or `host`; `None` if a bracket is not closed.
fn split_port(text: &str) -> Option<(&str, Option<&str>)> {
    if let Some(inner) = text.strip_prefix('[') {
        let (host, rest) = inner.split_once(']')?;
        return match rest {
            "" => Some((host, None)),
            rest => Some((host, Some(rest.strip_prefix(':')?))),
        };
    }
    match text.split_once(':') {
        Some((host, port)) if !port.contains(':') => Some((host, Some(port))),
        _ => Some((text, None)),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, shown: &str, tls: Option<bool>) {
        let address: Address = text.parse().unwrap();
        assert_eq!((address.to_string().as_str(), address.tls), (shown, tls));
    }

    #[test]
    fn what_is_left_out_is_the_default() {
        check("monitor", "monitor:7733", None);
        check("10.0.0.1:80", "10.0.0.1:80", None);
        check("https://m.example.org", "m.example.org:7733", Some(true));
        check("http://m:1/", "m:1", Some(false));
        check("[::1]:7000", "[::1]:7000", None);
        check("::1", "[::1]:7733", None);
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_reason() {
        for (text, why) in [
            ("", "the host is missing"),
            ("m:70000", "`70000` is not a port"),
            ("m:0", "`0` is not a port"),
            ("ftp://m", "`ftp://` is not"),
            ("[::1", "a bracket"),
            ("a b", "`a b` is not the name of a host"),
            ("m/path", "`m/path` is not the name"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
