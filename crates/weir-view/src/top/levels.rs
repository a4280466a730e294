//! The levels `file` and `app`: what their lines are about, and their queries.

use weir_model::Symbol;
use weir_runtime::question::quoted;
use weir_tap::ebpf::streams::{fileio, iopath, pagecache};

use super::columns::{COLUMNS, TopColumn};
use super::queries::{Scope, TopLevel, condition};

/// The streams that the queries of a level or view read; those of other levels are not attached.
pub const FILE_STREAMS: [&str; 2] = [fileio::STREAM.name, pagecache::STREAM.name];
/// See [`FILE_STREAMS`].
pub const APP_STREAMS: [&str; 1] = [iopath::STREAM.name];

/// The largest number of partitions of a disk whose file systems are found.
const PARTITIONS_MAX: u32 = 128;

/// A file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TopFile {
    /// The device of its file system; of a disk's files, the disk.
    pub pdisk: Option<Symbol>,
    /// The type of its file system.
    pub fs: Option<Symbol>,
    /// Its path; `None` without a name, and for requests without a file.
    pub path: Option<Symbol>,
    /// Its number in its file system.
    pub inode: Option<i64>,
}

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TopProcess {
    /// The VM that it works for.
    pub vm: Option<Symbol>,
    /// Its number.
    pub pid: Option<i64>,
    /// The command name.
    pub comm: Option<Symbol>,
    /// Its cgroup.
    pub cgroup: Option<Symbol>,
}

/// The keys of the lines of a level.
pub fn keys(level: TopLevel) -> &'static [&'static str] {
    match level {
        TopLevel::Block => &["vm", "vdisk", "pdisk", "op"],
        TopLevel::Vdisk => &["vm", "vdisk", "op"],
        TopLevel::File => &["pdisk", "fs", "path", "inode"],
        TopLevel::App => &["vm", "pid", "comm", "cgroup"],
    }
}

/// The stream of a level's requests.
pub fn stream(level: TopLevel) -> &'static str {
    match level {
        TopLevel::Block => "IO",
        TopLevel::Vdisk => "blockstats",
        TopLevel::File => fileio::STREAM.name,
        TopLevel::App => iopath::STREAM.name,
    }
}

/// The test for the operations of a level's stream that are load: truncations and holes of files
/// are not, and their bytes are not transferred.
pub(super) fn load_test(level: TopLevel) -> Option<String> {
    (level == TopLevel::File).then(|| "op in ('r', 'w', 'f', 'd', 'z')".to_owned())
}

/// The files whose lines a view has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilesOf {
    /// Those whose data the requests of a device contain.
    Disk(Option<Symbol>),
    /// Those that a process reads and writes.
    Process(TopProcess),
}

impl Scope {
    /// What the page cache did for each file, at level `file`.
    pub fn cached(&self) -> String {
        let columns = |c: &TopColumn| c.cql_cache;
        let tests = [
            self.level_tests(TopLevel::File),
            vec!["op in ('r', 'm')".into()],
        ]
        .concat();
        let (keys, stream) = (keys(TopLevel::File), pagecache::STREAM.name);
        self.grouped(stream, keys, &columns, &tests)
    }

    /// The files of a device, or of a process, from the requests of the host's devices.
    pub fn files(&self, of: &FilesOf) -> String {
        let tests = match of {
            FilesOf::Disk(pdisk) => vec![is("pdisk", *pdisk)],
            FilesOf::Process(process) => {
                [of_process(process), self.level_tests(TopLevel::App)].concat()
            }
        };
        let columns = |c: &TopColumn| c.cql_app;
        self.grouped(
            stream(TopLevel::App),
            keys(TopLevel::File),
            &columns,
            &tests,
        )
    }

    /// The processes of a file, from the requests of `level`, from which its line is.
    pub fn processes(&self, file: &TopFile, level: TopLevel) -> String {
        let columns = |c: &TopColumn| c.cql(level);
        let mut tests = of_file(file);
        tests.extend(load_test(level));
        self.grouped(stream(level), keys(TopLevel::App), &columns, &tests)
    }

    /// All files and processes of a level's requests, of which each view below it has a part.
    pub fn detailed(&self, level: TopLevel) -> String {
        let columns = |c: &TopColumn| c.cql(level);
        let keys = [keys(TopLevel::File), keys(TopLevel::App)].concat();
        let tests: Vec<String> = load_test(level).into_iter().collect();
        self.grouped(stream(level), &keys, &columns, &tests)
    }

    /// The tests for the selection, at level `file` or `app`.
    pub(super) fn level_tests(&self, level: TopLevel) -> Vec<String> {
        let mut tests: Vec<String> = Vec::new();
        tests.extend(self.vm.iter().map(|vm| format!("vm = {}", quoted(vm))));
        let disk = self.disk.iter().map(|disk| self.device(disk));
        let devices: Vec<String> = match self.disk {
            Some(_) => disk.collect(),
            None => self.devices.clone(),
        };
        if !devices.is_empty() {
            let names = devices.iter().flat_map(|device| match level {
                // A file system may be on a partition; requests of devices have the whole disk.
                TopLevel::File => with_partitions(device),
                _ => vec![device.clone()],
            });
            let names: Vec<String> = names.map(|name| quoted(&name)).collect();
            tests.push(format!("pdisk in ({})", names.join(", ")));
        } else if level == TopLevel::App && !self.stacked {
            // A request of dm or md is in the rows of the devices below as well.
            let below = ["/dev/dm-%", "/dev/md%"];
            tests.extend(below.map(|name| format!("not pdisk like '{name}'")));
        }
        tests
    }
}

/// The disk and the names that its partitions can have.
pub(crate) fn with_partitions(disk: &str) -> Vec<String> {
    let separator = match disk.ends_with(|c: char| c.is_ascii_digit()) {
        true => "p",
        false => "",
    };
    let partitions = (1..=PARTITIONS_MAX).map(|n| format!("{disk}{separator}{n}"));
    std::iter::once(disk.to_owned()).chain(partitions).collect()
}

fn is(column: &str, value: Option<Symbol>) -> String {
    match value {
        Some(value) => format!("{column} = {}", quoted(value.as_str())),
        None => format!("{column} is null"),
    }
}

fn is_number(column: &str, value: Option<i64>) -> String {
    match value {
        Some(value) => format!("{column} = {value}"),
        None => format!("{column} is null"),
    }
}

/// The tests for one file. The number of the file is sufficient, and remains after a rename.
fn of_file(file: &TopFile) -> Vec<String> {
    let mut tests = vec![is("pdisk", file.pdisk), is("fs", file.fs)];
    tests.push(is_number("inode", file.inode));
    if file.inode.is_none() {
        tests.push(is("path", file.path));
    }
    tests
}

/// The tests for one process.
fn of_process(process: &TopProcess) -> Vec<String> {
    let mut tests = vec![is_number("pid", process.pid)];
    // A text with control characters cannot be written in CQL.
    let is_plain = |name: &Symbol| !name.as_str().contains(char::is_control);
    if process.comm.as_ref().is_none_or(is_plain) {
        tests.push(is("comm", process.comm));
    }
    tests.push(is("vm", process.vm));
    tests
}

impl Scope {
    /// The aggregates of a stream's rows by `keys`.
    pub(super) fn grouped(
        &self,
        stream: &str,
        keys: &[&str],
        aggregate: &dyn Fn(&TopColumn) -> Option<&'static str>,
        tests: &[String],
    ) -> String {
        let columns = COLUMNS.iter().filter_map(|c| {
            let cql = aggregate(c)?.replace("INTERVAL", &self.span(1));
            Some(format!(
                "{} as {}",
                cql.replace("SECONDS", &self.seconds()),
                c.name
            ))
        });
        let columns: Vec<String> = columns.collect();
        let keys = keys.join(", ");
        self.every(&format!(
            "select {keys},\n         {}\n  from {stream} {}{}\n  group by {keys}",
            columns.join(",\n         "),
            self.window(1),
            condition(tests),
        ))
    }
}
