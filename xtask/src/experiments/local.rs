//! Experiments 1 to 3: one host with one VM, all computation on the host.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use weir_testing::MemoryFolder;

use super::copying::{Vm, done};
use super::figures::by_turns;
use super::{Experiment, Findings, Pace, scripts};
use crate::time_used::Counters;
use crate::{execute, root};

/// Requests per second of a VM.
pub const REQUESTS_PER_SECOND: u32 = 4_000;

/// The VM that the thesis's query 1 selects.
const QUERY_1_ASKS_FOR: &str = "muscatvm51";

/// The time for programs to start, and for probes to be attached.
pub const SETTLE: Duration = Duration::from_secs(1);

/// Space for results.
const RESULTS_MIB: u64 = 1_024;

/// The columns for one host.
const COLUMNS: &[&str] = &[
    "whole machine, % of a processor",
    "weir, % of a processor",
    "written by the VM, MiB/s",
];

/// The program that runs beside the VM.
pub enum Beside {
    /// None.
    Nothing,
    /// A reader of every event with all columns of the thesis's events, which drops them.
    Reader,
    /// A number of copies of a query of the thesis.
    Query(&'static str, usize),
}

/// Experiment 1.
pub static TRACING: Experiment = Experiment {
    number: 1,
    title: "overhead of tracing",
    thesis: "Domain 0 used 12.1 % of a processor without tracing (B0), 15.08 % when a small \
             program read and dropped the events (B1), and 16.41 % when the filter engine ran \
             query 0 (Q0): +3.0 and +1.3 points. The number of bytes copied was the same.",
    here: "B1 is a query that reads every event with all columns and selects none. Q0 is the \
           thesis's script; it writes text, whereas the thesis wrote binary rows.",
    run: |pace| {
        let configurations = vec![
            ("B0: not traced".to_owned(), Beside::Nothing),
            ("B1: traced, read, dropped".to_owned(), Beside::Reader),
            ("Q0: query 0".to_owned(), Beside::Query("0", 1)),
        ];
        measured(configurations, pace)
    },
};

/// Experiment 2.
pub static COMPLEXITY: Experiment = Experiment {
    number: 2,
    title: "impact of query complexity",
    thesis: "Compared with query 0, the filter engine used from 0.03 points less (query 1, which \
             drops half of the events) to 3.53 points more (query 10, three group-bys over \
             sliding windows); queries 8, 9 and 10 were the most expensive. The number of bytes \
             copied was the same.",
    here: "The thesis's scripts as printed.",
    run: |pace| {
        let queries = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"];
        let configurations = queries.map(|q| (format!("Q{q}"), Beside::Query(q, 1)));
        measured(configurations.into(), pace)
    },
};

/// Experiment 3.
pub static PARALLEL: Experiment = Experiment {
    number: 3,
    title: "parallel queries",
    thesis: "One query 5 used 1.43 points more than query 0, one query 9 used 2.0 points more; \
             with 2, 4 and 8 copies, the maximum for STREAM, the overhead grew almost in \
             proportion.",
    here: "Up to 100 copies. Each copy has its own views; weir finds common parts of plans and \
           runs them once, but writes each result to its own file.",
    run: |pace| {
        let copies = [1, 2, 4, 8, 100];
        let both = ["5", "9"].map(|q| copies.map(|n| (format!("Q{q}x{n}"), Beside::Query(q, n))));
        measured(both.into_iter().flatten().collect(), pace)
    },
};

fn measured(configurations: Vec<(String, Beside)>, pace: Pace) -> Result<Findings> {
    let vms = vec![Vm::start(QUERY_1_ASKS_FOR, REQUESTS_PER_SECOND)?];
    sleep(SETTLE);
    let rows = by_turns(&configurations, pace.runs, |beside| {
        turn(beside, &vms, pace.seconds)
    })?;
    Ok(Findings::new(COLUMNS, rows))
}

/// Measures one configuration once; a figure for each column.
///
/// # Errors
/// When a program fails.
pub fn turn(beside: &Beside, vms: &[Vm], seconds: u32) -> Result<Vec<f64>> {
    let folder = MemoryFolder::new(RESULTS_MIB)?;
    let mut program = started(beside, vms, folder.path())?;
    sleep(SETTLE);
    let pids: Vec<u32> = program.iter().map(Child::id).collect();
    let (counters, before) = (Counters::now(&pids)?, done(vms)?);
    sleep(Duration::from_secs(seconds.into()));
    let (used, after) = (counters.since()?, done(vms)?);
    if let Some(program) = &mut program {
        stop(program)?;
        has_results(beside, folder.path())?;
    }
    Ok(vec![
        used.machine_percent,
        used.process_percent.iter().sum(),
        (after.written_mib - before.written_mib) / used.seconds,
    ])
}

/// Starts the programs beside the VMs, with their results in `folder`.
fn started(beside: &Beside, vms: &[Vm], folder: &Path) -> Result<Option<Child>> {
    let mut weir = Command::new(root().join("target/release/weir"));
    match beside {
        Beside::Nothing => return Ok(None),
        Beside::Reader => {
            let every = "select * from IOstream where req_id < 0 and sector < 0 and bytes < 0";
            weir.args(["query", "--format", "delta", every]);
        }
        Beside::Query(query, copies) => {
            let script = scripts::live(query, *copies, folder)?;
            weir.args(["run", "--out-dir"]).arg(folder).arg(script);
        }
    }
    for vm in vms {
        weir.args(["--device", vm.device()]);
        weir.args(vm.declaration().map(|vm| format!("--vm={vm}")));
    }
    let output = std::fs::File::create(folder.join("standard_output"))?;
    let weir = weir.stdin(Stdio::null()).stdout(output);
    Ok(Some(weir.spawn().context("cannot start weir")?))
}

/// Ends a program as Ctrl-C would, and checks that it was still running.
fn stop(program: &mut Child) -> Result<()> {
    if let Some(status) = program.try_wait()? {
        bail!("weir ended early with {status}; its messages are above");
    }
    execute(Command::new("kill").args(["-INT", &program.id().to_string()]))?;
    program.wait()?;
    Ok(())
}

/// Checks the results: a query without any was not measured.
fn has_results(beside: &Beside, folder: &Path) -> Result<()> {
    let Beside::Query(query, _) = beside else {
        return Ok(());
    };
    let is_result = |path: &Path| path.extension().is_none_or(|e| e != "cql");
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if is_result(&entry.path()) {
            bytes += entry.metadata()?.len();
        }
    }
    match bytes {
        0 => bail!("query {query} returned no rows"),
        _ => Ok(()),
    }
}
