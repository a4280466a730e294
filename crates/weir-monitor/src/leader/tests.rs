//! The claims of many monitors in one directory. `--test cli fleet::standby` has the processes.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use super::directory::{Claim, LeaderDirectory};
use super::*;

/// A state directory.
fn home() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn claimed(state: &Path, record: LeaderRecord) -> Option<Claim> {
    let directory = LeaderDirectory::open(state).unwrap();
    directory.claim(record).unwrap()
}

fn of_term(term: u64) -> LeaderRecord {
    LeaderRecord {
        term,
        boot: boot_id(),
        expires: true,
        ..LeaderRecord::default()
    }
}

/// The names of the files that leaders of terms below `term` have put in place.
fn acts(state: &Path, term: u64) -> BTreeSet<String> {
    let names = fs::read_dir(state.join("acts")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let of_earlier = |name: &String| name.split_once('.').unwrap().0.parse::<u64>().unwrap() < term;
    names.filter(of_earlier).collect()
}

#[test]
fn a_term_has_one_holder_and_earlier_ones_can_replace_no_file() {
    let home = home();
    fs::create_dir(home.path().join("acts")).unwrap();
    // Each claim, and the files of earlier terms when it was made.
    let claims: Mutex<Vec<(Claim, BTreeSet<String>)>> = Mutex::default();
    let candidate = |number: usize| {
        let directory = LeaderDirectory::open(home.path()).unwrap();
        for round in 0..40 {
            let newest = directory.newest().unwrap().map_or(0, |(term, _)| term);
            // Some were stopped for some time after they had read the newest term.
            if usize::is_multiple_of(round + number, 7) {
                thread::sleep(Duration::from_millis(3));
            }
            let Some(claim) = claimed(home.path(), of_term(newest + 1)) else {
                continue;
            };
            let term = newest + 1;
            let before = acts(home.path(), term);
            for act in 0..5 {
                let prepared = claim.staging().join("act.new");
                let place = home.path().join("acts").join(format!("{term}.{act}"));
                // Fails once a later leader has removed the directory.
                let _ = fs::write(&prepared, "").and_then(|()| fs::rename(&prepared, place));
            }
            claims.lock().unwrap().push((claim, before));
        }
    };
    thread::scope(|scope| {
        for number in 0..8 {
            scope.spawn(move || candidate(number));
        }
    });
    let mut claims = claims.into_inner().unwrap();
    let terms: BTreeSet<u64> = claims.iter().map(|(c, _)| c.record().term).collect();
    assert_eq!(terms.len(), claims.len(), "a term with two holders");
    assert!(claims.len() > 40, "{}", claims.len());
    let last = *terms.last().unwrap();
    for (claim, before) in &mut claims {
        let term = claim.record().term;
        assert_eq!(
            *before,
            acts(home.path(), term),
            "files were put in place after term {term}"
        );
        assert!(!claim.renew().unwrap() || term == last, "{term} of {last}");
    }
    // What remains: at most a hundred claims, and no other staging directory.
    let left = fs::read_dir(home.path().join("leader")).unwrap().count();
    assert!(left <= 102, "{left}");
}

#[test]
fn a_claim_below_the_newest_term_fails() {
    let home = home();
    for term in 1..=120 {
        let claim = claimed(home.path(), of_term(term)).unwrap();
        assert!(claimed(home.path(), of_term(term)).is_none(), "{term}");
        claim.release().unwrap();
    }
    // The file of term 3 has been removed since.
    assert!(!home.path().join("leader/3").exists());
    for term in [3, 60, 119] {
        assert!(claimed(home.path(), of_term(term)).is_none(), "{term}");
    }
    assert!(claimed(home.path(), of_term(121)).is_some());
}

/// Whether a candidate on this kernel finds the term of `record` free after its holder was dropped
/// without a release, at once or after it has expired.
fn free_after(record: LeaderRecord) -> [Option<Succession>; 2] {
    let home = home();
    let mut holder = claimed(home.path(), record).unwrap();
    let mut candidate = LeaseCandidate::open(home.path(), of_term(0)).unwrap();
    let mut free = || {
        candidate.observe().unwrap();
        candidate.free().unwrap()
    };
    let until = Instant::now() + EXPIRES_AFTER + Duration::from_millis(500);
    while Instant::now() < until {
        assert!(holder.renew().unwrap());
        assert_eq!(free(), None, "it is renewed");
        thread::sleep(Duration::from_millis(100));
    }
    drop(holder);
    let at_once = free();
    thread::sleep(EXPIRES_AFTER);
    [at_once, free()]
}

#[test]
fn a_free_lock_is_evidence_on_the_same_kernel_and_expiry_elsewhere() {
    let elsewhere = LeaderRecord {
        boot: "another".to_owned(),
        ..of_term(1)
    };
    let alone = LeaderRecord {
        expires: false,
        ..elsewhere.clone()
    };
    let (ended, expired) = (Some(Succession::Orderly), Some(Succession::Expired));
    thread::scope(|scope| {
        let here = scope.spawn(|| free_after(of_term(1)));
        let elsewhere = scope.spawn(|| free_after(elsewhere));
        let alone = scope.spawn(|| free_after(alone));
        assert_eq!(here.join().unwrap(), [ended, ended]);
        assert_eq!(elsewhere.join().unwrap(), [None, expired]);
        assert_eq!(alone.join().unwrap(), [ended, ended]);
    });
}

#[test]
fn a_lease_that_does_not_expire_is_not_taken_from_a_stopped_process() {
    let home = home();
    let alone = LeaderRecord {
        expires: false,
        ..of_term(1)
    };
    let holder = claimed(home.path(), alone).unwrap();
    let mut candidate = LeaseCandidate::open(home.path(), of_term(0)).unwrap();
    candidate.observe().unwrap();
    thread::sleep(EXPIRES_AFTER);
    candidate.observe().unwrap();
    assert_eq!(candidate.free().unwrap(), None);
    holder.release().unwrap();
    candidate.observe().unwrap();
    assert_eq!(candidate.free().unwrap(), Some(Succession::Orderly));
}
