//! [`Address`]: the address of a monitor: `HOST`, `HOST:PORT`, `http://HOST:PORT`,
//! `https://HOST:PORT`, `unix:PATH`; `unix:` alone is the default socket of this host.

use std::env;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::process::geteuid;

use crate::WireError;

/// The default port of a monitor.
pub const DEFAULT_PORT: u16 = 7733;

/// The address of a monitor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// On the network.
    Tcp {
        /// A name or an IP address, IPv6 without brackets.
        host: String,
        /// The TCP port.
        port: u16,
        /// Set by `http://` (no TLS) and `https://` (TLS); without either, TLS is used if an
        /// authority is given.
        tls: Option<bool>,
    },
    /// On this host, at a unix socket.
    Unix(PathBuf),
}

/// The name of the monitor's socket in its directory.
const SOCKET_NAME: &str = "monitor.sock";

/// The directory of the system's monitor.
const SYSTEM_FOLDER: &str = "/run/weir-monitor";

/// The default socket for a monitor started by this process: in the runtime directory of its
/// service (systemd.exec(5), RUNTIME_DIRECTORY), of the system for root, else of the user. `None`
/// if the user has none.
pub fn socket_to_serve() -> Option<PathBuf> {
    let service = env::var_os("RUNTIME_DIRECTORY").and_then(|all| {
        let first = env::split_paths(&all).next()?;
        (!first.as_os_str().is_empty()).then_some(first)
    });
    let system = || geteuid().is_root().then(|| PathBuf::from(SYSTEM_FOLDER));
    let folder = service.or_else(system).or_else(user_folder)?;
    Some(folder.join(SOCKET_NAME))
}

/// The default socket of a monitor on this host: the user's own if it exists, else the system's.
pub fn socket_to_dial() -> PathBuf {
    let own = match geteuid().is_root() {
        true => None,
        false => user_folder().map(|folder| folder.join(SOCKET_NAME)),
    };
    // A killed monitor leaves its socket file behind.
    own.filter(|path| UnixStream::connect(path).is_ok())
        .unwrap_or_else(|| Path::new(SYSTEM_FOLDER).join(SOCKET_NAME))
}

fn user_folder() -> Option<PathBuf> {
    let runtime = env::var_os("XDG_RUNTIME_DIR")?;
    Some(Path::new(&runtime).join("weir-monitor"))
}

impl FromStr for Address {
    type Err = WireError;

    fn from_str(text: &str) -> Result<Address, WireError> {
        let wrong = |why: &str| WireError::Address {
            text: text.to_owned(),
            why: why.to_owned(),
        };
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Address::Unix(match path {
                "" => socket_to_dial(),
                path => path.into(),
            }));
        }
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
            host if is_ip6 || host.chars().all(is_name) => Ok(Address::Tcp {
                host: host.to_owned(),
                port,
                tls,
            }),
            host => Err(wrong(&format!("`{host}` is not a host name"))),
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

impl Address {
    /// Whether connections stay within this host: the loopback interface, or a unix socket.
    pub fn is_local(&self) -> bool {
        match self {
            Address::Tcp { host, .. } => {
                let ip = host.parse::<IpAddr>();
                host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
            }
            Address::Unix(_) => true,
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Tcp {
            host: address.ip().to_string(),
            port: address.port(),
            tls: None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port, .. } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, shown: &str, tls: Option<bool>) {
        let address: Address = text.parse().unwrap();
        let asked = match address {
            Address::Tcp { tls, .. } => tls,
            Address::Unix(_) => None,
        };
        assert_eq!((address.to_string().as_str(), asked), (shown, tls));
    }

    #[test]
    fn omitted_parts_have_defaults() {
        check("monitor", "monitor:7733", None);
        check("10.0.0.1:80", "10.0.0.1:80", None);
        check("https://m.example.org", "m.example.org:7733", Some(true));
        check("http://m:1/", "m:1", Some(false));
        check("[::1]:7000", "[::1]:7000", None);
        check("::1", "[::1]:7733", None);
        check("unix:/run/m.sock", "unix:/run/m.sock", None);
    }

    #[test]
    fn an_invalid_address_is_rejected_with_the_reason() {
        for (text, why) in [
            ("", "the host is missing"),
            ("m:70000", "`70000` is not a port"),
            ("m:0", "`0` is not a port"),
            ("ftp://m", "`ftp://` is not"),
            ("[::1", "a bracket"),
            ("a b", "`a b` is not a host name"),
            ("m/path", "`m/path` is not a host name"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
