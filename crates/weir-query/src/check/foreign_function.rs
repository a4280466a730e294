//! Functions of other systems that CQL writes otherwise: SQL databases, ksqlDB, Flink, ClickHouse,
//! Splunk, bpftrace.

/// Names, without regard to case, and an expression in CQL for their purpose.
const FUNCTIONS: &[(&[&str], &str)] = &[
    (&["year"], "extract(year from ts)"),
    (&["month"], "extract(month from ts)"),
    (&["day", "dayofmonth"], "extract(day from ts)"),
    (&["hour"], "extract(hour from ts)"),
    (&["minute"], "extract(minute from ts)"),
    (&["second"], "extract(second from ts)"),
    (
        &["toStartOfMinute", "time_slice", "datetrunc"],
        "date_trunc('minute', ts)",
    ),
    (&["getdate", "sysdate", "localtimestamp"], "now()"),
    (
        &["unix_timestamp", "to_unixtime", "epoch"],
        "cast(ts as integer)",
    ),
    (&["to_char", "strftime", "date_format"], "cast(ts as text)"),
    (&["countif", "count_if"], "count(*) filter (where op = 'r')"),
    (&["sumif", "sum_if"], "sum(bytes) filter (where op = 'r')"),
    (&["avgif", "avg_if"], "avg(bytes) filter (where op = 'r')"),
    (&["count_distinct"], "count(distinct pid)"),
    (&["uniq"], "approx_count_distinct(pid)"),
    (&["topk", "top_k"], "top(pid, 3)"),
    (
        &["percentile_approx", "percentileest", "tdigest"],
        "quantile(latency, 0.99)",
    ),
    (&["stdev", "std"], "stddev(latency)"),
    (&["variance_pop", "varp"], "var_pop(latency)"),
    (&["hist", "lhist", "histogram_auto"], "histogram(latency)"),
    (
        &["latest", "latest_by_offset", "last_by"],
        "max_by(bytes, ts)",
    ),
    (
        &["earliest", "earliest_by_offset", "first_by"],
        "min_by(bytes, ts)",
    ),
    (&["any_value", "any", "arbitrary"], "min(comm)"),
    (&["collect_list", "list_agg", "make_list"], "array_agg(pid)"),
    (&["zeroifnull"], "coalesce(pid, 0)"),
    (&["isnull"], "pid is null"),
    (
        &["if", "iif", "iff", "decode"],
        "case when op = 'r' then 1 else 0 end",
    ),
    (&["len"], "length(comm)"),
    (&["instr", "charindex", "locate"], "position('x' in comm)"),
    (&["startswith"], "starts_with(comm, 'x')"),
    (&["contains", "strcontains"], "comm like '%x%'"),
    (&["mod"], "pid % 2"),
    (&["date_diff", "datediff", "timestampdiff"], "now() - ts"),
    (&["bin"], "bucket(bytes, 4096)"),
];

/// The expression in CQL for a function of another system.
pub(super) fn cql_for(name: &str) -> Option<&'static str> {
    let is_it = |known: &&str| known.eq_ignore_ascii_case(name);
    let found = FUNCTIONS.iter().find(|(names, _)| names.iter().any(is_it));
    found.map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use weir_model::Catalog;

    use super::*;
    use crate::{CheckOptions, compile};

    fn errors(expr: &str) -> Vec<String> {
        let text = format!("select {expr} as x from IO [range 1 s slide 1 s]");
        let checked = compile(&text, &Catalog::builtin(), &CheckOptions::live());
        let diagnostics = checked.err().unwrap_or_default();
        diagnostics.iter().map(|d| d.code.to_string()).collect()
    }

    #[test]
    fn the_proposed_expressions_are_cql_and_the_names_are_not() {
        let wrong = FUNCTIONS.iter().flat_map(|(names, expr)| {
            let own = (!errors(expr).is_empty()).then_some(*expr);
            let known = |name: &&&str| errors(&format!("{name}(bytes)")) != ["W0103"];
            own.into_iter().chain(names.iter().filter(known).copied())
        });
        assert_eq!(wrong.collect::<Vec<_>>(), Vec::<&str>::new());
    }
}
