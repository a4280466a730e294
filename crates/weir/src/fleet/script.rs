//! The queries of a script as those of a fleet: over what its agents watch, in nanoseconds.
//!
//! Each query is placed with the whole text, so that the monitor, which is given it by anybody,
//! checks the same words, and named queries that it reads become part of it.

use std::sync::Arc;

use weir_model::event::iostream_schema;
use weir_model::{Catalog, Declaration, NANOS_PER_SECOND, Type, Unit};
use weir_query::expr::BinaryOp;
use weir_query::optimize::optimize;
use weir_query::plan::Node;
use weir_query::script::ScriptTable;
use weir_query::{CheckOptions, Diagnostic, Expr, Plan, Script, compile_script_as};
use weir_wire::OfScript;

use crate::failure::Failure;
use crate::question::Question;
use crate::run_loop::Adopted;
use crate::script_sources::{LIVE_TAP, events_columns};

/// A table of a script, and the plan that its rows come from.
type Table = (String, Arc<Plan>);

/// A script whose plans are over the streams of a fleet; a tick of its time has `tick_ns`.
///
/// # Errors
/// All that is wrong with it, or the source that no fleet has.
pub fn compile(question: &Question, tick_ns: u32) -> Result<Script, Failure> {
    let options = CheckOptions {
        second: tick_ns.into(),
        live: true,
        ..CheckOptions::script()
    };
    let compiled = compile_script_as(&question.text, options);
    let mut script = compiled.map_err(|found| question.failure(&found))?;
    let sources = script.tables.iter().map(|table| &table.source);
    let mut sources = sources.chain(&script.iostream_source);
    if let Some(file) = sources.find(|source| *source != LIVE_TAP) {
        return Err(Failure::words(format_args!(
            "source : {file}: rows of a fleet come from its agents; write `source : {LIVE_TAP}`, \
             and let an agent replay the file with --from"
        )));
    }
    let (mut tables, mut off) = (Vec::new(), Vec::new());
    for table in &script.tables {
        match adopted(table) {
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

/// The query of a script that was asked for.
///
/// # Errors
/// As [`compile`], and when there is none, or a tick has no length.
pub fn plan(question: &Question, part: &OfScript) -> Result<Arc<Plan>, Failure> {
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

/// A stream that a script declares, made of the columns of `IOstream`.
fn adopted(table: &ScriptTable) -> Result<Arc<Plan>, Diagnostic> {
    let columns = events_columns(table)?;
    let given = iostream_schema();
    let own = &table.declaration.schema.fields;
    let (mut exprs, mut fields) = (Vec::new(), Vec::new());
    for (Adopted { index, divisor }, field) in columns.into_iter().zip(own) {
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
    Ok(Plan::project(source(events), exprs, fields))
}

/// A plan over the streams of a fleet instead of the script's own.
fn over_agents(plan: &Arc<Plan>, tables: &[Table]) -> Arc<Plan> {
    if let Node::Source(declaration) = &plan.node {
        let is_it = |table: &&Table| table.0.eq_ignore_ascii_case(&declaration.name);
        if let Some((_, adopted)) = tables.iter().find(is_it) {
            return adopted.clone();
        }
        // The thesis's differ in what `*` stands for, which is no matter any more.
        let builtin = Catalog::builtin();
        return source(builtin.find(&declaration.name).unwrap_or(declaration));
    }
    let inputs = plan.inputs().into_iter();
    plan.with_inputs(inputs.map(|input| over_agents(input, tables)).collect())
}

fn source(declaration: &Declaration) -> Arc<Plan> {
    Arc::new(Plan {
        node: Node::Source(declaration.clone()),
        schema: declaration.schema.clone(),
        shape: declaration.shape,
    })
}
