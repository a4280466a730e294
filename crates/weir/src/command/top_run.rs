//! The queries and sources of one run of `weir top`.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

use weir_model::{Capabilities, Nanos};
use weir_query::Plan;
use weir_query::engine::{Engine, EngineOptions};
use weir_query::place::Placement;
use weir_tap::ebpf::Files;
use weir_tap::{EventCount, Retimed};

use super::top::TopArgs;
use weir_runtime::failure::Failure;
use weir_runtime::plans;
use weir_runtime::quantity;
use weir_runtime::run_loop::{
    Change, LoopOptions, ProgressKind, Show, Stop, TapInput, missed, wall_clock,
};
use weir_runtime::source;
use weir_view::top::bounds::LowerBounds;
use weir_view::top::gather::{PartSink, QueryPart, TickAssembler, TickHandler};
use weir_view::top::levels;
use weir_view::top::queries::{self, Scope, TopLevel};
use weir_view::top::replay::TopReplay;

pub(super) fn options(
    args: &TopArgs,
    changes: Option<Receiver<Change>>,
    run: &Run<'_>,
) -> LoopOptions {
    LoopOptions {
        idle: args.source.idle,
        own_stream: true,
        instant_ns: 1,
        progress: ProgressKind::Nothing,
        whole: None,
        watermarks: false,
        changes,
        counts: run.counts.clone(),
    }
}

/// The names, in changes, of the queries of the table, of the totals, and of the page cache. The
/// queries of views have higher numbers.
pub(super) const LINES: u64 = 1;
pub(super) const TOTALS: u64 = 2;
pub(super) const CACHED: u64 = 3;

/// The levels that a screen can switch to.
pub(super) struct AvailableLevels {
    pub(super) levels: Vec<TopLevel>,
    /// Why the others are not available.
    pub(super) absent: Option<String>,
    pub(super) has_cache: bool,
}

/// One run: its checked queries and its sources.
pub(super) struct Run<'a> {
    args: &'a TopArgs,
    interval_ns: Nanos,
    asked: Vec<(QueryPart, Option<u64>, Arc<Plan>)>,
    inputs: Vec<TapInput>,
    /// How the queries run.
    pub(super) placement: Placement,
    /// The current counters of the taps.
    counts: Arc<Mutex<Vec<EventCount>>>,
    /// Requests were lost when the recording was made.
    lossy_recording: Arc<AtomicBool>,
    /// The instant of the last tick that was processed.
    shown: Arc<AtomicI64>,
}

/// The queries of all views of these levels, and whether they are computed from rows.
fn later(scope: &Scope, levels: &[TopLevel], has_cache: bool) -> Vec<(bool, String)> {
    let mut later = Vec::new();
    for &level in levels {
        later.push((false, scope.lines(level)));
        if matches!(level, TopLevel::File | TopLevel::App) {
            later.push((false, scope.totals(level)));
            later.push((true, scope.detailed(level)));
        }
    }
    if levels.contains(&TopLevel::Block) {
        later.push((false, scope.submitters()));
        later.push((false, scope.histograms(&queries::ANY_DISK)));
    }
    later.extend(has_cache.then(|| (false, scope.cached())));
    later
}

impl<'a> Run<'a> {
    /// The queries of a level, without that of the page cache.
    pub(super) fn new(
        args: &'a TopArgs,
        scope: &Scope,
        level: TopLevel,
    ) -> Result<Run<'a>, Failure> {
        let asked = [
            (QueryPart::Lines, Some(LINES), scope.lines(level)),
            (QueryPart::Totals, Some(TOTALS), scope.totals(level)),
            (QueryPart::Losses, None, scope.losses()),
        ];
        let asked = asked.into_iter().map(|(part, name, text)| {
            let plan = queries::checked(&text, scope.live)?.plan;
            Ok((part, name, plan))
        });
        Ok(Run {
            args,
            interval_ns: quantity::nanos(scope.interval),
            asked: asked.collect::<Result<_, Failure>>()?,
            inputs: Vec::new(),
            placement: Placement::of_rows(&[], &Capabilities::default()),
            counts: Arc::default(),
            lossy_recording: Arc::default(),
            shown: Arc::new(AtomicI64::new(Nanos::MIN)),
        })
    }

    /// A run that serves all views from the start, since taps are opened once, before privileges
    /// are dropped; and the levels that it serves.
    pub(super) fn of_screen(
        args: &'a TopArgs,
        scope: &Scope,
        stop: &Stop,
    ) -> Result<(Run<'a>, AvailableLevels), Failure> {
        let own = args.level();
        let capabilities = args.source.capabilities()?;
        // QEMU cannot be queried on every host, and not every kernel has the levels above block.
        let all = TopLevel::ALL;
        let attempts: &[(&[TopLevel], bool)] = match scope.live {
            true => &[
                (&all, true),
                (&all[..3], true),
                (&all, false),
                (&all[..3], false),
                (&[TopLevel::Block, TopLevel::Vdisk], false),
                (&[], false),
            ],
            false => &[(&all[..3], true)],
        };
        let mut absent = None;
        let mut attempts = attempts.iter();
        loop {
            let Some((levels, has_cache)) = attempts.next() else {
                return Err(absent.expect("there was an attempt"));
            };
            let has = |stream: &str| capabilities.stream(stream).is_some();
            let is_served = |level: &TopLevel| scope.live || has(levels::stream(*level));
            let mut levels: Vec<TopLevel> = levels.iter().copied().filter(is_served).collect();
            if !levels.contains(&own) {
                levels.push(own);
            }
            let has_cache =
                *has_cache && levels.contains(&TopLevel::File) && has(levels::FILE_STREAMS[1]);
            let mut run = Run::new(args, scope, own)?;
            if has_cache && own == TopLevel::File {
                run.ask_cache(scope)?;
            }
            match run.open(&later(scope, &levels, has_cache), stop) {
                Ok(()) => {
                    let absent = absent.map(|error: Failure| match error {
                        Failure::Words(words) => words,
                        Failure::World(error) => format!("{error:#}"),
                    });
                    let available = AvailableLevels {
                        levels,
                        absent,
                        has_cache,
                    };
                    return Ok((run, available));
                }
                Err(error) => absent = Some(error),
            }
        }
    }

    /// Adds the query of the page cache.
    fn ask_cache(&mut self, scope: &Scope) -> Result<(), Failure> {
        let plan = queries::checked(&scope.cached(), scope.live)?.plan;
        self.asked.push((QueryPart::Cached, Some(CACHED), plan));
        Ok(())
    }

    /// Opens the sources for the queries, and at level `file` for that of the page cache, if the
    /// source has it.
    pub(super) fn open_with_cache(&mut self, stop: &Stop) -> Result<(), Failure> {
        let stream = levels::FILE_STREAMS[1];
        let capabilities = self.args.source.capabilities()?;
        if self.args.level() == TopLevel::File && capabilities.stream(stream).is_some() {
            self.ask_cache(&self.args.scope())?;
            if self.open(&[], stop).is_ok() {
                return Ok(());
            }
            // Not every kernel has the tracepoints of the page cache.
            self.asked.pop();
        }
        self.open(&[], stop)
    }

    /// Opens the sources for the queries, and for `later` ones.
    fn open(&mut self, later: &[(bool, String)], stop: &Stop) -> Result<(), Failure> {
        let scope = self.args.scope();
        let later = later.iter().map(|(needs_rows, text)| {
            let plan = queries::checked(text, scope.live)?.plan;
            Ok((*needs_rows, plan))
        });
        let later: Vec<(bool, Arc<Plan>)> = later.collect::<Result<_, Failure>>()?;
        // Some views of files and processes are computed from rows.
        let of = |rows: bool| {
            let views = later
                .iter()
                .filter(move |(needs_rows, _)| *needs_rows == rows);
            views.map(|(_, plan)| &**plan)
        };
        let asked = self.asked.iter().map(|(_, _, plan)| &**plan);
        let others: Vec<&Plan> = asked.chain(of(false)).collect();
        let rows: Vec<&Plan> = of(true).collect();
        let capabilities = self.args.source.capabilities()?;
        self.placement = plans::placed_beside(&others, &rows, &capabilities);
        self.inputs = source::open(&self.args.source, &self.placement, stop)?;
        let mut recordings = self.inputs.iter_mut().filter(|input| !input.live);
        let lossy = recordings.any(|input| missed(&input.tap.counts()) > 0);
        self.lossy_recording.store(lossy, Ordering::Release);
        Ok(())
    }

    /// Passes to `take` the ticks whose intervals were observed completely; ticks in which requests
    /// were lost are marked.
    pub(super) fn whole_intervals(&self, mut take: TickHandler) -> TickHandler {
        let live = self.args.source.is_live();
        let (interval_ns, shown) = (self.interval_ns, self.shown.clone());
        let started = wall_clock();
        let seconds = self.args.scope().interval.as_secs_f64();
        let (counts, mut bounds) = (self.counts.clone(), LowerBounds::default());
        let lossy_recording = self.lossy_recording.clone();
        Box::new(move |mut tick| {
            let at = tick.at;
            if live {
                let counts = counts.lock().expect("no panic while locked");
                bounds.mark(&mut tick, missed(&counts), seconds);
            } else {
                // A recording contains the number of lost requests, but not the time of the loss.
                tick.lower_bound = lossy_recording.load(Ordering::Acquire);
            }
            let more = match live && at - interval_ns < started {
                true => Ok(true),
                false => take(tick),
            };
            shown.store(at, Ordering::Release);
            more
        })
    }

    /// The engine with the queries, the sources, and the sinks of the results.
    pub(super) fn begin(
        self,
        gather: &Arc<Mutex<TickAssembler>>,
        speed: Option<f64>,
    ) -> Result<(Engine, Vec<TapInput>, Vec<Show>), Failure> {
        let mut engine = Engine::new(EngineOptions::default());
        let shows = self.asked.iter().map(|(part, name, plan)| {
            let plan = self.placement.rewrite(plan);
            let sink = PartSink::boxed(*part, &plan.schema, Nanos::MIN, gather);
            Show {
                name: *name,
                ..Show::new(engine.add(&plan), sink)
            }
        });
        let shows = shows.collect();
        let replayed = |input: TapInput| match input.live {
            true => input,
            false => TapInput {
                tap: Box::new(Retimed::new(
                    input.tap,
                    TopReplay::new(speed, self.interval_ns, self.shown.clone()),
                )),
                ..input
            },
        };
        let inputs: Vec<TapInput> = self.inputs.into_iter().map(replayed).collect();
        source::drop_privileges(&self.args.source, &inputs, Files::Open)?;
        Ok((engine, inputs, shows))
    }
}
