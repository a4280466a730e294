//! Patterns over rows, whose conditions read values of other rows as further columns.

use weir_model::{Schema, Type};

use super::{aggregate_call, condition, ensure, expression, expressions, positive};
use crate::plan::row_match::{
    MatchResult, Navigation, POSITIONS_MAX, PREVIOUS_ROWS_MAX, RowMatch, TERMS_HEIGHT_MAX,
    VARIABLES_MAX,
};
use crate::plan::wire::PlanError;

/// Checks a pattern over a stream of `schema`; the types of the columns of its matches.
pub(super) fn check(by: &RowMatch, schema: &Schema) -> Result<Vec<Type>, PlanError> {
    expressions(&by.keys, schema)?;
    for key in &by.order {
        expression(&key.expr, Some(schema))?;
    }
    let variables = by.variables.len();
    ensure(
        variables <= VARIABLES_MAX,
        "a pattern has too many variables",
    )?;
    let pattern = &by.pattern;
    let is_sound = pattern.is_sound(variables, TERMS_HEIGHT_MAX);
    ensure(is_sound, "a pattern is malformed")?;
    ensure(pattern.rows_min() > 0, "a pattern matches no row")?;
    let positions = pattern.positions();
    ensure(positions <= POSITIONS_MAX as u64, "a pattern is too long")?;
    let is_bounded = by.within.is_some() || by.absent.is_none() && !pattern.is_unlimited();
    ensure(is_bounded, "a pattern without WITHIN is unlimited")?;
    by.within.map_or(Ok(()), positive)?;
    let exists = |variable: Option<usize>| {
        let exists = variable.is_none_or(|variable| variable < variables);
        ensure(exists, "a pattern has no such variable")
    };
    exists(by.absent)?;
    let navigation = |navigation: &Navigation| {
        exists(navigation.variable)?;
        expression(&navigation.value, Some(schema))
    };
    for previous in &by.previous {
        let is_near = (1..=PREVIOUS_ROWS_MAX).contains(&previous.rows);
        ensure(is_near, "a previous row is too far away")?;
        expression(&previous.value, Some(schema))?;
    }
    by.navigations.iter().try_for_each(navigation)?;
    let read = Schema::new(by.condition_columns(&schema.fields));
    for variable in &by.variables {
        if let Some(tested) = &variable.condition {
            condition(tested, &read)?;
        }
    }
    for result in &by.results {
        match result {
            MatchResult::Navigation(value) => navigation(value)?,
            MatchResult::Aggregate { variable, call } => {
                exists(*variable)?;
                aggregate_call(call, Some(schema))?;
            }
            MatchResult::MatchNumber | MatchResult::Classifier => {}
        }
    }
    let keys = by.keys.iter().map(|key| key.ty());
    let results = by.results.iter().map(|result| result.returns().0);
    Ok(keys.chain(results).collect())
}
