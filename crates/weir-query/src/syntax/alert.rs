//! The tree of CREATE ALERT, and of EXPECT, which tests alerts on a recording.

use std::fmt::{self, Display, Formatter};

use super::ast::{Duration, Ident, Item, Query, Spanned, SpannedExpr};
use super::print::Commas;

/// `CREATE ALERT name AS query [WHEN condition] [FOR d] [UNTIL [condition] [FOR d]] [LABELS ..]
/// [ANNOTATIONS ..] [ACT ..]`
#[derive(Clone, Debug, PartialEq)]
pub struct AlertDefinition {
    /// The name.
    pub name: Ident,
    /// The relation whose rows are the instances.
    pub query: Query,
    /// The condition to fire; without it, a row that is present.
    pub when: Option<SpannedExpr>,
    /// How long that must hold.
    pub hold: Option<Spanned<Duration>>,
    /// When a firing instance clears.
    pub until: Option<UntilClause>,
    /// The columns that identify an instance; none are the keys of GROUP BY.
    pub labels: Vec<Spanned<Item>>,
    /// What is reported beside them.
    pub annotations: Vec<Spanned<Item>>,
    /// What is done while an instance fires.
    pub act: Option<ActClause>,
}

/// `ACT LIMIT vm, 500 AS iops FOR 10 m [COOLDOWN 5 m] [WITNESS condition WITHIN 30 s]`
#[derive(Clone, Debug, PartialEq)]
pub struct ActClause {
    /// `limit` or `weight`.
    pub verb: Ident,
    /// The target and the setting.
    pub items: Vec<Spanned<Item>>,
    /// How long it lasts at most.
    pub hold: Spanned<Duration>,
    /// How long after its end it is not repeated for the same instance.
    pub cooldown: Option<Spanned<Duration>>,
    /// A condition that must hold within a time, or the action is undone.
    pub witness: Option<(SpannedExpr, Spanned<Duration>)>,
}

/// `UNTIL [condition] [FOR d]`
#[derive(Clone, Debug, PartialEq)]
pub struct UntilClause {
    /// The condition to clear; without it, that the condition to fire does not hold.
    pub condition: Option<SpannedExpr>,
    /// How long that must hold.
    pub hold: Option<Spanned<Duration>>,
}

/// `EXPECT [NO] alert state [AT d | BETWEEN d AND d] [WHERE label = 'value' [AND ..]]`
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    /// NO: no instance is in the state.
    pub negated: bool,
    /// The alert.
    pub alert: Ident,
    /// `pending`, `firing`, `clear` or `unknown`.
    pub state: Ident,
    /// Since the start of the recording; `None` is the whole recording.
    pub interval: Option<(Spanned<Duration>, Spanned<Duration>)>,
    /// Labels of the instances that are meant.
    pub labels: Vec<(Ident, Spanned<String>)>,
}

impl Display for AlertDefinition {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "CREATE ALERT {} AS {}", self.name, self.query)?;
        if let Some(when) = &self.when {
            write!(f, " WHEN {when}")?;
        }
        held(f, self.hold.as_ref())?;
        if let Some(until) = &self.until {
            f.write_str(" UNTIL")?;
            if let Some(condition) = &until.condition {
                write!(f, " {condition}")?;
            }
            held(f, until.hold.as_ref())?;
        }
        if !self.labels.is_empty() {
            write!(f, " LABELS {}", Commas(&self.labels))?;
        }
        if !self.annotations.is_empty() {
            write!(f, " ANNOTATIONS {}", Commas(&self.annotations))?;
        }
        match &self.act {
            Some(act) => write!(f, " {act}"),
            None => Ok(()),
        }
    }
}

impl Display for ActClause {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let verb = self.verb.value.to_uppercase();
        write!(f, "ACT {verb} {}", Commas(&self.items))?;
        held(f, Some(&self.hold))?;
        if let Some(cooldown) = &self.cooldown {
            write!(f, " COOLDOWN {}", cooldown.value)?;
        }
        if let Some((condition, within)) = &self.witness {
            write!(f, " WITNESS {condition} WITHIN {}", within.value)?;
        }
        Ok(())
    }
}

fn held(f: &mut Formatter<'_>, hold: Option<&Spanned<Duration>>) -> fmt::Result {
    match hold {
        Some(hold) => write!(f, " FOR {}", hold.value),
        None => Ok(()),
    }
}

impl Display for Expectation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let no = if self.negated { "NO " } else { "" };
        write!(f, "EXPECT {no}{} {}", self.alert, self.state)?;
        match &self.interval {
            Some((from, to)) if from == to => write!(f, " AT {}", from.value)?,
            Some((from, to)) => write!(f, " BETWEEN {} AND {}", from.value, to.value)?,
            None => {}
        }
        for (i, (label, value)) in self.labels.iter().enumerate() {
            let before = if i > 0 { "AND" } else { "WHERE" };
            write!(
                f,
                " {before} {label} = '{}'",
                value.value.replace('\'', "''")
            )?;
        }
        Ok(())
    }
}
