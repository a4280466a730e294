//! `weir run`: STREAM's own tests, and the queries of the thesis.

use std::collections::BTreeMap;

use crate::support::{Scratch, run, run_in, shared};

/// Output lines by instant, as sorted lists, for comparison.
fn by_instant(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut instants: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in text.lines().filter(|l| !l.trim().is_empty()) {
        let (instant, delta) = line.split_once("]:").expect(line);
        instants
            .entry(instant.to_owned())
            .or_default()
            .push(delta.trim_end().to_owned());
    }
    instants.values_mut().for_each(|deltas| deltas.sort());
    instants
}

/// Asserts that both are equal at each instant; reports the first difference.
fn assert_agree(test: &str, actual: &str, expected: &str) {
    let (actual, expected) = (by_instant(actual), by_instant(expected));
    let instants = actual.keys().chain(expected.keys());
    for instant in instants {
        let (ours, theirs) = (actual.get(instant), expected.get(instant));
        assert_eq!(ours, theirs, "{test} at {instant}]");
    }
}

#[test]
fn the_five_tests_of_stream_agree_with_their_outputs() {
    let name = "the_five_tests_of_stream_agree_with_their_outputs";
    let Some(stream) = shared(name, "stream-cql/test") else {
        return;
    };
    for test in ["test1", "test2", "test3", "test4", "test7"] {
        let scratch = Scratch::new();
        std::fs::create_dir_all(scratch.path().join("test/out")).unwrap();
        let data = scratch.path().join("test/data");
        std::os::unix::fs::symlink(stream.join("data"), data).unwrap();
        let script = stream.join("scripts").join(test);
        run_in(scratch.path(), &["run", script.to_str().unwrap()]).fine();
        let expected = std::fs::read_to_string(stream.join("sample-out").join(test)).unwrap();
        let actual = scratch.read(&format!("test/out/{test}"));
        assert!(!expected.trim().is_empty());
        assert_agree(test, &actual, &expected);
    }
}

/// The thesis's table declaration: its ten columns.
const IOSTREAM: &str = "table : register stream IOstream (BlktapTS integer, Type char(2), IOOp char(2), ReqId integer, \
    Sector integer, Size integer, VMName char(15), VDisk char(10), PDisk char(10), FtrTS integer);\n";

/// Rows of a source file, with FtrTS as timestamp, as in the thesis.
fn source(rows: &[&str]) -> String {
    let mut text = String::from("i,i,c2,c2,i,i,i,c15,c10,c10,i\n");
    for row in rows {
        let ts = row.rsplit(' ').next().unwrap();
        let row = row.replace(' ', ",");
        text += &format!("{ts},{row}\n");
    }
    text
}

/// Table 3.3 of the thesis.
const TABLE_3_3: [&str; 10] = [
    "21184390 Q w 780 599544 8 muscatvm51 /dev/sda1 /dev/sda3 3879860",
    "21194843 R w 780 599544 8 muscatvm51 /dev/sda1 /dev/sda3 3894011",
    "21194999 Q w 781 6464 88 muscatvm51 /dev/sda1 /dev/sda3 3894018",
    "21195008 Q w 782 6552 88 muscatvm51 /dev/sda1 /dev/sda3 3894023",
    "21195015 Q w 783 6640 24 muscatvm51 /dev/sda1 /dev/sda3 3894028",
    "21204824 R w 781 6464 88 muscatvm51 /dev/sda1 /dev/sda3 3899858",
    "21206538 R w 782 6552 88 muscatvm51 /dev/sda1 /dev/sda3 3899865",
    "21206546 R w 783 6640 24 muscatvm51 /dev/sda1 /dev/sda3 3899869",
    "21206612 Q w 784 6664 8 muscatvm51 /dev/sda1 /dev/sda3 3899874",
    "21212584 R w 784 6664 8 muscatvm51 /dev/sda1 /dev/sda3 3907900",
];

/// Table 3.5 of the thesis.
const TABLE_3_5: [&str; 10] = [
    "21128269 Q w 784 599632 8 muscatvm51 /dev/sda1 /dev/sda3 3658847",
    "21142381 R w 784 599632 8 muscatvm51 /dev/sda1 /dev/sda3 3674820",
    "21142535 Q w 785 6456 88 muscatvm51 /dev/sda1 /dev/sda3 3674827",
    "21142544 Q w 786 6544 88 muscatvm51 /dev/sda1 /dev/sda3 3674832",
    "21142550 Q w 787 6632 24 muscatvm51 /dev/sda1 /dev/sda3 3674837",
    "21159268 R w 785 6456 88 muscatvm51 /dev/sda1 /dev/sda3 3690820",
    "21159277 R w 786 6544 88 muscatvm51 /dev/sda1 /dev/sda3 3690827",
    "21159283 R w 787 6632 24 muscatvm51 /dev/sda1 /dev/sda3 3690831",
    "21159360 Q w 788 6656 8 muscatvm51 /dev/sda1 /dev/sda3 3690836",
    "21165320 R w 788 6656 8 muscatvm51 /dev/sda1 /dev/sda3 3698819",
];

/// The results of the queries of a script without `dest :` on these rows, without instants and
/// signs.
fn answer(rows: &[&str], query: &str) -> Vec<String> {
    let scratch = Scratch::new();
    scratch.write("io.dat", &source(rows));
    scratch.write("q", &format!("{IOSTREAM}source : io.dat\n{query}"));
    let out = run_in(scratch.path(), &["run", "q"]).fine();
    let rows = out.lines().map(|l| l.split_once("]:+:").expect(l).1);
    rows.map(String::from).collect()
}

#[test]
fn thesis_query_1_gives_table_3_4() {
    let query = "# Type = \"Q\" specifies requests\nquery :\nselect * from IOstream as IO\n\
        where IO.Type = \"Q\" and IO.VMName = \"muscatvm51\";\n";
    let requests = TABLE_3_3.iter().filter(|row| row.contains(" Q "));
    let table_3_4: Vec<String> = requests.map(|row| row.replace(' ', ", ")).collect();
    assert_eq!(table_3_4.len(), 5);
    assert_eq!(answer(&TABLE_3_3, query), table_3_4);
}

#[test]
fn thesis_query_4_gives_table_3_6() {
    // In print, the table has the number of the request next to each time, for the reader.
    let query = "query :\nselect IOresp.BlktapTS - IOreq.BlktapTS, IOreq.ReqId\n\
        from IOstream [range 3000000 second] as IOreq,\n      \
        IOstream [range 3000000 second] as IOresp\n\
        where IOreq.Type = \"Q\" and IOresp.Type = \"R\"\n      and IOreq.ReqId = IOresp.ReqId;\n";
    let table_3_6 = [
        "14112, 784",
        "16733, 785",
        "16733, 786",
        "16733, 787",
        "5960, 788",
    ];
    assert_eq!(answer(&TABLE_3_5, query), table_3_6);
}

/// Table 3.7 of the thesis.
const TABLE_3_7: [&str; 5] = [
    "18972991 Q r 784 623248 8 muscatvm51 /dev/sda1 /dev/sda3 555850",
    "18980424 R r 784 623248 8 muscatvm51 /dev/sda1 /dev/sda3 569938",
    "21485228 Q w 785 475280 8 muscatvm51 /dev/sda1 /dev/sda3 3067784",
    "21501234 R w 785 475280 8 muscatvm51 /dev/sda1 /dev/sda3 3083784",
    "21501291 Q w 786 407584 8 muscatvm51 /dev/sda1 /dev/sda3 3083794",
];

const QUERY_8: &str = r#"
vquery :
select IOreq.ReqId, IOresp.BlktapTS - IOreq.BlktapTS
from IOstream [range 3000000 second] as IOreq,
      IOstream [range 3000000 second] as IOresp
where IOreq.Type = "Q" and IOresp.Type = "R"
      and IOreq.ReqId = IOresp.ReqId;
vtable : register stream
Diff2(ReqId integer, Value integer);

vquery :
Istream(
select Sum(D2.Value),Count(*),Max(D2.ReqId) from Diff2 as D2);
vtable : register stream
DiffAvg(IOSum integer, IOCount integer, ReqId integer);

query :
select D2.ReqId,DAvg.IOSum/DAvg.IOCount,D2.Value
from Diff2 as D2, DiffAvg as DAvG
where 4*(D2.Value) >= 5*(DAvg.IOSum/DAvg.IOCount)
      and D2.ReqId = DAvG.ReqId;
"#;

#[test]
fn thesis_query_8_gives_table_3_8() {
    let scratch = Scratch::new();
    scratch.write("io.dat", &source(&TABLE_3_7));
    scratch.write(
        "q8",
        &format!("{IOSTREAM}source : io.dat\n{QUERY_8}dest : out/q8\n"),
    );
    let output = run_in(scratch.path(), &["run", "q8"]);
    assert_eq!(
        (output.code, output.out.as_str()),
        (0, ""),
        "{}",
        output.err
    );
    let out = scratch.read("out/q8");
    let plus: Vec<&str> = out.lines().filter(|l| l.contains(":+:")).collect();
    assert_eq!(plus, ["[3083784]:+:785, 11719, 16006"], "{out}");
}

#[test]
fn a_query_without_dest_is_printed() {
    let scratch = Scratch::new();
    scratch.write("io.dat", &source(&TABLE_3_7));
    let query = "# requests only\nquery : select ReqId, Size from IOstream as IO where IO.Type = \"Q\" and IO.VMName = \"muscatvm51\";\n";
    scratch.write("q1", &format!("{IOSTREAM}source : io.dat\n{query}"));
    let out = run_in(scratch.path(), &["run", "q1"]).fine();
    assert_eq!(
        out,
        "[555850]:+:784, 8\n[3067784]:+:785, 8\n[3083794]:+:786, 8\n"
    );
}

#[test]
fn iostream_is_there_without_being_declared_and_counts_in_microseconds() {
    let scratch = Scratch::new();
    let trace = scratch.write("t.csv", &crate::support::requests(2));
    let query = "query : select BlktapTS, Type, Size from IOstream;\n";
    let script = scratch.write("q", query);
    let out = run(&["run", "--from", &trace, &script]).fine();
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 4, "{out}");
    assert_eq!(lines[0], "[1172163603000000]:+:1172163603000000, Q, 8");
    assert_eq!(lines[1], "[1172163603000500]:+:1172163603000500, R, 8");
}

#[test]
fn a_trace_can_be_the_source_of_a_declared_stream() {
    let scratch = Scratch::new();
    scratch.write("t.csv", &crate::support::requests(2));
    let table = "table : register stream S (ReqId integer, Size integer, BlktapTS integer);\nsource : t.csv\n";
    scratch.write(
        "q",
        &format!("{table}query : select Size, BlktapTS from S;\n"),
    );
    let out = run_in(scratch.path(), &["run", "q"]).fine();
    assert_eq!(out.lines().count(), 4, "{out}");
    assert!(
        out.starts_with("[1172163603000000]:+:8, 1172163603000000\n"),
        "{out}"
    );
}

#[test]
fn relations_come_from_files_with_signs() {
    let scratch = Scratch::new();
    scratch.write("r.dat", "i,i\n1,+,7\n2,+,8\n3,-,7\n");
    let table = "table : register relation R (A integer);\nsource : r.dat\n";
    scratch.write("q", &format!("{table}query : select sum(A) from R;\n"));
    let out = run_in(scratch.path(), &["run", "q"]).fine();
    let plus: Vec<&str> = out.lines().filter(|l| l.contains(":+:")).collect();
    assert_eq!(plus.last(), Some(&"[3]:+:8"), "{out}");
}

#[test]
fn a_bad_script_is_pictured() {
    let scratch = Scratch::new();
    let script = scratch.write("q", "query : selct * from IOstream;\n");
    let output = run(&["run", &script]);
    assert_eq!(output.code, 2);
    assert!(
        output.err.contains("error[W") && output.err.contains(":1:"),
        "{}",
        output.err
    );
}

#[test]
fn two_queries_do_not_share_a_dest() {
    let query = "query : select * from IOstream;\ndest : x\n";
    let scratch = Scratch::new();
    let script = scratch.write("q", &query.repeat(2));
    let output = run_in(scratch.path(), &["run", &script]);
    assert_eq!(output.code, 2);
    assert!(output.err.contains("two queries"), "{}", output.err);
}

#[test]
fn out_dir_moves_the_outputs() {
    let scratch = Scratch::new();
    scratch.write("s.dat", "i,i\n1,1\n");
    let table = "table : register stream S (A integer);\nsource : s.dat\n";
    scratch.write(
        "q",
        &format!("{table}query : select * from S;\ndest : a/b\n"),
    );
    run_in(scratch.path(), &["run", "q", "--out-dir", "elsewhere"]).fine();
    assert_eq!(scratch.read("elsewhere/a/b"), "[1]:+:1\n");
}
