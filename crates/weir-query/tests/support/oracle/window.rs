//! Windows, as filters over all earlier rows.

use std::collections::BTreeMap;

use weir_model::Value;
use weir_query::plan::Window;

use super::expr;
use crate::support::Row;
use weir_query::window::{Delayed, Partition, Range, Rows, Sessions, Since, Unbounded};

/// The content of `window` at the last of `instants`; `rows[i]` arrived at `instants[i]`.
pub fn content(window: &Window, instants: &[i64], rows: &[Vec<Row>]) -> Result<Vec<Row>, String> {
    let now = *instants.last().expect("there is an instant to look at");
    let seen_from = |slide: &Option<i64>| match slide {
        None => now,
        Some(slide) => now - now.rem_euclid(*slide),
    };
    let all = || {
        instants
            .iter()
            .zip(rows)
            .flat_map(|(ts, rows)| rows.iter().map(move |r| (*ts, r)))
    };
    let between = |above: Option<i64>, upto: i64| -> Vec<Row> {
        all()
            .filter(|(ts, _)| *ts <= upto && above.is_none_or(|above| *ts > above))
            .map(|(_, row)| row.clone())
            .collect()
    };
    Ok(match window {
        Window::Now(_) => between(Some(now - 1), now),
        Window::Range(Range { size, slide }) => {
            let upto = seen_from(slide);
            between(upto.checked_sub(*size), upto)
        }
        Window::Delayed(Delayed {
            range: Range { size, slide },
            delay,
        }) => {
            let upto = seen_from(slide).checked_sub(*delay);
            upto.map_or(Vec::new(), |upto| between(upto.checked_sub(*size), upto))
        }
        Window::Sessions(Sessions { gap, keys }) => {
            let mut sessions: BTreeMap<Row, (i64, Vec<Row>)> = BTreeMap::new();
            for (ts, row) in all().filter(|(ts, _)| *ts <= now) {
                let (last, held) = sessions.entry(expr::all(keys, row)?).or_default();
                if !held.is_empty() && last.saturating_add(*gap) <= ts {
                    held.clear();
                }
                *last = ts;
                held.push(row.clone());
            }
            let open = sessions.into_values();
            let open = open.filter(|(last, _)| last.saturating_add(*gap) > now);
            open.flat_map(|(_, held)| held).collect()
        }
        Window::Unbounded(Unbounded { slide }) => between(None, seen_from(slide)),
        Window::Since(Since {
            origin,
            size,
            slide,
        }) => {
            let upto = seen_from(slide);
            let oldest = size.and_then(|size| upto.checked_sub(size));
            let mut held = Vec::new();
            for (ts, row) in all().filter(|(ts, _)| *ts <= upto) {
                let origin = match &expr::all(std::slice::from_ref(origin), row)?[0] {
                    Value::Int(origin) => *origin,
                    _ => continue,
                };
                if origin <= ts && oldest.is_none_or(|oldest| origin > oldest) {
                    held.push(row.clone());
                }
            }
            held
        }
        Window::Rows(Rows { rows }) => {
            let everything = between(None, now);
            let keep = usize::try_from(*rows).unwrap_or(usize::MAX);
            everything[everything.len().saturating_sub(keep)..].to_vec()
        }
        Window::Partition(Partition { keys, rows }) => {
            let everything = between(None, now);
            let mut later: BTreeMap<Row, u64> = BTreeMap::new();
            let mut kept = Vec::new();
            for row in everything.into_iter().rev() {
                let count = later.entry(expr::all(keys, &row)?).or_default();
                *count += 1;
                if *count <= *rows {
                    kept.push(row);
                }
            }
            kept.reverse();
            kept
        }
    })
}
