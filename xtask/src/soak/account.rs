//! The balance of a run: what was delivered and what was counted as lost, beside a count that weir
//! does not maintain.

use std::fs;

use anyhow::{Context, Result};
use weir_testing::{Fleet, MonitorProcess};

/// The counts of one consumer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// The consumer.
    pub name: String,
    /// Requests that it received.
    pub delivered: u64,
    /// Requests that were counted as lost.
    pub lost: u64,
    /// Requests that were counted as late.
    pub late: u64,
    /// Requests by the independent count.
    pub expected: u64,
    /// The source of that count.
    pub source: String,
}

impl Balance {
    /// Whether every request is delivered or counted.
    pub fn holds(&self) -> bool {
        self.delivered + self.lost + self.late == self.expected
    }

    /// The counts since an earlier time, against an independent count of that interval.
    pub fn since(self, before: &Balance, expected: u64, source: &str) -> Balance {
        Balance {
            delivered: self.delivered - before.delivered,
            lost: self.lost - before.lost,
            late: self.late - before.late,
            expected,
            source: source.to_owned(),
            name: self.name,
        }
    }
}

/// A standing query of the monitor that counts requests per host.
pub struct CountingQuery {
    /// Its name, and that of its file without the ending.
    pub name: &'static str,
    /// Its placement strategy.
    pub place: &'static str,
}

/// The standing queries: rows that the monitor counts, and groups that agents (and the kernel)
/// count.
pub static QUERIES: &[CountingQuery] = &[
    CountingQuery {
        name: "rows",
        place: "rows",
    },
    CountingQuery {
        name: "groups",
        place: "partials",
    },
];

/// The output files of the queries.
pub const OUTPUT: [&str; 2] = ["rows.csv", "groups.csv"];

impl CountingQuery {
    /// Its entry in the monitor's settings. Each request is in exactly one row of the output.
    pub fn setting(&self) -> String {
        let CountingQuery { name, place } = self;
        let window = "[range 2 s slide 2 s]";
        format!(
            "[[query]]\nname = \"{name}\"\nplace = \"{place}\"\n\
             text = \"Rstream(select host, count(*) as requests from IO {window} group by host)\"\n\
             [[query.sink]]\nformat = \"csv\"\nfile = \"{name}.csv\"\n"
        )
    }

    /// Its balance against the number of requests of all hosts.
    pub fn balance(
        &self,
        fleet: &Fleet,
        monitor: &MonitorProcess,
        (expected, source): (u64, &str),
    ) -> Result<Balance> {
        let listed = fleet.listed(monitor, "queries")?;
        let query = listed.iter().find(|query| query["name"] == self.name);
        let query = query.with_context(|| format!("the monitor has no query {}", self.name))?;
        let count = |key: &str| {
            let value = query[key].as_u64();
            value.with_context(|| format!("no {key} in {query}"))
        };
        let path = fleet.file(&format!("monitor/{}.csv", self.name));
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        Ok(Balance {
            name: format!("monitor, query `{}` (place {})", self.name, self.place),
            delivered: sum_of_last_column(&text)?,
            lost: count("rows_lost")?,
            late: count("rows_late")?,
            expected,
            source: source.to_owned(),
        })
    }
}

/// The sum of the last column of a CSV file with a header. Its last line may be incomplete.
fn sum_of_last_column(text: &str) -> Result<u64> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let values = whole.lines().skip(1).map(|line| {
        let last = line.rsplit(',').next().unwrap_or_default();
        last.parse::<u64>().with_context(|| line.to_owned())
    });
    values.sum()
}

/// The counts of an exporter, from its metrics.
pub fn of_exporter(metrics: &str) -> Balance {
    let sum = |prefix: &str| {
        let lines = metrics.lines().filter(|line| line.starts_with(prefix));
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum::<f64>() as u64
    };
    Balance {
        name: "exporter".to_owned(),
        delivered: sum("weir_io_operations_total{"),
        lost: sum("weir_tap_events_lost_total{") + sum("weir_tap_unseen_total{"),
        ..Balance::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_summed_up_to_the_last_complete_line() {
        let text = "instant,host,requests\n2026,\"a\",5\n2026,\"b\",7\n2026,\"a\",1";
        assert_eq!(sum_of_last_column(text).unwrap(), 12);
        assert_eq!(sum_of_last_column("").unwrap(), 0);
        assert!(sum_of_last_column("a\nb\n").is_err());
    }

    #[test]
    fn an_exporter_balances_with_what_it_counts_as_lost() {
        let metrics = "weir_io_operations_total{op=\"read\"} 90\nweir_io_operations_total{op=\"write\"} 5\n\
                       weir_tap_unseen_total{cause=\"x\"} 4\nweir_io_errors_total{op=\"read\"} 9\n";
        let before = of_exporter("weir_io_operations_total{op=\"read\"} 10\n");
        let since = |expected| of_exporter(metrics).since(&before, expected, "");
        assert!(since(89).holds());
        assert!(!since(99).holds());
    }
}
