//! The state of the standard streams at the start of the process.
//!
//! Rust's runtime opens `/dev/null` in place of a standard stream that is closed
//! (`library/std/src/sys/pal/unix/mod.rs`, `sanitize_standard_fds`), so that output to a closed
//! standard output is lost without an error. Functions in `.init_array` run before the runtime.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

static CLOSED: AtomicBool = AtomicBool::new(false);

#[used]
// SAFETY: the dynamic linker calls the functions in this section once, before `main`; the function
// calls nothing that needs the runtime.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: F_GETFD takes no argument and changes nothing.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    CLOSED.store(flags == -1, Ordering::Relaxed);
}

/// True if standard output was closed at the start of the process.
pub fn standard_output_was_closed() -> bool {
    // A use, so that the linker keeps the symbol.
    black_box(&LOOK);
    CLOSED.load(Ordering::Relaxed)
}
