//! Joins of requests with their responses, computed from the pairs that the source provides: the
//! result is that of the join, in queries and in scripts, from recordings and live.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use weir_testing::LoopDisk;

use crate::live::watched_disk;
use crate::support::{Scratch, all_but_missed, interrupt, requests, run, run_in, weir};

/// Thesis query 4, with a window that is shorter than the input.
const QUERY_4: &str = "select r.ts - q.ts, q.req_id, q.sector \
    from IOstream [range 10 ms] as q, IOstream [range 10 ms] as r \
    where q.type = 'Q' and r.type = 'R' and q.req_id = r.req_id";

/// Whether `weir explain` reads pairs and has no join.
fn is_paired(plan: &str) -> bool {
    let joins = plan.lines().any(|line| line.contains(" join on "));
    let pairing = plan
        .lines()
        .any(|line| line.trim().starts_with("computed from the tap's pairs"));
    assert_ne!(joins, pairing, "{plan}");
    pairing
}

/// The sorted lines of a result: the order of rows within an instant is undefined.
fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Runs both forms of the query, asserts that the results are equal, and returns their lines.
fn both_ways(args: &[&str], question: &str) -> Vec<String> {
    let ask = |more: &[&str]| sorted(&run(&[args, more, &[question]].concat()).fine());
    let (pairs, join) = (ask(&[]), ask(&["--no-pairing"]));
    assert_eq!(pairs, join, "{args:?} {question}");
    pairs
}

/// The output of `weir explain` for query 4 from these sources.
fn explained(from: &[&str]) -> String {
    run(&[&["explain"], from, &[QUERY_4]].concat()).fine()
}

#[test]
fn a_trace_answers_from_pairs_what_the_join_gives() {
    let scratch = Scratch::new();
    let trace = scratch.write("t.csv", &requests(40));
    let from = ["--from", &trace];
    let plan = explained(&from);
    assert!(is_paired(&plan), "{plan}");
    let lines = both_ways(&["query", "--from", &trace, "--format", "delta"], QUERY_4);
    // All rows are inserted. Those issued 10 ms or more before the last response are retracted.
    assert_eq!(lines.len(), 40 + 30, "{lines:?}");
    let unpaired = explained(&["--from", &trace, "--no-pairing"]);
    let why = "not computed from the tap's pairs: --no-pairing was given";
    assert!(
        unpaired.contains(why) && !is_paired(&unpaired),
        "{unpaired}"
    );
}

#[test]
fn what_a_source_does_not_promise_stays_a_join() {
    let scratch = Scratch::new();
    let trace = scratch.write("t.csv", &requests(8));
    // Tencent's traces have no responses.
    let silent = scratch.write("silent.csv", "1538323200,4096,8,1,1283\n");
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let (whole, some, again) = (
        path("whole.parquet"),
        path("some.parquet"),
        path("again.parquet"),
    );
    run(&["convert", &trace, &whole]).fine();
    let record = ["record", "--from", &trace, "-o", &some];
    run(&[&record[..], &["--where", "sectors > 8"]].concat()).fine();
    run(&["record", "--from", &trace, "-o", &again]).fine();

    for promised in [&whole, &again] {
        let plan = explained(&["--from", promised]);
        assert!(is_paired(&plan), "{plan}");
    }
    let unpromised: [(&[&str], &str); 3] = [
        (&[&silent], "does not record when requests finished"),
        (&[&some], "does not state that it contains all requests"),
        (&[&trace, &whole], "several sources assign request ids"),
    ];
    for (files, why) in unpromised {
        let from: Vec<&str> = files.iter().flat_map(|file| ["--from", file]).collect();
        let plan = explained(&from);
        assert!(!is_paired(&plan), "{plan}");
        let (_, reason) = plan
            .split_once("not computed from the tap's pairs: ")
            .expect(&plan);
        assert!(
            reason
                .lines()
                .next()
                .is_some_and(|reason| reason.contains(why)),
            "{plan}"
        );
    }
    for from in [&whole, &again, &some, &silent] {
        both_ways(&["query", "--from", from, "--format", "delta"], QUERY_4);
    }
}

#[test]
fn scripts_answer_from_pairs_what_their_joins_give() {
    let scratch = Scratch::new();
    scratch.write("t.csv", &requests(40));
    let join = |columns: &str, stream: &str| {
        format!(
            "select {columns} from {stream} [range 10000 second] as q, \
             {stream} [range 10000 second] as r \
             where q.Type = \"Q\" and r.Type = \"R\" and q.ReqId = r.ReqId"
        )
    };
    let times = "q.ReqId, r.BlktapTS - q.BlktapTS, q.Type, q.Sector";
    // Thesis query 8: requests slower than the mean, from two joins of streams of joins.
    let query_8 = format!(
        "vquery : {};\nvtable : register stream Diff2 (ReqId integer, Value integer);\n\
         vquery : Istream(select Sum(D.Value), Count(*), Max(D.ReqId) from Diff2 as D);\n\
         vtable : register stream DiffAvg (IOSum integer, IOCount integer, ReqId integer);\n\
         query : select D.ReqId, A.IOSum / A.IOCount, D.Value from Diff2 as D, DiffAvg as A \
         where 4 * D.Value >= 3 * (A.IOSum / A.IOCount) and D.ReqId = A.ReqId;\ndest : q8\n",
        join("q.ReqId, r.BlktapTS - q.BlktapTS", "S")
    );
    let script = format!(
        "table : register stream S (FtrTS integer, ReqId integer, BlktapTS integer, Type char(2), \
         Sector integer);\nsource : t.csv\n\
         query : {};\ndest : declared\n\
         query : {};\ndest : predefined\n\
         query : select ReqId, BlktapTS from S where Type = \"Q\";\ndest : requests\n{query_8}",
        join(times, "S"),
        join(times, "IOstream"),
    );
    scratch.write("script", &script);
    let ask = |more: &[&str], out: &str| {
        let args = ["run", "--from", "t.csv", "--out-dir", out, "-v"];
        run_in(scratch.path(), &[&args, more, &["script"]].concat()).fine();
    };
    ask(&[], "pairs");
    ask(&["--no-pairing"], "join");
    for (dest, rows) in [
        ("declared", 40 + 30),
        ("predefined", 40 + 30),
        ("requests", 40),
        ("q8", 121),
    ] {
        let of = |how: &str| sorted(&scratch.read(&format!("{how}/{dest}")));
        let pairs = of("pairs");
        assert_eq!(pairs, of("join"), "{dest}");
        assert_eq!(pairs.len(), rows, "{dest}: {pairs:?}");
    }
    let declared = scratch.read("pairs/declared");
    let first = declared.lines().next();
    assert_eq!(first, Some("[1172163603000500]:+:1, 500, Q, 0"));
}

#[test]
fn the_rows_of_a_stream_source_file_are_joined() {
    let scratch = Scratch::new();
    let row = |ts: i64, kind: &str, id: i64| format!("{ts},{ts},{kind},{id}\n");
    // A number is used twice: the join has four rows, which pairs would not have.
    let rows = [
        row(1, "Q", 7),
        row(2, "Q", 7),
        row(3, "R", 7),
        row(4, "R", 7),
    ];
    scratch.write("s.dat", &format!("i,i,c2,i\n{}", rows.concat()));
    let script = "table : register stream IOstream (BlktapTS integer, Type char(2), ReqId integer);\n\
        source : s.dat\nquery : select r.BlktapTS - q.BlktapTS from IOstream as q, IOstream as r \
        where q.Type = \"Q\" and r.Type = \"R\" and q.ReqId = r.ReqId;\n";
    scratch.write("q", script);
    let out = run_in(scratch.path(), &["run", "q"]).fine();
    assert_eq!(sorted(&out).len(), 4, "{out}");
}

/// A running query and its output.
struct Asked {
    child: Child,
    lines: Receiver<String>,
    /// The rows received, without instants.
    come: Vec<String>,
}

/// How long an operation of about a second may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(90);

impl Asked {
    fn new(disk: &LoopDisk, more: &[&str], query: &str) -> Asked {
        let args = ["query", "--format", "delta", "--device", disk.path()];
        let mut command = weir(&[&args, more, &[query]].concat());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || out.lines().try_for_each(|line| sender.send(line.unwrap())));
        Asked {
            child,
            lines,
            come: Vec::new(),
        }
    }

    /// Reads rows until one shows a read at that sector, which `dd` issues meanwhile.
    fn until(&mut self, disk: &LoopDisk, sector: u32) {
        let since = Instant::now();
        let mark = format!(", dd, {sector}");
        let is_there = |asked: &Asked| asked.come.iter().any(|row| row.ends_with(&mark));
        while !is_there(self) {
            assert!(since.elapsed() < TIMEOUT, "no row of sector {sector}");
            read_at(disk, sector);
            while let Ok(line) = self.lines.recv_timeout(Duration::from_millis(100)) {
                self.come
                    .extend(line.split_once("]:+:").map(|(_, row)| row.to_owned()));
            }
        }
    }

    /// Ends it; returns the rows of fio.
    fn of_fio(mut self) -> Vec<String> {
        interrupt(&self.child);
        assert_eq!(self.child.wait().unwrap().code(), Some(130));
        self.come.retain(|row| row.contains(", fio, "));
        self.come
    }
}

/// Reads 4 KiB at a sector of a disk with direct I/O.
fn read_at(disk: &LoopDisk, sector: u32) {
    let status = Command::new("dd")
        .args([
            &format!("if={}", disk.path()),
            "of=/dev/null",
            "bs=4096",
            "count=1",
        ])
        .args([
            &format!("skip={}", sector / 8),
            "iflag=direct",
            "status=none",
        ])
        .status();
    assert!(status.unwrap().success());
}

/// The number of requests that fio issues, as fio reports it.
fn load(disk: &LoopDisk) -> usize {
    let fio = Command::new("fio")
        .args(["--name=mixed", "--filename", disk.path(), "--direct=1"])
        .args(["--rw=randrw", "--bsrange=4k-16k", "--ioengine=libaio"])
        .args([
            "--iodepth=8",
            "--numjobs=2",
            "--size=16m",
            "--output-format=json",
        ])
        .output();
    let fio = fio.unwrap();
    assert!(fio.status.success());
    let json: serde_json::Value = serde_json::from_slice(&fio.stdout).unwrap();
    let jobs = json["jobs"].as_array().unwrap().iter();
    let total = |job: &serde_json::Value, way: &str| job[way]["total_ios"].as_u64().unwrap();
    jobs.map(|job| (total(job, "read") + total(job, "write")) as usize)
        .sum()
}

#[test]
fn live_pairs_are_the_join_and_what_fio_did() {
    let test = "live_pairs_are_the_join_and_what_fio_did";
    let Some(disk) = watched_disk(test) else {
        return;
    };
    // Makes the requests of fio those of the disk.
    disk.set("scheduler", "none").unwrap();
    disk.set("nomerges", "2").unwrap();
    let query = |kind: &str, condition: &str| {
        format!(
            "select '{kind}', r.ts - q.ts, q.ts, q.req_id, q.op, q.comm, q.sector \
             from IOstream [range 3 s] as q, IOstream [range 3 s] as r \
             where q.type = 'Q' and r.type = 'R' and q.req_id = r.req_id {condition}"
        )
    };
    let query_4 = query("either", "");
    // Pairs have no column for the error of a request, which is null here.
    let both = [query("pairs", ""), query("join", "and q.error is null")].join(" union all ");
    let device = ["explain", "--device", disk.path()];
    assert!(is_paired(&run(&[&device[..], &[&query_4]].concat()).fine()));
    let explained = run(&[&device[..], &[&both]].concat()).fine();
    let parts = explained.split_once("\noperators of the engine:\n");
    let (plan, operators) = parts.expect("the plan, and its operators");
    assert_eq!(operators.matches("hash inner join").count(), 1, "{plan}");
    for part in [
        "  computed from the tap's pairs",
        "do not contain `error` of both rows",
        " join on ",
    ] {
        assert_eq!(plan.matches(part).count(), 1, "{plan}");
    }

    let mut asked = [
        Asked::new(&disk, &[], &query_4),
        Asked::new(&disk, &["--no-pairing"], &query_4),
        Asked::new(&disk, &[], &both),
    ];
    asked.iter_mut().for_each(|asked| asked.until(&disk, 8));
    let done = load(&disk);
    asked.iter_mut().for_each(|asked| asked.until(&disk, 800));
    let [pairs, join, both] = asked.map(Asked::of_fio);
    assert!(done > 1_000, "{done} requests");
    for (rows, made) in [(&pairs, done), (&join, done)] {
        assert!(
            all_but_missed(rows.len() as u64, made as u64),
            "{} of {made}",
            rows.len()
        );
    }
    let of = |kind: &str| {
        let rows = both.iter().filter_map(|row| row.strip_prefix(kind));
        let mut rows: Vec<&str> = rows.collect();
        rows.sort_unstable();
        rows
    };
    assert_eq!(of("pairs"), of("join"));
    assert!(all_but_missed(of("pairs").len() as u64, done as u64));
}
