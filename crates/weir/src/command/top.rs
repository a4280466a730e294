//! `weir top`: VMs and their disks, ordered by load.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use signal_hook::consts::SIGINT;
use weir_model::{Capabilities, Nanos};
use weir_query::Plan;
use weir_query::engine::{Engine, EngineOptions};
use weir_query::place::Placement;
use weir_tap::ebpf::Files;
use weir_tap::{EventCount, Retimed};

use crate::args::SourceArgs;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::names;
use weir_runtime::output;
use weir_runtime::plans;
use weir_runtime::quantity;
use weir_runtime::run_loop::conclude;
use weir_runtime::run_loop::{
    self, Change, LoopOptions, ProgressKind, Show, Stop, TapInput, missed, wall_clock,
};
use weir_runtime::source;
use weir_runtime::unobserved::UnobservedDevices;
use weir_view::top::batch;
use weir_view::top::bounds::LowerBounds;
use weir_view::top::columns::COLUMNS;
use weir_view::top::gather::{PartSink, QueryPart, TickAssembler, TickHandler};
use weir_view::top::queries::{self, SINGLE, Scope, TopLevel};
use weir_view::top::replay::TopReplay;
use weir_view::top::screen::{self, Ink, Screen};
use weir_view::top::state::{KeyAction, NAMES, State, View};
use weir_view::top::ticks::{TickReader, Ticks};

/// With shorter intervals, weir's own load would dominate.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Show the VMs and disks with the highest load
///
/// For each disk and operation: IOPS, throughput, latency and its parts, queue depth, and the share
/// of sequential requests. On a terminal, Enter opens a VM, then the histograms of a disk; ? lists
/// all keys.
#[derive(Args, Debug, Clone)]
#[command(after_help = "Examples:\n  \
    weir top\n  \
    weir top -w web1 5\n  \
    weir top -b -n 3 --sort p99\n  \
    weir top -b --json 10 | jq .totals\n  \
    weir top --from recording.parquet --speed 10\n  \
    weir top --show-query\n\n\
    The first table of a live source covers the first complete interval. \
    `weir hist` prints histograms of a disk's requests by size, seek distance and latency.")]
pub struct TopArgs {
    /// Show only this VM
    #[arg(short = 'w', long = "only-vm", value_name = "VM")]
    only_vm: Option<String>,
    /// Show only this disk, by its name in the VM (/dev/vda) or on the host (/dev/sda)
    #[arg(short = 'i', short_alias = 'd', long = "only-disk", value_name = "DISK", value_parser = source::disk)]
    only_disk: Option<String>,
    /// Omit columns QD and SEQ and the histograms of size and seek distance, which are computed
    /// from single requests; the kernel aggregates all other values and transfers no requests
    #[arg(long)]
    frugal: bool,
    /// Print tables instead of drawing a screen; the default if standard output is not a terminal
    #[arg(short, long)]
    batch: bool,
    /// Print a JSON object per interval
    #[arg(short = 'j', long, requires = "batch")]
    json: bool,
    /// Number of tables [default: unlimited]
    #[arg(short = 'n', long = "iterations", value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    iterations: Option<u64>,
    /// Level at which requests are counted: block for the block layer of the host, vdisk for the
    /// virtual disks, from QEMU's counters
    #[arg(long, value_name = "LEVEL", default_value = "block", value_parser = ["block", "vdisk"])]
    level: String,
    /// Column to sort by: numbers in descending order, names in ascending order
    #[arg(short, long, value_name = "COLUMN", default_value = "load", value_parser = sortable())]
    sort: String,
    /// Reverse the sort order
    #[arg(short, long)]
    reverse: bool,
    /// Print the queries of this command and exit
    #[arg(long)]
    show_query: bool,
    /// Speed at which a file is replayed on the screen, as a multiple of the recorded speed
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = speed)]
    speed: f64,
    /// Length of an interval in seconds, or with a unit such as 500ms [default: 1s]
    #[arg(value_name = "INTERVAL", value_parser = interval)]
    interval: Option<Duration>,
    /// Number of tables [default: unlimited]
    #[arg(value_name = "COUNT", conflicts_with = "iterations", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    #[command(flatten)]
    source: SourceArgs,
}

fn sortable() -> PossibleValuesParser {
    let names = ["vm", "disk", "op"].into_iter();
    PossibleValuesParser::new(names.chain(COLUMNS.iter().map(|c| c.name)))
}

fn interval(text: &str) -> Result<Duration, String> {
    let span = quantity::span(text)?;
    match span < INTERVAL_MIN {
        true => Err(format!("an interval must be at least {INTERVAL_MIN:?}")),
        false => Ok(span),
    }
}

fn speed(text: &str) -> Result<f64, String> {
    let speed = text
        .parse()
        .ok()
        .filter(|x: &f64| (0.001..=1e6).contains(x));
    speed.ok_or_else(|| "expected a number from 0.001 to 1000000, as in 10".to_owned())
}

/// The interval at which rows are read from the kernel, at least and at most.
const RHYTHMS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(200)];

impl TopArgs {
    /// The arguments for a display without single requests: rows may be read in larger batches,
    /// which is cheaper, and sampled.
    fn unhurried(&self) -> TopArgs {
        let mut args = self.clone();
        args.source.optional_rows = true;
        let poll_interval = (self.scope().interval / 10).clamp(RHYTHMS[0], RHYTHMS[1]);
        args.source.poll_interval = Some(poll_interval);
        args.source.idle = args.source.idle.max(poll_interval * 5);
        args
    }

    fn scope(&self) -> Scope {
        Scope {
            interval: self.interval.unwrap_or(Duration::from_secs(1)),
            vm: self.only_vm.clone(),
            disk: self.only_disk.clone(),
            live: self.source.is_live(),
            frugal: self.frugal,
        }
    }

    fn state(&self) -> State {
        let mut state = State::new(self.source.from.join(", "), self.scope().interval);
        let named = ["vm", "disk", "op"].iter().position(|n| *n == self.sort);
        let column = || COLUMNS.iter().position(|c| c.name == self.sort);
        let sort = named.or_else(|| Some(NAMES.len() + column()?));
        state.sort = sort.expect("clap knows the columns");
        state.reversed = self.reverse;
        state.level = self.level();
        state
    }

    fn level(&self) -> TopLevel {
        match self.level == "vdisk" {
            true => TopLevel::Vdisk,
            false => TopLevel::Block,
        }
    }

    /// Whether a screen is requested and can be drawn.
    fn on_screen(&self) -> bool {
        let dumb = std::env::var("TERM").map_or(true, |term| term.is_empty() || term == "dumb");
        !self.batch && !dumb && std::io::stdout().is_terminal() && std::io::stdin().is_terminal()
    }
}

pub fn run(args: &TopArgs, verbose: bool) -> Result<Ending, Failure> {
    if args.frugal && SINGLE.contains(&args.sort.as_str()) {
        return Err(Failure::words(format_args!(
            "--sort {}: --frugal omits this column; sort by another column, or omit --frugal",
            args.sort
        )));
    }
    let mut args = args.unhurried();
    if !args.show_query {
        names::find(
            &mut args.source,
            args.only_vm.as_deref(),
            &mut args.only_disk,
        )?;
    }
    let args = &args;
    let scope = args.scope();
    if args.show_query {
        let all = scope.all().into_iter();
        let all = all.map(|(what, query)| format!("-- {what}\n{query}\n"));
        output::print(&all.collect::<Vec<_>>().join("\n"))?;
        return Ok(Ending::Done);
    }
    let stop = Stop::on_signals()?;
    let unobserved = UnobservedDevices::of(&args.source);
    match args.on_screen() {
        true => on_screen(args, &scope, &stop, verbose),
        false => {
            let ending = in_batch(args, &scope, &stop, verbose)?;
            unobserved.report();
            Ok(ending)
        }
    }
}

/// Writes a table for each interval.
fn in_batch(args: &TopArgs, scope: &Scope, stop: &Stop, verbose: bool) -> Result<Ending, Failure> {
    let (live, json) = (scope.live, args.json);
    let mut state = args.state();
    let mut target = output::standard_output(live)?;
    let mut left = args.count.or(args.iterations).unwrap_or(u64::MAX);
    let mut run = Run::new(args, scope, args.level())?;
    let printed = Arc::new(AtomicBool::new(false));
    let any = printed.clone();
    let take: TickHandler = run.whole_intervals(Box::new(move |tick| {
        // Intervals of a recording without requests are skipped.
        if !live && tick.lines.is_empty() {
            return Ok(true);
        }
        state.add_tick(tick);
        let text = if json {
            batch::json(&state)
        } else {
            batch::text(&state)
        };
        target.put(&text)?;
        target.flush()?;
        any.store(true, Ordering::Relaxed);
        left -= 1;
        Ok(left > 0)
    }));
    run.open(&[], stop)?;
    let options = options(args, None, &run);
    let splits = scope.splits(args.level());
    let (engine, inputs, shows) = run.begin(&TickAssembler::new(splits, take), None)?;
    let report = run_loop::run(engine, inputs, shows, options, stop)?;
    if !printed.load(Ordering::Relaxed) {
        output::notice("weir: no requests were observed");
    }
    conclude(report, verbose)
}

/// Shows the screen until the user leaves it.
fn on_screen(args: &TopArgs, scope: &Scope, stop: &Stop, verbose: bool) -> Result<Ending, Failure> {
    let (ticks, reader) = Ticks::new();
    let published = ticks.clone();
    let mut left = args.count.or(args.iterations).unwrap_or(u64::MAX);
    let (run, levels) = Run::of_screen(args, scope, stop)?;
    let placement = run.placement.clone();
    let splits = scope.splits(TopLevel::Block);
    let take = run.whole_intervals(Box::new(move |tick| {
        published.publish(tick);
        left -= 1;
        Ok(left > 0)
    }));
    let gather = TickAssembler::new(splits, take);
    let (changes, requested) = channel();
    let options = options(args, Some(requested), &run);
    let (engine, inputs, shows) = run.begin(&gather, Some(args.speed))?;
    let mut state = args.state();
    state.levels = levels;
    let details = ViewQueries {
        scope: scope.clone(),
        placement,
        gather,
        changes,
        asked: None,
        questions_ever: SINGLES,
        unobserved: UnobservedDevices::of(&args.source),
    };
    let stays = !scope.live && left_open(args);
    let screen = show(state, reader, details, stop.clone(), stays)?;
    let report = run_loop::run(engine, inputs, shows, options, stop);
    ticks.close();
    match screen.join() {
        Ok(shown) => shown?,
        Err(panic) => std::panic::resume_unwind(panic),
    }
    conclude(report?, verbose)
}

/// Whether the screen stays open when a recording has ended.
fn left_open(args: &TopArgs) -> bool {
    args.count.or(args.iterations).is_none()
}

/// Starts the thread of the screen.
fn show(
    state: State,
    mut ticks: TickReader,
    mut details: ViewQueries,
    stop: Stop,
    stays: bool,
) -> Result<JoinHandle<std::io::Result<()>>, Failure> {
    let screen = Screen::open(Ink::of(|name| std::env::var(name).ok()))?;
    let unobserved = details.unobserved.clone();
    let body = move || {
        // The taps are closed when the screen ends, also after a panic.
        let _end = Abandon(stop.clone());
        let update = |state: &mut State| {
            let mut new = ticks.read(state);
            let closed = ticks.is_closed();
            if new {
                let empty = state.tick.lines.is_empty();
                state.unobserved = empty.then(|| unobserved.sentence()).flatten();
            }
            if stop.signal().is_some() || closed && !stays {
                return None;
            }
            new |= closed && !std::mem::replace(&mut state.ended, closed);
            Some(new)
        };
        screen::watch(screen, state, update, |action, state| {
            details.perform(action, state)
        })
    };
    let thread = thread::Builder::new().name("screen".into()).spawn(body);
    Ok(thread?)
}

struct Abandon(Stop);

impl Drop for Abandon {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// Runs the query of the current view.
struct ViewQueries {
    scope: Scope,
    placement: Placement,
    gather: Arc<Mutex<TickAssembler>>,
    changes: Sender<Change>,
    asked: Option<u64>,
    questions_ever: u64,
    unobserved: UnobservedDevices,
}

impl ViewQueries {
    fn perform(&mut self, action: &KeyAction, state: &mut State) {
        match action {
            KeyAction::QueryView => self.ask_detail(state),
            KeyAction::QueryLevel => self.switch(state),
            KeyAction::Interrupt => {
                // As if the terminal had sent it. If that fails, the screen ends nevertheless.
                let _ = signal_hook::low_level::raise(SIGINT);
            }
            _ => {}
        }
    }

    /// Starts the query of the current view, in addition to those of the table.
    fn ask_detail(&mut self, state: &mut State) {
        if let Some(name) = self.asked.take() {
            self.send(Change::End { name });
        }
        let (part, text) = match state.view() {
            View::All | View::Vm(_) => return,
            View::Rest => (QueryPart::Submitters, self.scope.submitters()),
            View::Disk(disk) => (QueryPart::Bars, self.scope.histograms(&disk)),
        };
        self.questions_ever += 1;
        self.asked = Some(self.questions_ever);
        self.ask(self.questions_ever, part, &text, state);
    }

    /// Replaces the queries of this level with those of the other one.
    fn switch(&mut self, state: &mut State) {
        self.ask_detail(state);
        let level = state.level;
        let single = self.scope.splits(level).then(|| self.scope.single());
        for (name, part, text) in [
            (LINES, QueryPart::Lines, Some(self.scope.lines(level))),
            (TOTALS, QueryPart::Totals, Some(self.scope.totals(level))),
            (SINGLES, QueryPart::Single, single),
        ] {
            self.send(Change::End { name });
            if let Some(text) = text {
                self.ask(name, part, &text, state);
            }
        }
    }

    fn ask(&self, name: u64, part: QueryPart, text: &str, state: &mut State) {
        let Ok(checked) = queries::checked(text, self.scope.live) else {
            state.notice = Some("this name cannot be written in CQL".into());
            return;
        };
        // Histograms grow with each request; the other views show complete intervals.
        let since = match self.scope.live && part != QueryPart::Bars {
            true => wall_clock().saturating_add(quantity::nanos(self.scope.interval)),
            false => Nanos::MIN,
        };
        let sink = PartSink::boxed(part, &checked.plan.schema, since, &self.gather);
        let plan = Arc::new(self.placement.rewrite(&checked.plan));
        self.send(Change::Ask { name, plan, sink });
    }

    fn send(&self, change: Change) {
        // When the loop has ended, the content of the screen remains.
        let _ = self.changes.send(change);
    }
}

fn options(args: &TopArgs, changes: Option<Receiver<Change>>, run: &Run<'_>) -> LoopOptions {
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

/// The names, in changes, of the queries of the table, of the totals, and of the columns that are
/// computed from single requests. The queries of views have higher numbers.
const LINES: u64 = 1;
const TOTALS: u64 = 2;
const SINGLES: u64 = 3;

/// One run: its checked queries and its sources.
struct Run<'a> {
    args: &'a TopArgs,
    interval_ns: Nanos,
    asked: Vec<(QueryPart, Option<u64>, Arc<Plan>)>,
    inputs: Vec<TapInput>,
    /// How the queries run.
    placement: Placement,
    /// The current counters of the taps.
    counts: Arc<Mutex<Vec<EventCount>>>,
    /// Requests were lost when the recording was made.
    lossy_recording: Arc<AtomicBool>,
    /// The instant of the last tick that was processed.
    shown: Arc<AtomicI64>,
}

impl<'a> Run<'a> {
    /// The queries of a level.
    fn new(args: &'a TopArgs, scope: &Scope, level: TopLevel) -> Result<Run<'a>, Failure> {
        let single = scope.splits(level).then(|| scope.single());
        let single = single.map(|text| (QueryPart::Single, Some(SINGLES), text));
        let asked = [
            (QueryPart::Lines, Some(LINES), scope.lines(level)),
            (QueryPart::Totals, Some(TOTALS), scope.totals(level)),
            (QueryPart::Losses, None, scope.losses()),
        ];
        let asked = asked.into_iter().chain(single).map(|(part, name, text)| {
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
    /// are dropped; and whether it serves both levels.
    fn of_screen(
        args: &'a TopArgs,
        scope: &Scope,
        stop: &Stop,
    ) -> Result<(Run<'a>, bool), Failure> {
        let mut run = Run::new(args, scope, args.level())?;
        let details = vec![
            (QueryPart::Submitters, scope.submitters()),
            (QueryPart::Bars, scope.histograms(&queries::ANY_DISK)),
        ];
        let levels = [TopLevel::Block, TopLevel::Vdisk];
        let levels = levels.map(|level| (QueryPart::Lines, scope.lines(level)));
        // For the return from the other level to the host's requests.
        let single = (QueryPart::Single, scope.single());
        let single = scope.splits(TopLevel::Block).then_some(single);
        let all = [details.clone(), levels.to_vec()].concat();
        let all: Vec<(QueryPart, String)> = all.into_iter().chain(single).collect();
        if scope.live && run.open(&all, stop).is_ok() {
            return Ok((run, true));
        }
        // QEMU cannot be queried on every host.
        let own = match args.level() {
            TopLevel::Block => details,
            TopLevel::Vdisk => Vec::new(),
        };
        run.open(&own, stop)?;
        Ok((run, false))
    }

    /// Opens the sources for the queries, and for `later` ones.
    fn open(&mut self, later: &[(QueryPart, String)], stop: &Stop) -> Result<(), Failure> {
        let scope = self.args.scope();
        let later = later.iter().map(|(part, text)| {
            let plan = queries::checked(text, scope.live)?.plan;
            Ok((*part, plan))
        });
        let later: Vec<(QueryPart, Arc<Plan>)> = later.collect::<Result<_, Failure>>()?;
        let asked = self.asked.iter().map(|(part, _, plan)| (part, plan));
        let all = asked.chain(later.iter().map(|(part, plan)| (part, plan)));
        // The details of a disk and the positions of requests are computed from rows.
        let needs_rows = |part: &QueryPart| match part {
            QueryPart::Single => true,
            QueryPart::Bars => !scope.frugal,
            _ => false,
        };
        let (rows, others): (Vec<_>, Vec<_>) = all.partition(|(part, _)| needs_rows(part));
        let [rows, others] = [rows, others].map(|plans| {
            let plans = plans.into_iter().map(|(_, plan)| &**plan);
            plans.collect::<Vec<&Plan>>()
        });
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
    fn whole_intervals(&self, mut take: TickHandler) -> TickHandler {
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
    fn begin(
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
