//! Output formats of histograms: bars and heat maps, pictures, vscsiStats' CSV, JSON.

mod bars;
mod cells;
mod csv;

pub use bars::Compared;
pub use cells::{CellAxis, Cells};

use std::fs::File;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_sink::plot::Ink;
use weir_sink::text;
use weir_sink::time::timestamp_to;
use weir_workload::{Histograms, Metric, Subject, little};

use super::counted::{CountedHistograms, NO_COMPLETION, SECTORS_UNSEEN, name};
use super::disks::Listed;
use super::saved;
use weir_runtime::failure::Failure;
use weir_runtime::output;

/// The formats.
#[derive(Clone, Debug)]
pub enum HistogramFormat {
    /// Bars as text.
    Bars,
    /// CSV, in the format of vscsiStats where it has one.
    Csv,
    /// JSON, a line a disk.
    Json,
    /// A picture in a file.
    Svg(PictureFile),
}

/// A file that is created before privileges are dropped, and written when there is a picture.
#[derive(Clone, Debug)]
pub struct PictureFile {
    path: PathBuf,
    file: Arc<File>,
}

impl PictureFile {
    /// Creates the file.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn create(path: &Path) -> Result<PictureFile, Failure> {
        let file = File::create(path)
            .map_err(|error| Failure::world(format_args!("{}: {error}", path.display())))?;
        Ok(PictureFile {
            path: path.to_owned(),
            file: Arc::new(file),
        })
    }

    /// Writes the picture over the previous one.
    fn draw(&self, svg: &str) -> Result<(), Failure> {
        let mut file = &*self.file;
        // A device or a pipe receives pictures in sequence.
        let _ = file.set_len(0).and_then(|()| file.rewind());
        file.write_all(svg.as_bytes())
            .map_err(|error| Failure::world(format_args!("{}: {error}", self.path.display())))
    }
}

/// Reports on standard error the disks whose number of requests in flight is left out.
pub fn report_unreliable(unreliable: &[(Subject, f64)]) {
    for (subject, ratio) in unreliable {
        output::notice(format_args!(
            "weir: {}: outstandingIOs is unreliable and omitted: {}",
            text::shown(&name(subject)),
            little::unreliable(*ratio)
        ));
    }
}

/// Formats counts, and prints them.
#[derive(Clone, Debug)]
pub struct Printer {
    /// The histograms to print.
    pub metrics: Vec<Metric>,
    /// The format.
    pub form: HistogramFormat,
    /// The character set and colours.
    pub ink: Ink,
    /// The width of lines, characters.
    pub columns: usize,
    /// Print the time of each.
    pub times: bool,
    /// The numbers of disks.
    pub listed: Vec<Listed>,
    /// Disks that the CSV includes in any case.
    pub idle: Vec<Subject>,
}

impl Printer {
    /// Prints the counts; reports losses.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn print(&self, counted: &CountedHistograms) -> Result<(), Failure> {
        self.report_incomplete(counted);
        let for_the_eye = !matches!(self.form, HistogramFormat::Csv | HistogramFormat::Json);
        if counted.subjects.is_empty() && for_the_eye && !self.times {
            output::notice("weir: no requests were observed");
        }
        self.put(
            || self.bars(counted),
            || bars::picture(counted, &self.metrics),
            || match self.form {
                HistogramFormat::Csv => {
                    csv::csv(&self.with_idle(counted), &self.metrics, &self.listed)
                }
                _ => saved::lines(counted, &self.metrics).join("\n") + "\n",
            },
        )
    }

    /// Reports on standard error what is missing in the histograms, and the causes.
    pub fn report_incomplete(&self, counted: &CountedHistograms) {
        let mut others = Vec::new();
        for (cause, n) in &counted.lost {
            if let Some(device) = cause.strip_prefix(NO_COMPLETION) {
                output::notice(format_args!(
                    "weir: {n} requests on {}: no completion event was received; their times are not in the results",
                    text::shown(device)
                ));
            } else if let Some(device) = cause.strip_prefix(SECTORS_UNSEEN) {
                output::notice(format_args!(
                    "weir: at least {n} sectors on {}: no event was received; not in the results",
                    text::shown(device)
                ));
            } else {
                others.push((cause, n));
            }
        }
        let total: u64 = others.iter().map(|(_, n)| *n).sum();
        if total > 0 {
            let causes = others.iter().map(|(cause, n)| format!("{cause} {n}"));
            output::notice(format_args!(
                "weir: {total} requests are not in the histograms: {}",
                causes.collect::<Vec<_>>().join(", ")
            ));
        }
        if self.metrics.contains(&Metric::Outstanding) {
            report_unreliable(&counted.unreliable);
        }
    }

    /// Prints two side by side.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn print_compared(&self, two: &Compared) -> Result<(), Failure> {
        let text = || two.text(&self.metrics, self.ink, self.columns);
        self.put(text, || two.picture(&self.metrics), text)
    }

    /// Prints grids.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn print_cells(&self, cells: &Cells) -> Result<(), Failure> {
        let data = || match self.form {
            HistogramFormat::Csv => cells.csv(),
            _ => cells.json(),
        };
        if cells.grids.is_empty() {
            output::notice("weir: no requests with both values were observed");
        }
        self.put(
            || cells.text(self.ink, self.columns),
            || cells.picture(),
            data,
        )
    }

    /// Writes in the chosen format: text, picture or data.
    fn put(
        &self,
        eye: impl Fn() -> String,
        picture: impl Fn() -> String,
        data: impl Fn() -> String,
    ) -> Result<(), Failure> {
        match &self.form {
            HistogramFormat::Bars => output::print(&eye()),
            HistogramFormat::Csv | HistogramFormat::Json => output::print(&data()),
            HistogramFormat::Svg(file) => file.draw(&picture()),
        }
    }

    fn bars(&self, counted: &CountedHistograms) -> String {
        let time = match self.times {
            true => {
                let [since, at] = [counted.since, counted.at].map(|at| timestamp_to(at, 3));
                format!("{since} to {at}\n\n")
            }
            false => String::new(),
        };
        time + &bars::text(counted, &self.metrics, self.ink, self.columns)
    }

    fn with_idle(&self, counted: &CountedHistograms) -> CountedHistograms {
        let mut all = counted.clone();
        for idle in &self.idle {
            let disk = |s: &Subject| (s.vm, s.vdisk.or(s.pdisk));
            if !all.subjects.iter().any(|(s, _)| disk(s) == disk(idle)) {
                all.subjects.push((*idle, Histograms::default()));
            }
        }
        all.sort();
        all
    }
}
