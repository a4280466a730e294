//! `weir correlate`: pairs planted in recordings, and two loop devices that are driven together.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value as Json;
use weir_testing::{DiskLoad, PacedLoad};

use crate::live::{loop_disk, watchable};
use crate::support::{CommandOutput, Scratch, interrupt, run, weir};

const SECONDS: usize = 150;

/// The bundled recording of three disks.
const THREE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../samples/three-disks.parquet"
);

/// An MSR Cambridge trace of these disks of one host, each with the requests of each second and
/// their latency in microseconds, as a file.
fn trace(scratch: &Scratch, disks: &[&dyn Fn(usize) -> (u64, u64)]) -> String {
    let mut lines = Vec::new();
    for (disk, load) in disks.iter().enumerate() {
        for second in 0..SECONDS {
            let (requests, latency_us) = load(second);
            for i in 0..requests {
                let within = 10_000_000 * i / requests;
                let ts = 128_166_372_030_000_000 + 10_000_000 * second as u64 + within;
                lines.push((
                    ts,
                    format!(
                        "{ts},host,{disk},Read,{},4096,{}\n",
                        4096 * i,
                        10 * latency_us
                    ),
                ));
            }
        }
    }
    lines.sort();
    let text: String = lines.into_iter().map(|(_, line)| line).collect();
    scratch.write("trace.csv", &text)
}

/// Numbers up to `most`, the same for each seed.
fn random(seed: u64, most: u64) -> Vec<u64> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..SECONDS + 10).map(|_| random.u64(1..most)).collect()
}

fn summary(args: &[&str]) -> Json {
    let out = run(&[&["correlate", "--json"], args].concat()).fine();
    let summary: Json = serde_json::from_str(&out).unwrap();
    summary["summary"].clone()
}

/// The name of a disk in a report, by whichever column the format has.
fn disk(name: &Json) -> String {
    let names = ["vm", "vdisk", "pdisk"].map(|part| name[part].as_str().unwrap_or_default());
    names.join(" ")
}

#[test]
fn a_disk_that_follows_another_is_found_with_its_lag_and_a_third_is_not() {
    let scratch = Scratch::new();
    let (rates, others) = (random(1, 40), random(2, 40));
    let file = trace(
        &scratch,
        &[
            &|second| (rates[second + 3], 300),
            &|second| (2 * rates[second] + 1, 300),
            &|second| (others[second], 300),
        ],
    );
    let found = summary(&["--from", &file]);
    let pairs = found["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 1, "{found}");
    let pair = &pairs[0]["strongest"];
    let (leader, follower) = (disk(&pair["leader"]), disk(&pair["follower"]));
    assert!(leader.contains('0') && follower.contains('1'), "{pair}");
    assert_eq!(pair["lag_ns"], 3_000_000_000i64);
    assert_eq!(pair["verdict"], "move_together");
    assert!(pair["coefficient"].as_f64().unwrap() > 0.99);
    // The first and the last step are incomplete; a pair is found while both windows are complete.
    let windows = found["windows"].as_u64().unwrap();
    assert_eq!(
        windows,
        pairs[0]["windows"].as_u64().unwrap() + 3,
        "{found}"
    );
    assert!(windows > 80, "{found}");
    let text = run(&["correlate", "--from", &file]).fine();
    assert!(
        text.contains("leads by 3.0 s") && text.contains("move together"),
        "{text}"
    );
    let short = summary(&["--from", &file, "--lag", "2s"]);
    assert_eq!(short["pairs"].as_array().unwrap().len(), 0, "{short}");
    let bytes = summary(&["--from", &file, "--metric", "bytes", "--window", "40s"]);
    assert_eq!(bytes["pairs"].as_array().unwrap().len(), 1, "{bytes}");
    assert_eq!(bytes["metric"], "bytes");
}

#[test]
fn a_disk_that_slows_another_is_named_with_the_evidence() {
    let scratch = Scratch::new();
    let noise = random(3, 40);
    let is_noisy = |second: usize| noise[second] > 20;
    let file = trace(
        &scratch,
        &[
            &|second| {
                if is_noisy(second) {
                    (noise[second], 400)
                } else {
                    (0, 0)
                }
            },
            // Two requests in flight: slower requests are fewer.
            &|second| match is_noisy(second) {
                true => (10 + noise[second + 1] / 20, 900 + noise[second]),
                false => (30 + noise[second + 1] / 20, 300 + noise[second]),
            },
        ],
    );
    let found = summary(&["--from", &file, "--lag", "0"]);
    let pair = &found["pairs"][0]["strongest"];
    assert!(pair["coefficient"].as_f64().unwrap() < -0.8, "{found}");
    let slows = pair["verdict"].as_str().unwrap();
    let victim = match slows {
        "leader_slows_follower" => &pair["follower"],
        "follower_slows_leader" => &pair["leader"],
        _ => panic!("{pair}"),
    };
    assert!(disk(victim).contains('1'), "{pair}");
    let text = run(&["correlate", "--from", &file, "--lag", "0"]).fine();
    assert!(
        text.contains(" slows ") && text.contains("is active: "),
        "{text}"
    );
}

#[test]
fn the_bundled_recording_of_three_disks_has_the_pair_that_was_driven_together() {
    for metric in ["iops", "bytes"] {
        let args = ["--from", THREE, "--window", "40s", "--metric", metric];
        let found = summary(&args);
        let pairs = found["pairs"].as_array().unwrap();
        assert_eq!((pairs.len(), &found["disks"]), (1, &3.into()), "{found}");
        let pair = &pairs[0]["strongest"];
        let (leader, follower) = (&pair["leader"]["pdisk"], &pair["follower"]["pdisk"]);
        assert_eq!(
            (leader, follower),
            (&"/dev/loop4".into(), &"/dev/loop5".into())
        );
        assert_eq!(pair["lag_ns"], 2_000_000_000i64, "{pair}");
        let top = summary(&[&args[..], &["--threshold", "0.999"]].concat());
        assert_eq!(top["pairs"].as_array().unwrap().len(), 0, "{top}");
    }
}

/// The coefficient of correlation of two series.
fn coefficient(a: &[f64], b: &[f64]) -> f64 {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (mean_a, mean_b) = (mean(a), mean(b));
    let sum = |x: &[f64], x_mean: f64, y: &[f64], y_mean: f64| -> f64 {
        let products = x.iter().zip(y).map(|(x, y)| (x - x_mean) * (y - y_mean));
        products.sum()
    };
    let squares = sum(a, mean_a, a, mean_a) * sum(b, mean_b, b, mean_b);
    sum(a, mean_a, b, mean_b) / squares.sqrt()
}

#[test]
fn the_relation_has_the_pairs_of_each_window_with_their_coefficients() {
    let rows = |query: &str| {
        let args = ["query", "--from", THREE, "--format", "csv", query];
        let lines = run(&args).fine();
        let fields = |line: &str| line.split(',').map(str::to_owned).collect::<Vec<_>>();
        lines.lines().skip(1).map(fields).collect::<Vec<_>>()
    };
    // The requests of each second, each second by its name.
    let counts = rows(
        "Rstream(select pdisk, count(*) from IO [range 1 s slide 1 s] group by pdisk
                 union all select '(all)', count(*) from IO [range 1 s slide 1 s])",
    );
    let mut seconds: Vec<&str> = counts.iter().map(|row| &*row[0]).collect();
    seconds.dedup();
    let series = |disk: &str| -> Vec<f64> {
        let at = |second: &&str| {
            let mut counts = counts.iter();
            let count = counts.find(|row| row[0] == *second && row[1] == disk);
            count.map_or(0.0, |row| row[2].parse().unwrap())
        };
        seconds.iter().map(at).collect()
    };
    for (clause, window) in [("", 60), ("[range 20 s slide 1 s]", 20)] {
        let found = rows(&format!(
            "Istream(select leader_pdisk, follower_pdisk, lag, r, window_end
             from correlations {clause} where metric = 'iops')"
        ));
        assert!(!found.is_empty());
        for row in &found {
            assert_eq!(row[0], row[5], "{row:?}");
            assert_eq!(
                row[1..4],
                ["/dev/loop4", "/dev/loop5", "2000000000"],
                "{row:?}"
            );
            let end = seconds.iter().position(|s| *s == row[0]).unwrap() + 1;
            let follower = &series(&row[2])[end - window..end];
            let leader = &series(&row[1])[end - 2 - window..end - 2];
            let (r, expected): (f64, f64) =
                (row[4].parse().unwrap(), coefficient(leader, follower));
            assert!((r - expected).abs() < 1e-9, "{row:?}: {expected}");
        }
        let window = format!("{window}s");
        let summary = summary(&["--from", THREE, "--window", &window]);
        let pair = &summary["pairs"][0];
        assert_eq!(pair["windows"], found.len(), "{summary}");
        let strongest = found.iter().map(|row| row[4].parse::<f64>().unwrap());
        let strongest = strongest.fold(0.0, f64::max);
        let coefficient = pair["strongest"]["coefficient"].as_f64().unwrap();
        assert!((coefficient - strongest).abs() < 1e-9, "{summary}");
    }
    // The last second of the recording is incomplete, and in no window.
    let last = run(&[
        "query",
        "--from",
        THREE,
        "--final",
        "--format",
        "csv",
        "select metric, verdict, window_end from correlations order by metric",
    ]);
    let end = "2026-11-24T13:41:58.000000000Z";
    let expected = ["bytes", "iops"].map(|metric| format!("{end},{metric},move together,{end}\n"));
    let header = "instant,metric,verdict,window_end\n";
    assert_eq!(last.fine(), format!("{header}{}", expected.concat()));
    let refused = run(&["record", "--from", THREE, "--stream", "correlations"]);
    assert_eq!(refused.code, 2, "{}", refused.err);
}

#[test]
fn an_alert_reads_the_relation() {
    let scratch = Scratch::new();
    let file = scratch.write(
        "alerts.cql",
        "create alert together as
             select leader_pdisk as pdisk, follower_pdisk, r
             from correlations [range 20 s slide 1 s] where metric = 'iops'
             when r > 0.9 for 5 s until r < 0.5 for 5 s
             labels pdisk;
         expect together firing between 20 s and 60 s where pdisk = '/dev/loop4';",
    );
    let text = run(&["alert", "test", "-f", &file, "--from", THREE]).fine();
    assert!(text.contains("met      EXPECT together"), "{text}");
}

#[test]
fn the_page_has_the_pair_in_heat_map_graph_and_evidence() {
    let scratch = Scratch::new();
    let page = scratch.path().join("pairs.html");
    let path = page.to_str().unwrap();
    let args = ["--from", THREE, "--window", "40s", "--html", path];
    let found = summary(&args);
    assert_eq!(found["pairs"].as_array().unwrap().len(), 1);
    let html = std::fs::read_to_string(&page).unwrap();
    assert_eq!(html.matches("<svg").count(), 2);
    // A cell for each order of the pair, and the edge of the graph with an arrow.
    let tooltip = "app on /dev/loop4, app on /dev/loop5, 2.0 s later: r = 0.993, move together";
    assert_eq!(html.matches(tooltip).count(), 3, "{html}");
    assert!(html.contains("1 pair by iops") && html.contains("independent values"));
    let refused = run(&["correlate", "--from", THREE, "--html", THREE]);
    assert_eq!(refused.code, 2, "{}", refused.err);
}

#[test]
fn the_bundled_recording_of_one_disk_has_no_pairs() {
    let sample = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../samples/fio-loop.parquet"
    );
    let args = [
        "--from", sample, "--step", "100ms", "--window", "2s", "--lag", "1s",
    ];
    let found = summary(&args);
    assert_eq!(
        (&found["windows"], &found["disks"]),
        (&0.into(), &1.into()),
        "{found}"
    );
    assert_eq!(found["pairs"].as_array().unwrap().len(), 0);
    let all = run(&[&["correlate"], &args[..]].concat()).fine();
    assert!(
        all.starts_with("0 pairs by iops, 2026-11-21 04:22:4"),
        "{all}"
    );
}

#[test]
fn wrong_lengths_are_rejected_and_the_query_is_printed() {
    for (args, part) in [
        ("--window 10s", "16 to 4096 steps"),
        ("--window 60500ms", "multiple of --step"),
        ("--lag 90s", "at most the length of --window"),
        ("--lag 1500ms", "multiple of --step"),
        ("--step 10ms", "at least 100ms"),
        ("--threshold 1.1", "up to 1"),
        ("--threshold 0", "above 0"),
        ("--metric load", "possible values"),
    ] {
        let words: Vec<&str> = ["correlate"].into_iter().chain(args.split(' ')).collect();
        let refused = run(&words);
        assert!(
            refused.code == 2 && refused.err.contains(part),
            "{args}: {}",
            refused.err
        );
    }
    let query = run(&["correlate", "--show-query", "--step", "500ms"]).fine();
    assert!(query.contains("[range 500 ms slide 500 ms]"), "{query}");
    assert_eq!(run(&["check", &query]).code, 0);
}

/// Turns a load on and off at random, until it is done.
fn drive(loads: &[&PacedLoad], seed: u64, is_done: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(seed);
    while !is_done.load(Ordering::Relaxed) {
        let is_on = random.bool();
        for load in loads {
            match is_on {
                true => load.resume(),
                false => load.pause(),
            }
        }
        std::thread::sleep(Duration::from_millis(600));
    }
    loads.iter().for_each(|load| load.resume());
}

#[test]
fn of_three_loop_devices_the_two_that_are_driven_together_are_a_pair() {
    let test = "of_three_loop_devices_the_two_that_are_driven_together_are_a_pair";
    if !watchable(test) {
        return;
    }
    let disks = [0, 1, 2].map(|_| loop_disk(test));
    let [Some(a), Some(b), Some(alone)] = disks else {
        return;
    };
    let load = |path: &str, seed: u64| {
        PacedLoad::start(DiskLoad {
            read: 1,
            rate: 100,
            span: 16 << 20,
            seed,
            ..DiskLoad::on(path)
        })
    };
    let loads = [load(a.path(), 1), load(b.path(), 2), load(alone.path(), 3)];
    let mut args = vec!["correlate", "--json", "--step", "200ms", "--window", "12s"];
    args.extend(["--lag", "400ms", "--idle", "20ms"]);
    let relation = "Istream(select distinct leader_pdisk, follower_pdisk
                    from correlations [range 12 s slide 200 ms] where metric = 'iops')";
    let mut query = vec!["query", "--format", "csv", "--idle", "20ms", relation];
    for disk in [&a, &b, &alone] {
        args.extend(["--device", disk.path()]);
        query.extend(["--device", disk.path()]);
    }
    let is_done = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| drive(&[&loads[0], &loads[1]], 4, &is_done));
        scope.spawn(|| drive(&[&loads[2]], 5, &is_done));
        let mut query = weir(&query).stdout(Stdio::piped()).spawn().unwrap();
        let mut child = weir(&args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut windows: Vec<Json> = Vec::new();
        // The windows are complete after 60 steps; on a busy host pairs may need longer.
        for line in lines.by_ref().take(400) {
            let window: Json = serde_json::from_str(&line.unwrap()).unwrap();
            windows.push(window["window"].clone());
            if windows
                .last()
                .is_some_and(|w| w["pairs"] != Json::Array(Vec::new()))
            {
                break;
            }
        }
        interrupt(&child);
        let last = lines.map(Result::unwrap).last();
        // The relation, while the loads continue: the same pair, in one or both orders.
        let mut rows = BufReader::new(query.stdout.take().unwrap()).lines();
        let first = rows.by_ref().nth(1).map(Result::unwrap);
        interrupt(&query);
        let rest = rows.map(Result::unwrap);
        let rows: Vec<String> = first.into_iter().chain(rest).collect();
        query.wait().unwrap();
        is_done.store(true, Ordering::Relaxed);
        let mut err = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut err)
            .unwrap();
        let code = child.wait().unwrap().code().unwrap_or(130);
        let out = last.unwrap_or_default();
        (windows, rows, CommandOutput { out, err, code })
    });
    let (windows, rows, output) = output;
    assert!(!rows.is_empty());
    for row in &rows {
        assert!(row.contains(a.path()) && row.contains(b.path()), "{row}");
    }
    assert_eq!(output.code, 130, "{}", output.err);
    let summary: Json = serde_json::from_str(&output.out).unwrap();
    let pairs = summary["summary"]["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 1, "{summary}\n{}", windows.last().unwrap());
    let pair = &pairs[0]["strongest"];
    let mut found = [&pair["leader"], &pair["follower"]].map(|d| d["pdisk"].as_str().unwrap());
    found.sort_unstable();
    let mut expected = [a.path(), b.path()];
    expected.sort_unstable();
    assert_eq!(found, expected, "{pair}");
    assert!(pair["coefficient"].as_f64().unwrap() > 0.8, "{pair}");
    for load in loads {
        load.stop().unwrap();
    }
}
