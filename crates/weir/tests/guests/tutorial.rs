//! The commands of `docs/tutorial.md` run in the order of the page, on the guests of the
//! demonstration, and the recording that they make has the findings that the page explains.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use weir_testing::{DemoGuests, Scratch};

use crate::kit;

const TEST: &str = "the_tutorial_explains_the_latency_spike_of_the_demonstration";

/// The `sh` blocks of the page, as one script that prints a line before each.
fn script() -> (String, usize) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tutorial.md");
    let text = fs::read_to_string(page).expect("the page exists");
    let blocks = text.split("\n```sh\n").skip(1);
    let blocks = blocks.filter_map(|rest| rest.split("```").next());
    let blocks: Vec<String> = blocks
        .enumerate()
        .map(|(number, block)| format!("echo '== {number}'\n{block}"))
        .collect();
    // Processes in the background are ended with a script that fails.
    let begin = "set -e\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n";
    (format!("{begin}{}", blocks.concat()), blocks.len())
}

/// The rows of a query of the recording that the tutorial made.
fn rows(folder: &Scratch, query: &str) -> Vec<Value> {
    let from = folder.file("guests.parquet");
    let args = ["query", "--from", &from, "--format", "json", query];
    let weir = Command::new(env!("CARGO_BIN_EXE_weir")).args(args).output();
    let output = String::from_utf8(weir.expect("weir runs").stdout).expect("UTF-8");
    let rows = output.lines().map(serde_json::from_str);
    rows.collect::<Result<_, _>>().expect("JSON")
}

#[test]
fn the_tutorial_explains_the_latency_spike_of_the_demonstration() {
    let Some((kit, _turn)) = kit(TEST) else {
        return;
    };
    let _guests = match DemoGuests::start(&kit) {
        Ok(guests) => guests,
        Err(why) => return weir_testing::skipped(TEST, format_args!("{why:#}")),
    };
    let folder = Scratch::new();
    let (script, blocks) = script();
    let bin = Path::new(env!("CARGO_BIN_EXE_weir")).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("timeout")
        .args(["300", "bash", "-c", &script])
        .env("PATH", format!("{}:{path}", bin.display()))
        .current_dir(folder.path())
        .output()
        .expect("bash runs");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}\n{stderr}");
    let parts: Vec<&str> = stdout.split("== ").skip(1).collect();
    assert_eq!(parts.len(), blocks, "{stdout}");
    // After the check of the host, the page shows tables in which both VMs have a line.
    for part in &parts[1..5] {
        assert!(
            part.contains("web") && part.contains("db"),
            "{part}\n{stderr}"
        );
    }

    // The level with the time, and the waits for a processor.
    assert!(
        parts[5].contains("web /dev/vda /dev/loop") && parts[5].contains("time: device ("),
        "{}",
        parts[5]
    );
    assert!(
        parts[6].contains("web") && parts[6].contains("db"),
        "{}\n{stderr}",
        parts[6]
    );

    // The reads of `web` are slow in those seconds in which `db` writes most.
    let seconds = "Rstream(select count(*) as n, \
                   sum(case when vm = 'db' then 1 else 0 end) as db, \
                   quantile(case when vm = 'web' then latency end, 0.99) as web \
                   from IO [range 1 s slide 1 s])";
    let seconds = rows(&folder, seconds);
    let seconds: Vec<(f64, f64)> = seconds
        .iter()
        .filter_map(|row| Some((row["db"].as_f64()?, row["web"].as_f64()?)))
        .collect();
    let busy: Vec<f64> = seconds
        .iter()
        .filter(|s| s.0 > 500.0)
        .map(|s| s.1)
        .collect();
    let quiet: Vec<f64> = seconds
        .iter()
        // Without those in which a burst begins or ends.
        .filter(|s| s.0 < 50.0)
        .map(|s| s.1)
        .collect();
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
    assert!(!busy.is_empty() && !quiet.is_empty(), "{seconds:?}");
    assert!(mean(&busy) > 2.0 * mean(&quiet), "{seconds:?}");

    // The verdict of the page.
    let words: Vec<&str> = stdout.split_whitespace().collect();
    let report = words.join(" ");
    let (_, verdict) = report
        .split_once("together neighbours web /dev/vda on ")
        .expect(&report);
    assert!(
        verdict.contains("is slowed down by db /dev/vda on "),
        "{verdict}"
    );
    // The fleet has both hosts, the one with the guests and the one that replays their recording.
    let fleet = parts.last().expect("a block");
    assert!(fleet.contains("alpha") && fleet.contains("beta"), "{fleet}");
}
