//! [`OpenTap`]: a tap of the agent on a thread of its own.

use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use weir_model::{Capabilities, Catalog, Demand, Nanos, Symbol};
use weir_tap::{Tap, ebpf};

use super::clock::AgentClock;
use super::demands::covers;
use super::folds;
use super::outlet::Outlet;
use super::paced::{Paced, Replay};
use weir_runtime::failure::Failure;
use weir_runtime::run_loop::{Account, Feed, Message, Stop};
use weir_runtime::source::{self, Source, SourceOptions};

/// What a tap says waits in a queue of so many words; then the tap waits.
const QUEUE_MAX: usize = 16;

/// How often a tap's counts are read.
const COUNTS_EVERY: Duration = Duration::from_millis(200);

/// Where events come from.
#[derive(Clone, Debug)]
pub struct Ground {
    /// The source, which is one, and what of it.
    pub args: SourceOptions,
    /// Of a recording: when its events happen again.
    pub replay: Replay,
    /// The agent's name: what column `host` says, whatever the system is called.
    pub host: Symbol,
    /// Numbers of requests are counted from here, so that they are not those of another process of
    /// the agent.
    pub first_number: i64,
    /// The agent's clock.
    pub clock: AgentClock,
}

/// A tap that was opened, or is being opened.
pub struct OpenTap {
    /// What it was opened for.
    pub demands: Vec<Demand>,
    /// What the engine calls the source of each demand.
    pub sources: Vec<String>,
    /// Where the rows of each demand leave.
    pub outlets: Vec<Outlet>,
    /// What it counted.
    pub account: Account,
    /// Up to when it has told everything, in the agent's own time; `None` before its first word.
    pub reached: Option<Nanos>,
    /// It says no more.
    pub ended: bool,
    /// What it tells happens now.
    pub live: bool,
    /// When it was asked for, by the agent's steady time.
    pub begun: Nanos,
    arrivals: Receiver<Message>,
    stop: Stop,
    failure: Arc<OnceLock<String>>,
}

impl Ground {
    /// True if the events happen now.
    pub fn is_live(&self) -> bool {
        self.args.is_live()
    }

    /// What its sources can do, if the events happen now.
    pub fn live_capabilities(&self) -> Option<Capabilities> {
        self.is_live().then(|| folds::capabilities(&self.args))
    }

    /// True if those demands are served by this host as it is now, and not by a recording.
    fn serves_live(&self, demands: &[Demand]) -> bool {
        self.is_live() || !demands.iter().any(source::is_io)
    }

    /// Opens the tap for demands that one serves.
    ///
    /// # Errors
    /// When a file cannot be read or its format is unknown, or the host does not let us watch it.
    pub fn open(&self, demands: &[Demand]) -> Result<Box<dyn Tap>, Failure> {
        let live = self.serves_live(demands);
        // What is no I/O tells the host, whoever tells of I/O.
        let source = match demands.iter().any(source::is_io) {
            true => Source::new(&self.args.from[0]),
            false => Source::Live,
        };
        let mut args = self.args.clone();
        args.host = Some(self.host);
        let mut inputs = source::inputs(&source, &args, demands, Vec::new())?;
        let input = inputs.pop();
        let tap = input.expect("demands of one tap open one").tap;
        Ok(match live {
            true => tap,
            false => Box::new(Paced::new(tap, demands, self.replay, self.clock)),
        })
    }
}

impl OpenTap {
    /// Opens a tap for `demands`, on a thread that wakes this one when it has something to say.
    pub fn open(ground: &Ground, demands: Vec<Demand>, sources: Vec<String>) -> OpenTap {
        let (messages, arrivals) = sync_channel(QUEUE_MAX);
        let stop = Stop::new();
        let failure = Arc::new(OnceLock::new());
        let (own, asked, failed) = (ground.clone(), demands.clone(), failure.clone());
        let (stopped, listener) = (stop.clone(), thread::current());
        let run = move || match own.open(&asked) {
            Ok(tap) => {
                if own.is_live() {
                    // What it reads is open. Without the right to give up rights, there are none.
                    let _ = ebpf::reduce_thread(ebpf::Files::Open);
                }
                let feed = Feed {
                    tap,
                    live: true,
                    span_ns: None,
                    stop: stopped,
                    counts_every: COUNTS_EVERY,
                    whole: false,
                    messages,
                    listener,
                };
                feed.run();
            }
            Err(error) => drop(failed.set(error.text())),
        };
        let name = thread::Builder::new().name("tap".into());
        let started = name.spawn(run);
        if let Err(error) = started {
            let _ = failure.set(format!("no thread for a tap: {error}"));
        }
        OpenTap {
            outlets: demands.iter().map(|d| outlet(d, ground)).collect(),
            account: Account::default(),
            reached: None,
            ended: false,
            live: ground.serves_live(&demands),
            begun: ground.clock.steady(),
            demands,
            sources,
            arrivals,
            stop,
            failure,
        }
    }

    /// A live tap without rows of its own, that says those words.
    #[cfg(test)]
    pub fn saying(arrivals: Receiver<Message>) -> OpenTap {
        OpenTap {
            demands: Vec::new(),
            sources: Vec::new(),
            outlets: Vec::new(),
            account: Account::default(),
            reached: None,
            ended: false,
            live: true,
            begun: 0,
            arrivals,
            stop: Stop::new(),
            failure: Arc::default(),
        }
    }

    /// True if a fragment with these demands can start.
    pub fn gives(&self, demands: &[Demand]) -> bool {
        self.reached.is_some() && covers(&self.demands, demands)
    }

    /// How long the intervals are of which it tells groups, if it does.
    pub fn interval(&self) -> Option<Nanos> {
        let folds = self.demands.iter().filter_map(|d| d.fold.as_ref());
        folds.map(|fold| fold.interval).next()
    }

    /// What the tap says next, if it has said something.
    pub fn next(&mut self) -> Option<Message> {
        if self.ended {
            return None;
        }
        match self.arrivals.try_recv() {
            Ok(word) => Some(word),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Message::End),
        }
    }

    /// Why it could not be opened.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }
}

impl Drop for OpenTap {
    fn drop(&mut self) {
        // Its thread ends at the next occasion, and takes the probes away.
        self.stop.abandon();
    }
}

fn outlet(demand: &Demand, ground: &Ground) -> Outlet {
    let catalog = Catalog::builtin();
    let declaration = catalog.find(&demand.stream);
    let schema = &declaration
        .expect("fragments name streams of the catalog")
        .schema;
    let mut outlet = Outlet::new(ground.host, schema, &demand.columns);
    outlet.first_number = ground.first_number;
    outlet
}
