//! Probes that a query defines, from the command line: in queries, views, joins, scripts, files and
//! recordings; `weir probes`; and what remains after kill -9.

use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::live::watchable;
use crate::support::{Scratch, run, run_in, weir};

const RECORDING: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../samples/fio-loop.parquet"
);

/// Wake-ups, of which every machine has some.
const WOKEN: &str = "create stream woken as probe 'tp:sched:sched_wakeup' (comm as name, prio)";

fn rows(out: &str) -> Vec<Value> {
    out.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

#[test]
fn a_defined_stream_has_views_joins_and_windows() {
    if !watchable("probes") {
        return;
    }
    let query = format!(
        "{WOKEN}; create stream switched as probe 'tp_btf:sched_switch' (prev.comm as name); \
         create view by_name as select name, count(*) as n from woken [range 1 s slide 1 s] group by name; \
         select b.name, b.n, count(*) from by_name b join switched [range 1 s slide 1 s] as l \
         on b.name = l.name group by b.name, b.n"
    );
    let out = run(&["query", "--for", "3s", "--format", "json", &query]).fine();
    assert!(!rows(&out).is_empty(), "{out}");
}

#[test]
fn definitions_are_read_from_files_and_scripts() {
    if !watchable("probes") {
        return;
    }
    let scratch = Scratch::new();
    let file = scratch.write("probes.cql", &format!("{WOKEN};"));
    let query = "select count(*) as n from woken [range 1 s slide 1 s]";
    let args = [
        "query", "--define", &file, "--for", "3s", "--format", "json", query,
    ];
    assert!(!rows(&run(&args).fine()).is_empty());
    let script = format!("table : {WOKEN};\nquery : select count(*) from woken;\ndest : n.txt\n");
    let script = scratch.write("script.cql", &script);
    run_in(scratch.path(), &["run", "--for", "1s", &script]).fine();
    assert!(
        scratch.read("n.txt").lines().count() > 1,
        "each row changes the count"
    );
    let recording = scratch.file("woken.parquet");
    let record = [
        "record", "--define", &file, "--stream", "woken", "--for", "1s", "-o", &recording,
    ];
    run(&record).fine();
    // A definition in the same text does not hide the recorded stream.
    let query = format!("{WOKEN}; select count(*) as n from woken");
    let args = [
        "query", "--from", &recording, "--final", "--format", "json", &query,
    ];
    let recorded = rows(&run(&args).fine());
    assert!(
        recorded[0]["n"].as_i64().is_some_and(|n| n > 0),
        "{recorded:?}"
    );
}

#[test]
fn errors_show_what_is_wrong_with_a_definition() {
    if !watchable("probes") {
        return;
    }
    let of = |definition: &str| run(&["query", &format!("{definition}; select * from s")]);
    for (definition, why) in [
        (
            "create stream s as probe 'tp:sched:sched_swich'",
            "did you mean `sched_switch`?",
        ),
        (
            "create stream s as probe 'tp:sched:sched_switch' (prev_pidd)",
            "did you mean `prev_pid`?",
        ),
        (
            "create stream s as probe 'sched_switch'",
            "a probe begins with one of tp, tp_btf",
        ),
        (
            "create stream IO as probe 'tp:sched:sched_switch'",
            "is a stream or relation of weir",
        ),
        (
            "create stream s as probe 'uprobe:/proc/self/exe:no_such_function'",
            "has no function",
        ),
    ] {
        let refused = of(definition);
        assert_eq!(refused.code, 2, "{definition}: {}", refused.err);
        assert!(
            refused.err.contains("W0109") && refused.err.contains(why),
            "{}",
            refused.err
        );
    }
    let many: String = (0..65)
        .map(|n| format!("create stream s{n} as probe 'tp:sched:sched_switch'; "))
        .collect();
    let refused = run(&["query", &format!("{many}select * from s0")]);
    assert!(
        refused.err.contains("more than 64 probes"),
        "{}",
        refused.err
    );
    let query = format!("{WOKEN}; select name from woken");
    assert!(run(&["check", &query]).fine().contains("name"));
    let elsewhere = run(&["query", "--from", RECORDING, &query]);
    assert!(
        elsewhere.err.contains("attach probes on this host"),
        "{}",
        elsewhere.err
    );
}

#[test]
fn the_plan_shows_which_part_the_kernel_evaluates() {
    if !watchable("probes") {
        return;
    }
    let query = format!(
        "{WOKEN}; select cpu, count(*), max(prio) from woken [range 1 s slide 1 s] \
         where prio between 100 and 120 and name like 'a%' group by cpu"
    );
    let text = run(&["explain", &query]).fine();
    assert!(
        text.contains("kernel: selects prio between 100 and 120"),
        "{text}"
    );
    assert!(text.contains("tested by the agent"), "{text}");
    let query = format!(
        "{WOKEN}; select cpu, count(*), max(prio) from woken [range 1 s slide 1 s] group by cpu"
    );
    let text = run(&["explain", &query]).fine();
    assert!(text.contains("kernel: groups by cpu each 1s"), "{text}");
}

#[test]
fn probes_are_listed_with_their_fields() {
    if !watchable("probes") {
        return;
    }
    let out = run(&["probes", "tp:sched:sched_switch"]).fine();
    assert!(
        out.contains("prev_pid") && out.contains("char[16]"),
        "{out}"
    );
    let json = run(&["probes", "tp_btf:sched_switch", "--json"]).fine();
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json[0]["probe"], "tp_btf:sched_switch");
    assert_eq!(json[0]["fields"][1]["name"], "prev");
    assert_eq!(run(&["probes", "tp:sched:none*"]).code, 1);
}

/// Bash inserts what follows the last colon.
#[test]
fn names_of_probes_are_completed() {
    if !watchable("probes") {
        return;
    }
    let scratch = Scratch::new();
    let file = scratch.write("completions", &run(&["completions", "bash"]).fine());
    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_weir"))
        .parent()
        .expect("a folder");
    let script = format!(
        "PATH={}:$PATH; . {file}; COMP_LINE='weir probes tp:sched:sched_swi'; \
         COMP_POINT=${{#COMP_LINE}}; _weir_and_probes; echo ${{COMPREPLY[@]}}",
        folder.display()
    );
    let output = Command::new("bash")
        .args(["-c", &script])
        .output()
        .expect("bash");
    let names = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        names.trim(),
        "sched_switch",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The numbers of the programs that a process holds.
fn programs_of(pid: u32) -> Vec<String> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fdinfo"))
        .into_iter()
        .flatten();
    let texts = files
        .flatten()
        .filter_map(|file| std::fs::read_to_string(file.path()).ok());
    let number = |text: String| {
        let mut lines = text.lines();
        lines.find_map(|line| Some(line.strip_prefix("prog_id:")?.trim().to_owned()))
    };
    texts.filter_map(number).collect()
}

/// A killed process holds no descriptors, so its programs are gone.
#[test]
fn nothing_remains_attached_after_kill() {
    let is_loaded = |number: &String| {
        let shown = Command::new("bpftool")
            .args(["prog", "show", "id", number])
            .output();
        shown.ok().map(|shown| shown.status.success())
    };
    if !watchable("probes") || is_loaded(&"1".into()).is_none() {
        return;
    }
    let query = format!("{WOKEN}; select count(*) from woken [range 1 s slide 1 s]");
    let mut child = weir(&["query", &query])
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut programs = Vec::new();
    for _ in 0..100 {
        thread::sleep(Duration::from_millis(50));
        programs = programs_of(child.id());
        if !programs.is_empty() {
            break;
        }
    }
    assert!(!programs.is_empty() && programs.iter().all(|n| is_loaded(n) == Some(true)));
    child.kill().expect("it runs");
    child.wait().expect("it ended");
    // The kernel frees programs some time after the last descriptor is closed.
    let gone = (0..100).any(|_| {
        thread::sleep(Duration::from_millis(50));
        programs.iter().all(|n| is_loaded(n) == Some(false))
    });
    assert!(gone, "{programs:?}");
}
