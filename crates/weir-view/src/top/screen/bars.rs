//! A disk's histograms as bars: latency, size, seek distance, side by side or one below the other.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use weir_sink::text::shown;

use super::ink::Styles;
use crate::top::figures::Figure;
use crate::top::gather::Bars;
use crate::top::queries::{DiskHistogram, HISTOGRAMS};
use crate::top::state::State;
use weir_sink::plot::Ink;

/// Minimum width of a panel.
const PANEL_MIN: u16 = 24;

/// The width of a limit and of a percentage beside a bar.
const LABEL: usize = 8;
const SHARE: usize = 5;

/// Draws the histograms of the selected op.
pub fn draw(state: &State, ink: Ink, area: Rect, buffer: &mut Buffer) {
    if area.height == 0 {
        return;
    }
    let all = &state.tick.bars;
    let room = usize::from(area.width);
    if all.is_empty() {
        let text = format!(
            "histograms of the last {:?}: no requests yet",
            state.histogram_span()
        );
        buffer.set_stringn(area.x, area.y, text, room, ink.faint());
        return;
    }
    let chosen = &all[state.op % all.len()];
    let tab = |(i, bars): (usize, &Bars)| {
        let op = bars.op.map_or("?", |op| op.as_str());
        let least = match state.tick.lower_bound {
            true => ">=",
            false => "",
        };
        let text = format!("{} {least}{}", shown(op), Figure::Count.show(bars.requests));
        match i == state.op % all.len() {
            true => format!("[{text}]"),
            false => format!(" {text} "),
        }
    };
    let tabs: Vec<String> = all.iter().enumerate().map(tab).collect();
    let title = format!(
        "requests of the last {:?}: {}",
        state.histogram_span(),
        tabs.join(" ")
    );
    buffer.set_style(Rect::new(area.x, area.y, area.width, 1), ink.header());
    buffer.set_stringn(area.x, area.y, title, room, ink.header());
    let body = Rect::new(area.x, area.y + 1, area.width, area.height - 1);
    let panels = (body.width / PANEL_MIN).clamp(1, HISTOGRAMS.len() as u16);
    for (i, histogram) in HISTOGRAMS.iter().enumerate() {
        let width = body.width / panels;
        let (column, row) = (i as u16 % panels, i as u16 / panels);
        let rows = (HISTOGRAMS.len() as u16).div_ceil(panels);
        let height = body.height / rows;
        let (x, y) = (body.x + column * width, body.y + row * height);
        let found = chosen.histograms.get(i).map_or(&[][..], Vec::as_slice);
        let place = Rect::new(x, y, width, height);
        panel(histogram, &buckets(histogram, found), ink, place, buffer);
    }
}

/// All buckets from the first to the last that is not empty, each with its label.
fn buckets(histogram: &DiskHistogram, found: &[(Option<f64>, i64)]) -> Vec<(String, i64)> {
    let limit = |i: usize| (histogram.limits[i] * histogram.unit.0) as f64;
    let count = |limit: Option<f64>| {
        let here = found.iter().filter(|(l, _)| *l == limit);
        here.map(|(_, n)| n).sum()
    };
    let show = |x| histogram.figure.show(Some(x));
    let last = histogram.limits.len() - 1;
    let mut all: Vec<(String, i64)> = (0..=last)
        .map(|i| (format!("<={}", show(limit(i))), count(Some(limit(i)))))
        .collect();
    all.push((format!(">{}", show(limit(last))), count(None)));
    let holds = |(_, n): &(String, i64)| *n > 0;
    let first = all.iter().position(holds).unwrap_or(all.len());
    let end = all.iter().rposition(holds).map_or(first, |i| i + 1);
    all[first..end].to_vec()
}

/// One histogram, a line for each bucket.
fn panel(
    histogram: &DiskHistogram,
    buckets: &[(String, i64)],
    ink: Ink,
    area: Rect,
    buffer: &mut Buffer,
) {
    if area.height == 0 {
        return;
    }
    let width = usize::from(area.width.saturating_sub(2));
    let x = area.x + 1;
    buffer.set_stringn(x, area.y, histogram.title, width, ink.title());
    let total: i64 = buckets.iter().map(|(_, n)| n).sum();
    let most = buckets.iter().map(|(_, n)| *n).max().unwrap_or(0);
    let bar_room = width.saturating_sub(LABEL + SHARE + 2);
    // If there are too many, the last ones are shown: the slow, the large, the far.
    let room = usize::from(area.height - 1);
    let buckets = &buckets[buckets.len().saturating_sub(room)..];
    for (y, (label, count)) in (area.y + 1..area.bottom()).zip(buckets) {
        let share = 100.0 * *count as f64 / total.max(1) as f64;
        let share = match share < 9.95 {
            true => format!("{share:.1}%"),
            false => format!("{share:.0}%"),
        };
        let text = format!("{label:>LABEL$} {share:>SHARE$} ");
        buffer.set_stringn(x, y, text, width, Style::new());
        if bar_room > 0 {
            let bar = ink.bar_of(*count as f64 / most.max(1) as f64, bar_room);
            buffer.set_stringn(x + (LABEL + SHARE + 2) as u16, y, bar, bar_room, ink.bar());
        }
    }
}
