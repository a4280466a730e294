//! What each fuzz target does with its bytes. `cargo test` does the same with every file under
//! `corpus/`, on a plain toolchain.
//!
//! A target panics when a promise is broken, and else returns: whatever comes from outside ends in
//! a result, a diagnostic or a counted skip.

use std::time::Duration;

use weir_model::event::io_schema;
use weir_model::{Catalog, Demand, Predicate};
use weir_query::script::compile_script;
use weir_query::{CheckOptions, Diagnostic, compile, render, syntax};
use weir_tap::format::{self, FORMATS, Options, Source};
use weir_tap::{RECORDING, Said};

/// A target: its name, and what it does with the input.
pub type Target = (&'static str, fn(&[u8]));

/// Every target: its name, which is also that of its folder under `corpus/`, and what it does.
pub static TARGETS: &[Target] = &[("cql", cql), ("script", script), ("trace", trace)];

/// A query, as live and as in a script: it is read, printed and read again, and checked.
/// Diagnostics lie within the text.
pub fn cql(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let parsed = syntax::parse(&text);
    if parsed.diagnostics.is_empty() {
        let statements = parsed.tree.iter().map(|s| s.to_string());
        let printed = statements.collect::<Vec<_>>().join(";\n");
        let again = syntax::parse(&printed);
        assert!(
            again.diagnostics.is_empty(),
            "{printed}: {:?}",
            again.diagnostics
        );
        assert_eq!(
            parsed.tree, again.tree,
            "print then parse is identity: {printed}"
        );
    }
    for options in [CheckOptions::live(), CheckOptions::script()] {
        match compile(&text, &Catalog::thesis(), &options) {
            Ok(checked) => {
                assert!(!checked.plan.sources().is_empty(), "a plan reads something");
                look_at(&checked.warnings, &text);
            }
            Err(diagnostics) => {
                assert!(
                    diagnostics.iter().any(Diagnostic::is_error),
                    "a refusal has a reason"
                );
                look_at(&diagnostics, &text);
            }
        }
    }
}

/// A script in STREAM's format.
pub fn script(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match compile_script(&text) {
        Ok(script) => {
            assert!(!script.queries.is_empty(), "a script has a query");
            look_at(&script.warnings, &text);
        }
        Err(diagnostics) => {
            assert!(
                diagnostics.iter().any(Diagnostic::is_error),
                "a refusal has a reason"
            );
            look_at(&diagnostics, &text);
        }
    }
}

/// A trace: the name of a format or nothing, a line end, and then the file. It is read to its end,
/// as every stream at once.
pub fn trace(data: &[u8]) {
    let end = data.iter().position(|b| *b == b'\n').unwrap_or(data.len());
    let (name, file) = (&data[..end], data.get(end + 1..).unwrap_or(&[]));
    let format = FORMATS.iter().find(|f| f.name.as_bytes() == name);
    let source = Source::bytes(file);
    let demands = ["IO", "IOstream", RECORDING].map(|stream| {
        let catalog = Catalog::builtin();
        let columns = catalog
            .find(stream)
            .map_or(io_schema().len(), |d| d.schema.len());
        Demand {
            stream: stream.into(),
            columns: (0..columns).collect(),
            predicate: Predicate::all(),
            fold: None,
        }
    });
    for strict in [false, true] {
        let options = Options {
            strict,
            format: format.map(|f| f.name),
        };
        let Ok(mut tap) = format::open_source(&source, &demands, options) else {
            continue;
        };
        let mut reached = i64::MIN;
        loop {
            match tap.next(Duration::ZERO) {
                Ok(Said::Rows { demand, batch }) => {
                    assert!(demand < demands.len(), "rows answer a demand");
                    assert!(batch.ts.is_sorted(), "rows are in time order");
                    assert!(batch.ts.iter().all(|ts| *ts > reached), "a heartbeat holds");
                }
                Ok(Said::Heartbeat(ts)) => reached = reached.max(ts),
                Ok(Said::Quiet) => {}
                Ok(Said::Folded { .. }) => panic!("a file delivers rows"),
                Ok(Said::End) | Err(_) => break,
            }
        }
        tap.counts();
    }
}

fn look_at(diagnostics: &[Diagnostic], text: &str) {
    for diagnostic in diagnostics {
        let span = diagnostic.span;
        assert!(
            span.start <= span.end && span.end <= text.len(),
            "{diagnostic:?} lies in the text"
        );
        assert!(!render(diagnostic, text, Some("a file")).is_empty());
    }
}
