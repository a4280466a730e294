//! The advice of `weir advise` as one HTML page, without scripts or external resources.

use std::fmt::Write as _;

use weir_workload::colocation::{AdvisedDevice, ColocationReport, PlacementOutcome};

use super::colocation::{conclusion, heading, reasons, remarks, tables, title};
use super::html::{figures, page, paragraph};
use crate::plot::svg::{self, Picture, escaped};
use crate::plot::{Lines, PlotAxis, PlotLine, Quantity};

const TAKES_ALL: &str = "a String takes everything";

/// The page. Names come from guests and hosts, so all external text is escaped.
pub fn html(report: &ColocationReport) -> String {
    let mut body = String::new();
    paragraph(&mut body, "faint", &heading(report));
    let recommended = report.outcome == PlacementOutcome::Recommended;
    for (number, line) in conclusion(report).iter().enumerate() {
        paragraph(&mut body, if number == 0 { "verdict" } else { "" }, line);
    }
    let class = if recommended { "high" } else { "low" };
    for change in &report.moves {
        let reasons = reasons(change).join("; ");
        writeln!(
            body,
            "<div class=\"advice {class}\"><p><strong>{}</strong></p><p class=\"faint\">{}</p></div>",
            escaped(&title(change)),
            escaped(&reasons),
        )
        .expect(TAKES_ALL);
    }
    for rows in tables(report) {
        table(&mut body, &rows);
    }
    for remark in remarks(report) {
        paragraph(&mut body, "faint", &remark);
    }
    let plots: Vec<Picture> = [by_depth(report)].into_iter().flatten().collect();
    if !plots.is_empty() {
        body.push_str("<h2 class=\"first\">Measured devices</h2>\n");
        figures(&mut body, &plots);
    }
    page("Placement of disks", &body)
}

/// Rows of cells, of which the first one is the header.
pub(super) fn table(out: &mut String, rows: &[Vec<String>]) {
    out.push_str("<table>\n");
    for (number, row) in rows.iter().enumerate() {
        let cell = if number == 0 { "th" } else { "td" };
        let cells = row
            .iter()
            .map(|text| format!("<{cell}>{}</{cell}>", escaped(text)));
        writeln!(out, "<tr>{}</tr>", cells.collect::<String>()).expect(TAKES_ALL);
    }
    out.push_str("</table>\n");
}

/// Latency and throughput of each device by the number in flight.
fn by_depth(report: &ColocationReport) -> Option<Picture> {
    let devices: Vec<&AdvisedDevice> = report
        .devices
        .iter()
        .filter(|d| d.depths.len() > 1)
        .collect();
    if devices.is_empty() {
        return None;
    }
    let lines = |of: fn(&AdvisedDevice) -> Vec<(f64, f64)>| -> Vec<PlotLine> {
        let line = |device: &&AdvisedDevice| PlotLine {
            name: device.device.to_string(),
            points: of(device),
            steps: false,
        };
        devices.iter().map(line).collect()
    };
    let plot = |title: &str, y: PlotAxis, lines: Vec<PlotLine>| Lines {
        title: title.to_owned(),
        x: PlotAxis::log("requests in flight", Quantity::Number),
        y,
        lines,
        marks: Vec::new(),
    };
    let latency = plot(
        "Latency by the number in flight",
        PlotAxis::log("mean latency", Quantity::Nanoseconds),
        lines(|device| {
            let point = |d: &weir_workload::colocation::DepthLatency| {
                (d.in_flight_min as f64, d.latency_mean_ns)
            };
            device.depths.iter().map(point).collect()
        }),
    );
    let throughput = plot(
        "Throughput by the number in flight",
        PlotAxis::new("requests per second", Quantity::Number),
        lines(|device| {
            let point = |d: &weir_workload::colocation::DepthLatency| {
                (d.in_flight_min as f64, d.throughput_iops)
            };
            device.depths.iter().map(point).collect()
        }),
    );
    let pictures = [svg::lines(&latency), svg::lines(&throughput)];
    Some(Picture::side_by_side("Measured devices", &pictures, 1))
}
