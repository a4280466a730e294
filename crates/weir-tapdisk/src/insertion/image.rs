//! The image that QEMU has open, by a path that is valid in this process.

use super::InsertionError;
use std::fs;
use std::path::{Path, PathBuf};

use crate::disk::Identity;
use rustix::fs::OFlags;
use serde_json::Value;

/// Maximum number of open files of a QEMU that are examined.
const OPEN_FILES_MAX: usize = 1 << 14;

/// The file or device that the process `pid` calls `filename`, as QEMU names the file of a node. It
/// is the file that the process has open, whatever else is at that path. `writes`: the process has
/// it open for writing. Otherwise a QEMU that is controlled by its guest could name any file that
/// it can merely see, and gain access to it through the tap.
///
/// # Errors
/// When no path refers to it.
pub fn image(
    pid: u32,
    filename: &str,
    writes: bool,
) -> Result<(PathBuf, Identity), InsertionError> {
    let named = PathBuf::from(plain(filename));
    let within = |folder: &str| Path::new("/proc").join(pid.to_string()).join(folder);
    let mut candidates = Vec::new();
    match named.strip_prefix("/") {
        Ok(below) => {
            candidates.push(named.clone());
            candidates.push(within("root").join(below));
        }
        Err(_) => {
            let folder = fs::read_link(within("cwd"));
            candidates.extend(folder.map(|folder| folder.join(&named)));
            candidates.push(within("cwd").join(&named));
        }
    }
    let open = fs::read_dir(within("fd")).map_err(|error| {
        InsertionError::failed(format_args!(
            "the open files of QEMU (process {pid}) cannot be read: {error}; run as root or as \
             QEMU's user"
        ))
    })?;
    let open = open.flatten().take(OPEN_FILES_MAX);
    let open: Vec<Identity> = open
        .filter(|file| is_open_for(&within("fdinfo").join(file.file_name()), writes))
        .filter_map(|file| Some(Identity::of(&fs::metadata(file.path()).ok()?)))
        .collect();
    let known = |path: PathBuf| {
        let identity = Identity::of(&fs::metadata(&path).ok()?);
        open.contains(&identity).then_some((path, identity))
    };
    candidates.into_iter().find_map(known).ok_or_else(|| {
        InsertionError::failed(format_args!(
            "{}: this is not the file that QEMU (process {pid}) has open for {}; it was renamed \
             or replaced, or QEMU received a file descriptor: shut the VM down and start it with \
             a tap instead (docs/tapdisk.md)",
            named.display(),
            if writes { "writing" } else { "reading" }
        ))
    })
}

/// Whether a file is open for reading, and for writing too if `writes`, by its /proc/PID/fdinfo/FD
/// (proc_pid_fdinfo(5)).
fn is_open_for(fdinfo: &Path, writes: bool) -> bool {
    let text = fs::read_to_string(fdinfo).unwrap_or_default();
    let flags = text.lines().find_map(|line| {
        let octal = line.strip_prefix("flags:")?.trim();
        u32::from_str_radix(octal, 8).ok()
    });
    flags.map(OFlags::from_bits_retain).is_some_and(|flags| {
        let mode = flags & OFlags::RWMODE;
        let suits = mode == OFlags::RDWR || (mode == OFlags::RDONLY && !writes);
        suits && !flags.contains(OFlags::PATH)
    })
}

/// The file name in QEMU's form for options that a name cannot express.
fn plain(filename: &str) -> String {
    let json = filename.strip_prefix("json:");
    let options = json.and_then(|text| serde_json::from_str::<Value>(text).ok());
    let name = options.as_ref().and_then(|o| o["filename"].as_str());
    name.unwrap_or(filename).to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    #[test]
    fn an_image_is_the_file_that_the_process_has_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.raw");
        let name = path.to_str().unwrap();
        fs::write(&path, "x").unwrap();
        let pid = std::process::id();
        assert!(image(pid, name, false).is_err(), "nobody has it open");
        let seen = fs::File::options()
            .read(true)
            .custom_flags(OFlags::PATH.bits() as i32)
            .open(&path);
        assert!(image(pid, name, false).is_err(), "it can only be seen");
        drop(seen.unwrap());
        let read = fs::File::open(&path).unwrap();
        assert_eq!(image(pid, name, false).unwrap().0, path);
        assert!(image(pid, name, true).is_err(), "it can only be read");
        drop(read);
        let _open = fs::File::options().read(true).write(true).open(&path);
        assert_eq!(image(pid, name, true).unwrap().0, path);
        let options = format!(r#"json:{{"driver":"file","filename":"{name}","locking":"off"}}"#);
        assert_eq!(image(pid, &options, true).unwrap().0, path);
        fs::rename(&path, folder.path().join("b.raw")).unwrap();
        fs::write(&path, "another").unwrap();
        let error = image(pid, name, true).unwrap_err().to_string();
        assert!(error.contains("renamed or replaced"), "{error}");
    }
}
