//! [`OpenTap`]: a tap of the agent on a separate thread.

use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use weir_model::{Catalog, Demand, Nanos, Symbol};
use weir_tap::source::{LIVE, SourceName, TAPDISK};
use weir_tap::{Retimed, Tap, TapError, ebpf, live};

use super::clock::AgentClock;
use super::demands::{Served, covers};
use super::paced::{PacedReplay, ReplayClock};
use super::row_conversion::RowConversion;
use weir_runtime::failure::Failure;
use weir_runtime::run_loop::{Feed, Message, Stop, TapCounts};
use weir_runtime::source::{self, SourceOptions};

/// The capacity of a tap's queue, in messages; the tap blocks when it is full.
const QUEUE_MAX: usize = 16;

/// The interval at which a tap's counters are read.
const COUNTS_EVERY: Duration = Duration::from_millis(200);

/// The source configuration.
#[derive(Clone, Debug)]
pub struct SourceConfig {
    /// The source and its options.
    pub args: SourceOptions,
    /// For a recording: the times of the replayed events.
    pub replay: ReplayClock,
    /// The agent's name: the content of column `host`, whatever the system's host name is.
    pub host: Symbol,
    /// The first request number, so that numbers differ from those of another process of the agent.
    pub first_number: i64,
    /// The agent's clock.
    pub clock: AgentClock,
    /// In a guest, its VM by name or UUID: rows have level `guest` and this VM.
    pub guest: Option<Symbol>,
}

/// A tap that is open or is being opened.
pub struct OpenTap {
    /// The demands for which it was opened.
    pub demands: Vec<Demand>,
    /// The engine's name of the source of each demand.
    pub sources: Vec<String>,
    /// The [`RowConversion`] of the rows of each demand.
    pub conversions: Vec<RowConversion>,
    /// Its counters.
    pub account: TapCounts,
    /// Its watermark, in the agent's time; `None` before its first message.
    pub reached: Option<Nanos>,
    /// It has ended.
    pub ended: bool,
    /// Its events occur now.
    pub live: bool,
    /// The time at which it was requested, in the agent's time.
    pub started_at: Nanos,
    arrivals: Receiver<Message>,
    stop: Stop,
    failure: Arc<OnceLock<String>>,
}

impl SourceConfig {
    /// True if the events occur now.
    pub fn is_live(&self) -> bool {
        self.args.is_live()
    }

    /// The streams of the source, and of the host.
    ///
    /// # Errors
    /// When a recording cannot be read.
    pub fn served(&self) -> Result<Served, Failure> {
        let own = self.args.capabilities()?;
        let own = own.or(live::capabilities()).in_a_fleet();
        Ok(Served {
            capabilities: match self.guest {
                // The rows' own values are replaced after the tap.
                Some(_) => own.ungrouped(&["vm", "vdisk", "level"]),
                None => own,
            },
            is_live: self.is_live(),
        })
    }

    /// What fragments can name: the built-in sources, and the streams of this source and of the
    /// host.
    fn catalog(&self) -> Catalog {
        let own = self.args.capabilities().unwrap_or_default();
        own.or(live::capabilities()).catalog()
    }

    /// The source.
    fn name(&self) -> SourceName {
        SourceName::new(&self.args.from[0])
    }

    /// Whether those demands are on streams of the source. Others are read from the host, whatever
    /// the source is.
    fn is_own(&self, demands: &[Demand]) -> Result<bool, TapError> {
        let source = self.args.open(&self.name())?;
        let own = source.capabilities()?;
        Ok(demands.iter().all(|d| own.stream(&d.stream).is_some()))
    }

    /// True if those demands are served by this host's live state, and not by a recording.
    fn serves_live(&self, demands: &[Demand]) -> bool {
        self.is_live() || !self.is_own(demands).unwrap_or(true)
    }

    /// Opens one tap for all of the demands.
    ///
    /// # Errors
    /// If a file cannot be read, its format is unknown, or the host does not permit observation.
    pub fn open(&self, demands: &[Demand]) -> Result<Box<dyn Tap>, Failure> {
        let live = self.serves_live(demands);
        let name = match self.is_own(demands)? {
            true => self.name(),
            false => LIVE.named(""),
        };
        let mut args = self.args.clone();
        args.host = Some(self.host);
        let mut inputs = source::inputs(&[name], &args, demands, Vec::new())?;
        let input = inputs.pop();
        let tap = input.expect("demands of one tap open one").tap;
        Ok(match live {
            true => tap,
            false => {
                let timing = PacedReplay::new(demands, &self.catalog(), self.replay, self.clock);
                Box::new(Retimed::new(tap, timing))
            }
        })
    }
}

impl OpenTap {
    /// Opens a tap for `demands`, on a thread that wakes the calling one when it has a message.
    pub fn open(
        source_config: &SourceConfig,
        demands: Vec<Demand>,
        sources: Vec<String>,
    ) -> OpenTap {
        let (messages, arrivals) = sync_channel(QUEUE_MAX);
        let stop = Stop::new();
        let failure = Arc::new(OnceLock::new());
        let (own, asked, failed) = (source_config.clone(), demands.clone(), failure.clone());
        let (stopped, listener) = (stop.clone(), thread::current());
        let run = move || match own.open(&asked) {
            Ok(tap) => {
                if own.is_live() {
                    // All files are open. A process without the right to drop capabilities has none
                    // to drop.
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
            Err(error) => {
                let _ = failed.set(error.text());
                drop(messages);
                listener.unpark();
            }
        };
        let name = thread::Builder::new().name("tap".into());
        let started = name.spawn(run);
        if let Err(error) = started {
            let _ = failure.set(format!("no thread for a tap: {error}"));
        }
        OpenTap {
            conversions: demands
                .iter()
                .map(|d| conversion(d, source_config))
                .collect(),
            account: TapCounts::default(),
            reached: None,
            ended: false,
            live: source_config.serves_live(&demands),
            started_at: source_config.clock.now(),
            demands,
            sources,
            arrivals,
            stop,
            failure,
        }
    }

    /// A live tap without a source, which sends these messages.
    #[cfg(test)]
    pub fn message_rows(arrivals: Receiver<Message>) -> OpenTap {
        OpenTap {
            demands: Vec::new(),
            sources: Vec::new(),
            conversions: Vec::new(),
            account: TapCounts::default(),
            reached: None,
            ended: false,
            live: true,
            started_at: 0,
            arrivals,
            stop: Stop::new(),
            failure: Arc::default(),
        }
    }

    /// True if a fragment with these demands can start.
    pub fn gives(&self, demands: &[Demand]) -> bool {
        self.reached.is_some() && covers(&self.demands, demands)
    }

    /// The interval of the groups that it delivers, if it delivers groups.
    pub fn interval(&self) -> Option<Nanos> {
        let folds = self.demands.iter().filter_map(|d| d.fold.as_ref());
        folds.map(|fold| fold.interval).next()
    }

    /// The next message of the tap, if one has arrived.
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

    /// The reason why it could not be opened.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }
}

impl Drop for OpenTap {
    fn drop(&mut self) {
        // Its thread ends at the next opportunity and detaches the probes.
        self.stop.abandon();
    }
}

fn conversion(demand: &Demand, source_config: &SourceConfig) -> RowConversion {
    let catalog = source_config.catalog();
    let declaration = catalog.find(&demand.stream);
    let schema = &declaration
        .expect("fragments name streams of the catalog")
        .schema;
    let mut conversion = RowConversion::new(source_config.host, schema, &demand.columns);
    conversion.first_number = source_config.first_number;
    conversion.is_of_tapdisk = source_config.name().argument(&TAPDISK).is_some();
    conversion.guest = source_config.guest;
    conversion
}
