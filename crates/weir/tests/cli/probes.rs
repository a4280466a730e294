//! Probes that a query defines, from the command line: in queries, views, joins, scripts, files and
//! recordings; `weir probes`; and what remains after kill -9.

use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
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

/// The numbers that the descriptors of a process have under this name: `prog_id`, `link_id`.
fn numbers_of(pid: u32, name: &str) -> Vec<String> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fdinfo"));
    let texts = files.into_iter().flatten().flatten();
    let texts = texts.filter_map(|file| std::fs::read_to_string(file.path()).ok());
    let number = |text: String| {
        let mut lines = text.lines();
        lines.find_map(|line| {
            Some(
                line.strip_prefix(name)?
                    .strip_prefix(':')?
                    .trim()
                    .to_owned(),
            )
        })
    };
    texts.filter_map(number).collect()
}

/// Path and content of the code of the C library that a process has in memory.
fn library_of(pid: u32) -> Option<(String, Vec<u8>)> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let mut lines = maps.lines();
    let line = lines.find(|line| line.contains(" r-xp ") && line.contains("/libc.so"))?;
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    let [start, end] = [start, end].map(|n| u64::from_str_radix(n, 16).expect("an address"));
    let mut code = vec![0; (end - start) as usize];
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).ok()?;
    memory.read_exact_at(&mut code, start).ok()?;
    Some((line.split_whitespace().last()?.to_owned(), code))
}

/// Whether `condition` holds within 30 seconds.
fn comes_true(mut condition: impl FnMut() -> bool) -> bool {
    (0..600).any(|_| {
        thread::sleep(Duration::from_millis(50));
        condition()
    })
}

/// A killed process holds no descriptors, so its programs and links are gone, and the code of a
/// probed process is as before.
#[test]
fn nothing_remains_attached_after_kill() {
    let is_there = |what: &str, number: &String| {
        let shown = Command::new("bpftool")
            .args([what, "show", "id", number])
            .output();
        shown.ok().map(|shown| shown.status.success())
    };
    if !watchable("probes") || is_there("prog", &"1".into()).is_none() {
        return;
    }
    let probed = Ending(Command::new("sleep").arg("60").spawn().expect("sleep"));
    let mut found = None;
    assert!(comes_true(|| {
        found = library_of(probed.0.id());
        found.is_some()
    }));
    let (library, code) = found.expect("it was found");
    let query = format!(
        "{WOKEN}; create stream locked as probe 'uprobe:{library}:lckpwdf'; \
         select count(*) from woken [range 1 s slide 1 s] as w \
         join locked [range 1 s slide 1 s] as l on w.pid = l.pid"
    );
    let mut weir = weir(&["query", &query]);
    let mut child = Ending(weir.stdout(Stdio::null()).spawn().expect("it starts"));
    let code_now = || library_of(probed.0.id()).expect("it sleeps").1;
    assert!(
        comes_true(|| code_now() != code),
        "a breakpoint is in the code of the process"
    );
    let held = ["prog", "link"].map(|what| (what, numbers_of(child.0.id(), &format!("{what}_id"))));
    for (what, numbers) in &held {
        assert!(numbers.len() >= 2, "{what}: {numbers:?}");
        assert!(
            numbers.iter().all(|n| is_there(what, n) == Some(true)),
            "{what}"
        );
    }
    child.0.kill().expect("it runs");
    child.0.wait().expect("it ended");
    // The kernel frees programs some time after the last descriptor is closed.
    let gone = |(what, numbers): &(&str, Vec<String>)| {
        numbers.iter().all(|n| is_there(what, n) == Some(false))
    };
    assert!(comes_true(|| held.iter().all(gone)), "{held:?}");
    assert!(comes_true(|| code_now() == code), "the code is as before");
}

/// The switches of all processors since the start of the machine (proc_stat(5)).
fn switches() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").expect("it is always there");
    let line = stat.lines().find_map(|line| line.strip_prefix("ctxt "));
    line.expect("a count").parse().expect("a number")
}

#[test]
fn the_cost_of_a_hit_is_measured() {
    if !watchable("probes") {
        return;
    }
    let before = switches();
    let args = ["probes", "--cost", "--for", "500ms", "--json"];
    let measured = run(&[&args[..], &["tp:sched:sched_switch"]].concat());
    let all = switches() - before;
    let row = &rows(&measured.fine())[0];
    let int = |name: &str| {
        row[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name}: {row}"))
    };
    // weir itself sleeps and wakes up.
    assert!((1..=all).contains(&int("hits")), "{all} switches: {row}");
    assert!(int("span_ns") >= 500_000_000, "{row}");
    let per_hit = int("program_ns") as f64 / int("hits") as f64;
    // The last digit depends on how the text is read.
    let printed = row["per_hit_ns"].as_f64().unwrap();
    assert!((printed - per_hit).abs() <= per_hit * f64::EPSILON, "{row}");

    // Nothing hits this probe, and no program can be at that one.
    let none = run(&[&args[..], &["tp:block:block_rq_error"]].concat()).fine();
    assert_eq!(rows(&none)[0]["per_hit_ns"], Value::Null, "{none}");
    let many = run(&["probes", "--cost", "tp:syscalls:*"]);
    assert_eq!(many.code, 2, "{}", many.err);
    assert!(many.err.contains("at most 64 are measured"), "{}", many.err);
    let alone = run(&["probes", "--for", "1s", "tp:block:*"]);
    assert_eq!(alone.code, 2, "{}", alone.err);
}

/// A process that ends with the test.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
