//! Any text, however malformed or large, yields only diagnostics that can be rendered; a query
//! within the limits runs.

#[path = "support/capabilities.rs"]
mod capabilities;

use proptest::prelude::*;
use weir_model::Catalog;
use weir_query::{CheckOptions, compile, compile_script, render};

/// Words and tokens of CQL in any order, with some that are not CQL.
fn soup() -> impl Strategy<Value = String> {
    let token = prop::sample::select(vec![
        "select",
        "from",
        "where",
        "group",
        "by",
        "having",
        "order",
        "limit",
        "union",
        "all",
        "except",
        "intersect",
        "with",
        "as",
        "create",
        "view",
        "register",
        "stream",
        "relation",
        "istream(",
        "rstream(",
        "every",
        "case",
        "when",
        "then",
        "else",
        "end",
        "cast(",
        "in",
        "exists",
        "not",
        "and",
        "or",
        "is",
        "null",
        "between",
        "like",
        "join",
        "left",
        "full",
        "on",
        "using",
        "[",
        "]",
        "now",
        "range",
        "rows",
        "partition",
        "slide",
        "unbounded",
        "IO",
        "op",
        "latency",
        "count(*)",
        "max(",
        "(",
        ")",
        ",",
        ";",
        ".",
        "*",
        "+",
        "-",
        "/",
        "=",
        "<",
        ">=",
        "||",
        "1",
        "5 s",
        "0.5",
        "4 KiB",
        "'x'",
        "\"y",
        "`z`",
        "#",
        "\n",
        "--",
        "table :",
        "source :",
        "vquery :",
        "vtable :",
        "query :",
        "dest :",
        "é",
        "?",
        "\u{0}",
        "99999999999999999999",
        "distinct",
        "desc",
        "nulls",
        "first",
    ]);
    prop::collection::vec(token, 0..60).prop_map(|tokens| tokens.join(" "))
}

fn survives(text: &str) {
    let options = CheckOptions::live();
    if let Err(diagnostics) = compile(text, &Catalog::builtin(), &options) {
        assert!(!diagnostics.is_empty(), "a refusal without reason: {text}");
        for diagnostic in diagnostics {
            let shown = render(&diagnostic, text, Some("q.cql"));
            assert!(shown.lines().count() >= 3, "{shown}");
        }
    }
    if let Err(diagnostics) = compile_script(text) {
        assert!(!diagnostics.is_empty(), "a refusal without reason: {text}");
        diagnostics.iter().for_each(|d| drop(render(d, text, None)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_soup_of_words_does_harm(text in soup()) {
        survives(&text);
    }

    #[test]
    fn no_text_does_harm(text in "\\PC{0,80}") {
        survives(&text);
    }

    #[test]
    fn a_query_cut_anywhere_is_survived(at in 0_usize..260, extra in any::<char>()) {
        let query = "with b as (select comm, bytes from IO [range 5 s slide 1 s] where bytes > 64 KiB) select b.comm, case when \
                     count(*) > 10 then 'x' else \"y\" end from b left join IO [rows 5] as o on b.comm = o.comm where exists (select * from \
                     IO) group by b.comm order by 1 desc nulls last limit 5";
        let cut: String = query.chars().take(at).collect();
        survives(&cut);
        survives(&format!("{cut}{extra}{}", &query[cut.len()..]));
    }
}

#[test]
fn gigantic_texts_are_refused_in_time() {
    let deep = |open: &str, close: &str, n: usize| {
        format!("select {}1{} from IO", open.repeat(n), close.repeat(n))
    };
    let chain =
        |link: &str, n: usize| format!("select op from IO where op = 'r'{}", link.repeat(n));
    let mut doubling = String::from("with v0 as (select op from IO [now])");
    for i in 1..60 {
        doubling += &format!(", v{i} as (select a.op from v{} a, v{} b)", i - 1, i - 1);
    }
    let mut nested = String::from("op = 'r'");
    for _ in 0..60 {
        nested = format!("(case {nested} when true then 1 when false then 2 end) = 1");
    }
    let texts = [
        deep("(", ")", 100_000),
        deep("-", "", 100_000),
        deep("not ", "", 100_000),
        deep("case when true then ", " end", 50_000),
        deep("(select ", " from IO)", 50_000),
        deep("abs(", ")", 50_000),
        chain(" union select op from IO", 20_000),
        chain(" and op in (select op from IO where op = 'r'", 5_000),
        format!("select op from IO{}", " join IO on true".repeat(20_000)),
        format!(
            "select op from {}IO{}",
            "(select op from ".repeat(20_000),
            ")".repeat(20_000)
        ),
        format!("select op from IO where {nested}"),
        format!("{doubling} select op from v59"),
        "(".repeat(1 << 20),
        "x".repeat(2 << 20),
    ];
    for (i, text) in texts.iter().enumerate() {
        eprintln!("text {i}");
        let refused = compile(text, &Catalog::builtin(), &CheckOptions::live());
        let diagnostics = refused.expect_err(&text[..text.len().min(80)]);
        for diagnostic in diagnostics.iter().take(3) {
            assert!(render(diagnostic, text, None).len() < 2_000);
        }
    }
}

#[test]
fn a_flat_chain_of_any_length_runs() {
    let text = format!(
        "select op from IO where op = 'r'{}",
        " or op = 'w'".repeat(10_000)
    );
    compile(&text, &Catalog::builtin(), &CheckOptions::live()).expect("it is flat");
}

#[test]
fn large_queries_within_the_bounds_run() {
    let joins: String = (1..200)
        .map(|i| format!(" join IO [now] t{i} on t{i}.pid = t0.pid"))
        .collect();
    let mut views = String::from("with v0 as (select op from IO [now])");
    for i in 1..100 {
        views += &format!(
            ", v{i} as (select distinct op from v{} where op <> 'x{i}')",
            i - 1
        );
    }
    let texts = [
        format!("select t0.op from IO [now] t0{joins}"),
        format!(
            "select op from IO where op = 'r'{}",
            " or op = 'w'".repeat(120)
        ),
        format!(
            "select op from IO{}",
            " union all select op from IO".repeat(100)
        ),
        format!("select op from IO where pid in ({}0)", "1, ".repeat(50_000)),
        format!("{views} select op from v99"),
        format!("select {}1{} from IO", "(".repeat(90), ")".repeat(90)),
        format!(
            "select op from {}IO{}",
            "(select op from ".repeat(25),
            ")".repeat(25)
        ),
    ];
    for text in &texts {
        let compiled = compile(text, &Catalog::builtin(), &CheckOptions::live());
        let plan = compiled
            .unwrap_or_else(|d| panic!("{}", render(&d[0], text, None)))
            .plan;
        assert!(
            !weir_query::place::explain(&plan, &capabilities::live())
                .to_string()
                .is_empty()
        );
    }
}
