//! Column `file` of `IO` on devices of dm and md and below them, and its refusal by kernels that
//! are too old for it.

use std::collections::BTreeMap;

use super::boot::Watched;
use super::devices::{MIRROR, SPLIT};

const MEBIBYTE: i64 = 1 << 20;

/// Devices on a disk that keeps what is written to it, and how often the data of a file is written
/// there: on them and on devices between, and on the disk.
const STACKED: [(&str, [i64; 2]); 3] = [("dm linear", [1, 1]), (SPLIT, [1, 1]), (MIRROR, [3, 2])];

/// The disk below them.
const BELOW: &str = "/dev/sda";

/// The first kernel with the column: 6.1 is older, all others of the tests are newer.
fn has_column(watched: &mut Watched) -> bool {
    let release = watched.run("uname -r");
    let mut parts = release.trim().split(['.', '-']).map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (parts.next(), parts.next()) else {
        panic!("{release}");
    };
    (major, minor) >= (6, 6)
}

/// The bytes written to each file are those of the load, on the device and below it.
pub fn the_file_is_found_below(watched: &mut Watched) {
    if !has_column(watched) {
        let refused = watched.run(
            "/tools/bin/weir query --for 1s 'select file from IO' 2>&1; \
             /tools/bin/weir record --files --for 1s -o /tmp/files.parquet 2>&1; true",
        );
        let named = refused
            .matches("columns file and inode of IO need tracepoint")
            .count();
        assert_eq!(named, 2, "{refused}");
        return;
    }
    if !watched.has_module("ext4") {
        return;
    }
    for (kind, times) in STACKED {
        if let Some(device) = watched.path_of(kind) {
            let rows = written(watched, &device);
            for file in ["/mnt/direct", "/mnt/buffered"] {
                let of = |lower: bool| -> i64 {
                    let own = rows
                        .iter()
                        .filter(|((pdisk, its), _)| its == file && (pdisk == BELOW) == lower);
                    own.map(|(_, bytes)| bytes).sum()
                };
                let found = [of(false), of(true)];
                assert_eq!(
                    found,
                    times.map(|n| n * MEBIBYTE),
                    "{kind}, {file}: {rows:?}"
                );
            }
        }
    }
}

/// Writes two files to ext4 on a device: the bytes by device and file.
fn written(watched: &mut Watched, device: &str) -> BTreeMap<(String, String), i64> {
    watched.run(&format!(
        "/tools/mke2fs -q -F -t ext4 -E lazy_itable_init=0 /dev/{device} && \
         mount -t ext4 /dev/{device} /mnt && sync"
    ));
    let query =
        "query -v --stacked --format csv \"select pdisk, file, bytes from IO where op = 'w'\"";
    watched.start_weir(&[("files", query)]);
    watched.run(
        "/tools/dd if=/dev/zero of=/mnt/direct bs=256k count=4 oflag=direct 2> /dev/null; \
         /tools/dd if=/dev/zero of=/mnt/buffered bs=64k count=16 conv=fsync 2> /dev/null; sync",
    );
    let messages = watched.end("files");
    let output = watched.output("files");
    watched.run("umount /mnt");
    assert!(output.lines().count() > 1, "{device}: {messages}");
    let mut rows = BTreeMap::new();
    for line in output.lines().skip(1) {
        let words: Vec<&str> = line.rsplitn(4, ',').collect();
        let [bytes, file, pdisk, ..] = words[..] else {
            panic!("{line}: {messages}");
        };
        let bytes: i64 = bytes.parse().unwrap_or_else(|e| panic!("{line}: {e}"));
        *rows.entry((pdisk.to_owned(), file.to_owned())).or_default() += bytes;
    }
    rows
}
