//! The run of a file of alerts over live I/O or recordings.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use weir_model::Capabilities;
use weir_query::alert::AlertRule;
use weir_query::engine::{Engine, EngineOptions};
use weir_runtime::failure::Failure;
use weir_runtime::run_loop::{self, LoopOptions, OWN_STREAM, ProgressKind, RunReport, Show, Stop};
use weir_runtime::source::{self, SourceOptions};
use weir_runtime::{device_names, plans};
use weir_sink::Sink;
use weir_tap::ebpf::Files;

use crate::board::{AlertConsumer, Board};
use crate::event::AlertKey;
use crate::instances::RuleRun;
use crate::machine::SavedMachine;

/// What a run needs beside its rules.
pub struct AlertRunOptions<'a> {
    /// The sources.
    pub source: &'a SourceOptions,
    /// Memory limit of each rule's query, in bytes.
    pub query_bytes_max: usize,
    /// Stored states by the name of the rule.
    pub saved: HashMap<String, SavedMachine<AlertKey>>,
    /// What is printed on standard error during the run.
    pub progress: ProgressKind,
    /// Files are opened after privileges are dropped.
    pub files: Files,
}

/// The rules that read a stream or relation that the sources do not have, each with its name.
pub fn missing_sources(rules: &[AlertRule], capabilities: &Capabilities) -> Vec<(String, String)> {
    let missing = |rule: &AlertRule| {
        let sources = rule.plan.sources();
        let mut names = sources.iter().map(|source| source.name.as_str());
        let is_missing = |name: &&str| {
            let mut streams = capabilities.streams.iter();
            let is_offered = streams.any(|s| s.declaration.name.eq_ignore_ascii_case(name));
            !is_offered && !name.eq_ignore_ascii_case(OWN_STREAM)
        };
        Some((rule.name.clone(), names.find(is_missing)?.to_owned()))
    };
    rules.iter().filter_map(missing).collect()
}

/// Runs rules until their sources end, a signal is received, or the consumer accepts no more.
///
/// # Errors
/// When a source or the consumer fails.
pub fn run(
    rules: Vec<AlertRule>,
    mut options: AlertRunOptions,
    consumer: Box<dyn AlertConsumer>,
    stop: &Stop,
) -> Result<(Arc<Mutex<Board>>, RunReport), Failure> {
    let mut saved = std::mem::take(&mut options.saved);
    let runs = rules.iter().map(|rule| {
        let saved = saved.remove(&rule.name);
        RuleRun::new(rule.clone(), saved)
    });
    let (board, sinks) = Board::new(runs.collect(), consumer);
    let report = run_into(&rules, options, sinks, stop)?;
    Ok((board, report))
}

/// Runs the queries of rules into these sinks, one for each rule.
///
/// # Errors
/// When a source or a sink fails.
pub fn run_into(
    rules: &[AlertRule],
    options: AlertRunOptions,
    sinks: Vec<Box<dyn Sink>>,
    stop: &Stop,
) -> Result<RunReport, Failure> {
    let source = options.source;
    let capabilities = source.capabilities()?;
    let resolved = rules.iter().map(|rule| {
        let plan = device_names::resolved(&rule.plan, source);
        plans::paired(&plan, &capabilities).plan
    });
    let resolved: Vec<_> = resolved.collect();
    let plans: Vec<&_> = resolved.iter().map(|plan| &**plan).collect();
    let placement = plans::placed(&plans, &capabilities);
    let mut engine = Engine::new(EngineOptions {
        query_bytes_max: options.query_bytes_max,
        ..EngineOptions::default()
    });
    let ids: Vec<_> = placement
        .plans
        .iter()
        .map(|plan| engine.add(plan))
        .collect();
    let inputs = source::open(source, &placement, stop)?;
    let loop_options = LoopOptions {
        idle: source.idle,
        own_stream: plans::read_own_stream(&plans),
        instant_ns: 1,
        progress: options.progress,
        changes: None,
        whole: None,
        watermarks: true,
        counts: Arc::default(),
    };
    source::drop_privileges(source, &inputs, options.files)?;
    let shows = ids.into_iter().zip(sinks);
    let shows = shows.map(|(id, sink)| Show::new(id, sink)).collect();
    run_loop::run(engine, inputs, shows, loop_options, stop)
}
