//! Probes that queries define, compared with independent counts: those of the kernel, of this
//! program and of a program with USDT probes; and selections in the kernel, compared with the same
//! selections on the same records.
//!
//! Needs root and BPF; otherwise each test prints that it was skipped.

mod pairs;
mod predicates;
mod scope;
mod stacks;
mod usdt;
mod vms;

use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_model::probe::{CPU_PERCENT_MAX, HITS_MAX};
use weir_model::{
    Clause, ColumnCapabilities, Demand, Operand, Predicate, ProbeDefinition, ProbeField,
    ProbeScope, ProbeType, Schema, StreamCapabilities, Symbol, Test, Unit, Value,
};
use weir_tap::ebpf::LiveOptions;
use weir_tap::probe::ProbeStream;
use weir_tap::probe::list::list;
use weir_tap::{EventCount, Tap, TapEvent};
use weir_testing::{run, skip};

/// The kernel's types, without which no program is loaded.
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";

/// A definition of all fields of a probe.
fn definition(probe: &str) -> ProbeDefinition {
    ProbeDefinition {
        name: "hits".into(),
        probe: probe.into(),
        fields: Vec::new(),
        end: None,
        scope: ProbeScope::default(),
        hits_max: HITS_MAX,
        cpu_percent_max: CPU_PERCENT_MAX,
    }
}

/// A definition of these fields, each with its column and its type.
fn of_fields(probe: &str, fields: &[(&str, &str, Option<ProbeType>)]) -> ProbeDefinition {
    let field = |(path, name, ty): &(&str, &str, Option<ProbeType>)| ProbeField {
        path: (*path).into(),
        name: Some((*name).into()),
        ty: *ty,
        unit: Unit::None,
    };
    ProbeDefinition {
        fields: fields.iter().map(field).collect(),
        ..definition(probe)
    }
}

/// An opened stream.
struct Watched {
    schema: Schema,
    columns: Vec<ColumnCapabilities>,
    predicates: Vec<Predicate>,
    tap: Box<dyn Tap>,
}

/// The rows of each demand, and the counts.
struct Seen {
    rows: Vec<Vec<Vec<Value>>>,
    counts: Vec<EventCount>,
}

impl Seen {
    fn total(&self, counter: &str, cause: Option<&str>) -> i64 {
        let is_it = |c: &&EventCount| c.counter == counter && c.cause == cause;
        self.counts.iter().filter(is_it).map(|c| c.total).sum()
    }
}

/// The stream of `definition` for these selections of all columns; `None`, with a printed reason, if
/// this host cannot attach probes.
fn watch(
    test: &str,
    definition: &ProbeDefinition,
    predicates: impl FnOnce(&Schema) -> Vec<Predicate>,
) -> Option<Watched> {
    if run("id", &["-u"]).is_ok_and(|id| id != "0") {
        return skip(test, "only root can attach programs");
    }
    let stream = ProbeStream::new(definition).unwrap_or_else(|e| panic!("{}", e.message));
    let StreamCapabilities {
        declaration,
        columns,
        ..
    } = stream.capabilities();
    let schema = Schema::clone(&declaration.schema);
    let predicates = predicates(&schema);
    let demands = predicates.iter().map(|predicate| Demand {
        predicate: predicate.clone(),
        ..Demand::whole(&declaration)
    });
    let demands: Vec<Demand> = demands.collect();
    match stream.open(&demands, &LiveOptions::default()) {
        Ok(tap) => Some(Watched {
            schema,
            columns,
            predicates,
            tap,
        }),
        Err(error) => match Path::new(KERNEL_TYPES).exists() {
            true => panic!("{error}"),
            false => skip(test, error),
        },
    }
}

impl Watched {
    /// What was observed until now.
    fn seen(mut self) -> Seen {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("after 1970");
        let end = now.as_nanos() as i64 + 1_000_000;
        let mut rows = vec![Vec::new(); self.predicates.len()];
        loop {
            match self
                .tap
                .next(Duration::from_millis(20))
                .expect("the tap runs")
            {
                TapEvent::Rows { demand, batch } => {
                    rows[demand].extend((0..batch.len()).map(|row| batch.row(row)));
                }
                TapEvent::Heartbeat(watermark) if watermark > end => break,
                _ => (),
            }
        }
        Seen {
            rows,
            counts: self.tap.counts(),
        }
    }

    fn at(&self, column: &str) -> usize {
        self.schema.index(column)
    }
}

fn all(_: &Schema) -> Vec<Predicate> {
    vec![Predicate::all()]
}

/// The rows with this number in a column.
fn equal(column: usize, number: i64) -> Predicate {
    let operand = Operand::Value(column);
    let test = Test::Between {
        operand,
        low: number,
        high: number,
    };
    Predicate {
        clauses: vec![Clause { tests: vec![test] }],
    }
}

fn int(value: &Value) -> i64 {
    match value {
        Value::Int(number) => *number,
        other => panic!("{other:?} is no number"),
    }
}

/// The length of a sleep of [`sleeper`].
const SLEEP: Duration = Duration::from_micros(500);

/// The context switches of a thread that the kernel counted.
#[derive(Debug)]
struct Switches {
    /// Those by which it waited. Not each sleep is one: its timer may fire before the thread has
    /// left the processor.
    voluntary: i64,
    all: i64,
}

/// A thread that sleeps `sleeps` times after the message, and its number. It reports the context
/// switches meanwhile.
fn sleeper(sleeps: u32) -> (i64, mpsc::Sender<()>, thread::JoinHandle<Switches>) {
    let (start, started) = mpsc::channel::<()>();
    let (number, numbered) = mpsc::channel();
    let thread = thread::spawn(move || {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        number.send(i64::from(tid)).expect("the test waits");
        let switches = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").expect("Linux");
            let count = |name: &str| -> i64 {
                let line = status.lines().find_map(|line| line.strip_prefix(name));
                line.and_then(|count| count.trim().parse().ok())
                    .expect("a count")
            };
            let voluntary = count("voluntary_ctxt_switches:");
            let all = voluntary + count("nonvoluntary_ctxt_switches:");
            Switches { voluntary, all }
        };
        started.recv().expect("the test starts it");
        let before = switches();
        (0..sleeps).for_each(|_| thread::sleep(SLEEP));
        let after = switches();
        Switches {
            voluntary: after.voluntary - before.voluntary,
            all: after.all - before.all,
        }
    });
    (numbered.recv().expect("it runs"), start, thread)
}

/// The switches of one thread, selected in the kernel, equal the kernel's own count. The one that
/// ends the wait for the start is not among them, as the first count is read after it.
fn switches_of_a_thread(test: &str, definition: &ProbeDefinition, tid_column: &str) {
    let (tid, start, thread) = sleeper(500);
    let of_thread = |schema: &Schema| vec![equal(schema.index(tid_column), tid)];
    let Some(watched) = watch(test, definition, of_thread) else {
        return;
    };
    start.send(()).expect("it waits");
    let counted = thread.join().expect("it ends").all;
    let seen = watched.seen();
    assert_eq!(seen.total("events_lost", Some("ring_full")), 0);
    // Its last switch is that of its end.
    let rows = seen.rows[0].len() as i64;
    assert!(
        (counted..=counted + 3).contains(&rows),
        "{rows} rows for {counted} switches"
    );
    assert!(counted > 0);
}

#[test]
fn switches_by_the_tracepoints_format_equal_the_kernels_count() {
    let definition = definition("tp:sched:sched_switch");
    switches_of_a_thread("tp", &definition, "prev_pid");
}

#[test]
fn switches_by_the_tracepoints_types_equal_the_kernels_count() {
    let fields = [("prev.pid", "prev_tid", None), ("prev.comm", "name", None)];
    let definition = of_fields("tp_btf:sched_switch", &fields);
    switches_of_a_thread("tp_btf", &definition, "prev_tid");
}

#[test]
fn what_every_probe_has_is_that_of_the_thread() {
    let own = std::process::id().into();
    let of_process = move |schema: &Schema| vec![equal(schema.index("pid"), own)];
    let fields = [("args[0]", "first", None)];
    let definition = of_fields("tp:raw_syscalls:sys_enter", &fields);
    let Some(watched) = watch("columns of every probe", &definition, of_process) else {
        return;
    };
    let at = ["tid", "comm", "cgroup"].map(|column| watched.at(column));
    let worker = thread::Builder::new().name("probed".into());
    let worker = worker.spawn(|| {
        thread::sleep(Duration::from_micros(10));
        rustix::thread::gettid().as_raw_nonzero().get()
    });
    let tid = worker.expect("it starts").join().expect("it ends");
    let seen = watched.seen();
    let of_worker = |row: &&Vec<Value>| int(&row[at[0]]) == i64::from(tid);
    let of_worker: Vec<_> = seen.rows[0].iter().filter(of_worker).collect();
    let named = of_worker
        .iter()
        .filter(|row| row[at[1]] == Value::text("probed"));
    assert!(named.count() > 0, "{of_worker:?}");
    let own = std::fs::read_to_string("/proc/self/cgroup").expect("Linux");
    let unified = own.lines().find_map(|line| line.strip_prefix("0::"));
    if let (Some(path), Value::Text(found)) = (unified, &of_worker[0][at[2]]) {
        assert_eq!(found.as_str(), path);
    }
}

/// The function that is probed.
#[inline(never)]
extern "C" fn probed_function(number: i32, other: u64) -> u64 {
    std::hint::black_box(u64::from(number.unsigned_abs()) + other)
}

/// Calls of a function of this program, with its arguments and results.
#[test]
fn calls_of_a_function_equal_those_that_were_made() {
    const CALLS: i32 = 200;
    let found = list("uprobe:/proc/self/exe:*probed_function*").expect("an ELF file");
    let [probe] = &found[..] else {
        panic!("{found:?}");
    };
    let entry = probe.probe.clone();
    let result = entry.replace("uprobe", "uretprobe");
    let s32 = ProbeType::named("s32");
    let fields = [("arg0", "number", s32), ("arg1", "other", None)];
    let own = i64::from(std::process::id());
    let of_process = |schema: &Schema| vec![equal(schema.index("pid"), own)];
    let Some(entries) = watch("uprobe", &of_fields(&entry, &fields), of_process) else {
        return;
    };
    let results = watch("uretprobe", &definition(&result), of_process).expect("as the other");
    let results_at = results.at("retval");
    let at = ["number", "other"].map(|column| entries.at(column));
    let made: Vec<(i64, i64, i64)> = (0..CALLS)
        .map(|n| {
            let other = u64::from(n.unsigned_abs()) << 40;
            (
                i64::from(-n),
                other as i64,
                probed_function(-n, other) as i64,
            )
        })
        .collect();
    let (entries, results) = (entries.seen(), results.seen());
    let entries: Vec<_> = entries.rows[0]
        .iter()
        .map(|row| at.map(|at| int(&row[at])))
        .collect();
    let results: Vec<_> = results.rows[0]
        .iter()
        .map(|row| int(&row[results_at]))
        .collect();
    assert_eq!(
        entries,
        made.iter()
            .map(|(n, other, _)| [*n, *other])
            .collect::<Vec<_>>()
    );
    assert_eq!(
        results,
        made.iter().map(|(.., result)| *result).collect::<Vec<_>>()
    );
}

#[test]
fn hits_above_the_limit_are_counted_as_lost() {
    let definition = ProbeDefinition {
        hits_max: 10,
        ..definition("tp:raw_syscalls:sys_enter")
    };
    let Some(watched) = watch("limit", &definition, all) else {
        return;
    };
    (0..1_000).for_each(|_| thread::yield_now());
    let seen = watched.seen();
    let throttled = seen.total("events_lost", Some("throttled"));
    assert!(throttled > 0);
    let device = seen.counts.iter().find_map(|count| count.device);
    assert_eq!(
        device.map(Symbol::as_str),
        Some("hits"),
        "losses have the stream's name"
    );
}

/// Each of the calls is a row or a loss, and only a bound that they exceed has losses.
#[test]
fn hits_above_the_share_of_a_processor_are_counted_as_lost() {
    const CALLS: i64 = 1_000_000;
    for (cpu_percent_max, is_exceeded) in [(1, true), (100, false)] {
        let definition = ProbeDefinition {
            cpu_percent_max,
            ..definition("tp:syscalls:sys_enter_sched_yield")
        };
        let Some(watched) = watch("share", &definition, all) else {
            return;
        };
        (0..CALLS).for_each(|_| thread::yield_now());
        let seen = watched.seen();
        let over = seen.total("events_lost", Some("cpu_share"));
        let lost = seen.counts.iter().filter(|c| c.counter == "events_lost");
        let lost: i64 = lost.map(|c| c.total).sum();
        let events = seen.total("events_in", None);
        assert_eq!(
            over > 0,
            is_exceeded,
            "{cpu_percent_max} %: {:?}",
            seen.counts
        );
        assert!(events > 0 && events + lost >= CALLS, "{:?}", seen.counts);
    }
}

/// Every tracepoint of some categories that can be defined as a stream is accepted by the kernel.
#[test]
fn all_fields_of_tracepoints_are_readable() {
    if watch("fields", &definition("tp:sched:sched_switch"), all).is_none() {
        return;
    }
    for category in ["sched", "block", "irq", "signal", "task", "net"] {
        for listed in list(&format!("tp:{category}:*")).expect("root reads tracefs") {
            assert!(watch("fields", &definition(&listed.probe), all).is_some());
        }
    }
    for name in ["block_rq_*", "sched_s*", "block_bio_*"] {
        for listed in list(&format!("tp_btf:{name}")).expect("types") {
            assert!(watch("fields", &definition(&listed.probe), all).is_some());
        }
    }
}

/// What is wrong with a definition is reported with the field that it concerns.
#[test]
fn errors_name_the_field_and_the_remedy() {
    let refused = |definition: &ProbeDefinition| {
        ProbeStream::new(definition)
            .map(|_| ())
            .expect_err("it is wrong")
    };
    let error = refused(&definition("tracepoint:a:b"));
    assert!(
        error
            .help
            .is_some_and(|help| help.contains("one of tp, tp_btf"))
    );
    let own = ProbeDefinition {
        name: "io".into(),
        ..definition("tp_btf:sched_switch")
    };
    assert!(refused(&own).message.contains("stream or relation of weir"));
    if !Path::new(KERNEL_TYPES).exists() {
        return;
    }
    let fields = [("prev.pid", "a", None), ("prev.pidd", "b", None)];
    let error = refused(&of_fields("tp_btf:sched_switch", &fields));
    assert_eq!(
        (error.field, error.help.as_deref()),
        (Some(1), Some("did you mean `pid`?"))
    );
    let twice = of_fields("tp_btf:sched_switch", &[("prev.pid", "tid", None)]);
    assert!(refused(&twice).message.contains("column `tid` already"));
    // A field must not pass for the VM by which roles are restricted.
    for name in ["vm", "VM"] {
        let forged = of_fields("tp_btf:sched_switch", &[("prev.comm", name, None)]);
        assert!(refused(&forged).message.contains("and no other field"));
    }
    let structure = of_fields("tp_btf:sched_switch", &[("prev.se", "se", None)]);
    assert!(
        refused(&structure)
            .message
            .contains("neither a number nor a text")
    );
}
