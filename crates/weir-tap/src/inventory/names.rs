//! Decides which VM has a name: any user can start a process that claims any name.
//!
//! Of several VMs that claim one name, the one with the best [`NameRank`] gets it; the process
//! number is appended to the names of the others. Claims of different users are reported as
//! [`NameConflict`]s.

use std::fmt;

use serde::{Deserialize, Serialize};
use weir_model::Symbol;

use super::Scene;
use super::found::FoundVm;
use super::process::Process;

/// User ids below are those of the system's services (`SYS_UID_MAX` of login.defs(5)).
const SYSTEM_UIDS: u32 = 1000;

/// Prefix of a name that is a process number instead: `pid:4711`.
pub const BY_PID: &str = "pid:";

/// The precedence of a claim to a name, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NameRank {
    /// Declared by the user of weir, or in the state file of the system's libvirt.
    Vouched,
    /// A process of root whose program file belongs to root.
    Root,
    /// A process of a service's user, whose program file belongs to root.
    Service,
    /// A process of another user, whose program file belongs to root.
    User,
    /// A process whose program file belongs to another user, or cannot be read.
    OtherProgram,
    /// A process that names a QMP socket on which another process listens.
    Refuted,
}

impl NameRank {
    /// The standing of a VM; `process` is its own, or the first that works for it.
    pub(super) fn of(scene: &Scene, vm: &FoundVm, process: Option<&Process>) -> NameRank {
        if vm.vouched {
            return NameRank::Vouched;
        }
        let Some(process) = process else {
            return NameRank::OtherProgram;
        };
        if scene
            .monitors
            .is_foreign((process.pid, process.start_ticks))
        {
            return NameRank::Refuted;
        }
        match process.uid {
            _ if !process.program_is_roots => NameRank::OtherProgram,
            Some(0) => NameRank::Root,
            Some(uid) if uid < SYSTEM_UIDS => NameRank::Service,
            _ => NameRank::User,
        }
    }
}

/// A name that processes of different users claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameConflict {
    /// The name.
    pub name: Symbol,
    /// The claims, the best first.
    pub claims: Vec<Claim>,
    /// Whether the best claims have equal standing: then the name refers to none of them.
    pub ambiguous: bool,
}

/// A VM that claims a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The name that it has instead, or the claimed name.
    pub vm: Symbol,
    /// Its process.
    pub pid: Option<u32>,
    /// The user of that process.
    pub uid: Option<u32>,
    /// The precedence of the claim.
    pub standing: NameRank,
}

impl NameConflict {
    /// The conflict about `name`, if `claims` are of different users.
    pub(super) fn of(name: &str, mut claims: Vec<Claim>) -> Option<NameConflict> {
        claims.sort_by_key(|claim| claim.standing);
        let best = claims.first()?;
        let rival = |claim: &Claim| claim.uid != best.uid;
        if !claims.iter().any(rival) {
            return None;
        }
        let is_best = |claim: &Claim| claim.standing == best.standing;
        let ambiguous = best.standing != NameRank::Vouched
            && claims.iter().any(|claim| is_best(claim) && rival(claim));
        Some(NameConflict {
            name: Symbol::try_new(name).ok()?,
            ambiguous,
            claims,
        })
    }
}

impl fmt::Display for NameConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |n: Option<u32>| n.map_or("unknown".into(), |n| n.to_string());
        let claims = self.claims.iter().map(|claim| {
            let (pid, uid) = (number(claim.pid), number(claim.uid));
            format!("{} ({BY_PID}{pid}, uid {uid})", claim.vm)
        });
        let claims: Vec<String> = claims.collect();
        write!(
            f,
            "VM name {} is claimed by processes of several users: {}",
            self.name,
            claims.join(", ")
        )?;
        match self.ambiguous {
            true => f.write_str("; the name identifies none of them"),
            false => write!(f, "; the name identifies {}", claims[0]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(vm: &str, pid: u32, uid: u32, standing: NameRank) -> Claim {
        Claim {
            vm: Symbol::new(vm),
            pid: Some(pid),
            uid: Some(uid),
            standing,
        }
    }

    #[test]
    fn the_best_standing_has_the_name_and_equal_ones_share_it_with_no_one() {
        let fake = claim("web-7", 7, 1000, NameRank::OtherProgram);
        let real = claim("web", 9, 0, NameRank::Root);
        let conflict = NameConflict::of("web", vec![fake.clone(), real]).unwrap();
        assert!(!conflict.ambiguous);
        assert_eq!(
            conflict.to_string(),
            "VM name web is claimed by processes of several users: web (pid:9, uid 0), web-7 \
             (pid:7, uid 1000); the name identifies web (pid:9, uid 0)"
        );
        let second = claim("web", 8, 1001, NameRank::OtherProgram);
        let conflict = NameConflict::of("web", vec![fake.clone(), second]).unwrap();
        assert!(conflict.ambiguous);
        assert!(
            conflict
                .to_string()
                .ends_with("the name identifies none of them")
        );
        let own = claim("web", 8, 1000, NameRank::OtherProgram);
        assert_eq!(NameConflict::of("web", vec![fake, own]), None);
    }
}
