//! [`Overlays`]: the name that a file below an overlayfs has in that.
//!
//! The layers of an overlayfs are directories of other file systems. A file in one of them has the
//! same name below the mount point, unless a directory was renamed there (`redirect_dir=on`). A
//! lower directory may belong to several mounts, as images of containers do: then it is not known
//! which of them is in use.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_model::Symbol;

/// The mounts of this namespace. It reports its changes to poll(2).
const MOUNTS: &str = "/proc/self/mountinfo";

/// Maximum number of cached names.
const KNOWN_MAX: usize = 1 << 16;

/// A directory that an overlayfs shows at its mount point.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Layer {
    directory: String,
    mount_point: String,
    /// Directories that were renamed above have the new names there.
    may_be_renamed: bool,
}

/// The layers of all mounts of overlayfs, and the names found so far.
#[derive(Debug, Default)]
pub struct Overlays {
    mounts: Option<File>,
    layers: Vec<Layer>,
    known: HashMap<Symbol, Option<Symbol>>,
}

impl Overlays {
    /// The name in an overlayfs of the file with this path; `None` without one, or with several.
    pub fn name_of(&mut self, path: Symbol) -> Option<Symbol> {
        self.refresh();
        if self.layers.is_empty() {
            return None;
        }
        if let Some(known) = self.known.get(&path) {
            return *known;
        }
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        let name = name_in(&self.layers, path.as_str());
        let name = name.and_then(|name| Symbol::try_new(&name).ok());
        self.known.insert(path, name);
        name
    }

    /// Reads the mounts again if they have changed.
    fn refresh(&mut self) {
        let Some(file) = &mut self.mounts else {
            self.mounts = File::open(MOUNTS).ok();
            return self.read();
        };
        let mut polled = [PollFd::new(file, PollFlags::PRI)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if poll(&mut polled, Some(&now)).is_ok_and(|changed| changed > 0) {
            self.read();
        }
    }

    fn read(&mut self) {
        let mut text = Vec::new();
        if let Some(file) = &mut self.mounts
            && file
                .rewind()
                .and_then(|()| file.read_to_end(&mut text))
                .is_ok()
        {
            self.layers = layers_in(&String::from_utf8_lossy(&text), &resolved);
            self.known.clear();
        }
    }
}

/// The directory without symbolic links; `None` if it cannot be read, or is relative to a directory
/// that the mount table does not have.
fn resolved(directory: &str) -> Option<String> {
    if !directory.starts_with('/') {
        return None;
    }
    let path = fs::canonicalize(Path::new(directory)).ok()?;
    Some(path.to_str()?.to_owned())
}

/// The only name that one of the layers gives to the file; `None` without one.
fn name_in(layers: &[Layer], path: &str) -> Option<String> {
    let mut names = layers.iter().filter_map(|layer| {
        let below = path.strip_prefix(layer.directory.as_str())?;
        let name = format!("{}{below}", layer.mount_point);
        below
            .starts_with('/')
            .then_some((name, layer.may_be_renamed))
    });
    let (name, may_be_renamed) = names.next()?;
    let is_only = names.all(|(other, _)| other == name);
    (is_only && !may_be_renamed).then_some(name)
}

/// The layers in a mount table (proc_pid_mountinfo(5)).
fn layers_in(mounts: &str, resolve: &dyn Fn(&str) -> Option<String>) -> Vec<Layer> {
    let mut layers = Vec::new();
    for line in mounts.lines() {
        let Some((mount, system)) = line.split_once(" - ") else {
            continue;
        };
        let mut system = system.splitn(3, ' ');
        let (kind, options) = (system.next(), system.nth(1));
        // Of a mount of a part of the overlayfs, the layers are not those directories.
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (mount.next(), mount.next());
        let (Some("overlay"), Some(options), Some("/"), Some(point)) = (kind, options, root, point)
        else {
            continue;
        };
        let options = fields(options, ',');
        let is_redirected = options.iter().any(|option| option == "redirect_dir=on");
        for option in &options {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let directories = match name {
                "upperdir" => vec![value.replace('\\', "")],
                "lowerdir" => fields(value, ':'),
                "lowerdir+" | "datadir+" => vec![value.to_owned()],
                _ => continue,
            };
            let directories = directories.iter().filter(|directory| !directory.is_empty());
            layers.extend(directories.filter_map(|directory| {
                Some(Layer {
                    directory: resolve(&unescaped(directory))?,
                    mount_point: unescaped(point),
                    may_be_renamed: is_redirected && name != "upperdir",
                })
            }));
        }
    }
    layers
}

/// The parts of a text, in which a separator after a backslash is no separator.
fn fields(text: &str, separator: char) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let last = parts.last_mut().expect("there is a part");
        if character == separator {
            parts.push(String::new());
        } else if character == '\\' && characters.peek() == Some(&separator) {
            last.extend(characters.next());
        } else {
            last.push(character);
        }
    }
    parts
}

/// A text of the mount table, in which blanks and backslashes are octal numbers.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| *first == b'\\');
        let code = code.and_then(|code| str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(code) => {
                bytes.push(code);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
90 22 0:50 / /run/c\\0401/merged rw - overlay overlay rw,lowerdir=/l/A:/img/base,upperdir=/c1/diff,workdir=/c1/work
91 22 0:51 / /run/c2/merged rw - overlay overlay rw,lowerdir=/img/base,upperdir=/c2/diff,workdir=/c2/work
92 22 0:52 / /new rw - overlay o rw,lowerdir+=/n/1,lowerdir+=/n/2,upperdir=up,workdir=work
93 22 0:53 / /moved rw - overlay o rw,lowerdir=/m/low\\:er,upperdir=/m/up,redirect_dir=on
94 22 0:50 /part /elsewhere rw - overlay overlay rw,lowerdir=/l/A,upperdir=/c1/diff
";

    fn name(path: &str) -> Option<String> {
        let resolve = |directory: &str| match directory {
            "/l/A" => Some("/img/layer".to_owned()),
            relative if !relative.starts_with('/') => None,
            other => Some(other.to_owned()),
        };
        name_in(&layers_in(TABLE, &resolve), path)
    }

    #[test]
    fn a_file_of_one_layer_has_its_name_below_the_mount_point() {
        assert_eq!(
            name("/c1/diff/etc/f").as_deref(),
            Some("/run/c 1/merged/etc/f")
        );
        assert_eq!(name("/img/layer/a").as_deref(), Some("/run/c 1/merged/a"));
        assert_eq!(
            name("/n/2/x (deleted)").as_deref(),
            Some("/new/x (deleted)")
        );
    }

    #[test]
    fn what_is_not_certain_has_no_name() {
        // A layer of two mounts, a relative one, a directory with a similar name, another file.
        for path in [
            "/img/base/a",
            "up/a",
            "/c1/different",
            "/c1/diff",
            "/home/a",
        ] {
            assert_eq!(name(path), None, "{path}");
        }
        // A lower directory below renamed ones; the upper one has the names as they are.
        assert_eq!(name("/m/low:er/a"), None);
        assert_eq!(name("/m/up/a").as_deref(), Some("/moved/a"));
    }
}
