//! `weir check QUERY`: the diagnostics of a query, without running it.

use std::time::Duration;

use clap::Args;
use serde_json::json;
use weir_query::alert::{AlertRule, compile_alerts, has_alerts};
use weir_query::diagnostic::{Diagnostic, Severity};

use crate::args::{DefinitionArgs, QuestionArgs};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::output;
use weir_runtime::plans;
use weir_runtime::question::QueryText;
use weir_runtime::source::SourceOptions;
use weir_sink::InstantUnit;
use weir_sink::text::aligned;
use weir_tap::source::LIVE;

/// Check a query or a file of alerts without running it
///
/// Prints the columns of the result with types and units, or all errors of the query. The exit
/// status is 2 if there are errors. The query may read every stream of this host. Of a text with
/// CREATE ALERT, it prints each alert with its labels, conditions and durations.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    weir check \"select op, avg(latency) from IO [range 5 s] group by op\"\n  \
    weir check -f question.cql --json\n  \
    weir check -f alerts.cql")]
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
    if has_alerts(&question.text) {
        return check_alerts(args, &question, &host);
    }
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

/// Checks a file of alerts.
fn check_alerts(
    args: &CheckArgs,
    question: &QueryText,
    host: &SourceOptions,
) -> Result<Ending, Failure> {
    let (rules, diagnostics) = match question.over(host, false, compile_alerts)? {
        Ok(file) => (file.rules, file.warnings),
        Err(diagnostics) => (Vec::new(), diagnostics),
    };
    let bad = diagnostics.iter().any(Diagnostic::is_error);
    if args.json {
        let findings: Vec<_> = diagnostics.iter().map(finding).collect();
        let alerts: Vec<_> = rules.iter().map(alert_json).collect();
        let answer = json!({"ok": !bad, "alerts": alerts, "diagnostics": findings});
        output::print(&format!("{answer}\n"))?;
        return Ok(if bad { Ending::Refused } else { Ending::Done });
    }
    if bad {
        return Err(question.failure(&diagnostics));
    }
    question.warn(&diagnostics);
    let row = |rule: &AlertRule| {
        let labels: Vec<&str> = rule.labels.iter().map(|(name, _)| name.as_str()).collect();
        let seconds = |ns: i64| format!("{:?}", Duration::from_nanos(ns.unsigned_abs()));
        vec![
            rule.name.clone(),
            labels.join(", "),
            seconds(rule.hold_ns),
            seconds(rule.hold_clear_ns),
        ]
    };
    let head = ["ALERT", "LABELS", "FIRES AFTER", "CLEARS AFTER"].map(str::to_owned);
    let rows: Vec<Vec<String>> = [head.to_vec()]
        .into_iter()
        .chain(rules.iter().map(row))
        .collect();
    output::print(&aligned(&rows))?;
    Ok(Ending::Done)
}

fn alert_json(rule: &AlertRule) -> serde_json::Value {
    let labels: Vec<&str> = rule.labels.iter().map(|(name, _)| name.as_str()).collect();
    let annotations: Vec<&str> = rule.annotations.iter().map(|a| a.name.as_str()).collect();
    let columns: Vec<_> = rule
        .columns
        .iter()
        .map(super::streams::column_json)
        .collect();
    json!({
        "name": rule.name,
        "labels": labels,
        "annotations": annotations,
        "hold_ns": rule.hold_ns,
        "hold_clear_ns": rule.hold_clear_ns,
        "columns": columns,
    })
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
