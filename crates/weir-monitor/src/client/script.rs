//! The queries of a script as queries over a fleet: over the streams of its agents, in nanoseconds.
//!
//! Each query is submitted with the whole text, so that the monitor, which does not trust clients,
//! checks the same text, and the named queries that it reads become part of it.

use std::sync::Arc;

use weir_model::event::iostream_schema;
use weir_model::{Catalog, NANOS_PER_SECOND, Type, Unit};
use weir_query::expr::BinaryOp;
use weir_query::optimize::optimize;
use weir_query::plan::Node;
use weir_query::script::ScriptTable;
use weir_query::{CheckOptions, Diagnostic, Expr, Plan, Script, compile_script_as};
use weir_wire::OfScript;

use weir_runtime::failure::Failure;
use weir_runtime::question::QueryText;
use weir_runtime::run_loop::MappedColumn;
use weir_runtime::script_sources::{LIVE_TAP, events_columns};

/// A table of a script, and the plan that produces its rows.
type Table = (String, Arc<Plan>);

/// A script whose plans read the streams of a fleet; one tick of its time is `tick_ns`.
///
/// # Errors
/// All errors of the script, or the source that is not available in a fleet.
pub fn compile(question: &QueryText, tick_ns: u32) -> Result<Script, Failure> {
    let options = CheckOptions {
        second: tick_ns.into(),
        live: true,
        ..CheckOptions::script()
    };
    let compiled = compile_script_as(&question.text, options, &[]);
    let mut script = compiled.map_err(|found| question.failure(&found))?;
    let sources = script.tables.iter().map(|table| &table.source);
    let mut sources = sources.chain(&script.iostream_source);
    if let Some(file) = sources.find(|source| *source != LIVE_TAP) {
        return Err(Failure::words(format_args!(
            "source : {file}: the rows of a fleet are those of its agents; write `source : \
             {LIVE_TAP}`, and replay the file with `weir agent --from`"
        )));
    }
    let (mut tables, mut off) = (Vec::new(), Vec::new());
    for table in &script.tables {
        match declared_stream(table) {
            Ok(plan) => tables.push((table.declaration.name.clone(), plan)),
            Err(found) => off.push(found),
        }
    }
    if !off.is_empty() {
        return Err(question.failure(&off));
    }
    for query in &mut script.queries {
        query.unoptimized = over_agents(&query.unoptimized, &tables);
        query.plan = optimize(&query.unoptimized);
    }
    Ok(script)
}

/// The requested query of a script.
///
/// # Errors
/// As [`compile`], and if there is no such query, or a tick has no length.
pub fn plan(question: &QueryText, part: &OfScript) -> Result<Arc<Plan>, Failure> {
    if part.tick_ns == 0 || i64::from(part.tick_ns) > NANOS_PER_SECOND {
        return Err(Failure::words(format_args!(
            "script.tick_ns is {}; it is from 1 to {NANOS_PER_SECOND}",
            part.tick_ns
        )));
    }
    let script = compile(question, part.tick_ns)?;
    let at = (part.query as usize).checked_sub(1);
    match at.and_then(|at| script.queries.get(at)) {
        Some(query) => Ok(query.plan.clone()),
        None => Err(Failure::words(format_args!(
            "script.query is {}; the script has queries 1 to {}",
            part.query,
            script.queries.len()
        ))),
    }
}

/// A stream that a script declares, as a projection of the columns of `IOstream`.
fn declared_stream(table: &ScriptTable) -> Result<Arc<Plan>, Diagnostic> {
    let columns = events_columns(table)?;
    let given = iostream_schema();
    let own = &table.declaration.schema.fields;
    let (mut exprs, mut fields) = (Vec::new(), Vec::new());
    for (MappedColumn { index, divisor }, field) in columns.into_iter().zip(own) {
        let from = &given[index];
        let mut expr = Expr::column(index, from.ty, from.unit);
        if from.ty != field.ty {
            expr = Expr::Cast {
                expr: Box::new(expr),
                ty: Type::Int,
                unit: from.unit,
            };
        }
        if divisor != 1 {
            expr = Expr::Binary {
                op: BinaryOp::Divide,
                left: Box::new(expr),
                right: Box::new(Expr::int(divisor)),
                unit: Unit::None,
            };
        }
        let mut field = field.clone();
        field.nullable = from.nullable;
        exprs.push(expr);
        fields.push(field);
    }
    let events = Catalog::builtin();
    let events = events.find("IOstream").expect("it is built in");
    Ok(Plan::project(Plan::source(events.clone()), exprs, fields))
}

/// A plan over the streams of a fleet instead of the script's own.
fn over_agents(plan: &Arc<Plan>, tables: &[Table]) -> Arc<Plan> {
    if let Node::Source(declaration) = &plan.node {
        let is_it = |table: &&Table| table.0.eq_ignore_ascii_case(&declaration.name);
        if let Some((_, declared_stream)) = tables.iter().find(is_it) {
            return declared_stream.clone();
        }
        // The thesis's streams differ in the meaning of `*`, which is resolved already.
        let builtin = Catalog::builtin();
        let known = builtin.find(&declaration.name).unwrap_or(declaration);
        return Plan::source(known.clone());
    }
    let inputs = plan.inputs().into_iter();
    plan.with_inputs(inputs.map(|input| over_agents(input, tables)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "table : register stream S (BlktapTS integer, Type char(2));\n\
        source : tap:live\n\
        query : select max(BlktapTS) from S [range 3 second];\n\
        query : select Type from S;\n";

    fn planned(text: &str, query: u32, tick_ns: u32) -> Result<Arc<Plan>, String> {
        let question = QueryText::new(text);
        plan(&question, &OfScript { query, tick_ns }).map_err(|failure| failure.text())
    }

    #[test]
    fn a_script_is_over_the_streams_of_the_fleet_in_nanoseconds() {
        let plan = planned(TEXT, 1, 1_000).unwrap();
        let sources: Vec<&str> = plan.sources().iter().map(|s| &*s.name).collect();
        assert_eq!(sources, ["IOstream"]);
        assert!(format!("{plan:?}").contains("size: 3000,"), "{plan:?}");
        assert_eq!(planned(TEXT, 2, 1_000).unwrap().schema[0].name, "Type");
    }

    #[test]
    fn what_strangers_ask_of_a_script_is_bounded() {
        for (query, tick_ns, expected) in [
            (0, 1_000, "queries 1 to 2"),
            (3, 1_000, "queries 1 to 2"),
            (1, 0, "tick_ns is 0"),
            (1, u32::MAX, "from 1 to 1000000000"),
        ] {
            let why = planned(TEXT, query, tick_ns).unwrap_err();
            assert!(why.contains(expected), "{why}");
        }
        let far = TEXT.replace("range 3", "range 9000000000000000000");
        let why = planned(&far, 1, 1_000).unwrap_err();
        assert!(why.contains("integer number of ticks"), "{why}");
        let why = planned(
            &TEXT.replace("BlktapTS integer", "BlktapTS char(2)"),
            1,
            1_000,
        );
        assert!(why.unwrap_err().contains("is declared as"));
    }
}
