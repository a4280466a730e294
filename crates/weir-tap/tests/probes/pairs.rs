//! Pairs of probes: each call of a function is one row with what it was called with, its result and
//! its time, also if it calls itself; and tracepoints that have a number in common.

use std::thread;
use std::time::{Duration, Instant};

use weir_model::{ProbeDefinition, ProbeEnd, ProbeField, ProbeType, Value};
use weir_tap::probe::ProbeStream;
use weir_tap::probe::list::list;

use super::{SLEEP, Seen, all, definition, equal, int, of_fields, sleeper, watch};

/// `definition` with its end.
fn to(definition: ProbeDefinition, end: &str, fields: &[&str], keys: &[&str]) -> ProbeDefinition {
    let key = |key: &&str| match key.split_once('=') {
        Some((begin, end)) => (begin.to_owned(), end.to_owned()),
        None => ((*key).to_owned(), (*key).to_owned()),
    };
    ProbeDefinition {
        end: Some(ProbeEnd {
            probe: end.into(),
            fields: fields.iter().map(|path| ProbeField::new(path)).collect(),
            keys: keys.iter().map(key).collect(),
        }),
        ..definition
    }
}

/// The function that is probed, which calls itself `depth` times.
#[inline(never)]
#[expect(clippy::only_used_in_recursion, reason = "the probe reads the text")]
extern "C" fn nested_function(depth: u64, text: *const u8) -> u64 {
    thread::sleep(Duration::from_micros(200));
    match std::hint::black_box(depth) {
        0 => 1,
        _ => nested_function(depth - 1, text) * 3,
    }
}

/// The probe of a function of this program.
fn own_function(name: &str) -> String {
    let found = list(&format!("uprobe:/proc/self/exe:*{name}*")).expect("an ELF file");
    found[0].probe.clone()
}

/// Rows of a column.
fn column(seen: &Seen, at: usize) -> Vec<i64> {
    seen.rows[0].iter().map(|row| int(&row[at])).collect()
}

#[test]
fn a_call_is_one_row_also_within_a_call() {
    const DEPTH: u64 = 4;
    const TEXT: &[u8] = b"a text of more than sixteen bytes\0";
    let entry = own_function("nested_function");
    let result = entry.replace("uprobe", "uretprobe");
    let text = ProbeType::named("text");
    let fields = [("arg0", "depth", None), ("arg1", "name", text)];
    let pair = to(of_fields(&entry, &fields), &result, &["retval"], &[]);
    let own = i64::from(std::process::id());
    let of_process = |schema: &weir_model::Schema| vec![equal(schema.index("pid"), own)];
    let Some(watched) = watch("pair", &pair, of_process) else {
        return;
    };
    let names = ["ts", "begin", "latency", "depth", "name", "retval"];
    let at = names.map(|name| watched.at(name));
    // Two threads at once, each with its own calls.
    let started = Instant::now();
    let call = || nested_function(DEPTH, TEXT.as_ptr());
    let threads: Vec<_> = (0..2).map(|_| thread::spawn(call)).collect();
    for thread in threads {
        assert_eq!(thread.join().expect("it ends"), 81);
    }
    let elapsed_ns = started.elapsed().as_nanos() as i64;
    let seen = watched.seen();
    assert_eq!(seen.total("events_lost", Some("ring_full")), 0);
    let mut found: Vec<(i64, i64)> = column(&seen, at[3])
        .into_iter()
        .zip(column(&seen, at[5]))
        .collect();
    found.sort_unstable();
    let powers = [(0, 1), (1, 3), (2, 9), (3, 27), (4, 81)];
    let expected: Vec<_> = powers.iter().flat_map(|pair| [*pair, *pair]).collect();
    assert_eq!(found, expected);
    for row in &seen.rows[0] {
        let [ts, begin, latency, depth] = [0, 1, 2, 3].map(|name| int(&row[at[name]]));
        assert_eq!(row[at[4]], Value::text("a text of more than sixteen bytes"));
        assert_eq!(begin, ts - latency);
        assert!(
            (200_000 * (depth + 1)..elapsed_ns).contains(&latency),
            "{row:?}"
        );
    }
    assert_eq!(seen.total("unpaired", Some("no_end")), 0);
    assert_eq!(seen.total("unpaired", Some("no_begin")), 0);
}

/// Hits of the limit are lost as beginnings; their ends are counted as well.
#[test]
fn beginnings_above_the_limit_are_lost_and_their_ends_counted() {
    const CALLS: i64 = 100;
    let entry = own_function("counted_function");
    let pair = ProbeDefinition {
        hits_max: 10,
        ..to(
            definition(&entry),
            &entry.replace("uprobe", "uretprobe"),
            &[],
            &[],
        )
    };
    let Some(watched) = watch("pair", &pair, all) else {
        return;
    };
    (0..CALLS).for_each(|n| assert_eq!(counted_function(n), n + 1));
    let seen = watched.seen();
    let rows = seen.rows[0].len() as i64;
    let throttled = seen.total("events_lost", Some("throttled"));
    assert!(throttled > 0 && rows >= 10, "{rows}, {throttled}");
    assert_eq!(rows + throttled, CALLS);
    assert_eq!(seen.total("unpaired", Some("no_begin")), throttled);
}

#[inline(never)]
extern "C" fn counted_function(number: i64) -> i64 {
    std::hint::black_box(number) + 1
}

/// The sleeps of a thread, from the switch to another one to its next wake-up.
#[test]
fn tracepoints_are_paired_by_a_number() {
    const SLEEPS: u32 = 300;
    let (tid, start, thread) = sleeper(SLEEPS);
    let first = of_fields("tp_btf:sched_switch", &[("prev.pid", "sleeping", None)]);
    let sleeps = to(
        first,
        "tp_btf:sched_wakeup",
        &["p.prio"],
        &["prev.pid=p.pid"],
    );
    let Some(watched) = watch("pair", &sleeps, |schema| {
        vec![equal(schema.index("sleeping"), tid)]
    }) else {
        return;
    };
    let at = watched.at("latency");
    start.send(()).expect("it waits");
    let switches = thread.join().expect("it ends");
    let seen = watched.seen();
    let rows = column(&seen, at);
    // A preempted thread is switched to without a wake-up. A kernel that delays the dequeuing of a
    // thread which goes to sleep may wake it up before it is switched from.
    let count = rows.len() as i64;
    assert!(
        (switches.voluntary * 9 / 10..=switches.all + 2).contains(&count),
        "{count} rows, {switches:?}, {:?}",
        seen.counts
    );
    let long = rows.iter().filter(|ns| **ns >= SLEEP.as_nanos() as i64 / 2);
    assert!(2 * long.count() > rows.len(), "{rows:?}");
}

/// Times of a thread's system calls, by the number of the thread.
#[test]
fn system_calls_are_paired_by_their_thread() {
    let own = i64::from(std::process::id());
    let enter = definition("tp:syscalls:sys_enter_clock_nanosleep");
    let sleeps = to(
        enter,
        "tp:syscalls:sys_exit_clock_nanosleep",
        &["ret"],
        &["tid"],
    );
    let sleeps = ProbeDefinition {
        fields: vec![ProbeField::new("flags")],
        ..sleeps
    };
    let Some(watched) = watch("pair", &sleeps, |schema| {
        vec![equal(schema.index("pid"), own)]
    }) else {
        return;
    };
    let at = ["tid", "latency", "ret"].map(|name| watched.at(name));
    let (tid, start, thread) = sleeper(50);
    start.send(()).expect("it waits");
    thread.join().expect("it ends");
    let seen = watched.seen();
    let own = seen.rows[0].iter().filter(|row| int(&row[at[0]]) == tid);
    let own: Vec<_> = own
        .map(|row| (int(&row[at[1]]), int(&row[at[2]])))
        .collect();
    assert_eq!(own.len(), 50);
    assert!(
        own.iter()
            .all(|(ns, ret)| *ns >= SLEEP.as_nanos() as i64 && *ret == 0),
        "{own:?}"
    );
}

#[test]
fn errors_of_a_pair_name_its_end() {
    let begin = || definition("tp:sched:sched_switch");
    let refused = |definition: &ProbeDefinition| {
        ProbeStream::new(definition)
            .map(|_| ())
            .expect_err("it is wrong")
    };
    let error = refused(&to(begin(), "tp:sched:sched_wakeup", &[], &[]));
    assert!(error.is_of_end && error.help.is_some_and(|help| help.contains("ON tid")));
    if watch("pair", &begin(), all).is_none() {
        return;
    }
    let error = refused(&to(begin(), "tp:sched:sched_wakeup", &["pidd"], &["tid"]));
    assert_eq!((error.is_of_end, error.field), (true, Some(0)));
    let error = refused(&to(
        begin(),
        "tp:sched:sched_wakeup",
        &["pid"],
        &["next_comm=comm"],
    ));
    assert_eq!(error.message, "`next_comm` is no number");
}
