//! A histogram in the style of the bcc tools: a line per bin, a bar of stars; several series are in
//! adjacent columns.

use super::cell;
use crate::plot::{HistogramPlot, Ink, PlotSeries, thousands};
use crate::text::{shown, width};

/// The longest bar; more gives no more information.
const BAR_MAX: usize = 40;

/// The shortest useful bar.
const BAR_MIN: usize = 4;

/// Draws a histogram. With several series each count is followed by its share, and bars represent
/// shares, so that shapes can be compared.
pub fn histogram(histogram: &HistogramPlot, ink: Ink, columns: usize) -> String {
    let mut text = String::new();
    if !histogram.title.is_empty() {
        text += &format!("{}\n", shown(&histogram.title));
    }
    if histogram.bins.is_empty() {
        return text + "  no values\n";
    }
    let ranges: Vec<String> = histogram
        .bins
        .iter()
        .map(|&bin| histogram.range(bin))
        .collect();
    let head = histogram.of.split([',', '(']).next().unwrap_or_default();
    let head = match width(head) {
        0..=24 => head.trim(),
        _ => head.split(" from ").next().unwrap_or_default(),
    };
    let label = ranges.iter().map(|r| width(r)).max().unwrap_or(0);
    let label = label.max(width(head));
    let several = histogram.series.len() > 1;
    let share = if several { 7 } else { 0 };
    let counts: Vec<usize> = histogram.series.iter().map(count_width).collect();
    let fixed: usize = counts.iter().map(|c| c + share + 5).sum();
    let room = columns.saturating_sub(label + 2 + fixed) / histogram.series.len().max(1);
    let bar = if room < BAR_MIN { 0 } else { room.min(BAR_MAX) };
    let most = most(histogram);
    text += &cell(head, label, true);
    text += " :";
    for (series, count) in histogram.series.iter().zip(&counts) {
        let name = if several { &series.name } else { "count" };
        let title = if several { "" } else { "distribution" };
        let wide = if several {
            count + share + 4 + bar
        } else {
            *count
        };
        text += &format!(" {}", cell(name, wide, false));
        if !several && bar > 0 {
            text += &format!(" {}", cell(title, bar.min(12), false));
        }
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    for (i, range) in ranges.iter().enumerate() {
        text += &cell(range, label, true);
        text += " :";
        for (series, count) in histogram.series.iter().zip(&counts) {
            let n = series.counts[i];
            text += &format!(" {}", cell(&thousands(&n.to_string()), *count, false));
            let part = n as f64 / series.total().max(1) as f64;
            if several {
                text += &format!("{:>5.1} %", 100.0 * part);
            }
            if bar > 0 {
                let length = if several { part } else { n as f64 };
                text += &format!(" |{}|", drawn(length / most, bar, ink));
            } else {
                text += "   ";
            }
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

fn count_width(series: &PlotSeries) -> usize {
    let most = series.counts.iter().copied().max().unwrap_or(0);
    // A share of 100.0 % uses its full width, so the count is followed by a space.
    let gap = usize::from(most > 0 && most as f64 >= 0.9995 * series.total() as f64);
    (thousands(&most.to_string()).len() + gap).max("count".len())
}

/// The value of the longest bar.
fn most(histogram: &HistogramPlot) -> f64 {
    let several = histogram.series.len() > 1;
    let of = |series: &PlotSeries| {
        let most = series.counts.iter().copied().max().unwrap_or(0) as f64;
        match several {
            true => most / series.total().max(1) as f64,
            false => most,
        }
    };
    let most = histogram.series.iter().map(of).fold(0.0, f64::max);
    if most > 0.0 { most } else { 1.0 }
}

/// A bar and the space after it.
fn drawn(share: f64, columns: usize, ink: Ink) -> String {
    let bar = match ink.unicode {
        true => ink.bar_of(share, columns),
        false => "*".repeat((share * columns as f64).round().max(f64::from(share > 0.0)) as usize),
    };
    let gap = columns - width(&bar);
    let bar = match ink.color && !bar.is_empty() {
        true => format!("\x1b[34m{bar}\x1b[0m"),
        false => bar,
    };
    bar + &" ".repeat(gap)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::BinLayout;
    use weir_workload::{Distribution, Metric};

    fn distribution(metric: Metric, values: &[(i64, u64)]) -> Distribution {
        let mut distribution = Distribution::new(metric);
        for &(value, count) in values {
            (0..count).for_each(|_| distribution.add(value));
        }
        distribution
    }

    #[test]
    fn bars_have_the_format_of_bcc() {
        let lengths = distribution(Metric::Length, &[(512, 1), (4096, 608), (8192, 304)]);
        let one = HistogramPlot::new("lengths of vm\x1b[2J", &[("", &lengths)], BinLayout::Limits);
        let expected = "\
lengths of vm\\x1b[2J
      I/O length : count distribution
    0 B -> 512 B : 1     |*                  |
  512 B -> 1 KiB : 0     |                   |
  1 KiB -> 2 KiB : 0     |                   |
2 KiB -> 4,095 B : 0     |                   |
           4 KiB : 608   |*******************|
4 KiB -> 8,191 B : 0     |                   |
           8 KiB : 304   |**********         |
";
        let drawn = histogram(&one, Ink::PLAIN, 47);
        assert_eq!(drawn, expected, "{drawn}");
        assert!(drawn.lines().all(|l| width(l) <= 47), "{drawn}");
    }

    #[test]
    fn compared_series_are_side_by_side() {
        let xp = distribution(Metric::Length, &[(65_536, 90), (4_096, 10)]);
        let vista = distribution(Metric::Length, &[(1 << 20, 30)]);
        let both = HistogramPlot::new("", &[("xp", &xp), ("vista", &vista)], BinLayout::Limits);
        let drawn = histogram(&both, Ink::PLAIN, 80);
        let line = |label: &str| drawn.lines().find(|l| l.trim_start().starts_with(label));
        let of_64k = line("64 KiB :").expect("a bin of its own");
        assert!(of_64k.contains("90    90.0 %"), "{drawn}");
        assert!(
            line("512 KiB -> :").unwrap().contains("30   100.0 %"),
            "{drawn}"
        );
        assert!(drawn.lines().all(|l| width(l) <= 80), "{drawn}");
    }

    #[test]
    fn a_narrow_terminal_gets_the_counts() {
        let one = distribution(Metric::Latency, &[(5_000, 2)]);
        let one = HistogramPlot::new("", &[("", &one)], BinLayout::Limits);
        assert_eq!(
            histogram(&one, Ink::PLAIN, 24),
            "      latency : count\n1 us -> 10 us : 2\n"
        );
        let none = HistogramPlot::new("t", &[], BinLayout::Limits);
        assert_eq!(histogram(&none, Ink::PLAIN, 30), "t\n  no values\n");
    }
}
