//! The columns of `weir top`: the expression and the format of each.

use super::figures::Figure;

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
    /// The aggregate; `INTERVAL` stands for the interval in CQL, `SECONDS` for its seconds.
    pub cql: &'static str,
    /// The same aggregate over QEMU's counters, stream `blockstats`, if it is available.
    pub cql_vdisk: Option<&'static str>,
    /// Its meaning, for the help screen.
    pub doc: &'static str,
}

impl TopColumn {
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

/// Every column, in the order of display.
#[rustfmt::skip]
pub static COLUMNS: &[TopColumn] = &[
    column("iops", "IOPS", Figure::Count, 6, 0, "count(*) / SECONDS",
        Some("1.0 * sum(operations) * 1 s / sum(interval)"),
        "requests completed per second"),
    column("throughput", "B/s", Figure::Bytes, 6, 1, "sum(bytes) / SECONDS",
        Some("1.0 * sum(bytes) * 1 s / sum(interval)"),
        "bytes read, written or discarded per second"),
    column("size", "SIZE", Figure::Bytes, 5, 9, "avg(bytes)",
        Some("1.0 * sum(bytes) / sum(operations)"),
        "mean size of a request"),
    column("load", "LOAD", Figure::Ratio, 5, 2, "1.0 * sum(latency) / INTERVAL",
        Some("1.0 * sum(time) / sum(interval)"),
        "mean number of requests in flight: IOPS times mean latency"),
    column("mean", "MEAN", Figure::Span, 6, 3, "avg(latency)",
        Some("1.0 * sum(time) / sum(operations)"),
        "latency, from insert to completion: mean"),
    column("p50", "P50", Figure::Span, 6, 8, "quantile(latency, 0.5)",
        None,
        "latency: median"),
    column("p99", "P99", Figure::Span, 6, 4, "quantile(latency, 0.99)",
        None,
        "latency: 99th percentile"),
    column("max", "MAX", Figure::Span, 6, 10, "max(latency)",
        None,
        "latency: maximum"),
    column("depth", "QD", Figure::Ratio, 5, 5, "avg(in_flight)",
        None,
        "queue depth: requests in flight at an issue, including the request"),
    column("sequential", "SEQ", Figure::Percent, 4, 6,
        "100.0 * sum(case when seek = 1 then 1 else 0 end) / count(seek)",
        None,
        "percentage of requests that start where the previous one ended"),
    column("wait_mean", "W.MEAN", Figure::Span, 6, 11, "avg(wait)",
        None,
        "wait, from insert to issue, in the host's queue: mean"),
    column("wait_p50", "W.P50", Figure::Span, 6, 15, "quantile(wait, 0.5)",
        None,
        "wait: median"),
    column("wait_p99", "W.P99", Figure::Span, 6, 12, "quantile(wait, 0.99)",
        None,
        "wait: 99th percentile"),
    column("wait_max", "W.MAX", Figure::Span, 6, 17, "max(wait)",
        None,
        "wait: maximum"),
    column("service_mean", "S.MEAN", Figure::Span, 6, 13, "avg(service)",
        None,
        "service, from issue to completion, in the device: mean"),
    column("service_p50", "S.P50", Figure::Span, 6, 16, "quantile(service, 0.5)",
        None,
        "service: median"),
    column("service_p99", "S.P99", Figure::Span, 6, 14, "quantile(service, 0.99)",
        None,
        "service: 99th percentile"),
    column("service_max", "S.MAX", Figure::Span, 6, 18, "max(service)",
        None,
        "service: maximum"),
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

#[allow(clippy::too_many_arguments)] // They are the columns of the list above.
const fn column(
    name: &'static str,
    header: &'static str,
    figure: Figure,
    width: u16,
    rank: u8,
    cql: &'static str,
    cql_vdisk: Option<&'static str>,
    doc: &'static str,
) -> TopColumn {
    TopColumn {
        name,
        header,
        figure,
        width,
        rank,
        cql,
        cql_vdisk,
        doc,
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
