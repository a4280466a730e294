//! A real output of vscsiStats round-trips byte for byte.

use std::path::{Path, PathBuf};

use weir_model::Op;
use weir_sink::vscsistats::{ALL, DiskTitle, Section, sections, text};
use weir_workload::{Class, Histograms, Metric};

/// A section of a file, parsed independently of our writer.
#[derive(Debug)]
struct Read {
    title: String,
    world_group: u64,
    handle: u64,
    name: String,
    figures: [i64; 4],
    rows: Vec<(u64, i64)>,
}

/// Parses a file with the structure of the real one; panics at the first line that does not match.
fn read(text: &str) -> Vec<Read> {
    assert!(text.ends_with('\n') && !text.contains('\r'));
    let mut lines = text.lines().peekable();
    let mut all = Vec::new();
    while let Some(line) = lines.next() {
        let fields: Vec<&str> = line.split(',').collect();
        let [title, vm, world_group, disk, handle] = fields[..] else {
            panic!("no title: {line}");
        };
        assert_eq!(vm, "virtual machine worldGroupID");
        assert_eq!(disk, "virtual disk handleID");
        let (handle, name) = handle.split_once(" (").unwrap();
        let figures = ["min", "max", "mean", "count"].map(|name| {
            let (label, value) = lines.next().unwrap().split_once(',').unwrap();
            assert_eq!(label, name);
            value.parse::<i64>().unwrap()
        });
        assert_eq!(lines.next(), Some("Frequency,Histogram Bucket Limit"));
        let mut rows = Vec::new();
        while let Some(line) = lines.next_if(|l| !l.starts_with("Histogram: ")) {
            let (frequency, limit) = line.split_once(',').unwrap();
            rows.push((frequency.parse().unwrap(), limit.parse().unwrap()));
        }
        all.push(Read {
            title: title.strip_prefix("Histogram: ").unwrap().to_owned(),
            world_group: world_group.parse().unwrap(),
            handle: handle.parse().unwrap(),
            name: name.strip_suffix(')').unwrap().to_owned(),
            figures,
            rows,
        });
    }
    all
}

/// The subjects of the titles of the real file, in order.
const TITLES: [(&str, Metric, Class); 16] = {
    let (all, r, w) = (Class::All, Class::Of(Op::Read), Class::Of(Op::Write));
    [
        ("IO lengths of commands", Metric::Length, all),
        ("IO lengths of Read commands", Metric::Length, r),
        ("IO lengths of Write commands", Metric::Length, w),
        (
            "distance (in LBNs) between successive commands",
            Metric::Seek,
            all,
        ),
        (
            "distance (in LBNs) between successive Read commands",
            Metric::Seek,
            r,
        ),
        (
            "distance (in LBNs) between successive Write commands",
            Metric::Seek,
            w,
        ),
        (
            "distance (in LBNs) between each command from the closest of previous 16",
            Metric::SeekClosest,
            all,
        ),
        ("latency of IOs in Microseconds (us)", Metric::Latency, all),
        (
            "latency of Read IOs in Microseconds (us)",
            Metric::Latency,
            r,
        ),
        (
            "latency of Write IOs in Microseconds (us)",
            Metric::Latency,
            w,
        ),
        (
            "number of outstanding IOs when a new IO is issued",
            Metric::Outstanding,
            all,
        ),
        (
            "number of outstanding Read IOs when a new Read IO is issued",
            Metric::Outstanding,
            r,
        ),
        (
            "number of outstanding Write IOs when a new Write IO is issued",
            Metric::Outstanding,
            w,
        ),
        (
            "latency of IO interarrival time in Microseconds (us)",
            Metric::Interarrival,
            all,
        ),
        (
            "latency of IO interarrival time for Reads in Microseconds (us)",
            Metric::Interarrival,
            r,
        ),
        (
            "latency of IO interarrival time for Writes in Microseconds (us)",
            Metric::Interarrival,
            w,
        ),
    ]
};

fn real_output(test: &str) -> Option<String> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let shared = std::env::var_os("WEIR_SHARED").map_or_else(beside, PathBuf::from);
    let path = shared.join("data/vscsistats-er0080/algonquin.csv");
    if !path.exists() {
        weir_testing::skipped(test, format_args!("no sample data at {}", path.display()));
        return None;
    }
    Some(std::fs::read_to_string(path).unwrap())
}

#[test]
fn a_real_output_round_trips_byte_for_byte() {
    let Some(real) = real_output("a_real_output_round_trips_byte_for_byte") else {
        return;
    };
    let sections = read(&real);
    assert_eq!(sections.len(), TITLES.len());
    let mut again = String::new();
    for (read, (title, metric, class)) in sections.iter().zip(TITLES) {
        assert_eq!(read.title, title);
        let [min, max, mean, count] = read.figures;
        let disk = DiskTitle {
            world_group: read.world_group,
            handle: read.handle,
            name: read.name.clone(),
        };
        let section = Section {
            metric,
            class,
            min,
            max,
            mean,
            count: count as u64,
            frequencies: read.rows.iter().map(|(n, _)| *n).collect(),
        };
        again += &text(&disk, &section, 16);
    }
    assert!(again == real, "{again}");
}

#[test]
fn our_output_is_read_by_a_parser_of_the_original() {
    let mut histograms = Histograms::default();
    for (class, ns) in [
        (Class::All, 1_999),
        (Class::All, 100_000),
        (Class::All, 100_001),
        (Class::Of(Op::Read), 500_000_000),
    ] {
        histograms.of_mut(Metric::Latency, class).add(ns);
    }
    for sectors in [-7, -4, 2, 600_000] {
        histograms.of_mut(Metric::Seek, Class::All).add(sectors);
    }
    let disk = DiskTitle {
        world_group: 7,
        handle: 3,
        name: "v,d\na".into(),
    };
    let printed: String = sections(&histograms, &ALL)
        .iter()
        .map(|section| text(&disk, section, 16))
        .collect();
    let sections = read(&printed);
    let titles: Vec<&str> = sections.iter().map(|s| s.title.as_str()).collect();
    assert_eq!(titles, TITLES.map(|(title, ..)| title));
    for section in &sections {
        assert_eq!((section.world_group, section.handle), (7, 3));
        assert_eq!(section.name, "v\\x2cd\\na");
        let frequencies: u64 = section.rows.iter().map(|(n, _)| n).sum();
        assert_eq!(frequencies as i64, section.figures[3], "{}", section.title);
        let [.., before, last] = section.rows[..] else {
            panic!("{section:?}");
        };
        assert_eq!(before.1, last.1, "the last limit appears twice");
    }
    // (1999 + 100000 + 100001) / 3 ns is 67.333 us.
    assert_eq!(sections[7].figures, [1, 100, 67, 3]);
    assert_eq!(sections[7].rows[..4], [(0, 1), (1, 10), (1, 100), (1, 500)]);
    assert_eq!(sections[8].rows[9..], [(0, 100_000), (1, 100_000)]);
    // (-7 - 4 + 2 + 600000) / 4 is 149997.75.
    assert_eq!(sections[3].figures, [-7, 600_000, 149_997, 4]);
    assert_eq!(sections[3].rows[12..14], [(1, -6), (1, -4)]);
    assert_eq!(sections[3].rows.last(), Some(&(1, 500_000)));
    // Without values: zeroes.
    assert_eq!(sections[9].figures, [0; 4]);
}
