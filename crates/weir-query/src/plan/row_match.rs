//! [`RowMatch`]: matches of a pattern in the rows of a stream, `MATCH_RECOGNIZE`.
//!
//! The rows of a partition are in the order of their timestamps, then of further sort keys, then of
//! all columns, so that the position of a row is defined by its content.
//!
//! A row that can be the first of a match begins an attempt. The ways in which an attempt can
//! continue are ordered: an alternative before the next one, one more repetition before none, or
//! after none where the quantifier is reluctant. The match is the first way in this order that
//! completes the pattern. It is emitted as soon as no way before it is open: at the instant of the
//! row, or of the end of WITHIN, that closes the last one.

use serde::{Deserialize, Serialize};
use weir_model::{Field, Type, Unit};

use super::OrderBy;
use super::print::{call_text, order_keys, show};
use crate::expr::Expr;
use crate::function::AggregateCall;

/// Maximum number of variables of a pattern.
pub const VARIABLES_MAX: usize = 64;

/// Maximum number of positions of a pattern: of its variables, each counted as often as the
/// quantifiers repeat it.
pub const POSITIONS_MAX: usize = 256;

/// Maximum number of nested terms of a pattern.
pub const TERMS_HEIGHT_MAX: usize = 128;

/// Maximum distance of `PREV` in rows.
pub const PREVIOUS_ROWS_MAX: u32 = 1_000;

/// A pattern over the rows of a stream, and what is emitted of each match.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RowMatch {
    /// Rows that agree in all of these are a partition; NULLs agree.
    pub keys: Vec<Expr>,
    /// The order of the rows of one timestamp.
    pub order: Vec<OrderBy>,
    /// The pattern.
    pub pattern: RowPattern,
    /// The variable of which no row follows until the end of `within`, for `NOT` at the end of the
    /// pattern.
    pub absent: Option<usize>,
    /// The variables that the pattern names by their numbers.
    pub variables: Vec<PatternVariable>,
    /// The values of earlier rows of the partition that conditions read.
    pub previous: Vec<PreviousValue>,
    /// The values of rows of the match so far that conditions read.
    pub navigations: Vec<Navigation>,
    /// The results, which follow the keys in each emitted row.
    pub results: Vec<MatchResult>,
    /// Where the search continues.
    pub after: AfterMatch,
    /// A row is in a match if it arrives less than this after the first row of the match.
    pub within: Option<i64>,
}

/// A part of a pattern.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RowPattern {
    /// A row for which the condition of the variable is true.
    Variable(usize),
    /// One after the other.
    Sequence(Vec<RowPattern>),
    /// One of these, preferred in this order.
    Alternatives(Vec<RowPattern>),
    /// A number of times.
    Repeated {
        /// What is repeated; it matches at least one row.
        term: Box<RowPattern>,
        /// The least number of times.
        min: u32,
        /// The greatest number of times.
        max: Option<u32>,
        /// Whether fewer times are preferred.
        reluctant: bool,
    },
}

/// A variable of a pattern.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PatternVariable {
    /// The name.
    pub name: String,
    /// The condition, over the columns of the input, those of `previous` and those of
    /// `navigations`; without one it is true.
    pub condition: Option<Expr>,
}

/// `PREV(x, n)`: a value of an earlier row of the partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PreviousValue {
    /// The value, over the columns of the input.
    pub value: Expr,
    /// How many rows before the current one.
    pub rows: u32,
}

/// A value of a row of the match.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Navigation {
    /// Which of the rows.
    pub end: MatchEnd,
    /// The variable whose rows these are; without one all rows of the match. For a condition the
    /// current row is one of them.
    pub variable: Option<usize>,
    /// The value, over the columns of the input; NULL where there is no row.
    pub value: Expr,
}

/// One end of the rows of a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MatchEnd {
    /// The first row.
    First,
    /// The last row.
    Last,
}

/// A result of a match.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MatchResult {
    /// A value of one of its rows.
    Navigation(Navigation),
    /// An aggregate of the rows of a variable, or of all rows, in their order.
    Aggregate {
        /// The variable.
        variable: Option<usize>,
        /// The aggregate, over the columns of the input.
        call: AggregateCall,
    },
    /// The number of the match among those emitted for its partition, from 1.
    MatchNumber,
    /// The name of the variable of its last row.
    Classifier,
}

/// Where the search continues after a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AfterMatch {
    /// At the row after the last one of the match.
    PastLastRow,
    /// At the row after the first one of the match, so that matches can overlap.
    ToNextRow,
}

impl RowMatch {
    /// Its expressions over the columns of the input.
    pub fn exprs(&self) -> impl Iterator<Item = &Expr> {
        let order = self.order.iter().map(|key| &key.expr);
        let conditions = self.variables.iter().filter_map(|v| v.condition.as_ref());
        let previous = self.previous.iter().map(|previous| &previous.value);
        let navigations = self.navigations.iter().map(|navigation| &navigation.value);
        let results = self.results.iter().flat_map(|result| match result {
            MatchResult::Navigation(navigation) => std::slice::from_ref(&navigation.value),
            MatchResult::Aggregate { call, .. } => &call.args,
            MatchResult::MatchNumber | MatchResult::Classifier => &[],
        });
        let rest = previous.chain(navigations).chain(results);
        self.keys.iter().chain(order).chain(conditions).chain(rest)
    }

    /// As [`RowMatch::exprs`].
    pub fn exprs_mut(&mut self) -> impl Iterator<Item = &mut Expr> {
        let order = self.order.iter_mut().map(|key| &mut key.expr);
        let conditions = self.variables.iter_mut();
        let conditions = conditions.filter_map(|v| v.condition.as_mut());
        let previous = self.previous.iter_mut().map(|previous| &mut previous.value);
        let navigations = self.navigations.iter_mut();
        let navigations = navigations.map(|navigation| &mut navigation.value);
        let results = self.results.iter_mut().flat_map(|result| match result {
            MatchResult::Navigation(navigation) => std::slice::from_mut(&mut navigation.value),
            MatchResult::Aggregate { call, .. } => &mut call.args,
            MatchResult::MatchNumber | MatchResult::Classifier => &mut [],
        });
        let rest = previous.chain(navigations).chain(results);
        self.keys
            .iter_mut()
            .chain(order)
            .chain(conditions)
            .chain(rest)
    }

    /// Whether rows before τ - `within` have no influence on the matches after τ.
    pub fn forgets(&self) -> bool {
        let is_number = |result: &MatchResult| *result == MatchResult::MatchNumber;
        self.after == AfterMatch::ToNextRow
            && self.previous.is_empty()
            && !self.results.iter().any(is_number)
    }

    /// `first(a.ts), count(b.*) of (a b+) within 1 s ..`, for plans.
    pub(super) fn text(&self, fields: &[Field], span: &dyn Fn(i64) -> String) -> String {
        let results = self
            .results
            .iter()
            .map(|result| self.result(result, fields));
        let results = results.collect::<Vec<_>>().join(", ");
        let mut text = format!("{results} of match ({}", self.term(&self.pattern, 0));
        if let Some(absent) = self.absent {
            text += &format!(" not {}", self.variables[absent].name);
        }
        text += ")";
        if let Some(within) = self.within {
            text += &format!(" within {}", span(within));
        }
        let keys = self.keys.iter().map(|key| show(key, fields).to_string());
        let keys = keys.collect::<Vec<_>>().join(", ");
        if !keys.is_empty() {
            text += &format!(" by {keys}");
        }
        if !self.order.is_empty() {
            text += &format!(" order by ts, {}", order_keys(&self.order, fields));
        }
        if self.after == AfterMatch::ToNextRow {
            text += ", overlapping";
        }
        let columns = self.condition_columns(fields);
        for variable in &self.variables {
            if let Some(condition) = &variable.condition {
                text += &format!(", {}: {}", variable.name, show(condition, &columns));
            }
        }
        text
    }

    /// The columns that conditions read.
    pub fn condition_columns(&self, fields: &[Field]) -> Vec<Field> {
        let previous = self.previous.iter().map(|previous| {
            let (value, rows) = (show(&previous.value, fields), previous.rows);
            let name = match rows {
                1 => format!("prev({value})"),
                _ => format!("prev({value}, {rows})"),
            };
            (name, &previous.value)
        });
        let navigations = self.navigations.iter().map(|navigation| {
            let name = self.navigation(navigation, fields);
            (name, &navigation.value)
        });
        let read = previous.chain(navigations).map(|(name, value)| {
            let field = Field::new(name, value.ty()).unit(value.unit());
            field.nullable()
        });
        fields.iter().cloned().chain(read).collect()
    }

    fn of_variable(&self, variable: Option<usize>) -> String {
        variable.map_or(String::new(), |v| format!("{}.", self.variables[v].name))
    }

    fn navigation(&self, navigation: &Navigation, fields: &[Field]) -> String {
        let end = match navigation.end {
            MatchEnd::First => "first",
            MatchEnd::Last => "last",
        };
        let of = self.of_variable(navigation.variable);
        format!("{end}({of}{})", show(&navigation.value, fields))
    }

    fn result(&self, result: &MatchResult, fields: &[Field]) -> String {
        match result {
            MatchResult::Navigation(navigation) => self.navigation(navigation, fields),
            MatchResult::Aggregate { variable, call } => {
                let text = call_text(call, fields);
                text.replacen('(', &format!("({}", self.of_variable(*variable)), 1)
            }
            MatchResult::MatchNumber => "match_number()".into(),
            MatchResult::Classifier => "classifier()".into(),
        }
    }

    /// A part of the pattern, in parentheses unless it is bound more strongly than `outer`.
    fn term(&self, term: &RowPattern, outer: u8) -> String {
        let all = |terms: &[RowPattern], between: &str, inner: u8| {
            let terms = terms.iter().map(|term| self.term(term, inner));
            terms.collect::<Vec<_>>().join(between)
        };
        let (text, level) = match term {
            RowPattern::Variable(variable) => (self.variables[*variable].name.clone(), 3),
            RowPattern::Sequence(terms) => (all(terms, " ", 2), 1),
            RowPattern::Alternatives(terms) => (all(terms, " | ", 1), 0),
            RowPattern::Repeated {
                term,
                min,
                max,
                reluctant,
            } => {
                let times = quantifier(*min, *max, *reluctant);
                (format!("{}{times}", self.term(term, 3)), 2)
            }
        };
        match level < outer {
            true => format!("({text})"),
            false => text,
        }
    }
}

impl RowPattern {
    /// The least number of rows that it matches.
    pub fn rows_min(&self) -> u64 {
        match self {
            RowPattern::Variable(_) => 1,
            RowPattern::Sequence(terms) => terms
                .iter()
                .fold(0, |sum, term| sum.saturating_add(term.rows_min())),
            RowPattern::Alternatives(terms) => {
                terms.iter().map(RowPattern::rows_min).min().unwrap_or(0)
            }
            RowPattern::Repeated { term, min, .. } => {
                term.rows_min().saturating_mul(u64::from(*min))
            }
        }
    }

    /// The number of its positions.
    pub fn positions(&self) -> u64 {
        match self {
            RowPattern::Variable(_) => 1,
            RowPattern::Sequence(terms) | RowPattern::Alternatives(terms) => terms
                .iter()
                .fold(0, |sum, term| sum.saturating_add(term.positions())),
            RowPattern::Repeated { term, min, max, .. } => {
                let times = max.unwrap_or(min.saturating_add(1));
                term.positions().saturating_mul(u64::from(times))
            }
        }
    }

    /// Whether it can match any number of rows.
    pub fn is_unlimited(&self) -> bool {
        match self {
            RowPattern::Variable(_) => false,
            RowPattern::Sequence(terms) | RowPattern::Alternatives(terms) => {
                terms.iter().any(RowPattern::is_unlimited)
            }
            RowPattern::Repeated { term, max, .. } => max.is_none() || term.is_unlimited(),
        }
    }

    /// Whether every part of it is sound: its variables are among this many, what is repeated
    /// matches a row, and it is at most `height` terms deep.
    pub fn is_sound(&self, variables: usize, height: usize) -> bool {
        let Some(height) = height.checked_sub(1) else {
            return false;
        };
        match self {
            RowPattern::Variable(variable) => *variable < variables,
            RowPattern::Sequence(terms) | RowPattern::Alternatives(terms) => {
                !terms.is_empty() && terms.iter().all(|term| term.is_sound(variables, height))
            }
            RowPattern::Repeated { term, min, max, .. } => {
                let times = max.is_none_or(|max| max >= (*min).max(1));
                times && term.is_sound(variables, height) && term.rows_min() > 0
            }
        }
    }
}

impl MatchResult {
    /// Its type and unit.
    pub fn returns(&self) -> (Type, Unit) {
        match self {
            MatchResult::Navigation(navigation) => (navigation.value.ty(), navigation.value.unit()),
            MatchResult::Aggregate { call, .. } => (call.ty, call.unit),
            MatchResult::MatchNumber => (Type::Int, Unit::None),
            MatchResult::Classifier => (Type::Text, Unit::None),
        }
    }

    /// Whether it can be NULL.
    pub fn is_nullable(&self) -> bool {
        match self {
            MatchResult::Navigation(_) => true,
            MatchResult::Aggregate { call, .. } => call.function.doc().name != "count",
            MatchResult::MatchNumber | MatchResult::Classifier => false,
        }
    }
}

/// `+`, `{2,3}?`
pub fn quantifier(min: u32, max: Option<u32>, reluctant: bool) -> String {
    let times = match (min, max) {
        (0, None) => "*".into(),
        (1, None) => "+".into(),
        (0, Some(1)) => "?".into(),
        (min, None) => format!("{{{min},}}"),
        (min, Some(max)) if min == max => format!("{{{min}}}"),
        (min, Some(max)) => format!("{{{min},{max}}}"),
    };
    format!("{times}{}", if reluctant { "?" } else { "" })
}
