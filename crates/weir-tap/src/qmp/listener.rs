//! The process that listens on a unix socket (`SO_PEERCRED` of unix(7)), since a path in a command
//! line does not identify it.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// The process that called listen(2) for the socket to which `stream` is connected; 0 if it is not
/// in this PID namespace.
///
/// # Errors
/// If the kernel returns an error.
pub fn listener(stream: &UnixStream) -> io::Result<u32> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the socket is open, and the kernel writes at most `bytes` bytes to `peer`.
    let done = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut bytes,
        )
    };
    match done {
        0 => Ok(u32::try_from(peer.pid).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listener_of_a_pair_is_the_process_that_made_it() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(listener(&one).unwrap(), std::process::id());
    }
}
