//! [`PublishedRows`]: the rows of a fragment in columns that other programs can read.
//!
//! A partial aggregate is a state in weir's own bytes. Where results of the same state are all that
//! a merge needs, these are published instead: a count, a sum and a count for a mean, a minimum. So
//! another engine merges them with its own sums, minima and maxima.
//!
//! Changes of a relation have no meaning for an engine without relations that change. So its
//! content is published instead, at each end of the query's windows ([`WindowEnds`]).
//!
//! What is published of a query has numbers: those of its fragments, then one for `hosts`, the
//! relation of the monitor with the hosts of the fleet, if the query reads it.

use std::borrow::Cow;

use weir_model::inventory::Row;
use weir_model::{
    Batch, Column, ColumnBuilder, Declaration, Field, Host, NANOS_PER_SECOND, Shape, Type, Unit,
};

use super::{Cut, CutError, CutOptions, PlacementStrategy, cut, number_of, renamed};
use crate::function::{AggregateCall, AggregateState, EvalError, Shared, aggregate};
use crate::plan::{Node, Plan, sliding_windows};

/// The columns that each published row has beside those of the fragment.
pub const RESERVED: [(&str, Type); 7] = [
    ("host", Type::Text),
    ("epoch", Type::Int),
    ("sequence", Type::Int),
    ("position", Type::Int),
    ("ts", Type::Int),
    ("requests", Type::Int),
    ("lost", Type::Int),
];

/// The field with the name of the rows, where a topic has those of several queries.
pub const SHARED_QUERY: &str = "query";

/// The field with the rows of a relation, where a topic has those of one.
pub const CONTENT: &str = "content";

/// The least slide at whose multiples the content of a relation is published.
const CONTENT_EVERY_MIN: i64 = NANOS_PER_SECOND / 10;

/// The column with Flink's event time.
pub(crate) const EVENT_TIME: &str = "event_time";

/// The columns that Flink adds to windows, or the statements of [`crate::flink`] do.
pub(crate) const OF_WINDOWS: [&str; 4] =
    ["window_start", "window_end", "window_time", "row_number"];

/// The aggregates whose states are published as bytes that others merge.
const MERGED_STATES: [&str; 4] = ["quantile", "approx_count_distinct", "top", "histogram"];

/// How the rows of a fragment are published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedRows {
    /// The columns, in order.
    pub columns: Vec<PublishedColumn>,
    /// For a relation, when its content is published: all rows of a host are one message then.
    pub content_at: Option<WindowEnds>,
}

/// The windows of a query, all of which end at the same instants: the multiples of their slide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowEnds {
    /// The size of the windows.
    pub size: i64,
    /// Their slide.
    pub slide: i64,
}

impl WindowEnds {
    /// Those of the query of which `plan` is a part.
    ///
    /// # Errors
    /// A clause without full stop, if it has no windows, or different ones.
    fn of(plan: &Plan) -> Result<WindowEnds, String> {
        let windows = sliding_windows(plan);
        let mut different = windows.iter();
        match (different.next(), different.next()) {
            (Some(&(_, slide)), None) if slide < CONTENT_EVERY_MIN => Err(
                "its slide is shorter than 100 ms: the content of a relation is sent at each"
                    .into(),
            ),
            (Some(&(Some(size), slide)), None) => Ok(WindowEnds { size, slide }),
            (Some((None, _)), None) => Err("its window has no end".into()),
            (None, _) => Err(
                "it has no window: the content of a relation is sent where one ends, as in \
                 [range 10 s slide 1 s]"
                    .into(),
            ),
            _ => Err(
                "it has different windows: the content of a relation is sent where those of one \
                 size and slide end"
                    .into(),
            ),
        }
    }
}

/// A published column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedColumn {
    /// Its name, unique and made of letters, digits and underscores; the type, unit and meaning.
    pub field: Field,
    origin: Origin,
}

/// What a published column is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    /// This column of the fragment.
    Column(usize),
    /// The number one.
    One,
    /// The state number `state`, in column `at` of the fragment.
    State {
        state: usize,
        at: usize,
        /// The call that owns the state, and the one whose result is published; without, the bytes
        /// of the state are.
        read: Option<(AggregateCall, AggregateCall)>,
    },
}

/// What is published of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishedState<'a> {
    /// The number of values.
    Count(&'a str),
    /// The sum of the values, NULL for none, and their number.
    Sum {
        /// The column with the sum.
        sum: &'a str,
        /// The column with the number.
        count: &'a str,
    },
    /// The least or the greatest value.
    Extreme(&'a str),
    /// The bytes of the state.
    Bytes(&'a str),
}

impl Cut {
    /// Checks that agents send all that is published.
    ///
    /// # Errors
    /// The relation of the monitor that the query reads.
    pub fn comes_from_agents(&self) -> Result<(), String> {
        match self.hosts() {
            Some(hosts) => Err(format!("{} is a relation of the monitor", hosts.name)),
            None => Ok(()),
        }
    }

    /// The declaration of `hosts`, if the part of the monitor reads it.
    pub fn hosts(&self) -> Option<&Declaration> {
        let mut sources = self.monitor.sources().into_iter();
        sources.find(|declaration| declaration.name == Host::RELATION)
    }

    /// The number of what is published.
    pub fn published_count(&self) -> usize {
        self.fragments.len() + usize::from(self.hosts().is_some())
    }

    /// The plan whose rows are published with this number.
    ///
    /// # Panics
    /// When nothing has this number.
    pub fn published(&self, number: usize) -> Cow<'_, Plan> {
        match self.fragments.get(number) {
            Some(fragment) => Cow::Borrowed(&fragment.plan),
            None => {
                let hosts = self.hosts().expect("it has the number after the fragments");
                Cow::Owned(Plan::of_source(hosts.clone()))
            }
        }
    }

    /// The plan of the monitor over what is published; `names[i]` is the name of the source for
    /// what has number `i`.
    pub fn monitor_over_published(&self, names: &[String]) -> Plan {
        renamed(&self.monitor, &|name| {
            let number = match name == Host::RELATION {
                true => self.fragments.len(),
                false => number_of(name)?,
            };
            names.get(number).cloned()
        })
    }
}

impl PublishedRows {
    /// How the rows with this number are published.
    ///
    /// # Errors
    /// Why they cannot be: a clause without full stop.
    pub fn of(cut: &Cut, number: usize) -> Result<PublishedRows, String> {
        let fragment = &*cut.published(number);
        let content_at = match fragment.shape {
            Shape::Stream => None,
            Shape::Relation => Some(WindowEnds::of(&cut.monitor)?),
        };
        let mut columns = Vec::new();
        let fields = &fragment.schema.fields;
        let mut add = |field: &Field, suffix: &str, ty: Type, unit: Unit, origin: Origin| {
            let name = unique(&format!("{}{suffix}", field.name), &columns);
            let doc = match suffix {
                "" => field.doc.clone(),
                _ => field.name.clone(),
            };
            columns.push(PublishedColumn {
                field: Field::new(&name, ty).unit(unit).doc(&doc),
                origin,
            });
        };
        let Node::Partial { keys, calls, .. } = &fragment.node else {
            for (at, field) in fields.iter().enumerate() {
                if field.ty == Type::Tally {
                    return Err(format!("column `{}` is a {}", field.name, field.ty));
                }
                add(field, "", field.ty, field.unit, Origin::Column(at));
            }
            if content_at.is_some() && columns.is_empty() {
                // Only their number is read.
                columns.push(PublishedColumn {
                    field: Field::new("one", Type::Int),
                    origin: Origin::One,
                });
            }
            return Ok(PublishedRows {
                columns,
                content_at,
            });
        };
        for (at, field) in fields.iter().enumerate().take(keys.len()) {
            add(field, "", field.ty, field.unit, Origin::Column(at));
        }
        for (state, owner) in Shared::of(calls).owners.into_iter().enumerate() {
            let (at, owner) = (keys.len() + state, &calls[owner]);
            let reads = reads(owner);
            if reads.is_empty() {
                let read = None;
                let origin = Origin::State { state, at, read };
                add(&fields[at], "_state", Type::Partial, Unit::None, origin);
            }
            for (suffix, read) in reads {
                let (ty, unit) = (read.ty, read.unit);
                let read = Some((owner.clone(), read));
                let origin = Origin::State { state, at, read };
                add(&fields[at], suffix, ty, unit, origin);
            }
        }
        Ok(PublishedRows {
            columns,
            content_at,
        })
    }

    /// The columns of rows of the plan.
    ///
    /// # Errors
    /// When a state is not valid, or a sum of it does not fit in 64 bits.
    pub fn columns_of(&self, batch: &Batch) -> Result<Vec<Column>, EvalError> {
        let groups = u32::try_from(batch.len()).expect("a message has fewer rows");
        let mut merged: Option<(usize, Box<dyn AggregateState>)> = None;
        let mut published = Vec::with_capacity(self.columns.len());
        for column in &self.columns {
            let (at, owner, read) = match &column.origin {
                Origin::Column(at) | Origin::State { at, read: None, .. } => {
                    published.push(batch.columns[*at].clone());
                    continue;
                }
                Origin::One => {
                    published.push(Column::ints(vec![1; batch.len()]));
                    continue;
                }
                Origin::State {
                    at,
                    read: Some((owner, read)),
                    ..
                } => (*at, owner, read),
            };
            // Columns of one state follow each other.
            let state = match &mut merged {
                Some((of, state)) if *of == at => state,
                merged => &mut merged.insert((at, states(owner, &batch.columns[at])?)).1,
            };
            let mut values = ColumnBuilder::new(column.field.ty, batch.len());
            for group in 0..groups {
                values.push(state.result_of(read, group)?);
            }
            published.push(values.finish());
        }
        Ok(published)
    }

    /// The names of the first `keys` columns.
    pub fn keys(&self, keys: usize) -> impl Iterator<Item = &str> {
        self.columns[..keys].iter().map(|c| c.field.name.as_str())
    }

    /// What is published of the state with this number.
    pub fn state(&self, number: usize) -> PublishedState<'_> {
        let is_of_it = |c: &&PublishedColumn| matches!(&c.origin, Origin::State { state, .. } if *state == number);
        let columns: Vec<&PublishedColumn> = self.columns.iter().filter(is_of_it).collect();
        let name = columns[0].field.name.as_str();
        match (&columns[0].origin, columns.get(1)) {
            (Origin::State { read: None, .. }, _) => PublishedState::Bytes(name),
            (_, Some(count)) => PublishedState::Sum {
                sum: name,
                count: &count.field.name,
            },
            (
                Origin::State {
                    read: Some((_, read)),
                    ..
                },
                None,
            ) if read.function.doc().name == "count" => PublishedState::Count(name),
            _ => PublishedState::Extreme(name),
        }
    }
}

/// Cuts a query so that what its agents send can be merged by others: into partials where all of
/// their states can be, otherwise into rows.
///
/// # Errors
/// As [`cut`].
pub fn cut_to_publish(plan: &Plan, options: &CutOptions) -> Result<Cut, CutError> {
    let by = |strategy| {
        let hint = Some(strategy);
        cut(
            plan,
            &CutOptions {
                hint,
                ..options.clone()
            },
        )
    };
    match by(PlacementStrategy::Partials) {
        Ok(cut) if cut.fragments.iter().all(|f| is_merged_by_others(&f.plan)) => Ok(cut),
        _ => by(PlacementStrategy::Rows),
    }
}

/// Cuts a query for others by this strategy, or by that of [`cut_to_publish`].
///
/// # Errors
/// As [`cut`].
pub fn cut_published(plan: &Plan, strategy: Option<PlacementStrategy>) -> Result<Cut, CutError> {
    let options = CutOptions {
        hint: strategy,
        ..CutOptions::default()
    };
    match strategy {
        Some(_) => cut(plan, &options),
        None => cut_to_publish(plan, &options),
    }
}

/// Whether others merge all states of a fragment: those that are numbers, and those for which there
/// are functions in `packaging/flink`.
fn is_merged_by_others(fragment: &Plan) -> bool {
    let Node::Partial { calls, .. } = &fragment.node else {
        return true;
    };
    let is_merged = |call: &AggregateCall| MERGED_STATES.contains(&call.function.doc().name);
    let mut owners = Shared::of(calls).owners.into_iter().map(|at| &calls[at]);
    owners.all(|owner| is_merged(owner) || !reads(owner).is_empty())
}

/// The states of a column, each in a group of its own; partials are states over what is only added.
fn states(owner: &AggregateCall, column: &Column) -> Result<Box<dyn AggregateState>, EvalError> {
    let mut state = owner.function.append_only_state(owner);
    state.resize(column.len());
    let Column::Bytes(bytes) = column else {
        return Err(EvalError::new(
            "a column of partial aggregates has another type",
        ));
    };
    for (group, bytes) in (0..).zip(bytes) {
        state.merge(group, bytes.unwrap_or_default())?;
    }
    Ok(state)
}

/// The calls whose results are published instead of the state that `owner` owns, each with the end
/// of its column's name; none where only the state can be merged.
fn reads(owner: &AggregateCall) -> Vec<(&'static str, AggregateCall)> {
    let other = |name: &str, ty: Type, unit: Unit| AggregateCall {
        function: aggregate::find(name).expect("it is a function of CQL"),
        ty,
        unit,
        ..owner.clone()
    };
    match owner.function.doc().name {
        "count" => vec![("", owner.clone())],
        "min" | "max" if owner.ty != Type::Bool => vec![("", owner.clone())],
        "sum" | "avg" => {
            let of = &owner.args[0];
            let number = matches!(of.ty(), Type::Int | Type::Float);
            let sum = other("sum", of.ty(), of.unit());
            let count = other("count", Type::Int, Unit::None);
            match number && [&sum, &count].iter().all(|call| call.shares(owner)) {
                true => vec![("_sum", sum), ("_count", count)],
                false => Vec::new(),
            }
        }
        _ => Vec::new(),
    }
}

/// A name of letters, digits and underscores that no other column has.
fn unique(name: &str, columns: &[PublishedColumn]) -> String {
    let mut plain = String::new();
    for c in name.chars() {
        match c.is_ascii_alphanumeric() {
            true => plain.push(c.to_ascii_lowercase()),
            false if plain.is_empty() || plain.ends_with('_') => {}
            false => plain.push('_'),
        }
    }
    let mut plain = plain.trim_end_matches('_').to_owned();
    if plain.is_empty() || plain.starts_with(|c: char| c.is_ascii_digit()) {
        plain.insert_str(0, "c_");
    }
    let is_taken = |name: &str| {
        let is_reserved =
            RESERVED.iter().any(|(own, _)| *own == name) || OF_WINDOWS.contains(&name);
        is_reserved || name == EVENT_TIME || columns.iter().any(|column| column.field.name == name)
    };
    let others = (2..).map(|i| format!("{plain}_{i}"));
    let mut candidates = std::iter::once(plain.clone()).chain(others);
    candidates.find(|name| !is_taken(name)).expect("endless")
}
