//! The queries of `weir top`, in CQL: every number on its screen is a column of one of these.

use std::time::Duration;

use weir_model::{Catalog, Symbol};
use weir_query::{Checked, compile};

use super::columns::{COLUMNS, TopColumn};
use super::figures::Figure;
use super::levels::{FilesOf, TopFile, keys, load_test, stream};
use weir_runtime::device_names;
use weir_runtime::failure::Failure;
use weir_runtime::question::{self, QueryText, quoted};
use weir_tap::ebpf::streams::{fileio, iopath, pagecache};

/// The selection and the interval.
#[derive(Clone, Debug)]
pub struct Scope {
    /// The interval of each table.
    pub interval: Duration,
    /// This VM only.
    pub vm: Option<String>,
    /// This disk only, by its name in the VM or on the host.
    pub disk: Option<String>,
    /// The events happen now.
    pub live: bool,
    /// These devices only, at the levels `file` and `app`; all if there are none.
    pub devices: Vec<String>,
    /// Requests of dm and md devices are counted there as well as those of the devices below.
    pub stacked: bool,
}

/// The level of observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopLevel {
    /// The host's block layer: every request, from the tap.
    Block,
    /// The VM's own requests, as QEMU counts them: sums only, polled once a second.
    Vdisk,
    /// The files: requests that file systems send, stream `FileIO`.
    File,
    /// The processes: requests with the time at each level, stream `IOpath`.
    App,
}

impl TopLevel {
    /// Every level, in the order in which they are switched.
    pub const ALL: [TopLevel; 4] = [
        TopLevel::Block,
        TopLevel::File,
        TopLevel::App,
        TopLevel::Vdisk,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            TopLevel::Block => "block",
            TopLevel::Vdisk => "vdisk",
            TopLevel::File => "file",
            TopLevel::App => "app",
        }
    }

    /// The level of this name.
    pub fn of(name: &str) -> Option<TopLevel> {
        TopLevel::ALL.into_iter().find(|level| level.name() == name)
    }
}

/// The interval at which QEMU's counters are polled.
const POLL: Duration = Duration::from_secs(1);

/// A disk of a VM, or of none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TopDisk {
    /// The VM; `None` for I/O that is not attributed to a VM.
    pub vm: Option<Symbol>,
    /// The disk as the VM sees it.
    pub vdisk: Option<Symbol>,
    /// The device on the host.
    pub pdisk: Option<Symbol>,
}

/// A placeholder for the disk that is opened later, if only the columns of its histograms are
/// relevant.
pub const ANY_DISK: TopDisk = TopDisk {
    vm: None,
    vdisk: None,
    pdisk: None,
};

/// The columns of [`Scope::totals`].
pub const TOTALS: [&str; 7] = [
    "iops",
    "throughput",
    "load",
    "mean",
    "p99",
    "rest_iops",
    "rest_load",
];

/// The columns of [`Scope::losses`].
pub const LOSSES: [&str; 4] = ["seen", "missed", "late", "sectors_unseen"];

/// A histogram of a disk's requests.
#[derive(Debug)]
pub struct DiskHistogram {
    /// The column of its values.
    pub column: &'static str,
    /// Its title.
    pub title: &'static str,
    /// The type of its values.
    pub figure: Figure,
    /// The unit of the limits, in the unit of the column and in CQL.
    pub unit: (i64, &'static str),
    /// The upper limits of the buckets; values above the last one have an additional bucket.
    pub limits: &'static [i64],
}

/// The histograms of a disk.
pub static HISTOGRAMS: [DiskHistogram; 3] = [
    DiskHistogram {
        column: "latency",
        title: "latency",
        figure: Figure::Span,
        unit: (1_000, " us"),
        limits: &[
            10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000,
            500_000, 2_000_000,
        ],
    },
    DiskHistogram {
        column: "bytes",
        title: "size",
        figure: Figure::Bytes,
        unit: (512, " sectors"),
        limits: &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048],
    },
    DiskHistogram {
        column: "seek",
        title: "seek, sectors",
        figure: Figure::Count,
        unit: (1, ""),
        limits: &[
            -1_000_000, -100_000, -10_000, -1_000, -100, 0, 1, 100, 1_000, 10_000, 100_000,
            1_000_000,
        ],
    },
];

/// The number of intervals in a histogram.
pub const HISTOGRAM_INTERVALS: u32 = 10;

impl Scope {
    /// The main query: the requests of each VM to each of its disks.
    pub fn lines(&self, level: TopLevel) -> String {
        let keys = keys(level);
        match level {
            TopLevel::Block => self.table(&keys.join(", "), &self.conditions(level)),
            TopLevel::File | TopLevel::App => {
                let columns = |c: &TopColumn| c.cql(level);
                self.grouped(stream(level), keys, &columns, &self.conditions(level))
            }
            TopLevel::Vdisk => {
                let columns = COLUMNS.iter().filter_map(|c| Some((c.cql_vdisk?, c.name)));
                let columns: Vec<String> =
                    columns.map(|(cql, n)| format!("{cql} as {n}")).collect();
                let keys = keys.join(", ");
                self.every(&format!(
                    "select {keys},\n         {}\n  from blockstats {}{}\n  group by {keys}",
                    columns.join(",\n         "),
                    self.polls(),
                    condition(&self.conditions(level)),
                ))
            }
        }
    }

    /// All requests, and those that are not attributed to a VM.
    pub fn totals(&self, level: TopLevel) -> String {
        let (seconds, interval) = (self.seconds(), self.span(1));
        let (select, from) = match level {
            TopLevel::Block | TopLevel::File | TopLevel::App => (
                format!(
                    "count(*) / {seconds} as iops, sum(bytes) / {seconds} as throughput,\n         \
                     1.0 * sum(latency) / {interval} as load,\n         \
                     avg(latency) as mean, quantile(latency, 0.99) as p99,\n         \
                     sum(case when vm is null then 1 else 0 end) / {seconds} as rest_iops,\n         \
                     1.0 * sum(case when vm is null then latency else 0 ns end) / {interval} as rest_load"
                ),
                format!("{} {}", stream(level), self.window(1)),
            ),
            TopLevel::Vdisk => (
                "sum(1.0 * operations * 1 s / interval) / count(distinct ts) as iops,\n         \
                 sum(1.0 * bytes * 1 s / interval) / count(distinct ts) as throughput,\n         \
                 sum(1.0 * time / interval) / count(distinct ts) as load,\n         \
                 1.0 * sum(time) / sum(operations) as mean"
                    .to_owned(),
                format!("blockstats {}", self.polls()),
            ),
        };
        self.every(&format!(
            "select {select}\n  from {from}{}",
            condition(&self.conditions(level))
        ))
    }

    /// The submitters of I/O that is not attributed to a VM: a command's requests to each device.
    pub fn submitters(&self) -> String {
        let rest = [self.conditions(TopLevel::Block), vec!["vm is null".into()]].concat();
        self.table("vm, comm, pdisk, op", &rest)
    }

    /// A disk's histograms over the last intervals, by op.
    pub fn histograms(&self, disk: &TopDisk) -> String {
        let histogram = |h: &DiskHistogram| {
            let limits = h.limits.iter().map(|limit| format!("{limit}{}", h.unit.1));
            let limits: Vec<String> = limits.collect();
            format!("histogram({0}, {1}) as {0}", h.column, limits.join(", "))
        };
        let histograms: Vec<String> = HISTOGRAMS.iter().map(histogram).collect();
        self.every(&format!(
            "select op, count(*) as requests,\n         {}\n  from IO {}{}\n  group by op",
            histograms.join(",\n         "),
            self.window(HISTOGRAM_INTERVALS),
            condition(&of_disk(disk))
        ))
    }

    /// The observed and the missed events since the start.
    pub fn losses(&self) -> String {
        let count = |test: &str| format!("sum(case when {test} then value else 0 end)");
        // A tap that filters counts what it observed; a file what was read.
        let seen = count("place = 'tap' and counter = 'seen'");
        let read = count("place = 'tap' and counter = 'events_in'");
        let missed = count("place = 'tap' and counter in ('events_lost', 'unseen')");
        let late = count("place <> 'tap' and counter = 'events_lost'");
        // Of devices without requests only the number of sectors is known.
        let sectors = count("counter = 'sectors_unseen'");
        self.every(&format!(
            "select greatest({seen}, {read}) as seen,\n         {missed} as missed,\n         \
             {late} as late,\n         {sectors} as sectors_unseen\n  from weir"
        ))
    }

    /// Every query with its purpose, as `--show-query` prints them.
    pub fn all(&self) -> Vec<(&'static str, String)> {
        let text = |name: &Option<String>| name.as_deref().map(Symbol::new);
        let disk = TopDisk {
            vm: text(&self.vm).or(Some(Symbol::new("VM"))),
            vdisk: text(&self.disk).or(Some(Symbol::new("/dev/vda"))),
            pdisk: Some(Symbol::new("/dev/sda")),
        };
        let file = TopFile {
            pdisk: disk.pdisk,
            fs: Some(Symbol::new("ext4")),
            path: None,
            inode: Some(12),
        };
        vec![
            ("the table", self.lines(TopLevel::Block)),
            ("the totals above the table", self.totals(TopLevel::Block)),
            ("observed and missed requests", self.losses()),
            ("I/O without a VM, by process", self.submitters()),
            ("the histograms of a disk", self.histograms(&disk)),
            ("the table at level vdisk", self.lines(TopLevel::Vdisk)),
            ("the totals at level vdisk", self.totals(TopLevel::Vdisk)),
            ("the table at level file", self.lines(TopLevel::File)),
            ("the page cache at level file", self.cached()),
            ("the totals at level file", self.totals(TopLevel::File)),
            ("the table at level app", self.lines(TopLevel::App)),
            ("the totals at level app", self.totals(TopLevel::App)),
            (
                "the files of a disk",
                self.files(&FilesOf::Disk(disk.pdisk)),
            ),
            (
                "the processes of a file",
                self.processes(&file, TopLevel::File),
            ),
        ]
    }

    /// The columns of the requests that pass the tests, by `keys`.
    fn table(&self, keys: &str, tests: &[String]) -> String {
        let keys: Vec<&str> = keys.split(", ").collect();
        self.grouped(stream(TopLevel::Block), &keys, &|c| c.cql, tests)
    }

    pub(super) fn every(&self, query: &str) -> String {
        format!("Rstream(\n  {query}\n) every {}", self.span(1))
    }

    pub(super) fn window(&self, intervals: u32) -> String {
        format!("[range {} slide {}]", self.span(intervals), self.span(1))
    }

    /// The window over polled rows: wide enough to always contain a poll.
    fn polls(&self) -> String {
        let range = span(2 * self.interval.max(POLL));
        format!("[range {range} slide {}]", self.span(1))
    }

    /// A number of intervals in CQL.
    pub(super) fn span(&self, intervals: u32) -> String {
        span(self.interval * intervals)
    }

    pub(super) fn seconds(&self) -> String {
        format!("{:?}", self.interval.as_secs_f64())
    }

    /// The name of a disk in the results.
    pub(super) fn device(&self, disk: &str) -> String {
        match self.live {
            true => device_names::on_host(disk),
            false => disk.to_owned(),
        }
    }

    /// The tests for the selection.
    fn conditions(&self, level: TopLevel) -> Vec<String> {
        if matches!(level, TopLevel::File | TopLevel::App) {
            let mut tests = self.level_tests(level);
            tests.extend(load_test(level));
            return tests;
        }
        let vm = self.vm.iter().map(|vm| format!("vm = {}", quoted(vm)));
        let disk = self.disk.iter().map(|disk| {
            let device = quoted(&self.device(disk));
            let disk = quoted(disk);
            match level {
                TopLevel::Vdisk => format!("vdisk = {disk}"),
                _ => format!("(vdisk = {disk} or pdisk = {device})"),
            }
        });
        // QEMU reports idle disks too, and nothing about the time before the first poll.
        let has_counts =
            (level == TopLevel::Vdisk).then(|| "operations > 0 and interval > 0 ns".to_owned());
        vm.chain(disk).chain(has_counts).collect()
    }
}

/// A duration in CQL.
fn span(span: Duration) -> String {
    let nanos = span.as_nanos();
    match (nanos % 1_000_000_000, nanos % 1_000_000) {
        (0, _) => format!("{} s", nanos / 1_000_000_000),
        (_, 0) => format!("{} ms", nanos / 1_000_000),
        _ => format!("{nanos} ns"),
    }
}

/// The tests for one disk. Its name in the VM is sufficient if it is known.
fn of_disk(disk: &TopDisk) -> Vec<String> {
    let test = |name, value: Option<Symbol>| match value {
        Some(value) => format!("{name} = {}", quoted(value.as_str())),
        None => format!("{name} is null"),
    };
    let mut tests = vec![test("vm", disk.vm), test("vdisk", disk.vdisk)];
    if disk.vdisk.is_none() || disk.pdisk.is_some() {
        tests.push(test("pdisk", disk.pdisk));
    }
    tests
}

pub(super) fn condition(tests: &[String]) -> String {
    match tests.is_empty() {
        true => String::new(),
        false => format!("\n  where {}", tests.join(" and ")),
    }
}

/// The checked query.
///
/// # Errors
/// When a name in it cannot be expressed in CQL, such as one with a line feed.
pub fn checked(text: &str, live: bool) -> Result<Checked, Failure> {
    let question = QueryText::new(text);
    let mut catalog = Catalog::builtin();
    let files = [&fileio::STREAM, &iopath::STREAM, &pagecache::STREAM];
    catalog
        .declarations
        .extend(files.map(|stream| stream.declaration()));
    compile(text, &catalog, &question::options(live)).map_err(|d| question.failure(&d))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(vm: Option<&str>, disk: Option<&str>, millis: u64) -> Scope {
        Scope {
            interval: Duration::from_millis(millis),
            vm: vm.map(str::to_owned),
            disk: disk.map(str::to_owned),
            devices: Vec::new(),
            stacked: false,
            live: true,
        }
    }

    /// That the kernel folds all of it is tested where there is a kernel: tests/cli/folds.rs.
    #[test]
    fn no_query_of_the_block_level_needs_single_requests() {
        let scope = scope(Some("web"), None, 1_000);
        let block = [
            scope.lines(TopLevel::Block),
            scope.totals(TopLevel::Block),
            scope.submitters(),
            scope.histograms(&ANY_DISK),
        ];
        let plans = block.map(|text| checked(&text, true).ok().unwrap().plan);
        let plans: Vec<&weir_query::Plan> = plans.iter().map(|plan| &**plan).collect();
        let placement = weir_query::place::place(&plans, &weir_tap::live::capabilities());
        assert!(placement.demands.iter().all(|d| d.fold.is_some()));
        assert_eq!(placement.demands.len(), 2, "what has the same keys is one");
    }

    #[test]
    fn every_query_is_valid_whatever_the_names() {
        for scope in [
            scope(None, None, 1_000),
            scope(Some("it's"), None, 250),
            scope(Some("web"), Some("/dev/vda"), 5_000),
        ] {
            for (what, text) in scope.all() {
                assert!(checked(&text, true).is_ok(), "{what}: {text}");
            }
        }
    }

    #[test]
    fn the_results_have_the_columns_of_the_screen() {
        let scope = scope(None, None, 1_000);
        let names = |text: &str| -> Vec<String> {
            let schema = checked(text, true).ok().unwrap().plan.schema.clone();
            schema.fields.iter().map(|f| f.name.clone()).collect()
        };
        let of = |level: TopLevel| {
            let columns = COLUMNS.iter().filter(move |c| c.cql(level).is_some());
            columns.map(|c| c.name)
        };
        let behind = |keys: &'static str| -> Vec<&str> {
            keys.split(", ").chain(of(TopLevel::Block)).collect()
        };
        let keys = "vm, vdisk, pdisk, op";
        assert_eq!(names(&scope.lines(TopLevel::Block)), behind(keys));
        assert_eq!(names(&scope.submitters()), behind("vm, comm, pdisk, op"));
        assert_eq!(names(&scope.totals(TopLevel::Block)), TOTALS);
        assert_eq!(names(&scope.losses()), LOSSES);
        let polled = names(&scope.lines(TopLevel::Vdisk));
        assert_eq!(polled[..5], ["vm", "vdisk", "op", "iops", "throughput"]);
        assert!(
            polled
                .iter()
                .all(|n| behind("vm, vdisk, op").contains(&n.as_str()))
        );
        assert_eq!(names(&scope.totals(TopLevel::Vdisk)), TOTALS[..4]);
        let file = TopFile {
            pdisk: Some(Symbol::new("/dev/sda")),
            fs: None,
            path: Some(Symbol::new("/srv/it's")),
            inode: None,
        };
        for (level, own, keys) in [
            (TopLevel::File, scope.lines(TopLevel::File), TopLevel::File),
            (TopLevel::App, scope.lines(TopLevel::App), TopLevel::App),
            (
                TopLevel::App,
                scope.files(&FilesOf::Disk(None)),
                TopLevel::File,
            ),
            (
                TopLevel::File,
                scope.processes(&file, TopLevel::File),
                TopLevel::App,
            ),
            (
                TopLevel::App,
                scope.processes(&file, TopLevel::App),
                TopLevel::App,
            ),
        ] {
            let keys = super::keys(keys).iter().copied();
            let all: Vec<&str> = keys.chain(of(level)).collect();
            assert_eq!(names(&own), all);
        }
        let cache = ["pdisk", "fs", "path", "inode", "cached", "cache"];
        assert_eq!(names(&scope.cached()), cache);
        assert_eq!(names(&scope.totals(TopLevel::File)), TOTALS);
        assert_eq!(names(&scope.totals(TopLevel::App)), TOTALS);
    }
}
