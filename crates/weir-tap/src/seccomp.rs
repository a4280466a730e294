//! System calls that no thread of weir needs after the start ([`deny_all_threads`]), and those that
//! threads which process external input do not need ([`deny_programs`]): seccomp(2), filters of
//! classic BPF.
//!
//! A denied call fails with EPERM. The denied calls access other processes, the kernel, mounts,
//! clocks or identities: a compromised thread cannot use the capabilities of other threads of the
//! process for them.

#![allow(unsafe_code)]

use std::io;

use libc::{sock_filter, sock_fprog};

/// Other processes' memory and descriptors, the kernel's code, mounts and namespaces, clocks, keys,
/// and other users.
const DENIED: &[libc::c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_acct,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_open_by_handle_at,
    libc::SYS_mknodat,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_userfaultfd,
    libc::SYS_fanotify_init,
    libc::SYS_personality,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
];

/// Executing programs and attaching probes.
const DENIED_PROGRAMS: &[libc::c_long] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_perf_event_open,
];

/// `AUDIT_ARCH_*` of include/uapi/linux/audit.h.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Numbers from this one on belong to the x32 ABI (`__X32_SYSCALL_BIT`); other ABIs do not use
/// them.
const X32: u32 = 0x4000_0000;

/// Offsets in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;

/// Denies [`DENIED`] to all threads of the process and sets no_new_privs in them; the calling
/// thread must have it already.
///
/// # Errors
/// If the kernel refuses. A kernel without seccomp is not an error.
pub fn deny_all_threads() -> io::Result<()> {
    install(DENIED, libc::SECCOMP_FILTER_FLAG_TSYNC)
}

/// Denies [`DENIED_PROGRAMS`] to the calling thread and those that it starts.
///
/// # Errors
/// As [`deny_all_threads`].
pub fn deny_programs() -> io::Result<()> {
    install(DENIED_PROGRAMS, 0)
}

fn install(denied: &[libc::c_long], flags: libc::c_ulong) -> io::Result<()> {
    let mut filter = filter(denied);
    let program = sock_fprog {
        len: u16::try_from(filter.len()).expect("a filter has few instructions"),
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the program and its instructions outlive the call, which copies them.
    let done = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::c_ulong::from(libc::SECCOMP_SET_MODE_FILTER),
            flags,
            &raw const program,
        )
    };
    match done {
        0 => Ok(()),
        // The number of a thread whose filters differ; weir creates none.
        thread if thread > 0 => Err(io::Error::other(format!(
            "thread {thread} has another filter"
        ))),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
            error => Err(error),
        },
    }
}

fn filter(denied: &[libc::c_long]) -> Vec<sock_filter> {
    let load = |at| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at);
    let deny = || statement(libc::BPF_RET, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    let allow = statement(libc::BPF_RET, libc::SECCOMP_RET_ALLOW);
    // System call numbers differ between architectures, so calls of another one are all denied.
    let mut filter = vec![load(ARCHITECTURE_AT)];
    filter.extend([jump(libc::BPF_JEQ, ARCHITECTURE, 1, 0), deny()]);
    filter.push(load(NUMBER_AT));
    filter.extend([jump(libc::BPF_JGE, X32, 0, 1), deny()]);
    for number in denied {
        let number = u32::try_from(*number).expect("numbers of system calls are small");
        filter.extend([jump(libc::BPF_JEQ, number, 0, 1), deny()]);
    }
    filter.push(allow);
    filter
}

fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

/// Jumps over `jt` instructions if the comparison of the accumulator with `k` holds, else over
/// `jf`.
fn jump(comparison: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter {
        code: (libc::BPF_JMP | comparison) as u16,
        jt,
        jf,
        k,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of the filter for a system call, as evaluated by the kernel.
    fn verdict(filter: &[sock_filter], architecture: u32, number: u32) -> u32 {
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let instruction = &filter[at];
            at += 1;
            let jump = |taken: bool| {
                usize::from(if taken {
                    instruction.jt
                } else {
                    instruction.jf
                })
            };
            match u32::from(instruction.code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    accumulator = match instruction.k {
                        NUMBER_AT => number,
                        _ => architecture,
                    }
                }
                code if code == libc::BPF_JMP | libc::BPF_JEQ => {
                    at += jump(accumulator == instruction.k)
                }
                code if code == libc::BPF_JMP | libc::BPF_JGE => {
                    at += jump(accumulator >= instruction.k)
                }
                _ => return instruction.k,
            }
        }
    }

    #[test]
    fn what_is_denied_is_denied_and_nothing_else() {
        let filter = filter(DENIED);
        let denied = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        for number in 0..600 {
            let expected = match DENIED.contains(&libc::c_long::from(number)) {
                true => denied,
                false => libc::SECCOMP_RET_ALLOW,
            };
            assert_eq!(
                verdict(&filter, ARCHITECTURE, number as u32),
                expected,
                "{number}"
            );
        }
        assert_eq!(verdict(&filter, ARCHITECTURE, X32 + 1), denied);
        assert_eq!(verdict(&filter, ARCHITECTURE ^ 1, 1), denied);
    }
}
