//! `weir check` of files of alerts.

use crate::support::{Scratch, run};

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
