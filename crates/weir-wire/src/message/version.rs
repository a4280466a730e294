//! [`Version`]: the version of the protocol, and which versions work together.

use std::fmt;

use crate::error::Malformed;

/// The version of this program; `proto/weir.proto` lists what changed.
pub const VERSION: Version = Version { major: 4, minor: 2 };

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Peers of different major versions do not work together.
    pub major: u32,
    /// Counted from 0 in each major version.
    pub minor: u32,
}

impl Version {
    /// The version that both sides use: the smaller one. `None` if the major versions differ, or
    /// the minor ones by more than one.
    pub fn common(self, peer: Version) -> Option<Version> {
        let compatible = self.major == peer.major && self.minor.abs_diff(peer.minor) <= 1;
        compatible.then(|| self.min(peer))
    }

    /// The version that this process and a peer with this version use; `roles` are the peer's and
    /// that of this process.
    pub(super) fn agreed(major: u32, minor: u32, roles: [&str; 2]) -> Result<Version, Malformed> {
        let peer = Version { major, minor };
        let [theirs, ours] = roles;
        VERSION.common(peer).ok_or_else(|| {
            Malformed(format!(
                "the {theirs} uses version {peer} of the protocol, this {ours} version {VERSION}; \
                 run the same release of weir on both"
            ))
        })
    }
}

/// A part of the protocol that not every minor version has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// [`AgentMessage::Capabilities`](super::AgentMessage).
    Capabilities,
    /// [`MonitorMessage::Actions`](super::MonitorMessage).
    Actions,
}

impl Version {
    /// Whether peers that use this version use `feature`.
    pub fn has(self, feature: Feature) -> bool {
        match feature {
            Feature::Capabilities => self.minor >= 1,
            Feature::Actions => self.minor >= 2,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_differ_by_one_minor_number_use_the_smaller_one() {
        let common = |major, minor| VERSION.common(Version { major, minor });
        assert_eq!(common(4, 2), Some(VERSION));
        assert_eq!(common(4, 3), Some(VERSION));
        assert_eq!(common(4, 1), Some(Version { major: 4, minor: 1 }));
        assert_eq!([common(4, 4), common(3, 2), common(5, 2)], [None; 3]);
    }
}
