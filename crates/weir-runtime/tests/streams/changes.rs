//! Stream `FileIO`: truncations and punched holes, compared with the space that stat(2) reports,
//! and files that are opened in an overlayfs.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use weir_model::Value;
use weir_testing::run;

use super::files::{FileSystem, number_at, text, text_at};
use super::{Ran, ask, int, turn};

const MIB: usize = 1 << 20;

/// A row: operation, inode, path, offset, bytes, error, the process, and the latency.
#[derive(Debug)]
struct Row {
    op: String,
    inode: u64,
    path: Option<String>,
    offset: Option<i64>,
    bytes: i64,
}

const QUERY: &str = "select op, inode, path, offset, bytes, error, latency, pid, pdisk from FileIO \
                     where op in ('t', 'p')";

/// The rows on the device of `system`, and what was counted.
fn changes<T>(system: &FileSystem, work: impl FnOnce() -> T) -> (Ran, Vec<Row>, T) {
    let (ran, done) = ask(QUERY, work);
    // btrfs, which may have several devices, names none: its changes are those of this process.
    let own = |values: &&Vec<Value>| match text_at(values, 8) {
        Some(device) => device == system.disk.path(),
        None => int(&values[7]) == i64::from(std::process::id()),
    };
    let row = |values: &Vec<Value>| {
        assert_eq!(values[5], Value::Null, "no change failed: {values:?}");
        assert!(int(&values[6]) >= 0);
        Row {
            op: text_at(values, 0).expect("each row has an operation"),
            inode: int(&values[1]) as u64,
            path: text_at(values, 2),
            offset: number_at(values, 3),
            bytes: int(&values[4]),
        }
    };
    let rows = ran.rows.iter().filter(own).map(row).collect();
    (ran, rows, done)
}

/// The number of a file, and its space on the device in bytes.
fn inode_and_space(path: &Path) -> (u64, i64) {
    let status = fs::metadata(path).expect("it exists");
    (status.ino(), status.blocks() as i64 * 512)
}

/// What was done to a file: its number, and the space that it lost.
struct Change {
    inode: u64,
    freed: i64,
}

fn change(path: &Path, work: impl FnOnce()) -> Change {
    let (inode, before) = inode_and_space(path);
    work();
    let after = fs::metadata(path).map_or(0, |status| status.blocks() as i64 * 512);
    Change {
        inode,
        freed: before - after,
    }
}

#[track_caller]
fn assert_one(
    rows: &[Row],
    op: &str,
    change: &Change,
    path: Option<&Path>,
    offset: i64,
    bytes: i64,
) {
    let own = rows
        .iter()
        .filter(|row| row.op == op && row.inode == change.inode);
    let own: Vec<&Row> = own.collect();
    let [row] = own[..] else {
        panic!("one row of inode {}: {rows:?}", change.inode);
    };
    let found = (row.path.as_deref(), row.offset, row.bytes);
    assert_eq!(found, (path.map(text), Some(offset), bytes), "{rows:?}");
}

fn truncations_and_holes(kind: &'static str) {
    let system = FileSystem::new(kind);
    let path = |name: &str| -> PathBuf { system.folder.join(name) };
    for name in ["short", "empty", "removed", "hole"] {
        system.file(name, MIB);
    }
    let (ran, rows, done) = changes(&system, || {
        let open = |name: &str| {
            OpenOptions::new()
                .write(true)
                .open(path(name))
                .expect("a file")
        };
        let short = change(&path("short"), || {
            open("short").set_len(256 << 10).expect("it is shortened");
        });
        let empty = change(&path("empty"), || {
            File::create(path("empty")).expect("it is emptied");
        });
        let removed = change(&path("removed"), || {
            fs::remove_file(path("removed")).expect("it is removed");
        });
        let hole = change(&path("hole"), || {
            let file = path("hole");
            run(
                "fallocate",
                &["-p", "-o", "65536", "-l", "131072", text(&file)],
            )
            .expect("a hole is punched");
        });
        // A failed call is no change: the size has to stay.
        let refused = Command::new("fallocate")
            .args(["-p", "-o", "0", "-l", "0", text(&path("hole"))])
            .output()
            .expect("fallocate runs");
        assert!(!refused.status.success());
        // xfs removes files in a worker, for which a freeze waits.
        for option in ["-f", "-u"] {
            run("fsfreeze", &[option, text(&system.folder)]).expect("fsfreeze");
        }
        (short, empty, removed, hole)
    });
    let (short, empty, removed, hole) = done;
    assert_eq!(
        short.freed,
        768 << 10,
        "the oracle has the space of the file"
    );
    assert_one(
        &rows,
        "t",
        &short,
        Some(&path("short")),
        256 << 10,
        short.freed,
    );
    assert_one(&rows, "t", &empty, Some(&path("empty")), 0, MIB as i64);
    assert_one(&rows, "t", &removed, None, 0, MIB as i64);
    assert_eq!(hole.freed, 128 << 10);
    let holes = rows.iter().filter(|row| row.op == "p").count();
    if kind == "btrfs" {
        // It does not report them: they are counted.
        assert_eq!((holes, ran.total("unseen")), (0, 1), "{:?}", ran.counts);
    } else {
        assert_one(&rows, "p", &hole, Some(&path("hole")), 64 << 10, 128 << 10);
        assert_eq!((holes, ran.total("unseen")), (1, 0), "{:?}", ran.counts);
    }
}

#[test]
fn truncations_and_holes_of_ext4_free_what_stat_reports() {
    if let Some(_turn) = turn("truncations_and_holes_of_ext4_free_what_stat_reports") {
        truncations_and_holes("ext4");
    }
}

#[test]
fn truncations_and_holes_of_xfs_free_what_stat_reports() {
    if let Some(_turn) = turn("truncations_and_holes_of_xfs_free_what_stat_reports") {
        truncations_and_holes("xfs");
    }
}

#[test]
fn truncations_of_btrfs_free_what_stat_reports() {
    if let Some(_turn) = turn("truncations_of_btrfs_free_what_stat_reports") {
        truncations_and_holes("btrfs");
    }
}

/// A mounted overlayfs, until it is dropped.
struct Overlay(PathBuf);

impl Overlay {
    /// One of the directories `base` and `NAME-upper`, at `NAME`.
    fn new(folder: &Path, name: &str) -> Overlay {
        let at = folder.join(name);
        let [upper, work] = ["upper", "work"].map(|part| folder.join(format!("{name}-{part}")));
        for directory in [&at, &upper, &work] {
            fs::create_dir(directory).expect("a directory");
        }
        let lower = folder.join("base");
        let [lower, upper, work] = [&lower, &upper, &work].map(|path| text(path));
        let layers = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        run(
            "mount",
            &["-t", "overlay", "overlay", "-o", &layers, text(&at)],
        )
        .expect("a mount");
        Overlay(at)
    }

    fn path(&self, name: &str) -> String {
        text(&self.0.join(name)).to_owned()
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        if let Err(why) = run("umount", &[text(&self.0)]) {
            eprintln!("{why:#}");
        }
    }
}

#[test]
fn a_file_of_an_overlay_is_the_one_opened_and_the_one_below() {
    let Some(_turn) = turn("a_file_of_an_overlay_is_the_one_opened_and_the_one_below") else {
        return;
    };
    let system = FileSystem::new("ext4");
    fs::create_dir(system.folder.join("base")).expect("a directory");
    let shared = system.file("base/shared", 64 << 10);
    let dd = |args: &[&str]| {
        run("dd", args).unwrap_or_else(|e| panic!("dd {args:?}: {e:#}"));
    };
    let query =
        "select op, flags, path, opened from FileIO where fs = 'ext4' and op in ('r', 'w', 'f')";
    let (ran, overlays) = ask(query, || {
        let [one, two] = ["one", "two"].map(|name| Overlay::new(&system.folder, name));
        // Direct, above the layer and in the layer itself.
        let to = format!("of={}", one.path("direct"));
        dd(&["if=/dev/zero", &to, "bs=8k", "count=1", "oflag=direct"]);
        let below = format!("of={}", text(&system.folder.join("one-upper/below")));
        dd(&["if=/dev/zero", &below, "bs=8k", "count=1", "oflag=direct"]);
        // Through the page cache, which both share.
        let to = format!("of={}", two.path("log"));
        dd(&["if=/dev/zero", &to, "bs=8k", "count=1", "conv=fsync"]);
        // A layer of both: direct reads have the mount, others do not.
        for overlay in [&one, &two] {
            let from = format!("if={}", overlay.path("shared"));
            dd(&[&from, "of=/dev/null", "bs=64k", "iflag=direct"]);
        }
        dd(&[&format!("if={shared}"), "iflag=nocache", "count=0"]);
        dd(&[
            &format!("if={}", one.path("shared")),
            "of=/dev/null",
            "bs=64k",
        ]);
        [one, two]
    });
    let [one, two] = &overlays;
    let rows = ran
        .rows
        .iter()
        .map(|row| [0, 1, 2, 3].map(|at| text_at(row, at)));
    let rows: Vec<[Option<String>; 4]> = rows.collect();
    let below = |name: &str| text(&system.folder.join(name)).to_owned();
    let has = |op: &str, flags: &str, path: &str, opened: Option<&str>| {
        let found = rows.iter().any(|row| {
            row[0].as_deref() == Some(op)
                && row[1].as_deref().unwrap_or_default().contains(flags)
                && row[2].as_deref() == Some(path)
                && row[3].as_deref() == opened
        });
        assert!(found, "{op} {flags} {path} {opened:?}: {rows:#?}");
    };
    has(
        "w",
        "D",
        &below("one-upper/direct"),
        Some(&one.path("direct")),
    );
    has("w", "D", &below("one-upper/below"), None);
    has("w", "W", &below("two-upper/log"), Some(&two.path("log")));
    has("f", "", &below("two-upper/log"), Some(&two.path("log")));
    has("r", "D", &shared, Some(&one.path("shared")));
    has("r", "D", &shared, Some(&two.path("shared")));
    has("r", "A", &shared, None);
    let of_shared = rows.iter().filter(|row| row[2].as_ref() == Some(&shared));
    let cached = of_shared.filter(|row| row[1].as_deref() != Some("D"));
    assert!(cached.into_iter().all(|row| row[3].is_none()), "{rows:#?}");
}
