//! Windows: which rows of a stream are in a relation, each entering and leaving at its exact
//! instant.

mod merge;
mod partition;
mod range;
mod rows;
mod schedule;
mod since;
#[cfg(test)]
mod tests;

use super::operator::Operator;
use crate::plan::Window;
use weir_model::Schema;

/// The operator of a window over a stream of this schema. The query that needs it receives no rows
/// up to instant `after`.
pub(super) fn window(window: &Window, schema: &Schema, after: i64) -> Box<dyn Operator> {
    match window {
        // Instants are integers: the rows at τ are those in (τ - 1, τ].
        Window::Now => Box::new(range::Range::new(Some(1), None)),
        Window::Range { size, slide } => Box::new(range::Range::new(Some(*size), *slide)),
        Window::Since {
            origin,
            size,
            slide,
        } => Box::new(since::Since::new(origin, *size, *slide, after, schema)),
        Window::Rows { rows } => Box::new(rows::Rows::new(*rows)),
        Window::Partition { keys, rows } => {
            Box::new(partition::Partition::new(keys, *rows, schema))
        }
        Window::Unbounded { slide } => Box::new(range::Range::new(None, *slide)),
    }
}

/// `ts` rounded up to a multiple of `slide`.
pub(super) fn round_up(ts: i64, slide: Option<i64>) -> i64 {
    let Some(slide) = slide else { return ts };
    match ts.rem_euclid(slide) {
        0 => ts,
        rest => ts.saturating_add(slide - rest),
    }
}

/// `ts` rounded down to a multiple of `slide`.
fn round_down(ts: i64, slide: Option<i64>) -> i64 {
    match slide {
        None => ts,
        Some(slide) => ts.saturating_sub(ts.rem_euclid(slide)),
    }
}
