//! [`Peer`]: the remote end of a connection, as reported by the kernel.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// The remote end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Peer {
    /// An address on the network, or of this host's loopback interface.
    Tcp(SocketAddr),
    /// A process of this host, by the credentials of its socket (SO_PEERCRED, unix(7)).
    Local {
        /// Its user.
        uid: u32,
        /// Its process number when it connected; 0 if it has none in this PID namespace.
        pid: u32,
    },
}

impl Peer {
    /// The name of a peer that presents neither token nor certificate: its address or its user.
    pub fn name(&self) -> String {
        match self {
            Peer::Tcp(address) => address.ip().to_string(),
            Peer::Local { uid, .. } => format!("uid {uid}"),
        }
    }

    /// Its address for the relation `hosts`: an IP address, or `local`.
    pub fn address(&self) -> String {
        match self {
            Peer::Tcp(address) => address.ip().to_string(),
            Peer::Local { .. } => "local".to_owned(),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Tcp(address) => address.fmt(f),
            Peer::Local { uid, pid } => write!(f, "process {pid} of uid {uid}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_round_trips() {
        let local = Peer::Local { uid: 7, pid: 9 };
        for peer in [Peer::Tcp("10.0.0.1:80".parse().unwrap()), local] {
            let text = serde_json::to_string(&peer).unwrap();
            assert_eq!(serde_json::from_str::<Peer>(&text).unwrap(), peer);
        }
        // State files of earlier versions contain an address.
        let earlier: Peer = serde_json::from_str("\"[::1]:7\"").unwrap();
        assert_eq!(earlier.name(), "::1");
    }
}
