//! The report as one HTML page: the text, and plots of the blocks and of the changes, without
//! scripts or external resources.

use weir_sink::plot::svg::{self, Picture, escaped};
use weir_sink::plot::{Lines, PlotAxis, PlotLine, Points, Quantity};
use weir_sink::report::html;

use crate::candidate::TrialSlot;
use crate::metric::Objective;
use crate::report::{TrialReport, TuneReport};

/// The page. Names of disks, VMs and rules are escaped.
pub fn page(report: &TuneReport) -> String {
    let mut body = String::from("<div class=\"plots\">\n");
    for picture in report
        .trial
        .iter()
        .flat_map(|trial| pictures(report, trial))
    {
        body += &format!("<figure>{}</figure>\n", picture.inline());
    }
    body += &format!(
        "</div>\n<pre style=\"overflow-x:auto\">{}</pre>\n",
        escaped(&report.text())
    );
    html::page(&format!("weir tune: {}", report.device), &body)
}

/// The plots of a trial.
fn pictures(report: &TuneReport, trial: &TrialReport) -> Vec<Picture> {
    let mut pictures = vec![by_block(report, trial)];
    pictures.extend(changes(report, trial));
    pictures
}

/// The value of each block in the order of measurement, by settings: a load that changes during the
/// trial is seen in it.
fn by_block(report: &TuneReport, trial: &TrialReport) -> Picture {
    let slots = [TrialSlot::Present, TrialSlot::Control].into_iter();
    let slots = slots.chain((0..report.candidates.len()).map(TrialSlot::Candidate));
    let clouds = slots.map(|slot| {
        let blocks = trial.blocks.iter().enumerate();
        let points = blocks.filter(|(_, block)| block.slot == slot);
        let points = points.filter_map(|(at, block)| Some((at as f64 + 1.0, block.value?)));
        (report.name(slot), points.collect::<Vec<_>>())
    });
    let quantity = match report.objective {
        Objective::P99 => Quantity::Nanoseconds,
        Objective::Throughput => Quantity::Bytes,
        Objective::Iops | Objective::Fairness => Quantity::Number,
    };
    let name = match report.objective {
        Objective::P99 => "p99 of the latency",
        Objective::Iops => "requests per second",
        Objective::Throughput => "bytes per second",
        Objective::Fairness => "index of fairness",
    };
    svg::points(&Points {
        title: "Blocks in the order of measurement".to_owned(),
        x: PlotAxis::new("block", Quantity::Number),
        y: PlotAxis::new(name, quantity),
        clouds: clouds.collect(),
    })
}

/// The interval of each change, one below the other; `None` before the first analysis.
fn changes(report: &TuneReport, trial: &TrialReport) -> Option<Picture> {
    let decision = &trial.result.as_ref()?.decision;
    let control = (report.name(TrialSlot::Control), &decision.control);
    let named = decision.comparisons.iter().enumerate();
    let named = named.map(|(index, found)| (report.name(TrialSlot::Candidate(index)), found));
    let all: Vec<_> = std::iter::once(control).chain(named).collect();
    let count = all.len();
    let mut lines = vec![PlotLine {
        name: "no change".to_owned(),
        points: vec![(0.0, 0.0), (0.0, count as f64 + 1.0)],
        steps: false,
    }];
    for (position, (name, found)) in all.into_iter().enumerate() {
        let Some((low, high)) = found.change_low.zip(found.change_high) else {
            continue;
        };
        let y = (count - position) as f64;
        // A small vertical line is the estimate.
        let estimate = [(found.change, y - 0.2), (found.change, y + 0.2)];
        let points = [(low, y), (found.change, y)];
        let points = points.into_iter().chain(estimate);
        lines.push(PlotLine {
            name,
            points: points.chain([(found.change, y), (high, y)]).collect(),
            steps: false,
        });
    }
    Some(svg::lines(&Lines {
        title: "Change against the present settings, with its interval".to_owned(),
        x: PlotAxis::new("change", Quantity::Share),
        y: PlotAxis::new(
            "settings, in the order of the legend from the top",
            Quantity::Number,
        ),
        lines,
        marks: Vec::new(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report;

    #[test]
    fn the_page_has_plots_and_the_table_and_nothing_foreign() {
        let mut report = report();
        report.device = "/dev/<sda>".to_owned();
        let page = page(&report);
        assert_eq!(page.matches("<svg").count(), 2);
        assert!(page.contains("/dev/&lt;sda&gt;") && !page.contains("<sda>"));
        assert!(page.contains("kyber") && page.contains("All blocks:"));
        assert!(page.contains("prefers-color-scheme:dark"));
        for foreign in ["<script", "src=", "href=", "@import", "url("] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        let links = page.matches("http").count();
        assert_eq!(links, page.matches("http://www.w3.org/2000/svg").count());
        report.trial = None;
        assert_eq!(super::page(&report).matches("<svg").count(), 0);
    }
}
