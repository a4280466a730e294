//! Stream `PageCache` on ext4, xfs and btrfs: counts are compared with known plans of reads, faults
//! and writes, with fio's reports and with the pages that the kernel has in the cache.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;

use weir_model::Value;
use weir_testing::run;

use super::files::FileSystem;
use super::{Ran, ask, int, turn};

const PAGES: i64 = 128;

const SIZE: usize = PAGES as usize * 4096;

/// The totals of a file and an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Total {
    /// `None`: the accesses are unknown.
    hits: Option<i64>,
    misses: i64,
    readahead: i64,
    dirtied: i64,
}

impl Total {
    fn of(hits: i64, misses: i64, readahead: i64, dirtied: i64) -> Total {
        Total {
            hits: Some(hits),
            misses,
            readahead,
            dirtied,
        }
    }

    /// Pages that came into the cache.
    fn added(&self) -> i64 {
        self.misses + self.readahead
    }
}

type Totals = BTreeMap<(String, String), Total>;

/// The beginnings of the names of the files that fio reads.
const BY_FIO: [&str; 5] = ["random", "uring", "sequential", "mapped", "direct"];

/// The totals of the files of a folder, by name and operation.
fn totals(ran: &Ran, system: &FileSystem) -> Totals {
    let folder = format!("{}/", system.folder.display());
    let mut totals = Totals::new();
    for row in &ran.rows {
        let path = row[0].to_string();
        let Some(name) = path.strip_prefix(&folder) else {
            continue;
        };
        let total = totals.entry((name.to_owned(), row[1].to_string()));
        let total = total.or_default();
        if row[2] != Value::Null {
            *total.hits.get_or_insert(0) += int(&row[2]);
        }
        total.misses += int(&row[3]);
        total.readahead += int(&row[4]);
        total.dirtied += int(&row[5]);
        assert_eq!(int(&row[6]), int(&row[5]) * 4096);
        if !BY_FIO.iter().any(|by_fio| name.starts_with(by_fio)) {
            assert_eq!(int(&row[7]), i64::from(std::process::id()), "{row:?}");
        }
    }
    totals
}

/// The pages of a file that are in the page cache, as fincore(1) reports them.
fn cached(path: &str) -> i64 {
    let pages = run("fincore", &["-n", "-b", "-o", "PAGES", path]).expect("fincore");
    pages.trim().parse().expect("a number")
}

/// Removes a file from the page cache.
fn uncache(path: &str) {
    run("dd", &[&format!("if={path}"), "iflag=nocache", "count=0"]).expect("dd");
    assert_eq!(cached(path), 0, "{path}");
}

fn load(path: &str, from: u64, bytes: usize) {
    let file = File::open(path).expect("it opens");
    file.read_exact_at(&mut vec![0; bytes], from)
        .expect("it is read");
}

const RANDOM: &str = "--rw=randread --bs=4k --fadvise_hint=random";

/// Attempts until the kernel keeps the files of a plan in the cache: it may evict their pages at
/// any time (reclaim, DAMON).
const ATTEMPTS: usize = 5;

fn plan_of_accesses(kind: &'static str) {
    let is_kept = (0..ATTEMPTS).any(|_| keeps_plan(kind));
    assert!(is_kept, "{kind}: pages are evicted in each attempt");
}

/// Executes the plan and compares its counts; false if pages of its files were evicted meanwhile.
fn keeps_plan(kind: &'static str) -> bool {
    let system = FileSystem::new(kind);
    let names = [
        "random",
        "random-again",
        "uring",
        "uring-again",
        "whole",
        "whole-again",
        "partial",
        "partial-again",
        "sequential",
        "mapped",
        "mapped-again",
        "direct",
        "overwritten",
    ];
    for name in names {
        let path = system.file(name, SIZE);
        if !name.ends_with("again") && name != "overwritten" {
            uncache(&path);
        }
    }
    let path = |name: &str| system.folder.join(name).display().to_string();
    let query = format!(
        "select file, op, sum(hits), sum(misses), sum(readahead), sum(dirtied), \
         sum(dirtied_bytes), pid from PageCache [range 60 s slide 60 s] where fs = '{kind}' \
         group by file, op, pid"
    );
    let (ran, (faults, after)) = ask(&query, || {
        // Nothing may be evicted between the creation of a file and its use.
        let mut after = Vec::new();
        let mut phase = |name: &str, read: &dyn Fn(&str)| {
            let is_there = !name.ends_with("again") || cached(&path(name)) == PAGES;
            read(name);
            let pages = cached(&path(name));
            after.push(Some(pages).filter(|_| is_there));
        };
        for name in ["random", "random-again"] {
            phase(name, &|name| {
                system.fio(&format!(
                    "--name=a --filename={name} {RANDOM} --invalidate=0"
                ));
            });
        }
        for name in ["uring", "uring-again"] {
            let uring = "--ioengine=io_uring --iodepth=8 --invalidate=0";
            phase(name, &|name| {
                system.fio(&format!("--name=b --filename={name} {RANDOM} {uring}"));
            });
        }
        for name in ["whole", "whole-again"] {
            phase(name, &|name| load(&path(name), 0, SIZE));
        }
        for name in ["partial", "partial-again"] {
            phase(name, &|name| load(&path(name), 100, 5000));
        }
        system.fio("--name=c --filename=sequential --rw=read --bs=4k --invalidate=0");
        let mapped = ["mapped", "mapped-again"].map(|name| {
            let jobs = Cell::new(Vec::new());
            let mapped = "--ioengine=mmap --invalidate=0 --bs=4k --rw=randread";
            phase(name, &|name| {
                jobs.set(system.fio(&format!("--name=d --filename={name} {mapped}")));
            });
            let jobs = jobs.take();
            let count = |counter: &str| jobs[0][counter].as_i64().expect("fio counts it");
            (count("majf"), count("minf"))
        });
        system.fio("--name=e --filename=direct --rw=read --bs=64k --direct=1");
        let mut new = File::create(path("new")).expect("a file");
        for _ in 0..PAGES {
            new.write_all(&[1; 4096]).expect("it is written");
        }
        phase("overwritten", &|_| ());
        let overwritten = File::options().write(true).open(path("overwritten"));
        let overwritten = overwritten.expect("it opens");
        for page in 0..PAGES as u64 {
            let written = overwritten.write_all_at(&[2; 100], page * 4096 + 50);
            written.expect("it is written");
        }
        (mapped, after)
    });
    if after.contains(&None) {
        return false;
    }
    assert_eq!(ran.total("events_lost"), 0, "{:?}", ran.counts);
    let explanation = ran.explanation();
    assert!(explanation.contains("kernel: groups by"), "{explanation}");
    let totals = totals(&ran, &system);
    let total = |name: &str, op: &str| {
        let total = totals.get(&(name.to_owned(), op.to_owned()));
        total.copied().unwrap_or_default()
    };

    let after: Vec<i64> = after.into_iter().flatten().collect();
    if [0, 1, 2, 3, 4, 5, 10].iter().any(|at| after[*at] != PAGES) {
        return false;
    }
    let evicted =
        ["random", "uring", "whole", "partial"].map(|name| total(&format!("{name}-again"), "r"));
    let evicted = evicted.into_iter().chain([total("mapped-again", "m")]);
    if evicted.map(|total| total.misses).sum::<i64>() > 0 {
        return false;
    }
    for name in ["random", "uring", "whole"] {
        assert_eq!(total(name, "r"), Total::of(0, PAGES, 0, 0), "{name}");
        let again = format!("{name}-again");
        assert_eq!(total(&again, "r"), Total::of(PAGES, 0, 0, 0), "{name}");
    }
    let partial = total("partial", "r");
    assert_eq!((partial.hits, partial.misses), (Some(0), 2));
    assert_eq!(partial.added(), after[6]);
    assert_eq!(total("partial-again", "r"), Total::of(2, 0, 0, 0));
    let sequential = total("sequential", "r");
    let accesses = sequential.hits.map(|hits| hits + sequential.misses);
    assert_eq!(accesses, Some(PAGES), "{sequential:?}");
    assert_eq!(sequential.added(), PAGES, "{sequential:?}");
    assert!((1..PAGES).contains(&sequential.misses), "{sequential:?}");

    let mapped = total("mapped", "m");
    assert_eq!(mapped.added(), after[8], "{mapped:?}");
    assert!((1..=faults[0].0).contains(&mapped.misses), "{faults:?}");
    let again = total("mapped-again", "m");
    assert_eq!((again.misses, again.readahead), (0, 0), "{again:?}");
    let hits = again.hits.expect("faults are counted");
    assert!((1..=faults[1].1).contains(&hits), "{again:?} {faults:?}");

    // On btrfs, reads into memory that is not present go through the page cache.
    let direct = totals.keys().any(|(name, _)| name == "direct");
    assert!(!direct || kind == "btrfs", "{totals:?}");
    let hits = |hits: i64| Some(hits).filter(|_| kind != "btrfs");
    let new = Total {
        hits: hits(0),
        ..Total::of(0, PAGES, 0, PAGES)
    };
    assert_eq!(total("new", "w"), new);
    let overwritten = Total {
        hits: hits(PAGES),
        ..Total::of(0, 0, 0, PAGES)
    };
    assert_eq!(total("overwritten", "w"), overwritten);
    true
}

#[test]
fn hits_and_misses_are_those_of_the_plan_on_ext4() {
    if let Some(_turn) = turn("hits_and_misses_are_those_of_the_plan_on_ext4") {
        plan_of_accesses("ext4");
    }
}

#[test]
fn hits_and_misses_are_those_of_the_plan_on_xfs() {
    if let Some(_turn) = turn("hits_and_misses_are_those_of_the_plan_on_xfs") {
        plan_of_accesses("xfs");
    }
}

#[test]
fn hits_and_misses_are_those_of_the_plan_on_btrfs() {
    if let Some(_turn) = turn("hits_and_misses_are_those_of_the_plan_on_btrfs") {
        plan_of_accesses("btrfs");
    }
}
