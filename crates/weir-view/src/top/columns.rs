//! The columns of `weir top`: the expression and the format of each.

use super::figures::Figure;
use super::queries::TopLevel;

/// A column: an aggregate over the requests of an interval.
#[derive(Debug)]
pub struct TopColumn {
    /// Its name in the query and in JSON.
    pub name: &'static str,
    /// Its header on the screen.
    pub header: &'static str,
    /// Its type of number.
    pub figure: Figure,
    /// Its width on the terminal.
    pub width: u16,
    /// The columns with the lowest rank remain on a narrow screen.
    pub rank: u8,
    /// The aggregate over requests of the host's block layer; `INTERVAL` stands for the interval in
    /// CQL, `SECONDS` for its seconds.
    pub cql: Option<&'static str>,
    /// The same aggregate over QEMU's counters, stream `blockstats`, if it is available.
    pub cql_vdisk: Option<&'static str>,
    /// Over requests of file systems, stream `FileIO`.
    pub cql_file: Option<&'static str>,
    /// Over requests of applications, stream `IOpath`.
    pub cql_app: Option<&'static str>,
    /// Over counts of the page cache, stream `PageCache`.
    pub cql_cache: Option<&'static str>,
    /// Its meaning, for the help screen.
    pub doc: &'static str,
}

impl TopColumn {
    /// Its aggregate at a level.
    pub fn cql(&self, level: TopLevel) -> Option<&'static str> {
        match level {
            TopLevel::Block => self.cql,
            TopLevel::Vdisk => self.cql_vdisk,
            TopLevel::File => self.cql_file,
            TopLevel::App => self.cql_app,
        }
    }

    /// Whether tables of a level have it.
    pub fn is_of(&self, level: TopLevel) -> bool {
        match level {
            // Columns that QEMU does not count are empty there.
            TopLevel::Vdisk => self.cql.is_some(),
            TopLevel::File => self.cql_file.is_some() || self.cql_cache.is_some(),
            _ => self.cql(level).is_some(),
        }
    }

    /// Its rank at a level: that of the device is beside that of the application.
    pub fn rank_at(&self, level: TopLevel) -> u8 {
        let first = match level {
            TopLevel::App => &["service_mean", "service_p99"][..],
            TopLevel::File => &["reads", "direct", "cached"],
            _ => &[],
        };
        match first.contains(&self.name) {
            true => LEVEL_RANK,
            false => self.rank,
        }
    }

    /// A value in few characters. Rates and sums with losses are lower bounds, and are prefixed
    /// with `mark`.
    pub fn show(&self, value: Option<f64>, lower_bound: bool, mark: &str) -> String {
        let text = self.figure.show(value);
        match lower_bound && value.is_some() && SUMS.contains(&self.name) {
            true => format!("{mark}{text}"),
            false => text,
        }
    }
}

/// The columns that are lower bounds if requests were lost; the others are of the received
/// requests.
pub const SUMS: [&str; 3] = ["iops", "throughput", "load"];

/// The rank of the columns that a level is about.
const LEVEL_RANK: u8 = 5;

/// Every column, in the order of display.
#[rustfmt::skip]
pub static COLUMNS: &[TopColumn] = &[
    column("iops", "IOPS", Figure::Count, 6, 0,
        "requests completed per second")
        .everywhere("count(*) / SECONDS")
        .vdisk("1.0 * sum(operations) * 1 s / sum(interval)"),
    column("throughput", "B/s", Figure::Bytes, 6, 1,
        "bytes read, written or discarded per second")
        .everywhere("sum(bytes) / SECONDS")
        .vdisk("1.0 * sum(bytes) * 1 s / sum(interval)"),
    column("size", "SIZE", Figure::Bytes, 5, 9,
        "mean size of a request")
        .everywhere("avg(bytes)")
        .vdisk("1.0 * sum(bytes) / sum(operations)"),
    column("load", "LOAD", Figure::Ratio, 5, 2,
        "mean number of requests in flight: IOPS times mean latency")
        .everywhere("1.0 * sum(latency) / INTERVAL")
        .vdisk("1.0 * sum(time) / sum(interval)"),
    column("mean", "MEAN", Figure::Span, 6, 3,
        "latency, from insert to completion: mean")
        .everywhere("avg(latency)")
        .vdisk("1.0 * sum(time) / sum(operations)"),
    column("p50", "P50", Figure::Span, 6, 8,
        "latency: median")
        .everywhere("quantile(latency, 0.5)"),
    column("p99", "P99", Figure::Span, 6, 4,
        "latency: 99th percentile")
        .everywhere("quantile(latency, 0.99)"),
    column("max", "MAX", Figure::Span, 6, 10,
        "latency: maximum")
        .everywhere("max(latency)"),
    column("reads", "READ", Figure::Percent, 4, 19,
        "levels file, app: percentage of requests that are reads")
        .file("100.0 * sum(case when op = 'r' then 1 else 0 end) / count(*)")
        .app("100.0 * sum(case when op = 'r' then 1 else 0 end) / count(*)"),
    column("direct", "DIR", Figure::Percent, 4, 20,
        "level file: percentage of requests that are direct I/O; the others are buffered")
        .file("100.0 * sum(case when flags like '%D%' then 1 else 0 end) / count(*)"),
    column("cached", "HIT", Figure::Percent, 4, 21,
        "level file: percentage of the bytes read that the page cache served")
        .cache("100.0 * sum(hit_bytes) / (sum(hit_bytes) + sum(miss_bytes))"),
    column("cache", "HIT/s", Figure::Bytes, 6, 22,
        "level file: bytes per second that the page cache served to reads")
        .cache("sum(hit_bytes) / SECONDS"),
    column("depth", "QD", Figure::Ratio, 5, 5,
        "queue depth: requests in flight at an issue, including the request")
        .block("avg(in_flight)"),
    column("sequential", "SEQ", Figure::Percent, 4, 6,
        "percentage of requests that start where the previous one ended")
        .block("100.0 * sum(case when seek = 1 then 1 else 0 end) / count(seek)"),
    column("wait_mean", "W.MEAN", Figure::Span, 6, 11,
        "wait, from insert to issue, in the host's queue: mean")
        .block("avg(wait)").app("avg(block_wait)"),
    column("wait_p50", "W.P50", Figure::Span, 6, 15,
        "wait: median")
        .block("quantile(wait, 0.5)"),
    column("wait_p99", "W.P99", Figure::Span, 6, 12,
        "wait: 99th percentile")
        .block("quantile(wait, 0.99)"),
    column("wait_max", "W.MAX", Figure::Span, 6, 17,
        "wait: maximum")
        .block("max(wait)").app("max(block_wait)"),
    column("service_mean", "S.MEAN", Figure::Span, 6, 13,
        "service, from issue to completion, in the device: mean")
        .block("avg(service)").app("avg(device)"),
    column("service_p50", "S.P50", Figure::Span, 6, 16,
        "service: median")
        .block("quantile(service, 0.5)").app("quantile(device, 0.5)"),
    column("service_p99", "S.P99", Figure::Span, 6, 14,
        "service: 99th percentile")
        .block("quantile(service, 0.99)").app("quantile(device, 0.99)"),
    column("service_max", "S.MAX", Figure::Span, 6, 18,
        "service: maximum")
        .block("max(service)").app("max(device)"),
];

/// The three times of a request, each with the columns for mean, median, 99th percentile and
/// maximum.
pub const TIMES: [(&str, [&str; 4]); 3] = [
    ("latency", ["mean", "p50", "p99", "max"]),
    ("wait", ["wait_mean", "wait_p50", "wait_p99", "wait_max"]),
    (
        "service",
        ["service_mean", "service_p50", "service_p99", "service_max"],
    ),
];

/// The width of the sparkline; its rank is [`SPARK_RANK`].
pub const SPARK_WIDTH: u16 = 8;
/// The rank of the sparkline among those of the columns.
pub const SPARK_RANK: u8 = 7;

/// The position of a column.
///
/// # Panics
/// When there is none of that name.
pub fn index(name: &str) -> usize {
    let at = COLUMNS.iter().position(|c| c.name == name);
    at.unwrap_or_else(|| panic!("a column called {name}"))
}

const fn column(
    name: &'static str,
    header: &'static str,
    figure: Figure,
    width: u16,
    rank: u8,
    doc: &'static str,
) -> TopColumn {
    TopColumn {
        name,
        header,
        figure,
        width,
        rank,
        cql: None,
        cql_vdisk: None,
        cql_file: None,
        cql_app: None,
        cql_cache: None,
        doc,
    }
}

/// The aggregates of a column, by source.
impl TopColumn {
    const fn block(self, cql: &'static str) -> TopColumn {
        let cql = Some(cql);
        TopColumn { cql, ..self }
    }

    const fn vdisk(self, cql: &'static str) -> TopColumn {
        let cql_vdisk = Some(cql);
        TopColumn { cql_vdisk, ..self }
    }

    const fn file(self, cql: &'static str) -> TopColumn {
        let cql_file = Some(cql);
        TopColumn { cql_file, ..self }
    }

    const fn app(self, cql: &'static str) -> TopColumn {
        let cql_app = Some(cql);
        TopColumn { cql_app, ..self }
    }

    const fn cache(self, cql: &'static str) -> TopColumn {
        let cql_cache = Some(cql);
        TopColumn { cql_cache, ..self }
    }

    /// The same for all streams of requests.
    const fn everywhere(self, cql: &'static str) -> TopColumn {
        self.block(cql).file(cql).app(cql)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_and_names_are_used_once_and_headers_fit() {
        let mut ranks: Vec<u8> = COLUMNS.iter().map(|c| c.rank).collect();
        ranks.push(SPARK_RANK);
        ranks.sort_unstable();
        assert!(ranks.windows(2).all(|pair| pair[0] < pair[1]));
        for (i, column) in COLUMNS.iter().enumerate() {
            assert_eq!(index(column.name), i);
            assert!(
                column.header.len() <= usize::from(column.width),
                "{column:?}"
            );
        }
        for name in TIMES.iter().flat_map(|(_, names)| names) {
            index(name);
        }
    }
}
