//! [`Obstacle`]: why this process cannot load BPF programs, with the remedy.
//!
//! The kernel refuses with EPERM for several reasons. What can be read in `/proc` and `/sys`
//! distinguishes them.

use std::fs;
use std::path::Path;

use super::devices::read_text;
use super::kernel::BTF;
use crate::TapError;

/// A cause and its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// The cause.
    pub cause: String,
    /// The remedy.
    pub remedy: String,
}

/// The text of `/proc/self/uid_map` in the initial user namespace: each id is itself.
const ALL_IDS: [&str; 3] = ["0", "0", "4294967295"];

const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

impl Obstacle {
    fn new(cause: impl Into<String>, remedy: impl Into<String>) -> Obstacle {
        Obstacle {
            cause: cause.into(),
            remedy: remedy.into(),
        }
    }

    /// The reason for which the kernel refused a program with EPERM or EACCES; `is_verified`: the
    /// verifier wrote messages, so bpf(2) itself is permitted.
    pub fn of_refusal(is_verified: bool) -> Obstacle {
        let found = Self::of_namespace().or_else(Self::of_capabilities);
        found.unwrap_or_else(|| match is_verified {
            true => Obstacle::new(
                "the kernel's verifier rejects the program",
                "run another kernel, and report the messages that --verbose prints",
            ),
            false => Obstacle::new(
                "a seccomp filter or a security module forbids bpf(2)",
                "permit bpf(2) in the seccomp profile of the container or service",
            ),
        })
    }

    /// The user namespace of this process, if its capabilities do not permit BPF.
    pub fn of_namespace() -> Option<Obstacle> {
        // Without user namespaces the kernel has no such file.
        let map = read_text(Path::new("/proc/self/uid_map"))?;
        let is_initial = map.split_whitespace().eq(ALL_IDS);
        (!is_initial).then(|| {
            Obstacle::new(
                "the capabilities of a user namespace (an unprivileged container) do not permit \
                 BPF",
                "run weir on the host, or in a container that has CAP_BPF and CAP_PERFMON and no \
                 user namespace",
            )
        })
    }

    /// The capabilities that this thread lacks to load programs, if it lacks any.
    pub fn of_capabilities() -> Option<Obstacle> {
        let set = effective();
        let has = |capability: u32| set >> capability & 1 == 1;
        let cause = match (has(CAP_BPF), has(CAP_PERFMON)) {
            _ if has(CAP_SYS_ADMIN) => return None,
            (true, true) => return None,
            (false, false) => "CAP_BPF and CAP_PERFMON are missing",
            (true, false) => "CAP_PERFMON is missing",
            (false, true) => "CAP_BPF is missing",
        };
        let remedy = "run as root, or grant CAP_BPF and CAP_PERFMON";
        Some(Obstacle::new(cause, remedy))
    }

    /// The lockdown mode that forbids helpers which read kernel memory, if it is in use. The
    /// programs of block I/O use none, so they are loaded all the same.
    pub fn of_lockdown() -> Option<Obstacle> {
        let is_restricted = lockdown().as_deref() == Some("confidentiality");
        is_restricted.then(|| {
            Obstacle::new(
                "lockdown=confidentiality forbids helpers that read kernel memory",
                "boot with lockdown=integrity or without lockdown",
            )
        })
    }

    /// The reason for which the type information cannot be read.
    pub fn of_types(error: &str) -> Obstacle {
        let (found, remedy) = match fs::metadata(BTF) {
            Ok(_) => (
                error,
                "permit this process to read it, or run another kernel",
            ),
            Err(_) => (
                "no such file",
                "run a kernel with CONFIG_DEBUG_INFO_BTF=y; in a container, mount the host's /sys",
            ),
        };
        let cause = format!("the kernel's type information (BTF) is missing: {BTF}: {found}");
        Obstacle::new(cause, remedy)
    }

    /// As an error.
    pub fn unavailable(self) -> TapError {
        TapError::Unavailable {
            what: self.cause,
            remedy: self.remedy,
        }
    }
}

/// The lockdown mode in use; `None` if the kernel does not report it.
pub fn lockdown() -> Option<String> {
    let text = read_text(Path::new("/sys/kernel/security/lockdown"))?;
    text.split(['[', ']']).nth(1).map(str::to_owned)
}

/// The effective capabilities of this thread.
pub fn effective() -> u64 {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    line.and_then(|l| u64::from_str_radix(l.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use weir_testing::skipped;

    use super::Obstacle;

    #[test]
    fn messages_of_the_verifier_mean_that_bpf_is_permitted() {
        if let Some(found) = Obstacle::of_namespace().or_else(Obstacle::of_capabilities) {
            return skipped("messages of the verifier", &found.cause);
        }
        let cause = |is_verified| Obstacle::of_refusal(is_verified).cause;
        assert!(cause(true).contains("verifier"));
        assert!(cause(false).contains("seccomp"));
    }
}
