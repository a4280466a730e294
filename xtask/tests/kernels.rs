//! The tables of docs/kernels.md list every name of the kernel that the programs use.

use std::collections::BTreeSet;

use weir_testing::repository::{read, tracked};

/// The sources of the programs and of their user side.
const EBPF: &str = "crates/weir-tap/src/ebpf";

/// The paths and texts of the sources with these endings.
fn sources(endings: &[&str]) -> Vec<(String, String)> {
    let tracked = endings.iter().flat_map(|ending| tracked(ending));
    let found = tracked.filter(|path| path.starts_with(EBPF));
    let found: Vec<_> = found.map(|path| (path.clone(), read(&path))).collect();
    assert!(!found.is_empty());
    found
}

/// The cells of the table below a heading, row by row, without its head.
fn table(heading: &str) -> Vec<Vec<String>> {
    let page = read("docs/kernels.md");
    let (_, rest) = page
        .split_once(&format!("# {heading}\n"))
        .expect("a heading");
    let lines = rest.lines().skip_while(|line| !line.starts_with('|'));
    let rows = lines.take_while(|line| line.starts_with('|')).skip(2);
    let rows: Vec<Vec<String>> = rows
        .map(|row| {
            row.trim_matches('|')
                .split('|')
                .map(|c| c.trim().to_owned())
                .collect()
        })
        .collect();
    assert!(!rows.is_empty(), "{heading}");
    rows
}

/// The words of a cell that are marked as code.
fn code(cell: &str) -> impl Iterator<Item = String> + '_ {
    cell.split('`').skip(1).step_by(2).map(str::to_owned)
}

/// The code of a column of a table.
fn listed(heading: &str, column: usize) -> BTreeSet<String> {
    let rows = table(heading).into_iter();
    rows.flat_map(|row| code(&row[column]).collect::<Vec<_>>())
        .collect()
}

/// The string literals of a Rust text that this accepts.
fn literals(text: &str, wanted: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let production = text.split("#[cfg(test)]").next().expect("a text");
    let code = production
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let words = code.flat_map(|line| line.split('"').skip(1).step_by(2));
    words
        .filter(|word| wanted(word))
        .map(str::to_owned)
        .collect()
}

/// The fields of the structures that the headers of tap.bpf.c declare for CO-RE.
fn declared_fields() -> BTreeSet<String> {
    let headers = ["kernel", "cgroup"].map(|name| read(&format!("{EBPF}/{name}.bpf.h")));
    let header = headers.concat();
    let mut fields = BTreeSet::new();
    let mut structure = None;
    for line in header.lines() {
        if let Some(name) = line
            .strip_prefix("struct ")
            .and_then(|l| l.strip_suffix(" {"))
        {
            structure = name.split("___").next();
        } else if line.starts_with('}') {
            structure = None;
        } else if let (Some(structure), Some(line)) = (structure, line.strip_suffix(';')) {
            let name = line.rsplit([' ', '*', '\t']).next().expect("a name");
            fields.insert(format!("{structure}.{name}"));
        }
    }
    fields
}

#[test]
fn every_field_is_listed_and_checked() {
    let declared = declared_fields();
    assert!(declared.contains("request.rq_disk") && declared.contains("bio.bi_iter"));
    let mut listed = BTreeSet::new();
    for row in table("Structures") {
        let structure = code(&row[0]).next().expect("a name");
        listed.extend(code(&row[1]).map(|field| format!("{structure}.{field}")));
    }
    assert_eq!(
        listed, declared,
        "docs/kernels.md, kernel.bpf.h and cgroup.bpf.h"
    );
    let kernel = read(&format!("{EBPF}/kernel.rs"));
    let is_field = |word: &str| {
        let identifier = |part: &str| part.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        word.split_once('.')
            .is_some_and(|(s, f)| identifier(s) && identifier(f) && !f.is_empty())
    };
    let checked = literals(&kernel, is_field);
    let lacks: Vec<_> = declared.difference(&checked).collect();
    assert!(lacks.is_empty(), "kernel.rs lacks {lacks:?}");
    // What decides on a fallback need not be read by the programs.
    let fallbacks = self::listed("Fallbacks", 0);
    let unlisted = checked
        .difference(&declared)
        .find(|name| !fallbacks.contains(*name));
    assert_eq!(unlisted, None, "docs/kernels.md");
}

#[test]
fn every_enumerator_is_listed() {
    let kernel = read(&format!("{EBPF}/kernel.rs"));
    let enumerator = |word: &str| {
        ["REQ_", "__RQ", "__REQ_", "MQ_"]
            .iter()
            .any(|p| word.starts_with(p))
    };
    assert_eq!(literals(&kernel, enumerator), listed("Enumerators", 0));
}

#[test]
fn every_tracepoint_is_listed() {
    let tracepoint = |word: &str| word.starts_with("block_") && !word.contains([' ', '.']);
    for source in ["kernel.rs", "programs.rs"] {
        let found = literals(&read(&format!("{EBPF}/{source}")), tracepoint);
        assert_eq!(found, listed("Tracepoints", 0), "{source}");
    }
}

#[test]
fn every_helper_is_listed() {
    let header = read(&format!("{EBPF}/base.bpf.h"));
    let names = header.split("(*bpf_").skip(1);
    let names = names.map(|rest| format!("bpf_{}", rest.split(')').next().expect("a name")));
    let listed: BTreeSet<String> = listed("Helpers and features of BPF", 0);
    let listed = listed.into_iter().filter(|name| name.starts_with("bpf_"));
    assert_eq!(names.collect::<BTreeSet<_>>(), listed.collect());
}

#[test]
fn every_fallback_is_listed() {
    let fallbacks = listed("Fallbacks", 0);
    for (path, text) in sources(&[".bpf.h", ".bpf.c"]) {
        // The lines of one macro are one.
        for line in text.replace("\\\n", "").lines() {
            let of = line.split("core_field_exists(").nth(1);
            let is_definition = line.starts_with("#define");
            if let (Some(of), false) = (of, is_definition) {
                let of = of.split(" ? ").next().expect("a condition");
                let field = of.rsplit("->").next().expect("a field");
                let field = field.split(')').next().expect("a field");
                let found = fallbacks.iter().any(|f| f.ends_with(&format!(".{field}")));
                assert!(found, "{path}: {line}");
            }
            for builtin in ["core_enum", "bpf_core_", "core_type", "__builtin_preserve"] {
                let other = line.contains(builtin) && !is_definition;
                assert!(!other, "{path}: not in docs/kernels.md: {line}");
            }
        }
    }
}

/// A comment that names a version of the kernel states a difference.
#[test]
fn every_version_is_listed() {
    let page = read("docs/kernels.md");
    for (path, text) in sources(&[".h", ".c", ".rs"]) {
        let words: Vec<&str> = text.split_whitespace().collect();
        for pair in words.windows(2) {
            let version = pair[1].trim_end_matches(|c: char| !c.is_ascii_digit());
            let mut parts = version.split('.').map(str::parse::<u32>);
            let is_version = matches!((parts.next(), parts.next()), (Some(Ok(4..=9)), Some(Ok(_))));
            let qualifier = pair[0].trim_start_matches(['(', '"']).to_lowercase();
            if is_version && ["before", "since", "kernel"].contains(&&*qualifier) {
                let listed = page.split(|c: char| c != '.' && !c.is_ascii_digit());
                let listed = listed
                    .map(|w| w.trim_end_matches('.'))
                    .any(|w| w == version);
                assert!(listed, "{path}: {} {version}", pair[0]);
            }
        }
    }
}
