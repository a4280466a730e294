//! A histogram as vertical bars, several series side by side, as figures 2, 3 and 5 of Ahmad 2007.

use super::Picture;
use super::frame::{Frame, Marks, Side, TICKS_Y, series_class};
use crate::plot::scale::Scale;
use crate::plot::{HistogramPlot, PlotAxis, Quantity, thousands};

/// Draws a histogram. A single series is drawn in absolute numbers; several as shares of their own
/// totals, so that shapes can be compared.
pub fn histogram(histogram: &HistogramPlot) -> Picture {
    let several = histogram.series.len() > 1;
    let height = |series: usize, bin: usize| {
        let series = &histogram.series[series];
        match several {
            true => series.counts[bin] as f64 / series.total().max(1) as f64,
            false => series.counts[bin] as f64,
        }
    };
    let (count, bins) = (histogram.series.len(), histogram.bins.len());
    let (y_title, quantity) = match several {
        true => ("share of its requests", Quantity::Share),
        false => ("requests", Quantity::Number),
    };
    let heights = (0..count).flat_map(|s| (0..bins).map(move |b| height(s, b)));
    let y = Scale::new(&PlotAxis::new(y_title, quantity), heights, false).rounded_up(TICKS_Y);
    let names: Vec<String> = histogram.bins.iter().map(|&b| histogram.label(b)).collect();
    let total = |s: &crate::plot::PlotSeries| thousands(&s.total().to_string());
    let legend: Vec<(String, String)> = match several {
        true => {
            let entry = |(i, s): (usize, &crate::plot::PlotSeries)| {
                (
                    series_class(i),
                    format!("{}: {} requests", s.name, total(s)),
                )
            };
            histogram.series.iter().enumerate().map(entry).collect()
        }
        false => Vec::new(),
    };
    let mut frame = Frame::new(
        &histogram.title,
        &Side {
            title: &format!("{}: up to", histogram.of),
            marks: Marks::Names(&names),
        },
        &Side {
            title: y_title,
            marks: Marks::Round(&y),
        },
        &legend,
    );
    let slot = (frame.right - frame.left) / bins.max(1) as f64;
    let bar = slot * 0.84 / count.max(1) as f64;
    for (s, series) in histogram.series.iter().enumerate() {
        let class = format!("bar {}", series_class(s));
        for (i, &bin) in histogram.bins.iter().enumerate() {
            let Some(place) = y.place(height(s, i)).filter(|_| series.counts[i] > 0) else {
                continue;
            };
            let x = frame.left + slot * (i as f64 + 0.08) + bar * s as f64;
            let top = frame.y(place);
            let tooltip = format!(
                "{}{}: {} ({})",
                match several {
                    true => format!("{}, ", series.name),
                    false => String::new(),
                },
                histogram.range(bin),
                thousands(&series.counts[i].to_string()),
                Quantity::Share.short(series.counts[i] as f64 / series.total() as f64),
            );
            let area = [x, top, bar, frame.bottom - top];
            frame.canvas.rect(&class, area, Some(&tooltip));
        }
    }
    frame.finish()
}
