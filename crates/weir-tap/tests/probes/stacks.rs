//! Stacks: the samples of a timer are in the functions that a program runs, in the share of its
//! work; stacks of other probes are those of the calls that lead there.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use weir_model::{ProbeDefinition, ProbeEnd, ProbeField, ProbeScope, Value};
use weir_tap::TapEvent;
use weir_testing::{Scratch, run, skip};

use super::{Watched, all, definition, equal, of_fields, sleeper, watch};

/// A program that works in `often` three times as long as in `seldom`, without end.
const SOURCE: &str = r#"
#include <stdio.h>

static volatile unsigned long sum;

__attribute__((noinline)) void spin(long steps)
{
	for (long i = 0; i < steps; i++)
		sum += i;
}

__attribute__((noinline)) void often(void)
{
	spin(300000);
	sum++;
}

__attribute__((noinline)) void seldom(void)
{
	spin(100000);
	sum++;
}

__attribute__((noinline)) void work(void)
{
	often();
	seldom();
	sum++;
}

int main(void)
{
	getchar();
	for (;;)
		work();
}
"#;

/// Time after which a test fails that has not seen enough, on a machine that is busy.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The program, which runs until it is dropped.
struct Working(Child);

impl Working {
    /// Compiles and starts it; it works after [`Working::begin`].
    fn start(scratch: &Scratch) -> Result<Working, String> {
        let (source, program) = (scratch.path().join("work.c"), scratch.path().join("work"));
        fs::write(&source, SOURCE).expect("a temporary file");
        let (text, file) = (source.display().to_string(), program.display().to_string());
        // Without optimisation, every function has a frame pointer, `spin` too.
        let arguments = ["-O0", "-fno-omit-frame-pointer", "-o", &file, &text];
        run("gcc", &arguments).map_err(|error| error.to_string())?;
        let mut command = Command::new(&program);
        let child = command.stdin(Stdio::piped()).spawn();
        Ok(Working(child.map_err(|error| error.to_string())?))
    }

    fn begin(&mut self) {
        let input = self.0.stdin.as_mut().expect("a pipe");
        input.write_all(b"\n").expect("it waits for its input");
    }

    /// The probe, and only its hits by the program.
    fn own(&self, definition: ProbeDefinition) -> ProbeDefinition {
        let scope = ProbeScope {
            pid: Some(self.0.id()),
            cgroup: None,
        };
        ProbeDefinition {
            scope,
            ..definition
        }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The first `count` values of a column of text, or more.
fn texts(watched: &mut Watched, column: &str, count: usize) -> Vec<String> {
    let at = watched.at(column);
    let mut texts = Vec::new();
    let until = Instant::now() + TIMEOUT;
    while texts.len() < count {
        assert!(Instant::now() < until, "{} of {count}", texts.len());
        let event = watched.tap.next(Duration::from_millis(20));
        if let TapEvent::Rows { batch, .. } = event.expect("the tap runs") {
            let rows = (0..batch.len()).map(|row| batch.row(row));
            texts.extend(rows.filter_map(|row| match row[at] {
                Value::Text(text) => Some(text.as_str().to_owned()),
                _ => None,
            }));
        }
    }
    texts
}

#[test]
fn samples_are_in_the_functions_that_ran_in_the_share_of_their_work() {
    const SAMPLES: usize = 300;
    let scratch = Scratch::new();
    let mut working = match Working::start(&scratch) {
        Ok(working) => working,
        Err(why) => return skip("perf", why).unwrap_or_default(),
    };
    let definition = working.own(definition("perf:499"));
    let Some(mut watched) = watch("perf", &definition, all) else {
        return;
    };
    working.begin();
    let stacks = texts(&mut watched, "ustack", SAMPLES);
    let count = |end: &str| stacks.iter().filter(|stack| stack.ends_with(end)).count();
    let [often, seldom] = [
        count("main;work;often;spin"),
        count("main;work;seldom;spin"),
    ];
    let all = stacks.len();
    // The others are at the beginning or the end of a function, or before `main` works.
    assert!(
        (often + seldom) * 100 >= all * 95,
        "{often} {seldom} {all}: {:?}",
        stacks[0]
    );
    // Three of four: the deviation of 300 samples is 2.5 of 100.
    let share = often * 100 / (often + seldom);
    assert!((62..=88).contains(&share), "{share} of 100 are in `often`");
}

#[test]
fn a_combined_stack_has_the_process_first_and_marks_the_kernel() {
    let scratch = Scratch::new();
    let mut working = match Working::start(&scratch) {
        Ok(working) => working,
        Err(why) => return skip("stack", why).unwrap_or_default(),
    };
    // The program is interrupted in `spin` and leaves the processor in the kernel.
    let switch = of_fields("tp_btf:sched_switch", &[("stack", "stack", None)]);
    let Some(mut watched) = watch("stack", &working.own(switch), all) else {
        return;
    };
    working.begin();
    let stacks = texts(&mut watched, "stack", 5);
    let whole = |stack: &&String| stack.contains("main;work;") && stack.ends_with("__schedule_[k]");
    let found = stacks.iter().find(whole);
    let found = found.unwrap_or_else(|| panic!("{stacks:?}"));
    let functions: Vec<&str> = found.split(';').collect();
    let marked = functions.iter().position(|name| name.ends_with("_[k]"));
    let (user, kernel) = functions.split_at(marked.expect("the kernel's"));
    assert!(kernel.iter().all(|name| name.ends_with("_[k]")), "{found}");
    assert!(user.contains(&"main"), "{found}");
}

#[test]
fn a_function_is_reached_by_the_calls_of_its_stack() {
    let scratch = Scratch::new();
    let mut working = match Working::start(&scratch) {
        Ok(working) => working,
        Err(why) => return skip("ustack", why).unwrap_or_default(),
    };
    let file = scratch.path().join("work").display().to_string();
    let fields = [("ustack", "calls", None), ("kstack", "kernel", None)];
    let definition = of_fields(&format!("uprobe:{file}:seldom"), &fields);
    let Some(mut watched) = watch("ustack", &working.own(definition), all) else {
        return;
    };
    working.begin();
    for stack in texts(&mut watched, "calls", 10) {
        assert!(
            stack.contains("main;") && stack.ends_with(";seldom"),
            "{stack}"
        );
    }
}

/// The stack of the beginning of a pair is that of the thread which hit it, here of a thread that
/// leaves the processor; its functions are those that the kernel lists.
#[test]
fn the_stack_of_a_beginning_is_where_a_thread_waits() {
    const SLEEPS: u32 = 20;
    let list = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let names: BTreeSet<&str> = list
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .collect();
    let field = |path: &str, name: &str| ProbeField {
        name: Some(name.into()),
        ..ProbeField::new(path)
    };
    let begin = vec![field("prev.pid", "thread"), field("kstack", "waits")];
    let definition = ProbeDefinition {
        fields: begin,
        end: Some(ProbeEnd {
            probe: "tp_btf:sched_switch".into(),
            fields: vec![field("kstack", "runs")],
            keys: vec![("prev.pid".into(), "next.pid".into())],
        }),
        ..definition("tp_btf:sched_switch")
    };
    let (tid, start, thread) = sleeper(SLEEPS);
    let only = |schema: &weir_model::Schema| vec![equal(schema.index("thread"), tid)];
    let Some(watched) = watch("begin", &definition, only) else {
        return;
    };
    let at = ["waits", "runs"].map(|column| watched.at(column));
    start.send(()).expect("the thread waits");
    thread.join().expect("it ends");
    let seen = watched.seen();
    let stack = |row: &Vec<Value>, at: usize| match row[at] {
        Value::Text(text) => text.as_str().to_owned(),
        _ => String::new(),
    };
    let waits: Vec<String> = seen.rows[0].iter().map(|row| stack(row, at[0])).collect();
    let sleeping = waits.iter().filter(|stack| stack.contains("nanosleep"));
    assert!(sleeping.count() * 2 >= SLEEPS as usize, "{waits:?}");
    for row in &seen.rows[0] {
        let both = stack(row, at[0]) + ";" + &stack(row, at[1]);
        for name in both.split(';') {
            assert!(names.contains(name), "{name} of {both}");
        }
    }
}
