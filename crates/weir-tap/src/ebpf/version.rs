//! What a build contains: the version of libbpf and the compiled kernel programs.

#![allow(unsafe_code)]

use std::ffi::CStr;

use super::programs::OBJECT;
use crate::probe;

/// The compiled kernel programs that [`super::open`] loads: name and content of each object.
pub static OBJECTS: &[(&str, &[u8])] = &[("tap.bpf.o", OBJECT), ("probe.bpf.o", probe::OBJECT)];

/// The version of libbpf with its prefix, for example `v1.7`.
pub fn libbpf_version() -> String {
    // SAFETY: the function has no preconditions, and returns a constant that ends with a zero byte.
    let version = unsafe { CStr::from_ptr(libbpf_rs::libbpf_sys::libbpf_version_string()) };
    version.to_string_lossy().into_owned()
}
