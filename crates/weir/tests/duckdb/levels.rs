//! Recordings of every level (files, page cache, requests with their levels, block requests with
//! their files) are tables for DuckDB, which finds in them what weir does.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use weir_testing::{LoopDisk, Scratch, is_root, run, skipped};

use crate::oracle::{DuckDb, weir};
use crate::{compare, rows};

/// A recording: its name, the options of `weir record`, and queries that both programs understand.
struct Level {
    stream: &'static str,
    options: &'static [&'static str],
    queries: &'static [&'static str],
}

const LEVELS: [Level; 4] = [
    Level {
        stream: "IO",
        options: &["--stacked", "--files"],
        queries: &[
            "select op as c0, file as c1, count(*) as c2, sum(bytes) as c3 from T \
                    group by op, file",
        ],
    },
    Level {
        stream: "FileIO",
        options: &["--stream", "FileIO"],
        queries: &[
            "select op as c0, path as c1, fs as c2, flags as c3, count(*) as c4, \
             sum(bytes) as c5, max(latency) as c6 from T group by op, path, fs, flags",
            "select op as c0, path as c1, opened as c2, bytes as c3 from T \
             where op = 't' or op = 'f'",
        ],
    },
    Level {
        stream: "IOpath",
        options: &["--stream", "IOpath"],
        queries: &[
            "select path as c0, untied as c1, count(*) as c2, sum(bytes) as c3, \
             sum(block_wait) as c4, sum(device) as c5, max(completion) as c6 from T \
             group by path, untied",
            "select count(*) as c0 from T where latency <> coalesce(vdisk_wait, 0) + \
             coalesce(app_wait, 0) + coalesce(file, 0) + coalesce(block_wait, 0) + \
             coalesce(device, 0) + coalesce(completion, 0)",
        ],
    },
    Level {
        stream: "PageCache",
        options: &["--stream", "PageCache"],
        queries: &[
            "select op as c0, path as c1, sum(hits) as c2, sum(misses) as c3 from T \
                    group by op, path",
        ],
    },
];

/// The time of the recordings: it includes the start.
const FOR: &str = "6s";

fn record(level: &Level, to: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["record", "--for", FOR, "-o"])
        .arg(to)
        .args(level.options)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("weir starts")
}

/// Reads, writes and truncates files until the recordings have ended.
fn load(folder: &Path, recorders: &mut [Child]) {
    let path = |name: &str| format!("{}/{name}", folder.display());
    let [direct, cached] = ["direct", "cached"].map(path);
    let mut is_running = || {
        let mut ended = recorders
            .iter_mut()
            .map(|child| child.try_wait().expect("a status"));
        ended.any(|status| status.is_none())
    };
    while is_running() {
        let of = format!("of={direct}");
        run(
            "dd",
            &["if=/dev/zero", &of, "bs=16k", "count=4", "oflag=direct"],
        )
        .expect("dd");
        let of = format!("of={cached}");
        run(
            "dd",
            &["if=/dev/zero", &of, "bs=16k", "count=4", "conv=fsync"],
        )
        .expect("dd");
        run("dd", &[&format!("if={cached}"), "of=/dev/null", "bs=16k"]).expect("dd");
    }
}

#[test]
fn recordings_of_all_levels_have_the_same_results() {
    let test = "recordings_of_all_levels_have_the_same_results";
    if !is_root() {
        return skipped(test, "only root can attach programs");
    }
    let Some(mut duckdb) = DuckDb::start(test) else {
        return;
    };
    let disk = match LoopDisk::new(64) {
        Ok(disk) => disk,
        Err(why) => return skipped(test, format!("{why:#}")),
    };
    let folder = disk.file_system().expect("a file system");
    let scratch = Scratch::new();
    let recordings = LEVELS.map(|level| {
        let path = scratch.path().join(format!("{}.parquet", level.stream));
        (level, path)
    });
    let mut recorders: Vec<Child> = recordings
        .iter()
        .map(|(level, to)| record(level, to))
        .collect();
    load(&folder, &mut recorders);
    for ((level, path), recorder) in recordings.iter().zip(recorders) {
        let ended = recorder.wait_with_output().expect("it has ended");
        let message = String::from_utf8_lossy(&ended.stderr);
        if ended.status.code() == Some(1) {
            skipped(test, format!("{}: {message}", level.stream));
            continue;
        }
        assert!(ended.status.success(), "{}: {message}", level.stream);
        for query in level.queries {
            let cql = query.replace(" T ", &format!(" {} ", level.stream));
            // A recording of IO has responses, and requests that have none.
            let requests = match level.stream {
                "IO" => " where type <> 'Q'",
                _ => "",
            };
            let table = format!(" (select * from '{}'{requests}) ", path.display());
            let sql = query.replace(" T ", &table);
            let found = weir(path, &["--final"], &cql).map(|lines| rows(&lines));
            let found = found.unwrap_or_else(|why| panic!("{cql}: {why}"));
            let expected = duckdb
                .answer(&sql)
                .unwrap_or_else(|why| panic!("{sql}: {why}"));
            compare::agree(&found, &expected, false).unwrap_or_else(|why| panic!("{cql}: {why}"));
            assert!(!found.is_empty(), "{cql}");
        }
    }
}
