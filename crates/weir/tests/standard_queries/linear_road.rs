//! Linear Road: vehicles on an expressway, of which some have accidents; segment statistics,
//! accidents, notifications, tolls and balances.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use weir_testing::Scratch;

use crate::output::Cells;
use crate::{Expected, compare, row, run_script, seed, write_source};

/// The last instant.
const END: i64 = 1_500;

const VEHICLES: i64 = 40;

/// The length of a segment in feet.
const SEGMENT: i64 = 1_000;

#[derive(Clone, Debug)]
struct Report {
    at: i64,
    vid: i64,
    speed: i64,
    dir: i64,
    pos: i64,
}

impl Report {
    fn seg(&self) -> i64 {
        self.pos / SEGMENT
    }
}

/// A direction and a segment.
type Place = (i64, i64);

/// Positions every 30 s, from vehicles that start at any time; some stop, most of these in pairs.
fn reports(rng: &mut Rng) -> Vec<Report> {
    let mut reports = Vec::new();
    for vid in 0..VEHICLES {
        let dir = vid % 2;
        let (mut at, mut pos) = (rng.i64(0..400), rng.i64(0..6_000));
        let slow = rng.i64(5..90);
        // Vehicles 4n and 4n + 2 have the same direction, and stop at the same position.
        let stop = (rng.i64(0..3) > 0).then_some((300 + 90 * (vid / 4), 4_000 + 500 * (vid / 4)));
        while at <= END {
            let stops =
                stop.is_some_and(|(from, _)| vid % 8 < 6 && (from..from + 210).contains(&at));
            let speed = if stops { 0 } else { slow + rng.i64(0..20) };
            if let (true, Some((_, place))) = (stops, stop) {
                pos = place;
            }
            reports.push(Report {
                at,
                vid,
                speed,
                dir,
                pos,
            });
            let feet = speed * 30;
            pos = if dir == 0 {
                pos + feet
            } else {
                (pos - feet).max(0)
            } % 12_000;
            at += 30;
        }
    }
    reports.sort_by_key(|r| r.at);
    reports
}

/// The evaluator: every relation from all reports up to an instant.
struct Road {
    reports: Vec<Report>,
}

impl Road {
    fn until(&self, at: i64) -> impl Iterator<Item = &Report> {
        self.reports.iter().filter(move |r| r.at <= at)
    }

    /// The last `n` reports of each vehicle.
    fn last(&self, at: i64, n: usize) -> BTreeMap<i64, Vec<&Report>> {
        let mut last: BTreeMap<i64, Vec<&Report>> = BTreeMap::new();
        for report in self.until(at) {
            let of = last.entry(report.vid).or_default();
            of.push(report);
            if of.len() > n {
                of.remove(0);
            }
        }
        last
    }

    /// The places of the vehicles that reported in the last 30 s.
    fn active(&self, at: i64) -> BTreeSet<(i64, Place)> {
        let last = self.last(at, 1).into_values().map(|reports| reports[0]);
        let recent = last.filter(|r| r.at > at - 30);
        recent.map(|r| (r.vid, (r.dir, r.seg()))).collect()
    }

    fn entered(&self, at: i64) -> Vec<(i64, Place)> {
        let before = self.active(at - 1);
        let now = self.active(at).into_iter();
        now.filter(|vehicle| !before.contains(vehicle)).collect()
    }

    fn congested(&self, at: i64) -> BTreeMap<Place, f64> {
        let mut speeds: BTreeMap<Place, Vec<i64>> = BTreeMap::new();
        for r in self.until(at).filter(|r| r.at > at - 300) {
            speeds.entry((r.dir, r.seg())).or_default().push(r.speed);
        }
        let mean = |speeds: Vec<i64>| speeds.iter().sum::<i64>() as f64 / speeds.len() as f64;
        let means = speeds
            .into_iter()
            .map(|(place, speeds)| (place, mean(speeds)));
        means.filter(|(_, mean)| *mean < 40.0).collect()
    }

    fn volume(&self, at: i64) -> BTreeMap<Place, i64> {
        let mut volume = BTreeMap::new();
        for (_, place) in self.active(at) {
            *volume.entry(place).or_default() += 1;
        }
        volume
    }

    fn accidents(&self, at: i64) -> BTreeSet<(i64, i64)> {
        let mut stopped: BTreeMap<(i64, i64), i64> = BTreeMap::new();
        for reports in self.last(at, 4).into_values().filter(|r| r.len() == 4) {
            if reports.iter().all(|r| r.pos == reports[0].pos) {
                *stopped.entry((reports[0].dir, reports[0].pos)).or_default() += 1;
            }
        }
        stopped.retain(|_, vehicles| *vehicles >= 2);
        stopped.into_keys().collect()
    }

    fn is_blocked(&self, at: i64, (dir, seg): Place) -> bool {
        self.volume(at).contains_key(&(dir, seg))
            && self.accidents(at).into_iter().any(|(other, pos)| {
                let ahead = match dir {
                    0 => pos / SEGMENT - seg,
                    _ => seg - pos / SEGMENT,
                };
                other == dir && (0..=4).contains(&ahead)
            })
    }

    fn tolls(&self, at: i64) -> Vec<(i64, Place, i64)> {
        let entered = self.entered(at);
        let (congested, volume) = (self.congested(at), self.volume(at));
        let charged = entered
            .into_iter()
            .filter(|(_, place)| congested.contains_key(place) && !self.is_blocked(at, *place));
        let toll = |(vid, place)| {
            let n: i64 = volume[&place];
            (vid, place, 2 * (n - 2) * (n - 2))
        };
        charged.map(toll).collect()
    }

    /// All tolls after `from`, up to `at`.
    fn charged(tolls: &Tolls, from: i64, at: i64) -> impl Iterator<Item = &(i64, Place, i64)> {
        tolls.range(from + 1..=at).flat_map(|(_, tolls)| tolls)
    }
}

/// By instant: the vehicle, the place and the toll.
type Tolls = BTreeMap<i64, Vec<(i64, Place, i64)>>;

#[test]
fn linear_road_has_the_results_of_its_evaluator() {
    let road = Road {
        reports: reports(&mut Rng::with_seed(seed())),
    };
    let scratch = Scratch::new();
    let line = |r: &Report| (r.at, format!("{},{},{},{}", r.vid, r.speed, r.dir, r.pos));
    let lines: Vec<(i64, String)> = road.reports.iter().map(line).collect();
    write_source(&scratch, "report.dat", "i,i,i,i", &lines);
    run_script(&scratch, "tests/linear_road/linear_road.cql");

    let first = road.reports[0].at;
    let last = road.reports.last().map_or(0, |r| r.at);
    let all: Tolls = (first..=last).map(|at| (at, road.tolls(at))).collect();
    let balances = |at: i64| -> Cells {
        let mut balances: BTreeMap<i64, (i64, i64)> = BTreeMap::new();
        for (vid, _, toll) in Road::charged(&all, i64::MIN, at) {
            let (sum, count) = balances.entry(*vid).or_default();
            (*sum, *count) = (*sum + toll, *count + 1);
        }
        let rows = balances.into_iter();
        rows.map(|(vid, (sum, count))| row![vid, sum, count])
            .collect()
    };
    let expenditure = |at: i64| -> Cells {
        let minute = at - at % 60;
        let mut sums: BTreeMap<Place, i64> = BTreeMap::new();
        for (_, place, toll) in Road::charged(&all, minute - 600, minute) {
            *sums.entry(*place).or_default() += toll;
        }
        sums.into_iter()
            .map(|((dir, seg), sum)| row![dir, seg, sum])
            .collect()
    };
    let expected = [
        (
            "statistics.out",
            Expected::Relation(Box::new(|at| {
                let means = road.congested(at).into_iter();
                means
                    .map(|((dir, seg), mean)| row![dir, seg, mean])
                    .collect()
            })),
        ),
        (
            "volumes.out",
            Expected::Relation(Box::new(|at| {
                let volume = road.volume(at).into_iter();
                volume.map(|((dir, seg), n)| row![dir, seg, n]).collect()
            })),
        ),
        (
            "accidents.out",
            Expected::Relation(Box::new(|at| {
                let accidents = road.accidents(at).into_iter();
                accidents
                    .map(|(dir, pos)| row![dir, pos / SEGMENT])
                    .collect()
            })),
        ),
        (
            "notifications.out",
            Expected::Stream(Box::new(|at| {
                let entered = road.entered(at).into_iter();
                let notified = entered.filter(|(_, place)| road.is_blocked(at, *place));
                notified
                    .map(|(vid, (dir, seg))| row![vid, dir, seg])
                    .collect()
            })),
        ),
        (
            "tolls.out",
            Expected::Stream(Box::new(|at| {
                all[&at]
                    .iter()
                    .map(|(vid, (_, seg), toll)| row![vid, seg, toll])
                    .collect()
            })),
        ),
        ("balances.out", Expected::Relation(Box::new(balances))),
        ("expenditure.out", Expected::Relation(Box::new(expenditure))),
    ];
    // At the very last instant a stream of all rows is not written (docs/decisions/0006).
    let differences = compare(&scratch, first..=last - 1, &expected);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
