//! [`DiskstatsTree`]: a directory for the unmodified `iostat -f DIR`.
//!
//! iostat(1) of sysstat 12 reads `block/NAME/stat` (as /sys/block/NAME/stat) in such a directory,
//! and with `-p` the file `diskstats` (as /proc/diskstats). Every file is written to a temporary
//! file and renamed, so that a reader always sees a complete file.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::SinkError;
use crate::iostat::DiskCounters;
use crate::text::beginning;

/// Longest name of a device; sysstat keeps 127 bytes of one.
const NAME_BYTES_MAX: usize = 120;

/// The file with the id of the process that maintains the tree.
const PID_FILE: &str = "weir.pid";

/// A tree and its content.
pub struct DiskstatsTree {
    root: PathBuf,
    /// The content last written, by the device's name in the tree.
    written: BTreeMap<String, DiskCounters>,
}

impl DiskstatsTree {
    /// Opens `root`, which is created if needed; the files of a previous weir are removed.
    ///
    /// # Errors
    /// If it cannot be written, contains other files, or is in use by another process.
    pub fn create(root: &Path) -> Result<DiskstatsTree, SinkError> {
        make_dir(root)?;
        let pid_file = root.join(PID_FILE);
        let keeper = fs::read_to_string(&pid_file).ok();
        let keeper = keeper.as_deref().map(str::trim).filter(|pid| runs(pid));
        let foreign = !pid_file.exists() && !is_empty(root)?;
        let unsuited = |what: String, remedy: &str| SinkError::Unsuited {
            what: format!("{}: {what}", root.display()),
            remedy: remedy.into(),
        };
        if let Some(pid) = keeper {
            let what = format!("process {pid} maintains this directory");
            return Err(unsuited(what, "end that process, or use another directory"));
        }
        if foreign {
            let what = "contains other files than those of `weir diskstats`".into();
            return Err(unsuited(what, "use an empty directory"));
        }
        let tree = DiskstatsTree {
            root: root.to_owned(),
            written: BTreeMap::new(),
        };
        tree.clear()?;
        make_dir(&tree.blocks())?;
        tree.put(&pid_file, &format!("{}\n", std::process::id()))?;
        tree.put(&root.join("diskstats"), "")?;
        Ok(tree)
    }

    /// Updates the tree to `disks`: names and counters, in any order. A name is escaped by
    /// [`device_name`].
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write<'d>(
        &mut self,
        disks: impl IntoIterator<Item = (&'d str, DiskCounters)>,
    ) -> Result<(), SinkError> {
        let disks = disks.into_iter().map(|(name, c)| (device_name(name), c));
        let disks: BTreeMap<String, DiskCounters> = disks.collect();
        for name in self.written.keys().filter(|n| !disks.contains_key(*n)) {
            remove_dir(&self.blocks().join(name))?;
        }
        for (name, counters) in &disks {
            let dir = self.blocks().join(name);
            match self.written.get(name) {
                Some(before) if before == counters => continue,
                Some(_) => {}
                None => make_dir(&dir)?,
            }
            self.put(&dir.join("stat"), &counters.stat_line())?;
        }
        if disks != self.written {
            self.put(&self.root.join("diskstats"), &diskstats(&disks))?;
        }
        self.written = disks;
        Ok(())
    }

    /// Removes the tree, and the directory itself if it is then empty.
    ///
    /// # Errors
    /// When a file cannot be removed.
    pub fn remove(self) -> Result<(), SinkError> {
        self.clear()?;
        match fs::remove_dir(&self.root) {
            Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            result => result.map_err(|e| failed(&self.root, e)),
        }
    }

    fn clear(&self) -> Result<(), SinkError> {
        remove_dir(&self.blocks())?;
        for name in ["diskstats", PID_FILE] {
            let path = self.root.join(name);
            match fs::remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(&path, e)),
                _ => {}
            }
        }
        Ok(())
    }

    fn blocks(&self) -> PathBuf {
        self.root.join("block")
    }

    /// Writes a file atomically.
    fn put(&self, path: &Path, text: &str) -> Result<(), SinkError> {
        let name = path
            .file_name()
            .expect("a file of the tree")
            .to_string_lossy();
        let beside = path.with_file_name(format!(".{name}.new"));
        let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
        written.map_err(|e| failed(path, e))
    }
}

/// The text of `diskstats`. Device numbers have major 0, which no block device has, so that sysstat
/// takes the name as it stands.
fn diskstats(disks: &BTreeMap<String, DiskCounters>) -> String {
    let mut text = String::new();
    for (minor, (name, counters)) in disks.iter().enumerate() {
        write!(text, "   0 {minor:7} {name} {}", counters.stat_line()).expect("a String takes all");
    }
    text
}

/// A name without spaces that is valid as a file name: space, control characters and the backslash
/// as in /proc/mounts (`\040`), and `/` as `!`, as in the kernel. A name that is too long ends with
/// a hash of all of it.
pub fn device_name(name: &str) -> String {
    let mut escaped = String::new();
    for c in name.chars() {
        match c {
            '/' => escaped.push('!'),
            '!' => escaped.push_str("\\041"),
            '\\' => escaped.push_str("\\134"),
            c if c.is_whitespace() || c.is_control() => {
                let mut bytes = [0; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    write!(escaped, "\\{byte:03o}").expect("a String takes all");
                }
            }
            c => escaped.push(c),
        }
    }
    if escaped.len() > NAME_BYTES_MAX {
        // FNV-1a, 64 bits.
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, step);
        escaped.truncate(beginning(&escaped, NAME_BYTES_MAX - 17).len());
        write!(escaped, "~{hash:016x}").expect("a String takes all");
    }
    escaped
}

/// Whether process `pid` exists.
fn runs(pid: &str) -> bool {
    let number = !pid.is_empty() && pid.bytes().all(|b| b.is_ascii_digit());
    let own = pid == std::process::id().to_string();
    number && !own && Path::new("/proc").join(pid).exists()
}

fn is_empty(dir: &Path) -> Result<bool, SinkError> {
    let mut entries = fs::read_dir(dir).map_err(|e| failed(dir, e))?;
    Ok(entries.next().is_none())
}

fn make_dir(dir: &Path) -> Result<(), SinkError> {
    fs::create_dir_all(dir).map_err(|e| failed(dir, e))
}

fn remove_dir(dir: &Path) -> Result<(), SinkError> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed(dir, e)),
        _ => Ok(()),
    }
}

fn failed(path: &Path, error: io::Error) -> SinkError {
    SinkError::io(&path.display().to_string(), error)
}

#[cfg(test)]
mod tests {
    use weir_testing::Scratch;

    use super::*;
    use crate::iostat::OpCounters;

    fn disk(reads: u64) -> DiskCounters {
        DiskCounters {
            reads: OpCounters {
                ios: reads,
                ..OpCounters::default()
            },
            ..DiskCounters::default()
        }
    }

    /// A temporary folder, and the path of a tree in it.
    fn place() -> (Scratch, PathBuf) {
        let scratch = Scratch::new();
        let dir = scratch.path().join("tree");
        (scratch, dir)
    }

    #[test]
    fn disks_are_added_changed_and_removed() {
        let (_scratch, dir) = place();
        let mut tree = DiskstatsTree::create(&dir).unwrap();
        let stat = |name: &str| fs::read_to_string(dir.join("block").join(name).join("stat")).ok();
        let first = "1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n";
        tree.write([("web:vda", disk(1)), ("a b:vda", disk(2))])
            .unwrap();
        assert_eq!(stat("web:vda").as_deref(), Some(first));
        assert!(stat("a\\040b:vda").is_some());
        let diskstats = fs::read_to_string(dir.join("diskstats")).unwrap();
        let names: Vec<&str> = diskstats
            .lines()
            .map(|line| DiskCounters::parse(line).unwrap().0)
            .collect();
        assert_eq!(names, ["a\\040b:vda", "web:vda"]);
        tree.write([("web:vda", disk(5))]).unwrap();
        assert_eq!(stat("a\\040b:vda"), None);
        assert!(stat("web:vda").unwrap().starts_with("5 "));
        tree.remove().unwrap();
        assert!(!dir.exists());
    }

    #[test]
    fn a_directory_with_other_files_is_not_used() {
        let (_scratch, dir) = place();
        fs::create_dir_all(dir.join("block")).unwrap();
        fs::write(dir.join("block/precious"), "x").unwrap();
        let error = DiskstatsTree::create(&dir).err().unwrap().to_string();
        assert!(
            error.contains("other files than those of `weir diskstats`"),
            "{error}"
        );
        assert!(dir.join("block/precious").exists());
    }

    #[test]
    fn a_tree_has_one_owner_and_a_stale_one_is_replaced() {
        let (_scratch, dir) = place();
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(PID_FILE), "1\n").unwrap();
        assert!(DiskstatsTree::create(&dir).is_err());
        fs::write(dir.join(PID_FILE), "4294967295\n").unwrap();
        DiskstatsTree::create(&dir).unwrap().remove().unwrap();
    }

    #[test]
    fn escaped_names_stay_distinct_and_short() {
        let long = |end: &str| "v".repeat(300) + end;
        let (a, b) = (device_name(&long("a")), device_name(&long("b")));
        assert!(a != b && a.len() <= NAME_BYTES_MAX);
        assert_eq!(device_name("a/b!c\\ d"), "a!b\\041c\\134\\040d");
        assert_eq!(device_name("web:vda"), "web:vda");
    }
}
