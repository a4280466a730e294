//! Output to a terminal, through the pseudo-terminal that script(1) creates.

use std::process::Command;

use crate::support::{Scratch, requests, skipped};

/// What `weir ARGS` writes to a terminal; otherwise logs that `test` is skipped.
fn on_terminal(test: &str, args: &str) -> Option<String> {
    let binary = env!("CARGO_BIN_EXE_weir");
    let command = format!("stty cols 100 rows 8; {binary} {args}");
    let script = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .output();
    let output = match script {
        Ok(output) => output,
        Err(error) => {
            skipped(test, format!("script(1) does not run here: {error}"));
            return None;
        }
    };
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    Some(text)
}

#[test]
fn a_recorded_relation_is_shown_whole_at_the_end() {
    let scratch = Scratch::new();
    let trace = scratch.write("t.csv", &requests(40));
    let args = format!(
        "query --from {trace} 'select sector, avg(latency) as mean from IO group by sector'"
    );
    let Some(text) = on_terminal("a_recorded_relation_is_shown_whole_at_the_end", &args) else {
        return;
    };
    assert_eq!(text.lines().count(), 41, "{text}");
    assert!(
        text.starts_with("sector [sectors]      mean\r\n"),
        "{text:?}"
    );
    assert!(text.contains("500.0 us"), "{text}");
}

#[test]
fn a_live_relation_is_drawn_in_place_within_the_screen() {
    let query = "select place, counter, count(*) as n from weir group by place, counter";
    let args = format!("query --for 2500ms '{query}'");
    let Some(text) = on_terminal("a_live_relation_is_drawn_in_place_within_the_screen", &args)
    else {
        return;
    };
    assert!(text.contains("\x1b[2Kplace"), "{text:?}");
    assert!(
        text.matches("counter").count() >= 2,
        "drawn again: {text:?}"
    );
    assert!(text.contains("A\r\x1b[2Kplace"), "in place: {text:?}");
}
