//! Column `file` of `IO` on devices of dm and md and below them, and its refusal by kernels that
//! are too old for it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::boot::Watched;
use super::devices::{MIRROR, SPLIT};

const MEBIBYTE: i64 = 1 << 20;

/// Devices on a disk that keeps what is written to it, and how often the data of a file is written
/// to devices above the disk, by `IO` and by `IOpath`, and to the disk. Of devices above one
/// another only the uppermost has rows of `IOpath`.
const STACKED: [(&str, [i64; 2], i64); 3] = [
    ("dm linear", [1, 1], 1),
    (SPLIT, [1, 1], 1),
    (MIRROR, [3, 1], 2),
];

/// The written files.
const FILES: [&str; 2] = ["/mnt/direct", "/mnt/buffered"];

/// What else is written: by the file system and its journal.
const OWN: &str = "metadata";

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

/// The streams of all levels are attached, and the bytes written to each file are those of the
/// load, on the device and below it.
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
    for stream in ["FileIO", "PageCache", "IOpath"] {
        let printed = watched.run(&format!(
            "/tools/bin/weir query -v --for 10ms 'select * from {stream}' 2>&1 || echo failed"
        ));
        // Its tracepoints are newer than those of the others.
        let is_old = stream == "PageCache" && printed.contains("this kernel has no page_cache_");
        assert!(is_old || !printed.contains("failed"), "{stream}: {printed}");
    }
    if !watched.has_module("ext4") {
        return;
    }
    for (kind, above, below) in STACKED {
        if let Some(device) = watched.path_of(kind) {
            let all = written(watched, &device);
            let expected = all.iter().zip(above);
            for ((rows, above), file) in expected.flat_map(|each| FILES.map(|file| (each, file))) {
                let of = |lower: bool| -> i64 {
                    let own = rows
                        .iter()
                        .filter(|((pdisk, its), _)| its == file && (pdisk == BELOW) == lower);
                    own.map(|(_, bytes)| bytes).sum()
                };
                let found = [of(false), of(true)];
                assert_eq!(
                    found,
                    [above, below].map(|n| n * MEBIBYTE),
                    "{kind}, {file}: {rows:?}"
                );
            }
            // Every request has a file, or is the file system's own.
            let [_, paths] = &all;
            let known = |file: &str| FILES.contains(&file) || file == OWN;
            let rest: Vec<_> = paths.iter().filter(|((_, file), _)| !known(file)).collect();
            assert!(rest.is_empty(), "{kind}: {rest:?}");
        }
    }
}

/// The bytes by device and file.
type Written = BTreeMap<(String, String), i64>;

/// The queries of the bytes by device and file: of requests, and of the levels of each.
const QUERIES: [(&str, &str); 2] = [
    ("files", "select pdisk, file, bytes from IO where op = 'w'"),
    (
        "paths",
        "select pdisk, coalesce(path, untied), bytes from IOpath where op = 'w'",
    ),
];

/// Writes two files to ext4 on a device: what each query has of them.
fn written(watched: &mut Watched, device: &str) -> [Written; 2] {
    watched.run(&format!(
        "/tools/mke2fs -q -F -t ext4 -E lazy_itable_init=0 /dev/{device} && \
         mount -t ext4 /dev/{device} /mnt && sync"
    ));
    let queries =
        QUERIES.map(|(name, text)| (name, format!("query -v --stacked --format csv \"{text}\"")));
    watched.start_weir(
        &queries
            .each_ref()
            .map(|(name, query)| (*name, query.as_str())),
    );
    watched.run(
        "/tools/dd if=/dev/zero of=/mnt/direct bs=256k count=4 oflag=direct 2> /dev/null; \
         /tools/dd if=/dev/zero of=/mnt/buffered bs=64k count=16 conv=fsync 2> /dev/null; sync",
    );
    let written = QUERIES.map(|(name, _)| {
        let messages = watched.end(name);
        let output = watched.output(name);
        bytes_of(&output, &format!("{device}: {messages}"))
    });
    watched.run("umount /mnt");
    written
}

fn bytes_of(output: &str, messages: &str) -> Written {
    assert!(output.lines().count() > 1, "{messages}");
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

/// The level that has most of the time is that of a delay of dm: on its device the device itself,
/// on the disk below the wait for it.
pub fn a_delay_is_at_its_level(watched: &mut Watched) {
    if !has_column(watched) || !watched.has_module("dm_delay") {
        return;
    }
    let slow = watched.map("slow", "0 16384 delay /dev/sda 229376 0 /dev/sda 229376 40");
    for (device, level) in [(slow.as_str(), "device"), ("sda", "block_wait")] {
        let query = format!("path --json -i {device} --for 8s");
        watched.start_weir(&[("levels", &query)]);
        watched.run(&format!(
            "/tools/dd if=/dev/zero of=/dev/{slow} bs=4k count=30 oflag=direct 2> /dev/null"
        ));
        let messages = watched.end("levels");
        let output = watched.output("levels");
        let table: Value = serde_json::from_str(output.lines().next().expect(&messages)).unwrap();
        let disk = &table["disks"][0];
        assert_eq!(disk["levels"]["total"]["requests"], 30, "{table}");
        assert_eq!(disk["dominant"]["level"], level, "{table}");
    }
}
