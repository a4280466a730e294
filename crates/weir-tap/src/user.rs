//! [`User`]: the user and the groups of a process, and acting as that user, temporarily or
//! permanently.

#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::thread;

use rustix::fs::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// The user and the groups with which a process opens files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
}

impl User {
    /// The user and groups of process `pid`.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn of(pid: u32) -> io::Result<User> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        User::parse(&status).ok_or_else(|| io::Error::other("no owner in the process's status"))
    }

    /// Reads proc_pid_status(5): real, effective, saved and file system ids.
    fn parse(status: &str) -> Option<User> {
        let numbers = |key: &str| -> Option<Vec<u32>> {
            let line = status.lines().find_map(|l| l.strip_prefix(key))?;
            line.split_whitespace().map(|n| n.parse().ok()).collect()
        };
        Some(User {
            uid: *numbers("Uid:")?.get(3)?,
            gid: *numbers("Gid:")?.get(3)?,
            groups: numbers("Groups:")?,
        })
    }

    /// Runs `action` with this user's rights, in a separate thread: the system calls used change
    /// the calling thread only.
    ///
    /// # Errors
    /// If the kernel refuses, or `action` fails.
    pub fn act<T: Send>(&self, action: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let become_user = || -> io::Result<()> {
            let groups: Vec<Gid> = self.groups.iter().copied().map(Gid::from_raw).collect();
            let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
            set_thread_groups(&groups)?;
            set_thread_res_gid(gid, gid, gid)?;
            Ok(set_thread_res_uid(uid, uid, uid)?)
        };
        thread::scope(|scope| {
            let acting = thread::Builder::new().spawn_scoped(scope, || {
                become_user()?;
                action()
            })?;
            acting.join().expect("system calls do not panic")
        })
    }

    /// Permanently makes this the user of the whole process. All threads lose root's capabilities.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn become_for_good(&self) -> io::Result<()> {
        let done = |result: libc::c_int| match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        // The C library's functions change all threads of the process (nptl(7)), the system calls
        // only one.
        // SAFETY: the length of the list of groups is passed with it, and the list is copied.
        done(unsafe { libc::setgroups(self.groups.len(), self.groups.as_ptr()) })?;
        // SAFETY: plain numbers.
        done(unsafe { libc::setresgid(self.gid, self.gid, self.gid) })?;
        // SAFETY: plain numbers.
        done(unsafe { libc::setresuid(self.uid, self.uid, self.uid) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ids_of_the_file_system_are_read() {
        let status = "Name:\tqemu\nUid:\t1\t2\t3\t64055\nGid:\t5\t6\t7\t107\nGroups:\t36 107 \n";
        let user = User {
            uid: 64_055,
            gid: 107,
            groups: vec![36, 107],
        };
        assert_eq!(User::parse(status), Some(user));
        assert_eq!(User::parse("Name:\tqemu\n"), None);
        let own = User::of(std::process::id()).unwrap();
        assert_eq!(own.uid, rustix::process::geteuid().as_raw());
    }
}
