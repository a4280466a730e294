//! [`run`]: reads the steps and prints windows and the summary; [`FleetCorrelation`] does so with
//! the steps that a monitor sends.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use weir_model::{Batch, Nanos};
use weir_query::engine::Engine;
use weir_runtime::failure::Failure;
use weir_runtime::plans;
use weir_runtime::quantity;
use weir_runtime::question::QueryText;
use weir_runtime::run_loop::{self, LoopOptions, ProgressKind, RunReport, Show, Stop};
use weir_runtime::source::{self, SourceOptions};
use weir_runtime::{device_names, output};
use weir_sink::report::{correlation, correlation_html};
use weir_sink::{Incomplete, Sink, SinkError, Target};
use weir_tap::ebpf::Files;
use weir_workload::HostedDisk;
use weir_workload::correlation::{CorrelatedMetric, CorrelationOptions, DiskCorrelator, StepLoad};

use super::question::{self, StepSource};

/// What is compared and printed.
#[derive(Clone, Debug)]
pub struct CorrelateOptions {
    /// The metric.
    pub metric: CorrelatedMetric,
    /// The length of a step.
    pub step: Duration,
    /// Window, lag and threshold, in steps.
    pub correlation: CorrelationOptions,
    /// Maximum number of pairs that are printed.
    pub top: usize,
    /// JSON instead of text.
    pub json: bool,
    /// Also write the summary to this file as an HTML page.
    pub html: Option<PathBuf>,
}

/// Prints the pairs of each window of a live source, and the summary, until the source ends or
/// `stop`.
///
/// # Errors
/// When the source cannot be read, or the output fails.
pub fn run(
    source: &SourceOptions,
    mut engine: Engine,
    options: &CorrelateOptions,
    stop: &Stop,
) -> Result<RunReport, Failure> {
    let live = source.is_live();
    let of = match live {
        true => StepSource::Host,
        false => StepSource::Recording,
    };
    let question = QueryText::new(question::query(options.step, of));
    let checked = question.compile_over(source)?;
    let plan = device_names::resolved(&checked.plan, source);
    let placement = plans::placed(&[&*plan], &source.capabilities()?);
    let target = output::standard_output(live)?;
    let inputs = source::open(source, &placement, stop)?;
    let steps = Arc::new(Mutex::new(Steps::new(options, of, target)));
    let shows = placement.plans.iter();
    let shows = shows.map(|plan| Show::new(engine.add(plan), Box::new(Sampler(steps.clone()))));
    let shows = shows.collect();
    let loop_options = LoopOptions {
        idle: source.idle,
        own_stream: false,
        instant_ns: 1,
        progress: match live {
            true => ProgressKind::Nothing,
            false => ProgressKind::Files,
        },
        whole: None,
        changes: None,
        watermarks: false,
        counts: Arc::default(),
    };
    source::drop_privileges(source, &inputs, Files::Open)?;
    let report = run_loop::run(engine, inputs, shows, loop_options, stop);
    conclude(&steps, report)
}

/// Writes the page and the summary after the steps; their failures do not hide that of the run.
fn conclude<T>(steps: &Mutex<Steps>, ending: Result<T, Failure>) -> Result<T, Failure> {
    let mut steps = steps.lock().expect("no panic while locked");
    let page = steps.write_page();
    let summary = steps.print_summary();
    let ending = ending?;
    page?;
    match summary {
        Ok(()) | Err(SinkError::Closed { .. }) => Ok(ending),
        Err(error) => Err(error.into()),
    }
}

/// The windows and the summary of the steps that a monitor sends.
pub struct FleetCorrelation(Arc<Mutex<Steps>>);

impl FleetCorrelation {
    /// Without steps.
    ///
    /// # Errors
    /// When there is no standard output.
    pub fn new(options: &CorrelateOptions) -> Result<FleetCorrelation, Failure> {
        let target = output::standard_output(true)?;
        let steps = Steps::new(options, StepSource::Fleet, target);
        Ok(FleetCorrelation(Arc::new(Mutex::new(steps))))
    }

    /// The sink for the rows of [`question::query`].
    pub fn sink(&self) -> Box<dyn Sink> {
        Box::new(Sampler(self.0.clone()))
    }

    /// Writes the page and the summary.
    ///
    /// # Errors
    /// That of `ending`, or of the output.
    pub fn conclude<T>(&self, ending: Result<T, Failure>) -> Result<T, Failure> {
        conclude(&self.0, ending)
    }
}

/// Passes complete steps to the correlator, and prints.
struct Steps {
    correlator: DiskCorrelator,
    options: CorrelateOptions,
    source: StepSource,
    target: Target,
    /// The end of the step of `loads`.
    at: Option<Nanos>,
    loads: Vec<(HostedDisk, StepLoad)>,
    /// The first step began before the observation.
    is_first: bool,
    /// The input ended within the step that follows.
    is_incomplete: bool,
}

impl Steps {
    fn new(options: &CorrelateOptions, source: StepSource, target: Target) -> Steps {
        let step_ns = quantity::nanos(options.step);
        Steps {
            correlator: DiskCorrelator::new(options.metric, step_ns, options.correlation),
            options: options.clone(),
            source,
            target,
            at: None,
            loads: Vec::new(),
            is_first: true,
            is_incomplete: false,
        }
    }

    fn add(&mut self, batch: &Batch) -> Result<(), SinkError> {
        for row in 0..batch.len() {
            let at = batch.ts[row];
            if self.at != Some(at) {
                self.close()?;
                self.at = Some(at);
            }
            self.loads.extend(question::load(batch, row, self.source));
        }
        Ok(())
    }

    /// Completes the step whose rows were received.
    fn close(&mut self) -> Result<(), SinkError> {
        let loads = std::mem::take(&mut self.loads);
        let Some(at) = self.at.take() else {
            return Ok(());
        };
        if std::mem::take(&mut self.is_first) || self.is_incomplete {
            return Ok(());
        }
        self.correlator.step(at, loads);
        if !self.correlator.is_due() {
            return Ok(());
        }
        let report = self.correlator.report();
        let Some(mut report) = report.filter(|_| self.source.is_live()) else {
            return Ok(());
        };
        let top = self.options.top;
        let text = match self.options.json {
            true => {
                report.pairs_omitted += report.pairs.len().saturating_sub(top) as u64;
                report.pairs.truncate(top);
                format!("{}\n", json!({ "window": report }))
            }
            false => correlation::window(&report, top),
        };
        self.target.put(&text)?;
        self.target.flush()
    }

    fn write_page(&mut self) -> Result<(), Failure> {
        let Some(path) = &self.options.html else {
            return Ok(());
        };
        let summary = self.correlator.summary();
        let mut page = output::file(path)?;
        page.put(&correlation_html::html(&summary, self.options.top))?;
        Ok(page.flush()?)
    }

    fn print_summary(&mut self) -> Result<(), SinkError> {
        let mut summary = self.correlator.summary();
        let top = self.options.top;
        let text = match self.options.json {
            true => {
                summary.pairs_omitted += summary.pairs.len().saturating_sub(top) as u64;
                summary.pairs.truncate(top);
                format!("{}\n", json!({ "summary": summary }))
            }
            false => correlation::summary(&summary, top),
        };
        self.target.put(&text)?;
        self.target.flush()
    }
}

/// The sink for the rows of the query.
struct Sampler(Arc<Mutex<Steps>>);

impl Sampler {
    fn steps(&self) -> std::sync::MutexGuard<'_, Steps> {
        self.0.lock().expect("no panic while locked")
    }
}

impl Sink for Sampler {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        self.steps().add(batch)
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.steps().close()
    }

    fn incomplete(&mut self, _: Incomplete) {
        self.steps().is_incomplete = true;
    }
}
