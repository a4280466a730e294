//! A timeline as text: `-` while a request waits in the queue, `=` while it is at the device.

use super::cell;
use crate::plot::{TimelineBar, TimelinePlot};

/// Draws the bars with this many columns each, and their labels to the right. `<` and `>` are ends
/// beyond the interval.
pub fn timeline(plot: &TimelinePlot, columns: usize, labels: usize) -> String {
    let line = |bar: &TimelineBar| {
        let label = cell(&bar.label, labels, false);
        let line = format!("|{}| {label}", drawn(plot, bar, columns));
        line.trim_end().to_owned() + "\n"
    };
    plot.bars.iter().map(line).collect()
}

fn drawn(plot: &TimelinePlot, bar: &TimelineBar, columns: usize) -> String {
    let last = columns.saturating_sub(1);
    let column = |place: f64| (place * columns as f64) as usize;
    let [inserted, issued, finished] = plot.places(bar).map(|place| column(place).min(last));
    let begins_before = bar.inserted_ns.unwrap_or(bar.issued_ns) < plot.begin_ns;
    let ends_after = bar.finished_ns.is_none_or(|at| at > plot.end_ns);
    let sign = |at: usize| match at {
        0 if begins_before => '<',
        _ if at == last && ends_after => '>',
        _ if at < inserted || at > finished => ' ',
        _ if at < issued => '-',
        _ => '=',
    };
    (0..columns).map(sign).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_has_its_wait_and_its_service_and_marks_beyond_the_interval() {
        let bar = |label: &str, inserted_ns, issued_ns, finished_ns| TimelineBar {
            label: label.into(),
            inserted_ns,
            issued_ns,
            finished_ns,
        };
        let plot = TimelinePlot {
            title: String::new(),
            begin_ns: 100,
            end_ns: 200,
            bars: vec![
                bar("whole", Some(100), 140, Some(200)),
                bar("before", None, 90, Some(125)),
                bar("after", Some(150), 170, Some(300)),
                bar("open", None, 185, None),
                bar("short", Some(151), 151, Some(152)),
            ],
        };
        let drawn = timeline(&plot, 10, 6);
        let expected = "|----======| whole\n\
                        |<==       | before\n\
                        |     --==>| after\n\
                        |        =>| open\n\
                        |     =    | short\n";
        assert_eq!(drawn, expected);
    }
}
