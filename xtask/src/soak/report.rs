//! The result of a run, and its report: a Markdown page, an SVG image and a JSON file.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::account::Balance;
use super::clock;
use super::fit::LineFit;
use super::plot;
use super::sample::{METRICS, Series};

/// The result of a run.
#[derive(Default)]
pub struct Outcome {
    seed: u64,
    duration: Duration,
    rate: u64,
    /// What ran.
    pub description: String,
    /// How long.
    pub ran: Duration,
    /// Whether a signal ended it.
    pub is_interrupted: bool,
    /// The counts at the end.
    pub balances: Vec<Balance>,
    /// When each fault occurred, in seconds, and what it was.
    pub faults: Vec<(f64, String)>,
    /// The samples.
    pub series: Vec<Series>,
    /// What was left on the host.
    pub left: Vec<String>,
    /// Errors of the run.
    pub failures: Vec<String>,
    /// For each series, the fit over the second half, if the metric has a bound.
    fits: Vec<Option<LineFit>>,
}

/// The growth of the resources of a shorter run is not judged.
const JUDGED_FROM: Duration = Duration::from_secs(600);

impl Outcome {
    /// A run that begins.
    pub fn new(seed: u64, duration: Duration, rate: u64) -> Outcome {
        Outcome {
            seed,
            duration,
            rate,
            ..Outcome::default()
        }
    }

    /// Fits a line to each series.
    pub fn judge(&mut self) {
        let half = self.ran.as_secs_f64() / 2.0;
        let fit =
            |series: &Series| LineFit::of(&series.points, half, METRICS[series.metric].bound?);
        self.fits = self.series.iter().map(fit).collect();
    }

    /// Whether everything holds.
    pub fn holds(&self) -> bool {
        self.failures.is_empty()
            && self.left.is_empty()
            && !self.balances.is_empty()
            && self.balances.iter().all(Balance::holds)
            && self.is_flat()
    }

    /// Processes warm up for some minutes; before that growth is shown and not judged.
    fn is_long_enough(&self) -> bool {
        self.ran >= JUDGED_FROM
    }

    fn is_flat(&self) -> bool {
        !self.is_long_enough() || self.fits.iter().flatten().all(LineFit::is_flat)
    }

    /// Writes the report, with the logs of the processes, and prints the result.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, folder: &Path, logs: &[(String, String)]) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let seconds = self.ran.as_secs_f64();
        let files = [
            ("soak.md", self.page()),
            ("soak.svg", plot::svg(&self.series, &self.faults, seconds)),
            ("soak.json", format!("{:#}\n", self.json())),
        ];
        for (name, text) in files {
            let path = folder.join(name);
            fs::write(&path, text).with_context(|| path.display().to_string())?;
        }
        for (name, text) in logs {
            fs::write(folder.join(name), text)?;
        }
        print!("\n{}", self.verdict());
        println!("report: {}", folder.join("soak.md").display());
        Ok(())
    }

    /// The result in some lines.
    fn verdict(&self) -> String {
        let yes = |holds: bool| if holds { "yes" } else { "NO" };
        let counts = !self.balances.is_empty() && self.balances.iter().all(Balance::holds);
        let mut text = format!(
            "- every request is delivered or counted: {}\n- every series is flat: {}\n\
             - nothing is left: {}\n- no step failed: {}\n",
            yes(counts),
            match self.is_long_enough() {
                true => yes(self.is_flat()),
                false => "not judged, the run is shorter than ten minutes",
            },
            yes(self.left.is_empty()),
            yes(self.failures.is_empty())
        );
        for line in self.failures.iter().chain(&self.left) {
            let _ = writeln!(text, "  - {}", line.replace('\n', "\n    "));
        }
        text
    }

    fn page(&self) -> String {
        let ended = match self.is_interrupted {
            true => ", interrupted by a signal",
            false => "",
        };
        let mut text = format!(
            "# Soak of {}\n\nRan {}{ended}, seed {}. {}{}.\n\n{}\n{}\n## Counts\n\n",
            clock(self.duration),
            clock(self.ran),
            self.seed,
            self.description[..1].to_uppercase(),
            &self.description[1..],
            self.verdict(),
            "![The sampled series](soak.svg)\n"
        );
        text += "| count | delivered | lost | late | sum | independent count |\n| --- | ---: | ---: | ---: | ---: | --- |\n";
        for b in &self.balances {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {}{} | {} ({}) |",
                b.name,
                b.delivered,
                b.lost,
                b.late,
                b.delivered + b.lost + b.late,
                if b.holds() { "" } else { " **differs**" },
                b.expected,
                b.source
            );
        }
        text += "\n## Faults\n\n| fault | count |\n| --- | ---: |\n";
        for (fault, count) in self.faults_by_kind() {
            let _ = writeln!(text, "| {fault} | {count} |");
        }
        text += "\n## Resources\n\nThe growth is that of the median line (Theil, Sen) over the second half of the run.\n\n\
                 | series | process | median | growth | bound | flat |\n| --- | --- | ---: | ---: | ---: | --- |\n";
        for (series, fit) in self.series.iter().zip(&self.fits) {
            if let Some(fit) = fit {
                let _ = writeln!(
                    text,
                    "| {} | {} | {:.1} | {:+.2} | {:.2} | {} |",
                    METRICS[series.metric].name,
                    series.subject,
                    fit.median,
                    fit.growth,
                    fit.growth_max,
                    if fit.is_flat() { "yes" } else { "no" }
                );
            }
        }
        text += "\n## Processor time and output\n\nWithout a bound; means over the run.\n\n| series | process | mean | last |\n| --- | --- | ---: | ---: |\n";
        let unbounded = self
            .series
            .iter()
            .filter(|s| METRICS[s.metric].bound.is_none());
        for series in unbounded {
            let values = series.points.iter().map(|p| p.1);
            let mean = values.sum::<f64>() / series.points.len().max(1) as f64;
            let last = series.points.last().map_or(0.0, |p| p.1);
            let (name, subject) = (METRICS[series.metric].name, &series.subject);
            let _ = writeln!(text, "| {name} | {subject} | {mean:.2} | {last:.2} |");
        }
        text
    }

    fn faults_by_kind(&self) -> BTreeMap<&str, usize> {
        let mut kinds = BTreeMap::new();
        for (_, what) in &self.faults {
            *kinds.entry(what.as_str()).or_default() += 1;
        }
        kinds
    }

    fn json(&self) -> Value {
        let series = self.series.iter().zip(&self.fits).map(|(series, fit)| {
            json!({
                "metric": METRICS[series.metric].name,
                "process": series.subject,
                "points": series.points,
                "fit": fit.map(|f| json!({
                    "median": f.median, "growth": f.growth, "growth_max": f.growth_max, "flat": f.is_flat(),
                })),
            })
        });
        let balances = self.balances.iter().map(|b| {
            json!({
                "name": b.name, "delivered": b.delivered, "lost": b.lost, "late": b.late,
                "expected": b.expected, "source": b.source, "holds": b.holds(),
            })
        });
        json!({
            "holds": self.holds(),
            "seed": self.seed,
            "requested_seconds": self.duration.as_secs(),
            "seconds": self.ran.as_secs_f64(),
            "interrupted": self.is_interrupted,
            "requests_per_second_of_disk": self.rate,
            "description": self.description,
            "failures": self.failures,
            "left": self.left,
            "counts": balances.collect::<Vec<_>>(),
            "faults": self.faults.iter().map(|(at, what)| json!({"seconds": at, "fault": what})).collect::<Vec<_>>(),
            "series": series.collect::<Vec<_>>(),
        })
    }
}
