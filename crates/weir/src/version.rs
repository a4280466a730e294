//! `weir --version`: the version; with `--verbose` what it was built from.

use ring::digest::{SHA256, digest};
use weir_tap::ebpf::version::{OBJECTS, libbpf_version};

/// The commit, in builds of `cargo xtask package`.
const COMMIT: Option<&str> = option_env!("WEIR_COMMIT");

/// The C library.
const LIBC: &str = if cfg!(target_env = "musl") {
    "musl"
} else {
    "gnu"
};

/// The version of this program, one line.
pub fn short() -> String {
    format!("weir {}\n", env!("CARGO_PKG_VERSION"))
}

/// The version with commit, target, features, libbpf and the SHA-256 of each BPF object.
pub fn long() -> String {
    let commit = COMMIT.unwrap_or("not recorded");
    let arch = std::env::consts::ARCH;
    let features = match cfg!(feature = "vendored") {
        true => "vendored",
        false => "none",
    };
    let mut text = format!(
        "{}commit: {commit}\ntarget: {arch}-linux-{LIBC}\nfeatures: {features}\nlibbpf: {}\n",
        short(),
        libbpf_version()
    );
    for (name, content) in OBJECTS {
        let sum = digest(&SHA256, content);
        let sum: String = sum.as_ref().iter().map(|b| format!("{b:02x}")).collect();
        text.push_str(&format!("BPF object: {sum}  {name}\n"));
    }
    text
}
