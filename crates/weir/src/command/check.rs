//! `weir check QUERY`: the diagnostics of a query, without running it.

use clap::Args;
use serde_json::json;
use weir_query::diagnostic::{Diagnostic, Severity};

use crate::args::{DefinitionArgs, QuestionArgs};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::plans;
use weir_runtime::source::SourceOptions;
use weir_sink::InstantUnit;
use weir_tap::source::LIVE;

/// Check a query without running it
///
/// Prints the columns of the result with types and units, or all errors of the query. The exit
/// status is 2 if there are errors. The query may read every stream of this host.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir check \"select op, avg(latency) from IO [range 5 s] group by op\"\n  \
    weir check -f question.cql --json")]
pub struct CheckArgs {
    #[command(flatten)]
    question: QuestionArgs,
    #[command(flatten)]
    define: DefinitionArgs,
    /// Source whose streams the query may read in addition to those of this host: a recording, or
    /// another source of `weir query`; may be repeated
    #[arg(long, value_name = "SOURCE", default_value = LIVE.name)]
    from: Vec<String>,
    /// Print a JSON object: ok, shape, columns, and diagnostics with code, message, help and byte
    /// span
    #[arg(short = 'j', long)]
    json: bool,
}

pub fn run(args: &CheckArgs) -> Result<Ending, Failure> {
    let mut host = SourceOptions::default();
    host.from = args.from.clone();
    let question = args.define.before(args.question.read()?, &host)?;
    let checked = question.check_over(&host, false)?;
    let columns = match &checked {
        Ok(checked) => checked.plan.schema.fields.clone(),
        Err(_) => Vec::new(),
    };
    let shape = |plan| plans::answer(plan, InstantUnit::Nanoseconds, false, false).shape;
    let shape = checked.as_ref().ok().map(|c| shape(&c.plan).name());
    let (Ok(diagnostics) | Err(diagnostics)) = checked.map(|c| c.warnings);
    let bad = diagnostics.iter().any(Diagnostic::is_error);
    if args.json {
        let findings: Vec<_> = diagnostics.iter().map(finding).collect();
        let columns: Vec<_> = columns.iter().map(super::streams::column_json).collect();
        let answer = json!({
            "ok": !bad,
            "shape": shape,
            "columns": columns,
            "diagnostics": findings,
        });
        output::print(&format!("{answer}\n"))?;
        return Ok(if bad { Ending::Refused } else { Ending::Done });
    }
    if bad {
        return Err(question.failure(&diagnostics));
    }
    question.warn(&diagnostics);
    output::print(&super::streams::columns_text(&columns))?;
    Ok(Ending::Done)
}

fn finding(diagnostic: &Diagnostic) -> serde_json::Value {
    let severity = match diagnostic.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    json!({
        "severity": severity,
        "code": diagnostic.code,
        "message": diagnostic.message,
        "help": diagnostic.help,
        "start": diagnostic.span.start,
        "end": diagnostic.span.end,
    })
}
