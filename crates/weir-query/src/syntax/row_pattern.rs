//! `MATCH_RECOGNIZE`: the abstract syntax of patterns over rows, and its text.

use std::fmt::{self, Display, Formatter};

use super::ast::{Duration, Ident, OrderItem, Spanned, SpannedExpr, TableRef, WindowClause};
pub use crate::plan::row_match::AfterMatch;
use crate::plan::row_match::quantifier;

/// `S MATCH_RECOGNIZE (..) [window] AS x`
#[derive(Clone, Debug, PartialEq)]
pub struct MatchSource {
    /// The source in which rows are matched.
    pub input: Box<TableRef>,
    /// The clause.
    pub clause: MatchClause,
    /// The window over the stream of matches.
    pub window: Option<WindowClause>,
    /// The alias.
    pub alias: Option<Ident>,
}

/// `MATCH_RECOGNIZE (PARTITION BY .. ORDER BY .. MEASURES .. PATTERN (..) WITHIN .. DEFINE ..)`
#[derive(Clone, Debug, PartialEq)]
pub struct MatchClause {
    /// PARTITION BY
    pub partition: Vec<SpannedExpr>,
    /// ORDER BY
    pub order_by: Vec<OrderItem>,
    /// MEASURES, each with its name.
    pub measures: Vec<(SpannedExpr, Ident)>,
    /// AFTER MATCH SKIP
    pub after: AfterMatch,
    /// PATTERN
    pub pattern: Spanned<PatternTerm>,
    /// WITHIN
    pub within: Option<Spanned<Duration>>,
    /// DEFINE: variables and their conditions.
    pub definitions: Vec<(Ident, SpannedExpr)>,
}

/// A part of a pattern.
#[derive(Clone, Debug, PartialEq)]
pub enum PatternTerm {
    /// `A`: a row.
    Variable(Ident),
    /// `NOT A`: no such row.
    Absent(Ident),
    /// `A B`: one after the other; two at least.
    Sequence(Vec<Spanned<PatternTerm>>),
    /// `A | B`: one of these, the first one preferred; two at least.
    Alternatives(Vec<Spanned<PatternTerm>>),
    /// `A+`, `A{2,3}?`
    Repeated {
        /// A
        term: Box<Spanned<PatternTerm>>,
        /// The least number of times.
        min: u32,
        /// The greatest number of times.
        max: Option<u32>,
        /// `?` after the quantifier: fewer times are preferred.
        reluctant: bool,
    },
}

impl PatternTerm {
    /// How strongly its parts are bound: alternatives 0, a sequence 1, a repetition 2, the rest 3.
    fn precedence(&self) -> u8 {
        match self {
            PatternTerm::Alternatives(_) => 0,
            PatternTerm::Sequence(_) => 1,
            PatternTerm::Repeated { .. } => 2,
            PatternTerm::Variable(_) | PatternTerm::Absent(_) => 3,
        }
    }

    /// Its text as a part that must be bound more strongly than `outer`.
    fn inside(&self, f: &mut Formatter<'_>, outer: u8) -> fmt::Result {
        match self.precedence() > outer {
            true => write!(f, "{self}"),
            false => write!(f, "({self})"),
        }
    }
}

impl Display for PatternTerm {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            PatternTerm::Variable(name) => write!(f, "{name}"),
            PatternTerm::Absent(name) => write!(f, "NOT {name}"),
            PatternTerm::Sequence(terms) => {
                for (i, term) in terms.iter().enumerate() {
                    f.write_str(if i > 0 { " " } else { "" })?;
                    term.value.inside(f, 1)?;
                }
                Ok(())
            }
            PatternTerm::Alternatives(terms) => {
                for (i, term) in terms.iter().enumerate() {
                    f.write_str(if i > 0 { " | " } else { "" })?;
                    term.value.inside(f, 0)?;
                }
                Ok(())
            }
            PatternTerm::Repeated {
                term,
                min,
                max,
                reluctant,
            } => {
                term.value.inside(f, 2)?;
                f.write_str(&quantifier(*min, *max, *reluctant))
            }
        }
    }
}

impl Display for MatchClause {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let list = |items: Vec<String>| items.join(", ");
        f.write_str("MATCH_RECOGNIZE (")?;
        if !self.partition.is_empty() {
            let keys = self.partition.iter().map(SpannedExpr::to_string);
            write!(f, "PARTITION BY {} ", list(keys.collect()))?;
        }
        if !self.order_by.is_empty() {
            let keys = self.order_by.iter().map(OrderItem::to_string);
            write!(f, "ORDER BY {} ", list(keys.collect()))?;
        }
        if !self.measures.is_empty() {
            let measures = self
                .measures
                .iter()
                .map(|(x, name)| format!("{x} AS {name}"));
            write!(f, "MEASURES {} ", list(measures.collect()))?;
        }
        let after = match self.after {
            AfterMatch::PastLastRow => "PAST LAST ROW",
            AfterMatch::ToNextRow => "TO NEXT ROW",
        };
        write!(f, "ONE ROW PER MATCH AFTER MATCH SKIP {after} ")?;
        write!(f, "PATTERN ({})", self.pattern.value)?;
        if let Some(within) = &self.within {
            write!(f, " WITHIN {}", within.value)?;
        }
        if !self.definitions.is_empty() {
            let all = self
                .definitions
                .iter()
                .map(|(name, x)| format!("{name} AS {x}"));
            write!(f, " DEFINE {}", list(all.collect()))?;
        }
        f.write_str(")")
    }
}
