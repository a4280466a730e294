//! [`Plan`]: a group-by that kernel programs compute, and what they keep for it.

use std::time::Duration;

use weir_model::{Demand, FoldCall, Nanos, PartialKind, Type};

use super::layout::{self, FOLDS, LIMITS_ALL, LOG_BITS, keep};

/// A value of an event that the programs aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelMeasure {
    /// Its number there.
    pub number: u8,
    /// It may be negative.
    pub is_signed: bool,
}

/// A fold that runs in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The demand that it serves.
    pub demand: usize,
    /// Intervals end at its multiples.
    pub interval: Nanos,
    /// The types of the key columns, in the demand's order.
    pub key_types: Vec<Type>,
    /// The aggregates, in the demand's order: the number of rows, or the position of one of the
    /// kernel's calls.
    pub calls: Vec<Call>,
    /// The configuration of the kernel side.
    pub kernel: layout::Fold,
}

/// The kernel's counterpart of one call of a demand's fold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Counts all rows.
    Rows,
    /// Counts no rows.
    None,
    /// The value of this one of the kernel's calls.
    Kept(usize),
}

/// A clause of the kernel's selection, as folds need to know it.
#[derive(Clone, Copy, Debug)]
pub struct Selected {
    /// The demands that it serves, a bit each.
    pub demands: u64,
    /// Whether it passes exactly the demanded rows.
    pub exact: bool,
}

impl Plan {
    /// The fold of demand `number`; `measure` is a column's measure, if the programs
    /// keep it. Key bits and clauses are to be added.
    ///
    /// # Panics
    /// Without a fold.
    pub fn new(
        number: usize,
        demand: &Demand,
        key_types: Vec<Type>,
        measure: impl Fn(usize) -> Option<KernelMeasure>,
    ) -> Plan {
        let fold = demand.fold.as_ref().expect("the demand has a fold");
        let mut kernel = layout::Fold {
            interval_ns: fold.interval as u64,
            keys: 0,
            clauses: 0,
            flag: 0,
            calls: Vec::new(),
        };
        let calls = fold.calls.iter();
        let calls = calls
            .map(|c| call(c, &measure, &mut kernel.calls))
            .collect();
        Plan {
            demand: number,
            interval: fold.interval,
            key_types,
            calls,
            kernel,
        }
    }

    /// Adds the clauses of its demand.
    ///
    /// # Errors
    /// If the kernel does not select its rows exactly.
    pub fn select(&mut self, clauses: impl Iterator<Item = Selected>) -> Result<(), String> {
        let own = 1u64 << self.demand;
        for (i, clause) in clauses.enumerate() {
            if clause.demands & own == 0 {
                continue;
            }
            if clause.demands != own || !clause.exact {
                return Err("the kernel cannot test all conditions of the selection".into());
            }
            self.kernel.clauses |= 1 << i;
        }
        match self.kernel.clauses {
            0 => Err("no row passes".into()),
            _ => Ok(()),
        }
    }

    /// Whether the programs have room for it beside these plans.
    ///
    /// # Errors
    /// Why not.
    pub fn fits<'a>(&self, others: impl Iterator<Item = &'a Plan>) -> Result<(), String> {
        let (mut folds, mut limits) = (1, self.kernel.limit_slots());
        for other in others {
            folds += 1;
            limits += other.kernel.limit_slots();
        }
        if folds > FOLDS {
            return Err(format!("{FOLDS} are computed at a time at most"));
        }
        if limits > LIMITS_ALL {
            return Err(format!(
                "the histograms of a source have {LIMITS_ALL} limits at most"
            ));
        }
        Ok(())
    }

    /// A description; `keys` are its key columns, `measure` names a measure.
    pub fn line(&self, keys: &[&str], measure: impl Fn(u8) -> &'static str) -> String {
        let by = match keys.is_empty() {
            true => String::new(),
            false => format!(" by {}", keys.join(", ")),
        };
        let kept = self.kernel.calls.iter().map(|call| {
            let name = measure(call.measure);
            match call.keep {
                keep::MOMENTS => format!("{name}: count, sum, min, max"),
                keep::LIMITS => format!("{name}: counts under {} limits", call.limits.len()),
                _ => format!("{name}: counts in {} bins per power of two", 1 << LOG_BITS),
            }
        });
        let kept: Vec<String> = std::iter::once("number".to_owned()).chain(kept).collect();
        let every = Duration::from_nanos(self.interval as u64);
        format!("groups{by} each {every:?} ({})", kept.join("; "))
    }
}

/// The interval at which rings are read, for a requested `poll_interval`: at least twice in the
/// shortest interval, so that one is always open.
pub fn poll_interval<'a>(
    plans: impl Iterator<Item = &'a Plan>,
    poll_interval: Duration,
) -> Duration {
    let quarter = plans.map(|p| Duration::from_nanos(p.interval as u64 / 4));
    quarter.fold(poll_interval, Duration::min)
}

/// The line of a fold that does not run in the kernel.
pub fn declined(why: &String) -> String {
    format!("agent: computes the groups; {why}")
}

/// Maps `call` to the kernel; `calls` are its calls so far.
fn call(
    call: &FoldCall,
    measure: &impl Fn(usize) -> Option<KernelMeasure>,
    calls: &mut Vec<layout::Call>,
) -> Call {
    let Some(column) = call.column else {
        return Call::Rows;
    };
    let Some(KernelMeasure { number, is_signed }) = measure(column) else {
        return Call::None;
    };
    let (keep, limits) = match &call.keep {
        PartialKind::Moments => (keep::MOMENTS, Vec::new()),
        PartialKind::Limits(limits) => (keep::LIMITS, limits.clone()),
        PartialKind::LogLinear { .. } => (keep::LOG_LINEAR, Vec::new()),
    };
    let moments = calls.iter().filter(|c| c.keep == keep::MOMENTS).count();
    let place = match keep {
        keep::MOMENTS => moments as u8,
        _ => 0,
    };
    let same = |c: &layout::Call| (c.measure, c.keep, &c.limits) == (number, keep, &limits);
    let at = calls.iter().position(same).unwrap_or(calls.len());
    if at == calls.len() {
        calls.push(layout::Call {
            measure: number,
            keep,
            place,
            is_signed,
            limits,
        });
    }
    Call::Kept(at)
}
