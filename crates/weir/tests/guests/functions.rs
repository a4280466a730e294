//! Probes at functions of the kernel, kprobes and fentry, alone and in pairs, where the kernel has
//! them: compared with the calls that a program makes.

use std::collections::BTreeMap;

/// The reads of each run of the program, all of one size.
const READS: usize = 50;

/// A stream of each kind, with the size and the result of each read, as far as it has them.
const SCRIPT: &str = "\
table : create stream k as probe 'kprobe:vfs_read' (arg2 as size);
table : create stream kr as probe 'kretprobe:vfs_read' (retval as size);
table : create stream f as probe 'fentry:vfs_read' (count as size);
table : create stream fr as probe 'fexit:vfs_read' (count as size, retval as result);
table : create stream kpair as probe 'kprobe:vfs_read' (arg2 as size)
    to 'kretprobe:vfs_read' (retval as result);
table : create stream fpair as probe 'fentry:vfs_read' (count as size)
    to 'fexit:vfs_read' (retval as result);
";

/// The queries of the streams.
const QUERIES: [(&str, &str); 6] = [
    ("k", "size"),
    ("kr", "size"),
    ("f", "size"),
    ("fr", "size, result"),
    ("kpair", "size, result, latency"),
    ("fpair", "size, result, latency"),
];

/// The shipped streams that every kernel has, also where its tracepoints have other names.
pub fn streams_are_attached(run: &mut impl FnMut(&str) -> String) {
    run("mount -t tracefs none /sys/kernel/tracing 2>/dev/null; true");
    let listed = run("/tools/bin/weir streams");
    for stream in [
        "on_cpu",
        "net_received",
        "direct_reclaim",
        "io_uring_requests",
    ] {
        let mut lines = listed.lines();
        let line = lines.find(|line| line.starts_with(stream));
        assert!(
            line.is_some_and(|line| !line.contains("absent")),
            "{listed}"
        );
        run(&format!(
            "/tools/bin/weir query --for 10ms 'select * from {stream} where cpu < 0'"
        ));
    }
}

/// Holds the rows of `dd` against its reads, in a guest with weir in `/tools`.
pub fn match_the_calls(run: &mut impl FnMut(&str) -> String) {
    let mut script = SCRIPT.to_owned();
    for (stream, columns) in QUERIES {
        script += &format!("query : select {columns} from {stream}\n    where comm = 'dd';\n");
        script += &format!("dest : /tmp/{stream}.txt\n");
    }
    for line in script.lines() {
        run(&format!("echo \"{line}\" >> /tmp/functions.cql"));
    }
    // Runs of the program until weir ends, each with reads of another size. No stream is left
    // behind, however slow the guest is.
    let errors = run(
        "/tools/bin/weir run --idle 60s --for 4s /tmp/functions.cql 2>/tmp/errors & w=$!; \
                      i=1000; while kill -0 $w 2>/dev/null; do \
                      dd if=/dev/zero of=/dev/null bs=$i count=50 2>/dev/null; \
                      i=$((i+1)); sleep 0.1; done; cat /tmp/errors",
    );
    for (stream, columns) in QUERIES {
        let text = run(&format!("cat /tmp/{stream}.txt"));
        let rows = text.lines().map(|line| {
            // `[time]:+:1000, 1000, 5210`
            let (_, values) = line.rsplit_once(':').unwrap_or_default();
            let values = values.split(',').map(|value| value.trim().parse::<i64>());
            values.collect::<Result<Vec<i64>, _>>()
        });
        let rows: Vec<Vec<i64>> = rows.filter_map(Result::ok).collect();
        let mut by_size: BTreeMap<i64, usize> = BTreeMap::new();
        for row in rows.iter().filter(|row| row[0] >= 1000) {
            *by_size.entry(row[0]).or_default() += 1;
            if columns.contains("result") {
                assert_eq!(row[0], row[1], "{stream}: {row:?}");
            }
            if columns.contains("latency") {
                assert!(row[2] > 0, "{stream}: {row:?}");
            }
        }
        // The first and the last run may be observed in part.
        let inner = by_size.len().saturating_sub(2);
        let counts: Vec<usize> = by_size.into_values().skip(1).take(inner).collect();
        assert!(!counts.is_empty(), "{stream}: {errors}\n{text}");
        assert!(
            counts.iter().all(|count| *count == READS),
            "{stream}: {counts:?}"
        );
    }
}
