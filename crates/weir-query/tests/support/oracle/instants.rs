//! The instants at which the result of a query can change.

use std::collections::BTreeSet;

use weir_query::plan::{GlobalGroup, Node, Plan, ToStream, Window};

use crate::support::history::History;
use weir_query::window::{Delayed, Range, Sessions, Since, Unbounded};

/// Every instant up to the end of `history` at which the result of `plan` can change, ascending.
pub fn of(plan: &Plan, history: &History) -> Vec<i64> {
    let mut instants = changes(plan, history);
    instants.retain(|ts| *ts <= history.end);
    instants.into_iter().collect()
}

/// The instants at which rows of a source enter: when they arrive, through a window with a delay
/// that much later, and through one with a slide at the next multiple.
pub fn arrivals(plan: &Plan, history: &History) -> BTreeSet<i64> {
    let inputs = plan.inputs();
    let below = inputs.iter().flat_map(|p| arrivals(p, history));
    match &plan.node {
        Node::Source(source) => {
            let elements = history.source(&source.name);
            elements.iter().map(|e| e.ts).collect()
        }
        Node::Window {
            window:
                Window::Range(Range {
                    slide: Some(slide), ..
                })
                | Window::Since(Since {
                    slide: Some(slide), ..
                })
                | Window::Unbounded(Unbounded { slide: Some(slide) }),
            ..
        } => below.map(|ts| round_up(ts, *slide)).collect(),
        Node::Window {
            window: Window::Delayed(Delayed { range, delay }),
            ..
        } => below
            .map(|ts| ts.saturating_add(*delay))
            .map(|ts| range.slide.map_or(ts, |slide| round_up(ts, slide)))
            .collect(),
        _ => below.collect(),
    }
}

fn changes(plan: &Plan, history: &History) -> BTreeSet<i64> {
    let mut below: BTreeSet<i64> = plan
        .inputs()
        .iter()
        .flat_map(|p| changes(p, history))
        .collect();
    match &plan.node {
        Node::Source(_) => arrivals(plan, history),
        // Its content depends on values: any instant is possible.
        Node::Window {
            window: Window::Since(_),
            ..
        } => match below.first() {
            Some(first) => (*first..=history.end).collect(),
            None => below,
        },
        Node::Window { window, .. } => {
            let more: Vec<i64> = below.iter().flat_map(|ts| due(window, *ts)).collect();
            below.extend(more);
            below
        }
        Node::Match { by, .. } => {
            let within = by.within.iter();
            let ends: Vec<i64> = within
                .flat_map(|within| below.iter().map(|ts| ts.saturating_add(*within)))
                .collect();
            below.extend(ends);
            below
        }
        Node::ToStream {
            kind: ToStream::Rstream { every: Some(every) },
            ..
        } => {
            if let Some(first) = below.first() {
                let mut tick = round_up(*first, *every);
                while tick <= history.end {
                    below.insert(tick);
                    tick += every;
                }
            }
            below
        }
        Node::Aggregate {
            keys,
            global: GlobalGroup::FromStart,
            ..
        } if keys.is_empty() => {
            below.extend(history.begin);
            below
        }
        _ => below,
    }
}

/// When a row of instant `ts` enters a window and when it leaves.
fn due(window: &Window, ts: i64) -> Vec<i64> {
    match window {
        Window::Now(_) => vec![ts, ts.saturating_add(1)],
        Window::Range(Range { size, slide: None }) => vec![ts, ts.saturating_add(*size)],
        Window::Range(Range {
            size,
            slide: Some(slide),
        }) => vec![
            round_up(ts, *slide),
            round_up(ts.saturating_add(*size), *slide),
        ],
        Window::Delayed(Delayed { range, delay }) => {
            due(&Window::from(range.clone()), ts.saturating_add(*delay))
        }
        Window::Sessions(Sessions { gap, .. }) => vec![ts, ts.saturating_add(*gap)],
        Window::Unbounded(Unbounded { slide: Some(slide) }) => vec![round_up(ts, *slide)],
        Window::Unbounded(Unbounded { slide: None })
        | Window::Since(_)
        | Window::Rows(_)
        | Window::Partition(_) => vec![ts],
    }
}

/// The first multiple of `step` at or after `ts`.
fn round_up(ts: i64, step: i64) -> i64 {
    let rest = ts.rem_euclid(step);
    if rest == 0 {
        ts
    } else {
        ts.saturating_add(step - rest)
    }
}
