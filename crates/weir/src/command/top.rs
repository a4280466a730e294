//! `weir top`: VMs and their disks, ordered by load.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use signal_hook::consts::SIGINT;
use weir_model::Nanos;
use weir_query::place::Placement;
use weir_tap::ebpf::stream::StreamSwitch;

use super::top_run::{CACHED, LINES, Run, TOTALS, options};
use crate::args::SourceArgs;
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::names;
use weir_runtime::output;
use weir_runtime::quantity;
use weir_runtime::run_loop::conclude;
use weir_runtime::run_loop::{self, Change, Stop, wall_clock};
use weir_runtime::source;
use weir_runtime::unobserved::UnobservedDevices;
use weir_view::top::batch;
use weir_view::top::columns::{COLUMNS, TopColumn};
use weir_view::top::gather::{PartSink, QueryPart, TickAssembler, TickHandler};
use weir_view::top::levels;
use weir_view::top::queries::{self, Scope, TopLevel};
use weir_view::top::screen::{self, Ink, Screen};
use weir_view::top::state::{KeyAction, NAMES, State, View};
use weir_view::top::ticks::{TickReader, Ticks};

/// With shorter intervals, weir's own load would dominate.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Show the VMs and disks with the highest load
///
/// For each disk and operation: IOPS, throughput, latency and its parts, queue depth, and the share
/// of sequential requests. On a terminal, Enter opens a VM, then the histograms of a disk; f opens
/// the files of a disk; ? lists all keys. With --level file or app, the same by file or by process.
#[derive(Args, Debug, Clone)]
#[command(after_help = "Examples:\n  \
    weir top\n  \
    weir top -w web1 5\n  \
    weir top -b -n 3 --sort p99\n  \
    weir top -b --json 10 | jq .totals\n  \
    weir top --level file -i sda\n  \
    weir top --level app\n  \
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
    /// virtual disks, from QEMU's counters, file for the files of file systems, app for processes;
    /// file and app need kernel 6.6 or newer
    #[arg(long, value_name = "LEVEL", default_value = "block", value_parser = TopLevel::ALL.map(TopLevel::name))]
    level: String,
    /// Column to sort by: numbers in descending order, names in ascending order; a level has some
    /// of the columns only
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
    pub(super) source: SourceArgs,
}

fn sortable() -> PossibleValuesParser {
    let levels = TopLevel::ALL.into_iter().flat_map(name_columns);
    let mut names: Vec<&str> = Vec::new();
    for name in levels.chain(COLUMNS.iter().map(|c| c.name)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    PossibleValuesParser::new(names)
}

/// The columns of names at a level, as --sort has them.
fn name_columns(level: TopLevel) -> [&'static str; NAMES] {
    match level {
        TopLevel::Block | TopLevel::Vdisk => ["vm", "disk", "op"],
        TopLevel::File => ["file", "disk", "fs"],
        TopLevel::App => ["process", "cgroup", "vm"],
    }
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
    /// which is cheaper.
    fn unhurried(&self) -> TopArgs {
        let mut args = self.clone();
        let poll_interval = (self.scope().interval / 10).clamp(RHYTHMS[0], RHYTHMS[1]);
        args.source.poll_interval = Some(poll_interval);
        args.source.idle = args.source.idle.max(poll_interval * 5);
        args
    }

    pub(super) fn scope(&self) -> Scope {
        Scope {
            interval: self.interval.unwrap_or(Duration::from_secs(1)),
            vm: self.only_vm.clone(),
            disk: self.only_disk.clone(),
            devices: self.source.device.clone(),
            stacked: self.source.stacked,
            live: self.source.is_live(),
        }
    }

    fn state(&self) -> State {
        let mut state = State::new(self.source.from.join(", "), self.scope().interval);
        state.level = self.level();
        state.sort = self.sort_key().expect("run has checked it");
        state.reversed = self.reverse;
        state
    }

    pub(super) fn level(&self) -> TopLevel {
        TopLevel::of(&self.level).expect("clap knows the levels")
    }

    /// The sort key: names first, then the columns; `None` if the level does not have it.
    fn sort_key(&self) -> Option<usize> {
        let level = self.level();
        let mut names = name_columns(level).into_iter();
        let named = names.position(|name| name == self.sort);
        let has = |c: &TopColumn| c.name == self.sort && c.is_of(level);
        named.or_else(|| Some(NAMES + COLUMNS.iter().position(has)?))
    }

    /// Whether a screen is requested and can be drawn.
    fn on_screen(&self) -> bool {
        let dumb = std::env::var("TERM").map_or(true, |term| term.is_empty() || term == "dumb");
        !self.batch && !dumb && std::io::stdout().is_terminal() && std::io::stdin().is_terminal()
    }
}

pub fn run(args: &TopArgs, verbose: bool) -> Result<Ending, Failure> {
    if args.sort_key().is_none() {
        return Err(Failure::words(format_args!(
            "--sort {}: level {} does not have this column; sort by another column",
            args.sort, args.level
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
    require_stream(args)?;
    let stop = Stop::on_signals()?;
    let unobserved = UnobservedDevices::of(&args.source);
    match args.on_screen() {
        true => on_screen(args, &scope, &stop, verbose),
        false => {
            let ending = in_batch(args, &scope, &stop, verbose)?;
            if args.level() == TopLevel::Block {
                unobserved.report();
            }
            Ok(ending)
        }
    }
}

/// Requires that a recording has the stream of the level.
fn require_stream(args: &TopArgs) -> Result<(), Failure> {
    let (level, stream) = (args.level(), levels::stream(args.level()));
    let is_recorded = matches!(level, TopLevel::File | TopLevel::App) && !args.source.is_live();
    if is_recorded && args.source.capabilities()?.stream(stream).is_none() {
        return Err(Failure::words(format_args!(
            "--level {}: {} has no stream {stream}; `weir record --stream {stream}` records it",
            args.level,
            args.source.from.join(", ")
        )));
    }
    Ok(())
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
    run.open_with_cache(stop)?;
    let options = options(args, None, &run);
    let (engine, inputs, shows) = run.begin(&TickAssembler::new(take), None)?;
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
    let switch = match scope.live {
        true => StreamSwitch::off(),
        false => StreamSwitch::default(),
    };
    let mut args = args.clone();
    args.source.switch = switch.clone();
    let args = &args;
    let (run, available) = Run::of_screen(args, scope, stop)?;
    let placement = run.placement.clone();
    let take = run.whole_intervals(Box::new(move |tick| {
        published.publish(tick);
        left -= 1;
        Ok(left > 0)
    }));
    let gather = TickAssembler::new(take);
    let (changes, requested) = channel();
    let options = options(args, Some(requested), &run);
    let (engine, inputs, shows) = run.begin(&gather, Some(args.speed))?;
    let mut state = args.state();
    (state.levels, state.level_absent) = (available.levels, available.absent);
    switch.attach_only(&state.streams());
    let details = ViewQueries {
        scope: scope.clone(),
        placement,
        gather,
        changes,
        asked: None,
        questions_ever: CACHED,
        switch,
        has_cache: available.has_cache,
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
                let empty = state.tick.lines.is_empty() && state.level == TopLevel::Block;
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
    /// Attaches the streams of the current level and view.
    switch: StreamSwitch,
    has_cache: bool,
    unobserved: UnobservedDevices,
}

impl ViewQueries {
    fn perform(&mut self, action: &KeyAction, state: &mut State) {
        if matches!(action, KeyAction::QueryView | KeyAction::QueryLevel) {
            self.switch.attach_only(&state.streams());
        }
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
            View::Rest => (QueryPart::Details, self.scope.submitters()),
            View::Files(of) => (QueryPart::Details, self.scope.files(&of)),
            View::Processes(file, level) => {
                (QueryPart::Details, self.scope.processes(&file, level))
            }
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
        let has_cache = self.has_cache && level == TopLevel::File;
        let cached = has_cache.then(|| self.scope.cached());
        for (name, part, text) in [
            (LINES, QueryPart::Lines, Some(self.scope.lines(level))),
            (TOTALS, QueryPart::Totals, Some(self.scope.totals(level))),
            (CACHED, QueryPart::Cached, cached),
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
            // A stream of the view is attached when its rows are read the next time.
            true => wall_clock().saturating_add(quantity::nanos(self.scope.interval + RHYTHMS[1])),
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
