//! `weir console-source`: started by `weir console`, to read the live source once for the queries
//! of all tabs. Not for direct use.
//!
//! The protocol is [`weir_console::shared_source`].

use std::io::{BufRead, BufReader, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use clap::Args;
use weir_console::shared_source::{ChunkWriter, SourceEnd, SourceRequest, write_end};
use weir_model::{Batch, Capabilities, Catalog, Shape, StoredView};
use weir_query::engine::{Engine, EngineOptions};
use weir_query::{Checked, Plan, compile};
use weir_runtime::failure::{Ending, Failure};
use weir_runtime::question::{self, QueryText, with_views};
use weir_runtime::recent::{RecentLimits, RecentRows};
use weir_runtime::run_loop::{
    self, Change, LoopOptions, ProgressKind, Route, Show, Stop, TapInput, wall_clock,
};
use weir_runtime::source::SourceOptions;
use weir_runtime::{device_names, output, plans, source, views};
use weir_sink::last::FinalRelation;
use weir_sink::{InstantUnit, Sink, SinkError, Target};
use weir_tap::ebpf::Files;

use crate::args::{DefinitionArgs, LimitArgs, OwnerArgs, RecentArgs, SourceArgs};

/// The stream whose rows are shared and retained.
const STREAM: &str = "IO";

/// Columns that need further probes. A query of one of them is a process of its own.
const EXPENSIVE_COLUMNS: [&str; 2] = ["file", "inode"];

/// The query that keeps the loop running while there is no other one.
const ANCHOR: &str = "select count(*) from IO [range 1 s slide 1 s]";

/// The maximum size of a request in bytes.
const REQUEST_BYTES_MAX: u64 = 256 << 10;

/// The time within which a client must receive a chunk.
const WRITE_TIME_MAX: Duration = Duration::from_secs(5);

/// The maximum delay of rows.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Options of the process; `weir console` passes its own.
#[derive(Args, Debug)]
pub struct ConsoleSourceArgs {
    #[command(flatten)]
    define: DefinitionArgs,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    recent: RecentArgs,
    #[command(flatten)]
    owner: OwnerArgs,
}

/// What the connections share.
struct Service {
    source: SourceOptions,
    capabilities: Capabilities,
    /// The catalog with the stored views, as it was at the start.
    catalog: Catalog,
    /// The definitions of `--define`, before each query.
    definitions: String,
    query_bytes_max: usize,
    owner: OwnerArgs,
    /// The retained rows of each input.
    recent: Vec<Arc<RecentRows>>,
    changes: Sender<Change>,
    queries_ever: AtomicU64,
}

pub fn run(args: &ConsoleSourceArgs) -> Result<Ending, Failure> {
    let stop = Stop::on_signals()?;
    let mut source: SourceOptions = (*args.source).clone();
    source.poll_interval = Some(POLL_INTERVAL);
    let definitions = args.define.before(QueryText::new(""), &source)?.text;
    let catalog = with_views(Catalog::builtin(), &stored_views());
    let capabilities = source.capabilities()?;
    let shared = checked_plan(&shared_query(&catalog), &catalog)?;
    let anchor = checked_plan(ANCHOR, &catalog)?;
    let placement = plans::of_rows(&[&shared, &anchor], &capabilities);
    let mut engine = args.limits.engine();
    let id = engine.add(&anchor);
    let inputs = source::open(&source, &placement, &stop)?;
    let schema = catalog
        .find(STREAM)
        .expect("a built-in stream")
        .schema
        .clone();
    let limits = RecentLimits {
        age: args.recent.recent,
        bytes: args.recent.recent_memory,
    };
    let mut recent = Vec::new();
    let retained = inputs.into_iter().map(|input| {
        let rows = RecentRows::new(schema.clone(), limits);
        recent.push(rows.clone());
        let tap = rows.of_tap(input.tap);
        TapInput { tap, ..input }
    });
    let inputs: Vec<TapInput> = retained.collect();
    let (changes, requested) = channel();
    let options = LoopOptions {
        idle: source.idle,
        own_stream: false,
        instant_ns: 1,
        progress: ProgressKind::Nothing,
        changes: Some(requested),
        whole: None,
        watermarks: true,
        counts: Arc::default(),
    };
    let (name, listener) = listen()?;
    source::drop_privileges(&source, &inputs, Files::Open)?;
    let service = Arc::new(Service {
        source,
        capabilities,
        catalog,
        definitions,
        query_bytes_max: args.limits.limit_memory,
        owner: args.owner.clone(),
        recent,
        changes,
        queries_ever: AtomicU64::new(0),
    });
    std::thread::spawn(move || accept(&listener, &service));
    end_with_input(stop.clone());
    output::print(&format!("{name}\n"))?;
    run_loop::run(
        engine,
        inputs,
        vec![Show::new(id, Box::new(Nothing))],
        options,
        &stop,
    )?;
    Ok(Ending::Done)
}

/// The stored views. Without them, queries that name one are processes of their own, which report
/// the error.
fn stored_views() -> Vec<StoredView> {
    views::read().unwrap_or_default()
}

/// All columns that the tap has anyway.
fn shared_query(catalog: &Catalog) -> String {
    let schema = &catalog.find(STREAM).expect("a built-in stream").schema;
    let names = schema.fields.iter().map(|field| &*field.name);
    let cheap: Vec<&str> = names
        .filter(|name| !EXPENSIVE_COLUMNS.contains(name))
        .collect();
    format!("select {} from {STREAM}", cheap.join(", "))
}

fn checked_plan(text: &str, catalog: &Catalog) -> Result<Arc<Plan>, Failure> {
    Ok(QueryText::new(text).check(catalog, true)?.plan)
}

/// An abstract socket with a name of its own.
fn listen() -> Result<(String, UnixListener), Failure> {
    // The process that connects is checked, so the name need not be secret.
    let name = format!("weir-console-{}-{}", std::process::id(), wall_clock());
    let bound = SocketAddr::from_abstract_name(&name);
    let listener = bound.and_then(|address| UnixListener::bind_addr(&address));
    let listener = listener.map_err(|e| Failure::world(format!("the socket: {e}")))?;
    Ok((name, listener))
}

/// Stops when the console has closed the standard input of this process.
fn end_with_input(stop: Stop) {
    std::thread::spawn(move || {
        // An error ends the input as its end does.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        stop.abandon();
    });
}

/// Accepts connections of the process that has started this one.
fn accept(listener: &UnixListener, service: &Arc<Service>) {
    for stream in listener.incoming() {
        // The client has disconnected, or there is no file descriptor left.
        let Ok(stream) = stream else {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        let peer = rustix::net::sockopt::socket_peercred(&stream);
        if !peer.is_ok_and(|peer| Some(peer.pid) == rustix::process::getppid()) {
            continue;
        }
        let service = service.clone();
        std::thread::spawn(move || {
            // Either way the connection is closed, which the console reports.
            let _ = serve(stream, &service);
        });
    }
}

fn serve(mut stream: UnixStream, service: &Service) -> std::io::Result<()> {
    let mut line = String::new();
    BufReader::new((&stream).take(REQUEST_BYTES_MAX)).read_line(&mut line)?;
    let request: SourceRequest = serde_json::from_str(&line)?;
    let (q, recent, format, last) = match request {
        SourceRequest::Interval => return write_end(&mut stream, &service.interval()),
        SourceRequest::Query {
            q,
            recent,
            format,
            last,
        } => (q, recent, format, last),
    };
    let plan = match service.plan(&q) {
        Ok(plan) => plan,
        Err(end) => return write_end(&mut stream, &end),
    };
    if !recent {
        stream.set_write_timeout(Some(WRITE_TIME_MAX))?;
    }
    let sink = match service.sink(&plan, &stream, &format, last) {
        Ok(sink) => sink,
        Err(error) => return write_end(&mut stream, &SourceEnd::new("failed", error.to_string())),
    };
    match recent {
        true => {
            let end = service.run_recent(&plan, sink, last, &stream);
            write_end(&mut stream, &end)
        }
        false => service.run_live(&plan, sink, stream),
    }
}

impl Service {
    fn interval(&self) -> SourceEnd {
        let intervals = self.recent.iter().filter_map(|rows| rows.interval());
        let both = intervals.reduce(|a, b| (a.0.max(b.0), a.1.min(b.1)));
        SourceEnd {
            since: both.map(|both| both.0),
            until: both.map(|both| both.1),
            ..SourceEnd::new("end", "")
        }
    }

    /// The plan of a query that the shared rows can answer.
    fn plan(&self, text: &str) -> Result<Arc<Plan>, SourceEnd> {
        let unsuited = |why: &str| SourceEnd::new("unsuited", why);
        let text = format!("{}{text}", self.definitions);
        let checked: Checked = compile(&text, &self.catalog, &question::options(true))
            .map_err(|_| unsuited("the query is incorrect, or of another stream"))?;
        // A query that is refused is a process of its own, which reports the reason.
        let plan = self.owner.restricted(checked.plan);
        let plan = plan.map_err(|_| unsuited("it reads rows of other VMs"))?;
        let plan = device_names::resolved(&plan, &self.source);
        let plan = plans::paired(&plan, &self.capabilities).plan;
        let placement = plans::of_rows(&[&plan], &self.capabilities);
        if placement.demands.is_empty() || plans::read_own_stream(&[&plan]) {
            return Err(unsuited("it reads no requests"));
        }
        let schema = &self.catalog.find(STREAM).expect("a built-in stream").schema;
        let is_shared = placement.demands.iter().all(|demand| {
            let mut columns = demand.columns.iter();
            let is_cheap = |&at: &usize| !EXPENSIVE_COLUMNS.contains(&&*schema.fields[at].name);
            demand.stream.eq_ignore_ascii_case(STREAM) && columns.all(is_cheap)
        });
        match is_shared {
            true => Ok(plan),
            false => Err(unsuited("it reads other streams or columns")),
        }
    }

    fn sink(
        &self,
        plan: &Plan,
        stream: &UnixStream,
        format: &str,
        last: bool,
    ) -> Result<Box<dyn Sink>, SinkError> {
        let answer = plans::answer(plan, InstantUnit::Nanoseconds, false, last);
        let io = |error| SinkError::io("the client", error);
        let writer = ChunkWriter(stream.try_clone().map_err(io)?);
        let target = Target::new("the client", Box::new(writer), None);
        let Some(format) = weir_sink::format(format) else {
            return Err(SinkError::Unsuited {
                what: format!("unknown format {format}"),
                remedy: "use arrow".into(),
            });
        };
        Ok(match last {
            true => Box::new(FinalRelation::open(format, answer, target)?),
            false => (format.open)(answer, target)?,
        })
    }

    /// Runs a query on the retained rows.
    fn run_recent(
        &self,
        plan: &Arc<Plan>,
        sink: Box<dyn Sink>,
        last: bool,
        stream: &UnixStream,
    ) -> SourceEnd {
        let mut engine = Engine::new(EngineOptions {
            query_bytes_max: self.query_bytes_max,
            ..EngineOptions::default()
        });
        let id = match last {
            true => engine.add_final(plan),
            false => engine.add(plan),
        };
        let route = Route {
            demand: 0,
            source: STREAM.into(),
            instant_ns: 1,
            mapping: None,
        };
        let input = |rows: &Arc<RecentRows>| TapInput {
            tap: rows.replay(),
            live: false,
            span_ns: None,
            routes: vec![route.clone()],
        };
        let options = LoopOptions {
            idle: self.source.idle,
            own_stream: false,
            instant_ns: 1,
            progress: ProgressKind::Nothing,
            changes: None,
            whole: Some(plan.clone()),
            watermarks: false,
            counts: Arc::default(),
        };
        let stop = Stop::new();
        abandon_at_close(stream, &stop);
        let inputs = self.recent.iter().map(input).collect();
        let report = run_loop::run(engine, inputs, vec![Show::new(id, sink)], options, &stop);
        match report {
            Ok(report) => match report.failed.first() {
                Some((_, error)) => SourceEnd::new("failed", error.to_string()),
                None => SourceEnd::new("end", ""),
            },
            Err(failure) => SourceEnd::new("failed", failure.text()),
        }
    }

    /// Runs a query on live rows until the client closes the connection.
    fn run_live(
        &self,
        plan: &Arc<Plan>,
        sink: Box<dyn Sink>,
        mut stream: UnixStream,
    ) -> std::io::Result<()> {
        let name = self.queries_ever.fetch_add(1, Ordering::Relaxed);
        // The slide that is open now is incomplete.
        let since = plan
            .open_slide(wall_clock())
            .map_or(i64::MIN, |open| open.end);
        let sink = ClientSink {
            sink: Some(sink),
            stream: stream.try_clone()?,
            after: match plan.shape {
                Shape::Stream => since,
                Shape::Relation => i64::MIN,
            },
        };
        let plan = plan.clone();
        let sink = Box::new(sink);
        // If the loop has ended, the process ends.
        let _ = self.changes.send(Change::Ask { name, plan, sink });
        let read = std::io::copy(&mut stream, &mut std::io::sink());
        let _ = self.changes.send(Change::End { name });
        read.map(drop)
    }
}

/// Ends a run when the client closes the connection.
fn abandon_at_close(stream: &UnixStream, stop: &Stop) {
    let Ok(mut stream) = stream.try_clone() else {
        return;
    };
    let stop = stop.clone();
    std::thread::spawn(move || {
        // An error ends the connection as its end does.
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
        stop.abandon();
    });
}

/// The sink of one client. Its errors end that client's query and no other.
struct ClientSink {
    sink: Option<Box<dyn Sink>>,
    stream: UnixStream,
    /// Rows of a stream up to this instant are omitted.
    after: i64,
}

impl ClientSink {
    fn with(&mut self, act: impl FnOnce(&mut dyn Sink) -> Result<(), SinkError>) {
        if let Some(sink) = &mut self.sink
            && act(&mut **sink).is_err()
        {
            self.end(&SourceEnd::new("failed", "the client is too slow"));
        }
    }

    fn end(&mut self, end: &SourceEnd) {
        if self.sink.take().is_some() {
            // The client may have disconnected.
            let _ = write_end(&mut self.stream, end);
            let _ = self.stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Sink for ClientSink {
    fn write(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let from = batch.ts.partition_point(|&ts| ts <= self.after);
        if from < batch.len() {
            let batch = batch.slice(from, batch.len() - from);
            self.with(|sink| sink.write(&batch));
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        self.with(|sink| sink.flush());
        Ok(())
    }

    fn fail(&mut self, error: &str) -> Result<(), SinkError> {
        self.end(&SourceEnd::new("failed", error));
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SinkError> {
        self.with(|sink| sink.finish());
        self.end(&SourceEnd::new("end", ""));
        Ok(())
    }
}

/// The sink of the query that keeps the loop running.
struct Nothing;

impl Sink for Nothing {
    fn write(&mut self, _: &Batch) -> Result<(), SinkError> {
        Ok(())
    }
}
