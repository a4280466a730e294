//! The series of a run as one SVG image: a chart for each metric, a line for each process, and a
//! tick below the axis for each fault.

use std::fmt::Write;

use super::sample::{METRICS, Series};

/// The size of a chart with its texts, and its columns in the image.
const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 210.0;
const COLUMNS: usize = 2;

/// The margins of a chart: left, top, right, bottom.
const MARGINS: (f64, f64, f64, f64) = (52.0, 26.0, 30.0, 30.0);

/// The height of the legend above all charts.
const LEGEND: f64 = 34.0;

/// More points than this are not visible.
const POINTS_MAX: usize = 360;

/// Colours that are distinct for colour-blind readers (Okabe and Ito 2008).
const COLOURS: [&str; 6] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
];

/// The image of a run that took `seconds`.
pub fn svg(series: &[Series], faults: &[(f64, String)], seconds: f64) -> String {
    let mut subjects: Vec<&str> = series.iter().map(|s| s.subject.as_str()).collect();
    subjects.sort_unstable();
    subjects.dedup();
    let metrics: Vec<usize> = (0..METRICS.len())
        .filter(|metric| series.iter().any(|s| s.metric == *metric))
        .collect();
    let rows = metrics.len().div_ceil(COLUMNS);
    let (width, height) = (WIDTH * COLUMNS as f64, LEGEND + HEIGHT * rows as f64);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (n, subject) in subjects.iter().enumerate() {
        let x = 20.0 + 150.0 * n as f64;
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"12\" width=\"14\" height=\"4\" fill=\"{}\"/><text x=\"{}\" y=\"18\">{subject}</text>",
            colour(n),
            x + 20.0
        );
    }
    for (n, metric) in metrics.iter().enumerate() {
        let at = (
            WIDTH * (n % COLUMNS) as f64,
            LEGEND + HEIGHT * (n / COLUMNS) as f64,
        );
        chart(&mut out, at, *metric, series, &subjects, faults, seconds);
    }
    out + "</svg>\n"
}

fn colour(n: usize) -> &'static str {
    COLOURS[n % COLOURS.len()]
}

fn chart(
    out: &mut String,
    (left, top): (f64, f64),
    metric: usize,
    series: &[Series],
    subjects: &[&str],
    faults: &[(f64, String)],
    seconds: f64,
) {
    let (x0, y0) = (left + MARGINS.0, top + MARGINS.1);
    let (w, h) = (
        WIDTH - MARGINS.0 - MARGINS.2,
        HEIGHT - MARGINS.1 - MARGINS.3,
    );
    let of_metric: Vec<&Series> = series.iter().filter(|s| s.metric == metric).collect();
    let values = of_metric.iter().flat_map(|s| s.points.iter().map(|p| p.1));
    let max = rounded_up(values.fold(0.0, f64::max));
    let x = |t: f64| x0 + w * t / seconds.max(1e-9);
    let y = |value: f64| y0 + h * (1.0 - value / max);
    let _ = writeln!(
        out,
        "<text x=\"{x0}\" y=\"{}\" font-weight=\"bold\">{}</text>\n\
         <path d=\"M{x0} {y0}V{}H{}\" fill=\"none\" stroke=\"#444\"/>",
        y0 - 8.0,
        METRICS[metric].name,
        y0 + h,
        x0 + w
    );
    for share in [0.0, 0.5, 1.0] {
        let value = max * share;
        let _ = writeln!(
            out,
            "<path d=\"M{x0} {0:.1}h{w}\" stroke=\"#ddd\"/><text x=\"{1:.1}\" y=\"{2:.1}\" text-anchor=\"end\">{value}</text>\
             <text x=\"{3:.1}\" y=\"{4:.1}\" text-anchor=\"middle\">{5}</text>",
            y(value),
            x0 - 5.0,
            y(value) + 4.0,
            x(seconds * share),
            y0 + h + 22.0,
            super::clock(std::time::Duration::from_secs_f64(seconds * share))
        );
    }
    for (at, _) in faults {
        let _ = writeln!(
            out,
            "<path d=\"M{:.1} {:.1}v5\" stroke=\"#999\"/>",
            x(*at),
            y0 + h + 1.0
        );
    }
    for one in of_metric {
        let n = subjects.iter().position(|s| *s == one.subject).unwrap_or(0);
        let step = one.points.len().div_ceil(POINTS_MAX).max(1);
        let points: Vec<String> = one
            .points
            .iter()
            .step_by(step)
            .map(|(t, value)| format!("{:.1},{:.1}", x(*t), y(*value)))
            .collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.2\"/>",
            points.join(" "),
            colour(n)
        );
    }
}

/// The next number of 1, 2, 4, 6, 8 times a power of ten.
fn rounded_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 4.0, 6.0, 8.0, 10.0];
    let fits = steps.iter().find(|step| *step * power >= value);
    fits.copied().unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_metric_with_values_has_a_chart_and_each_process_a_line() {
        let series = |metric, subject: &str| Series {
            metric,
            subject: subject.to_owned(),
            points: vec![(0.0, 1.0), (10.0, 3.0)],
        };
        let all = [series(0, "agent"), series(0, "monitor"), series(2, "agent")];
        let image = svg(&all, &[(5.0, "agent killed".to_owned())], 10.0);
        assert_eq!(image.matches("<polyline").count(), 3);
        assert_eq!(image.matches("font-weight").count(), 2);
        assert!(image.contains(METRICS[2].name) && !image.contains(METRICS[1].name));
        assert_eq!(
            [0.0, 3.0, 41.0, 100.0].map(rounded_up),
            [1.0, 4.0, 60.0, 100.0]
        );
    }
}
