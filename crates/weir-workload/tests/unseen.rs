//! Requests whose completion or issue was not received: the number in flight counted from the
//! remaining events is compared with a brute-force computation over the complete load.

use fastrand::Rng;
use std::collections::HashMap;

use weir_model::{Op, Symbol};
use weir_workload::little::is_reliable;
use weir_workload::{
    Characteriser, Class, Counter, IssuedRequest, Metric, RequestEvent, Response, Subject, Topic,
    Unseen,
};

/// A load, and the events that are lost.
#[derive(Clone, Copy, Debug)]
struct Load {
    disks: usize,
    /// VMs on each disk.
    owners: usize,
    /// One of this many requests loses its completion; 0 is none.
    completions_lost: i64,
    /// One of this many requests loses its issue.
    issues_lost: i64,
    /// Requests are identified by their structure, not by a unique number.
    ids_recur: bool,
    /// The source counts the requests in flight.
    counts: bool,
}

const PLAIN: Load = Load {
    disks: 1,
    owners: 1,
    completions_lost: 100,
    issues_lost: 0,
    ids_recur: false,
    counts: true,
};

/// The structures of a disk's queue.
const STRUCTURES: usize = 32;

/// The actual course of a request.
#[derive(Clone, Copy, Debug)]
struct Made {
    disk: usize,
    owner: usize,
    structure: usize,
    issued: i64,
    ended: i64,
    completion_lost: bool,
    issue_lost: bool,
}

/// An event as a source delivers it.
struct Delivered {
    disk: usize,
    owner: usize,
    in_flight: Option<i64>,
    event: RequestEvent,
}

fn one_in(random: &mut Rng, n: i64) -> bool {
    n > 0 && random.i64(0..n) == 0
}

/// About 2,000 requests to each disk, a few in flight at a time. Structures are allocated as in the
/// kernel: the one that was freed last.
fn made(load: &Load, seed: u64) -> Vec<Made> {
    let mut random = Rng::with_seed(seed);
    let mut all = Vec::new();
    for disk in 0..load.disks {
        let mut free: Vec<usize> = (0..STRUCTURES).collect();
        let mut busy: Vec<(i64, usize)> = Vec::new();
        let mut now = 0;
        for _ in 0..2_000 {
            now += 1 + random.i64(0..2_000_000);
            busy.sort_unstable();
            while busy.first().is_some_and(|(ended, _)| *ended < now) {
                free.push(busy.remove(0).1);
            }
            let Some(structure) = free.pop() else {
                continue;
            };
            let ended = now + 1_000_000 + random.i64(0..4_000_000);
            busy.push((ended, structure));
            all.push(Made {
                disk,
                owner: random.i64(0..load.owners as i64) as usize,
                structure,
                issued: now,
                ended,
                completion_lost: one_in(&mut random, load.completions_lost),
                issue_lost: one_in(&mut random, load.issues_lost),
            });
        }
    }
    all.sort_by_key(|m| (m.issued, m.disk));
    all
}

/// Until when a request counts: to its end if that is received, else until its structure is reused.
fn counts_until(made: &[Made], which: usize) -> i64 {
    let own = &made[which];
    if !own.completion_lost {
        return own.ended;
    }
    let same = |m: &&Made| (m.disk, m.structure) == (own.disk, own.structure) && !m.issue_lost;
    let next = made[which + 1..].iter().find(same);
    next.map_or(i64::MAX, |m| m.issued)
}

/// The numbers in flight at each received issue, itself included: by the known structures in use,
/// and actual. `whose` selects a disk, or an owner on it.
fn brute_force(made: &[Made], whose: &dyn Fn(&Made) -> bool) -> Vec<[i64; 2]> {
    let known: Vec<usize> = (0..made.len())
        .filter(|i| whose(&made[*i]) && !made[*i].issue_lost)
        .collect();
    let until: Vec<i64> = known.iter().map(|i| counts_until(made, *i)).collect();
    let numbers = (0..known.len()).map(|at| {
        let now = made[known[at]].issued;
        let open = |until: &dyn Fn(usize) -> i64| {
            1 + (0..at).filter(|before| until(*before) > now).count() as i64
        };
        [open(&|i| until[i]), open(&|i| made[known[i]].ended)]
    });
    numbers.collect()
}

/// The events that a source delivers.
fn delivered(load: &Load, made: &[Made]) -> Vec<Delivered> {
    let mut steps: Vec<(i64, bool, usize)> = Vec::new();
    for (which, m) in made.iter().enumerate() {
        steps.extend((!m.issue_lost).then_some((m.issued, true, which)));
        steps.extend((!m.completion_lost).then_some((m.ended, false, which)));
    }
    steps.sort_unstable();
    // By disk and structure: the number of the request that uses it.
    let mut using: HashMap<(usize, usize), i64> = HashMap::new();
    let mut numbers = 0;
    let step = |(ts, is_issue, which): (i64, bool, usize)| {
        let m = &made[which];
        let structure = (m.disk, m.structure);
        let earlier = using.remove(&structure);
        numbers += i64::from(is_issue || earlier.is_none());
        let number = earlier.filter(|_| !is_issue).unwrap_or(numbers);
        let id = match load.ids_recur {
            true => (m.disk * STRUCTURES + m.structure) as i64,
            false => number,
        };
        if is_issue {
            using.insert(structure, number);
        }
        let in_flight = using.keys().filter(|(disk, _)| *disk == m.disk).count();
        Delivered {
            disk: m.disk,
            owner: m.owner,
            in_flight: (is_issue && load.counts).then_some(in_flight as i64),
            event: match is_issue {
                true => RequestEvent::Issued(IssuedRequest {
                    ts,
                    id,
                    op: Op::Read,
                    sector: Some(8),
                    sectors: 8,
                }),
                false => RequestEvent::Finished(Response {
                    ts,
                    id,
                    op: Op::Read,
                    wait_ns: None,
                    service_ns: Some(ts - m.issued),
                    latency_ns: None,
                    failed: false,
                }),
            },
        }
    };
    steps.into_iter().map(step).collect()
}

fn subject(disk: usize, owner: usize) -> Subject {
    Subject {
        vm: Some(Symbol::new(&format!("vm{owner}"))),
        pdisk: Some(Symbol::new(&format!("/dev/loop{disk}"))),
        ..Subject::default()
    }
}

/// Every event, after the requests that must have ended before it.
fn replay(events: &[Delivered], take: &mut dyn FnMut(Subject, RequestEvent)) {
    let mut unseen = Unseen::default();
    for d in events {
        let subject = subject(d.disk, d.owner);
        let counted = unseen.disk_of(None, subject.pdisk);
        let ts = d.event.ts();
        let lost = match d.event {
            RequestEvent::Issued(r) => unseen.issued(counted, (subject, r.id), ts, d.in_flight),
            RequestEvent::Finished(r) => unseen.finished(counted, r.id).into_iter().collect(),
            RequestEvent::Lost { .. } => unreachable!("no source delivers it"),
        };
        for (subject, id) in lost {
            take(subject, RequestEvent::Lost { ts, id });
        }
        take(subject, d.event);
    }
}

fn counters(events: &[Delivered]) -> HashMap<Subject, Counter> {
    let mut counters: HashMap<Subject, Counter> = HashMap::new();
    replay(events, &mut |subject, event| {
        let counter = counters.entry(subject);
        counter.or_insert_with(|| Counter::new(0)).take(&event);
    });
    counters
}

fn mean(values: impl Iterator<Item = i64>) -> f64 {
    let (sum, n) = values.fold((0, 0), |(sum, n), value| (sum + value, n + 1));
    sum as f64 / n as f64
}

fn outstanding(counter: &Counter) -> (f64, u64) {
    let of = counter.histograms().of(Metric::Outstanding, Class::All);
    (of.mean().unwrap(), of.count)
}

#[test]
fn outstanding_requests_are_those_of_the_structures_in_use() {
    let loads = [
        Load {
            completions_lost: 0,
            ..PLAIN
        },
        PLAIN,
        Load {
            completions_lost: 20,
            ..PLAIN
        },
        Load { disks: 3, ..PLAIN },
        Load {
            ids_recur: true,
            ..PLAIN
        },
        Load {
            ids_recur: true,
            counts: false,
            disks: 2,
            ..PLAIN
        },
        Load {
            completions_lost: 0,
            issues_lost: 100,
            ..PLAIN
        },
        Load {
            issues_lost: 200,
            disks: 2,
            completions_lost: 200,
            ..PLAIN
        },
    ];
    for (seed, load) in loads.into_iter().enumerate() {
        let made = made(&load, seed as u64);
        let counters = counters(&delivered(&load, &made));
        for disk in 0..load.disks {
            let numbers = brute_force(&made, &|m| m.disk == disk);
            let counter = &counters[&subject(disk, 0)];
            let (found, count) = outstanding(counter);
            assert_eq!(count, numbers.len() as u64, "{load:?}");
            let ratio = counter.little_ratio().unwrap();
            // If both are lost, the end of one request is that of another's structure.
            let both = load.issues_lost > 0 && load.completions_lost > 0;
            let [expected, truth] = [0, 1].map(|i| mean(numbers.iter().map(|n| n[i])));
            let tolerance = if both { 0.01 } else { 1e-9 };
            assert!(
                (found - expected).abs() <= tolerance,
                "{found} {expected} {load:?}"
            );
            let lost = [load.completions_lost, load.issues_lost].map(|n| 1.0 / n.max(1) as f64);
            let lost: f64 = lost.iter().filter(|share| **share < 1.0).sum();
            // A structure whose completion was lost counts as busy until it is used again: for
            // those at the end of the list of free ones, as long as some ten requests take.
            assert!(
                (found / truth - 1.0).abs() < 0.02 + 12.0 * lost,
                "{found} {truth} {load:?}"
            );
            assert!(is_reliable(ratio), "{ratio} {load:?}");
        }
    }
}

#[test]
fn several_vms_on_a_disk_have_separate_counts() {
    let load = Load {
        disks: 2,
        owners: 3,
        completions_lost: 50,
        ..PLAIN
    };
    let made = made(&load, 11);
    let counters = counters(&delivered(&load, &made));
    for (disk, owner) in (0..2).flat_map(|disk| (0..3).map(move |owner| (disk, owner))) {
        let numbers = brute_force(&made, &|m| (m.disk, m.owner) == (disk, owner));
        let truth = mean(numbers.iter().map(|n| n[1]));
        let (found, _) = outstanding(&counters[&subject(disk, owner)]);
        // The number does not show which of them has ended, so it may be attributed to another VM.
        assert!(
            (found / truth - 1.0).abs() < 0.05,
            "{found} {truth} {disk} {owner}"
        );
    }
}

#[test]
fn without_a_count_or_a_recurring_id_the_number_is_reported_as_unreliable() {
    let load = Load {
        counts: false,
        ..PLAIN
    };
    let made = made(&load, 5);
    let events = delivered(&load, &made);
    let truth = mean(brute_force(&made, &|_| true).iter().map(|n| n[1]));
    let counter = &counters(&events)[&subject(0, 0)];
    assert!(outstanding(counter).0 > 2.0 * truth, "its requests add up");
    let ratio = counter.little_ratio().unwrap();
    assert!(!is_reliable(ratio), "{ratio}");
    let mut characteriser = Characteriser::default();
    replay(&events, &mut |subject, event| {
        characteriser.take(&subject, &event)
    });
    let profile = characteriser.report().profiles.remove(0);
    assert_eq!(profile.parallelism, None);
    let load = profile.load.unwrap();
    assert!(load.by_depth.is_empty() && load.all.requests > 0);
    let missing = profile
        .missing
        .iter()
        .find(|m| m.topic == Topic::QueueDepth);
    assert!(
        missing.unwrap().text.contains("Little's-law check failed"),
        "{missing:?}"
    );
    let of = profile.histograms.of(Metric::Outstanding, Class::All);
    assert_eq!(of.count, 0);
}

#[test]
fn with_the_count_busy_time_matches_the_load() {
    let made = made(&PLAIN, 7);
    let mut characteriser = Characteriser::default();
    replay(&delivered(&PLAIN, &made), &mut |subject, event| {
        characteriser.take(&subject, &event)
    });
    let profile = characteriser.report().profiles.remove(0);
    let parallelism = profile.parallelism.unwrap();
    // Requests are in the order of their issue.
    let (mut busy, mut until) = (0, 0);
    for m in &made {
        busy += (m.ended - m.issued.max(until)).max(0);
        until = until.max(m.ended);
    }
    let span = until - made[0].issued;
    let truth = busy as f64 / span as f64;
    assert!(
        (parallelism.busy_share - truth).abs() < 0.01,
        "{truth} {parallelism:?}"
    );
}

#[test]
fn a_request_without_an_end_expires() {
    let read = |ts, id| {
        RequestEvent::Issued(IssuedRequest {
            ts,
            id,
            op: Op::Read,
            sector: Some(0),
            sectors: 8,
        })
    };
    let mut counter = Counter::new(0);
    counter.take(&read(0, 1));
    counter.take(&read(299_000_000_000, 2));
    counter.take(&read(311_000_000_000, 3));
    let of = counter.histograms().of(Metric::Outstanding, Class::All);
    assert_eq!((of.sum, of.max), (1 + 2 + 2, 2));
    assert_eq!(counter.forgotten(), 1);
}

#[test]
fn a_late_completion_is_matched_and_another_request_counts_as_lost() {
    let mut unseen = Unseen::default();
    let [disk, same, other] = ["/dev/sda1", "/dev/sda2", "/dev/sdb"]
        .map(|path| unseen.disk_of(None, Some(Symbol::new(path))));
    assert_eq!(disk, same, "partitions are counted with their disk");
    assert_ne!(disk, other);
    assert_eq!(unseen.disk_of(None, Some(Symbol::new("/dev/sda"))), disk);
    let of = |id| (Subject::default(), id);
    assert_eq!(unseen.issued(disk, of(1), 10, Some(1)), []);
    assert_eq!(unseen.issued(same, of(2), 20, Some(2)), []);
    // One has ended, presumably the older.
    assert_eq!(unseen.issued(disk, of(3), 30, Some(2)), [of(1)]);
    assert_eq!(unseen.finished(disk, 1), Some(of(2)), "so it was the other");
    assert_eq!(unseen.finished(disk, 1), None);
    assert_eq!(unseen.finished(same, 3), None);
    assert_eq!(unseen.issued(disk, of(4), 40, Some(1)), []);
}
