//! [`PathTable`]: the times at each level for each VM and disk, and the slowest requests.

use std::collections::{BTreeMap, HashMap};

use weir_model::Symbol;
use weir_sketch::LogLinear;

use super::row::{PathDisk, PathRow};
use super::selection::{LEVELS_MAX, LevelStream};

/// Maximum number of disks; the requests of further ones are counted. The quantiles of a disk take
/// about 200 kB.
const DISKS_MAX: usize = 1_000;

/// The requests of an interval.
#[derive(Clone, Debug)]
pub struct PathTable {
    /// The stream.
    pub stream: &'static LevelStream,
    disks: HashMap<PathDisk, DiskLevels>,
    /// The requests of disks beyond the maximum number.
    pub beyond: u64,
    /// Requests that came after the table of their interval.
    pub late: u64,
    /// The slowest requests, the slowest first.
    pub slowest: Vec<PathRow>,
    slowest_max: usize,
}

/// The requests of a disk.
#[derive(Clone, Debug, Default)]
pub struct DiskLevels {
    /// The times at each level of the stream.
    pub levels: [Times; LEVELS_MAX],
    /// The times at all levels.
    pub total: Times,
    /// The requests with a level that is not known, by cause.
    pub causes: BTreeMap<&'static str, u64>,
}

/// Times of requests.
#[derive(Clone, Debug, Default)]
pub struct Times {
    sum_ns: i64,
    quantiles: LogLinear<i64>,
}

impl PathTable {
    /// An empty table that keeps this number of slowest requests.
    pub fn new(stream: &'static LevelStream, slowest_max: usize) -> PathTable {
        PathTable {
            stream,
            disks: HashMap::new(),
            beyond: 0,
            late: 0,
            slowest: Vec::new(),
            slowest_max,
        }
    }

    /// True without requests.
    pub fn is_empty(&self) -> bool {
        self.disks.is_empty()
    }

    /// The disks: VMs by name, then I/O of no VM.
    pub fn disks(&self) -> Vec<(PathDisk, &DiskLevels)> {
        let mut disks: Vec<_> = self.disks.iter().map(|(disk, all)| (*disk, all)).collect();
        let name = |symbol: Option<Symbol>| symbol.map_or("", Symbol::as_str);
        disks.sort_by_key(|(disk, _)| {
            let names = [disk.vm, disk.vdisk, disk.place].map(name);
            (disk.vm.is_none(), names)
        });
        disks
    }

    /// Adds a request.
    pub fn add(&mut self, row: &PathRow) {
        if self.disks.len() >= DISKS_MAX && !self.disks.contains_key(&row.disk) {
            self.beyond += 1;
            return;
        }
        let disk = self.disks.entry(row.disk).or_default();
        disk.total.add(row.latency_ns);
        for (times, time_ns) in disk.levels.iter_mut().zip(row.levels_ns) {
            time_ns.into_iter().for_each(|time_ns| times.add(time_ns));
        }
        if let Some(cause) = row.cause {
            *disk.causes.entry(cause.as_str()).or_default() += 1;
        }
        let slower = |other: &PathRow| other.latency_ns >= row.latency_ns;
        let at = self.slowest.partition_point(slower);
        if at < self.slowest_max {
            self.slowest.truncate(self.slowest_max - 1);
            self.slowest.insert(at, *row);
        }
    }
}

impl DiskLevels {
    /// Each level with its name and its share of the time of all requests; the last one is
    /// `total`.
    pub fn named(
        &self,
        stream: &'static LevelStream,
    ) -> impl Iterator<Item = (&'static str, &Times, Option<f64>)> {
        let sum_ns = self.total.sum_ns as f64;
        let share = move |times: &Times| (sum_ns > 0.0).then(|| times.sum_ns as f64 / sum_ns);
        let levels = stream.levels.iter().copied().zip(&self.levels);
        let all = levels.chain([("total", &self.total)]);
        all.map(move |(name, times)| (name, times, share(times)))
    }

    /// The level with the largest share of the time, and its share; `None` if no time has passed.
    pub fn dominant(&self, stream: &LevelStream) -> Option<(&'static str, f64)> {
        let levels = stream.levels.iter().zip(&self.levels);
        // Of equal ones, the first.
        let (name, times) = levels.rev().max_by_key(|(_, times)| times.sum_ns)?;
        let is_known = times.sum_ns > 0 && self.total.sum_ns > 0;
        is_known.then(|| (*name, times.sum_ns as f64 / self.total.sum_ns as f64))
    }
}

impl Times {
    fn add(&mut self, time_ns: i64) {
        self.sum_ns = self.sum_ns.saturating_add(time_ns);
        self.quantiles.add(time_ns, 1);
    }

    /// The number of requests.
    pub fn count(&self) -> i64 {
        self.quantiles.total()
    }

    /// The sum, ns.
    pub fn sum_ns(&self) -> i64 {
        self.sum_ns
    }

    /// The mean, ns.
    pub fn mean_ns(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.sum_ns as f64 / self.count() as f64)
    }

    /// A quantile, ns, within 1/128.
    pub fn quantile_ns(&self, q: f64) -> Option<i64> {
        self.quantiles.quantile(q)
    }
}

#[cfg(test)]
mod tests {
    use super::super::selection::HOST_LEVELS;
    use super::*;

    /// A request of a disk with the times 0, 10, NULL, `device_ns`, NULL.
    fn request(pdisk: &str, device_ns: i64) -> PathRow {
        PathRow {
            ts: 0,
            disk: PathDisk {
                vdisk: None,
                vm: None,
                place: Some(Symbol::new(pdisk)),
            },
            cause: (device_ns == 0).then(|| Symbol::new("metadata")),
            latency_ns: 10 + device_ns,
            levels_ns: [None, Some(0), Some(10), None, Some(device_ns), None],
            identity: None,
        }
    }

    #[test]
    fn shares_are_of_the_time_of_all_requests_of_the_disk() {
        let mut table = PathTable::new(&HOST_LEVELS, 0);
        for device_ns in [0, 20, 50] {
            table.add(&request("/dev/sda", device_ns));
        }
        table.add(&request("/dev/sdb", 90));
        let disks = table.disks();
        let names: Vec<_> = disks.iter().map(|(disk, _)| disk.place.unwrap()).collect();
        assert_eq!(names, ["/dev/sda", "/dev/sdb"].map(Symbol::new));
        let (_, sda) = &disks[0];
        let rows: Vec<_> = sda
            .named(&HOST_LEVELS)
            .map(|(n, t, s)| (n, t.count(), s))
            .collect();
        assert_eq!(
            rows,
            [
                ("vdisk_wait", 0, Some(0.0)),
                ("app_wait", 3, Some(0.0)),
                ("file", 3, Some(0.3)),
                ("block_wait", 0, Some(0.0)),
                ("device", 3, Some(0.7)),
                ("completion", 0, Some(0.0)),
                ("total", 3, Some(1.0)),
            ]
        );
        assert_eq!(sda.dominant(&HOST_LEVELS), Some(("device", 0.7)));
        assert_eq!(DiskLevels::default().dominant(&HOST_LEVELS), None);
        let device = &sda.levels[4];
        assert_eq!(device.mean_ns(), Some(70.0 / 3.0));
        let quantiles = [0.5, 0.99].map(|q| device.quantile_ns(q));
        assert_eq!(quantiles, [Some(20), Some(50)]);
        assert_eq!(sda.levels[3].mean_ns(), None);
        assert_eq!(sda.causes, BTreeMap::from([("metadata", 1)]));
    }

    #[test]
    fn the_slowest_requests_are_kept_in_their_order() {
        for (max, expected) in [(0, &[][..]), (2, &[90, 50]), (9, &[90, 50, 20, 0])] {
            let mut table = PathTable::new(&HOST_LEVELS, max);
            for device_ns in [20, 90, 0, 50] {
                table.add(&request("/dev/sda", device_ns));
            }
            let kept = table.slowest.iter().map(|row| row.latency_ns - 10);
            assert_eq!(kept.collect::<Vec<i64>>(), expected);
        }
    }

    #[test]
    fn disks_beyond_the_maximum_are_counted() {
        let mut table = PathTable::new(&HOST_LEVELS, 1);
        for number in 0..DISKS_MAX + 5 {
            table.add(&request(&format!("/dev/nbd{number}"), 1));
        }
        table.add(&request("/dev/nbd0", 1));
        assert_eq!((table.disks().len(), table.beyond), (DISKS_MAX, 5));
    }
}
