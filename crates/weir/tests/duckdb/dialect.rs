//! [`DIFFERENCES`]: what CQL and DuckDB write or compute differently, and how random queries are
//! translated. `docs/cql.md` lists the same table.

use crate::text::Text;

/// A construct of CQL and the one of DuckDB with the same result. `{0}` and `{1}` are its parts.
pub struct Difference {
    pub name: &'static str,
    pub cql: &'static str,
    pub duckdb: &'static str,
    /// Why they differ, as the documentation explains it.
    pub why: &'static str,
}

/// Every difference that the random queries meet, in the order of the documentation.
pub static DIFFERENCES: &[Difference] = &[
    Difference {
        name: "quotient",
        cql: "({0} / {1})",
        duckdb: "({0} // {1})",
        why: "the quotient of integers is an integer, as in the standard and in PostgreSQL; \
              DuckDB's `/` is a float",
    },
    Difference {
        name: "float quotient",
        cql: "({0} / {1})",
        duckdb: "({0} / nullif({1}, 0))",
        why: "division by zero is NULL, also of floats; DuckDB's floats become infinite, and its \
              integers are an error unless `error_on_division_by_zero` is off",
    },
    Difference {
        name: "float to integer",
        cql: "CAST({0} AS integer)",
        duckdb: "CAST(trunc({0}) AS bigint)",
        why: "a cast to an integer truncates; DuckDB's rounds",
    },
    Difference {
        name: "text to integer",
        cql: "CAST({0} AS integer)",
        duckdb: "TRY_CAST({0} AS bigint)",
        why: "a value that cannot be cast is NULL; in DuckDB `CAST` fails",
    },
    Difference {
        name: "sum",
        cql: "sum({0})",
        duckdb: "CAST(sum({0}) AS bigint)",
        why: "a sum of integers is an integer of 64 bits, and an overflow is an error, also in groups \
              that `HAVING` removes; DuckDB's has 128 bits",
    },
    Difference {
        name: "variance",
        cql: "var({0})",
        duckdb: "var_samp({0})",
        why: "the name; `stddev` is that of a sample in both",
    },
    Difference {
        name: "list",
        cql: "string_agg({0}, ',')",
        duckdb: "string_agg({0}, ',' ORDER BY {0})",
        why: "a relation has no order of arrival, so the texts are in their own order; a list of more \
              than 1,000 bytes ends with `..`",
    },
    Difference {
        name: "distinct list",
        cql: "string_agg(DISTINCT {0}, ',')",
        duckdb: "string_agg(DISTINCT {0}, ',' ORDER BY {0})",
        why: "the same",
    },
    Difference {
        name: "square root",
        cql: "sqrt({0})",
        duckdb: "CASE WHEN {0} >= 0 THEN sqrt({0}) END",
        why: "a value outside of a function's domain gives NULL; in DuckDB NaN or an infinite number",
    },
    Difference {
        name: "logarithm",
        cql: "ln({0})",
        duckdb: "CASE WHEN {0} > 0 THEN ln({0}) END",
        why: "the same",
    },
    Difference {
        name: "interval of timestamps",
        cql: "CAST({0} - {1} AS integer)",
        duckdb: "(epoch_ns({0}) - epoch_ns({1}))",
        why: "the difference of two timestamps is an integer in ns; in DuckDB an `INTERVAL`",
    },
    Difference {
        name: "bucket of time",
        cql: "bucket({0}, 10 s)",
        duckdb: "time_bucket(INTERVAL 10 SECONDS, {0})",
        why: "the width is the second argument, as with numbers; `time_bucket(10 s, ts)` is accepted",
    },
    Difference {
        name: "microseconds",
        cql: "micros({0})",
        duckdb: "({0} / 1000e0)",
        why: "columns have units, and DuckDB has none",
    },
    Difference {
        name: "literal with unit",
        cql: "20 us",
        duckdb: "20000::bigint",
        why: "the same",
    },
    Difference {
        name: "format",
        cql: "format('%s:%s%%', {0}, {1})",
        duckdb: "(coalesce({0}, '') || ':' || coalesce({1}, '') || '%')",
        why: "the pattern is that of `printf`, NULL is an empty text; DuckDB's `format` is Python's",
    },
    Difference {
        name: "descending order",
        cql: "{0} DESC",
        duckdb: "{0} DESC NULLS FIRST",
        why: "NULL is the greatest value in an order, as in PostgreSQL; in DuckDB the last in both \
              directions",
    },
];

/// The construct of this name, with its parts.
pub fn translated(name: &str, parts: &[&Text]) -> Text {
    let difference = DIFFERENCES.iter().find(|d| d.name == name);
    let difference = difference.unwrap_or_else(|| panic!("no difference is named {name}"));
    Text::filled(difference.cql, difference.duckdb, parts)
}
