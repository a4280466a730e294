//! What the standard streams were when the process began.
//!
//! Rust's runtime opens `/dev/null` in place of a standard stream that is closed
//! (`library/std/src/sys/pal/unix/mod.rs`, `sanitize_standard_fds`), so that afterwards an answer
//! written to a closed standard output vanishes without an error. Functions in `.init_array` run
//! before the runtime.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

static CLOSED: AtomicBool = AtomicBool::new(false);

#[used]
// SAFETY: the dynamic linker calls what stands in this section once, before `main`; the function
// calls nothing that needs the runtime.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: F_GETFD takes no argument and changes nothing.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    CLOSED.store(flags == -1, Ordering::Relaxed);
}

/// Whether standard output was closed when the process began.
pub fn standard_output_was_closed() -> bool {
    // So that the linker keeps it.
    black_box(&LOOK);
    CLOSED.load(Ordering::Relaxed)
}
