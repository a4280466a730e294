//! [`TapdiskTap`]: connects to a tapdisk, waits, reads records, delivers rows and counts.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::{Duration, Instant};

use weir_model::{Demand, Folded, IoEvent, Nanos, Symbol};

use super::client::{ClientError, TapdiskClient};
use super::folds::{GroupPlans, Naming};
use super::layout::{self, Layout};
use super::ring::{Damaged, Memory, Read, Readers};
use super::rows::Names;
use super::words::{Answer, Ask, RecordsWord, Wanted};
use crate::ebpf::fold::Folds;
use crate::ebpf::fold::layout::BlockMeasure;
use crate::ebpf::{self, Pace};
use crate::format::served::Served;
use crate::io_columns;
use crate::{EventCount, FOLDED, Tap, TapError, TapEvent, monotonic_ns};

/// Maximum number of rows of a batch: its events fit into a CPU's cache while the columns are
/// built.
const BATCH_ROWS: usize = 1024;

/// Interval of attempts to reconnect after a tapdisk was killed.
const RETRY_EVERY: Duration = Duration::from_millis(200);

/// Options of the tap.
#[derive(Clone, Debug)]
pub struct TapdiskOptions {
    /// Maximum size of all rings together, for the current number of rings.
    pub ring_bytes: u64,
    /// Maximum delay of rows.
    pub poll_interval: Duration,
    /// Offset of the monotonic clock to the epoch; measured if `None`.
    pub epoch_offset_ns: Option<Nanos>,
    /// See [`crate::ebpf::LiveOptions::interval_shift_ns`].
    pub interval_shift_ns: Arc<AtomicI64>,
    /// The value of column `host`.
    pub host: Option<Symbol>,
    /// Time allowed for a tapdisk that ended without notice to be restarted.
    pub timeout: Duration,
}

impl Default for TapdiskOptions {
    fn default() -> TapdiskOptions {
        TapdiskOptions {
            ring_bytes: 64 << 20,
            poll_interval: Duration::from_millis(20),
            epoch_offset_ns: None,
            interval_shift_ns: Arc::default(),
            host: ebpf::host_name(),
            timeout: Duration::from_secs(10),
        }
    }
}

/// A source of the requests that a tapdisk serves.
pub struct TapdiskTap {
    path: PathBuf,
    options: TapdiskOptions,
    wanted: Wanted,
    plans: GroupPlans,
    /// `None` while the tapdisk is not connected.
    link: Option<Link>,
    away: Option<Away>,
    names: Names,
    served: Vec<Served>,
    queued: VecDeque<TapEvent>,
    pace: Pace,
    /// The watermark, CLOCK_MONOTONIC in ns.
    known_ns: u64,
    counts: Counts,
    remarks: Vec<String>,
    ended: bool,
}

/// A connected tapdisk.
#[derive(Debug)]
struct Link {
    client: TapdiskClient,
    readers: Readers,
    folds: Option<Folds>,
}

/// A tapdisk that is not connected.
#[derive(Clone, Copy, Debug)]
struct Away {
    since: Instant,
    tried: Instant,
}

#[derive(Debug, Default)]
struct Counts {
    events: u64,
    returns: i64,
    /// Late records of closed links.
    late: u64,
    malformed: u64,
    avoided: u64,
    folded: i64,
    lost: HashMap<u16, u64>,
}

/// Opens the tap at `path` for `demands`. The path is that of the tapdisk's control socket, or of a
/// disk's socket.
///
/// # Errors
/// [`TapError::Unavailable`] if there is none, or it rejects the connection.
pub fn open(
    path: &Path,
    demands: &[Demand],
    options: TapdiskOptions,
) -> Result<TapdiskTap, TapError> {
    let (mut plans, mut wanted) = GroupPlans::of(demands, options.ring_bytes);
    let offset_ns = options
        .epoch_offset_ns
        .unwrap_or_else(ebpf::epoch_offset_ns);
    let mut names = Names::new(options.host, offset_ns);
    let known_ns = monotonic_ns();
    let shift_ns = &options.interval_shift_ns;
    let link = Link::new(path, &wanted, &plans, &mut names, known_ns, shift_ns);
    let link = link.map_err(|error| error.at(path))?;
    if link.folds.is_none() && !plans.is_empty() {
        plans.decline("the tapdisk is older than this and delivers rows only");
        // Also if the next tapdisk at this path is not.
        wanted.folds.clear();
    }
    let mut remarks = Vec::new();
    let version = link.readers.memory().layout().version();
    if version < layout::VERSION && io_columns::needed(demands).interarrival {
        let at = path.display();
        remarks.push(format!(
            "tapdisk:{at}: it is older than this and has no interarrival, which is NULL"
        ));
    }
    let poll_interval = plans.poll_interval(options.poll_interval);
    Ok(TapdiskTap {
        path: path.to_owned(),
        options,
        wanted,
        plans,
        link: Some(link),
        away: None,
        names,
        served: demands.iter().map(Served::new).collect(),
        queued: VecDeque::new(),
        pace: Pace::new(Instant::now(), poll_interval),
        known_ns,
        counts: Counts::default(),
        remarks,
        ended: false,
    })
}

impl Link {
    fn new(
        path: &Path,
        wanted: &Wanted,
        plans: &GroupPlans,
        names: &mut Names,
        known_ns: u64,
        interval_shift_ns: &Arc<AtomicI64>,
    ) -> Result<Link, ClientError> {
        let mut client = TapdiskClient::connect(path)?;
        let garbled = |why: &str| ClientError::Garbled(why.into());
        let answer = match client.ask(Ask::Records(wanted.clone())) {
            // An older tapdisk does not know this value of groups.
            Err(ClientError::Refused(_)) if wanted.groups_have(BlockMeasure::Interarrival) => {
                client = TapdiskClient::connect(path)?;
                client.ask(Ask::Records(Wanted {
                    folds: Vec::new(),
                    ..wanted.clone()
                }))?
            }
            answer => answer?,
        };
        let Answer::Records(RecordsWord {
            layout,
            ring_records,
            groups,
            disks,
        }) = answer
        else {
            return Err(garbled("it does not answer this request"));
        };
        let version = Layout::new(ring_records).of_version(layout);
        let layout = version.ok_or_else(|| garbled("its records have another version"))?;
        let file = client
            .passed()
            .ok_or_else(|| garbled("it contains no memory"))?;
        // An older tapdisk does not know groups.
        let groups = groups.filter(|_| !plans.is_empty());
        let is_expected = |groups: layout::GroupTables| {
            groups.is_valid() && groups.moments == plans.folding().moments
        };
        if !groups.is_none_or(is_expected) {
            return Err(garbled("its tables of groups have invalid sizes"));
        }
        let layout = layout.with_groups(groups);
        let memory = Memory::open(file, layout)?;
        names.learn(&disks);
        let (offset_ns, shift_ns) = (names.epoch_offset_ns, interval_shift_ns.clone());
        let tables = memory.tables(plans.folding());
        let folds = tables.map(|tables| Folds::begin(plans.plans(), tables, offset_ns, shift_ns));
        Ok(Link {
            client,
            readers: Readers::new(Arc::new(memory), known_ns),
            folds,
        })
    }

    /// Reads the available records, and the groups of the intervals that are complete by then.
    fn read(
        &mut self,
        plans: &GroupPlans,
        names: &mut Names,
        to: &mut Vec<Read>,
    ) -> Result<(), Damaged> {
        let Some(folds) = &mut self.folds else {
            return self.readers.read(monotonic_ns, to);
        };
        let mut naming = Naming {
            plans,
            names,
            client: &mut self.client,
        };
        let limit = |known_ns| folds.advance(known_ns, &mut naming);
        self.readers.read_up_to(monotonic_ns, limit, to)
    }

    /// The groups of the incomplete intervals; `has_ended` if the tapdisk has.
    fn close(
        &mut self,
        plans: &GroupPlans,
        names: &mut Names,
        has_ended: bool,
    ) -> Vec<(usize, Folded)> {
        let Some(folds) = &mut self.folds else {
            return Vec::new();
        };
        let naming = &mut Naming {
            plans,
            names,
            client: &mut self.client,
        };
        match has_ended {
            true => folds.finish(naming),
            false => folds.close(naming),
        }
    }

    /// Requests the names of disks that were added later, if the records contain any.
    fn learn(&mut self, read: &[Read], names: &mut Names) -> Result<(), ClientError> {
        if read.iter().all(|r| names.knows(r.record.disk)) {
            return Ok(());
        }
        if let Answer::Disks(disks) = self.client.ask(Ask::Disks)? {
            names.learn(&disks);
        }
        Ok(())
    }
}

impl TapdiskTap {
    /// Reads the available records and queues rows.
    fn drain(&mut self) -> Result<(), TapError> {
        let Some(link) = &mut self.link else {
            self.look_for_it();
            return Ok(());
        };
        let mut read = Vec::new();
        // Before the rings: all records written before the end of the tapdisk are visible then.
        let mut state = link.client.look();
        let (plans, names) = (&self.plans, &mut self.names);
        let found = match &state {
            Ok(()) => link.read(plans, names, &mut read),
            Err(_) => link.readers.finish(monotonic_ns, &mut read),
        };
        if state.is_ok() {
            state = link.learn(&read, names);
        }
        self.known_ns = link.readers.known_ns();
        let held = link.readers.holds_back();
        self.pace.drained(read.len(), held, link.readers.fill());
        // Before the rows: a later row would imply that the interval is complete.
        let groups = match (&state, &mut link.folds) {
            (Ok(()), folds) => folds
                .as_mut()
                .map_or_else(Vec::new, |f| f.over(self.known_ns)),
            // Otherwise its queues may still run.
            (Err(error), _) => link.close(plans, names, matches!(error, ClientError::Gone)),
        };
        self.queue_groups(groups);
        self.counts.events += read.len() as u64;
        self.line_up(&read);
        found.map_err(|damaged| self.damaged(damaged))?;
        match state {
            Ok(()) => Ok(()),
            Err(error) => self.leave(error),
        }
    }

    fn damaged(&self, damaged: Damaged) -> TapError {
        ClientError::Garbled(damaged.to_string()).at(&self.path)
    }

    fn queue_groups(&mut self, groups: Vec<(usize, Folded)>) {
        let events = groups.into_iter();
        let events = events.map(|(demand, folded)| TapEvent::Folded { demand, folded });
        self.queued.extend(events);
    }

    /// Converts records to rows and queues them.
    fn line_up(&mut self, read: &[Read]) {
        for read in read.chunks(BATCH_ROWS) {
            let names = &mut self.names;
            let rows: Vec<IoEvent> = read.iter().map(|r| names.event(r)).collect();
            for (demand, served) in self.served.iter_mut().enumerate() {
                let folded = self.plans.bit(demand);
                let is_row = |read: &Read| read.record.folded & folded == 0;
                let batch = match folded == 0 || read.iter().all(is_row) {
                    true => served.batch(&rows, false),
                    false => {
                        let own = rows.iter().zip(read).filter(|(_, read)| is_row(read));
                        let own: Vec<IoEvent> = own.map(|(row, _)| *row).collect();
                        served.batch(&own, false)
                    }
                };
                if let Some(batch) = batch {
                    self.queued.push_back(TapEvent::Rows { demand, batch });
                }
            }
        }
    }

    /// The tapdisk has disconnected. If it was killed, it may be restarted; after a regular
    /// shutdown the tap ends.
    fn leave(&mut self, error: ClientError) -> Result<(), TapError> {
        if let Some(link) = self.link.take() {
            self.counts.take_over(&link);
        }
        match error {
            ClientError::Gone if !self.options.timeout.is_zero() => {
                let now = Instant::now();
                self.away = Some(Away {
                    since: now,
                    tried: now,
                });
                Ok(())
            }
            ClientError::Gone | ClientError::Bye(_) => {
                self.end(&error);
                Ok(())
            }
            other => Err(other.at(&self.path)),
        }
    }

    fn end(&mut self, error: &ClientError) {
        let at = self.path.display();
        self.remarks.push(format!("tapdisk:{at}: {error}"));
        self.ended = true;
    }

    /// Tries to reconnect to a tapdisk that was killed, until the time allowed has expired.
    fn look_for_it(&mut self) {
        self.known_ns = self.known_ns.max(monotonic_ns());
        let Some(away) = &mut self.away else {
            return;
        };
        if away.tried.elapsed() < RETRY_EVERY {
            return;
        }
        away.tried = Instant::now();
        let since = away.since;
        let (names, shift_ns) = (&mut self.names, &self.options.interval_shift_ns);
        let (wanted, plans) = (&self.wanted, &self.plans);
        match Link::new(&self.path, wanted, plans, names, self.known_ns, shift_ns) {
            Ok(link) => {
                self.names.restart();
                self.counts.returns += 1;
                (self.link, self.away) = (Some(link), None);
            }
            Err(_) if since.elapsed() >= self.options.timeout => self.end(&ClientError::Gone),
            Err(_) => {}
        }
    }

    fn heartbeat(&self) -> TapEvent {
        let known_ns = i64::try_from(self.known_ns).unwrap_or(i64::MAX);
        TapEvent::Heartbeat(known_ns.saturating_add(self.names.epoch_offset_ns))
    }
}

impl Tap for TapdiskTap {
    fn next(&mut self, timeout: Duration) -> Result<TapEvent, TapError> {
        if let Some(event) = self.queued.pop_front() {
            return Ok(event);
        }
        let until = Instant::now() + timeout;
        loop {
            if self.ended {
                return Ok(TapEvent::End);
            }
            if self.pace.starts_by(until) {
                self.drain()?;
            }
            if let Some(event) = self.queued.pop_front() {
                self.queued.push_back(self.heartbeat());
                return Ok(event);
            }
            if !self.ended && Instant::now() >= until {
                return Ok(self.heartbeat());
            }
        }
    }

    fn close(&mut self) -> Vec<(usize, Folded)> {
        let (plans, names) = (&self.plans, &mut self.names);
        let link = self.link.as_mut();
        link.map_or_else(Vec::new, |link| link.close(plans, names, false))
    }

    fn counts(&mut self) -> Vec<EventCount> {
        let mut now = Counts {
            lost: self.counts.lost.clone(),
            ..self.counts
        };
        if let Some(link) = &self.link {
            now.take_over(link);
        }
        let whole = |counter, cause, total: u64| EventCount::of(counter, cause, total as i64);
        let mut counts = vec![
            whole(
                "events_in",
                None,
                now.events.saturating_add_signed(now.folded),
            ),
            whole("events_late", None, now.late),
            whole("bad_records", None, now.malformed),
            whole("events_avoided", None, now.avoided),
            whole("source_returned", None, now.returns as u64),
        ];
        if now.folded > 0 {
            counts.push(EventCount::of(FOLDED, None, now.folded));
        }
        let mut lost: Vec<(u16, u64)> = now.lost.into_iter().collect();
        lost.sort_unstable();
        counts.extend(lost.into_iter().map(|(disk, total)| EventCount {
            device: self.names.device(disk).or(Some(Symbol::new("unknown"))),
            ..whole("events_lost", Some("ring_full"), total)
        }));
        counts
    }

    fn describe(&self) -> Vec<String> {
        let at = self.path.display();
        let mut lines = Vec::new();
        if self.wanted.clauses.is_empty() {
            lines.push(format!(
                "tapdisk:{at}: no rows are requested, no records are written"
            ));
        }
        for clause in &self.wanted.clauses {
            lines.push(format!("tapdisk:{at}: selects {clause} in the tapdisk"));
        }
        lines.extend(self.plans.lines());
        lines
    }

    fn messages(&self) -> Vec<String> {
        self.remarks.clone()
    }
}

impl Counts {
    /// Adds the counts of a link.
    fn take_over(&mut self, link: &Link) {
        let (readers, folds) = (&link.readers, link.folds.as_ref());
        self.folded = self
            .folded
            .saturating_add(folds.map_or(0, Folds::unrecorded));
        self.malformed += folds.map_or(0, Folds::discarded).unsigned_abs();
        self.late += readers.late();
        self.malformed += readers.malformed();
        self.avoided += readers.memory().avoided();
        for (disk, lost) in readers.memory().drops() {
            *self.lost.entry(disk).or_default() += lost;
        }
    }
}
