//! Properties of every aggregate in the list: its result is its definition over the present rows,
//! whatever was inserted and retracted before; merging the partials of a split equals the whole; an
//! insertion and its retraction cancel; malformed bytes are an error.

use proptest::prelude::*;
use proptest::sample::Index;
use weir_model::{Column, ColumnBuilder, Type, Unit, Value};

use super::definitions::{Expected, Naive, agrees, expected};
use super::{AGGREGATES, Aggregate, AggregateCall, AggregateState};
use crate::expr::Expr;
use crate::function::Argument;

/// Groups in every test.
const GROUPS: usize = 3;

/// Every aggregate with every type of argument that it accepts, and with constants where it
/// requires them.
fn calls() -> Vec<AggregateCall> {
    let types = [Type::Bool, Type::Int, Type::Float, Type::Text, Type::Time];
    let constants: [&[Value]; 7] = [
        &[],
        &[Value::Float(0.0)],
        &[Value::Float(0.5)],
        &[Value::Float(0.99)],
        &[Value::Int(2)],
        &[Value::Int(-3), Value::Int(0), Value::Int(700)],
        &[Value::Int(i64::MIN), Value::Int(i64::MAX)],
    ];
    let mut calls = Vec::new();
    for &function in AGGREGATES {
        for ty in types {
            for constants in constants {
                let column = Argument {
                    ty,
                    unit: Unit::Bytes,
                    constant: None,
                };
                let literal = |value: &Value| Argument {
                    ty: if matches!(value, Value::Int(_)) {
                        Type::Int
                    } else {
                        Type::Float
                    },
                    unit: Unit::None,
                    constant: Some(value.clone()),
                };
                let args: Vec<Argument> = std::iter::once(column)
                    .chain(constants.iter().map(literal))
                    .collect();
                let Ok(returns) = function.check(&args) else {
                    continue;
                };
                let expr = |arg: &Argument| match &arg.constant {
                    None => Expr::column(0, arg.ty, arg.unit),
                    Some(value) => Expr::Literal {
                        value: value.clone(),
                        ty: arg.ty,
                        unit: arg.unit,
                    },
                };
                calls.push(AggregateCall {
                    function,
                    args: args.iter().map(expr).collect(),
                    distinct: false,
                    ty: returns.ty,
                    unit: returns.unit,
                });
            }
        }
        calls.extend(calls_of_two_columns(function));
    }
    calls
}

/// Calls of the aggregates of two numbers over columns of every combination of types.
fn calls_of_two_columns(function: &'static dyn Aggregate) -> Vec<AggregateCall> {
    let numbers = [Type::Int, Type::Float];
    let pairs = numbers.iter().flat_map(|y| numbers.map(|x| [*y, x]));
    let call = |types: [Type; 2]| {
        let args = types.map(|ty| Argument {
            ty,
            unit: Unit::Bytes,
            constant: None,
        });
        // `max_by(x, y)` has another definition, for a constant `y`.
        let is_of_pairs = function.doc().signature.ends_with("(y, x)");
        let returns = function.check(&args).ok().filter(|_| is_of_pairs)?;
        let column = |(i, arg): (usize, &Argument)| Expr::column(i, arg.ty, arg.unit);
        Some(AggregateCall {
            function,
            args: args.iter().enumerate().map(column).collect(),
            distinct: false,
            ty: returns.ty,
            unit: returns.unit,
        })
    };
    pairs.filter_map(call).collect()
}

/// A value of each type, or NULL: the same row for all calls.
#[derive(Clone, Debug)]
struct Datum {
    bool: bool,
    int: i64,
    float: f64,
    text: &'static str,
    null: bool,
}

impl Datum {
    fn value(&self, ty: Type) -> Value {
        match ty {
            _ if self.null => Value::Null,
            Type::Bool => Value::Bool(self.bool),
            Type::Float => Value::Float(self.float),
            Type::Text => Value::text(self.text),
            _ => Value::Int(self.int),
        }
    }
}

fn datum() -> impl Strategy<Value = Datum> {
    let int = prop_oneof![
        6 => -8i64..8,
        3 => -100_000i64..2_000_000_000,
        1 => Just(i64::MIN),
        1 => Just(i64::MAX),
    ];
    // Sums of eighths are not rounded, so that the definition is exact as well.
    let float = prop_oneof![
        20 => (-64i32..64).prop_map(|x| f64::from(x) / 8.0),
        8 => (0i32..1_000_000).prop_map(|x| f64::from(x) / 8.0),
        1 => Just(f64::INFINITY),
        1 => Just(f64::NEG_INFINITY),
        1 => Just(f64::NAN),
        1 => Just(-0.0),
    ];
    let text = prop::sample::select(vec!["", "sda", "sdb", "Zoe", "nvme0n1", "ä"]);
    (any::<bool>(), int, float, text, prop::bool::weighted(0.1)).prop_map(
        |(bool, int, float, text, null)| Datum {
            bool,
            int,
            float,
            text,
            null,
        },
    )
}

/// A row that is inserted into a group or retracted from it.
#[derive(Clone, Debug)]
struct Delta {
    group: u32,
    weight: i64,
    datum: Datum,
    requested: bool,
}

/// Insertions, and later retractions of some of the same rows.
fn deltas() -> impl Strategy<Value = Vec<Delta>> {
    let step = (
        0..GROUPS as u32,
        1i64..4,
        datum(),
        any::<bool>(),
        any::<bool>(),
        any::<Index>(),
    );
    prop::collection::vec(step, 0..80).prop_map(|steps| {
        let mut live: Vec<Delta> = Vec::new();
        let mut deltas = Vec::new();
        for (group, weight, datum, goes, requested, which) in steps {
            if goes && !live.is_empty() {
                let row = live.remove(which.index(live.len()));
                deltas.push(Delta {
                    weight: -row.weight,
                    requested,
                    ..row
                });
            } else {
                live.push(Delta {
                    group,
                    weight,
                    datum,
                    requested,
                });
                deltas.push(live.last().expect("just pushed").clone());
            }
        }
        deltas
    })
}

fn reversed(deltas: &[Delta]) -> Vec<Delta> {
    deltas
        .iter()
        .rev()
        .map(|d| Delta {
            weight: -d.weight,
            ..d.clone()
        })
        .collect()
}

/// A state with empty groups.
fn fresh(call: &AggregateCall) -> Box<dyn AggregateState> {
    let mut state = call.function.state(call);
    state.resize(GROUPS);
    state
}

/// Feeds a batch; returns the requested results, or that one does not fit its type.
fn feed(
    call: &AggregateCall,
    state: &mut dyn AggregateState,
    deltas: &[Delta],
) -> Option<Vec<Value>> {
    let groups: Vec<u32> = deltas.iter().map(|d| d.group).collect();
    let weights: Vec<i64> = deltas.iter().map(|d| d.weight).collect();
    let requested: Vec<bool> = deltas.iter().map(|d| d.requested).collect();
    let args: Vec<Column> = call
        .args
        .iter()
        .map(|arg| {
            let value = |d: &Delta| match arg {
                Expr::Literal { value, .. } => value.clone(),
                column => d.datum.value(column.ty()),
            };
            Column::from_values(arg.ty(), deltas.iter().map(value))
        })
        .collect();
    let mut out = ColumnBuilder::new(call.ty, 0);
    state
        .update(&groups, &weights, &args, &requested, &mut out)
        .ok()?;
    let results = out.finish();
    Some((0..results.len()).map(|i| results.value(i)).collect())
}

fn feed_unwanted(call: &AggregateCall, state: &mut dyn AggregateState, deltas: &[Delta]) {
    let quiet: Vec<Delta> = deltas
        .iter()
        .map(|d| Delta {
            requested: false,
            ..d.clone()
        })
        .collect();
    feed(call, state, &quiet).expect("no result, no failure");
}

fn results(state: &dyn AggregateState) -> Vec<Option<Value>> {
    (0..GROUPS as u32)
        .map(|group| state.result(group).ok())
        .collect()
}

fn partials(state: &dyn AggregateState) -> Vec<Vec<u8>> {
    let partial = |group| {
        let mut bytes = Vec::new();
        state.partial(group, &mut bytes);
        bytes
    };
    (0..GROUPS as u32).map(partial).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn it_is_its_definition_on_the_rows_that_are_there(deltas in deltas(), cut in any::<Index>()) {
        let (head, tail) = deltas.split_at(cut.index(deltas.len() + 1));
        for call in calls() {
            let mut state = fresh(&call);
            let mut rows = vec![Naive::default(); GROUPS];
            'batches: for batch in [head, tail] {
                let found = feed(&call, &mut *state, batch);
                let mut found = found.as_ref().map(|values| values.iter());
                for delta in batch {
                    let value = delta.datum.value(call.args[0].ty());
                    rows[delta.group as usize].apply(&value, delta.weight);
                    if !delta.requested {
                        continue;
                    }
                    let expected = expected(&call, &rows[delta.group as usize]);
                    match &mut found {
                        Some(values) => {
                            let value = values.next();
                            let ok = value.is_some() && agrees(value, &expected);
                            prop_assert!(ok, "{call:?} gives {value:?} of {:?}", rows[delta.group as usize].0);
                        }
                        None if matches!(expected, Expected::Overflow) => break 'batches,
                        None => {}
                    }
                }
                prop_assert!(found.is_some(), "{call:?} fails without reason");
            }
        }
    }

    /// Intermediate results are not requested, so that no intermediate overflow matters.
    #[test]
    fn its_result_in_the_end_is_its_definition(deltas in deltas()) {
        for call in calls() {
            let mut state = fresh(&call);
            feed_unwanted(&call, &mut *state, &deltas);
            let mut rows = vec![Naive::default(); GROUPS];
            for delta in &deltas {
                rows[delta.group as usize].apply(&delta.datum.value(call.args[0].ty()), delta.weight);
            }
            for (found, rows) in results(&*state).iter().zip(&rows) {
                prop_assert!(agrees(found.as_ref(), &expected(&call, rows)), "{call:?} gives {found:?} of {:?}", rows.0);
            }
        }
    }

    #[test]
    fn split_is_whole(deltas in deltas(), dealt in prop::collection::vec(0usize..3, 80)) {
        for call in calls() {
            let splits = call.function.splits();
            let mut whole = fresh(&call);
            let mut parts: Vec<Box<dyn AggregateState>> = (0..3).map(|_| fresh(&call)).collect();
            for (i, delta) in deltas.iter().enumerate() {
                if !splits && delta.weight < 0 {
                    continue;
                }
                // Where order matters, the parts follow each other; elsewhere a retraction may even
                // be in another part.
                let part = if splits { dealt[i] } else { i * 3 / deltas.len() };
                feed_unwanted(&call, &mut *whole, std::slice::from_ref(delta));
                feed_unwanted(&call, &mut *parts[part], std::slice::from_ref(delta));
            }
            let mut merged = fresh(&call);
            for part in &parts {
                for (group, bytes) in partials(&**part).iter().enumerate() {
                    merged.merge(group as u32, bytes).expect("a partial of the same call");
                }
            }
            prop_assert_eq!(results(&*merged), results(&*whole), "{:?}", call);
        }
    }

    #[test]
    fn an_inserted_and_retracted_row_has_no_effect(deltas in deltas(), stays in deltas()) {
        for call in calls() {
            let empty = fresh(&call);
            let mut state = fresh(&call);
            feed_unwanted(&call, &mut *state, &deltas);
            feed_unwanted(&call, &mut *state, &reversed(&deltas));
            prop_assert_eq!(results(&*state), results(&*empty), "{:?}", call);
            prop_assert_eq!(partials(&*state), partials(&*empty), "{:?}", call);
            feed_unwanted(&call, &mut *state, &stays);
            let mut only = fresh(&call);
            feed_unwanted(&call, &mut *only, &stays);
            prop_assert_eq!(results(&*state), results(&*only), "{:?}", call);
            (0..GROUPS as u32).for_each(|group| state.clear(group));
            prop_assert_eq!(results(&*state), results(&*empty), "{:?}", call);
            prop_assert_eq!(state.bytes(), empty.bytes(), "{:?} frees what it cleared", call);
        }
    }

    #[test]
    fn a_growing_input_needs_less_for_the_same(deltas in deltas()) {
        let inserted: Vec<Delta> = deltas.into_iter().filter(|d| d.weight > 0).collect();
        for call in calls() {
            let mut state = fresh(&call);
            let mut growing = call.function.append_only_state(&call);
            growing.resize(GROUPS);
            prop_assert_eq!(feed(&call, &mut *growing, &inserted), feed(&call, &mut *state, &inserted), "{:?}", call);
            let mut merged = call.function.append_only_state(&call);
            merged.resize(GROUPS);
            for (group, bytes) in partials(&*growing).iter().enumerate() {
                merged.merge(group as u32, bytes).expect("a partial of the same call");
            }
            prop_assert_eq!(results(&*merged), results(&*growing), "{:?}", call);
            prop_assert!(growing.bytes() <= state.bytes());
        }
    }

    #[test]
    fn wrong_bytes_are_an_error(bytes in prop::collection::vec(any::<u8>(), 0..60), deltas in deltas(), cut in any::<Index>()) {
        for call in calls() {
            let mut state = fresh(&call);
            feed_unwanted(&call, &mut *state, &deltas);
            let partial = partials(&*state).swap_remove(0);
            let mut other = fresh(&call);
            prop_assert!(other.merge(0, &partial[..cut.index(partial.len())]).is_err(), "{call:?}");
            let trailing = [&partial[..], &[0]].concat();
            prop_assert!(other.merge(0, &trailing).is_err(), "{call:?}");
            prop_assert_eq!(results(&*other), results(&*fresh(&call)), "{:?} is as before", call);
            // Other bytes do not panic, neither in merge nor in the result.
            let _ = other.merge(0, &[&[1], &bytes[..]].concat());
            let _ = (other.result(0), other.bytes(), partials(&*other));
        }
    }

    /// Weights up to the number of rows that a group may have.
    #[test]
    fn huge_weights_count(rows in prop::collection::vec((datum(), 1i64..i64::MAX / 8), 1..8)) {
        let deltas: Vec<Delta> = rows
            .into_iter()
            .map(|(datum, weight)| Delta { group: 0, weight, datum, requested: false })
            .collect();
        for call in calls() {
            let mut state = fresh(&call);
            feed_unwanted(&call, &mut *state, &deltas);
            let doc = call.function.doc();
            let present = deltas.iter().filter(|d| !d.datum.null);
            if doc.name == "count" {
                let sum = present.map(|d| d.weight).sum();
                prop_assert_eq!(results(&*state)[0].clone(), Some(Value::Int(sum)));
            } else if ["min", "max", "first", "last"].contains(&doc.name) {
                // The same rows with weight 1 have the same result.
                let once: Vec<Delta> = deltas.iter().map(|d| Delta { weight: 1, ..d.clone() }).collect();
                let mut other = fresh(&call);
                feed_unwanted(&call, &mut *other, &once);
                prop_assert_eq!(results(&*state), results(&*other), "{:?}", call);
            }
            feed_unwanted(&call, &mut *state, &reversed(&deltas));
            prop_assert_eq!(partials(&*state), partials(&*fresh(&call)), "{:?}", call);
        }
    }
}

#[test]
fn every_aggregate_is_under_these_laws() {
    let calls = calls();
    for function in AGGREGATES {
        let name = function.doc().name;
        assert!(
            calls.iter().any(|c| c.function.doc().name == name),
            "{name} is called"
        );
    }
}

#[test]
fn a_column_of_nulls_changes_nothing() {
    for call in calls() {
        let mut state = fresh(&call);
        let args = vec![Column::Nulls(2); call.args.len()];
        let mut out = ColumnBuilder::new(call.ty, 0);
        state
            .update(&[0, 1], &[1, 1], &args, &[true, false], &mut out)
            .unwrap();
        let expected = fresh(&call).result(0).unwrap();
        assert_eq!(out.finish().value(0), expected, "{call:?}");
    }
}

#[test]
fn the_sum_of_integers_fails_only_where_it_does_not_fit() {
    let call = calls()
        .into_iter()
        .find(|c| c.function.doc().name == "sum" && c.ty == Type::Int);
    let call = call.expect("sum takes integers");
    let mut state = fresh(&call);
    let mut feed = |x: i64, weight: i64, requested: bool| {
        let mut out = ColumnBuilder::new(Type::Int, 1);
        state
            .update(
                &[0],
                &[weight],
                &[Column::ints(vec![x])],
                &[requested],
                &mut out,
            )
            .map(|()| out.finish())
    };
    feed(i64::MAX, 1, false).unwrap();
    feed(i64::MAX, i64::MAX, false).unwrap();
    assert!(feed(1, 1, true).unwrap_err().help.is_some());
    feed(i64::MAX, -i64::MAX, false).unwrap();
    assert_eq!(feed(-1, 1, true).unwrap().value(0), Value::Int(i64::MAX));
}
