//! [`Needs`]: derives from the demands what the kernel side must do, so that nothing is attached or
//! read that no query needs.

use weir_model::event::{io_schema, iostream_schema};
use weir_model::{Demand, Predicate, Schema, Symbol};

use super::hist::{By, HistOptions};
use super::layout::{self, kind, test};
use super::selection::{self, Clause, KINDS_ALL, KINDS_FINISHED};
use crate::io_columns::{self, Columns};
use crate::{RECORDING, TapError};

/// A stream that the live tap can deliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Finished requests, as `IO`.
    Io,
    /// Requests and responses, as `IOstream`.
    Events,
    /// Requests and responses in the schema of `IO`.
    Recording,
}

/// The tasks of the programs.
#[derive(Clone, Debug)]
pub struct Needs {
    /// The stream of each demand.
    pub streams: Vec<Stream>,
    /// The selection, as far as the kernel can evaluate it.
    pub clauses: Vec<Clause>,
    /// The parts that it cannot evaluate, as text.
    pub relaxed: Vec<String>,
    /// Kinds of record needed, a bit each.
    pub kinds: u8,
    /// An entry for each request from issue to completion.
    pub track: bool,
    /// The entry is created at insertion: for wait, latency and the submitter.
    pub start: bool,
    /// Issues are observed: for requests, wait, service and the processor.
    pub issue: bool,
    /// Flushes without data are reported when they are submitted.
    pub flush_start: bool,
    /// Columns with a cost.
    pub columns: Columns,
    /// The values read of a request: for the columns, and for the histograms.
    pub read: Columns,
    /// Requests are numbered as they are issued: used if issues are not reported, but their times
    /// or their relation to others are.
    pub numbered: bool,
    /// The programs determine `in_flight`, `seek` and `interarrival`; otherwise they are computed
    /// from the records of all requests, if they are needed.
    pub order: bool,
    /// Whether histograms are kept.
    pub histograms: bool,
    /// Demands whose rows are omitted before a ring is full, a bit each.
    pub optional: u64,
}

impl Stream {
    fn find(name: &str) -> Option<Stream> {
        let streams = [
            ("IO", Stream::Io),
            ("IOstream", Stream::Events),
            (RECORDING, Stream::Recording),
        ];
        let found = streams
            .into_iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, stream)| stream)
    }

    /// The schema of the stream's rows.
    pub fn schema(self) -> Schema {
        match self {
            Stream::Io | Stream::Recording => io_schema(),
            Stream::Events => iostream_schema(),
        }
    }

    fn kinds(self) -> u8 {
        match self {
            Stream::Io => KINDS_FINISHED,
            Stream::Events | Stream::Recording => KINDS_ALL,
        }
    }
}

impl Needs {
    /// The needs of these demands. `with_owners` is true if there is an inventory, `can_order` if
    /// the programs can determine the order of requests.
    ///
    /// # Errors
    /// If a demand names a stream that a live tap does not have.
    pub fn of(demands: &[Demand], with_owners: bool, can_order: bool) -> Result<Needs, TapError> {
        let mut asked = Vec::new();
        let mut clauses = Vec::new();
        let mut followed: Option<Clause> = None;
        let has_relation = |demand: &Demand| {
            let needed = io_columns::needed([demand]);
            needed.has_relation()
        };
        let is_io = |demand: &Demand| Stream::find(&demand.stream) == Some(Stream::Io);
        let may_follow = can_order && demands.iter().any(|d| is_io(d) && has_relation(d));
        let mut relaxed = Vec::new();
        let mut streams = Vec::new();
        for (i, demand) in demands.iter().enumerate() {
            let stream = Stream::find(&demand.stream).ok_or_else(|| unknown(&demand.stream))?;
            streams.push(stream);
            let own = selection::clauses(i, &demand.predicate, stream.kinds(), &mut relaxed);
            if own.is_empty() {
                continue;
            }
            asked.push(demand);
            if has_relation(demand) && may_follow {
                // The programs follow every request, and report those that are selected.
                for clause in own.iter().map(every_request) {
                    let clause = Clause {
                        kinds: 0,
                        follows: true,
                        ..clause
                    };
                    followed = Some(match followed {
                        Some(before) => before.hull(clause),
                        None => clause,
                    });
                }
                clauses.extend(own);
            } else if has_relation(demand) {
                clauses.extend(own.iter().map(every_request));
                relaxed
                    .push("in_flight, seek and interarrival count every request of a disk".into());
            } else {
                clauses.extend(own);
            }
        }
        let mut columns = io_columns::needed(asked);
        columns.owner &= with_owners;
        let mut clauses = selection::fit(clauses, &mut relaxed);
        let order = followed.is_some();
        clauses.extend(followed);
        relaxed.sort();
        relaxed.dedup();
        Ok(Needs::new(streams, clauses, relaxed, columns, order))
    }

    fn new(
        streams: Vec<Stream>,
        clauses: Vec<Clause>,
        relaxed: Vec<String>,
        columns: Columns,
        order: bool,
    ) -> Needs {
        let kinds = clauses.iter().fold(0, |all, c| all | c.kinds);
        let tests = clauses.iter().fold(0, |all, c| all | c.raw.tests);
        let requests = kinds & 1 << kind::REQUEST != 0;
        let finished = kinds & KINDS_FINISHED != 0;
        let submitter =
            columns.pid || columns.comm || columns.owner || tests & (test::PID | test::COMM) != 0;
        let from_insertion =
            columns.wait || columns.latency || tests & (test::WAIT | test::LATENCY) != 0;
        let start = kinds != 0 && (submitter || from_insertion || columns.flags);
        let from_issue = columns.service
            || columns.issue_ts
            || columns.cpu
            || columns.file
            || columns.inode
            || tests & test::SERVICE != 0;
        let waits = columns.wait || tests & test::WAIT != 0;
        let flushes = |c: &Clause| {
            let op = 1 << weir_model::Op::Flush as u8;
            let begins = c.kinds & 1 << kind::REQUEST != 0 || columns.issue_ts;
            begins && c.raw.ops & op != 0
        };
        Needs {
            streams,
            relaxed,
            kinds,
            track: start || (finished && (requests || from_issue || order)),
            start,
            issue: requests || (finished && (from_issue || waits || order)),
            flush_start: order || clauses.iter().any(flushes),
            read: columns,
            columns,
            clauses,
            numbered: columns.req_id && (columns.issue_ts || order) && !requests,
            order,
            histograms: false,
            optional: 0,
        }
    }

    /// The needs with histograms, whose clauses follow those of the last demand.
    pub fn with_histograms(mut self, options: &HistOptions) -> Needs {
        let mut every = selection::clauses(
            self.streams.len(),
            &Predicate::all(),
            KINDS_ALL,
            &mut self.relaxed,
        );
        // They observe each kind, but need no record of it.
        every.iter_mut().for_each(|clause| clause.kinds = 0);
        self.clauses.extend(every);
        self.histograms = true;
        self.track = true;
        self.issue = true;
        self.flush_start |= options.flushes;
        self.start |= options.waits || options.needs_submitter();
        match options.by {
            By::Disk => self.read.owner |= options.needs_submitter(),
            By::Process => self.read.pid = true,
            By::Cgroup => self.read.cgroup = true,
            By::Device => (),
        }
        self
    }

    /// The clause whose requests have an order, as a bit.
    pub fn order_clauses(&self) -> u8 {
        let clauses = self.clauses.iter().enumerate();
        clauses.fold(0, |all, (i, c)| all | u8::from(c.follows) << i)
    }

    /// True if any program must be attached.
    pub fn is_any(&self) -> bool {
        self.kinds != 0 || self.histograms
    }

    /// The clauses of the histograms, a bit each.
    pub fn histogram_clauses(&self) -> u8 {
        let own = |c: &Clause| self.histograms && c.demands >> self.streams.len() & 1 == 1;
        let clauses = self.clauses.iter().enumerate();
        clauses.fold(0, |all, (i, c)| all | u8::from(own(c)) << i)
    }

    /// The needs, with the rows of demands without groups omitted before a ring is full.
    pub fn with_optional_rows(mut self, demands: &[Demand]) -> Needs {
        let rows = demands.iter().enumerate().filter(|(_, d)| d.fold.is_none());
        self.optional = rows.fold(0, |all, (i, _)| all | 1 << i);
        self
    }

    /// The clauses that are used only by demands whose rows may be omitted, a bit each.
    pub fn optional_clauses(&self) -> u8 {
        let optional = |c: &Clause| c.demands & !self.optional == 0;
        let clauses = self.clauses.iter().enumerate();
        clauses.fold(0, |all, (i, c)| all | u8::from(optional(c)) << i)
    }

    /// Number of demands, and of the histograms as one more.
    pub fn demand_count(&self) -> usize {
        self.streams.len() + usize::from(self.histograms)
    }

    /// True if the relation of requests to each other is computed from records.
    pub fn flows(&self) -> bool {
        let c = &self.columns;
        (c.req_id && !self.numbered) || (c.has_relation() && !self.order)
    }

    /// True if issues are observed. Without the tracepoint at the start of a request, some
    /// insertions are not observed.
    pub fn sees_issue(&self, has_start: bool) -> bool {
        self.issue || (self.start && !has_start)
    }

    /// Bytes of a record, with no more data on the submitter than is needed.
    pub fn record_bytes(&self) -> usize {
        match self.wide() {
            _ if self.files() => layout::FILE_RECORD_BYTES,
            _ if self.columns.comm || self.tests(test::COMM) => layout::NAMED_RECORD_BYTES,
            true => layout::WIDE_RECORD_BYTES,
            false => layout::RECORD_BYTES,
        }
    }

    /// True if records must include the submitter, or the relation to others.
    pub fn wide(&self) -> bool {
        let tests = self.clauses.iter().fold(0, |all, c| all | c.raw.tests);
        let c = &self.columns;
        c.pid
            || c.comm
            || c.cgroup
            || c.owner
            || self.order
            || self.files()
            || tests & (test::PID | test::COMM | test::CGROUP) != 0
    }

    /// True if the file of each request is needed.
    pub fn files(&self) -> bool {
        self.kinds != 0 && (self.columns.file || self.columns.inode)
    }

    /// True if a clause selects by cgroup.
    pub fn cgroups(&self) -> bool {
        self.tests(test::CGROUP)
    }

    /// The marks of a cgroup for the kernel programs: bit 1 + i, passes clause i.
    pub fn cgroup_marks(&self, path: Symbol) -> u32 {
        let passes = |c: &Clause| c.cgroups.as_ref().is_none_or(|set| set.contains(&path));
        let clauses = self.clauses.iter().enumerate();
        clauses.fold(0, |all, (i, c)| all | u32::from(passes(c)) << (1 + i))
    }

    /// True if a clause has this test.
    pub fn tests(&self, test: u32) -> bool {
        self.clauses.iter().any(|c| c.raw.tests & test != 0)
    }
}

/// The clause that selects every request of the same devices.
fn every_request(clause: &Clause) -> Clause {
    let mut raw = super::layout::Clause::ALL;
    raw.tests = clause.raw.tests & test::DEVICE;
    Clause {
        raw,
        kinds: KINDS_ALL,
        devices: clause.devices.clone(),
        cgroups: None,
        demands: clause.demands,
        exact: false,
        follows: false,
    }
}

fn unknown(stream: &str) -> TapError {
    TapError::Unavailable {
        what: format!("the live tap has no stream `{stream}`"),
        remedy: format!("the live tap has IO, IOstream and {RECORDING}"),
    }
}
