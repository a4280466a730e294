//! [`Needs`]: what the demands make the kernel side do, so that nothing is attached or read that no
//! query asked for.

use weir_model::event::{io_schema, iostream_schema};
use weir_model::{Demand, Predicate, Schema, Symbol};

use super::columns;
use super::hist::{By, HistOptions};
use super::layout::{self, kind, test};
use super::selection::{self, Clause, KINDS_ALL, KINDS_FINISHED};
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

/// What the programs have to do.
#[derive(Clone, Debug)]
pub struct Needs {
    /// The stream of each demand.
    pub streams: Vec<Stream>,
    /// The selection, as far as the kernel can hold it.
    pub clauses: Vec<Clause>,
    /// What it cannot hold, in words.
    pub loosened: Vec<String>,
    /// Kinds of record wanted, a bit each.
    pub kinds: u8,
    /// An entry for each request from issue to completion.
    pub track: bool,
    /// The entry begins at insertion: for wait, latency and the submitter.
    pub start: bool,
    /// Issues are seen: for requests, wait, service and the processor.
    pub issue: bool,
    /// Flushes without data are told when they are submitted.
    pub flush_start: bool,
    /// Columns that cost something to fill.
    pub columns: Columns,
    /// What is read of a request: for the columns, and for the histograms.
    pub read: Columns,
    /// Requests are numbered as they are issued: where they are not told then, but when they
    /// were.
    pub numbered: bool,
    /// Whether histograms are kept.
    pub histograms: bool,
    /// Demands whose rows are left out before a ring fills, a bit each.
    pub optional: u64,
}

/// Columns that cost something to fill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// Insert to issue.
    pub wait: bool,
    /// Issue to complete.
    pub service: bool,
    /// Insert to complete.
    pub latency: bool,
    /// Thread group.
    pub pid: bool,
    /// Command name.
    pub comm: bool,
    /// Cgroup.
    pub cgroup: bool,
    /// Processor of issue.
    pub cpu: bool,
    /// Letters.
    pub flags: bool,
    /// Bios beyond the first.
    pub merges: bool,
    /// The request's number.
    pub req_id: bool,
    /// Requests outstanding.
    pub in_flight: bool,
    /// Distance from the request before.
    pub seek: bool,
    /// VM, virtual disk and the sector there.
    pub owner: bool,
    /// When it was told as issued.
    pub issue_ts: bool,
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

    /// The schema of its rows.
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
    /// What these demands need. `with_owners` says whether somebody knows whose requests are.
    ///
    /// # Errors
    /// When a demand names a stream that a live tap does not have.
    pub fn of(demands: &[Demand], with_owners: bool) -> Result<Needs, TapError> {
        let mut asked = Vec::new();
        let mut clauses = Vec::new();
        let mut loosened = Vec::new();
        let mut streams = Vec::new();
        for (i, demand) in demands.iter().enumerate() {
            let stream = Stream::find(&demand.stream).ok_or_else(|| unknown(&demand.stream))?;
            streams.push(stream);
            let own = selection::clauses(i, &demand.predicate, stream.kinds(), &mut loosened);
            if own.is_empty() {
                continue;
            }
            asked.push(demand);
            let needed = columns::needed([demand]);
            if needed.in_flight || needed.seek {
                clauses.extend(own.iter().map(every_request));
                loosened.push("in_flight and seek count every request of a disk".into());
            } else {
                clauses.extend(own);
            }
        }
        let mut columns = columns::needed(asked);
        columns.owner &= with_owners;
        let clauses = selection::fit(clauses, &mut loosened);
        loosened.sort();
        loosened.dedup();
        Ok(Needs::new(streams, clauses, loosened, columns))
    }

    fn new(
        streams: Vec<Stream>,
        clauses: Vec<Clause>,
        loosened: Vec<String>,
        columns: Columns,
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
        let from_issue =
            columns.service || columns.issue_ts || columns.cpu || tests & test::SERVICE != 0;
        let waits = columns.wait || tests & test::WAIT != 0;
        let flushes = |c: &Clause| {
            let op = 1 << weir_model::Op::Flush as u8;
            let begins = c.kinds & 1 << kind::REQUEST != 0 || columns.issue_ts;
            begins && c.raw.ops & op != 0
        };
        Needs {
            streams,
            loosened,
            kinds,
            track: start || (finished && (requests || from_issue)),
            start,
            issue: requests || (finished && (from_issue || waits)),
            flush_start: clauses.iter().any(flushes),
            read: columns,
            columns,
            clauses,
            numbered: columns.req_id && columns.issue_ts && !requests,
            histograms: false,
            optional: 0,
        }
    }

    /// The same with histograms, which stand behind the last demand.
    pub fn with_histograms(mut self, options: &HistOptions) -> Needs {
        let mut every = selection::clauses(
            self.streams.len(),
            &Predicate::all(),
            KINDS_ALL,
            &mut self.loosened,
        );
        // They see each kind, but want no record of it.
        every.iter_mut().for_each(|clause| clause.kinds = 0);
        self.clauses.extend(every);
        self.clauses = selection::fit(self.clauses, &mut self.loosened);
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

    /// Whether anything has to be attached at all.
    pub fn is_any(&self) -> bool {
        self.kinds != 0 || self.histograms
    }

    /// The clauses that stand for the histograms, a bit each.
    pub fn histogram_clauses(&self) -> u8 {
        let own = |c: &Clause| self.histograms && c.demands >> self.streams.len() & 1 == 1;
        let clauses = self.clauses.iter().enumerate();
        clauses.fold(0, |all, (i, c)| all | u8::from(own(c)) << i)
    }

    /// The same where the rows of demands without groups may be left out, so that a ring does not fill.
    pub fn with_optional_rows(mut self, demands: &[Demand]) -> Needs {
        let rows = demands.iter().enumerate().filter(|(_, d)| d.fold.is_none());
        self.optional = rows.fold(0, |all, (i, _)| all | 1 << i);
        self
    }

    /// The clauses that no demand needs whose rows must come, a bit each.
    pub fn optional_clauses(&self) -> u8 {
        let optional = |c: &Clause| c.demands & !self.optional == 0;
        let clauses = self.clauses.iter().enumerate();
        clauses.fold(0, |all, (i, c)| all | u8::from(optional(c)) << i)
    }

    /// Demands, and the histograms.
    pub fn demand_count(&self) -> usize {
        self.streams.len() + usize::from(self.histograms)
    }

    /// Whether requests must be seen among each other.
    pub fn flows(&self) -> bool {
        let c = &self.columns;
        (c.req_id && !self.numbered) || c.in_flight || c.seek
    }

    /// Whether issues are seen. Without the tracepoint that tells when a request starts, some are
    /// inserted unseen.
    pub fn sees_issue(&self, has_start: bool) -> bool {
        self.issue || (self.start && !has_start)
    }

    /// Bytes of a record, which says no more of who submitted than anybody asked for.
    pub fn record_bytes(&self) -> usize {
        match self.wide() {
            _ if self.columns.comm || self.tests(test::COMM) => layout::NAMED_RECORD_BYTES,
            true => layout::WIDE_RECORD_BYTES,
            false => layout::RECORD_BYTES,
        }
    }

    /// Whether records must say who submitted.
    pub fn wide(&self) -> bool {
        let tests = self.clauses.iter().fold(0, |all, c| all | c.raw.tests);
        let c = &self.columns;
        c.pid
            || c.comm
            || c.cgroup
            || c.owner
            || tests & (test::PID | test::COMM | test::CGROUP) != 0
    }

    /// Whether a clause selects by cgroup.
    pub fn cgroups(&self) -> bool {
        self.tests(test::CGROUP)
    }

    /// What the kernel side is told of a cgroup: bit 1 + i, passes clause i.
    pub fn cgroup_marks(&self, path: Symbol) -> u32 {
        let passes = |c: &Clause| c.cgroups.as_ref().is_none_or(|set| set.contains(&path));
        let clauses = self.clauses.iter().enumerate();
        clauses.fold(0, |all, (i, c)| all | u32::from(passes(c)) << (1 + i))
    }

    /// Whether a clause makes this test.
    pub fn tests(&self, test: u32) -> bool {
        self.clauses.iter().any(|c| c.raw.tests & test != 0)
    }
}

/// The clause that lets pass every request of the same devices.
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
    }
}

fn unknown(stream: &str) -> TapError {
    TapError::Unavailable {
        what: format!("the live tap has no stream `{stream}`"),
        remedy: format!("it has IO, IOstream and {RECORDING}"),
    }
}
