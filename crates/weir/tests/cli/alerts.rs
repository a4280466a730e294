//! `weir check` of files of alerts.

use crate::support::{Scratch, run};

/// The bundled recording.
const SAMPLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../samples/fio-loop.parquet"
);

const ALERT: &str = "create alert slow as\n\
     select vdisk, max(latency) as worst from IO [range 10 s slide 1 s] group by vdisk\n\
     when worst > 20 ms for 30 s until worst < 10 ms for 60 s labels vdisk, 'page' as severity;\n";

#[test]
fn check_prints_the_labels_and_durations_of_each_alert() {
    let scratch = Scratch::new();
    let file = scratch.write("alerts.cql", ALERT);
    let text = run(&["check", "-f", &file]).fine();
    let row: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row, ["slow", "vdisk,", "severity", "30s", "60s"]);
    let json = run(&["check", "--json", "-f", &file]).fine();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["ok"], true);
    assert_eq!(json["alerts"][0]["hold_clear_ns"], 60_000_000_000_i64);
    assert_eq!(json["alerts"][0]["columns"][1]["unit"], "ns");
}

#[test]
fn an_error_in_a_condition_has_its_position_in_the_file() {
    let scratch = Scratch::new();
    let file = scratch.write("alerts.cql", &ALERT.replace("when worst", "when wors"));
    let output = run(&["check", "-f", &file]);
    assert_eq!(output.code, 2);
    assert!(output.err.contains("alerts.cql:3:6"), "{}", output.err);
    assert!(
        output.err.contains("did you mean `worst`?"),
        "{}",
        output.err
    );
}

/// A trace of one disk: 10 requests a second for a minute, of 1 ms, but of 50 ms from 20 to 40 s.
fn trace() -> String {
    let line = |i: u64| {
        let ts = 128_166_372_030_000_000 + 1_000_000 * i;
        let latency = if (200..400).contains(&i) {
            500_000
        } else {
            10_000
        };
        format!("{ts},vm1,0,Read,{},4096,{latency}\n", 4096 * i)
    };
    (0..600).map(line).collect()
}

const SLOW: &str = "create alert slow as\n\
     select pdisk, vm, avg(latency) as mean from IO [range 1 s slide 1 s] group by pdisk, vm\n\
     when mean > 20 ms for 5 s until mean < 10 ms for 3 s\n\
     labels vm, 'page' as severity annotations 'mean latency {mean}' as summary;\n";

#[test]
fn test_prints_when_an_alert_fires_and_judges_what_the_file_expects() {
    let scratch = Scratch::new();
    let trace = scratch.write("trace.csv", &trace());
    let met = "expect slow pending between 20 s and 23 s;\n\
         expect slow firing between 26 s and 40 s where vm = 'vm1';\n\
         expect no slow firing between 0 s and 24 s;\n\
         expect slow clear at 50 s;\n\
         expect no slow unknown;\n";
    let file = scratch.write("alerts.cql", &format!("{SLOW}{met}"));
    let text = run(&["alert", "test", "-f", &file, "--from", &trace]).fine();
    assert!(text.contains("slow: fired once\n"), "{text}");
    let firing = "pending -> firing: mean latency 50.0 ms";
    assert!(text.contains(firing), "{text}");
    assert_eq!(text.matches("\nmet ").count(), 5, "{text}");

    let json = run(&["alert", "test", "--json", "-f", &file, "--from", &trace]).fine();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let events = json["alerts"][0]["events"].as_array().unwrap();
    let states: Vec<&str> = events
        .iter()
        .map(|e| e["state"].as_str().unwrap())
        .collect();
    assert_eq!(states, ["pending", "firing", "clear"]);
    // Windows end at full seconds of the clock; the trace begins at one.
    let seconds = |n: usize| events[n]["offset_ns"].as_i64().unwrap() as f64 / 1e9;
    assert!((20.0..22.5).contains(&seconds(0)), "{json}");
    assert_eq!(seconds(1) - seconds(0), 5.0);
    assert_eq!(events[1]["labels"]["vm"], "vm1");
    assert_eq!(events[1]["values"]["mean"], 50_000_000.0);
    assert_eq!(json["ok"], true);
}

#[test]
fn an_expectation_that_is_not_met_is_reported_with_what_was() {
    let scratch = Scratch::new();
    let trace = scratch.write("trace.csv", &trace());
    let unmet = "expect no slow firing;\nexpect slow firing at 5 s;\nexpect slow clear at 90 s;\n\
         expect slow firing between 26 s and 40 s where vm = 'vm2';\n";
    let file = scratch.write("alerts.cql", &format!("{SLOW}{unmet}"));
    let output = run(&["alert", "test", "-f", &file, "--from", &trace]);
    assert_eq!(output.code, 1, "{}", output.err);
    let reasons: Vec<&str> = output
        .out
        .lines()
        .filter(|l| l.starts_with("NOT MET"))
        .collect();
    assert_eq!(reasons.len(), 4, "{}", output.out);
    assert!(
        reasons[0].contains("slow{vm=\"vm1\", severity=\"page\"} was firing at"),
        "{reasons:?}"
    );
    assert!(
        reasons[1].ends_with("all instances of slow were clear"),
        "{reasons:?}"
    );
    assert!(
        reasons[2].contains("the recording ends after"),
        "{reasons:?}"
    );
    assert!(
        reasons[3].ends_with("all instances of slow were clear"),
        "{reasons:?}"
    );
}

#[test]
fn the_rules_of_weir_are_listed_printed_and_run() {
    let list = run(&["alert", "rules"]).fine();
    assert_eq!(list.lines().count(), 10, "{list}");
    let scratch = Scratch::new();
    let text = run(&["alert", "rules", "stalled_disk"]).fine();
    let file = scratch.write("stalled.cql", &text);
    run(&["check", "-f", &file]).fine();
    let unknown = run(&["alert", "rules", "staled_disk"]);
    assert_eq!(unknown.code, 2);
    assert!(
        unknown.err.contains("did you mean `stalled_disk`?"),
        "{}",
        unknown.err
    );
    let ran = run(&["alert", "test", "--from", SAMPLE]).fine();
    assert!(ran.contains("stalled_disk: did not fire"), "{ran}");
    assert!(
        ran.contains("agent_gone: left out, unknown stream or relation `hosts`"),
        "{ran}"
    );
    let refused = run(&["alert", "test", "--from", SAMPLE, "--rule", "agent_gone"]);
    assert_eq!(refused.code, 2);
    assert!(refused.err.contains("`hosts`"), "{}", refused.err);
    let live = run(&["alert", "test"]);
    assert!(live.code == 2 && live.err.contains("--for"), "{}", live.err);
}

#[test]
fn suggest_proposes_a_threshold_beyond_what_was_recorded() {
    let scratch = Scratch::new();
    let trace = scratch.write("trace.csv", &trace());
    let file = scratch.write("alerts.cql", SLOW);
    let json = run(&["alert", "suggest", "--json", "-f", &file, "--from", &trace]).fine();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let suggestion = &json[0]["suggestions"][0];
    assert_eq!(suggestion["median"], 1_000_000.0);
    assert_eq!(suggestion["extreme"], 50_000_000.0);
    assert_eq!(suggestion["suggested"], "mean > 60.0 ms");
    // With that threshold the rule does not fire.
    let raised = scratch.write("raised.cql", &SLOW.replace("> 20 ms", "> 60.0 ms"));
    let tested = run(&["alert", "test", "-f", &raised, "--from", &trace]).fine();
    assert!(tested.contains("slow: did not fire"), "{tested}");
    let text = run(&["alert", "suggest", "-f", &file, "--from", &trace]).fine();
    assert!(text.contains("mean > 20 ms  1.0 ms"), "{text}");
    let wrong = run(&["alert", "suggest", "--margin", "0.5", "--from", &trace]);
    assert!(
        wrong.code == 2 && wrong.err.contains("1 to 100"),
        "{}",
        wrong.err
    );
}
