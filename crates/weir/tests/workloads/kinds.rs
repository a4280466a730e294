//! Kinds of workloads are distinguished, and labelled correctly.

use weir_testing::workload::{Workload, streams};

use crate::report::{Profile, judged};

/// The profile of the workload with this name, after asserting that weir labels it correctly.
fn of(test: &str, name: &str) -> Option<Profile> {
    let workload = Workload::named(name).unwrap_or_else(|| panic!("no workload {name}"));
    let profile = judged(test, &[*workload])?.pop()?;
    assert_eq!(profile.label(), workload.label, "{profile}");
    Some(profile)
}

#[test]
fn one_run_of_reads_is_sequential() {
    let Some(profile) = of("one_run_of_reads_is_sequential", "sequential-read") else {
        return;
    };
    profile.within("mix.reads", 1024.0..=1024.0);
    profile.within("mix.read_share", 1.0..=1.0);
    profile.within("order.all.runs", 1.0..=1.0);
    profile.within("order.all.seek_sequential_share", 0.99..=1.0);
    assert_eq!(profile.size("reads"), (65_536.0, 1.0), "{profile}");
}

#[test]
fn one_run_of_writes_is_sequential() {
    let Some(profile) = of("one_run_of_writes_is_sequential", "sequential-write") else {
        return;
    };
    profile.within("mix.writes", 1024.0..=1024.0);
    profile.within("mix.read_share", 0.0..=0.0);
    profile.within("order.writes.runs", 1.0..=1.0);
    assert_eq!(profile.size("writes"), (65_536.0, 1.0), "{profile}");
}

#[test]
fn random_reads_and_writes_are_random() {
    let Some(profile) = of("random_reads_and_writes_are_random", "random") else {
        return;
    };
    profile.within("requests", 3072.0..=3072.0);
    profile.within("mix.read_share", 0.6..=0.74);
    profile.within("order.all.sequential_share", 0.0..=0.01);
    assert_eq!(profile.size("all"), (8192.0, 1.0), "{profile}");
}

#[test]
fn a_scan_towards_the_beginning_is_a_reverse_scan() {
    let test = "a_scan_towards_the_beginning_is_a_reverse_scan";
    let Some(profile) = of(test, "reverse-scan") else {
        return;
    };
    profile.within("order.all.reverse_share", 0.99..=1.0);
    // The histograms of seek distances have no count at 1.
    profile.within("order.all.seek_sequential_share", 0.0..=0.01);
}

#[test]
fn one_to_eight_interleaved_streams_are_counted() {
    let test = "one_to_eight_interleaved_streams_are_counted";
    let counts: Vec<usize> = (1..=8).collect();
    let workloads: Vec<Workload> = counts.iter().map(|count| streams(*count)).collect();
    let Some(profiles) = judged(test, &workloads) else {
        return;
    };
    for (count, profile) in counts.into_iter().zip(profiles) {
        assert_eq!(profile.label(), streams(count).label, "{profile}");
        // Section 3.1 of the paper: no request follows the previous one, yet each follows one of
        // the last 16.
        let alone = if count == 1 { 0.99..=1.0 } else { 0.0..=0.01 };
        profile.within("order.all.seek_sequential_share", alone);
        profile.within("order.all.closest_sequential_share", 0.99..=1.0);
    }
}

#[test]
fn players_that_do_not_wait_for_each_other_are_counted() {
    let test = "players_that_do_not_wait_for_each_other_are_counted";
    let Some(profile) = of(test, "players") else {
        return;
    };
    profile.within("order.all.sequential_share", 0.99..=1.0);
}

#[test]
fn a_log_beside_random_reads_is_log_structured() {
    let test = "a_log_beside_random_reads_is_log_structured";
    let Some(profile) = of(test, "log-structured") else {
        return;
    };
    profile.within("order.writes.sequential_share", 0.99..=1.0);
    profile.within("order.reads.random_share", 0.95..=1.0);
}

/// Figures 2 and 3 of the paper show this for UFS and ZFS: the same workload, written in place and
/// written to other locations.
#[test]
fn the_file_system_decides_whether_overwriting_is_random_or_sequential() {
    let test = "the_file_system_decides_whether_overwriting_is_random_or_sequential";
    if let Some(profile) = of(test, "overwrite-ext4") {
        profile.within("order.writes.sequential_share", 0.0..=0.1);
        assert_eq!(profile.size("writes").0, 8192.0, "{profile}");
    }
    if let Some(profile) = of(test, "overwrite-btrfs") {
        profile.within("order.writes.sequential_share", 0.8..=1.0);
        assert_eq!(profile.size("writes").0, 8192.0, "{profile}");
    }
}

/// Figure 5 of the paper: large requests in long runs.
#[test]
fn the_copy_of_a_large_file_is_sequential_in_large_requests() {
    let test = "the_copy_of_a_large_file_is_sequential_in_large_requests";
    let Some(profile) = of(test, "file-copy") else {
        return;
    };
    let (file, mebibyte) = (48.0, f64::from(1 << 20));
    // In addition to the file, the file system reads and writes its metadata.
    profile.within("mix.read_bytes", file * mebibyte..=(file + 2.0) * mebibyte);
    profile.within(
        "mix.written_bytes",
        file * mebibyte..=(file + 8.0) * mebibyte,
    );
    profile.within("order.reads.sequential_bytes_share", 0.9..=1.0);
    profile.within("order.writes.sequential_bytes_share", 0.8..=1.0);
    assert!(profile.size("reads").0 >= 131_072.0, "{profile}");
    assert!(profile.size("writes").0 >= 131_072.0, "{profile}");
}

/// Figure 4 of the paper: random, almost all in 8 KiB pages. A commit is a flush of the log, whose
/// last page is written repeatedly.
#[test]
fn a_database_is_random_in_pages_of_8_kib() {
    let test = "a_database_is_random_in_pages_of_8_kib";
    let Some(profile) = of(test, "postgresql") else {
        return;
    };
    assert_eq!(profile.size("reads").0, 8192.0, "{profile}");
    assert_eq!(profile.size("writes").0, 8192.0, "{profile}");
    profile.within("sizes.reads.dominant.0.share", 0.5..=1.0);
    profile.within("order.reads.random_share", 0.7..=1.0);
    profile.within("order.writes.repeated_share", 0.02..=0.7);
    // 1,000 transactions by four clients: at most four share a flush.
    profile.within("mix.flushes", 250.0..=5000.0);
}
